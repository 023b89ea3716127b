//! Columns of Parquet files.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{ByteArrayType, Int32Type, Int64Type};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use spec::DType;
use spec_conformance::Rng;
use spec_external::columns::{self, ParquetSink};
use spec_external::{Chain, Error, Key, Place, Result, Sink, Source};

use super::{about, output, random_keys, read, sorted, write};

/// Writes a file with the columns `id` and `key`; `None` is a null in `key`.
fn file(path: &Path, properties: WriterProperties, groups: &[Vec<Option<i64>>]) {
    let schema = "message features { REQUIRED INT64 id; OPTIONAL INT64 key (INTEGER(64, false)); }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for group in groups {
        let mut row_group = writer.next_row_group().unwrap();
        let ids: Vec<i64> = (0..group.len() as i64).collect();
        let mut column = row_group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let keys: Vec<i64> = group.iter().copied().flatten().collect();
        let levels: Vec<i16> = group.iter().map(|key| i16::from(key.is_some())).collect();
        let mut column = row_group.next_column().unwrap().unwrap();
        column.typed::<Int64Type>().write_batch(&keys, Some(&levels), None).unwrap();
        column.close().unwrap();
        row_group.close().unwrap();
    }
    writer.close().unwrap();
}

fn groups(keys: &[u64], rows: usize) -> Vec<Vec<Option<i64>>> {
    keys.chunks(rows).map(|group| group.iter().map(|&key| Some(key as i64)).collect()).collect()
}

#[test]
fn files_of_every_encoding_and_codec() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.parquet");
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(ZstdLevel::default()),
        Compression::LZ4_RAW,
        Compression::GZIP(Default::default()),
    ];
    let encodings = [Encoding::PLAIN, Encoding::DELTA_BINARY_PACKED, Encoding::BYTE_STREAM_SPLIT];
    for (index, codec) in codecs.into_iter().enumerate() {
        for (dictionary, encoding) in
            [(true, encodings[0])].into_iter().chain(encodings.map(|encoding| (false, encoding)))
        {
            let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][index % 2];
            let properties = WriterProperties::builder()
                .set_compression(codec)
                .set_dictionary_enabled(dictionary)
                .set_encoding(encoding)
                .set_writer_version(version);
            let keys = random_keys(index as u64, 90_000);
            file(&path, properties.build(), &groups(&keys, 40_000));
            let source = columns::open::<u64>(&path, "key").unwrap();
            assert_eq!(source.keys(), Some(90_000));
            let (found, bytes) = read(&*source).unwrap();
            assert!(sorted(found) == sorted(keys), "{codec:?} {dictionary} {encoding:?}");
            assert_eq!(Some(bytes), source.bytes());
        }
    }
}

#[test]
fn row_groups_share_out_among_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.parquet");
    let keys: Vec<u64> = Rng::new(9, "keys").vec(5_500_000, Rng::next);
    file(&path, WriterProperties::default(), &groups(&keys, 500_000));
    let source = columns::open::<u64>(&path, "key").unwrap();
    assert!((2..=6).contains(&source.parts()), "{} parts", source.parts());
    assert!(sorted(read(&*source).unwrap().0) == sorted(keys));

    // Several files are one source.
    let other = folder.path().join("other.parquet");
    file(&other, WriterProperties::default(), &groups(&[3, 1, 2], 2));
    let two = || columns::open::<u64>(&other, "key").unwrap();
    let chain = Chain::new(vec![two(), two()]);
    assert_eq!(chain.keys(), Some(6));
    assert_eq!(sorted(read(&chain).unwrap().0), [1, 1, 2, 2, 3, 3]);
    // A file without rows or without row groups may be part of the source.
    file(&other, WriterProperties::default(), &[]);
    assert!(read(&*two()).unwrap().0.is_empty());
    file(&other, WriterProperties::default(), &[vec![]]);
    assert!(read(&*two()).unwrap().0.is_empty());
}

#[test]
fn a_null_is_an_error_that_names_the_column() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nulls.parquet");
    let mut rows = groups(&random_keys(1, 5000), 2000);
    rows[1][77] = None;
    rows[2][5] = None;
    // The statistics in the footer of the file count the nulls of each column.
    file(&path, WriterProperties::default(), &rows);
    let (place, message) = about(&path, columns::open::<u64>(&path, "key"));
    assert_eq!(place, Place::Whole);
    assert_eq!(message, "column key has nulls (2 seen), and a null is no key (--skip-nulls)");
    // A file without statistics opens: its nulls are found when the column is read.
    let silent = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
    file(&path, silent.build(), &rows);
    let source = columns::open::<u64>(&path, "key").unwrap();
    let (_, message) = about(&path, read(&*source));
    assert_eq!(message, "column key has a null (1 seen), and a null is no key (--skip-nulls)");
    // With `skip_nulls`, nulls are left out and counted, and do not count as keys.
    let mut options = columns::Options::default();
    options.skip_nulls = true;
    for properties in [WriterProperties::default(), WriterProperties::builder().build()] {
        rows[1].fill(None);
        file(&path, properties, &rows);
        let source = columns::open_with::<u64>(&path, "key", options).unwrap();
        assert_eq!(source.keys(), None);
        assert_eq!(read(&*source).unwrap().0.len(), 2999);
        assert_eq!(source.skipped().unwrap().nulls, 2001);
    }
    // Nulls of other columns do not matter.
    assert_eq!(columns::dtype(&path, "id").unwrap(), DType::I64);
    assert_eq!(read(&*columns::open::<i64>(&path, "id").unwrap()).unwrap().0.len(), 5000);
}

