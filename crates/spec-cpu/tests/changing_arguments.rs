//! Tests calls during which another thread overwrites the arguments. The results may then be
//! anything; the call must return without an error or a panic, and no byte outside the arguments
//! and the workspace may change.
//!
//! Each argument and the workspace lie between two fences of known bytes, which are compared
//! after every call. A writer thread copies other contents over random parts of random
//! arguments (inputs, outputs, in-place ones) until the last call has returned.
//!
//! The environment variable `SPEC_CHANGING_SECONDS` sets for how long each case is called; the
//! default is a tenth of a second.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spec_conformance::{Argument, Case, Data, Layout, Rng, Subject, Tensor};
use spec_core::ops::prompt_lookup::Occurrence;
use spec_core::ops::{DeduplicateTopk, IndexerTopk, MoeAlign, PromptLookup, SampleLogits, Unique};
use spec_core::{Address, DType, Descriptor, Source, Stream, Supports, TensorDesc};
use spec_cpu::Cpu;

/// Unused bytes before and after each buffer. A loop that leaves its buffer changes the nearest
/// of these bytes first.
const FENCE: usize = 4096;
const POISON: u8 = 0xC7;
/// The number of threads of the operator: more than one, so that work is split even on a machine
/// with one core.
const THREADS: usize = 3;
/// The number of cases of an operator. They are the largest of many random cases, because the
/// arguments of a long call are overwritten more often.
const CASES: usize = 4;
const CANDIDATES: u64 = 300;

/// Memory between two fences. All accesses go through `start`.
struct Fenced {
    /// Owns the memory.
    _words: Vec<[u64; 8]>,
    start: *mut u8,
    len: usize,
}

impl Fenced {
    fn new(len: usize) -> Self {
        let words = (2 * FENCE + len).div_ceil(64);
        let mut words = vec![[u64::from_ne_bytes([POISON; 8]); 8]; words + 1];
        let first = words.as_mut_ptr().cast::<u8>();
        // Aligned to a cache line, like the backend's own memory.
        let start = first.wrapping_add(FENCE + first.align_offset(64));
        Fenced { _words: words, start, len }
    }

    fn of(bytes: &[u8]) -> Self {
        let fenced = Fenced::new(bytes.len());
        // SAFETY: `len` bytes follow `start`, and nothing else uses them yet.
        unsafe { fenced.start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        fenced
    }

    fn address(&self) -> Address {
        Address::from(self.start)
    }

    /// Whether both fences still hold their first bytes.
    fn is_whole(&self) -> bool {
        let fence = |start: *mut u8| {
            // SAFETY: `FENCE` bytes from `start` on belong to `_words`, and only a defect
            // writes to them.
            unsafe { std::slice::from_raw_parts(start, FENCE) }.iter().all(|byte| *byte == POISON)
        };
        fence(self.start.wrapping_sub(FENCE)) && fence(self.start.wrapping_add(self.len))
    }
}

/// An argument that the writer overwrites, and the contents that it copies there.
struct Target {
    name: &'static str,
    start: *mut u8,
    size: usize,
    len: usize,
    images: Vec<Vec<u8>>,
    /// How many of the images were given for this argument or are its first contents. They come
    /// first, and are copied more often.
    sensible: usize,
}

// SAFETY: only the writer thread uses a `Target`.
unsafe impl Send for Target {}

impl Target {
    fn new(buffer: &Fenced, argument: &Argument, rng: &mut Rng, others: &[&Data]) -> Self {
        let size = argument.tensor.data.dtype().size();
        let bytes = argument.tensor.data.bytes();
        let len = bytes.len() / size;
        let element = |at: usize| &bytes[at * size..][..size];
        let picked = |pick: &mut dyn FnMut(usize) -> usize| {
            (0..len).flat_map(|at| element(pick(at)).to_vec()).collect::<Vec<u8>>()
        };
        let mut images: Vec<Vec<u8>> = others.iter().map(|data| data.bytes().to_vec()).collect();
        images.push(bytes.to_vec());
        let sensible = images.len();
        images.push(picked(&mut |at| len - 1 - at));
        images.push(picked(&mut |_| rng.below(len)));
        images.push(picked(&mut |_| len / 2));
        images.push(vec![0; bytes.len()]);
        images.push(vec![0xFF; bytes.len()]);
        images.push((0..bytes.len()).map(|_| rng.next() as u8).collect());
        // Small whole numbers: indices, lengths and offsets that are often valid.
        let small = |at: usize| if at.is_multiple_of(size) { rng.next() as u8 & 15 } else { 0 };
        images.push((0..bytes.len()).map(small).collect());
        Target { name: argument.name, start: buffer.start, size, len, images, sensible }
    }

