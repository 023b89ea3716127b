//! Reductions over the lanes of a warp that the compiler may get wrong.

use super::archive::elf::Elf;
use crate::Result;

/// The lowest 12 bits of an instruction are its operation: here those of `__reduce_add_sync` and
/// its like, REDUX and CREDUX. The second is for minimum and maximum on compute capability 10.0.
const REDUCTIONS: [u16; 2] = [0x3C4, 0x2CC];
/// Bits 12 to 15 of an instruction are its predicate: here the one that is always true.
const ALWAYS: u16 = 7;

/// Refuses machine code in which a reduction is executed under a predicate. Where a branch has
/// little but a reduction in it, the compiler replaces the branch by a predicate of the reduction.
/// NVRTC 12.9 was seen to take a wrong predicate there: in some calls the reduction was not
/// executed, and the kernel took the old value of a register for its result. A kernel that reduces
/// before the branch has no such branch.
pub(crate) fn check(cubin: &[u8]) -> Result<()> {
    let elf = Elf::new(cubin).ok_or("the compiler's image is no ELF file")?;
    for (name, section) in elf.sections().filter(|(_, section)| section.is_code) {
        let code = cubin.get(section.offset..section.offset.saturating_add(section.size));
        let code = code.ok_or("a section of the compiler's image lies outside of it")?;
        if let Some(at) = under_predicate(code) {
            let name = String::from_utf8_lossy(name);
            return Err(format!(
                "{name}+{at:#x} reduces over a warp under a predicate, which may be a wrong one: \
                 reduce before the branch, and choose afterwards"
            ));
        }
    }
    Ok(())
}

/// The lowest 16 bits of each instruction, which has 16 bytes.
fn words(code: &[u8]) -> impl Iterator<Item = u16> {
    code.as_chunks::<16>().0.iter().map(|&[low, high, ..]| u16::from_le_bytes([low, high]))
}

/// Where the first reduction under a predicate lies.
fn under_predicate(code: &[u8]) -> Option<usize> {
    let is_bad = |word: u16| REDUCTIONS.contains(&(word & 0xFFF)) && word >> 12 != ALWAYS;
    Some(16 * words(code).position(is_bad)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::archive::{self, Kind};

    #[test]
    fn a_reduction_under_a_predicate_is_found() {
        // As nvdisasm shows them: `@!P2 REDUX.SUM UR35, R17`, `REDUX.SUM UR4, R16`, `NOP`, and
        // `CREDUX.MIN UR4, R18` without and with `@P0`.
        let [bad, good, nop] = [0x0000_0000_1123_A3C4_u64, 0x0000_0000_1004_73C4, 0x7918];
        let [good_min, bad_min] = [0x0000_0000_1204_72CC_u64, 0x0000_0000_1204_02CC];
        let code = |words: &[u64]| -> Vec<u8> {
            words.iter().flat_map(|&word| (u128::from(word) | 1 << 100).to_le_bytes()).collect()
        };
        assert_eq!(under_predicate(&code(&[nop, good, bad, good])), Some(32));
        assert_eq!(under_predicate(&code(&[good_min, bad_min])), Some(16));
        assert_eq!(under_predicate(&code(&[good, nop, good_min])), None);
    }

    /// Otherwise the check might look for an operation that the compiler never writes.
    #[test]
    fn compiled_kernels_have_reductions_and_none_under_a_predicate() {
        let path = crate::root().join("crates/spec-cuda/compiled/indexer_topk_row.bin");
        let archive = crate::read(&path).unwrap();
        for entry in archive::entries(&archive).unwrap() {
            if entry.kind == Kind::Sass {
                let image = entry.unpack().unwrap();
                check(&image).unwrap();
                let count = |of| words(&image).filter(|&word| word == ALWAYS << 12 | of).count();
                let [redux, credux] = REDUCTIONS.map(count);
                assert!(redux > 10 && (credux > 10) == (entry.architecture == 100));
            }
        }
        assert!(check(b"text").is_err_and(|words| words.contains("no ELF file")));
    }
}
