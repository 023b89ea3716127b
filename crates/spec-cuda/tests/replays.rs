//! A replay of a captured launch must not use values that blocks left for each other in an earlier
//! replay. Matches that move between replays are found at their new place, and texts that grow from
//! replay to replay equal those of decoding without a graph.

mod common;
#[path = "../../../tests/common/decode_tail.rs"]
mod decode_tail;

use common::graph::Foreign;
use common::{Array, Ready, cuda};
use decode_tail::trees::TreeTail;
use decode_tail::{DecodeTail, Tail};
use spec_conformance::Rng;
use spec_core::ops::prompt_lookup::{self, Occurrence};
use spec_core::ops::{NgramMatch, PromptLookup, SuffixLookup, ngram_match, suffix_lookup};
use spec_core::{Backend, DType, Operator, TensorDesc, dtype};
use spec_cuda::Cuda;

/// The length of a text: so long that several blocks search each text.
const LENGTH: usize = 100_000;
const REQUESTS: usize = 2;
const PATTERN: [i64; 3] = [1, 2, 3];
const DRAFTS: usize = 4;
const REPLAYS: u64 = 1000;
/// Tokens outside of patterns start at this number; none occurs twice in a text.
const OTHERS: i64 = 10;

/// Texts that end with the pattern, and the other places of the pattern.
struct Texts {
    tokens: Array<i64>,
    places: [Vec<usize>; REQUESTS],
    random: Rng,
}

impl Texts {
    fn new(cuda: &Cuda) -> Self {
        let mut text: Vec<i64> = (0..LENGTH as i64).map(|i| OTHERS + i).collect();
        text[LENGTH - 3..].copy_from_slice(&PATTERN);
        let tokens = Array::from(cuda, &[&text[..]; REQUESTS].concat());
        Texts { tokens, places: Default::default(), random: Rng::new(1, "") }
    }

    fn write(&mut self, request: usize, place: usize, tokens: [i64; 3]) {
        let at = (request * LENGTH + place) * 8;
        let bytes = dtype::as_bytes(&tokens);
        self.tokens.memory.write_at(at, bytes).expect("a copy to the device");
    }

    /// Moves the patterns to new places: none, one or many per text.
    fn change(&mut self) {
        for request in 0..REQUESTS {
            for place in std::mem::take(&mut self.places[request]) {
                self.write(request, place, [0, 1, 2].map(|k| OTHERS + place as i64 + k));
            }
            let many = [0, 1, 2, 12][self.random.below(4)];
            for _ in 0..many {
                let place = self.random.below(LENGTH / 8 - 2) * 8;
                self.write(request, place, PATTERN);
                self.places[request].push(place);
            }
        }
    }

    fn expected(&self, request: usize, which: Occurrence) -> Vec<i64> {
        let places = self.places[request].iter();
        let place = match which {
            Occurrence::First => places.min(),
            _ => places.max(),
        };
        let follows =
            |&place: &usize| (0..DRAFTS).map(|k| OTHERS + (place + 3 + k) as i64).collect();
        place.map(follows).unwrap_or_default()
    }
}

/// Asserts that a call runs this kernel, and that several blocks search each text.
fn assert_shared<O: Operator>(ready: &Ready<O>, kernel: &str) {
    let route = ready.descriptor.route().expect("a route");
    assert_eq!(route.kernels().collect::<Vec<_>>(), [kernel]);
    let one_each = format!("({REQUESTS} blocks");
    assert!(!route.to_string().contains(&one_each), "one block searches a text: {route}");
}

#[test]
fn prompt_lookup_finds_what_moved() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    let kernels = [
        (Occurrence::First, "prompt_lookup_first_i64"),
        (Occurrence::Last, "prompt_lookup_last_i64"),
    ];
    for (occurrence, kernel) in kernels {
        let operator =
            PromptLookup::new().min_ngram(2).max_ngram(3).max_draft(DRAFTS).occurrence(occurrence);
        let mut ready =
            Ready::new(&cuda, &operator, &operator.tensors(DType::I64, REQUESTS, LENGTH));
        assert_shared(&ready, kernel);
        let mut texts = Texts::new(&cuda);
        let lengths = Array::from(&cuda, &[LENGTH as i32; REQUESTS]);
        let mut drafts = Array::<i64>::new(&cuda, REQUESTS * DRAFTS);
        let mut counts = Array::<i32>::new(&cuda, REQUESTS);
        let graph = foreign.capture(|stream| {
            let buffers = prompt_lookup::Buffers::new(
                texts.tokens.view(),
                lengths.view(),
                drafts.view_mut(),
                counts.view_mut(),
            );
            ready.run(buffers, stream);
        });
        for replay in 0..REPLAYS {
            texts.change();
            cuda.synchronize().expect("inputs");
            graph.replay();
            let (drafts, counts) = (drafts.get(), counts.get());
            for request in 0..REQUESTS {
                let want = texts.expected(request, occurrence);
                let got = &drafts[request * DRAFTS..][..counts[request] as usize];
                assert_eq!(got, want, "{occurrence:?}, replay {replay}, request {request}");
            }
        }
    }
}

