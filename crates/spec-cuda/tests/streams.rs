//! Every operator in a graph, and on two streams at once.

#[path = "common/cases.rs"]
mod cases;
mod common;

use cases::Call;
use common::cuda;
use common::graph::Foreign;
use spec_core::{Backend, Stream};
use spec_cuda::Cuda;

/// The outputs of a plain call on the handle's own stream for these inputs.
fn expected(cuda: &Cuda, case: &mut dyn Call, seed: u64) -> Vec<u8> {
    case.fill(seed);
    case.run(Stream::default());
    cuda.synchronize().expect("the call");
    case.outputs()
}

#[test]
fn a_captured_call_follows_its_inputs() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for (name, mut case) in cases::all(&cuda) {
        let want: Vec<_> = (1..=4).map(|seed| expected(&cuda, &mut *case, seed)).collect();
        assert!(want.windows(2).all(|w| w[0] != w[1]), "{name}: the inputs change nothing");
        // The capture happens with other inputs in memory; nothing runs yet.
        case.fill(99);
        let graph = foreign.capture(|stream| case.run(stream));
        for round in 0..20 {
            let seed = round % 4;
            case.fill(seed + 1);
            cuda.synchronize().expect("inputs");
            graph.replay();
            assert!(case.outputs() == want[seed as usize], "{name}: replay {round}");
        }
    }
}

#[test]
fn a_first_call_can_be_captured() {
    // A new handle, whose kernels have never run.
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for (name, mut case) in cases::all(&cuda) {
        case.fill(5);
        cuda.synchronize().expect("inputs");
        foreign.capture(|stream| case.run(stream)).replay();
        let captured = case.outputs();
        assert!(captured == expected(&cuda, &mut *case, 5), "{name}");
    }
}

#[test]
fn dependent_launches_change_nothing() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for (name, mut case) in cases::all(&cuda) {
        case.fill(1);
        for _ in 0..8 {
            case.run(Stream::default());
        }
        cuda.synchronize().expect("the calls");
        let want = case.outputs();
        case.fill(2);
        cuda.synchronize().expect("inputs");
        let graph = foreign.capture(|_| {
            for _ in 0..8 {
                case.run(foreign.stream().dependent_launch());
            }
        });
        for _ in 0..20 {
            case.fill(1);
            cuda.synchronize().expect("inputs");
            graph.replay();
            assert!(case.outputs() == want, "{name}");
        }
    }
}

#[test]
fn two_handles_work_on_two_streams_at_once() {
    let Some(first) = cuda() else { return };
    let second = Cuda::open(0).expect("the same device again");
    assert_ne!(first.raw_stream(), second.raw_stream());
    let work = |cuda: Cuda, seeds: std::ops::Range<u64>| {
        move || {
            let mut cases = cases::all(&cuda);
            let mut results = Vec::new();
            for seed in seeds {
                for (_, case) in &mut cases {
                    case.fill(seed);
                    // Several calls in the queue, so that the streams overlap.
                    let enough = if seed % 2 == 0 { 1 } else { 2 };
                    for _ in 0..enough {
                        case.run(Stream::default());
                    }
                }
                cuda.synchronize().expect("the calls");
                results
                    .extend(cases.iter().map(|(name, case)| (name.clone(), seed, case.outputs())));
            }
            results
        }
    };
    // In-place operators run twice would see their own output, so compare with
    // the same sequence on one handle alone.
    let alone = work(first.clone(), 0..12)();
    std::thread::scope(|scope| {
        let workers = [first, second].map(|cuda| scope.spawn(work(cuda, 0..12)));
        for worker in workers {
            let together = worker.join().expect("a worker");
            for (got, want) in together.iter().zip(&alone) {
                assert!(got == want, "{} with seed {}", got.0, got.1);
            }
        }
    });
}

#[test]
fn one_descriptor_serves_two_streams_at_once() {
    let Some(cuda) = cuda() else { return };
    let streams = [Foreign::new(&cuda), Foreign::new(&cuda)];
    for (name, mut a) in cases::all(&cuda) {
        let mut b = a.twin(&cuda);
        let want = [expected(&cuda, &mut *a, 7), expected(&cuda, &mut *b, 8)];
        for _ in 0..20 {
            a.fill(7);
            b.fill(8);
            cuda.synchronize().expect("inputs");
            a.run(streams[0].stream());
            b.run(streams[1].stream());
            streams.iter().for_each(Foreign::synchronize);
            assert!(a.outputs() == want[0] && b.outputs() == want[1], "{name}");
        }
    }
}
