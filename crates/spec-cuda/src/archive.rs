//! The compiled kernels: one archive per kernel file, with machine code (SASS)
//! for each known architecture and PTX for later architectures.
//!
//! ```text
//! "SPECKRN1"                        8 bytes
//! count                             u32, little endian like all numbers below
//! count times: kind, architecture   u32, u32: 0 SASS or 1 PTX; 90 for sm_90
//!              packed, unpacked     u32, u32: sizes in bytes
//! count times: the image, LZMA      `packed` bytes each
//! ```
//!
//! `cargo xtask kernels` writes the archives, and reads them back with this module. Beside
//! the archives, `cargo xtask kernels` writes a manifest with the CRC-32 of each archive.
//! A program has archives and manifest compiled in, and unpacks nothing from an archive
//! with another CRC-32: LZMA alone accepts one in hundreds of flipped bits, and the driver
//! would run the damaged code.

use std::io::Read;

use lzma_rust2::LzmaReader;
use spec_core::{Device, Error, Result, Status};

/// The first bytes of every archive.
pub(crate) const MAGIC: &[u8; 8] = b"SPECKRN1";

/// Machine code (SASS), or text for the driver's compiler (PTX).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sass,
    Ptx,
}

/// One image of an archive, still packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub kind: Kind,
    /// Ten times the compute capability: 90 for 9.0.
    pub architecture: u32,
    pub packed: &'a [u8],
    /// Size in bytes once unpacked.
    pub size: usize,
}

impl Entry<'_> {
    /// The unpacked image; `None` if the packed bytes are damaged.
    pub(crate) fn unpack(&self) -> Option<Vec<u8>> {
        // Larger than the dictionary that `cargo xtask kernels` packs with.
        const LIMIT_KIB: u32 = 32 * 1024;
        let reader = LzmaReader::new_mem_limit(self.packed, LIMIT_KIB, None).ok()?;
        let mut image = Vec::with_capacity(self.size);
        reader.take(self.size as u64 + 1).read_to_end(&mut image).ok()?;
        (image.len() == self.size).then_some(image)
    }
}

/// The entries of an archive, or `None` where it is damaged.
pub(crate) fn entries(bytes: &[u8]) -> Option<Vec<Entry<'_>>> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    };
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let count = word(8)? as usize;
    let mut data = 12 + count.checked_mul(16)?;
    let mut entries = Vec::new();
    for i in 0..count {
        let at = 12 + 16 * i;
        let kind = match word(at)? {
            0 => Kind::Sass,
            1 => Kind::Ptx,
            _ => return None,
        };
        let end = data.checked_add(word(at + 8)? as usize)?;
        let packed = bytes.get(data..end)?;
        data = end;
        let entry =
            Entry { kind, architecture: word(at + 4)?, packed, size: word(at + 12)? as usize };
        entries.push(entry);
    }
    (data == bytes.len()).then_some(entries)
}

/// The entry that a device of this compute capability runs best: machine code of
/// the device's major version with the highest minor version that is not above
/// the device's; otherwise the latest PTX whose architecture is not above the
/// device's. If `sass` is false, machine code is not considered.
pub(crate) fn choose<'a, 'e>(
    entries: &'e [Entry<'a>],
    (major, minor): (u32, u32),
    sass: bool,
) -> Option<&'e Entry<'a>> {
    let own = major * 10 + minor;
    let newest = |kind, from| {
        entries
            .iter()
            .filter(|e| e.kind == kind && (from..=own).contains(&e.architecture))
            .max_by_key(|e| e.architecture)
    };
    let code = if sass { newest(Kind::Sass, major * 10) } else { None };
    code.or_else(|| newest(Kind::Ptx, 0))
}

/// The compiled kernels of one kernel file, part of this program.
pub struct Archive {
    /// The name of the kernel file, which is also the name of an operator.
    pub(crate) name: &'static str,
    /// The bytes of the archive.
    pub(crate) bytes: &'static [u8],
    /// The CRC-32 of the bytes that `cargo xtask kernels` wrote.
    crc32: u32,
}

impl std::fmt::Debug for Archive {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Archive({}, {} bytes)", self.name, self.bytes.len())
    }
}

