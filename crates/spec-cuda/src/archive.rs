//! The compiled kernels: one archive a kernel file, with machine code (SASS)
//! for each architecture and PTX for those that come later.
//!
//! ```text
//! "SPECKRN1"                        8 bytes
//! count                             u32, little endian as all that follows
//! count times: kind, architecture   u32, u32: 0 SASS or 1 PTX; 90 for sm_90
//!              packed, unpacked     u32, u32: sizes in bytes
//! count times: the image, LZMA      `packed` bytes each
//! ```
//!
//! `cargo xtask kernels` writes them; this module reads them, there too.

use std::io::Read;

use lzma_rust2::LzmaReader;
use spec_core::{Device, Error, Result, Status};

/// What an archive starts with.
pub(crate) const MAGIC: &[u8; 8] = b"SPECKRN1";

/// Machine code or text for the driver's compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sass,
    Ptx,
}

/// One image of an archive, still packed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub kind: Kind,
    /// 90 for compute capability 9.0.
    pub architecture: u32,
    pub packed: &'a [u8],
    /// Size in bytes once unpacked.
    pub size: usize,
}

impl Entry<'_> {
    /// The image itself.
    pub(crate) fn unpack(&self) -> Option<Vec<u8>> {
        // More than `cargo xtask kernels` packs with.
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

/// The entry that a device runs best: machine code of its own major version,
/// the highest minor version not above its own; else the latest PTX that is not
/// above it. `sass` false leaves machine code out.
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
    /// The kernel file's name, which is an operator's.
    pub(crate) name: &'static str,
    /// Its bytes.
    pub(crate) bytes: &'static [u8],
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
        // SAFETY: `cargo xtask kernels` wrote it.
        unsafe { $crate::archive::Archive::new($name, bytes) }
    }};
}
pub(crate) use archive;

impl Archive {
    /// The archive of the kernel file `name`, for messages, with these bytes: what
    /// `cargo xtask kernels` wrote.
    ///
    /// # Safety
    /// Images in the archive must be whole: the driver trusts machine code.
    pub const unsafe fn new(name: &'static str, bytes: &'static [u8]) -> Self {
        Archive { name, bytes }
    }

    /// The image for a device of this compute capability.
    pub(crate) fn image(&self, device: Device, compute: (u32, u32), sass: bool) -> Result<Vec<u8>> {
        let error = |status, words: String| Error::device(device, status, words);
        let damaged = || {
            let words = format!("the compiled kernels of {} are damaged", self.name);
            error(Status::InternalError, words)
        };
        let entries = entries(self.bytes).ok_or_else(damaged)?;
        let entry = choose(&entries, compute, sass).ok_or_else(|| {
            error(
                Status::DeviceArchitectureNotSupported,
                format!(
                    "there are no compiled kernels of {} for compute capability {}.{}",
                    self.name, compute.0, compute.1
                ),
            )
        })?;
        let mut image = entry.unpack().ok_or_else(damaged)?;
        if entry.kind == Kind::Ptx {
            image.push(0);
        }
        Ok(image)
    }
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

    #[test]
    fn damaged_archives_are_refused() {
        assert!(entries(b"").is_none());
        assert!(entries(b"SPECKRN1").is_none());
        assert!(entries(b"SPECKRN1\0\0\0\0").is_some_and(|e| e.is_empty()));
        assert!(entries(b"SPECKRN1\0\0\0\0x").is_none());
        assert!(entries(b"SPECKRN1\xff\xff\xff\xff").is_none());
    }
}
