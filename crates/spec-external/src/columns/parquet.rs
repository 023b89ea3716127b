//! Reads a column of a Parquet file; several threads read row groups.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parquet::basic::{Compression, ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;
use spec::dtype::{as_bytes, as_bytes_mut};
use spec::{DType, Element};

use super::pages::{check_chunk, check_footer};
use super::reader::{BUFFER, Shared};
use super::{Options, no_key_type, no_text, nulls};
use crate::error::only;
use crate::{Error, Key, Part, Place, Result, Skipped, Source};

/// The smallest number of bytes of column chunks in a part, if the file has as many.
const PART: u64 = 16 << 20;
/// The largest number of values that are decoded at once.
const VALUES: usize = 32 << 10;
/// Bytes of memory that a part counts for a page and its dictionary, packed and unpacked. Writers
/// make pages of a megabyte; larger pages are read too.
const PAGES: usize = 4 << 20;

/// One column of a Parquet file.
pub(super) struct ParquetColumn {
    path: PathBuf,
    name: String,
    reader: SerializedFileReader<Shared>,
    /// The index of the column in the file.
    column: usize,
    dtype: DType,
    /// The indices of the row groups of each part.
    parts: Vec<Range<usize>>,
    /// The number of keys; `None` where nulls may be left out.
    keys: Option<u64>,
    bytes: u64,
    skip_nulls: bool,
    nulls: AtomicU64,
    shared: Shared,
}

impl ParquetColumn {
    pub(super) fn open(path: &Path, file: File, name: &str, options: Options) -> Result<Self> {
        let failed = |error| failed(path, error);
        let shared = Shared::new(file).map_err(|error| Error::io("read", path, error))?;
        check_footer(&shared).map_err(|words| damaged(path, &words))?;
        let reader = SerializedFileReader::new(shared.clone()).map_err(failed)?;
        let metadata = reader.metadata();
        let columns = metadata.file_metadata().schema_descr().columns();
        let names: Vec<String> = columns.iter().map(|column| column.path().string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let column = only(path, name, &names)?;
        let is_text = columns[column].physical_type() == Type::BYTE_ARRAY
            && columns[column].max_rep_level() == 0;
        if is_text {
            return Err(no_text(path, name));
        }
        let dtype = key_type(&columns[column]).map_err(|what| no_key_type(path, name, &what))?;

        let (mut parts, mut keys, mut bytes) = (Vec::new(), 0u64, 0u64);
        let (mut start, mut gathered, mut null) = (0, 0u64, 0u64);
        for (index, group) in metadata.row_groups().iter().enumerate() {
            let chunk = group.column(column);
            if let Some(codec) = unread(chunk.compression()) {
                return Err(no_codec(path, name, codec));
            }
            let size = chunk.compressed_size().max(0) as u64;
            keys = keys.saturating_add(group.num_rows().max(0) as u64);
            bytes = bytes.saturating_add(size);
            let nulls = chunk.statistics().and_then(|known| known.null_count_opt());
            null = null.saturating_add(nulls.unwrap_or(0));
            gathered = gathered.saturating_add(size);
            if gathered >= PART || index + 1 == metadata.num_row_groups() {
                parts.push(start..index + 1);
                (start, gathered) = (index + 1, 0);
            }
        }
        // If the writer counted the nulls, the error comes before any page is read.
        if null > 0 && !options.skip_nulls {
            return Err(nulls(path, name, null));
        }
        let may_skip = options.skip_nulls && columns[column].max_def_level() > 0;
        let keys = (!may_skip).then_some(keys);
        let (path, name) = (path.to_owned(), name.to_owned());
        let (skip_nulls, nulls) = (options.skip_nulls, AtomicU64::new(0));
        Ok(ParquetColumn {
            path,
            name,
            reader,
            column,
            dtype,
            parts,
            keys,
            bytes,
            skip_nulls,
            nulls,
            shared,
        })
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Starts to read the column in a row group.
    fn chunk(&self, group: usize) -> Result<Chunk> {
        let failed = |error| failed(&self.path, error);
        let metadata = self.reader.metadata().row_group(group);
        // The reader asks for one value or null for each row, and no more.
        check_chunk(&self.shared, metadata.column(self.column), metadata.num_rows())
            .map_err(|words| damaged(&self.path, &words))?;
        let group = self.reader.get_row_group(group).map_err(failed)?;
        match group.get_column_reader(self.column).map_err(failed)? {
            ColumnReader::Int64ColumnReader(reader) => {
                Ok(Chunk::Wide(Values { reader, values: Vec::new(), levels: Vec::new() }))
            }
            ColumnReader::Int32ColumnReader(reader) => {
                Ok(Chunk::Narrow(Values { reader, values: Vec::new(), levels: Vec::new() }))
            }
            _ => Err(no_key_type(&self.path, &self.name, "of different types in its row groups")),
        }
    }
}

/// The error for a failure of the operating system, or for a damaged file.
fn failed(path: &Path, error: ParquetError) -> Error {
    match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => Error::io("read", path, *error),
            Err(error) => damaged(path, &error.to_string()),
        },
        other => damaged(path, &other.to_string()),
    }
}

