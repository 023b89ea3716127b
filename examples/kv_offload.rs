//! Sparse attention with KV offload: `cargo run --example kv_offload -- [DEVICE] [STEPS]`.
//!
//! The KV cache of a text lies in host memory, and the attention has a buffer of few slots. Each step
//! runs a chain of three operators and two steps of the caller:
//!
//! ```text
//! scores ─> indexer_topk ─> deduplicate_topk ─> hot_slots ─> copy ─> attention over the slots
//!           the best        of all rows,        slots, and    host to slots
//!           positions       each once           a copy list
//! ```
//!
//! The text is synthetic: the scores of positions rise and fall slowly, so that the set of the best
//! positions drifts. The output of the attention is compared, bit by bit, with the attention over the
//! whole cache. The program prints which share of the wanted entries was in a slot, and the bytes
//! that a step fetched, beside a list in the order of last use.
//!
//! Both sides of the copy are host memory here, so that the program runs on every device.
//! `python/examples/kv_offload.py` copies from pinned host memory to a GPU.

use std::collections::VecDeque;

use spec::ops::{DeduplicateTopk, HotSlots, IndexerTopk};
use spec::ops::{deduplicate_topk, hot_slots, indexer_topk};
use spec::{Buffer, DType, Handle, Ready, Result, Stream, TensorDesc};

/// Rows of a step: the last token and one draft.
const ROWS: usize = 2;
/// Positions that a row attends to.
const K: usize = 48;
/// Slots of the buffer, and slots behind them for the newest tokens, which the model writes itself.
const SLOTS: usize = 192;
const TAIL: usize = 2;
/// Tokens before the first step, and the longest text.
const PROMPT: usize = 1000;
const MAX: usize = 2000;
/// Numbers of an entry: keys, then values.
const WIDTH: usize = 32;

type Entry = [f32; 2 * WIDTH];

/// A hash of some numbers as a fraction.
fn fraction(numbers: [u64; 3]) -> f32 {
    let mut z = 0_u64;
    for number in numbers {
        z = (z ^ number).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    }
    (z >> 40) as f32 / (1 << 24) as f32
}

/// Stands for the model: what it stores of a position, and what it asks for.
fn entry(position: usize) -> Entry {
    std::array::from_fn(|at| fraction([1, position as u64, at as u64]) - 0.5)
}

fn query(step: usize, row: usize) -> [f32; WIDTH] {
    std::array::from_fn(|at| 4.0 * fraction([2 + row as u64, step as u64, at as u64]) - 2.0)
}

/// The scores of the first `length` positions. Each position has its own slow rhythm; the newest
/// tokens always score best.
fn scores(step: usize, row: usize, length: usize) -> Vec<f32> {
    let score = |position: usize| {
        let speed = (1.0 + fraction([8, position as u64, 0])) / 800.0;
        let phase = fraction([9, position as u64, 0]) + (step + 3 * row) as f32 * speed;
        let rhythm = 1.0 - (2.0 * (phase - phase.floor()) - 1.0).abs();
        if position + TAIL >= length { 2.0 } else { rhythm }
    };
    (0..length).map(score).chain(std::iter::repeat(0.0)).take(MAX).collect()
}

/// The attention of one query over some entries, which are added in their order.
fn attend(query: &[f32; WIDTH], entries: impl Iterator<Item = Entry> + Clone) -> [f32; WIDTH] {
    let dot = |entry: &Entry| query.iter().zip(entry).map(|(a, b)| a * b).sum::<f32>();
    let largest = entries.clone().map(|entry| dot(&entry)).fold(f32::NEG_INFINITY, f32::max);
    let (mut sum, mut output) = (0.0, [0.0; WIDTH]);
    for entry in entries {
        let weight = (dot(&entry) - largest).exp();
        sum += weight;
        for (output, value) in output.iter_mut().zip(&entry[WIDTH..]) {
            *output += weight * value;
        }
    }
    output.map(|output| output / sum)
}

/// The operators of a step, and the memory of their arguments. A captured CUDA graph could hold all
/// of them, as the host decides nothing between them.
struct Chain {
    select: Ready<IndexerTopk>,
    merge: Ready<DeduplicateTopk>,
    assign: Ready<HotSlots>,
    scores: Buffer<f32>,
    lengths: Buffer<i32>,
    indices: Buffer<i32>,
    unique: Buffer<i32>,
    inverse: Buffer<i32>,
    resident: Buffer<i32>,
    used: Buffer<i32>,
    step: Buffer<i32>,
    reset: Buffer<i32>,
    tail_starts: Buffer<i32>,
    slots: Buffer<i32>,
    fetch_positions: Buffer<i32>,
    fetch_slots: Buffer<i32>,
    fetches: Buffer<i32>,
    flags: Buffer<u32>,
}

