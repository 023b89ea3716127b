//! 256 experts, 8 groups, 4 kept, top 8.

use spec::ops::TopkRouter;
use spec::ops::topk_router::{Buffers, Tensors};
use spec::{DType, Stream, TensorDesc};

use spec_baselines::plain;

use crate::{Bench, Random};

pub fn run(bench: &Bench) -> spec::Result<()> {
    for tokens in [1, 1024, 4096, 16384, 65536] {
        let shape = format!("{tokens} tokens, f32");
        if !bench.wants("topk_router", &shape) {
            continue;
        }
        let mut random = Random(tokens as u64);
        let x: Vec<f32> = (0..tokens * 256).map(|_| random.unit() * 10.0 - 5.0).collect();
        let bias: Vec<f32> = (0..256).map(|_| random.unit() - 0.5).collect();
        let params = TopkRouter::deepseek_v3();
        let tensors = Tensors {
            bias: Some(TensorDesc::new(DType::F32, [256])),
            ..params.tensors(DType::F32, tokens, 256)
        };
        let router = bench.handle.create(&params, &tensors)?;
        let (mut weights, mut indices) = (vec![0f32; tokens * 8], vec![0i32; tokens * 8]);
        let mut call = || {
            let buffers = Buffers {
                x: (&x).into(),
                bias: Some((&bias).into()),
                weights: (&mut weights).into(),
                indices: (&mut indices).into(),
                flags: None,
            };
            router.calculate(&mut [0u8; 0], buffers, Stream::default())
        };
        call()?;
        let expected = plain::topk_router(&params, &x, 256, Some(&bias));
        bench.row(
            "topk_router",
            &shape,
            x.len() * 4,
            || {
                std::hint::black_box(plain::topk_router(&params, &x, 256, Some(&bias)));
            },
            call,
        );
        assert_eq!(indices, expected.1);
    }
    Ok(())
}
