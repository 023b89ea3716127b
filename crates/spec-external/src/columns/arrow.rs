//! Reads a column of an Arrow IPC file; several threads read record batches.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_buffer::{Buffer, MutableBuffer};
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, Field, Footer, Message, RecordBatch, root_as_footer, root_as_message};
use arrow_schema::{ArrowError, DataType, Fields, Schema};
use spec::DType;

use super::arrow_values::{Bad, Values, is_text, key_type};
use super::pages::{RATIO, SPARE, check_memory};
use super::reader::Shared;
use super::{Options, no_key_type, no_text, nulls};
use crate::error::only;
use crate::{Error, Key, Part, Place, Result, Skipped, Source, os};

/// The smallest number of bytes of record batches in a part, if the file has as many.
const PART: u64 = 16 << 20;
/// The number of bytes at the end of a file: the footer's length and the magic word.
const TAIL: u64 = 10;

/// The largest number of values that are read at once.
const VALUES: usize = 64 << 10;

/// The number of bytes before the metadata of a record batch: a marker and a length.
const PREFIX: u64 = 8;

/// One column of an Arrow file.
pub(super) struct ArrowColumn {
    path: PathBuf,
    name: String,
    file: Shared,
    dtype: DType,
    /// The indices of the columns that lead from a column of the file to the one in its structures.
    inside: Vec<usize>,
    decoder: FileDecoder,
    /// The record batches of the file.
    batches: Vec<Block>,
    /// The indices of the record batches of each part.
    parts: Vec<Range<usize>>,
    skip_nulls: bool,
    nulls: AtomicU64,
}

impl ArrowColumn {
    pub(super) fn open(path: &Path, file: File, name: &str, options: Options) -> Result<Self> {
        let file = Shared::new(file).map_err(|error| Error::io("read", path, error))?;
        let footer = footer(path, &file)?;
        let bad = |error: &dyn std::fmt::Display| damaged(path, &error.to_string());
        let footer = root_as_footer(&footer).map_err(|error| bad(&error))?;
        let schema = footer.schema().ok_or_else(|| damaged(path, "it has no schema"))?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err(damaged(path, "its numbers are in another machine's order of bytes"));
        }
        let schema = try_fb_to_schema(schema).map_err(|error| bad(&error))?;
        let (column, inside, data_type) = find(path, &schema, name)?;
        let dtype = match data_type {
            other if is_text(&other) => return Err(no_text(path, name)),
            other => key_type(&other).ok_or_else(|| no_key_type(path, name, &other.to_string()))?,
        };
        let batches: Vec<Block> = footer.recordBatches().into_iter().flatten().copied().collect();
        for batch in &batches {
            check_block(batch, file.size()).map_err(|words| damaged(path, words))?;
        }
        let (mut parts, mut start, mut gathered) = (Vec::new(), 0, 0);
        for (index, batch) in batches.iter().enumerate() {
            gathered += bytes(batch);
            if gathered >= PART || index + 1 == batches.len() {
                parts.push(start..index + 1);
                (start, gathered) = (index + 1, 0);
            }
        }
        let version = footer.version();
        let mut decoder = FileDecoder::new(Arc::new(schema), version).with_projection(vec![column]);
        read_words(path, &file, &footer, column, &mut decoder)?;
        Ok(ArrowColumn {
            path: path.to_owned(),
            name: name.to_owned(),
            file,
            dtype,
            inside,
            decoder,
            batches,
            parts,
            skip_nulls: options.skip_nulls,
            nulls: AtomicU64::new(0),
        })
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Reads the column of a record batch; `None` where the batch has no data.
    fn batch(&self, block: &Block) -> Result<Option<Values>> {
        let buffer = read(&self.path, &self.file, block)?;
        check_batch(block, &buffer).map_err(|words| damaged(&self.path, &words))?;
        let batch = self.decoder.read_record_batch(block, &buffer);
        let batch = batch.map_err(|error| failed(&self.path, error))?;
        Ok(batch.map(|batch| Values::find(batch.column(0).clone(), &self.inside)))
    }
}

/// Finds the only column of a name: the index of a column of the file, the indices of columns that
/// lead from there into structures, and the type.
fn find(path: &Path, schema: &Schema, name: &str) -> Result<(usize, Vec<usize>, DataType)> {
    let mut leaves = Vec::new();
    add_leaves(schema.fields(), "", &[], &mut leaves);
    let names: Vec<&str> = leaves.iter().map(|(name, ..)| name.as_str()).collect();
    let index = only(path, name, &names)?;
    let (_, indices, data_type) = leaves.swap_remove(index);
    Ok((indices[0], indices[1..].to_vec(), data_type))
}

