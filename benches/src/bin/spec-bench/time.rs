//! `spec-bench`: times the operators.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use spec::{DeviceInfo, Handle};
use spec_bench::report::{self, Report, compare, html, table};
use spec_bench::{self as bench, Event, Row};
use spec_cli::output::{self, Progress, complain};
use spec_cli::{Error, Result, open};

pub const EXAMPLES: &str = "\
Examples:
  spec-bench --quick                                    a first look, on every device
  spec-bench unique --device cuda:0 --save before.json  one operator, every sample kept
  spec-bench unique --device cuda:0 --compare before.json
  spec-bench topk_router --shape tokens=512,experts=64,dtype=bf16 --html page.html
  spec-bench unique --shape help                        which keys a shape has";

/// What `spec-bench` takes.
#[derive(Args)]
pub struct Options {
    /// The operators to time, or `host` for what a call costs the calling
    /// thread [default: all]
    #[arg(value_name = "OPERATOR")]
    operators: Vec<String>,
    /// A device to time them on: cpu, cuda:N, wgpu:N; may be given several
    /// times [default: every device there is but software renderers]
    #[arg(long = "device", value_name = "DEVICE")]
    devices: Vec<String>,
    /// A shape of your own for one operator, as in
    /// tokens=4096,experts=256,dtype=bf16; may be given several times. `help`
    /// prints the keys that there are, and times nothing
    #[arg(long = "shape", value_name = "KEY=VALUE,..")]
    shapes: Vec<String>,
    /// Few rows of each operator, and little time for each
    #[arg(long)]
    quick: bool,
    /// Write one page with plots that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Keep every sample in a file of JSON, as it comes: what was measured is
    /// there when the run is stopped
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Print the same JSON instead of the tables; what --compare says goes to
    /// stderr
    #[arg(long)]
    json: bool,
    /// Say what moved beyond the noise since the run that saved this file
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Put the rows of this file beside: what a script under benches/peers/
    /// measured on this machine; may be given several times
    #[arg(long, value_name = "FILE")]
    peers: Vec<PathBuf>,
    /// Say on stderr what is timed, after how many seconds, and which kernels run
    #[arg(long, short)]
    verbose: bool,
}

/// The name for rows that time the calling thread.
const HOST: &str = "host";

