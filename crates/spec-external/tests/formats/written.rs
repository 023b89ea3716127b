//! Parquet and Arrow files that pyarrow wrote (`crates/spec-cli/tests/columns/by_pyarrow.py`).

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use spec::DType;
use spec_conformance::Rng;
use spec_external::columns::{self, Options};
use spec_external::{Key, Result};

use super::{about, read, sorted};

/// A file beside the script.
fn written(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../spec-cli/tests/columns").join(name)
}

/// The keys of a column without its nulls, as text, and the number of nulls.
fn column(path: &Path, name: &str) -> Result<(Vec<i128>, u64)> {
    fn of<K: Key + Into<i128>>(path: &Path, name: &str) -> Result<(Vec<i128>, u64)> {
        let mut options = Options::default();
        options.skip_nulls = true;
        let source = columns::open_with::<K>(path, name, options)?;
        let keys = sorted(read(&*source)?.0).into_iter().map(K::into).collect();
        Ok((keys, source.skipped()?.nulls))
    }
    match columns::dtype(path, name)? {
        DType::U64 => of::<u64>(path, name),
        DType::I64 => of::<i64>(path, name),
        DType::U32 => of::<u32>(path, name),
        _ => of::<i32>(path, name),
    }
}

#[test]
fn a_table_has_the_same_keys_in_both_containers() {
    let signed: [i128; 3] = [-3, 5, 5];
    let clock: [i128; 3] = [3, 5, 5];
    let times = [
        ("date32", DType::I32, signed),
        ("date64", DType::I32, signed),
        ("duration", DType::I64, signed),
        ("words", DType::I64, signed),
        ("bytes", DType::U32, [3, 200, 200]),
        ("timestamp_s", DType::I64, [-3000, 5000, 5000]),
        ("timestamp_ms", DType::I64, signed),
        ("timestamp_us", DType::I64, signed),
        ("timestamp_ns", DType::I64, signed),
        ("time_s", DType::I32, [3000, 5000, 5000]),
        ("time_ms", DType::I32, clock),
        ("time_us", DType::I64, clock),
        ("time_ns", DType::I64, clock),
    ];
    for file in ["times.parquet", "times.arrow"] {
        let path = written(file);
        for (name, dtype, keys) in times {
            assert_eq!(columns::dtype(&path, name).unwrap(), dtype, "{file} {name}");
            assert_eq!(column(&path, name).unwrap(), (keys.to_vec(), 1), "{file} {name}");
        }
    }
}

#[test]
fn a_column_in_a_structure_is_found_by_names_and_dots() {
    for file in ["nested.parquet", "nested.arrow"] {
        let path = written(file);
        assert_eq!(column(&path, "a.b").unwrap(), (vec![1, 2], 2), "{file}");
        assert_eq!(column(&path, "a.d.e").unwrap(), (vec![7], 3), "{file}");
        assert_eq!(column(&path, "c.d").unwrap(), (vec![3, 4, 5, 6], 0), "{file}");
        for name in ["a", "a.d", "b", "a.b.", ".a.b"] {
            let words = format!("has no column {name}; it has a.b, a.d.e, c.d");
            assert_eq!(about(&path, column(&path, name)).1, words, "{file}");
        }
    }
}

#[test]
fn a_name_of_two_columns_is_refused() {
    for file in ["twice.parquet", "twice.arrow"] {
        let path = written(file);
        for name in ["k", "a.b"] {
            let expected = format!("has two columns {name}");
            assert_eq!(about(&path, columns::dtype(&path, name)).1, expected, "{file}");
            assert_eq!(about(&path, columns::open::<i64>(&path, name)).1, expected, "{file}");
        }
        assert_eq!(column(&path, "a.d.e").unwrap(), (vec![7], 3), "{file}");
    }
}

/// Any bit of a page may be wrong: the result is an error, or the same keys where the bit says
/// nothing of keys. Without checksums, most such bits give other keys.
#[test]
fn checksums_of_pages_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.parquet");
    for codec in ["none", "snappy", "zstd", "lz4", "gzip"] {
        let whole = fs::read(written(&format!("checksums.{codec}.parquet"))).unwrap();
        fs::write(&path, &whole).unwrap();
        let right = column(&path, "key").unwrap();
        assert_eq!(right.0.len(), 120);
        let footer = u32::from_le_bytes(*whole[..whole.len() - 4].last_chunk().unwrap()) as usize;
        let pages = 4..whole.len() - 8 - footer;
        let (mut checksums, bits) = (0, pages.len() * 8);
        let mut file = File::options().write(true).open(&path).unwrap();
        let mut put = |at: usize, byte| {
            file.seek(SeekFrom::Start(at as u64)).unwrap();
            file.write_all(&[byte]).unwrap();
        };
        for bit in 0..bits {
            let at = pages.start + bit / 8;
            put(at, whole[at] ^ 1 << (bit % 8));
            let found = column(&path, "key");
            put(at, whole[at]);
            match found {
                Ok(found) => assert!(found == right, "{codec}: other keys with bit {bit}"),
                Err(error) => {
                    checksums += usize::from(error.to_string().contains("CRC checksum mismatch"));
                }
            }
        }
        assert!(checksums * 10 > bits * 8, "{codec}: {checksums} of {bits}");
    }
}

/// Any byte of a file with dictionaries and structures may be wrong: the result is an error or other
/// keys, and no panic.
#[test]
fn damaged_dictionaries_and_structures_end_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.arrow");
    let mut random = Rng::new(3, "damage");
    for (name, names) in
        [("times.arrow", &["words", "bytes", "date64"][..]), ("nested.arrow", &["a.b", "a.d.e"])]
    {
        let whole = fs::read(written(name)).unwrap();
        fs::write(&path, &whole).unwrap();
        let mut file = File::options().write(true).open(&path).unwrap();
        let mut failed = 0;
        for (at, &right) in whole.iter().enumerate().skip(8) {
            let mut put = |byte| {
                file.seek(SeekFrom::Start(at as u64)).unwrap();
                file.write_all(&[byte]).unwrap();
            };
            for byte in [random.next() as u8, right ^ 1 << random.below(8)] {
                put(byte);
                let results = names.iter().map(|name| column(&path, name));
                failed += results.filter(|result| result.is_err()).count();
                put(right);
            }
        }
        assert!(failed > whole.len() / 4, "{name}: {failed} of {}", whole.len());
    }
}

#[test]
fn a_codec_that_is_not_read_is_named() {
    let path = written("brotli.parquet");
    let words = "column key is compressed with Brotli, which is not read; Snappy, gzip, zstd, LZ4 \
                 and no compression are";
    assert_eq!(about(&path, columns::open::<i64>(&path, "key")).1, words);
}

#[test]
fn a_stream_is_no_file() {
    let path = written("stream.arrows");
    let words = "is neither a Parquet nor an Arrow file, but an Arrow stream";
    assert_eq!(about(&path, columns::open::<i64>(&path, "key")).1, words);
}