/// Adds the columns that are no structures, those in structures included. The names that lead to a
/// column are joined by dots, as in Parquet.
fn add_leaves(
    fields: &Fields,
    before: &str,
    indices: &[usize],
    leaves: &mut Vec<(String, Vec<usize>, DataType)>,
) {
    for (index, field) in fields.iter().enumerate() {
        let (name, indices) = (format!("{before}{}", field.name()), [indices, &[index]].concat());
        match field.data_type() {
            DataType::Struct(fields) => {
                add_leaves(fields, &format!("{name}."), &indices, leaves);
            }
            other => leaves.push((name, indices, other.clone())),
        }
    }
}

/// Reads the dictionaries of a column of the file and of the columns in it.
fn read_words(
    path: &Path,
    file: &Shared,
    footer: &Footer<'_>,
    column: usize,
    decoder: &mut FileDecoder,
) -> Result<()> {
    let mut ids = Vec::new();
    if let Some(fields) = footer.schema().and_then(|schema| schema.fields()) {
        add_ids(&fields.get(column), &mut ids);
    }
    let bad = |words: String| damaged(path, &words);
    for block in footer.dictionaries().into_iter().flatten() {
        check_block(block, file.size()).map_err(|words| damaged(path, words))?;
        // Those of other columns may be large.
        let head = read(path, file, &Block::new(block.offset(), block.metaDataLength(), 0))?;
        let message = message(&head).map_err(bad)?;
        let Some(dictionary) = message.header_as_dictionary_batch() else { continue };
        if ids.contains(&dictionary.id()) {
            let buffer = read(path, file, block)?;
            check_batch(block, &buffer).map_err(bad)?;
            decoder.read_dictionary(block, &buffer).map_err(|error| failed(path, error))?;
        }
    }
    Ok(())
}

/// Adds the numbers of the dictionaries of a column and of the columns in it.
fn add_ids(field: &Field<'_>, ids: &mut Vec<i64>) {
    ids.extend(field.dictionary().map(|dictionary| dictionary.id()));
    for child in field.children().into_iter().flatten() {
        add_ids(&child, ids);
    }
}

/// Reads a block, which has been checked.
fn read(path: &Path, file: &Shared, block: &Block) -> Result<Buffer> {
    let buffer = MutableBuffer::try_from_len_zeroed(bytes(block) as usize);
    let mut buffer = buffer.map_err(|error| damaged(path, &error.to_string()))?;
    let read = os::read_full(file.file(), &mut buffer, block.offset() as u64);
    if read.map_err(|error| Error::io("read", path, error))? < buffer.len() {
        return Err(damaged(path, "it ends early"));
    }
    Ok(buffer.into())
}

fn footer(path: &Path, file: &Shared) -> Result<Vec<u8>> {
    let read = |bytes: &mut [u8], at| match os::read_full(file.file(), bytes, at) {
        Ok(read) if read == bytes.len() => Ok(()),
        Ok(_) => Err(damaged(path, "it ends early")),
        Err(error) => Err(Error::io("read", path, error)),
    };
    let short = || damaged(path, "it ends early");
    let mut tail = [0; TAIL as usize];
    let end = file.size().checked_sub(TAIL).ok_or_else(short)?;
    read(&mut tail, end)?;
    let length = read_footer_length(tail).map_err(|error| failed(path, error))?;
    let start = end.checked_sub(length as u64);
    let start = start.ok_or_else(|| damaged(path, "its footer is longer than the file"))?;
    check_memory(length as u64).map_err(|words| damaged(path, &words))?;
    let mut footer = vec![0; length];
    read(&mut footer, start)?;
    Ok(footer)
}

/// The number of bytes in a block, which has been checked.
fn bytes(block: &Block) -> u64 {
    block.metaDataLength().max(0) as u64 + block.bodyLength().max(0) as u64
}

/// The number of bytes in all blocks. The sum saturates, because a sparse file can be as long as
/// the type allows, and each of its blocks can be the whole file.
fn total(blocks: &[Block]) -> u64 {
    blocks.iter().map(bytes).fold(0, u64::saturating_add)
}

/// Checks that a block is within a file of `file` bytes.
fn check_block(block: &Block, file: u64) -> Result<(), &'static str> {
    let bad = "a record batch is said to be where the file has nothing";
    let number = |number: i64| u64::try_from(number).map_err(|_| bad);
    let (at, head) = (number(block.offset())?, number(block.metaDataLength().into())?);
    let end = number(block.bodyLength())?.checked_add(head).and_then(|len| len.checked_add(at));
    if head < PREFIX || end.is_none_or(|end| end > file) { Err(bad) } else { Ok(()) }
}

/// Checks that the buffers of a record batch are inside it, and that their unpacked lengths
/// are possible.
fn check_batch(block: &Block, bytes: &[u8]) -> Result<(), String> {
    let (head, body) = bytes.split_at(block.metaDataLength() as usize);
    let message = message(head)?;
    let words = || message.header_as_dictionary_batch()?.data();
    let Some(batch) = message.header_as_record_batch().or_else(words) else { return Ok(()) };
    check_buffers(batch, body)
        .ok_or_else(|| "a column is damaged".to_owned())
        .and_then(check_memory)
}