    /// Copies one of the images over all elements, or over a range of them.
    fn overwrite(&self, rng: &mut Rng) {
        let all = self.sensible == 1 || rng.chance(4);
        let image = &self.images[rng.below(if all { self.images.len() } else { self.sensible })];
        let (from, to) = match rng.below(3) {
            0 => (0, self.len),
            1 => (rng.below(self.len), self.len),
            _ => {
                let from = rng.below(self.len);
                (from, (from + 1 + rng.below(64)).min(self.len))
            }
        };
        let range = from * self.size..to * self.size;
        // SAFETY: the range is within the argument, whose memory outlives the writer. The
        // operator reads and writes the memory at the same time; this race is what the test is for.
        unsafe {
            let to = self.start.add(range.start);
            to.copy_from_nonoverlapping(image[range.clone()].as_ptr(), range.len());
        }
    }
}

/// A source that knows arguments by name.
struct Named<'a, T>(&'a [Argument], Box<dyn Fn(usize) -> T + 'a>);

impl<T> Source<T, T> for Named<'_, T> {
    fn input(&mut self, argument: &'static spec_core::Argument) -> Option<T> {
        self.0.iter().position(|own| own.name == argument.name).map(&self.1)
    }

    fn output(&mut self, argument: &'static spec_core::Argument) -> Option<T> {
        self.input(argument)
    }
}

fn patience() -> Duration {
    let asked = std::env::var("SPEC_CHANGING_SECONDS").ok();
    Duration::from_secs_f64(asked.map_or(0.1, |seconds| seconds.parse().expect("a number")))
}

/// Calls an operator on a case's arguments for a while. Meanwhile a writer overwrites the
/// arguments. `others` are further contents of the named arguments, which the writer overwrites
/// more often.
fn disturb<O: Subject>(case: &Case<O>, others: &[(&str, Vec<Data>)], seed: u64)
where
    Cpu: Supports<O>,
{
    let arguments = &case.arguments;
    let desc = |at: usize| -> TensorDesc { arguments[at].tensor.desc(Layout::PACKED) };
    let tensors = O::tensors_from(&mut Named(arguments, Box::new(desc))).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    let create = || Descriptor::create(&Cpu::open(0).unwrap(), &case.operator, &tensors).unwrap();
    let descriptor = pool.install(create);
    let buffers: Vec<Fenced> =
        arguments.iter().map(|argument| Fenced::of(argument.tensor.data.bytes())).collect();
    let workspace = Fenced::new(descriptor.workspace_size());
    let mut rng = Rng::new(seed, O::NAME);
    let mut targets = Vec::new();
    for (argument, buffer) in arguments.iter().zip(&buffers).filter(|(_, buffer)| buffer.len > 0) {
        let own = others.iter().filter(|(name, _)| *name == argument.name);
        let own: Vec<&Data> = own.flat_map(|(_, all)| all).collect();
        targets.push(Target::new(buffer, argument, &mut rng, &own));
    }
    let all: Vec<usize> = (0..targets.len()).collect();
    let is_chosen = |&at: &usize| others.iter().any(|(name, _)| *name == targets[at].name);
    let chosen: Vec<usize> = all.iter().copied().filter(is_chosen).collect();
    let stop = AtomicBool::new(false);
    let scratch = workspace.address();
    let addresses: Vec<Address> = buffers.iter().map(Fenced::address).collect();
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            while !stop.load(Ordering::Acquire) && !targets.is_empty() {
                let special = rng.below(4) > 0;
                let of = if special && !chosen.is_empty() { &chosen } else { &all };
                targets[of[rng.below(of.len())]].overwrite(&mut rng);
            }
        });
        // Dropping the guard ends the writer, also when a call panics.
        let _stopped = Stopped(stop);
        let start = Instant::now();
        while start.elapsed() < patience() {
            let call = || {
                let mut named = Named(arguments, Box::new(|at| addresses[at]));
                let named = O::addresses_from(&mut named)?;
                // SAFETY: each address is valid for the span of its descriptor, and nothing
                // overlaps. The writer thread changes the arguments on purpose.
                unsafe { descriptor.call_at(scratch, named, Stream::default()) }
            };
            pool.install(call).unwrap();
            for (argument, buffer) in arguments.iter().zip(&buffers) {
                assert!(buffer.is_whole(), "{}: a write outside of `{}`", O::NAME, argument.name);
            }
            assert!(workspace.is_whole(), "{}: a write outside of the workspace", O::NAME);
        }
    });
}

