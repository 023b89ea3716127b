//! `spec verify`

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Instant;

use clap::Args;
use clap::builder::PossibleValuesParser;
use rayon::prelude::*;
use serde_json::{Value, json};
use spec::ops::ALL;
use spec::{Backend, Handle};
use spec_conformance::{Golden, Pooled, Report, check_golden_of, check_random_of};

use crate::output::Progress;
use crate::{Error, Result, devices, output, parse_number, parse_seed};

/// What `spec verify` takes.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Options {
    /// The operators to check; all of them where none is named
    #[arg(value_name = "OPERATOR", value_parser = PossibleValuesParser::new(ALL.iter().map(|operator| operator.name)))]
    operators: Vec<String>,
    /// The device to check: cpu, cuda:N, wgpu:N, or auto for the best there is
    #[arg(long, default_value = "auto")]
    device: String,
    /// Random cases of each operator, by all threads of the CPU, of which each has a
    /// stream on a CUDA device; 0 runs the golden vectors alone
    #[arg(long, value_name = "N", default_value = "200", value_parser = parse_cases)]
    cases: usize,
    /// Seed of the first random case; the next ones count up from it
    #[arg(long, value_name = "S", default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_cases(text: &str) -> Result<usize, String> {
    parse_number(text, 0, MAX_CASES)
}

/// The largest number of random cases per operator. A larger number is a typing error.
const MAX_CASES: usize = 1_000_000_000;

/// How many failures of each operator are printed.
const SHOWN: usize = 5;

/// Random cases that a thread runs as one unit of work.
const SHARE: usize = 64;

/// The result of the random cases of one operator.
struct Random {
    report: Report,
    seconds: f64,
}

/// Runs all checks and prints one line per operator.
pub fn run(options: &Options) -> Result<ExitCode> {
    let handle = crate::open(&options.device)?;
    let wanted = |operator: &&'static str| {
        options.operators.is_empty() || options.operators.iter().any(|name| name == operator)
    };
    let operators: Vec<&'static str> =
        ALL.iter().map(|operator| operator.name).filter(wanted).collect();
    let golden = {
        let mut progress = Progress::new("golden cases", None);
        let vectors = Golden::from_env();
        let check = |operator: &&'static str| {
            let step = |operator| progress.step(operator);
            let report = check_golden_of(&handle, operator, &vectors, step);
            report.map(|report| report.expect("it is one of the list")).map_err(Error::Message)
        };
        operators.iter().map(check).collect::<Result<Vec<_>>>()?
    };
    let random = {
        let total = options.cases.saturating_mul(operators.len());
        let progress = Mutex::new(Progress::new("random cases", Some(total)));
        let queues = queues(&handle)?;
        let check = |operator: &&'static str| random(options, &queues, operator, &progress);
        operators.iter().map(check).collect::<Vec<_>>()
    };
    if options.json {
        output::write_json(&json(options, &handle, &golden, &random))?;
    } else {
        output::write(&text(options, &handle, &golden, &random))?;
    }
    let failed = golden.iter().chain(reports(&random)).any(|report| !report.failures.is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A handle for each thread of the pool. Each handle has a queue and a pool of memory of its own.
/// For wgpu there is only one handle, because all its handles would share one queue.
fn queues(handle: &Handle) -> Result<Vec<Pooled<Handle>>> {
    let queues = if handle.device().backend() == "wgpu" { 1 } else { rayon::current_num_threads() };
    (0..queues).map(|_| Ok(Pooled::new(handle.sibling()?))).collect()
}

/// Runs the random cases of one operator, with one thread per queue.
fn random(
    options: &Options,
    queues: &[Pooled<Handle>],
    operator: &'static str,
    progress: &Mutex<Progress>,
) -> Random {
    let started = Instant::now();
    let share = |handle: &Pooled<Handle>, first: usize| {
        let cases = SHARE.min(options.cases - first);
        let seed = options.seed.wrapping_add(first as u64);
        let step = |operator| progress.lock().expect("nothing panics here").step(operator);
        check_random_of(handle, operator, seed, cases, step).expect("it is one of the list")
    };
    let shares = 0..options.cases.div_ceil(SHARE);
    let none = || Report::of(operator);
    let report = match queues {
        [queue] => shares.map(|i| share(queue, i * SHARE)).fold(none(), Report::merge),
        queues => {
            let own = || &queues[rayon::current_thread_index().unwrap_or(0)];
            shares.into_par_iter().map(|i| share(own(), i * SHARE)).reduce(none, Report::merge)
        }
    };
    Random { report, seconds: started.elapsed().as_secs_f64() }
}

fn reports(random: &[Random]) -> impl Iterator<Item = &Report> {
    random.iter().map(|random| &random.report)
}

fn text(options: &Options, handle: &Handle, golden: &[Report], random: &[Random]) -> String {
    let info = handle.info();
    let mut text = format!("Checking {} ({})\n\n", info.device, devices::name(info));
    _ = writeln!(text, "{:<18} {:>14} {:>22} {:>10}", "operator", "golden", "random", "seconds");
    for (golden, Random { report: random, seconds }) in golden.iter().zip(random) {
        let passed = |report: &Report| {
            let passed = report.cases - report.failures.len() - report.unsupported;
            format!("{passed} of {}", report.cases)
        };
        let good = golden.failures.is_empty() && random.failures.is_empty();
        let verdict = match (good, golden.unsupported + random.unsupported) {
            (false, _) => "FAILED",
            (true, 0) => "ok",
            (true, _) => "ok, where implemented",
        };
        let (name, golden, random) = (golden.operator, passed(golden), passed(random));
        _ = writeln!(text, "{name:<18} {golden:>14} {random:>22} {seconds:>10.1}   {verdict}");
    }
    if let Some(more) = options.cases.checked_sub(1) {
        let (first, last) = (options.seed, options.seed.wrapping_add(more as u64));
        _ = writeln!(text, "\nRandom cases of seeds {first} to {last}: {REFERENCE}.");
    }
    for report in golden.iter().chain(reports(random)) {
        for failure in report.failures.iter().take(SHOWN) {
            _ = writeln!(text, "\n{}: {failure}", report.operator);
        }
        if report.failures.len() > SHOWN {
            let more = report.failures.len() - SHOWN;
            _ = writeln!(text, "\n{}: and {more} more", report.operator);
        }
    }
    if reports(random).any(|report| !report.failures.is_empty()) {
        _ = writeln!(
            text,
            "\nOne random case again: spec verify OPERATOR --device {} --seed SEED --cases 1",
            info.device
        );
    }
    text
}

/// Says what the results of random cases are compared with.
const REFERENCE: &str = "compared with plain sequential loops, integers exactly, floats to 2e-5, \
                         and with the same requests in another batch, exactly";

fn json(options: &Options, handle: &Handle, golden: &[Report], random: &[Random]) -> Value {
    let report = |report: &Report| {
        let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
        json!({
            "cases": report.cases,
            "failed": failures.len(),
            "not_implemented": report.unsupported,
            "failures": failures,
        })
    };
    let operators: Vec<Value> = golden
        .iter()
        .zip(random)
        .map(|(golden, random)| {
            json!({
                "operator": golden.operator,
                "golden": report(golden),
                "random": report(&random.report),
                "seconds": random.seconds,
            })
        })
        .collect();
    json!({
        "device": handle.device().to_string(),
        "name": devices::name(handle.info()),
        "seed": options.seed,
        "compared_with": REFERENCE,
        "operators": operators,
    })
}
