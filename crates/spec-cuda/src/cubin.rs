//! What a cubin says of its kernels. A driver reads this from the ELF file when it loads the kernels;
//! a handle without a device ([`Cuda::without_device`](crate::Cuda::without_device)) reads it here.

use crate::archive::elf::{Elf, number};

/// What a kernel takes of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Registers of a thread.
    pub registers: u32,
    /// Static shared memory of a block, in bytes.
    pub shared: u32,
}

/// What a cubin says of a kernel; `None` if the cubin has no kernel of that name.
pub(crate) fn facts(cubin: &[u8], kernel: &str) -> Option<Facts> {
    let elf = Elf::new(cubin)?;
    elf.section(&format!(".text.{kernel}"))?;
    let registers = registers(&elf, kernel)?;
    let shared = elf.section(&format!(".nv.shared.{kernel}")).map_or(0, |section| section.size);
    // From compute capability 9.0 on, the 1 KiB that a multiprocessor keeps for each block counts as
    // the block's own here, but not for the driver.
    let kept = if architecture(&elf)? >= 90 { 1024 } else { 0 };
    Some(Facts { registers, shared: u32::try_from(shared.saturating_sub(kept)).ok()? })
}

/// The names of a cubin's kernels.
#[cfg(test)]
pub(crate) fn kernels(cubin: &[u8]) -> Vec<String> {
    let elf = Elf::new(cubin).expect("a cubin");
    let names = elf.sections().filter_map(|(name, _)| String::from_utf8(name.to_vec()).ok());
    names.filter_map(|name| Some(name.strip_prefix(".text.")?.to_owned())).collect()
}

/// The architecture, in one of two bytes of the flags: 90 for sm_90.
fn architecture(elf: &Elf<'_>) -> Option<usize> {
    Some(number(elf.bytes(), 48, 1)?.max(number(elf.bytes(), 49, 1)?))
}

/// The registers of a kernel's threads: an entry of the section `.nv.info`, whose entries have a
/// format, an attribute and, in the format 4, a number of bytes that follow.
fn registers(elf: &Elf<'_>, kernel: &str) -> Option<u32> {
    const SIZED: usize = 4;
    const REGISTERS: usize = 0x2f;
    let (info, symbols) = (elf.section(".nv.info")?, elf.section(".symtab")?);
    let names = elf.section(".strtab")?;
    let mut at = info.offset;
    while at < info.offset + info.size {
        let [format, attribute] = [at, at + 1].map(|at| number(elf.bytes(), at, 1));
        let size = if format? == SIZED { number(elf.bytes(), at + 2, 2)? } else { 0 };
        at += 4;
        if (format?, attribute?) == (SIZED, REGISTERS) {
            let symbol = symbols.offset + 24 * number(elf.bytes(), at, 4)?;
            let name = elf.text(names, number(elf.bytes(), symbol, 4)?)?;
            if name == kernel.as_bytes() {
                return u32::try_from(number(elf.bytes(), at + 4, 4)?).ok();
            }
        }
        at += size;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::{Kind, entries};

    /// `__launch_bounds__` of the kernels, which `sample_logits_plain.cu` asks for.
    #[test]
    fn a_cubin_says_what_its_kernels_take() {
        let archive = include_bytes!("../compiled/sample_logits_plain.bin");
        let all = entries(archive).unwrap();
        let cubins: Vec<_> = all.iter().filter(|entry| entry.kind == Kind::Sass).collect();
        assert_eq!(cubins.len(), 6);
        for entry in cubins {
            let cubin = entry.unpack().unwrap();
            let of = |name| facts(&cubin, name);
            let plain = of("sample_logits_plain_f32").expect("a kernel of the file");
            assert!(plain.registers > 32 && plain.registers <= 64, "{plain:?}");
            // The arrays of the kernel, which are those of every architecture.
            assert_eq!(plain.shared / 1024, 41, "{plain:?} of {}", entry.architecture);
            assert_eq!(of("sample_logits_plain"), None);
            assert_eq!(of("sample_logits_plain_f32 "), None);
        }
    }

    #[test]
    fn what_is_no_cubin_has_no_kernels() {
        let archive = include_bytes!("../compiled/tree_verify.bin");
        let all = entries(archive).unwrap();
        let cubin = all.iter().find(|entry| entry.architecture == 90).unwrap().unpack().unwrap();
        assert!(facts(&cubin, "tree_verify_global").is_some());
        assert_eq!(facts(b"", "tree_verify_global"), None);
        assert_eq!(facts(&cubin[1..], "tree_verify_global"), None);
        // A half has not all of its sections, and other cuts may have: only a panic would be wrong.
        assert_eq!(facts(&cubin[..cubin.len() / 2], "tree_verify_global"), None);
        for len in 0..cubin.len() {
            facts(&cubin[..len], "tree_verify_global");
        }
    }
}
