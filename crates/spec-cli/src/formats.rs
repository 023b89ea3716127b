//! The formats of the inputs and of the output of `spec unique`: raw keys, text, CSV, columns.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
#[cfg(feature = "parquet")]
use spec_external::columns;
use spec_external::{Chain, Content, Input, Key, Place, Source, csv, raw, text};

use super::{Error, Result};

/// What the inputs and the output look like.
#[derive(Args)]
pub struct Formats {
    /// The inputs are raw keys, whatever their first bytes look like
    ///
    /// Without it, what is plainly something else is refused, and what gzip or
    /// zstd has compressed is decompressed (zstd: in builds with the feature zstd).
    #[arg(long, conflicts_with_all = ["text", "csv", "column"])]
    raw: bool,
    /// The inputs are text, one decimal number per line; so is the output
    #[arg(long, conflicts_with_all = ["csv", "column"])]
    text: bool,
    /// The inputs are CSV, whose first line names the columns; so is the output
    #[arg(long, requires = "column")]
    csv: bool,
    #[cfg_attr(
        feature = "parquet",
        doc = "The inputs are Parquet or Arrow files, or folders of them, or CSV; the column of \
               keys in them",
        doc = "",
        doc = "A column in a structure is named with dots, as in user.id. A date is its number of \
               days since 1970, a time counts the unit of its column, and a second is 1000 \
               milliseconds. Without --csv the output is a Parquet file with a column of that name."
    )]
    #[cfg_attr(
        not(feature = "parquet"),
        doc = "The column of keys in CSV",
        doc = "",
        doc = "This build reads and writes no Parquet or Arrow files; one that does is made by \
               `cargo build --release --features parquet`."
    )]
    #[arg(long, value_name = "NAME")]
    column: Option<String>,
    /// What stands between the fields of CSV, `\t` for a tab; without it, a comma
    #[arg(long, value_name = "CHARACTER", value_parser = parse_delimiter)]
    delimiter: Option<u8>,
    /// Lines at the start of each text that are a header
    #[arg(long, value_name = "N", requires = "text", value_parser = parse_lines)]
    skip_lines: Option<u64>,
    /// Leave out lines that are no key; say how many there were, and the first
    #[arg(long)]
    lenient: bool,
    /// Leave out nulls of the column, empty fields of CSV; say how many there were
    #[arg(long, requires = "column")]
    skip_nulls: bool,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Raw,
    Text,
    Csv,
    // The help does not offer a format that this build cannot write.
    #[cfg_attr(not(feature = "parquet"), value(hide = true))]
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

fn parse_delimiter(text: &str) -> Result<u8, String> {
    match text.as_bytes() {
        b"\\t" => Ok(b'\t'),
        [byte] if !matches!(byte, b'"' | b'\r' | b'\n') => Ok(*byte),
        _ => Err("expected one character of ASCII, or \\t for a tab".to_owned()),
    }
}

fn parse_lines(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a number of lines, from 0 to {}", u64::MAX))
}

impl Formats {
    /// Whether the inputs are Parquet or Arrow files.
    fn has_columns(&self) -> bool {
        self.column.is_some() && !self.csv
    }

    /// The input files. If inputs may be folders, each folder is replaced by its files.
    pub fn files(&self, inputs: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let stdin = Path::new("-");
        if inputs.iter().filter(|path| *path == stdin).count() > 1 {
            return Err(Error::Message("stdin (`-`) can be read only once".to_owned()));
        }
        if self.lenient && !self.text && !self.csv {
            let words = "--lenient is for lines: --text or --csv";
            return Err(Error::Message(words.to_owned()));
        }
        if self.delimiter.is_some() && !self.csv && self.output_format != Some(Format::Csv) {
            let words = "--delimiter is for CSV: --csv, or --output-format csv";
            return Err(Error::Message(words.to_owned()));
        }
        let mut files = Vec::new();
        for path in inputs {
            if self.has_columns() && path.is_dir() {
                files.extend(files_in(path)?);
            } else {
                files.push(path.clone());
            }
        }
        Ok(files)
    }

    /// The type of the keys: the type that `--type` names, else the type of the column in the
    /// first file, else u64.
    pub fn key(&self, files: &[PathBuf]) -> Result<Type> {
        match (self.key, &self.column, files.first()) {
            (Some(key), ..) => Ok(key),
            (None, Some(column), Some(path)) if !self.csv => type_of(path, column),
            _ => Ok(Type::U64),
        }
    }

    /// The format of the output. Refuses a path whose extension stands for another format,
    /// unless `--output-format` or `--raw` was given.
    pub fn output(&self, path: &Path) -> Result<Format> {
        let as_input = match &self.column {
            Some(_) if self.csv => Format::Csv,
            Some(_) => Format::Parquet,
            None if self.text => Format::Text,
            None => Format::Raw,
        };
        let Some(chosen) = self.output_format else {
            if !self.raw {
                check_name(path, as_input)?;
            }
            return Ok(as_input);
        };
        Ok(chosen)
    }

    /// The name of the output's column.
    pub fn name(&self) -> &str {
        self.column.as_deref().unwrap_or("key")
    }

    /// The character between the fields of CSV.
    pub fn delimiter(&self) -> u8 {
        self.delimiter.unwrap_or(b',')
    }

