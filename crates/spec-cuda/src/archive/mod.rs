//! The compiled kernels: one archive per kernel file, with machine code (SASS)
//! for each known architecture and PTX for later architectures.
//!
//! ```text
//! "SPECKRN4"                 8 bytes
//! streams, images            u32, u32, little endian like all numbers below
//! streams times: packed      u32: bytes of the LZMA stream
//! images times: stream       u32: counted from 0, never falling
//!               kind         u32: 0 SASS or 1 PTX
//!               architecture u32: 90 for sm_90
//!               size         u32: bytes of the image in the unpacked stream
//! streams times: the LZMA stream, `packed` bytes each
//! ```
//!
//! A stream holds the images of one family of chips, in the order of the directory; zeros follow
//! each image up to a multiple of 16 bytes. The images of a family are similar, so a stream of
//! several images is hardly larger than a stream of one image. Unpacking an image decodes the
//! images before it in its stream, and nothing else. Machine code lies in its stream in the form of
//! [`sass`], PTX in that of [`ptx`].
//!
//! `cargo xtask kernels` writes the archives, and reads them back with this module. Beside
//! the archives, `cargo xtask kernels` writes a manifest with the CRC-32 of each archive.
//! A program has archives and manifest compiled in, and unpacks nothing from an archive
//! with another CRC-32: LZMA alone accepts one in hundreds of flipped bits, and the driver
//! would run the damaged code.

pub(crate) mod elf;
pub(crate) mod ptx;
pub(crate) mod sass;

use std::io::{self, Read};

use lzma_rust2::LzmaReader;
use spec_core::{Device, Error, Result, Status};

/// The first bytes of every archive.
pub(crate) const MAGIC: &[u8; 8] = b"SPECKRN4";

/// Each image of a stream begins at a multiple of as many bytes: the length of an instruction,
/// whose bytes LZMA then predicts by their place in the instruction.
pub(crate) const ALIGNMENT: usize = 16;

/// The largest unpacked stream in bytes. Unpacking needs memory for a dictionary of that size.
pub(crate) const LARGEST_STREAM: usize = 16 << 20;

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
    /// The LZMA stream that holds the image.
    pub stream: &'a [u8],
    /// The place of the image in the unpacked stream, in bytes.
    pub offset: usize,
    /// The size of the image in the unpacked stream, in bytes.
    pub size: usize,
}

impl Entry<'_> {
    /// The unpacked image; `None` if the packed bytes are damaged.
    pub(crate) fn unpack(&self) -> Option<Vec<u8>> {
        // The decoder's own tables take less than 64 KiB.
        const LIMIT_KIB: u32 = (LARGEST_STREAM / 1024) as u32 + 64;
        let mut reader = LzmaReader::new_mem_limit(self.stream, LIMIT_KIB, None).ok()?;
        let offset = self.offset as u64;
        if io::copy(&mut reader.by_ref().take(offset), &mut io::sink()).ok()? != offset {
            return None;
        }
        let mut image = Vec::with_capacity(self.size);
        reader.take(self.size as u64).read_to_end(&mut image).ok()?;
        if image.len() != self.size {
            return None;
        }
        match self.kind {
            Kind::Sass => {
                sass::unpack(&mut image);
                Some(image)
            }
            Kind::Ptx => ptx::unpack(&image),
        }
    }
}

/// The unpacked size that the header of an LZMA stream states.
fn stated_size(stream: &[u8]) -> Option<usize> {
    let bytes = stream.get(5..13)?;
    u64::from_le_bytes(bytes.try_into().ok()?).try_into().ok()
}

