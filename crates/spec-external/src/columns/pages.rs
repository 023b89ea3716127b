//! Compares the lengths that a Parquet file claims with the size of the file.
//!
//! The crate that reads Parquet trusts some lengths: it allocates the length that a page's
//! header claims, and follows a schema of any depth.

use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;

use super::reader::Shared;
use super::thrift::{Bad, Event, walk};
use crate::os;

/// The largest depth of columns inside columns.
const DEEPEST: usize = 200;
/// A number of bytes that holds most page headers, and the largest size of a page header.
const HEADER: usize = 1 << 10;
const LONGEST_HEADER: usize = 64 << 20;
/// The largest ratio of unpacked to packed length: zstd's longest repetition is
/// 128 KiB, encoded in four bytes.
pub(super) const RATIO: u64 = 32 << 10;
/// The number of bytes by which an unpacked length may exceed the ratio.
pub(super) const SPARE: u64 = 128 << 10;

/// Checks the footer of a file: its length, its structure, and the depth of its schema.
pub(super) fn check_footer(file: &Shared) -> Result<(), String> {
    let short = || "it ends early".to_owned();
    let start = file.size().checked_sub(8).ok_or_else(short)?;
    let tail = bytes(file, start, 8)?;
    let (length, magic) = tail.split_at(4);
    if magic != b"PAR1" {
        // Another end, or an encrypted footer: the reader's own error says so.
        return Ok(());
    }
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]);
    let start = start
        .checked_sub(length.into())
        .ok_or_else(|| "its footer is longer than the file".to_owned())?;
    let footer = bytes(file, start, length as usize)?;
    let mut schema = Schema { open: Vec::new(), children: 0, deepest: 0 };
    let walked = walk(&footer, &mut |path, event| match (path, event) {
        ([2, 5], Event::Number(children)) => schema.children = children,
        ([2], Event::End) => schema.element(),
        _ => {}
    });
    if walked.is_err() {
        return Err("its footer is damaged".to_owned());
    }
    if schema.deepest > DEEPEST {
        return Err(format!("its columns are nested more than {DEEPEST} times"));
    }
    Ok(())
}

/// Finds the depth of a schema. Its elements come depth first, each with its number of
/// children.
struct Schema {
    /// For each element that has begun, the number of children that are still to come.
    open: Vec<i64>,
    children: i64,
    deepest: usize,
}

impl Schema {
    fn element(&mut self) {
        let children = std::mem::take(&mut self.children);
        while self.open.last() == Some(&0) {
            self.open.pop();
        }
        if let Some(left) = self.open.last_mut() {
            *left -= 1;
        }
        if children > 0 && self.open.len() <= DEEPEST {
            self.open.push(children);
        }
        self.deepest = self.deepest.max(self.open.len());
    }
}

/// The largest ratio of a page's unpacked to its packed length.
fn ratio(codec: Compression) -> u64 {
    match codec {
        Compression::UNCOMPRESSED => 1,
        // Snappy encodes a copy of 64 bytes in three bytes.
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        // Deflate encodes a copy of 258 bytes in at least two bits.
        Compression::GZIP(_) => 1032,
        _ => RATIO,
    }
}

/// Checks the pages of a column chunk, as far as a reader reads to get `values` values.
pub(super) fn check_chunk(
    file: &Shared,
    chunk: &ColumnChunkMetaData,
    values: i64,
) -> Result<(), String> {
    let (start, len) = chunk.byte_range();
    let ratio = ratio(chunk.compression());
    let end = start.checked_add(len).filter(|end| *end <= file.size());
    let end = end.ok_or_else(|| "a column is said to go on past its end".to_owned())?;
    let (mut at, mut seen) = (start, 0i64);
    let mut limit = HEADER;
    while at < end && seen < values {
        let there = usize::try_from(end - at).unwrap_or(limit).min(limit);
        let head = bytes(file, at, there)?;
        let (mut packed, mut unpacked, mut count, mut words) = (0, 0, 0i64, 0i64);
        let walked = walk(&head, &mut |path, event| match (path, event) {
            ([2], Event::Number(bytes)) => unpacked = bytes,
            ([3], Event::Number(bytes)) => packed = bytes,
            // The number of values of a data page of version 1 or 2.
            ([5 | 8, 1], Event::Number(values)) => count = values,
            // The number of values of a dictionary page.
            ([7, 1], Event::Number(values)) => words = values,
            _ => {}
        });
        let header = match walked {
            Ok(header) => header,
            Err(Bad::Short) if (there as u64) < end - at && limit < LONGEST_HEADER => {
                limit *= 8;
                continue;
            }
            Err(_) => return Err("a page's header is damaged".to_owned()),
        };
        let bad = || "a page is said to be of a length that it cannot have".to_owned();
        let (packed, unpacked) = (
            u64::try_from(packed).map_err(|_| bad())?,
            u64::try_from(unpacked).map_err(|_| bad())?,
        );
        at = at + header as u64 + packed;
        if at > file.size() || unpacked > packed.saturating_mul(ratio) + SPARE {
            return Err(bad());
        }
        // A value of a dictionary has at least four bytes.
        if words > 0 && words as u64 > unpacked / 4 {
            return Err("a dictionary is said to have more values than bytes".to_owned());
        }
        check_memory(unpacked)?;
        seen = seen.saturating_add(count.max(0));
    }
    Ok(())
}

/// Checks that `bytes` bytes can be allocated at all. The reader would abort the process if not.
pub(super) fn check_memory(bytes: u64) -> Result<(), String> {
    let probe = usize::try_from(bytes).ok().map(|bytes| Vec::<u8>::new().try_reserve_exact(bytes));
    match probe {
        Some(Ok(())) => Ok(()),
        _ => Err(format!("there is not enough memory for {bytes} bytes of it")),
    }
}

fn bytes(file: &Shared, at: u64, len: usize) -> Result<Vec<u8>, String> {
    check_memory(len as u64)?;
    let mut bytes = vec![0; len];
    match os::read_full(file.file(), &mut bytes, at) {
        Ok(read) if read == len => Ok(bytes),
        Ok(_) => Err("it ends early".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
