//! Times on the device, on the shapes of the performance goals.
//!
//! ```text
//! cargo bench -p spec-cuda --bench graphs -- [OPERATOR..]
//! ```
//!
//! Twenty calls are captured into a CUDA graph; a figure is the median of
//! fifteen replays divided by twenty. Results are checked after the timing, on
//! the buffers that were timed. Beside each figure: the floor (bytes that must
//! move over 3.0 TB/s, what a device copy reaches on an H100), the goal, and
//! the seed design's time, all for an H100.

#[path = "../../tests/common/mod.rs"]
mod common;
mod deduplicate_topk;
mod host;
mod ngram_match;
mod rejection_sample;
mod topk_router;
mod unique;

use common::graph::Foreign;
use spec_core::{Backend, Stream};
use spec_cuda::Cuda;

/// Prints the rows of one operator.
type Bench = fn(&Cuda);

const CALLS: usize = 20;
const REPLAYS: usize = 15;

/// What is known of a shape on an H100, in microseconds; 0 where it is not.
struct Known {
    floor: f64,
    goal: f64,
    seed: f64,
}

/// Microseconds of one call, by replays of a graph of `calls` calls.
fn time_calls(cuda: &Cuda, calls: usize, mut call: impl FnMut(Stream<'static>)) -> f64 {
    let foreign = Foreign::new(cuda);
    call(foreign.stream());
    foreign.synchronize();
    let foreign_ref = &foreign;
    let graph = foreign.capture(|_| (0..calls).for_each(|_| call(foreign_ref.stream())));
    (0..3).for_each(|_| graph.replay());
    let mut times: Vec<f64> = (0..REPLAYS).map(|_| graph.time()).collect();
    times.sort_by(f64::total_cmp);
    times[REPLAYS / 2] / calls as f64
}

/// As [`time_calls`] with the usual number of calls.
fn time(cuda: &Cuda, call: impl FnMut(Stream<'static>)) -> f64 {
    time_calls(cuda, CALLS, call)
}

fn row(operator: &str, shape: &str, micros: f64, known: &Known) {
    let word = |value: f64| if value > 0.0 { format!("{value:.1}") } else { "-".to_owned() };
    println!(
        "{operator:<18} {shape:<44} {micros:>10.2} {:>8} {:>8} {:>9}  {}",
        word(known.floor),
        word(known.goal),
        word(known.seed),
        if known.goal > 0.0 {
            format!("{:.2} of goal", micros / known.goal)
        } else {
            String::new()
        }
    );
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let Some(cuda) = common::cuda() else { return };
    let info = cuda.info();
    println!("{}", info.name);
    for (name, value) in &info.facts {
        println!("  {name}: {value}");
    }
    println!(
        "{:<18} {:<44} {:>10} {:>8} {:>8} {:>9}",
        "operator", "shape", "us a call", "floor", "goal", "seed"
    );
    let benches: [(&str, Bench); 6] = [
        ("host", host::bench),
        ("topk_router", topk_router::bench),
        ("deduplicate_topk", deduplicate_topk::bench),
        ("rejection_sample", rejection_sample::bench),
        ("ngram_match", ngram_match::bench),
        ("unique", unique::bench),
    ];
    for (name, bench) in benches {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            bench(&cuda);
        }
    }
}
