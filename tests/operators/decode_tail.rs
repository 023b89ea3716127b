//! The tail of a decode step on every device, as a chain of operators whose data stay on the
//! device. The texts must equal those of decoding without drafts, one token at a time, and must
//! end at the right token.
//!
//! `SPEC_RUNS` is the number of pairs of batches to decode; without it, 200 on a CPU or a GPU, and
//! 10 on a software renderer.

#[path = "../common/decode_tail.rs"]
mod tail;

use spec::{Handle, Result, Stream};
use spec_conformance::Rng;
use spec_conformance::plain::Plain;
use spec_core::ops::append_tokens::{AT_LENGTH, STOPPED};

use self::tail::trees::TreeTail;
use self::tail::{DecodeTail, Request, Tail};

/// Decodes random batches with tails that `make` makes, on every device: `software` runs on a software
/// renderer, `count` elsewhere.
fn leave_the_texts<T: DecodeTail>(
    name: &str,
    (software, count): (u64, u64),
    make: impl Fn(&Handle, &mut Rng) -> Result<T>,
) -> Result<()> {
    let asked = std::env::var("SPEC_RUNS").ok().map(|runs| runs.parse().expect("a number"));
    for handle in crate::common::handles() {
        let count = asked.unwrap_or(if handle.info().software { software } else { count });
        let (mut runs, mut tokens) = (0, 0);
        for run in 0..count {
            let mut rng = Rng::new(run, name);
            let mut tail = make(&handle, &mut rng)?;
            let place = format!("run {run} on {}", handle.device());
            // The second batch finds the data that the first batch left in memory.
            for _ in 0..2 {
                let step = |tail: &mut T| tail.enqueue(Stream::default);
                let outcome = tail.decode_random(&mut rng, &place, step)?;
                runs += outcome.runs;
                tokens += outcome.tokens;
            }
        }
        println!("{}: {} batches, {tokens} tokens in {runs} runs", handle.device(), 2 * count);
        assert!(tokens * 5 > runs * 6, "drafts are too bad to test anything: {tokens} in {runs}");
    }
    Ok(())
}

#[test]
fn drafts_leave_the_texts() -> Result<()> {
    leave_the_texts("decode_tail", (10, 200), |handle, rng| {
        let (batch, max_draft) = (rng.between(1, 12), rng.pick(&[1, 4, 7]));
        Tail::new(handle, batch, max_draft, rng.pick(&[1, 12, 60, 60]))
    })
}

/// Trees of drafts that share a budget, in a fixed number of rows, leave the texts too.
#[test]
fn trees_within_a_budget_leave_the_texts() -> Result<()> {
    leave_the_texts("tree_tail", (6, 150), |handle, rng| {
        let (batch, max_draft) = (rng.between(1, 12), rng.pick(&[1, 6, 20]));
        let budget = rng.pick(&[0, batch, 4 * batch, 4 * batch, 20 * batch]);
        TreeTail::new(handle, (batch, max_draft), budget, rng.pick(&[6, 60, 60]))
    })
}

/// On the plain loops, the chain gives the texts of decoding without drafts, and many of its
/// drafts are accepted, so that the test covers them.
#[test]
fn drafts_save_runs_and_leave_the_texts() {
    const MAX_LEN: usize = 40;
    let mut rng = Rng::new(1, "decode_tail::tests");
    let requests: Vec<Request> = (0..64).map(|_| Request::random(&mut rng, MAX_LEN)).collect();
    let mut tail = Tail::new(&Plain::default(), requests.len(), 4, MAX_LEN).unwrap();
    let outcome = tail.decode(&requests, |tail| tail.enqueue(Stream::default)).unwrap();
    for (request, ended) in requests.iter().zip(&outcome.ended) {
        assert_eq!(*ended, request.alone(MAX_LEN).unwrap(), "{request:?}");
    }
    for reason in [STOPPED, AT_LENGTH] {
        assert!(outcome.ended.iter().any(|ended| ended.finished == reason), "{reason}");
    }
    assert_eq!(outcome.flags, 0);
    assert!(outcome.tokens * 4 > outcome.runs * 5, "{outcome:?}");
}
