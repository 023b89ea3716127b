//! Random distributions, f32: both ways of recovery.

use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Buffers, Tensors};
use spec_core::{DType, Descriptor, Stream, TensorDesc, View, ViewMut};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::common::random::Random;
use crate::common::{Array, Ready};
use crate::{Known, row, time};

pub fn bench(cuda: &Cuda) {
    let known = [
        (1, 8, 32_000, 0.1, 11.6, 3.8),
        (32, 8, 32_000, 2.7, 14.3, 6.0),
        (1, 8, 50_257, 0.1, 16.7, 4.0),
        (32, 8, 50_257, 4.3, 19.9, 8.0),
        (1, 8, 128_256, 0.3, 38.2, 4.5),
        (8, 8, 128_256, 2.7, 39.2, 7.0),
        (32, 8, 128_256, 10.9, 79.0, 16.0),
        (1, 8, 151_936, 0.4, 45.0, 5.0),
        (32, 8, 151_936, 13.0, 110.0, 18.0),
        (256, 4, 151_936, 104.0, 134.0, 115.0),
    ];
    for (batch, drafts, vocab, floor, seed, goal) in known {
        let call = Call::new(cuda, batch, drafts, vocab);
        let shape = format!("{batch} x {drafts}, {vocab}");
        let micros = call.measure(cuda, &RejectionSample::argmax(drafts));
        row("rejection_sample", &format!("{shape}, argmax"), micros, &Known { floor, goal, seed });
        let sampled = call.measure(cuda, &RejectionSample::lossless(drafts));
        let known = Known { floor, goal: micros * 1.4, seed: 0.0 };
        row("rejection_sample", &format!("{shape}, sample"), sampled, &known);
    }
}

/// Inputs on both sides.
struct Call {
    batch: usize,
    tokens: usize,
    vocab: usize,
    probs: [Vec<f32>; 2],
    ids: [Vec<i32>; 3],
    uniform: Vec<f32>,
    seed_offset: Vec<u64>,
    device: Inputs<Array<f32>, Array<i32>, Array<u64>>,
}

struct Inputs<F, I, S> {
    probs: [F; 2],
    ids: [I; 3],
    uniform: F,
    seed_offset: S,
}

/// Probabilities of `rows` rows: uniform, divided by what they add up to on
/// average.
fn distributions(seed: u64, rows: usize, vocab: usize) -> Vec<f32> {
    let mut probs = vec![0f32; rows * vocab];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let part = probs.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (i, part) in probs.chunks_mut(part).enumerate() {
            let mut random = Random(seed + i as u64 * 0x1234_5678);
            let scale = 2.0 / vocab as f32;
            scope.spawn(move || part.iter_mut().for_each(|p| *p = random.unit() * scale));
        }
    });
    probs
}

impl Call {
    fn new(cuda: &Cuda, batch: usize, drafts: usize, vocab: usize) -> Self {
        let tokens = batch * drafts;
        let mut random = Random((batch * vocab) as u64);
        let probs = [1, 2].map(|i| distributions(random.next() + i, tokens, vocab));
        let id = |r: &mut Random| r.below(vocab as u64) as i32;
        let offsets = (0..=batch).map(|b| (b * drafts) as i32).collect();
        // Every request rejects one draft, so that each has a row to recover.
        let mut drafted = random.vec(tokens, id);
        for request in 0..batch {
            let rejected = random.below(drafts as u64) as usize;
            for position in 0..=rejected {
                let token = request * drafts + position;
                let [target, draft] = probs.each_ref().map(|p| &p[token * vocab..][..vocab]);
                let fits = |id: usize| match position == rejected {
                    true => target[id] < 0.8 * draft[id],
                    false => target[id] > draft[id],
                };
                while !fits(drafted[token] as usize) {
                    drafted[token] = id(&mut random);
                }
            }
        }
        let ids = [drafted, random.vec(batch, id), offsets];
        let uniform = random.vec(tokens, |r| 0.9 + 0.1 * r.unit());
        let seed_offset = vec![5, 6];
        let device = Inputs {
            probs: [0, 1].map(|i| Array::from(cuda, &probs[i])),
            ids: [0, 1, 2].map(|i| Array::from(cuda, &ids[i])),
            uniform: Array::from(cuda, &uniform),
            seed_offset: Array::from(cuda, &seed_offset),
        };
        Call { batch, tokens, vocab, probs, ids, uniform, seed_offset, device }
    }

    fn measure(&self, cuda: &Cuda, operator: &RejectionSample) -> f64 {
        let mut tensors = operator.tensors(self.batch, self.tokens, self.vocab);
        tensors.uniform_samples = Some(TensorDesc::new(DType::F32, [self.tokens]));
        let width = operator.max_spec_len + 1;
        let mut output = Array::<i32>::new(cuda, self.batch * width);
        let mut counts: [Array<i32>; 4] = std::array::from_fn(|_| Array::new(cuda, self.batch));
        let mut ready = Ready::new(cuda, operator, &tensors);
        let device = Inputs {
            probs: self.device.probs.each_ref().map(Array::view),
            ids: self.device.ids.each_ref().map(Array::view),
            uniform: self.device.uniform.view(),
            seed_offset: self.device.seed_offset.view(),
        };
        let micros = time(cuda, |stream| {
            let counts = counts.each_mut().map(Array::view_mut);
            ready.run(buffers(&device, output.view_mut(), counts), stream);
        });
        let want = self.expected(operator, &tensors, width);
        assert!(output.get() == want, "the timed call went wrong");
        micros
    }

    fn expected(&self, operator: &RejectionSample, tensors: &Tensors, width: usize) -> Vec<i32> {
        let cpu = Cpu::open(0).expect("the CPU");
        let descriptor = Descriptor::create(&cpu, operator, tensors).expect("valid");
        let mut workspace = vec![0u8; descriptor.workspace_size()];
        let mut output = vec![0i32; self.batch * width];
        let mut counts: [Vec<i32>; 4] = std::array::from_fn(|_| vec![0; self.batch]);
        let host = Inputs {
            probs: self.probs.each_ref().map(View::from),
            ids: self.ids.each_ref().map(View::from),
            uniform: (&self.uniform).into(),
            seed_offset: (&self.seed_offset).into(),
        };
        let counts = counts.each_mut().map(ViewMut::from);
        let buffers = buffers(&host, (&mut output).into(), counts);
        let workspace = ViewMut::from(&mut workspace);
        descriptor.calculate(workspace, buffers, Stream::default()).expect("the CPU's result");
        output
    }
}

fn buffers<'a>(
    inputs: &Inputs<View<'a>, View<'a>, View<'a>>,
    output: ViewMut<'a>,
    counts: [ViewMut<'a>; 4],
) -> Buffers<'a> {
    let [num_accepted, accepted_counts, recovered_counts, bonus_counts] = counts;
    Buffers {
        target_probs: inputs.probs[0],
        draft_probs: Some(inputs.probs[1]),
        draft_token_ids: inputs.ids[0],
        bonus_token_ids: inputs.ids[1],
        cu_num_draft: inputs.ids[2],
        uniform_samples: Some(inputs.uniform),
        seed_offset: Some(inputs.seed_offset),
        output_token_ids: output,
        num_accepted,
        accepted_counts,
        recovered_counts,
        bonus_counts,
        flags: None,
    }
}