/// Runs work in which the Parquet crate may panic; the panic becomes an error.
pub(super) fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T>) -> Result<T> {
    super::guarded(path, damaged, work)
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::data(path, Place::Whole, format!("is no Parquet file that can be read: {what}"))
}

/// The name of a codec that is not read; `None` for the others.
fn unread(codec: Compression) -> Option<&'static str> {
    match codec {
        Compression::UNCOMPRESSED
        | Compression::SNAPPY
        | Compression::GZIP(_)
        | Compression::ZSTD(_)
        | Compression::LZ4
        | Compression::LZ4_RAW => None,
        Compression::BROTLI(_) => Some("Brotli"),
        Compression::LZO => Some("LZO"),
    }
}

/// The error for a column whose pages have a codec that is not read.
fn no_codec(path: &Path, column: &str, codec: &str) -> Error {
    let message = format!(
        "column {column} is compressed with {codec}, which is not read; Snappy, gzip, zstd, LZ4 and \
         no compression are"
    );
    Error::data(path, Place::Whole, message)
}

/// The key type of a column, or else the column's type in words.
fn key_type(column: &ColumnDescriptor) -> Result<DType, String> {
    if column.max_rep_level() > 0 {
        return Err("a list".to_owned());
    }
    let signed = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Integer(integer)), _) => integer.is_signed,
        (Some(LogicalType::Date | LogicalType::Time(_) | LogicalType::Timestamp(_)), _) => true,
        // Of `Decimal { .. }`, only the first word is shown.
        (Some(other), _) => {
            let whole = format!("{other:?}");
            return Err(whole.split([' ', '(']).next().unwrap_or_default().to_owned());
        }
        (None, ConvertedType::NONE | ConvertedType::INT_8 | ConvertedType::INT_16) => true,
        (None, ConvertedType::INT_32 | ConvertedType::INT_64) => true,
        (None, ConvertedType::DATE | ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => {
            true
        }
        (None, ConvertedType::TIMESTAMP_MILLIS | ConvertedType::TIMESTAMP_MICROS) => true,
        (None, ConvertedType::UINT_8 | ConvertedType::UINT_16) => false,
        (None, ConvertedType::UINT_32 | ConvertedType::UINT_64) => false,
        (None, other) => return Err(other.to_string()),
    };
    match (column.physical_type(), signed) {
        (Type::INT64, true) => Ok(DType::I64),
        (Type::INT64, false) => Ok(DType::U64),
        (Type::INT32, true) => Ok(DType::I32),
        (Type::INT32, false) => Ok(DType::U32),
        (other, _) => Err(other.to_string()),
    }
}