/// The entries of an archive, or `None` where it is damaged.
pub(crate) fn entries(bytes: &[u8]) -> Option<Vec<Entry<'_>>> {
    let word = |at: usize| {
        let bytes = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    if bytes.get(..8)? != MAGIC {
        return None;
    }
    let (streams, images) = (word(8)?, word(12)?);
    let directory = 16 + streams.checked_mul(4)?;
    let mut data = directory.checked_add(images.checked_mul(16)?)?;
    let mut entries = Vec::new();
    let mut image = 0;
    for stream in 0..streams {
        let end = data.checked_add(word(16 + 4 * stream)?)?;
        let packed = bytes.get(data..end)?;
        data = end;
        let mut offset = 0usize;
        while image < images {
            let at = directory + 16 * image;
            if word(at)? != stream {
                break;
            }
            let kind = match word(at + 4)? {
                0 => Kind::Sass,
                1 => Kind::Ptx,
                _ => return None,
            };
            let (architecture, size) = (word(at + 8)? as u32, word(at + 12)?);
            entries.push(Entry { kind, architecture, stream: packed, offset, size });
            offset = offset.checked_add(size)?.checked_next_multiple_of(ALIGNMENT)?;
            image += 1;
        }
        if stated_size(packed)? != offset {
            return None;
        }
    }
    (data == bytes.len() && entries.len() == images).then_some(entries)
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
        Entry { kind, architecture, stream: &[], offset: 0, size: 0 }
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
    const BYTES: &[u8] = include_bytes!("../../compiled/tree_verify.bin");
    const MANIFEST: &str = include_str!("../../compiled/manifest.txt");

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

    /// An archive of one family, and the image of its second chip.
    fn small() -> (Vec<u8>, Vec<u8>) {
        let all = entries(BYTES).unwrap();
        let second = all.iter().find(|e| e.offset > 0).unwrap();
        let family: Vec<_> = all.iter().filter(|e| std::ptr::eq(e.stream, second.stream)).collect();
        let mut words = vec![1, family.len(), second.stream.len()];
        words.extend(family.iter().flat_map(|e| [0, 0, e.architecture as usize, e.size]));
        let mut archive = MAGIC.to_vec();
        archive.extend(words.iter().flat_map(|&word| (word as u32).to_le_bytes()));
        archive.extend(second.stream);
        (archive, second.unpack().unwrap())
    }

    /// Taking an image from an archive with one flipped bit is an error with a clear text.
    #[test]
    fn a_flipped_bit_is_found() {
        let (mut archive, image) = small();
        let crc32 = crc32fast::hash(&archive);
        let of = |archive: &[u8]| image_of("x", archive, crc32, (Device::CPU, (8, 6), true));
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

    /// Each image says itself which architecture it is for: a cubin in the flags of its ELF header,
    /// PTX in its text.
    #[test]
    fn an_image_is_of_the_architecture_that_the_directory_states() {
        let all = entries(BYTES).unwrap();
        assert_eq!(all.len(), 7);
        for entry in &all {
            let (image, architecture) = (entry.unpack().unwrap(), entry.architecture);
            let is_right = match entry.kind {
                Kind::Sass => image[48..50].contains(&(architecture as u8)),
                Kind::Ptx => String::from_utf8(image)
                    .unwrap()
                    .contains(&format!(".target sm_{architecture}")),
            };
            assert!(is_right, "{:?} of {architecture}", entry.kind);
        }
    }

    #[test]
    fn damaged_archives_are_refused() {
        let no_images = b"SPECKRN4\0\0\0\0\0\0\0\0";
        assert!(entries(no_images).is_some_and(|e| e.is_empty()));
        for len in 0..no_images.len() {
            assert!(entries(&no_images[..len]).is_none(), "{len} bytes");
        }
        assert!(entries(&[no_images.as_slice(), b"x"].concat()).is_none());
        assert!(entries(b"SPECKRN4\xff\xff\xff\xff\xff\xff\xff\xff").is_none());
        let (archive, _) = small();
        let images = entries(&archive).unwrap().len();
        // After the magic and the words `streams`, `images`, `packed`, each image has four words.
        let word = |archive: &[u8], at: usize| {
            u32::from_le_bytes(archive[8 + 4 * at..][..4].try_into().unwrap())
        };
        let with = |at: usize, value: u32| {
            let mut other = archive.clone();
            other[8 + 4 * at..][..4].copy_from_slice(&value.to_le_bytes());
            entries(&other).map(|e| e.len())
        };
        for at in [0, 1, 2].into_iter().chain(3..3 + 4 * images) {
            let value = word(&archive, at);
            assert_eq!(with(at, value), Some(images), "word {at} as it was");
            let is_architecture = at >= 3 && (at - 3) % 4 == 2;
            let expected = is_architecture.then_some(images);
            assert_eq!(with(at, value + 16), expected, "word {at} with 16 more");
            assert_eq!(with(at, u32::MAX), expected, "word {at} at its largest");
        }
    }
}
