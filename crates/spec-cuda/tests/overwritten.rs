//! An engine that overwrites logits while a call reads them gets some token; the call still ends.

mod common;

use std::time::Duration;

use common::graph::Foreign;
use common::random::Random;
use common::{Array, Ready, cuda};
use spec_core::ops::{SampleLogits, sample_logits};
use spec_core::{DType, Place, TensorDesc};

/// So many rows that one block, or two, have each of them.
const ROWS: usize = 256;
/// The kernel looks for the last logit that stays in the part of a single warp, 1/16 of the logits of
/// a block. That part must be more than the first-level cache holds, so that the kernel reads the
/// new values when it reads the logits again.
const VOCAB: usize = 1 << 20;
/// How many logits, the last of a row, are equal.
const EQUALS: usize = VOCAB / 16;
/// How many logits, the last of a row, are overwritten: the part of a single thread, or half of it.
const CHANGED: usize = 64;
/// How many of the equal logits top-k drops: fewer than are overwritten, so that the last logit that
/// stays is one of those.
const DROPPED: usize = 6;
/// The first logit of a row, the equal ones, and the others.
const LIKELIEST: f32 = 2.0;
const EQUAL: f32 = 1.0;
const OTHER: f32 = 0.5;

const STORES: usize = 2000;
const REPLAYS: usize = 100;
/// A call takes a few milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// Top-k keeps some of the equal logits of a row, so the kernel counts the equal logits and then looks
/// for the last one that stays. Another stream overwrites that logit meanwhile, so the kernel looks
/// for a logit that is no longer there.
#[test]
fn sample_logits_ends_while_logits_change() {
    let Some(cuda) = cuda() else { return };
    let [calls, stores] = [Foreign::new(&cuda), Foreign::new(&cuda)];
    let operator = SampleLogits::new();
    let mut tensors = operator.tensors(ROWS, VOCAB);
    tensors.top_k = Some(TensorDesc::new(DType::I32, [ROWS]));
    let mut ready = Ready::new(&cuda, &operator, &tensors);
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
    let mut random = Random(1);
    let changes = stores.capture(|_| {
        let mut left = 0;
        let mut value = OTHER;
        for _ in 0..STORES {
            // A value stays for some stores, because the kernel must have counted the equal logits
            // before one of them changes.
            if left == 0 {
                left = 1 + random.below(32);
                value = if value == OTHER { EQUAL } else { OTHER };
            }
            left -= 1;
            // SAFETY: the words lie in `logits`, which outlives the stores.
            unsafe { stores.overwrite(last, pitch, value.to_bits(), CHANGED, ROWS) };
        }
    });
    for replay in 0..REPLAYS {
        if stores.is_idle() {
            changes.launch();
        }
        call.launch();
        if !calls.ends_within(LIMIT) {
            // Unwinding would wait for the call, because it frees memory that the call uses.
            eprintln!("replay {replay} has not ended after {LIMIT:?}");
            std::process::abort();
        }
        let in_row = |token: &i32| (0..VOCAB as i32).contains(token);
        assert!(tokens.get().iter().all(in_row), "replay {replay}: a token outside of the row");
    }
    stores.synchronize();
}