#[test]
fn ngram_match_finds_what_moved() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    let operator = NgramMatch::new().max_ngram_size(3).token_threshold(i32::MAX);
    let tensors = operator.tensors(REQUESTS, LENGTH, 8, DRAFTS + 1);
    let mut ready = Ready::new(&cuda, &operator, &tensors);
    assert_shared(&ready, "ngram_match_i64");
    let mut texts = Texts::new(&cuda);
    // The last three tokens of the prompt are no match, because nothing follows them.
    let input_ids_len = Array::from(&cuda, &[LENGTH as i64; REQUESTS]);
    let all = Array::from(&cuda, &[0i64, 1, 2, 3, 0, 0, 0, 0].repeat(REQUESTS));
    let starts = Array::from(&cuda, &[0i64; REQUESTS]);
    let steps = Array::from(&cuda, &[3i64; REQUESTS]);
    let max_dec = Array::from(&cuda, &[100i64; REQUESTS]);
    let wanted = Array::from(&cuda, &[DRAFTS as i32; REQUESTS]);
    let encoder = Array::from(&cuda, &[0i32; REQUESTS]);
    let decoder = Array::from(&cuda, &[1i32; REQUESTS]);
    let mut drafts = Array::<i64>::new(&cuda, REQUESTS * (DRAFTS + 1));
    let mut this_time = Array::<i32>::new(&cuda, REQUESTS);
    let graph = foreign.capture(|stream| {
        let buffers = ngram_match::Buffers::new(ngram_match::Required {
            input_ids: texts.tokens.view(),
            input_ids_len: input_ids_len.view(),
            token_ids_all: all.view(),
            prompt_lens: starts.view(),
            step_idx: steps.view(),
            draft_token_num: wanted.view(),
            draft_tokens: drafts.view_mut(),
            seq_lens_this_time: this_time.view_mut(),
            seq_lens_encoder: encoder.view(),
            seq_lens_decoder: decoder.view(),
            max_dec_len: max_dec.view(),
        });
        ready.run(buffers, stream);
    });
    for replay in 0..REPLAYS {
        texts.change();
        cuda.synchronize().expect("inputs");
        graph.replay();
        let (drafts, this_time) = (drafts.get(), this_time.get());
        for request in 0..REQUESTS {
            let want = texts.expected(request, Occurrence::First);
            let got = &drafts[request * (DRAFTS + 1) + 1..][..this_time[request] as usize - 1];
            assert_eq!(got, want, "replay {replay}, request {request}");
        }
    }
}

