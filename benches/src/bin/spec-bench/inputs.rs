//! `spec-bench inputs`: writes the inputs of rows to files, for the scripts under `benches/peers/`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use spec_bench::{self as bench, Row};
use spec_cli::output::Progress;
use spec_cli::{Error, Result};

/// What `spec-bench inputs` takes.
#[derive(Args)]
pub struct Options {
    /// The folder, which gets a folder for each operator and shape; all rows take about 40 GB
    #[arg(value_name = "DIR", default_value = "target/inputs")]
    folder: PathBuf,
    /// Rows whose operator or shape contains these words; may be given several times [default:
    /// every row]
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Few rows of each operator
    #[arg(long)]
    quick: bool,
}

/// Writes the inputs of the rows that the options select.
pub fn run(options: &Options) -> Result<ExitCode> {
    let wanted = |row: &Row| {
        let words = format!("{} {}", row.operator, row.shape);
        let chosen =
            options.only.is_empty() || options.only.iter().any(|only| words.contains(only));
        chosen && (row.quick || !options.quick)
    };
    let rows: Vec<Row> = bench::rows().into_iter().filter(wanted).collect();
    if rows.is_empty() {
        return Err(Error::Message("no row has these words".to_owned()));
    }
    let mut progress = Progress::new("rows", Some(rows.len()));
    for (done, row) in rows.iter().enumerate() {
        progress.at(done, row.operator);
        let named = |error| Error::Message(format!("{}, {}: {error}", row.operator, row.shape));
        row.save(&options.folder).map_err(named)?;
    }
    Ok(ExitCode::SUCCESS)
}