/// What a step decided.
struct Step {
    /// The positions of each row, ascending.
    indices: Vec<i32>,
    /// The positions of all rows, ascending, each once, then -1; and their slots.
    unique: Vec<i32>,
    slots: Vec<i32>,
    /// Where each of `indices` stands in `unique`.
    inverse: Vec<i32>,
    /// What to copy: position and slot.
    copies: Vec<(usize, usize)>,
}

impl Chain {
    fn new(handle: &Handle) -> Result<Self> {
        let wanted = ROWS * K;
        let select = IndexerTopk::new(K);
        let lengths = TensorDesc::new(DType::I32, [ROWS]);
        let tensors = select.tensors(DType::F32, ROWS, MAX).lengths(lengths);
        let select = Ready::new(handle, &select, &tensors)?;
        let merge = DeduplicateTopk::new().mtp_step(ROWS);
        let inverse = TensorDesc::new(DType::I32, [ROWS, K]);
        let merge = Ready::new(handle, &merge, &merge.tensors(1, K).inverse(inverse))?;
        let assign = HotSlots::new().tail(TAIL);
        let one = TensorDesc::new(DType::I32, [1]);
        let tensors = assign.tensors(1, wanted, SLOTS).tail_starts(one).reset(one);
        let tensors = tensors.flags(TensorDesc::new(DType::U32, [1]));
        let assign = Ready::new(handle, &assign, &tensors)?;
        Ok(Chain {
            select,
            merge,
            assign,
            scores: handle.allocate(ROWS * MAX)?,
            lengths: handle.allocate(ROWS)?,
            indices: handle.allocate(wanted)?,
            unique: handle.allocate(wanted)?,
            inverse: handle.allocate(wanted)?,
            resident: handle.upload(&[-1; SLOTS])?,
            used: handle.upload(&[0; SLOTS])?,
            step: handle.allocate(1)?,
            reset: handle.allocate(1)?,
            tail_starts: handle.allocate(1)?,
            slots: handle.allocate(wanted)?,
            fetch_positions: handle.allocate(wanted)?,
            fetch_slots: handle.allocate(wanted)?,
            fetches: handle.allocate(1)?,
            flags: handle.upload(&[0])?,
        })
    }

    /// One step over the first `length` positions. With `reset`, no slot counts as filled: every
    /// wanted entry is fetched.
    fn run(&mut self, step: usize, length: usize, reset: bool) -> Result<Step> {
        let all = (0..ROWS).flat_map(|row| scores(step, row, length)).collect::<Vec<_>>();
        self.scores.write(&all)?;
        self.lengths.write(&[length as i32; ROWS])?;
        // The length of the text is a clock that never stands still.
        self.step.write(&[length as i32])?;
        self.reset.write(&[i32::from(reset)])?;
        self.tail_starts.write(&[(length - TAIL) as i32])?;
        let buffers = indexer_topk::Buffers::new(&self.scores, &mut self.indices);
        self.select.call(buffers.lengths(&self.lengths))?;
        // On a GPU, an operator may start while the operator before it ends.
        let overlapping = || Stream::default().dependent_launch();
        let buffers = deduplicate_topk::Buffers::new(&self.indices, &mut self.unique);
        self.merge.call_on(buffers.inverse(&mut self.inverse), overlapping())?;
        let buffers = hot_slots::Buffers::new(hot_slots::Required {
            wanted: (&self.unique).into(),
            resident: (&mut self.resident).into(),
            used: (&mut self.used).into(),
            step: (&self.step).into(),
            slots: (&mut self.slots).into(),
            fetch_positions: (&mut self.fetch_positions).into(),
            fetch_slots: (&mut self.fetch_slots).into(),
            fetches: (&mut self.fetches).into(),
        });
        let buffers = buffers.tail_starts(&self.tail_starts).reset(&self.reset);
        self.assign.call_on(buffers.flags(&mut self.flags), overlapping())?;
        assert_eq!(self.flags.to_vec()?, [0], "there are slots for all that a step wants");
        let count = self.fetches.to_vec()?[0] as usize;
        let (from, to) = (self.fetch_positions.to_vec()?, self.fetch_slots.to_vec()?);
        let copies = from.into_iter().zip(to).take(count);
        Ok(Step {
            indices: self.indices.to_vec()?,
            unique: self.unique.to_vec()?,
            slots: self.slots.to_vec()?,
            inverse: self.inverse.to_vec()?,
            copies: copies.map(|(from, to)| (from as usize, to as usize)).collect(),
        })
    }
}

/// The KV cache: all entries on the host, and the slots.
struct Cache {
    host: Vec<Entry>,
    slots: Vec<Entry>,
}

impl Cache {
    /// What the model does with a step's newest tokens: it writes them to the tail slots, and to the
    /// host for the time when they have left the tail.
    fn write_newest(&mut self, length: usize) {
        while self.host.len() < length {
            self.host.push(entry(self.host.len()));
        }
        self.slots[SLOTS..].copy_from_slice(&self.host[length - TAIL..]);
    }

