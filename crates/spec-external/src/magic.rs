//! The first bytes of well-known formats.
//!
//! A file of raw keys can begin with any bytes. So a format is recognised by at least four bytes of
//! its own, or by fewer bytes and by how its head must continue. (Crates of magic numbers are
//! content with two bytes, and know neither ORC nor HDF5 nor pickles.)

use crate::content::Content::{
    self, Arrow, ArrowStream, Foreign, Gzip, Numpy, Packed, Parquet, Zstd,
};
use crate::content::is_text;

/// Formats that are recognised by bytes at a fixed offset.
const FORMATS: [(usize, &[u8], Content); 28] = [
    (0, b"PAR1", Parquet),
    (0, b"ARROW1", Arrow),
    (0, b"\x93NUMPY", Numpy),
    (0, b"\xFD7zXZ\0", Packed("an xz file")),
    (0, b"LZIP", Packed("an lzip file")),
    (0, b"\x02\x21\x4C\x18", Packed("an lz4 file")),
    (0, b"\xFF\x06\0\0sNaPpY", Packed("a snappy file")),
    (0, b"\x82SNAPPY\0", Packed("a snappy file")),
    (0, b"PK\x03\x04", Packed("a zip file")),
    (0, b"PK\x05\x06\0\0\0\0", Packed("a zip file")),
    (0, b"PK\x07\x08", Packed("a zip file")),
    (0, b"7z\xBC\xAF\x27\x1C", Packed("a 7z file")),
    (0, b"Rar!\x1A\x07", Packed("a rar file")),
    (257, b"ustar", Packed("a tar file")),
    (0, b"PARE", Foreign("an encrypted Parquet file")),
    (0, b"FEA1\0\0\0\0", Foreign("a Feather file of version 1")),
    (0, b"Obj\x01", Foreign("an Avro file")),
    // A user's block of one of these lengths may precede the signature.
    (0, b"\x89HDF\r\n\x1A\n", Foreign("an HDF5 file")),
    (512, b"\x89HDF\r\n\x1A\n", Foreign("an HDF5 file")),
    (1024, b"\x89HDF\r\n\x1A\n", Foreign("an HDF5 file")),
    (2048, b"\x89HDF\r\n\x1A\n", Foreign("an HDF5 file")),
    (0, b"MATLAB 5.0 MAT-file", Foreign("a MATLAB file")),
    (0, b"SQLite format 3\0", Foreign("an SQLite database")),
    (8, b"DUCK", Foreign("a DuckDB database")),
    (0, b"GGUF", Foreign("a GGUF file")),
    (0, b"]q\0(", Foreign("a pickle")),
    (0, b"}q\0(", Foreign("a pickle")),
    // What `torch.save` wrote before it wrote zip files.
    (0, b"\x80\x02\x8A\x0Al\xFC\x9CF\xF9 j\xA8P\x19.", Foreign("a pickle")),
];

impl Content {
    /// Tells the form by the first bytes of an input: some thousand bytes, or all if it has fewer.
    pub fn of(head: &[u8]) -> Content {
        // A text may begin with the letters of a format: `PARENT`, `ORC`. No such format is text.
        let format = if is_text(head) { None } else { find(head) };
        format.unwrap_or_else(|| Content::of_text(head))
    }
}

