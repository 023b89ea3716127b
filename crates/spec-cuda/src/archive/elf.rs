//! Sections of an ELF file of 64 bits, little endian, as cubins are.

/// A section of a file.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    /// Where the name begins among the names.
    name: usize,
    /// Whether the section holds instructions, which lie in the file.
    pub is_code: bool,
    pub offset: usize,
    pub size: usize,
}

pub(crate) struct Elf<'a> {
    bytes: &'a [u8],
    sections: Vec<Section>,
    /// The section with the names of the sections.
    names: Section,
}

impl<'a> Elf<'a> {
    /// `None` if the bytes are no such file.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        const NO_BITS: usize = 8;
        const EXECUTABLE: usize = 4;
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let start = number(bytes, 40, 8)?;
        let (count, names) = (number(bytes, 60, 2)?, number(bytes, 62, 2)?);
        let section = |i: usize| {
            let at = start.checked_add(64 * i)?;
            let [name, kind, flags, offset, size] = [(0, 4), (4, 4), (8, 8), (24, 8), (32, 8)]
                .map(|(field, width)| number(bytes, at.checked_add(field)?, width));
            let is_code = kind? != NO_BITS && flags? & EXECUTABLE != 0;
            Some(Section { name: name?, is_code, offset: offset?, size: size? })
        };
        let sections = (0..count).map(section).collect::<Option<Vec<_>>>()?;
        let names = *sections.get(names)?;
        Some(Elf { bytes, sections, names })
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The text that begins at byte `at` of a section of names.
    pub(crate) fn text(&self, names: Section, at: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(names.offset.checked_add(at)?..)?;
        Some(&rest[..rest.iter().position(|&byte| byte == 0)?])
    }

    /// The sections with their names.
    pub(crate) fn sections(&self) -> impl Iterator<Item = (&'a [u8], Section)> {
        self.sections
            .iter()
            .filter_map(|section| Some((self.text(self.names, section.name)?, *section)))
    }

    pub(crate) fn section(&self, name: &str) -> Option<Section> {
        self.sections().find(|(text, _)| *text == name.as_bytes()).map(|(_, section)| section)
    }
}

/// The number of `width` bytes at `at`.
pub(crate) fn number(bytes: &[u8], at: usize, width: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(width)?)?;
    let number = bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    usize::try_from(number).ok()
}