/// A corpus is changed while replays on another stream read it, and nobody orders the two. Drafts
/// are then tokens that were written, and no replay fails; once the writes have ended, the next
/// replay sees the last of them.
#[test]
fn a_corpus_changes_during_replays() {
    const BATCH: usize = 16;
    const MAX_LEN: usize = 200;
    const CORPUS: usize = 1 << 18;
    const N: usize = 16;
    const VOCAB: i64 = 30;
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    let operator = SuffixLookup::new().width(3);
    let mut tensors = operator.tensors(DType::I64, BATCH, MAX_LEN, N);
    tensors.corpus = Some(TensorDesc::new(DType::I64, [CORPUS]));
    tensors.corpus_length = Some(TensorDesc::new(DType::I32, [1]));
    tensors.parents = Some(TensorDesc::new(DType::I32, [BATCH, N]));
    tensors.flags = Some(TensorDesc::new(DType::U32, [1]));
    let mut ready = Ready::new(&cuda, &operator, &tensors)
        .runs(&["suffix_lookup_scan_i64", "suffix_lookup_grow_i64"]);
    let mut rng = Rng::new(1, "a_corpus_changes_during_replays");
    let mut text =
        |len: usize| (0..len).map(|_| rng.below(VOCAB as usize) as i64).collect::<Vec<i64>>();
    let tokens = Array::from(&cuda, &text(BATCH * MAX_LEN));
    let lengths = Array::from(&cuda, &[MAX_LEN as i32; BATCH]);
    let mut corpus = Array::from(&cuda, &vec![i64::MIN; CORPUS]);
    let mut corpus_length = Array::from(&cuda, &[0i32]);
    let mut drafts = Array::<i64>::new(&cuda, BATCH * N);
    let mut parents = Array::<i32>::new(&cuda, BATCH * N);
    let mut counts = Array::<i32>::new(&cuda, BATCH);
    let mut flags = Array::from(&cuda, &[0u32]);
    let graph = foreign.capture(|stream| {
        let buffers = suffix_lookup::Buffers::new(
            tokens.view(),
            lengths.view(),
            drafts.view_mut(),
            counts.view_mut(),
        )
        .corpus(corpus.view())
        .corpus_length(corpus_length.view())
        .parents(parents.view_mut())
        .flags(flags.view_mut());
        ready.run(buffers, stream);
    });
    let known = text(CORPUS);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut write = |start: usize, end: usize| {
                let mut part = known[start..end].to_vec();
                part[end - start - 1] = i64::MIN;
                corpus.memory.write_at(start * 8, dtype::as_bytes(&part)).expect("a copy");
                corpus_length.set(&[end as i32]);
            };
            for round in 0..40 {
                // The oldest half is dropped, and texts are appended.
                write(0, CORPUS / 2 - round);
                for text in 0..50 {
                    let start = CORPUS / 2 + text * 2000;
                    write(start, start + 2000);
                }
            }
            write(0, 1);
        });
        let mut replays = 0;
        while !writer.is_finished() || replays == 0 {
            graph.replay();
            replays += 1;
            let (drafts, parents, counts) = (drafts.get(), parents.get(), counts.get());
            for (request, &count) in counts.iter().enumerate() {
                assert!((0..=N as i32).contains(&count), "{count} drafts");
                let row = request * N..request * N + count as usize;
                assert!(drafts[row.clone()].iter().all(|draft| (0..VOCAB).contains(draft)));
                let ordered =
                    (0..).zip(&parents[row]).all(|(at, parent)| (0..=at).contains(parent));
                assert!(ordered, "a parent behind its child");
            }
            assert_eq!(flags.get(), [0]);
        }
    });
    // Nothing but the separator of one token is left of the corpus: drafts of the text alone.
    graph.replay();
    let (with, with_counts) = (drafts.get(), counts.get());
    corpus_length.set(&[0]);
    graph.replay();
    assert_eq!((with, with_counts), (drafts.get(), counts.get()));
}

/// Captures the tail of a step once and replays it for every step of random batches. Lengths, counts
/// and finished requests change from replay to replay, and later requests reuse the memory of
/// earlier ones. Returns how many runs of the model and how many tokens there were.
fn replay<T: DecodeTail>(
    cuda: &Cuda,
    foreign: &Foreign,
    name: &str,
    tail: &mut T,
) -> (usize, usize) {
    let (mut runs, mut tokens) = (0, 0);
    for dependent in [false, true] {
        let stream = || match dependent {
            false => foreign.stream(),
            true => foreign.stream().dependent_launch(),
        };
        let graph = foreign.capture(|_| tail.enqueue(stream).expect("the launches"));
        for seed in 0..4 {
            let step = |_: &mut T| {
                cuda.synchronize()?;
                graph.replay();
                Ok(())
            };
            let place = format!("seed {seed}");
            let outcome = tail.decode_random(&mut Rng::new(seed, name), &place, step);
            let outcome = outcome.expect("the steps");
            runs += outcome.runs;
            tokens += outcome.tokens;
        }
    }
    (runs, tokens)
}

#[test]
fn one_graph_serves_every_decode_step() {
    const MAX_LEN: usize = 150;
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for (batch, max_draft) in [(1, 3), (7, 4), (300, 7)] {
        let mut tail = Tail::new(&cuda, batch, max_draft, MAX_LEN).expect("the operators");
        let name = "one_graph_serves_every_decode_step";
        let (runs, tokens) = replay(&cuda, &foreign, name, &mut tail);
        assert!(tokens * 4 > runs * 5, "drafts are too bad to test anything: {tokens} in {runs}");
    }
}

/// Which request and which node each of a fixed number of rows has is decided on the device.
#[test]
fn one_graph_serves_every_step_with_trees() {
    const MAX_LEN: usize = 120;
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for (batch, max_draft, budget) in [(1, 8, 8), (7, 8, 20), (60, 16, 200)] {
        let sizes = (batch, max_draft);
        let mut tail = TreeTail::new(&cuda, sizes, budget, MAX_LEN).expect("the operators");
        let name = "one_graph_serves_every_step_with_trees";
        let (runs, tokens) = replay(&cuda, &foreign, name, &mut tail);
        assert!(tokens * 10 > runs * 11, "drafts are too bad to test anything: {tokens} in {runs}");
    }
}