    fn copy(&mut self, copies: &[(usize, usize)]) {
        for &(from, to) in copies {
            self.slots[to] = self.host[from];
        }
    }

    /// Whether the attention over the slots is the attention over the whole cache, to the bit.
    fn is_same(&self, step: usize, of: &Step) -> bool {
        (0..ROWS).all(|row| {
            let columns = (row * K..(row + 1) * K).filter(|&column| of.indices[column] >= 0);
            let query = query(step, row);
            let whole = columns.clone().map(|column| self.host[of.indices[column] as usize]);
            let slot = |column: usize| of.slots[of.inverse[column] as usize] as usize;
            let hot = columns.map(|column| self.slots[slot(column)]);
            attend(&query, whole).map(f32::to_bits) == attend(&query, hot).map(f32::to_bits)
        })
    }
}

/// A list in the order of last use, as engines keep it, to compare with.
#[derive(Default)]
struct ListOrder(VecDeque<i32>);

impl ListOrder {
    /// Fetches what the list lacks of `wanted`; returns how many entries that is.
    fn fetch(&mut self, wanted: &[i32]) -> usize {
        let before = self.0.len();
        self.0.retain(|entry| !wanted.contains(entry));
        let misses = wanted.len() - (before - self.0.len());
        self.0.extend(wanted);
        let excess = self.0.len().saturating_sub(SLOTS);
        self.0.drain(..excess);
        misses
    }
}

/// What a run did.
#[derive(Debug, Default)]
struct Totals {
    wanted: usize,
    fetches: usize,
    list_fetches: usize,
    wrong: usize,
}

/// Runs some steps. The copy of step `fails_at` fails: it leaves garbage in the slots that it should
/// fill, and the step runs again, with `reset` if `recovers`.
fn run(handle: &Handle, steps: usize, fails_at: Option<usize>, recovers: bool) -> Result<Totals> {
    let mut chain = Chain::new(handle)?;
    let mut cache = Cache { host: Vec::new(), slots: vec![[0.0; 2 * WIDTH]; SLOTS + TAIL] };
    let (mut list, mut totals) = (ListOrder::default(), Totals::default());
    for step in 0..steps {
        let length = PROMPT + step;
        cache.write_newest(length);
        let mut decided = chain.run(step, length, false)?;
        if fails_at == Some(step) {
            for &(_, slot) in &decided.copies {
                cache.slots[slot] = [f32::NAN; 2 * WIDTH];
            }
            decided = chain.run(step, length, recovers)?;
        }
        cache.copy(&decided.copies);
        totals.wrong += usize::from(!cache.is_same(step, &decided));
        let outside = (length - TAIL) as i32;
        let in_slots = decided.unique.iter().copied().filter(|&one| (0..outside).contains(&one));
        let in_slots: Vec<i32> = in_slots.collect();
        totals.wanted += in_slots.len();
        totals.fetches += decided.copies.len();
        totals.list_fetches += list.fetch(&in_slots);
    }
    Ok(totals)
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let handle: Handle = words.next().unwrap_or_else(|| "auto".to_owned()).parse()?;
    let steps = words.next().and_then(|word| word.parse().ok()).unwrap_or(500);
    let steps = std::cmp::min(steps, MAX - PROMPT);
    let totals = run(&handle, steps, None, false)?;
    assert_eq!(totals.wrong, 0, "the attention over the slots is another");
    println!("{steps} steps on {}: the same attention as over the whole cache", handle.device());
    for (name, fetches) in [("hot_slots", totals.fetches), ("list-order LRU", totals.list_fetches)]
    {
        let hits = 100.0 * (1.0 - fetches as f64 / totals.wanted.max(1) as f64);
        let bytes = fetches * size_of::<Entry>() / steps.max(1);
        println!("{name}: {hits:.2} % hits, {bytes} bytes fetched a step");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_over_slots_is_that_over_the_whole_cache() {
        let totals = run(&Handle::cpu().unwrap(), 500, None, false).unwrap();
        assert_eq!(totals.wrong, 0);
        // The set drifts: some entries are fetched, most are not.
        assert!(totals.fetches > 500 && totals.fetches * 5 < totals.wanted, "{totals:?}");
        let ratio = totals.fetches as f64 / totals.list_fetches as f64;
        assert!((0.98..1.02).contains(&ratio), "{totals:?}");
    }

    /// A failed copy leaves slots that do not hold what the state says. The same step with `reset`
    /// fetches everything again; without `reset` it fetches nothing, and the attention is wrong.
    #[test]
    fn reset_recovers_from_a_failed_copy() {
        let cpu = Handle::cpu().unwrap();
        assert_eq!(run(&cpu, 200, Some(0), true).unwrap().wrong, 0);
        assert!(run(&cpu, 200, Some(0), false).unwrap().wrong > 0);
    }
}