/// Writes a file of one row group with one value in each column of `schema`.
fn one_of_each(path: &Path, schema: &str) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Default::default()).unwrap();
    let mut row_group = writer.next_row_group().unwrap();
    while let Some(mut column) = row_group.next_column().unwrap() {
        use parquet::column::writer::ColumnWriter;
        let levels: (Option<&[i16]>, Option<&[i16]>) = (Some(&[1]), Some(&[0]));
        match column.untyped() {
            ColumnWriter::Int32ColumnWriter(_) => {
                column.typed::<Int32Type>().write_batch(&[-5], levels.0, levels.1).unwrap();
            }
            ColumnWriter::Int64ColumnWriter(_) => {
                column.typed::<Int64Type>().write_batch(&[-5], levels.0, levels.1).unwrap();
            }
            _ => {
                let text = [b"a".to_vec().into()];
                column.typed::<ByteArrayType>().write_batch(&text, levels.0, levels.1).unwrap();
            }
        }
        column.close().unwrap();
    }
    row_group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn columns_by_name_and_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("types.parquet");
    one_of_each(
        &path,
        "message m {
            REQUIRED INT64 plain;
            REQUIRED INT64 wide (INTEGER(64, false));
            REQUIRED INT32 narrow;
            REQUIRED INT32 unsigned (INTEGER(32, false));
            REQUIRED INT32 byte (INTEGER(8, true));
            REQUIRED INT64 old (UINT_64);
            REQUIRED INT64 when (TIMESTAMP(MILLIS, true));
            REQUIRED INT64 then (TIMESTAMP_MICROS);
            REQUIRED INT32 day (DATE);
            REQUIRED INT32 hour (TIME(MILLIS, true));
            REQUIRED INT64 minute (TIME(NANOS, false));
            REQUIRED INT32 price (DECIMAL(9, 2));
            REQUIRED BINARY name (UTF8);
            REPEATED INT64 many;
            REQUIRED GROUP inner { REQUIRED INT64 key; }
        }",
    );
    fn only<K: Key>(path: &Path, name: &str) -> Result<K> {
        assert_eq!(columns::dtype(path, name)?, K::DTYPE, "{name}");
        let (keys, _) = read(&*columns::open::<K>(path, name)?)?;
        assert_eq!(keys.len(), 1);
        Ok(keys[0])
    }
    assert_eq!(only::<i64>(&path, "plain").unwrap(), -5);
    assert_eq!(only::<u64>(&path, "wide").unwrap(), (-5i64) as u64);
    assert_eq!(only::<u64>(&path, "old").unwrap(), (-5i64) as u64);
    assert_eq!(only::<i32>(&path, "narrow").unwrap(), -5);
    assert_eq!(only::<u32>(&path, "unsigned").unwrap(), (-5i32) as u32);
    assert_eq!(only::<i32>(&path, "byte").unwrap(), -5);
    assert_eq!(only::<i64>(&path, "inner.key").unwrap(), -5);
    // Dates and times as they are stored.
    for name in ["when", "then", "minute"] {
        assert_eq!(only::<i64>(&path, name).unwrap(), -5, "{name}");
    }
    for name in ["day", "hour"] {
        assert_eq!(only::<i32>(&path, name).unwrap(), -5, "{name}");
    }
    for (name, what) in [
        ("price", "column price is Decimal; it must be u64"),
        ("name", "column name is text, and keys are numbers"),
        ("many", "column many is a list"),
        ("missing", "has no column missing; it has plain, wide, narrow"),
    ] {
        let (_, message) = about(&path, columns::dtype(&path, name));
        assert!(message.starts_with(what), "{message}");
    }
    let (_, message) = about(&path, columns::open::<u64>(&path, "plain"));
    assert_eq!(message, "column plain is i64, not u64");
}

