//! An engine may overwrite logits while a call of `sample_logits` reads the logits. The call then
//! returns some token of the row, and the call ends.

mod common;

use std::time::Duration;

use common::graph::Foreign;
use common::{Array, Ready, cuda};
use spec_conformance::Rng;
use spec_core::ops::{SampleLogits, sample_logits};
use spec_core::{DType, Place, TensorDesc};

/// The number of rows: so many that the kernel gives a row to one block or two, and not to more.
const ROWS: usize = 256;
/// The length of a row. Each warp of a block searches 1/16 of the block's logits for the last logit
/// that top-k keeps. The logits that one warp searches must not fit into the first-level cache:
/// otherwise the kernel's second reading of the logits would return the old values from that cache.
const VOCAB: usize = 1 << 20;
/// The number of logits at the end of a row that have the value `EQUAL`.
const EQUALS: usize = VOCAB / 16;
/// The number of logits at the end of a row that the second stream overwrites. One thread of the
/// kernel, or two neighbouring threads, read all of these logits.
const CHANGED: usize = 64;
/// The number of logits of value `EQUAL` that top-k drops. `DROPPED` is less than `CHANGED`, so the
/// last logit that top-k keeps is one of the logits that the second stream overwrites.
const DROPPED: usize = 6;
/// The value of a row's first logit, which is the largest.
const LIKELIEST: f32 = 2.0;
/// The value of the last `EQUALS` logits of a row, of which top-k keeps some and drops the others.
const EQUAL: f32 = 1.0;
/// The value of all other logits of a row, which top-k drops.
const OTHER: f32 = 0.5;

/// The number of times that one replay of the second stream's graph overwrites the logits.
const STORES: usize = 2000;
/// The number of times that the test replays the graph of the call.
const REPLAYS: usize = 100;
/// The time after which the test takes a call for one that never ends. A call that ends needs far
/// less.
const LIMIT: Duration = Duration::from_secs(5);

/// Top-k keeps only some of a row's equal logits, so the kernel first counts the equal logits and
/// then searches the row for the last equal logit that top-k keeps. A second stream overwrites that
/// logit between the count and the search, so the search cannot find the logit. The call must end
/// all the same.
#[test]
fn sample_logits_ends_while_logits_change() {
    let Some(cuda) = cuda() else { return };
    let [calls, stores] = [Foreign::new(&cuda), Foreign::new(&cuda)];
    let operator = SampleLogits::new();
    let mut tensors = operator.tensors(ROWS, VOCAB);
    tensors.top_k = Some(TensorDesc::new(DType::I32, [ROWS]));
    let mut ready = Ready::new(&cuda, &operator, &tensors).runs(&["sample_logits_f32"]);
    let mut row = vec![OTHER; VOCAB];
    row[0] = LIKELIEST;
    row[VOCAB - EQUALS..].fill(EQUAL);
    let logits = Array::from(&cuda, &row.repeat(ROWS));
    let positions = Array::from(&cuda, &[0i64; ROWS]);
    let temperature = Array::from(&cuda, &[1f32; ROWS]);
    let seeds = Array::from(&cuda, &[1u64; ROWS]);
    let top_k = Array::from(&cuda, &[(1 + EQUALS - DROPPED) as i32; ROWS]);
    let mut tokens = Array::<i32>::new(&cuda, ROWS);
    let call = calls.capture(|stream| {
        let buffers = sample_logits::Buffers::new(
            logits.view(),
            positions.view(),
            temperature.view(),
            seeds.view(),
            tokens.view_mut(),
        )
        .top_k(top_k.view());
        ready.run(buffers, stream);
    });
    let Place::Address { address, .. } = logits.view().place() else {
        panic!("CUDA memory has an address")
    };
    let last = address + ((VOCAB - CHANGED) * size_of::<f32>()) as u64;
    let pitch = VOCAB * size_of::<f32>();
    let mut random = Rng::new(1, "");
    let changes = stores.capture(|_| {
        let mut left = 0;
        let mut value = OTHER;
        for _ in 0..STORES {
            // Several stores in a row write the same value, so that the value lasts long enough for
            // the kernel to count the equal logits before the next value replaces some of them.
            if left == 0 {
                left = 1 + random.below(32);
                value = if value == OTHER { EQUAL } else { OTHER };
            }
            left -= 1;
            // SAFETY: all words that the store writes lie in `logits`, and freeing `logits` waits for
            // the store.
            unsafe { stores.overwrite(last, pitch, value.to_bits(), CHANGED, ROWS) };
        }
    });
    for replay in 0..REPLAYS {
        if stores.is_idle() {
            changes.launch();
        }
        call.launch();
        if !calls.ends_within(LIMIT) {
            // A panic would unwind and free the memory that the call uses, and freeing that memory
            // waits for the call, which does not end. So the test aborts the process.
            eprintln!("replay {replay} has not ended after {LIMIT:?}");
            std::process::abort();
        }
        let in_row = |token: &i32| (0..VOCAB as i32).contains(token);
        assert!(tokens.get().iter().all(in_row), "replay {replay}: a token outside of the row");
    }
    stores.synchronize();
}
