//! What a Parquet file says of lengths, held against the file.
//!
//! The crate that reads it trusts some of them: it allocates what a page's
//! header says, and follows a schema as deep as it goes.

use parquet::basic::Compression;
use parquet::file::metadata::ColumnChunkMetaData;

use super::reader::Shared;
use super::thrift::{Bad, Event, walk};
use crate::os;

/// Columns inside columns.
const DEEPEST: usize = 200;
/// Bytes that hold most pages' headers, and the most that a header may have.
const HEADER: usize = 1 << 10;
const LONGEST_HEADER: usize = 64 << 20;
/// How many times as long what is unpacked can be: zstd's longest repeat is
/// 128 KiB, said in four bytes.
pub(super) const RATIO: u64 = 32 << 10;
/// More than that, whatever the ratio is.
pub(super) const SPARE: u64 = 128 << 10;

/// Looks at a file's footer.
pub(super) fn check_footer(file: &Shared) -> Result<(), String> {
    let short = || "it ends early".to_owned();
    let start = file.size().checked_sub(8).ok_or_else(short)?;
    let tail = bytes(file, start, 8)?;
    let (length, magic) = tail.split_at(4);
    if magic != b"PAR1" {
        // Another end, or an encrypted footer: the reader has words for it.
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

/// How deep a schema goes: its elements, depth first, say how many children they
/// have.
struct Schema {
    /// Children that are to come, of each element that has begun.
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

/// How many times as long as it is packed a page can be.
fn ratio(codec: Compression) -> u64 {
    match codec {
        Compression::UNCOMPRESSED => 1,
        // A copy of 64 bytes takes three.
        Compression::SNAPPY => 22,
        Compression::LZ4 | Compression::LZ4_RAW => 255,
        // A copy of 258 bytes takes two bits at least.
        Compression::GZIP(_) => 1032,
        _ => RATIO,
    }
}

/// Looks at the pages of a column chunk, as far as a reader goes that wants
/// `values` values.
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
    let mut most = HEADER;
    while at < end && seen < values {
        let there = usize::try_from(end - at).unwrap_or(most).min(most);
        let head = bytes(file, at, there)?;
        let (mut packed, mut unpacked, mut count, mut words) = (0, 0, 0i64, 0i64);
        let walked = walk(&head, &mut |path, event| match (path, event) {
            ([2], Event::Number(bytes)) => unpacked = bytes,
            ([3], Event::Number(bytes)) => packed = bytes,
            // Of a page of data, of either version.
            ([5 | 8, 1], Event::Number(values)) => count = values,
            // Of a dictionary.
            ([7, 1], Event::Number(values)) => words = values,
            _ => {}
        });
        let header = match walked {
            Ok(header) => header,
            Err(Bad::Short) if (there as u64) < end - at && most < LONGEST_HEADER => {
                most *= 8;
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
        // Each of four bytes at least.
        if words > 0 && words as u64 > unpacked / 4 {
            return Err("a dictionary is said to have more values than bytes".to_owned());
        }
        check_memory(unpacked)?;
        seen = seen.saturating_add(count.max(0));
    }
    Ok(())
}

/// Whether so many bytes can be had at all: a reader would abort.
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
