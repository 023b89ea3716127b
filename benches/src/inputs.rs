//! Random inputs, made by all threads in parallel, and the same in every run.

use rayon::prelude::*;

use spec_conformance::Rng;

/// Elements that a thread makes at a time. Each such part has a seed of its own.
const PART: usize = 1 << 16;

/// The text that `spec decode` ships with.
const TEXT: &str = include_str!("../../texts/alice.txt");

/// A vector of `n` elements, each drawn by `draw`.
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

/// A seed made of the numbers of a shape, so that each shape has another seed.
pub(crate) fn seed(numbers: &[usize]) -> u64 {
    // FNV-1a over the numbers.
    numbers.iter().fold(0xCBF2_9CE4_8422_2325, |hash, n| {
        (hash ^ *n as u64).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The tokens of a real text, made by the tokenizer cl100k.
///
/// # Errors
/// A sentence, if the tokenizer does not load.
pub(crate) fn text() -> Result<Vec<u32>, String> {
    let bpe = tiktoken_rs::cl100k_base()
        .map_err(|error| format!("the tokenizer does not load: {error}"))?;
    Ok(bpe.encode_ordinary(TEXT))
}

/// `rows` windows of `len` tokens each, which start at random places of `tokens`. If
/// `tokens` has fewer than `len` tokens, the tokens are repeated.
pub(crate) fn windows(rng: &mut Rng, tokens: &[u32], rows: usize, len: usize) -> Vec<u32> {
    let starts = tokens.len().saturating_sub(len) + 1;
    (0..rows)
        .flat_map(|_| tokens.iter().copied().cycle().skip(rng.below(starts)).take(len))
        .collect()
}
