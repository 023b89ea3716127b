//! A Parquet or Arrow file, whatever is in it: keys or an error, no panic that is
//! not caught, no abort, no length that is believed.

use std::io::Write;
use std::path::Path;

use spec_core::DType;
use spec_external::columns::{self, Options};
use spec_external::{Key, Result};

/// Whether bytes begin as a file of one of the two formats does.
pub fn is_file(data: &[u8]) -> bool {
    data.starts_with(b"PAR1") || data.starts_with(b"ARROW1")
}

/// Reads the bytes as a file.
pub fn run(data: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(data).unwrap();
    for column in ["key", "gaps", "narrow", "a.b"] {
        let Ok(dtype) = columns::dtype(file.path(), column) else { continue };
        for skip_nulls in [false, true] {
            let mut options = Options::default();
            options.skip_nulls = skip_nulls;
            _ = match dtype {
                DType::U64 => read::<u64>(file.path(), column, options),
                DType::I64 => read::<i64>(file.path(), column, options),
                DType::U32 => read::<u32>(file.path(), column, options),
                _ => read::<i32>(file.path(), column, options),
            };
        }
    }
}

fn read<K: Key>(path: &Path, column: &str, options: Options) -> Result<()> {
    let source = columns::open_with::<K>(path, column, options)?;
    let mut keys = vec![K::MIN; 1000];
    for part in 0..source.parts().min(100) {
        let mut part = source.open(part)?;
        // Runs of one value unpack to billions.
        for _ in 0..1000 {
            if part.read(&mut keys)? == 0 {
                break;
            }
        }
    }
    Ok(())
}
