//! Random inputs, made on every thread, the same in every run.

use rayon::prelude::*;

use spec_conformance::Rng;

/// Elements that one thread makes at a time, from a seed of their own.
const PART: usize = 1 << 16;

/// The text that `spec decode` ships with.
const TEXT: &str = include_str!("../../texts/alice.txt");

/// `n` elements, each drawn by `draw`.
pub(crate) fn random<T: Copy + Default + Send>(
    seed: u64,
    n: usize,
    draw: impl Fn(&mut Rng) -> T + Sync,
) -> Vec<T> {
    let mut all = vec![T::default(); n];
    all.par_chunks_mut(PART).enumerate().for_each(|(part, elements)| {
        let mut rng = Rng::new(seed.wrapping_add(part as u64), "bench");
        elements.iter_mut().for_each(|element| *element = draw(&mut rng));
    });
    all
}

/// A seed that is another for every shape.
pub(crate) fn seed(numbers: &[usize]) -> u64 {
    // FNV-1a over the numbers.
    numbers.iter().fold(0xCBF2_9CE4_8422_2325, |hash, n| {
        (hash ^ *n as u64).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The tokens of a real text, as cl100k has them.
///
/// # Errors
/// A sentence, where the tokenizer does not load.
pub(crate) fn text() -> Result<Vec<u32>, String> {
    let bpe = tiktoken_rs::cl100k_base()
        .map_err(|error| format!("the tokenizer does not load: {error}"))?;
    Ok(bpe.encode_ordinary(TEXT))
}

/// `rows` pieces of `tokens`, each `len` long and from anywhere in it; a text
/// that is shorter is repeated.
pub(crate) fn windows(rng: &mut Rng, tokens: &[u32], rows: usize, len: usize) -> Vec<u32> {
    let starts = tokens.len().saturating_sub(len) + 1;
    (0..rows)
        .flat_map(|_| tokens.iter().copied().cycle().skip(rng.below(starts)).take(len))
        .collect()
}