/// Tells the writer to end.
struct Stopped<'a>(&'a AtomicBool);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// [`disturb`] on the largest of many random cases.
fn disturb_random<O: Subject>()
where
    Cpu: Supports<O>,
{
    let size = |case: &Case<O>| -> usize {
        case.arguments.iter().map(|argument| argument.tensor.data.bytes().len()).sum()
    };
    let mut cases: Vec<Case<O>> =
        (0..CANDIDATES).map(|seed| O::random(&mut Rng::new(seed, O::NAME))).collect();
    cases.sort_by_key(|case| std::cmp::Reverse(size(case)));
    for (seed, case) in cases.iter().take(CASES).enumerate() {
        disturb(case, &[], seed as u64);
    }
}

mod random {
    macro_rules! tests {
        ($($module:ident: $operator:ident,)+) => {$(
            #[test]
            fn $module() {
                super::disturb_random::<spec_core::ops::$operator>();
            }
        )+};
    }
    spec_core::for_each_operator!(tests);
}

#[test]
fn deduplicate_topk() {
    // For small values the operator uses a bitmap, whose size depends on the first read.
    let values = |high: i32| (0..8 * 2048).map(|i| i * 7919 % high).collect::<Vec<i32>>();
    let case = Case::new(DeduplicateTopk::new().mtp_step(2))
        .input("indices", Tensor::matrix(values(1000), 8, 2048))
        .output("unique", DType::I32)
        .output("counts", DType::I32);
    disturb(&case, &[("indices", vec![values(1 << 30).into()])], 0);
}

#[test]
fn indexer_topk() {
    // The first read decides how many scores are gathered, fewer than a row has.
    let scores = |f: fn(usize) -> f32| (0..2 * 40_000).map(f).collect::<Vec<f32>>();
    let alike = scores(|i| if i % 16 == 0 { 1.0 } else { 0.0 });
    let others = vec![scores(|_| 1.0).into(), scores(|_| 2.0).into(), scores(|i| i as f32).into()];
    // A request is compared with the number of tables, a block with the largest slot.
    let table = Tensor::matrix((0..3 * 2500).collect::<Vec<i32>>(), 3, 2500);
    let tables = vec![vec![i32::MAX; 3 * 2500].into(), vec![-1; 3 * 2500].into()];
    let requests = vec![vec![i32::MAX, -1].into(), vec![0, 3].into()];
    let case = Case::new(IndexerTopk::new(16).block_size(16))
        .input("scores", Tensor::matrix(alike, 2, 40_000))
        .input("block_table", table)
        .input("requests", Tensor::vector(vec![2, 1]))
        .output("indices", DType::I32)
        .output("values", DType::F32)
        .output("slots", DType::I32);
    let changes = [("scores", others), ("block_table", tables), ("requests", requests)];
    disturb(&case, &changes, 0);
}

#[test]
fn moe_align() {
    // All picks go to the last expert, behind whose run there is little room.
    let (tokens, align) = (10_000, MoeAlign::new(8, 16));
    let ids = |expert: fn(i32) -> i32| (0..4 * tokens as i32).map(expert).collect::<Vec<i32>>();
    let case = Case::new(align)
        .input("topk_ids", Tensor::matrix(ids(|pick| pick % 8), tokens, 4))
        .output("sorted_ids", DType::I32)
        .output("block_experts", DType::I32)
        .output("counts", DType::I32)
        .output("offsets", DType::I32)
        .output("num_padded", DType::I32)
        .output("inverse", DType::I32);
    disturb(&case, &[("topk_ids", vec![ids(|_| 7).into(), ids(|_| 0).into()])], 0);
}