impl<K: Key> Source<K> for ParquetColumn {
    fn keys(&self) -> Option<u64> {
        self.keys
    }

    fn bytes(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn parts(&self) -> usize {
        self.parts.len()
    }

    fn part_memory(&self) -> usize {
        PAGES + BUFFER + VALUES * (K::SIZE + 2)
    }

    fn skipped(&self) -> Result<Skipped> {
        let nulls = self.nulls.load(Ordering::Relaxed);
        Ok(Skipped { nulls, ..Skipped::default() })
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<K> + Send + '_>> {
        let groups = self.parts[part].clone();
        Ok(Box::new(Groups { column: self, groups, chunk: None, left: 0, bytes: 0 }))
    }
}

/// A part, which reads its row groups one after the other.
struct Groups<'a> {
    column: &'a ParquetColumn,
    /// The indices of the row groups that have not been started.
    groups: Range<usize>,
    chunk: Option<Chunk>,
    /// The number of rows of the chunk that have not been read.
    left: u64,
    /// The number of bytes of the chunks that have been started.
    bytes: u64,
}

impl<K: Key> Part<K> for Groups<'_> {
    fn read(&mut self, keys: &mut [K]) -> Result<usize> {
        guarded(&self.column.path, || self.read_some(keys))
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Groups<'_> {
    fn read_some<K: Key>(&mut self, keys: &mut [K]) -> Result<usize> {
        let file = self.column;
        loop {
            if let Some(chunk) = &mut self.chunk {
                let rows = keys.len().min(VALUES).min(usize::try_from(self.left).unwrap_or(VALUES));
                if rows > 0 {
                    let (read, values) =
                        chunk.read(rows, keys).map_err(|e| failed(&file.path, e))?;
                    if read == 0 {
                        return Err(damaged(&file.path, "a row group ends early"));
                    }
                    let null = read.saturating_sub(values) as u64;
                    if null > 0 && !file.skip_nulls {
                        return Err(nulls(&file.path, &file.name, null));
                    }
                    file.nulls.fetch_add(null, Ordering::Relaxed);
                    self.left = self.left.saturating_sub(read as u64);
                    if values > 0 {
                        return Ok(values);
                    }
                    continue;
                }
            }
            let Some(group) = self.groups.next() else { return Ok(0) };
            let metadata = file.reader.metadata().row_group(group);
            self.left = metadata.num_rows().max(0) as u64;
            self.bytes += metadata.column(file.column).compressed_size().max(0) as u64;
            self.chunk = Some(file.chunk(group)?);
        }
    }
}

/// A column chunk by its physical type.
enum Chunk {
    Wide(Values<Int64Type>),
    Narrow(Values<Int32Type>),
}

impl Chunk {
    fn read<K: Key>(
        &mut self,
        rows: usize,
        keys: &mut [K],
    ) -> Result<(usize, usize), ParquetError> {
        match self {
            Chunk::Wide(values) => values.read(rows, keys),
            Chunk::Narrow(values) => values.read(rows, keys),
        }
    }
}

struct Values<T: DataType> {
    reader: ColumnReaderImpl<T>,
    values: Vec<T::T>,
    levels: Vec<i16>,
}

impl<T: DataType<T: Element>> Values<T> {
    /// Reads up to `rows` rows, and writes their values to the start of `keys`, whose type has the
    /// same size. Returns the number of rows read, and how many of them had a value.
    fn read<K: Key>(
        &mut self,
        rows: usize,
        keys: &mut [K],
    ) -> Result<(usize, usize), ParquetError> {
        self.values.clear();
        self.levels.clear();
        let (read, values, _) =
            self.reader.read_records(rows, Some(&mut self.levels), None, &mut self.values)?;
        as_bytes_mut(&mut keys[..values]).copy_from_slice(as_bytes(&self.values[..values]));
        Ok((read, values))
    }
}
