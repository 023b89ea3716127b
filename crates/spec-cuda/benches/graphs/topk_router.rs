//! DeepSeek-V3 routing: 256 experts, 8 groups, 4 kept, top 8, with a bias.

use half::bf16;
use spec_core::ops::TopkRouter;
use spec_core::ops::topk_router::Buffers;
use spec_core::{DType, Descriptor, Element, Stream, TensorDesc, ViewMut};
use spec_cpu::Cpu;
use spec_cuda::Cuda;

use crate::common::random::Random;
use crate::common::{Array, Ready};
use crate::{Known, row, time};

const EXPERTS: usize = 256;

pub fn bench(cuda: &Cuda) {
    let known = [
        (1, 0.0, 7.5, 2.3, 2.3),
        (1024, 0.4, 21.7, 2.8, 2.7),
        (4096, 1.5, 73.0, 4.5, 4.0),
        (16_384, 5.9, 274.0, 10.0, 8.0),
        (65_536, 23.8, 1083.0, 33.0, 26.0),
    ];
    for (tokens, floor, seed, goal, goal_bf16) in known {
        let micros = measure(cuda, tokens, |x| x);
        row("topk_router", &format!("{tokens} tokens, f32"), micros, &Known { floor, goal, seed });
        let micros = measure(cuda, tokens, bf16::from_f32);
        let known = Known { floor: floor / 2.0, goal: goal_bf16, seed };
        row("topk_router", &format!("{tokens} tokens, bf16"), micros, &known);
    }
}

fn measure<T: Element>(cuda: &Cuda, tokens: usize, narrow: fn(f32) -> T) -> f64 {
    let mut random = Random(tokens as u64);
    let x = random.vec(tokens * EXPERTS, |r| narrow(r.unit() * 8.0 - 4.0));
    let bias = random.vec(EXPERTS, |r| r.unit() * 0.2 - 0.1);
    let operator = TopkRouter::deepseek_v3();
    let mut tensors = operator.tensors(T::DTYPE, tokens, EXPERTS);
    tensors.bias = Some(TensorDesc::new(DType::F32, [EXPERTS]));
    let (input, bias_input) = (Array::from(cuda, &x), Array::from(cuda, &bias));
    let mut weights = Array::<f32>::new(cuda, tokens * operator.topk);
    let mut indices = Array::<i32>::new(cuda, tokens * operator.topk);
    let mut ready = Ready::new(cuda, &operator, &tensors);
    let micros = time(cuda, |stream| {
        let buffers = Buffers {
            x: input.view(),
            bias: Some(bias_input.view()),
            weights: weights.view_mut(),
            indices: indices.view_mut(),
            flags: None,
        };
        ready.run(buffers, stream);
    });

    let cpu = Cpu::open(0).expect("the CPU");
    let descriptor = Descriptor::create(&cpu, &operator, &tensors).expect("valid");
    let mut workspace = vec![0u8; descriptor.workspace_size()];
    let mut want_weights = vec![0f32; weights.len()];
    let mut want = vec![0i32; indices.len()];
    let buffers = Buffers {
        x: (&x).into(),
        bias: Some((&bias).into()),
        weights: (&mut want_weights).into(),
        indices: (&mut want).into(),
        flags: None,
    };
    let workspace = ViewMut::from(&mut workspace);
    descriptor.calculate(workspace, buffers, Stream::default()).expect("the CPU's result");
    assert!(indices.get() == want, "the timed call went wrong");
    let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-5 * b.abs() + 1e-6;
    assert!(weights.get().iter().zip(&want_weights).all(close), "the timed call went wrong");
    micros
}
