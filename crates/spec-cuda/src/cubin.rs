//! What a cubin says of its kernels. A driver reads this from the ELF file when it loads the kernels;
//! a handle without a device ([`Cuda::without_device`](crate::Cuda::without_device)) reads it here.

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
    let registers = elf.registers(kernel)?;
    let shared = elf.section(&format!(".nv.shared.{kernel}")).map_or(0, |section| section.size);
    // From compute capability 9.0 on, the 1 KiB that a multiprocessor keeps for each block counts as
    // the block's own here, but not for the driver.
    let kept = if elf.architecture()? >= 90 { 1024 } else { 0 };
    Some(Facts { registers, shared: u32::try_from(shared.saturating_sub(kept)).ok()? })
}

/// The names of a cubin's kernels.
#[cfg(test)]
pub(crate) fn kernels(cubin: &[u8]) -> Vec<String> {
    let elf = Elf::new(cubin).expect("a cubin");
    let sections = elf.sections.iter().filter_map(|section| elf.text(elf.names, section.name));
    let sections = sections.map(|name| String::from_utf8_lossy(name).into_owned());
    sections.filter_map(|name| Some(name.strip_prefix(".text.")?.to_owned())).collect()
}

/// A section of a file.
#[derive(Clone, Copy)]
struct Section {
    /// Where the name begins among the names.
    name: usize,
    offset: usize,
    size: usize,
}

/// An ELF file of 64 bits, little endian, as cubins are.
struct Elf<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
    /// The section with the names of the sections.
    names: Section,
}

impl<'a> Elf<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let start = number(bytes, 40, 8)?;
        let (count, names) = (number(bytes, 60, 2)?, number(bytes, 62, 2)?);
        let section = |i: usize| {
            let at = start.checked_add(64 * i)?;
            let [name, offset, size] = [(0, 4), (24, 8), (32, 8)]
                .map(|(field, width)| number(bytes, at.checked_add(field)?, width));
            Some(Section { name: name?, offset: offset?, size: size? })
        };
        let sections = (0..count).map(section).collect::<Option<Vec<_>>>()?;
        let names = *sections.get(names)?;
        Some(Elf { bytes, sections, names })
    }

    /// The architecture, in one of two bytes of the flags: 90 for sm_90.
    fn architecture(&self) -> Option<usize> {
        Some(number(self.bytes, 48, 1)?.max(number(self.bytes, 49, 1)?))
    }

    /// The text that begins at byte `at` of a section of names.
    fn text(&self, names: Section, at: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(names.offset.checked_add(at)?..)?;
        Some(&rest[..rest.iter().position(|&byte| byte == 0)?])
    }

    fn section(&self, name: &str) -> Option<Section> {
        let is_it = |section: &&Section| {
            self.text(self.names, section.name).is_some_and(|text| text == name.as_bytes())
        };
        self.sections.iter().find(is_it).copied()
    }

    /// The registers of a kernel's threads: an entry of the section `.nv.info`, whose entries have a
    /// format, an attribute and, in the format 4, a number of bytes that follow.
    fn registers(&self, kernel: &str) -> Option<u32> {
        const SIZED: usize = 4;
        const REGISTERS: usize = 0x2f;
        let (info, symbols) = (self.section(".nv.info")?, self.section(".symtab")?);
        let names = self.section(".strtab")?;
        let mut at = info.offset;
        while at < info.offset + info.size {
            let [format, attribute] = [at, at + 1].map(|at| number(self.bytes, at, 1));
            let size = if format? == SIZED { number(self.bytes, at + 2, 2)? } else { 0 };
            at += 4;
            if (format?, attribute?) == (SIZED, REGISTERS) {
                let symbol = symbols.offset + 24 * number(self.bytes, at, 4)?;
                let name = self.text(names, number(self.bytes, symbol, 4)?)?;
                if name == kernel.as_bytes() {
                    return u32::try_from(number(self.bytes, at + 4, 4)?).ok();
                }
            }
            at += size;
        }
        None
    }
}

/// The number of `width` bytes at `at`.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    let number = bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    usize::try_from(number).ok()
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