/// The format that the first bytes of a file are of; `None` where they are of none.
fn find(head: &[u8]) -> Option<Content> {
    let is_format = |(at, magic, _): &&(usize, &[u8], Content)| {
        let after = head.get(*at..).and_then(|bytes| bytes.strip_prefix(*magic));
        after.is_some_and(|after| magic.len() > 4 || !after.starts_with(&[0; 4]))
    };
    if let Some((_, _, content)) = FORMATS.iter().find(is_format) {
        return Some(*content);
    }
    match head {
        [0x1F, 0x8B, 8, ..] => is_gzip(head).then_some(Gzip),
        [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..]
        | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => {
            Some(Packed("a bzip2 file"))
        }
        // Each version before 0.8 had a format of its own.
        [0x1E | 0x22..=0x27, 0xB5, 0x2F, 0xFD, rest @ ..] if !rest.starts_with(&[0; 4]) => {
            Some(Packed("a file of an old zstd"))
        }
        [0x1F, 0x9D, flags, codes @ ..] => {
            is_compress(*flags, codes).then_some(Packed("a file of compress"))
        }
        [b'O', b'R', b'C', rest @ ..] => {
            // A key of 64 bits may be these three bytes and zeros.
            (!rest.starts_with(&[0; 5])).then_some(Foreign("an ORC file"))
        }
        [0x80, 2..=5, ..] | [b'c', ..] if is_pickle(head) => Some(Foreign("a pickle")),
        _ if is_safetensors(head) => Some(Foreign("a safetensors file")),
        _ if is_arrow_stream(head) => Some(ArrowStream),
        _ => frame(head),
    }
}

/// Whether a file is of zstd or of lz4, whose frames have magic numbers of their own. Frames that
/// are skipped, which both have in common, may precede the first.
fn frame(head: &[u8]) -> Option<Content> {
    let first = skipped(head);
    match &head[first.min(head.len())..] {
        // The frame that follows is behind the head.
        _ if first > head.len() => Some(Zstd),
        // RFC 8878, 3.1.1.1: bit 3 of the descriptor must be 0.
        [0x28, 0xB5, 0x2F, 0xFD, descriptor, rest @ ..]
            if descriptor & 8 == 0 && !(*descriptor == 0 && rest.starts_with(&[0; 3])) =>
        {
            Some(Zstd)
        }
        // The upper two bits of the descriptor are a version, which is 1.
        [0x04, 0x22, 0x4D, 0x18, descriptor, ..] if descriptor >> 6 == 1 => {
            Some(Packed("an lz4 file"))
        }
        _ => None,
    }
}

/// The number of bytes of all skippable frames at the start of a file, which may be more than those
/// of its head (RFC 8878, 3.1.2).
pub(crate) fn skipped(head: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&[0x50..=0x5F, 0x2A, 0x4D, 0x18, a, b, c, d]) =
        head.get(at..).and_then(<[u8]>::first_chunk)
    {
        at = at.saturating_add(8 + u32::from_le_bytes([a, b, c, d]) as usize);
    }
    at
}

/// RFC 1952, 2.3: no reserved flags. The flags of compression and the system are mostly among those
/// that zlib writes. Three bytes are few, so a file with others must decompress.
fn is_gzip(head: &[u8]) -> bool {
    let [_, _, _, flags, _, _, _, _, compression, system, ..] = *head else { return false };
    flags & 0xE0 == 0
        && (matches!((compression, system), (0 | 2 | 4, 0..=19 | 255)) || decompresses(head))
}

/// Whether gzip finds nothing wrong with a head but that it ends.
#[cfg(feature = "gzip")]
fn decompresses(head: &[u8]) -> bool {
    use std::io::{ErrorKind, copy, sink};
    let result = copy(&mut flate2::bufread::GzDecoder::new(head), &mut sink());
    result.map_or_else(|error| error.kind() == ErrorKind::UnexpectedEof, |_| true)
}

/// A build without gzip cannot tell.
#[cfg(not(feature = "gzip"))]
fn decompresses(_head: &[u8]) -> bool {
    false
}

/// Whether `codes` can be what `compress` writes behind two bytes of magic and one of flags. The
/// first 255 codes have 9 bits, and each is of a byte or of a string that came before.
fn is_compress(flags: u8, codes: &[u8]) -> bool {
    const TESTED: usize = 40;
    // Bit 7: code 256 clears the table. Bits 5 and 6 are reserved, the others are the largest code's
    // number of bits.
    let reset = usize::from(flags >> 7);
    let code = |index: usize| {
        let (at, shift) = (index * 9 / 8, index * 9 % 8);
        let pair = codes.get(at..)?.first_chunk::<2>()?;
        Some(usize::from(u16::from_le_bytes(*pair)) >> shift & 0x1FF)
    };
    flags & 0x60 == 0
        && matches!(flags & 0x1F, 9..=16)
        && (0..TESTED).map_while(|index| Some((index, code(index)?))).all(|(index, code)| {
            code < 256 || index > 0 && code < 256 + reset + index
        })
        // Zeros in a row are one code from the second on.
        && !codes.starts_with(&[0; 5])
        && !codes.is_empty()
}

