//! Writes distinct keys as a Parquet file, which several threads encode.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::{ColumnCloseResult, ColumnWriterImpl, get_column_writer};
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::SortingColumn;
use parquet::file::properties::{
    EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion,
};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{ColumnDescPtr, SchemaDescriptor, Type};
use spec::dtype::{as_bytes, as_bytes_mut};
use spec::{DType, Element};

use crate::{Error, Key, Output, Result, Sink};

/// Writes a Parquet file with a column of keys, and with counts a u64 column
/// `count`. The file's metadata says that the keys are sorted. Each block is a row group.
///
/// Ascending keys are stored as their differences (`DELTA_BINARY_PACKED`), which takes less space
/// than compression and which every reader understands.
pub struct ParquetSink {
    schema: SchemaDescriptor,
    properties: WriterPropertiesPtr,
    counts: bool,
    path: PathBuf,
    failure: Arc<Mutex<Option<Error>>>,
    writer: Mutex<SerializedFileWriter<Sequential>>,
}

/// The output, written from start to end in large pieces.
struct Sequential {
    output: Output,
    piece: Vec<u8>,
    /// The error of the output, which an `io::Error` could not hold.
    failure: Arc<Mutex<Option<Error>>>,
}

/// The name of the column of counts.
const COUNT: &str = "count";
/// The largest number of bytes of a write.
const PIECE: usize = 1 << 20;

impl Write for Sequential {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() + bytes.len() > PIECE {
            self.flush()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.output.append(&self.piece);
        self.piece.clear();
        written.map_err(|error| {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            io::ErrorKind::Other.into()
        })
    }
}

impl std::fmt::Debug for ParquetSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ParquetSink({})", self.path.display())
    }
}

/// An encoded row group, to be appended to the file.
pub struct RowGroup(Vec<(Bytes, ColumnCloseResult)>);

impl std::fmt::Debug for RowGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowGroup({} columns)", self.0.len())
    }
}

impl ParquetSink {
    /// Writes keys of type `K` to `output`, in a column called `name`.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be written, or would have two columns
    /// called `count`.
    pub fn new<K: Key>(output: Output, name: &str, counts: bool) -> Result<Self> {
        if counts && name == COUNT {
            let both = "keys and counts would both be a column called count; text and raw files \
                        have no such names";
            let error = io::Error::new(io::ErrorKind::InvalidInput, both);
            return Err(Error::io("write", output.path(), error));
        }
        let schema = Arc::new(schema::<K>(name, counts));
        let sorted = SortingColumn { column_idx: 0, descending: false, nulls_first: false };
        let properties = WriterProperties::builder()
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::DELTA_BINARY_PACKED)
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_sorting_columns(Some(vec![sorted]))
            .set_created_by(concat!("spec version ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let properties = Arc::new(properties);
        let path = output.path().to_owned();
        let failure = Arc::new(Mutex::new(None));
        let piece = Vec::with_capacity(PIECE);
        let sequential = Sequential { output, piece, failure: Arc::clone(&failure) };
        let writer =
            SerializedFileWriter::new(sequential, Arc::clone(&schema), Arc::clone(&properties));
        let writer =
            Mutex::new(writer.map_err(|error| Error::io("write", &path, io::Error::other(error)))?);
        let schema = SchemaDescriptor::new(schema);
        Ok(ParquetSink { schema, properties, counts, path, failure, writer })
    }

    /// The error of the output, if it failed, or else the error of the writer.
    fn failed(&self, error: ParquetError) -> Error {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.unwrap_or_else(|| Error::io("write", &self.path, io::Error::other(error)))
    }

    fn column<T: DataType<T: Element>, E: Element>(
        &self,
        index: usize,
        elements: &[E],
    ) -> Result<(Bytes, ColumnCloseResult), ParquetError> {
        let mut values = vec![T::T::default(); elements.len()];
        as_bytes_mut(&mut values).copy_from_slice(as_bytes(elements));
        let mut pages = TrackedWrite::new(Vec::with_capacity(size_of_val(elements)));
        let column: ColumnDescPtr = self.schema.column(index);
        let writer = Box::new(SerializedPageWriter::new(&mut pages));
        let writer = get_column_writer(column, Arc::clone(&self.properties), writer);
        let mut writer: ColumnWriterImpl<'_, T> =
            parquet::column::writer::get_typed_column_writer(writer);
        writer.write_batch(&values, None, None)?;
        let closed = writer.close()?;
        Ok((pages.into_inner()?.into(), closed))
    }
}

fn schema<K: Key>(name: &str, counts: bool) -> Type {
    let column = |name: &str, dtype: DType| {
        let signed = matches!(dtype, DType::I64 | DType::I32);
        let bits = 8 * dtype.size() as i8;
        let physical = if bits == 64 { Physical::INT64 } else { Physical::INT32 };
        let column = Type::primitive_type_builder(name, physical)
            .with_repetition(Repetition::REQUIRED)
            .with_logical_type(Some(LogicalType::integer(bits, signed)));
        Arc::new(column.build().expect("the annotation fits the physical type"))
    };
    let mut columns = vec![column(name, K::DTYPE)];
    if counts {
        columns.push(column(COUNT, DType::U64));
    }
    let schema = Type::group_type_builder("schema").with_fields(columns);
    schema.build().expect("a group of columns")
}

impl<K: Key> Sink<K> for ParquetSink {
    type Encoded = RowGroup;

    fn counts(&self) -> bool {
        self.counts
    }

    fn key_memory(&self) -> usize {
        // The encoded differences of random keys can be a little longer than the keys.
        let of = |size: usize| size + size.div_ceil(8);
        of(K::SIZE) + if self.counts { of(8) } else { 0 }
    }

    fn encode(&self, _rank: u64, keys: &[K], counts: &[u64]) -> Result<RowGroup> {
        let encode = || {
            let mut columns = vec![match K::SIZE {
                8 => self.column::<Int64Type, K>(0, keys)?,
                _ => self.column::<Int32Type, K>(0, keys)?,
            }];
            if self.counts {
                columns.push(self.column::<Int64Type, u64>(1, counts)?);
            }
            Ok(RowGroup(columns))
        };
        encode().map_err(|error| self.failed(error))
    }

    fn append(&self, group: RowGroup) -> Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        append(&mut writer, group).map_err(|error| self.failed(error))
    }

    fn finish(self, _distinct: u64) -> Result<u64> {
        let ParquetSink { writer, path, failure, .. } = self;
        let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        let complete = || {
            let mut sequential = writer.into_inner()?;
            sequential.flush()?;
            Ok(sequential.output)
        };
        match complete() {
            Ok(output) => output.commit(),
            Err(error) => {
                let failure = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
                let other = |error: ParquetError| Error::io("write", path, io::Error::other(error));
                Err(failure.unwrap_or_else(|| other(error)))
            }
        }
    }
}

fn append(
    writer: &mut SerializedFileWriter<Sequential>,
    group: RowGroup,
) -> Result<(), ParquetError> {
    let mut row_group = writer.next_row_group()?;
    for (pages, closed) in group.0 {
        row_group.append_column(&pages, closed)?;
    }
    row_group.close()?;
    Ok(())
}
