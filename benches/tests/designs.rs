//! Every design through the conformance kit: those on the CPU always, those on
//! CUDA where there is a device (required where `SPEC_REQUIRE` lists `cuda`).
//! What a design does not cover it must say (status 2).

use std::io::Write;

use spec_bench::baselines::{Design, Designs};
use spec_conformance::{Golden, Report, Subject, golden, random};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

/// Random cases of each design.
const CASES: usize = 200;

fn cuda() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(reason) => {
            let required = std::env::var("SPEC_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == "cuda"), "{reason}");
            // Past the test harness, which swallows what `eprintln!` writes.
            _ = writeln!(std::io::stderr(), "skipped: {reason}");
            None
        }
    }
}

fn check<O: Subject + Designs>() {
    let cpu = Cpu::open(0).expect("there is a CPU");
    let cuda = cuda();
    let designs = O::on_cpu(&cpu).into_iter().chain(cuda.iter().flat_map(O::on_cuda));
    for Design { name, backend, .. } in designs {
        let golden = golden::check::<O, _>(&*backend, &Golden::from_env(), &mut |_| {});
        let random = random::check::<O, _>(&*backend, 1, CASES, &mut |_| {});
        let reports: [Report; 2] = [golden.expect("golden vectors"), random];
        for report in &reports {
            let failures: Vec<String> = report.failures.iter().map(ToString::to_string).collect();
            assert!(failures.is_empty(), "{}, {name}:\n{}", O::NAME, failures.join("\n"));
        }
        let ran: usize = reports.iter().map(|report| report.cases - report.unsupported).sum();
        assert!(ran > 0, "{}, {name}: covers no case", O::NAME);
    }
}

macro_rules! tests {
    ($($module:ident: $operator:ident,)+) => {$(
        #[test]
        fn $module() {
            check::<spec_core::ops::$operator>();
        }
    )+};
}
spec_core::for_each_operator!(tests);
