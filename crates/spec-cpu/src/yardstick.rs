//! How fast this machine copies memory, with every thread.

use rayon::prelude::*;
use spec_core::{Measure, Result, Stream, Yardstick};

use crate::Cpu;

/// Bytes copied at once: more than the caches of most machines.
const BYTES: usize = 256 << 20;
const SAMPLES: usize = 7;

/// Copies one buffer to another. A call that does nothing is a
/// function call here, so there is no overhead to report.
pub(crate) fn measure(cpu: &Cpu) -> Result<Yardstick> {
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
    // SAFETY: host memory that outlives the timing.
    let timing = unsafe { cpu.time(SAMPLES, 1, &mut copy)? };
    std::hint::black_box(&to);
    Ok(Yardstick { copy: Some(2.0 * BYTES as f64 / timing.median()), overhead: None })
}