    /// Opens all inputs as one source; `-` is stdin.
    pub fn open<K: Key>(&self, files: &[PathBuf]) -> Result<Chain<'static, K>> {
        let sources = files.iter().map(|path| match &self.column {
            Some(column) if !self.csv => open_column(path, column, self.skip_nulls),
            _ => self.open_input(path),
        });
        Ok(Chain::new(sources.collect::<Result<Vec<_>>>()?))
    }

    fn open_input<K: Key>(&self, path: &Path) -> Result<Box<dyn Source<K>>> {
        let input = if path == Path::new("-") { Input::stdin()? } else { Input::open(path)? };
        if self.raw {
            return Ok(raw::read(input)?);
        }
        let input = input.decompressed()?;
        self.check(&input)?;
        match &self.column {
            Some(column) => {
                let mut options = csv::Options::default();
                options.delimiter = self.delimiter();
                (options.lenient, options.skip_nulls) = (self.lenient, self.skip_nulls);
                Ok(csv::read(input, column, options)?)
            }
            None if self.text => {
                let mut options = text::Options::default();
                options.skip_lines = self.skip_lines.unwrap_or(0);
                options.lenient = self.lenient;
                Ok(text::read(input, options)?)
            }
            None => Ok(raw::read(input)?),
        }
    }

    /// Refuses an input whose first bytes clearly are of another format than the options say.
    fn check(&self, input: &Input) -> Result<()> {
        let content = input.content();
        let is_text = self.text || self.csv;
        let how = match content {
            Content::Unknown => return Ok(()),
            Content::Numbers | Content::Text if is_text => return Ok(()),
            Content::Numbers => "--text reads that".to_owned(),
            Content::Text => "--text reads one number per line (--skip-lines 1 skips a header), \
                              --csv --column NAME a column"
                .to_owned(),
            Content::Parquet | Content::Arrow if cfg!(feature = "parquet") => {
                "--column NAME reads a column of it".to_owned()
            }
            Content::Parquet | Content::Arrow => LEFT_OUT.to_owned(),
            Content::ArrowStream => "write it as an Arrow or Parquet file, of which --column NAME \
                                     reads a column"
                .to_owned(),
            Content::Numpy => "write its array with `tofile` instead".to_owned(),
            Content::Utf16 => "write it in UTF-8".to_owned(),
            Content::Foreign(_) => "write its keys as raw numbers, text, CSV or Parquet".to_owned(),
            _ => "decompress it first".to_owned(),
        };
        let expected = match content {
            Content::Utf16 if is_text => "text in UTF-8",
            _ if is_text => "text",
            _ => "raw keys",
        };
        let insist = if is_text { "" } else { "; --raw takes its bytes as they are" };
        let message = format!("is {}, not {expected}; {how}{insist}", content.name());
        Err(spec_external::Error::data(input.name(), Place::Whole, message).into())
    }
}

/// Refuses an output path whose extension stands for another format than `format`.
fn check_name(path: &Path, format: Format) -> Result<()> {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let says = match &*extension {
        "parquet" | "pq" => "Parquet",
        "txt" => "text",
        "csv" | "tsv" => "CSV",
        "gz" | "zst" | "bz2" | "xz" | "lz4" | "zip" => "packed",
        "arrow" | "feather" | "ipc" => "Arrow",
        "npy" => "NumPy",
        _ => return Ok(()),
    };
    let (is, asked) = match format {
        Format::Raw => ("raw keys", "raw"),
        Format::Text => ("text", "text"),
        Format::Csv => ("CSV", "csv"),
        Format::Parquet => ("Parquet", "parquet"),
    };
    if says == is {
        return Ok(());
    }
    let other = match says {
        "Parquet" if cfg!(not(feature = "parquet")) => format!(", and {LEFT_OUT}"),
        "Parquet" | "text" | "CSV" => {
            let format = says.to_ascii_lowercase();
            format!(", --output-format {format} makes it what its name says")
        }
        _ => String::new(),
    };
    Err(Error::Message(format!(
        "{}: its name says {says}, but it would be {is}{other}; --output-format {asked} insists",
        path.display()
    )))
}

#[cfg(feature = "parquet")]
fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(columns::files(folder)?)
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
fn open_column<K: Key>(path: &Path, column: &str, skip_nulls: bool) -> Result<Box<dyn Source<K>>> {
    not_stdin(path)?;
    let mut options = columns::Options::default();
    options.skip_nulls = skip_nulls;
    Ok(columns::open_with(path, column, options)?)
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
fn files_in(_: &Path) -> Result<Vec<PathBuf>> {
    Err(left_out())
}

#[cfg(not(feature = "parquet"))]
fn type_of(_: &Path, _: &str) -> Result<Type> {
    Err(left_out())
}

#[cfg(not(feature = "parquet"))]
fn open_column<K: Key>(_: &Path, _: &str, _: bool) -> Result<Box<dyn Source<K>>> {
    Err(left_out())
}

/// The message of a build that cannot read or write Parquet and Arrow.
const LEFT_OUT: &str = "this build has no Parquet and no Arrow; one that has is made by `cargo \
                        build --release --features parquet`";

/// The error for a request for Parquet or Arrow in a build without them.
#[cfg(not(feature = "parquet"))]
pub fn left_out() -> Error {
    Error::Message(LEFT_OUT.to_owned())
}
