//! Every operator on the CPU against the plain sequential loop, in one run.
//!
//! `cargo bench --bench cpu` prints, for each shape, the median time of both,
//! their ratio, and the rate at which the operator reads its input. Results are
//! compared before anything is timed. `-- NAME` keeps the rows whose operator
//! or shape contains NAME; `-- --full` adds the shapes that take gigabytes and
//! minutes.

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/common/random.rs"]
mod random;

#[path = "cpu/deduplicate_topk.rs"]
mod deduplicate_topk;
#[path = "cpu/ngram_match.rs"]
mod ngram_match;
#[path = "cpu/rejection_sample.rs"]
mod rejection_sample;
#[path = "cpu/topk_router.rs"]
mod topk_router;
#[path = "cpu/unique.rs"]
mod unique;

use std::time::{Duration, Instant};

use random::Random;
use spec::Handle;

fn main() -> spec::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let full = arguments.iter().any(|a| a == "--full");
    let filter = arguments.into_iter().find(|a| !a.starts_with("--")).unwrap_or_default();
    let bench = Bench { handle: Handle::cpu()?, filter, full };
    println!("{}", bench.handle.info().name);
    println!(
        "{:<18} {:<34} {:>11} {:>11} {:>7} {:>8}",
        "operator", "shape", "plain us", "spec us", "ratio", "GB/s"
    );
    topk_router::run(&bench)?;
    deduplicate_topk::run(&bench)?;
    rejection_sample::run(&bench)?;
    ngram_match::run(&bench)?;
    unique::run(&bench)
}

struct Bench {
    handle: Handle,
    filter: String,
    full: bool,
}

impl Bench {
    fn wants(&self, operator: &str, shape: &str) -> bool {
        operator.contains(&self.filter) || shape.contains(&self.filter)
    }

    /// Times both and prints a row. `bytes` is what the operator must read.
    fn row(
        &self,
        operator: &str,
        shape: &str,
        bytes: usize,
        plain: impl FnMut(),
        mut spec: impl FnMut() -> spec::Result<()>,
    ) {
        let ours = median(|| spec().expect("the call that was checked a moment ago"));
        let plain = median(plain);
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "{operator:<18} {shape:<34} {:>11.1} {:>11.1} {:>7.2} {:>8.2}",
            micros(plain),
            micros(ours),
            plain.as_secs_f64() / ours.as_secs_f64(),
            bytes as f64 / ours.as_secs_f64() / 1e9,
        );
    }
}

/// The median of at least five calls, after one to warm up, for half a second.
fn median(mut call: impl FnMut()) -> Duration {
    call();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || (start.elapsed() < Duration::from_millis(500) && times.len() < 1001) {
        let before = Instant::now();
        call();
        times.push(before.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}
