//! A replay of a captured launch must not use values that blocks left for each other in an earlier
//! replay. Matches that move between replays are found at their new place, and texts that grow from
//! replay to replay equal those of decoding without a graph.

mod common;

use common::graph::Foreign;
use common::random::Random;
use common::{Array, Ready, cuda};
use spec_conformance::Rng;
use spec_conformance::decode_tail::{Request, Tail};
use spec_core::ops::prompt_lookup::{self, Occurrence};
use spec_core::ops::{NgramMatch, PromptLookup, ngram_match};
use spec_core::{Backend, DType};

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
    random: Random,
}

impl Texts {
    fn new(cuda: &spec_cuda::Cuda) -> Self {
        let mut text: Vec<i64> = (0..LENGTH as i64).map(|i| OTHERS + i).collect();
        text[LENGTH - 3..].copy_from_slice(&PATTERN);
        let tokens = Array::from(cuda, &[&text[..]; REQUESTS].concat());
        Texts { tokens, places: Default::default(), random: Random(1) }
    }

    fn write(&mut self, request: usize, place: usize, tokens: [i64; 3]) {
        let at = (request * LENGTH + place) * 8;
        let bytes = spec_core::dtype::as_bytes(&tokens);
        self.tokens.memory.write_at(at, bytes).expect("a copy to the device");
    }

    /// Moves the patterns to new places: none, one or many per text.
    fn change(&mut self) {
        for request in 0..REQUESTS {
            for place in std::mem::take(&mut self.places[request]) {
                self.write(request, place, [0, 1, 2].map(|k| OTHERS + place as i64 + k));
            }
            let many = [0, 1, 2, 12][self.random.below(4) as usize];
            for _ in 0..many {
                let place = self.random.below((LENGTH / 8 - 2) as u64) as usize * 8;
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

#[test]
fn prompt_lookup_finds_what_moved() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for occurrence in [Occurrence::First, Occurrence::Last] {
        let operator =
            PromptLookup::new().min_ngram(2).max_ngram(3).max_draft(DRAFTS).occurrence(occurrence);
        let mut ready =
            Ready::new(&cuda, &operator, &operator.tensors(DType::I64, REQUESTS, LENGTH));
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

/// The chain from logits to the drafts of the next step is captured once. Lengths, counts and
/// finished requests change from replay to replay, and later requests reuse the memory of earlier
/// ones.
#[test]
fn one_graph_serves_every_decode_step() {
    const MAX_LEN: usize = 150;
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    for (batch, max_draft) in [(1, 3), (7, 4), (300, 7)] {
        let mut tail = Tail::new(&cuda, batch, max_draft, MAX_LEN).expect("the operators");
        let (mut runs, mut tokens) = (0, 0);
        for dependent in [false, true] {
            let stream = || match dependent {
                false => foreign.stream(),
                true => foreign.stream().dependent_launch(),
            };
            let graph = foreign.capture(|_| tail.enqueue(stream).expect("the launches"));
            for seed in 0..4 {
                let mut rng = Rng::new(seed, "one_graph_serves_every_decode_step");
                let requests: Vec<Request> =
                    (0..batch).map(|_| Request::random(&mut rng, MAX_LEN)).collect();
                let replay = |_: &mut Tail| {
                    cuda.synchronize()?;
                    graph.replay();
                    Ok(())
                };
                let outcome = tail.decode(&requests, replay).expect("the steps");
                for (request, ended) in requests.iter().zip(&outcome.ended) {
                    let alone = request.alone(MAX_LEN).expect("the plain loop");
                    assert_eq!(*ended, alone, "seed {seed}, {batch} requests, {request:?}");
                }
                assert_eq!(outcome.flags, 0);
                runs += outcome.runs;
                tokens += outcome.tokens;
            }
        }
        assert!(tokens * 4 > runs * 5, "drafts are too bad to test anything: {tokens} in {runs}");
    }
}