#[test]
fn prompt_lookup() {
    // In these texts a short pattern occurs and the longest one does not, so they are searched
    // twice, and drafts are copied after the second search.
    let token = |i: i64| i.wrapping_mul(7919).wrapping_mul(i) % 61;
    let lengths = |length: i32| -> Data { vec![length; 8].into() };
    for occurrence in [Occurrence::First, Occurrence::Last] {
        let operator =
            PromptLookup::new().min_ngram(1).max_ngram(8).max_draft(16).occurrence(occurrence);
        let case = Case::new(operator)
            .input(
                "tokens",
                Tensor::matrix((0..8 * 20_000).map(token).collect::<Vec<_>>(), 8, 20_000),
            )
            .input("lengths", Tensor { data: lengths(20_000), shape: vec![8] })
            .output("drafts", DType::I64)
            .output("counts", DType::I32);
        disturb(&case, &[("lengths", vec![lengths(5), lengths(9000)])], 0);
    }
}

#[test]
fn sample_logits() {
    // Each filter, alone and with others, on rows that the writer raises and lowers.
    let logits = |f: fn(usize) -> f32| (0..2 * 30_000).map(f).collect::<Vec<f32>>();
    for filters in 0..8 {
        let mut case = Case::new(SampleLogits::new().min_p_first(filters & 1 == 1))
            .input("logits", Tensor::matrix(logits(|i| (i * 7919 % 97) as f32 * 0.1), 2, 30_000))
            .input("positions", Tensor::vector(vec![1_i64, 2]))
            .input("temperature", Tensor::vector(vec![1.0_f32, 0.5]))
            .input("seeds", Tensor::vector(vec![3_u64, 4]))
            .output("tokens", DType::I32)
            .output("probs", DType::F32)
            .output("logprobs", DType::F32);
        if filters & 1 == 1 {
            case = case.input("min_p", Tensor::vector(vec![0.1_f32, 0.01]));
        }
        if filters & 2 == 2 {
            case = case.input("top_k", Tensor::vector(vec![40_i32, 400]));
        }
        if filters & 4 == 4 {
            case = case.input("top_p", Tensor::vector(vec![0.9_f32, 0.5]));
        }
        let others = [|i| 1e30 + i as f32, |i| -(i as f32), |_| -1e9].map(|f| logits(f).into());
        let others = others.to_vec();
        disturb(&case, &[("logits", others)], filters);
    }
}

#[test]
fn unique() {
    const KEYS: usize = 300_001;
    let hash = |i: u64| (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    for dtype in [DType::U64, DType::I64, DType::U32, DType::I32] {
        for counted in [false, true] {
            let keys = |f: &dyn Fn(u64) -> u64| {
                Rng::integers(dtype, (0..KEYS as u64).map(|i| f(i).cast_signed()).collect())
            };
            // Few and many distinct keys, sorted and unsorted keys, and keys that are frequent in a
            // sample.
            let others = vec![
                keys(&|i| i / 3),
                keys(&|i| KEYS as u64 - i),
                keys(&|i| hash(i) % 1000),
                keys(&|i| if hash(i).is_multiple_of(3) { 7 } else { hash(hash(i)) }),
                keys(&|i| hash(i) >> (hash(i) % 64)),
            ];
            let mut case = Case::new(Unique::new())
                .input("keys", Tensor::vector(keys(&|i| hash(hash(i)))))
                .output("unique", dtype)
                .output("count", DType::U64);
            if counted {
                case = case.output("counts", DType::U64);
            }
            let place = if dtype.size() == 8 { DType::I64 } else { DType::I32 };
            case = case.output("inverse", place);
            disturb(&case, &[("keys", others)], u64::from(counted));
        }
    }
}

#[test]
fn a_write_beyond_a_buffer_is_seen() {
    for at in [-1, 100, 100 + FENCE as isize - 1, -(FENCE as isize)] {
        let buffer = Fenced::of(&[1; 100]);
        assert!(buffer.is_whole());
        // SAFETY: the fences belong to the same allocation.
        unsafe { buffer.start.offset(at).write(0) };
        assert!(!buffer.is_whole(), "byte {at}");
    }
}