/// The message in the metadata of a block.
fn message(head: &[u8]) -> Result<Message<'_>, String> {
    let skip = if head[..4] == [0xFF; 4] { 8 } else { 4 };
    root_as_message(&head[skip..]).map_err(|error| error.to_string())
}

/// The unpacked length of the longest packed buffer of a batch; `None` where a length is not
/// possible.
fn check_buffers(batch: RecordBatch<'_>, body: &[u8]) -> Option<u64> {
    let is_packed = batch.compression().is_some();
    let mut longest = 0;
    for buffer in batch.buffers().into_iter().flatten() {
        let start = usize::try_from(buffer.offset()).ok()?;
        let end = start.checked_add(usize::try_from(buffer.length()).ok()?)?;
        let buffer = body.get(start..end)?;
        if !is_packed || buffer.is_empty() {
            continue;
        }
        let (length, packed) = buffer.split_first_chunk::<8>()?;
        // The length -1 means that the buffer is not packed.
        let length = i64::from_le_bytes(*length).max(0) as u64;
        if length > (packed.len() as u64).saturating_mul(RATIO) + SPARE {
            return None;
        }
        longest = longest.max(length);
    }
    Some(longest)
}

/// The error for a failure of the operating system, or for a damaged file.
fn failed(path: &Path, error: ArrowError) -> Error {
    use std::io::ErrorKind::{InvalidInput, UnexpectedEof};
    match error {
        // A length or an offset in the file is beyond its end.
        ArrowError::IoError(_, error) if matches!(error.kind(), InvalidInput | UnexpectedEof) => {
            damaged(path, "it ends early")
        }
        ArrowError::IoError(_, error) if error.raw_os_error().is_some() => {
            Error::io("read", path, error)
        }
        other => damaged(path, &other.to_string()),
    }
}

/// Runs work in which the Arrow crate may panic; the panic becomes an error.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    super::guarded(path, damaged, work)
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::data(path, Place::Whole, format!("is no Arrow file that can be read: {what}"))
}

impl<K: Key> Source<K> for ArrowColumn {
    /// The footer does not have the number of rows.
    fn keys(&self) -> Option<u64> {
        None
    }

    fn bytes(&self) -> Option<u64> {
        Some(total(&self.batches))
    }

    fn parts(&self) -> usize {
        self.parts.len()
    }

    /// The memory of a record batch, packed and unpacked.
    fn part_memory(&self) -> usize {
        let longest = self.batches.iter().map(bytes).max().unwrap_or(0);
        usize::try_from(longest).unwrap_or(usize::MAX).saturating_mul(2)
    }

    fn skipped(&self) -> Result<Skipped> {
        let nulls = self.nulls.load(Ordering::Relaxed);
        Ok(Skipped { nulls, ..Skipped::default() })
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let batches = self.parts[part].clone();
        Ok(Box::new(Batches { column: self, batches, values: None, at: 0, bytes: 0 }))
    }
}

/// A part, which reads its record batches one after the other.
struct Batches<'a> {
    column: &'a ArrowColumn,
    /// The indices of the record batches that have not been started.
    batches: Range<usize>,
    /// The column of the record batch that is being read.
    values: Option<Values>,
    /// The number of `values` that have been read.
    at: usize,
    bytes: u64,
}

impl<K: Key> Part<K> for Batches<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        guarded(&self.column.path, || self.read_some(keys))
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Batches<'_> {
    fn read_some<K: Key>(&mut self, keys: &mut [K]) -> Result<usize> {
        let file = self.column;
        loop {
            if let Some(values) = &self.values {
                let count = keys.len().min(values.len() - self.at).min(VALUES);
                if count > 0 {
                    let kept = values.read(self.at, count, keys).map_err(|bad| match bad {
                        Bad::Damaged(error) => failed(&file.path, error),
                        Bad::Value(words) => {
                            let message = format!("column {} holds {words}", file.name);
                            Error::data(&file.path, Place::Whole, message)
                        }
                    })?;
                    self.at += count;
                    let null = (count - kept) as u64;
                    if null > 0 && !file.skip_nulls {
                        return Err(nulls(&file.path, &file.name, null));
                    }
                    file.nulls.fetch_add(null, Ordering::Relaxed);
                    if kept > 0 {
                        return Ok(kept);
                    }
                    continue;
                }
            }
            let Some(index) = self.batches.next() else { return Ok(0) };
            let block = &file.batches[index];
            self.bytes = self.bytes.saturating_add(bytes(block));
            (self.values, self.at) = (file.batch(block)?, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_any_length_have_a_sum() {
        let whole = Block::new(8, 8, i64::MAX - 8);
        assert_eq!(total(&[whole]), i64::MAX as u64);
        assert_eq!(total(&[whole; 3]), u64::MAX);
    }
}
