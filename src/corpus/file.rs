//! The file of a corpus: see [`Corpus::save`](super::Corpus::save) for its format.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use spec_core::{Device, Error, ErrorKind, Result, Status, dtype};

use super::replace::replace;
use super::{CorpusToken, MAX};

const MAGIC: &[u8; 8] = b"SPECCORP";
const VERSION: u32 = 1;
/// Bytes before the tokens, and bytes of the checksum behind them.
const HEAD: usize = 24;
const CHECKSUM: usize = 4;

/// The error of a file that is not what [`write`] makes.
fn damaged(path: &Path, found: &str, expected: String) -> Error {
    Error::Argument {
        status: Status::BadParam,
        operator: "Corpus",
        argument: "path",
        value: format!("{}: {found}", path.display()),
        expected: expected.into(),
    }
}

fn failed(device: Device, doing: &str, path: &Path, error: &io::Error) -> Error {
    let words = format!("could not {doing} the corpus {}: {error}", path.display());
    Error::failure(device, ErrorKind::Failed, words)
}

/// The tokens of a file.
pub(super) fn read<T: CorpusToken>(device: Device, path: &Path) -> Result<Vec<T>> {
    let io = |error: io::Error| failed(device, "read", path, &error);
    // A pipe that nobody writes to would be opened for ever.
    if !fs::metadata(path).map_err(io)?.is_file() {
        let expected = "a corpus, which is a regular file".to_owned();
        return Err(damaged(path, "not a regular file", expected));
    }
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut head = [0; HEAD];
    if size < (HEAD + CHECKSUM) as u64 {
        let expected = format!("a corpus, which has {} bytes at least", HEAD + CHECKSUM);
        return Err(damaged(path, &format!("{size} bytes"), expected));
    }
    file.read_exact(&mut head).map_err(io)?;
    if head[..8] != *MAGIC {
        let expected = "a corpus, which begins with SPECCORP".to_owned();
        return Err(damaged(path, "another kind of file", expected));
    }
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let (version, width) = (word(8), word(12));
    if version != VERSION {
        return Err(damaged(path, &format!("version {version}"), format!("version {VERSION}")));
    }
    if width as usize != size_of::<T>() {
        let expected = format!("tokens of {} bytes ({})", size_of::<T>(), T::DTYPE);
        return Err(damaged(path, &format!("tokens of {width} bytes"), expected));
    }
    let count = u64::from_le_bytes(head[16..].try_into().expect("8 bytes"));
    let expected = count.saturating_mul(width.into()).saturating_add((HEAD + CHECKSUM) as u64);
    if size != expected || count > MAX as u64 {
        let expected = format!("{expected} bytes for {count} tokens, at most {MAX}");
        return Err(damaged(path, &format!("{size} bytes"), expected));
    }
    let mut tokens = vec![T::default(); count as usize];
    file.read_exact(dtype::as_bytes_mut(&mut tokens)).map_err(io)?;
    let mut sum = [0; CHECKSUM];
    file.read_exact(&mut sum).map_err(io)?;
    let (found, expected) = (checksum(&head, &tokens), u32::from_le_bytes(sum));
    if found != expected {
        let expected = format!("the checksum {expected:#010x} that the file has");
        return Err(damaged(path, &format!("contents of checksum {found:#010x}"), expected));
    }
    tokens.iter_mut().for_each(|token| *token = token.little_endian());
    Ok(tokens)
}

/// The CRC-32 of the head and the tokens as they lie in the file.
fn checksum<T: CorpusToken>(head: &[u8; HEAD], tokens: &[T]) -> u32 {
    !crc(crc(!0, head), dtype::as_bytes(tokens))
}

/// The remainders of all bytes by the polynomial of CRC-32, least bit first.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = (rest >> 1) ^ (0xEDB8_8320 * (rest & 1));
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

/// The remainder after more bytes. One checksum of a few megabytes is not worth a dependency of
/// everybody who links this library.
fn crc(before: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(before, |rest, byte| (rest >> 8) ^ REMAINDERS[usize::from(rest as u8 ^ byte)])
}

/// Writes tokens to a file beside `path`, and gives it that name when it is complete.
pub(super) fn write<T: CorpusToken>(device: Device, path: &Path, tokens: &[T]) -> Result<()> {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&(size_of::<T>() as u32).to_le_bytes());
    head[16..].copy_from_slice(&(tokens.len() as u64).to_le_bytes());
    let tokens: Vec<T> = tokens.iter().map(|token| token.little_endian()).collect();
    let sum = checksum(&head, &tokens).to_le_bytes();
    let parts = [&head[..], dtype::as_bytes(&tokens), &sum];
    replace(path, &parts).map_err(|error| failed(device, "save", path, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value that CRC-32 is published with.
    #[test]
    fn the_checksum_is_crc_32() {
        assert_eq!(!crc(!0, b"123456789"), 0xCBF4_3926);
        assert_eq!(!crc(crc(!0, b"1234"), b"56789"), 0xCBF4_3926);
    }
}
