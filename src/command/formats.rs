//! The forms in which keys come and go: raw, text, columns.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
#[cfg(feature = "parquet")]
use spec::external::columns;
use spec::external::raw::{self, RawStream};
use spec::external::text::{self, TextStream};
use spec::external::{Chain, Key, Source};

use super::{Error, Result};

/// What the inputs and the output look like.
#[derive(Args)]
pub struct Formats {
    /// The inputs are text, one decimal number a line; so is the output
    #[arg(long, conflicts_with = "column")]
    text: bool,
    /// The inputs are Parquet or Arrow files; the column of keys in them
    ///
    /// The output is a Parquet file with a column of that name.
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// What the output is, if it is to be something else than the inputs
    #[arg(long, value_enum, value_name = "FORMAT", conflicts_with = "count_only")]
    output_format: Option<Format>,
    /// What a key is; raw files hold them little-endian, one after the other
    ///
    /// Without it, u64, or the type of the column.
    #[arg(long = "type", value_enum, value_name = "TYPE")]
    key: Option<Type>,
}

/// A form of files of keys.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Raw,
    Text,
    Parquet,
}

/// A type of keys.
#[derive(Clone, Copy, ValueEnum)]
pub enum Type {
    U64,
    I64,
    U32,
    I32,
}

impl Formats {
    /// What a key is.
    pub fn key(&self, inputs: &[PathBuf]) -> Result<Type> {
        match (self.key, &self.column, inputs.first()) {
            (Some(key), ..) => Ok(key),
            (None, Some(column), Some(path)) => type_of(path, column),
            _ => Ok(Type::U64),
        }
    }

    /// What the output is.
    pub fn output(&self) -> Format {
        let as_input = match &self.column {
            Some(_) => Format::Parquet,
            None if self.text => Format::Text,
            None => Format::Raw,
        };
        self.output_format.unwrap_or(as_input)
    }

    /// What the column of the output is called.
    #[cfg(feature = "parquet")]
    pub fn name(&self) -> &str {
        self.column.as_deref().unwrap_or("key")
    }

    /// All inputs as one source; `-` is stdin.
    pub fn open<K: Key>(&self, inputs: &[PathBuf]) -> Result<Chain<'static, K>> {
        let stdin = Path::new("-");
        if inputs.iter().filter(|path| *path == stdin).count() > 1 {
            return Err(Error::Message("stdin (`-`) can be read only once".to_owned()));
        }
        let open = |path: &PathBuf| -> Result<Box<dyn Source<K>>> {
            let stream = path == stdin;
            match &self.column {
                Some(column) => open_column(path, column),
                None if self.text && stream => {
                    Ok(Box::new(TextStream::new("stdin", std::io::stdin())))
                }
                None if self.text => Ok(text::open(path)?),
                None if stream => Ok(Box::new(RawStream::new("stdin", std::io::stdin()))),
                None => Ok(raw::open(path)?),
            }
        };
        Ok(Chain::new(inputs.iter().map(open).collect::<Result<Vec<_>>>()?))
    }
}

#[cfg(feature = "parquet")]
fn type_of(path: &Path, column: &str) -> Result<Type> {
    use spec::DType;
    not_stdin(path)?;
    Ok(match columns::dtype(path, column)? {
        DType::U64 => Type::U64,
        DType::I64 => Type::I64,
        DType::U32 => Type::U32,
        _ => Type::I32,
    })
}

#[cfg(feature = "parquet")]
fn open_column<K: Key>(path: &Path, column: &str) -> Result<Box<dyn Source<K>>> {
    not_stdin(path)?;
    Ok(columns::open(path, column)?)
}

#[cfg(feature = "parquet")]
fn not_stdin(path: &Path) -> Result<()> {
    if path == Path::new("-") {
        let why = "a Parquet or Arrow file cannot be read from stdin: its end is needed first";
        return Err(Error::Message(why.to_owned()));
    }
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn type_of(_: &Path, _: &str) -> Result<Type> {
    Err(left_out())
}

#[cfg(not(feature = "parquet"))]
fn open_column<K: Key>(_: &Path, _: &str) -> Result<Box<dyn Source<K>>> {
    Err(left_out())
}

/// Parquet was asked for, and is not there.
#[cfg(not(feature = "parquet"))]
pub fn left_out() -> Error {
    let how = "this build has no Parquet; build it with `cargo build --release --features parquet`";
    Error::Message(how.to_owned())
}
