//! `spec verify`

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use spec::Handle;
use spec_conformance::{Golden, Report, check_golden, check_random};

use crate::output::Progress;
use crate::{Error, Result, output, parse_number, parse_seed};

/// What `spec verify` takes.
#[derive(Args)]
#[command(allow_negative_numbers = true)]
pub struct Options {
    /// The device to check: cpu, cuda:N, wgpu:N, or auto for the best there is
    #[arg(long, default_value = "auto")]
    device: String,
    /// Random cases of each operator; 0 runs the golden vectors alone
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
    parse_number(text, 0, usize::MAX)
}

/// How many failures of an operator are written out.
const SHOWN: usize = 5;

/// Runs all checks and prints a line an operator.
pub fn run(options: &Options) -> Result<ExitCode> {
    let handle: Handle = options.device.parse()?;
    let golden = {
        let mut progress = Progress::new("golden cases", None);
        check_golden(&handle, &Golden::from_env(), |operator| progress.step(operator))
            .map_err(Error::Message)?
    };
    let random = {
        let total = options.cases.saturating_mul(golden.len());
        let mut progress = Progress::new("random cases", Some(total));
        check_random(&handle, options.seed, options.cases, |operator| progress.step(operator))
    };
    if options.json {
        output::write_json(&json(options, &handle, &golden, &random))?;
    } else {
        output::write(&text(options, &handle, &golden, &random))?;
    }
    let failed = golden.iter().chain(&random).any(|report| !report.failures.is_empty());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn text(options: &Options, handle: &Handle, golden: &[Report], random: &[Report]) -> String {
    let info = handle.info();
    let mut text = format!("Checking {} ({})\n\n", info.device, info.name);
    _ = writeln!(text, "{:<18} {:>14} {:>14}", "operator", "golden", "random");
    for (golden, random) in golden.iter().zip(random) {
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
        _ = writeln!(text, "{name:<18} {golden:>14} {random:>14}   {verdict}");
    }
    _ = writeln!(text, "\nRandom cases from seed {}: {REFERENCE}.", options.seed);
    for report in golden.iter().chain(random) {
        for failure in report.failures.iter().take(SHOWN) {
            _ = writeln!(text, "\n{}: {failure}", report.operator);
        }
        if report.failures.len() > SHOWN {
            let more = report.failures.len() - SHOWN;
            _ = writeln!(text, "\n{}: and {more} more", report.operator);
        }
    }
    if random.iter().any(|report| !report.failures.is_empty()) {
        _ = writeln!(
            text,
            "\nOne random case again: spec verify --device {} --seed SEED --cases 1",
            info.device
        );
    }
    text
}

/// What the random cases are compared with.
const REFERENCE: &str = "compared with plain sequential loops, integers exactly, floats to 2e-5, \
                         and with the same requests in another batch, exactly";

fn json(options: &Options, handle: &Handle, golden: &[Report], random: &[Report]) -> Value {
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
                "random": report(random),
            })
        })
        .collect();
    json!({
        "device": handle.device().to_string(),
        "name": handle.info().name,
        "seed": options.seed,
        "compared_with": REFERENCE,
        "operators": operators,
    })
}
