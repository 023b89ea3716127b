//! How fast this machine copies memory, with every thread.

use rayon::prelude::*;
use spec_core::{Result, Stream, timing};

/// Bytes of each copy: more than the caches of most machines hold.
const BYTES: usize = 256 << 20;
const SAMPLES: usize = 7;

/// Bytes per second of a copy from one buffer to another: bytes read plus bytes written.
pub(crate) fn copy_rate() -> Result<f64> {
    let words = BYTES / size_of::<u64>();
    let from: Vec<u64> = (0..words as u64).into_par_iter().collect();
    let mut to = vec![0u64; words];
    let part = words.div_ceil(rayon::current_num_threads());
    let mut copy = |_: Stream<'_>| {
        to.par_chunks_mut(part).zip(from.par_chunks(part)).for_each(|(to, from)| {
            to.copy_from_slice(from);
        });
        Ok(())
    };
    let timing = timing::by_clock(&|| Ok(()), SAMPLES, 1, &mut copy)?;
    std::hint::black_box(&to);
    Ok(2.0 * BYTES as f64 / timing.median())
}
