//! The rows of `spec bench` on the CPU, under criterion: its plots of samples,
//! its regressions between runs, and `cargo bench`'s ways to pick.
//!
//! ```text
//! cargo bench --bench cpu                        # everything
//! cargo bench --bench cpu -- topk_router/spec    # names that contain this
//! ```
//!
//! A benchmark is named `operator/implementation/shape`. Each is checked, every
//! element, after it was timed. Rows that take gigabytes are left to
//! `spec bench`.

use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use spec::{Handle, Stream};
use spec_bench::{self as bench, OnDevice};

/// Bytes of a row's arguments, at most.
const MEMORY: u64 = 1 << 28;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    let cpu = Handle::cpu().expect("this build has the CPU backend");
    for row in bench::rows().into_iter().filter(|row| row.memory <= MEMORY) {
        let inputs = row.inputs().expect("inputs");
        let mut call = inputs.upload(&cpu).expect("memory for the inputs");
        for (which, implementation) in call.implementations().into_iter().enumerate() {
            let mut group =
                criterion.benchmark_group(format!("{}/{}", row.operator, implementation.name));
            group.throughput(Throughput::Bytes(inputs.bytes()));
            let mut ran = false;
            group.bench_function(BenchmarkId::from_parameter(&row.shape), |bencher| {
                if !ran {
                    call.select(which).expect("an implementation of this shape");
                    ran = true;
                }
                bencher.iter_custom(|calls| (0..calls).map(|_| once(&mut *call)).sum());
            });
            group.finish();
            if ran {
                call.check().unwrap_or_else(|failure| {
                    panic!("{}, {}, {}: {failure}", row.operator, row.shape, implementation.name)
                });
            }
        }
    }
    criterion.final_summary();
}

/// The time of one call, whose arguments are as they were before the last.
fn once(call: &mut dyn OnDevice) -> Duration {
    call.reset().expect("the CPU's memory");
    let start = Instant::now();
    call.call(Stream::default()).expect("a call that was made ready");
    start.elapsed()
}