/// The archive of the kernel file with this name.
macro_rules! archive {
    ($name:literal) => {{
        let bytes = include_bytes!(concat!("../../compiled/", $name, ".bin"));
        let manifest = include_str!("../../compiled/manifest.txt");
        // SAFETY: `cargo xtask kernels` wrote the archive and the manifest.
        unsafe { $crate::archive::Archive::new($name, bytes, manifest) }
    }};
}
pub(crate) use archive;

impl Archive {
    /// The archive of the kernel file `name`, made of the archive's bytes and of the manifest
    /// that lies beside the archive.
    ///
    /// # Panics
    /// If the manifest has no line `crc32 NAME.bin CRC`. In the initialiser of a
    /// `static`, the panic is an error at compile time.
    ///
    /// # Safety
    /// `cargo xtask kernels` wrote the bytes and the manifest: the driver runs machine code
    /// unchecked.
    pub const unsafe fn new(
        name: &'static str,
        bytes: &'static [u8],
        manifest: &'static str,
    ) -> Self {
        match stated_crc32(name, manifest.as_bytes()) {
            Some(crc32) => Archive { name, bytes, crc32 },
            None => panic!("the manifest does not state the archive's CRC-32"),
        }
    }

    /// The image for a device of this compute capability.
    pub(crate) fn image(&self, device: Device, compute: (u32, u32), sass: bool) -> Result<Vec<u8>> {
        image_of(self.name, self.bytes, self.crc32, (device, compute, sass))
    }
}

/// The image of an archive for a device. The tuple holds the device, its compute capability,
/// and whether machine code may be chosen (otherwise only PTX).
fn image_of(
    name: &str,
    bytes: &[u8],
    crc32: u32,
    (device, compute, sass): (Device, (u32, u32), bool),
) -> Result<Vec<u8>> {
    let error = |status, words: String| Error::device(device, status, words);
    let damaged = |why: &str| {
        let words = format!("the compiled kernels of {name} are damaged: {why}");
        error(Status::InternalError, words)
    };
    if crc32fast::hash(bytes) != crc32 {
        return Err(damaged("their CRC-32 is not the one that this program was built with"));
    }
    let entries = entries(bytes).ok_or_else(|| damaged("they are no archive"))?;
    let entry = choose(&entries, compute, sass).ok_or_else(|| {
        error(
            Status::DeviceArchitectureNotSupported,
            format!(
                "there are no compiled kernels of {name} for compute capability {}.{}",
                compute.0, compute.1
            ),
        )
    })?;
    let mut image = entry.unpack().ok_or_else(|| damaged("they do not unpack"))?;
    if entry.kind == Kind::Ptx {
        image.push(0);
    }
    Ok(image)
}

/// The number in a manifest's line `crc32 NAME.bin CRC`, in eight hexadecimal digits.
const fn stated_crc32(name: &str, manifest: &[u8]) -> Option<u32> {
    let mut rest = manifest;
    while !rest.is_empty() {
        let (line, behind) = first_line(rest);
        if let Some(line) = after(line, b"crc32 ")
            && let Some(line) = after(line, name.as_bytes())
            && let Some(digits) = after(line, b".bin ")
        {
            return number_of(digits);
        }
        rest = behind;
    }
    None
}

const fn first_line(text: &[u8]) -> (&[u8], &[u8]) {
    let mut end = 0;
    while end < text.len() && text[end] != b'\n' {
        end += 1;
    }
    let (line, behind) = text.split_at(end);
    (line, if behind.is_empty() { behind } else { behind.split_at(1).1 })
}

/// The rest of `text` after `start`; `None` if `text` does not begin with `start`.
const fn after<'a>(text: &'a [u8], start: &[u8]) -> Option<&'a [u8]> {
    if text.len() < start.len() {
        return None;
    }
    let (begin, behind) = text.split_at(start.len());
    let mut i = 0;
    while i < start.len() {
        if begin[i] != start[i] {
            return None;
        }
        i += 1;
    }
    Some(behind)
}