#[test]
fn what_is_no_such_file_or_damaged_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for content in [&b""[..], b"PA", b"12\n34\n", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1"]
    {
        fs::write(&path, content).unwrap();
        let (place, message) = about(&path, columns::open::<u64>(&path, "key"));
        assert_eq!(place, Place::Whole, "{message}");
    }
    assert!(matches!(columns::dtype(folder.path(), "key"), Err(Error::Io { .. })));
    let nowhere = folder.path().join("nowhere");
    assert!(
        matches!(columns::dtype(&nowhere, "key"), Err(Error::Io { path, .. }) if path == nowhere)
    );

    // Any byte may be wrong: the result is an error or other keys, but no panic.
    let keys = random_keys(5, 3000);
    file(&path, WriterProperties::default(), &groups(&keys, 1000));
    let whole = fs::read(&path).unwrap();
    let mut random = Rng::new(6, "damage");
    let mut failed = 0;
    for round in 0..400 {
        let mut damaged = whole.clone();
        if round % 4 == 0 {
            damaged.truncate(random.below(whole.len()));
        } else {
            // Mostly in the footer, which is where lengths and offsets are.
            let from = if round % 4 == 1 { 0 } else { whole.len() - 700 };
            damaged[from + random.below(whole.len() - from)] ^= 1 << random.below(8);
        }
        fs::write(&path, damaged).unwrap();
        failed += i32::from(columns::open::<u64>(&path, "key").and_then(|s| read(&*s)).is_err());
    }
    assert!(failed > 100, "{failed}");
}

fn round_trip<K: Key>(folder: &Path, keys: &[K]) {
    let path = folder.join(format!("{}.parquet", K::NAME));
    let bytes = write(ParquetSink::new::<K>(output(&path), "key", false).unwrap(), keys, &[]);
    assert_eq!(bytes.unwrap(), fs::metadata(&path).unwrap().len());
    assert_eq!(columns::dtype(&path, "key").unwrap(), K::DTYPE);
    assert_eq!(sorted(read(&*columns::open::<K>(&path, "key").unwrap()).unwrap().0), keys);

    let counts: Vec<u64> = (1..=keys.len() as u64).map(|index| index * 3 % 1000).collect();
    let path = folder.join(format!("{}-counts.parquet", K::NAME));
    let sink = ParquetSink::new::<K>(output(&path), "feature", true).unwrap();
    assert!(Sink::<K>::counts(&sink));
    write(sink, keys, &counts).unwrap();
    let order = |name| read(&*columns::open::<u64>(&path, name).unwrap()).unwrap().0;
    assert_eq!(sorted(order("count")), sorted(counts));
    let keys_again = read(&*columns::open::<K>(&path, "feature").unwrap()).unwrap().0;
    assert_eq!(sorted(keys_again), keys);

    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    for group in reader.metadata().row_groups() {
        let sorting = group.sorting_columns().expect("said to be sorted");
        assert_eq!((sorting[0].column_idx, sorting[0].descending), (0, false));
        assert!(group.column(0).statistics().unwrap().min_bytes_opt().is_some());
    }
}

#[test]
fn what_is_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys = random_keys(7, 70_000);
    keys.extend([0, u64::MAX]);
    let distinct = |keys: Vec<i64>| {
        let mut keys = sorted(keys);
        keys.dedup();
        keys
    };
    let signed = distinct(keys.iter().map(|&key| key as i64).collect());
    let mut unsigned = sorted(keys.clone());
    unsigned.dedup();
    round_trip::<u64>(folder.path(), &unsigned);
    round_trip::<i64>(folder.path(), &signed);
    let narrow = distinct(keys.iter().map(|&key| i64::from(key as i32)).collect());
    round_trip::<i32>(folder.path(), &narrow.iter().map(|&key| key as i32).collect::<Vec<_>>());
    let narrow = distinct(keys.iter().map(|&key| i64::from(key as u32)).collect());
    round_trip::<u32>(folder.path(), &narrow.iter().map(|&key| key as u32).collect::<Vec<_>>());

    let path: PathBuf = folder.path().join("none.parquet");
    write::<u64, _>(ParquetSink::new::<u64>(output(&path), "key", false).unwrap(), &[], &[])
        .unwrap();
    let none = columns::open::<u64>(&path, "key").unwrap();
    assert_eq!((none.keys(), read(&*none).unwrap().0), (Some(0), vec![]));
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.parquet");
    let error = ParquetSink::new::<u64>(output(&path), "count", true).err().unwrap().to_string();
    assert!(error.contains("both be a column called count"), "{error}");
    assert!(ParquetSink::new::<u64>(output(&path), "count", false).is_ok());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn dropped_unfinished_it_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("half.parquet");
    let sink = ParquetSink::new::<u64>(output(&path), "key", false).unwrap();
    let block = sink.encode(0, &(0..2_000_000u64).collect::<Vec<_>>(), &[]).unwrap();
    Sink::<u64>::append(&sink, block).unwrap();
    drop(sink);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Inputs that once failed, which the fuzzer uses too: each gives keys or an error, and
/// causes no panic, no abort, and no allocation of a size that the file claims.
#[test]
fn what_once_failed() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/columns");
    let mut seen = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let good = ["polars", "words"].iter().any(|good| path.file_stem().unwrap() == *good);
        let result = columns::open::<u64>(&path, "key").and_then(|source| read(&*source));
        match result {
            Ok((keys, _)) => assert!(good && keys.len() == 200, "{}", path.display()),
            Err(error) => {
                let words = error.to_string();
                assert!(!good && words.contains(" file that can be read: "), "{words}");
            }
        }
        seen += 1;
    }
    assert!(seen > 5);
}