/// Whether a file that begins as a pickle of protocol 1 to 5 goes on as one. Protocol 1 has no mark
/// of its own, and protocol 0 is text.
fn is_pickle(head: &[u8]) -> bool {
    match *head {
        // A frame, whose length follows as a number of 64 bits.
        [0x80, 4 | 5, 0x95, a, b, c, d, 0, 0, 0, 0, ..] => u32::from_le_bytes([a, b, c, d]) > 0,
        // A list or a dictionary, which is remembered as the first.
        [0x80, 2 | 3, b']' | b'}', b'q', 0, ..] => true,
        // A tuple: a mark, and the opcode of its first element.
        [0x80, 2 | 3, b'(', opcode, ..] => b"KMJGXUCNcq]}(\x88\x89\x8A".contains(&opcode),
        // An object: the lines of its module and its class, which is remembered as the first.
        [0x80, 2 | 3, b'c', ref names @ ..] | [b'c', ref names @ ..] => {
            let mut lines = names.splitn(3, |byte| *byte == b'\n');
            let is_letter = |byte: &u8| byte.is_ascii_alphanumeric() || b"._".contains(byte);
            let mut is_name = || lines.next().is_some_and(|name| name.iter().all(is_letter));
            is_name() && is_name() && lines.next().is_some_and(|rest| rest.starts_with(b"q\0"))
        }
        _ => false,
    }
}

/// A header of JSON follows its length as a number of 64 bits.
fn is_safetensors(head: &[u8]) -> bool {
    const MAX: u64 = 100_000_000;
    let Some((length, json)) = head.split_first_chunk() else { return false };
    let length = u64::from_le_bytes(*length);
    let json = &json[..json.len().min(usize::try_from(length).unwrap_or(usize::MAX))];
    (3..=MAX).contains(&length)
        && json.starts_with(b"{\"")
        && json.iter().all(|byte| !byte.is_ascii_control())
}

/// Whether a file begins with a message of Arrow that holds a schema: a marker, which versions before
/// 0.15 did not write, the message's length, and the message.
fn is_arrow_stream(head: &[u8]) -> bool {
    const SCHEMA: u8 = 1;
    let head = head.strip_prefix(&[0xFF; 4]).unwrap_or(head);
    let Some((length, message)) = head.split_first_chunk() else { return false };
    let Ok(length) = usize::try_from(i32::from_le_bytes(*length)) else { return false };
    kind_of_message(&message[..message.len().min(length)]) == Some(SCHEMA)
}

/// The type of a message's header; `None` where the bytes are no message.
///
/// A table of FlatBuffers begins with the distance to its list of offsets. The list begins with its
/// own length and the table's; the offsets of the fields in the table follow.
fn kind_of_message(message: &[u8]) -> Option<u8> {
    let short = |at: usize| Some(u16::from_le_bytes(*message.get(at..)?.first_chunk()?).into());
    let long = |at: usize| Some(i32::from_le_bytes(*message.get(at..)?.first_chunk()?));
    let table = usize::try_from(long(0)?).ok()?;
    let list = table.checked_add_signed(-isize::try_from(long(table)?).ok()?)?;
    let (list_length, table_length): (usize, usize) = (short(list)?, short(list + 2)?);
    let field = |index: usize| {
        let offset = short(list + 4 + 2 * index)?;
        (4..table_length).contains(&offset).then_some(table + offset)
    };
    // The fields are the version, the type of the header, the header, and the length of the body.
    let header = field(2)?;
    let header = header + usize::try_from(long(header)?).ok()?;
    let fits = (10..=64).contains(&list_length) && header > table && header < message.len();
    if fits { message.get(field(1)?).copied() } else { None }
}