/// Times the rows that the options select, and prints the report.
pub fn run(options: &Options) -> Result<ExitCode> {
    if options.shapes.iter().any(|shape| shape.trim_end_matches('=') == "help") {
        output::write(&keys(options)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = rows(options)?;
    let handles = handles(&options.devices)?;
    let old = options.compare.as_deref().map(read).transpose()?;
    let peers = options.peers.iter().map(|path| read(path)).collect::<Result<Vec<_>>>()?;
    options.html.iter().chain(&options.save).try_for_each(|path| check_writable(path))?;
    peers.iter().try_for_each(check_machine)?;
    if cfg!(debug_assertions) {
        complain(
            "note: this is a debug build; `cargo run --release -p spec-bench` is what to time",
        );
    }
    let outcome = {
        let mut progress = Progress::new("rows", Some(rows.len()));
        let started = Instant::now();
        let settings = bench::Options {
            handles,
            quick: options.quick,
            host: options.shapes.is_empty() && wants(options, HOST),
            command: command(std::env::args().skip(1)),
            rows,
        };
        bench::run(&settings, &mut |event| match event {
            Event::Row(done, operator) => progress.at(done, operator),
            Event::Next(what) if options.verbose => {
                progress.say(&format!("{:>6.1} s: {what}", started.elapsed().as_secs_f64()));
            }
            Event::Route(route) if options.verbose => progress.say(&format!("          {route}")),
            Event::Next(_) | Event::Route(_) => {}
            Event::Measured(report) => {
                // An error is ignored here: the report is written again after the run, and
                // an error is reported then.
                let _ =
                    options.save.as_ref().map(|path| beside(report.clone(), &peers)?.write(path));
            }
            Event::Skipped(line) => progress.say(&format!("skipped: {line}")),
        })
    };
    let report = beside(outcome.report, &peers).map_err(|error| message(&error))?;
    if let Some(path) = &options.html {
        let page = html::page(std::slice::from_ref(&report)).map_err(|error| message(&error))?;
        std::fs::write(path, page)
            .map_err(|error| Error::Message(format!("{}: {error}", path.display())))?;
    }
    if let Some(path) = &options.save {
        report.write(path).map_err(|error| message(&error))?;
    }
    let text = if options.json { report.to_json() } else { table::text(&report) };
    output::write(&text)?;
    match &old {
        Some(old) if options.json => complain(compare::text(old, &report).trim_end()),
        Some(old) => output::write(&compare::text(old, &report))?,
        None => {}
    }
    for line in &outcome.failed {
        complain(&format!("error: {line}"));
    }
    Ok(if outcome.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn message(error: &report::Error) -> Error {
    Error::Message(error.to_string())
}

fn read(path: &Path) -> Result<Report> {
    if !path.exists() {
        return Err(Error::Message(absent(path)));
    }
    Report::read(path).map_err(|error| message(&error))
}

/// A message that the file does not exist, with the reports that lie in its folder.
fn absent(path: &Path) -> String {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let reports = entries.map(|entry| entry.path()).filter(|path| is_report(path));
    let names = reports.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut names: Vec<_> = names.collect();
    names.sort();
    let there = match &names[..] {
        [] => format!("no report lies in {}: --save FILE writes one", folder.display()),
        names => format!("the reports in {} are {}", folder.display(), names.join(", ")),
    };
    format!("{}: there is no such file; {there}", path.display())
}

/// Whether the beginning of a file looks like a report.
fn is_report(path: &Path) -> bool {
    let mut start = [0; 64];
    let is_file = path.metadata().is_ok_and(|found| found.is_file());
    let read = is_file.then(|| File::open(path)?.read(&mut start)).and_then(|read| read.ok());
    String::from_utf8_lossy(&start[..read.unwrap_or(0)]).contains("\"spec-bench ")
}

/// A report merged with the reports of peers.
fn beside(report: Report, peers: &[Report]) -> std::result::Result<Report, report::Error> {
    Report::merge(std::iter::once(report).chain(peers.iter().cloned()).collect())
}

/// Checks, before anything is timed, that a peer's rows were measured on this machine.
fn check_machine(peers: &Report) -> Result<()> {
    let (theirs, ours) = (&peers.host, bench::host());
    if theirs.cpu == ours.cpu && theirs.cores == ours.cores {
        return Ok(());
    }
    Err(Error::Message(format!(
        "--peers: measured on {} cores of {}, but this machine has {} of {}",
        theirs.cores, theirs.cpu, ours.cores, ours.cpu
    )))
}

/// Checks, before anything is timed, that a file can be written. The content of the
/// file stays, because the run may be compared with it.
fn check_writable(path: &Path) -> Result<()> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| Error::Message(format!("{}: {error}", path.display())))
}

/// The command that repeats this run. Paths are shortened to file names, because the
/// folders are of no use to others.
fn command(arguments: impl Iterator<Item = String>) -> String {
    const FILES: [&str; 4] = ["--html", "--save", "--compare", "--peers"];
    let name = |path: &str| match Path::new(path).file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => path.to_owned(),
    };
    let mut is_file = false;
    let arguments = arguments.filter(|word| !["-v", "--verbose"].contains(&&**word));
    let names = arguments.map(move |word| {
        let was_file = std::mem::replace(&mut is_file, FILES.contains(&&*word));
        match word.split_once('=') {
            _ if was_file => name(&word),
            Some((option, path)) if FILES.contains(&option) => format!("{option}={}", name(path)),
            _ => word,
        }
    });
    let words = names.map(|word| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_=.,:/^".contains(c);
        match word.chars().all(plain) && !word.is_empty() {
            true => word,
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    ["spec-bench".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
}

fn wants(options: &Options, operator: &str) -> bool {
    options.operators.is_empty() || options.operators.iter().any(|name| name == operator)
}

/// Refuses an unknown operator.
fn check_operators(options: &Options) -> Result<()> {
    let known: Vec<&str> = bench::operators().chain([HOST]).collect();
    match options.operators.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(Error::Message(format!(
            "there is no operator `{name}`, expected {}",
            known.join(", ")
        ))),
        None => Ok(()),
    }
}

/// The text of `--shape help`: the keys of each selected operator, with their values.
fn keys(options: &Options) -> Result<String> {
    check_operators(options)?;
    let operators = bench::operators().filter(|operator| wants(options, operator));
    let keys = |operator: &str| {
        let keys = bench::keys(operator).into_iter().map(|key| format!("  {key}\n"));
        format!("{operator}\n{}", keys.collect::<String>())
    };
    Ok(operators.map(keys).collect())
}

fn rows(options: &Options) -> Result<Vec<Row>> {
    check_operators(options)?;
    if options.shapes.is_empty() {
        let wanted = |row: &Row| wants(options, row.operator) && (row.quick || !options.quick);
        return Ok(bench::rows().into_iter().filter(wanted).collect());
    }
    let [operator] = &options.operators[..] else {
        let words = "--shape is the shape of one operator: name it, as in \
                     `spec-bench topk_router --shape tokens=4096`";
        return Err(Error::Message(words.to_owned()));
    };
    let row = |shape: &String| {
        bench::row(operator, shape).map_err(|error| Error::Message(error.to_string()))
    };
    options.shapes.iter().map(row).collect()
}

/// Opens the named devices, or all devices except software renderers if none are named.
fn handles(names: &[String]) -> Result<Vec<Handle>> {
    if names.is_empty() {
        let found = spec::devices().into_iter().filter_map(|listing| listing.devices.ok());
        let (software, real): (Vec<_>, Vec<_>) = found.flatten().partition(|info| info.software);
        for DeviceInfo { device, name, .. } in software {
            complain(&format!(
                "skipped: {device} ({name}) is a software renderer; `--device {device}` times it"
            ));
        }
        return real.iter().map(|info| Ok(info.device.to_string().parse()?)).collect();
    }
    let mut handles: Vec<Handle> = Vec::new();
    for name in names {
        let handle = open(name)?;
        if handles.iter().all(|known| known.device() != handle.device()) {
            handles.push(handle);
        }
    }
    Ok(handles)
}

#[cfg(test)]
mod tests {
    use super::command;

    #[test]
    fn commands_can_be_pasted() {
        let words = ["--shape", "tokens=2^12", "--html", "/tmp/my page.html"];
        let it = command(words.map(str::to_owned).into_iter());
        assert_eq!(it, "spec-bench --shape tokens=2^12 --html 'my page.html'");
        let words = ["host", "-v", "--save=/tmp/a/b.json", "--compare", "../old.json"];
        let it = command(words.map(str::to_owned).into_iter());
        assert_eq!(it, "spec-bench host --save=b.json --compare old.json");
    }
}
