//! Calls in threads whose floating-point unit takes subnormal numbers as zeros. A shared object
//! that was linked with `-ffast-math` does that to the threads of a process, Python's for instance.
//! Results must have the same bits there as in any other process.

#![cfg(target_arch = "x86_64")]

use std::arch::asm;

use spec_conformance::{Argument, Case, Golden, Layout, Ready, Rng, Subject, compare, golden};
use spec_core::{Stream, Supports};
use spec_cpu::Cpu;

/// Bits of MXCSR: subnormal results become zeros (FTZ), and so do subnormal operands (DAZ).
const FLUSHING: u32 = 1 << 15 | 1 << 6;
/// The number of threads: more than one, so that the work of a call is split.
const THREADS: usize = 3;
/// Random cases of each operator. Some have subnormal numbers.
const CASES: u64 = 1000;

fn environment() -> u32 {
    let mut found = 0_u32;
    // SAFETY: the instruction writes the four bytes of `found`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut found, options(nostack)) };
    found
}

/// Makes this thread flush subnormal numbers from now on.
fn flush_subnormals() {
    let wanted = environment() | FLUSHING;
    // SAFETY: the instruction reads the four bytes of `wanted`, in which no reserved bit is set. The
    // thread runs nothing but this test.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const wanted, options(nostack)) };
}

fn is_flushing() -> bool {
    let half = std::hint::black_box(f32::MIN_POSITIVE) * std::hint::black_box(0.5);
    half.to_bits() == 0 && std::hint::black_box(1e-40_f32) == 0.0
}

fn ready<O: Subject>(case: &Case<O>) -> Ready<O>
where
    Cpu: Supports<O>,
{
    Ready::new(&Cpu::open(0).expect("the CPU"), case, Layout::PACKED).expect("a descriptor")
}

/// The results of a call whose threads, the calling one too, flush subnormal numbers if asked to.
fn results<O: Subject>(pool: &rayon::ThreadPool, case: &Case<O>, flushing: bool) -> Vec<Argument>
where
    Cpu: Supports<O>,
{
    pool.install(|| {
        let mut ready = ready(case);
        if flushing {
            rayon::broadcast(|_| flush_subnormals());
            assert!(is_flushing());
        }
        ready.enqueue(Stream::default()).expect("a call");
        ready.results(case).expect("results")
    })
}

fn check_workers<O: Subject>(pool: &rayon::ThreadPool)
where
    Cpu: Supports<O>,
{
    for vector in golden::vectors::<O>(&Golden::Embedded).expect("vectors") {
        let found = vector.difference(&results(pool, &vector.case, true));
        assert!(found.is_none(), "{} {}: {}", O::NAME, vector.name, found.expect("a difference"));
    }
    for seed in 1..=CASES {
        let case = Case::<O>::random(&mut Rng::new(seed, O::NAME));
        let (found, expected) = (results(pool, &case, true), results(pool, &case, false));
        let found = compare(&found, &expected, |_| None);
        assert!(found.is_none(), "{} {seed}: {}", O::NAME, found.expect("a difference"));
    }
}

#[test]
fn workers_that_flush_give_the_same_results() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().expect("threads");
    macro_rules! every {
        ($($name:ident: $operator:ident,)+) => {
            $( check_workers::<spec_core::ops::$operator>(&pool); )+
        };
    }
    spec_core::for_each_operator!(every);
}

fn check_caller<O: Subject>()
where
    Cpu: Supports<O>,
{
    for vector in golden::vectors::<O>(&Golden::Embedded).expect("vectors") {
        let results = std::thread::spawn({
            let case = vector.case.clone();
            move || {
                let mut ready = ready(&case);
                flush_subnormals();
                let before = environment();
                ready.enqueue(Stream::default()).expect("a call");
                assert_eq!(environment() & FLUSHING, before & FLUSHING, "as the caller had it");
                ready.results(&case).expect("results")
            }
        });
        let found = vector.difference(&results.join().expect("a thread"));
        assert!(found.is_none(), "{} {}: {}", O::NAME, vector.name, found.expect("a difference"));
    }
}

#[test]
fn a_caller_that_flushes_gets_the_same_results_and_its_environment_back() {
    macro_rules! every {
        ($($name:ident: $operator:ident,)+) => {
            $( check_caller::<spec_core::ops::$operator>(); )+
        };
    }
    spec_core::for_each_operator!(every);
}