/// The number that eight hexadecimal digits spell; `None` for any other text.
const fn number_of(digits: &[u8]) -> Option<u32> {
    if digits.len() != 8 {
        return None;
    }
    let mut number = 0;
    let mut i = 0;
    while i < digits.len() {
        let Some(digit) = (digits[i] as char).to_digit(16) else {
            return None;
        };
        number = number << 4 | digit;
        i += 1;
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: Kind, architecture: u32) -> Entry<'static> {
        Entry { kind, architecture, packed: &[], size: 0 }
    }

    #[test]
    fn devices_get_the_closest_code() {
        let all: Vec<_> = [80, 86, 89, 90, 100, 120]
            .into_iter()
            .map(|a| entry(Kind::Sass, a))
            .chain([entry(Kind::Ptx, 90)])
            .collect();
        let chosen = |compute| choose(&all, compute, true).map(|e| (e.kind, e.architecture));
        assert_eq!(chosen((8, 0)), Some((Kind::Sass, 80)));
        assert_eq!(chosen((8, 7)), Some((Kind::Sass, 86)));
        assert_eq!(chosen((8, 9)), Some((Kind::Sass, 89)));
        assert_eq!(chosen((9, 0)), Some((Kind::Sass, 90)));
        assert_eq!(chosen((10, 3)), Some((Kind::Sass, 100)));
        assert_eq!(chosen((11, 0)), Some((Kind::Ptx, 90)));
        assert_eq!(chosen((12, 1)), Some((Kind::Sass, 120)));
        assert_eq!(chosen((13, 0)), Some((Kind::Ptx, 90)));
        assert_eq!(chosen((7, 5)), None);
        assert!(choose(&all, (9, 0), false).is_some_and(|e| e.kind == Kind::Ptx));
        assert!(choose(&all, (8, 0), false).is_none());
    }

    /// The smallest of the archives that this crate ships.
    const BYTES: &[u8] = include_bytes!("../compiled/tree_verify.bin");
    const MANIFEST: &str = include_str!("../compiled/manifest.txt");

    #[test]
    fn the_manifest_states_the_crc32() {
        assert_eq!(stated_crc32("tree_verify", MANIFEST.as_bytes()), Some(crc32fast::hash(BYTES)));
        for unknown in ["tree", "tree_verif", "", "other"] {
            assert_eq!(stated_crc32(unknown, MANIFEST.as_bytes()), None);
        }
        assert_eq!(stated_crc32("a", b"crc32 a.bin 0123abcd\n"), Some(0x0123_abcd));
        assert_eq!(stated_crc32("a", b"crc32 a.bin 123abcd\n"), None);
        assert_eq!(stated_crc32("a", b"crc32 b.bin 0123abcd\ncrc32 a.bin"), None);
    }

    /// An archive with a single image, and the unpacked image.
    fn small() -> (Vec<u8>, Vec<u8>) {
        let all = entries(BYTES).unwrap();
        let entry = all.iter().find(|e| e.architecture == 80).unwrap();
        let mut archive = MAGIC.to_vec();
        for word in [1, 0, entry.architecture, entry.packed.len() as u32, entry.size as u32] {
            archive.extend(word.to_le_bytes());
        }
        archive.extend(entry.packed);
        (archive, entry.unpack().unwrap())
    }

    /// Taking an image from an archive with one flipped bit is an error with a clear text.
    #[test]
    fn a_flipped_bit_is_found() {
        let (mut archive, image) = small();
        let crc32 = crc32fast::hash(&archive);
        let of = |archive: &[u8]| image_of("x", archive, crc32, (Device::CPU, (8, 0), true));
        assert_eq!(of(&archive).as_ref(), Ok(&image));
        for bit in 0..8 * archive.len() {
            archive[bit / 8] ^= 1 << (bit % 8);
            let error = of(&archive).expect_err("other bytes");
            assert_eq!(error.status(), Status::InternalError, "bit {bit}");
            assert!(error.to_string().contains("the compiled kernels of x are damaged: "));
            archive[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..archive.len() {
            assert!(of(&archive[..len]).is_err(), "cut to {len} bytes");
        }
        archive.push(0);
        assert!(of(&archive).is_err());
    }

    #[test]
    fn damaged_archives_are_refused() {
        assert!(entries(b"").is_none());
        assert!(entries(b"SPECKRN1").is_none());
        assert!(entries(b"SPECKRN1\0\0\0\0").is_some_and(|e| e.is_empty()));
        assert!(entries(b"SPECKRN1\0\0\0\0x").is_none());
        assert!(entries(b"SPECKRN1\xff\xff\xff\xff").is_none());
    }
}
