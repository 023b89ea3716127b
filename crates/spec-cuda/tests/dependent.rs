//! A call that may be launched while the previous call runs waits for the results of the
//! previous call.

mod common;

use common::graph::Foreign;
use common::{Array, Ready, cuda};
use spec_conformance::Rng;
use spec_core::ops::topk_router::preset;
use spec_core::ops::{MoeAlign, TopkRouter, moe_align, topk_router};
use spec_core::{Backend, DType, Stream};
use spec_cuda::Cuda;

const EXPERTS: usize = 256;
const TOPK: usize = 8;
const BLOCK: usize = 16;

/// A router, and the grouping of its picks by expert.
struct Layer {
    route: Ready<TopkRouter>,
    align: Ready<MoeAlign>,
    weights: Array<f32>,
    experts: Array<i32>,
    sorted_ids: Array<i32>,
    block_experts: Array<i32>,
    counts: Array<i32>,
    offsets: Array<i32>,
    num_padded: Array<i32>,
}

impl Layer {
    /// A layer whose calls run these kernels.
    fn new(cuda: &Cuda, tokens: usize, route: &str, aligns: &[&str]) -> Self {
        let model = preset::DEEPSEEK_V3;
        let align = MoeAlign::new(EXPERTS, BLOCK);
        let tensors = align.tensors(DType::I32, tokens, TOPK);
        let capacity = tensors.sorted_ids.shape()[0];
        Layer {
            route: Ready::new(cuda, &model.router(), &model.tensors(DType::F32, tokens))
                .runs(&[route]),
            align: Ready::new(cuda, &align, &tensors).runs(aligns),
            weights: Array::new(cuda, tokens * TOPK),
            experts: Array::new(cuda, tokens * TOPK),
            sorted_ids: Array::new(cuda, capacity),
            block_experts: Array::new(cuda, capacity / BLOCK),
            counts: Array::new(cuda, EXPERTS),
            offsets: Array::new(cuda, EXPERTS + 1),
            num_padded: Array::new(cuda, 1),
        }
    }

    fn run(&mut self, x: &Array<f32>, bias: &Array<f32>, stream: impl Fn() -> Stream<'static>) {
        let buffers =
            topk_router::Buffers::new(x.view(), self.weights.view_mut(), self.experts.view_mut())
                .bias(bias.view());
        self.route.run(buffers, stream());
        let buffers = moe_align::Buffers::new(moe_align::Required {
            topk_ids: self.experts.view(),
            sorted_ids: self.sorted_ids.view_mut(),
            block_experts: self.block_experts.view_mut(),
            counts: self.counts.view_mut(),
            offsets: self.offsets.view_mut(),
            num_padded: self.num_padded.view_mut(),
        });
        self.align.run(buffers, stream());
    }

    fn outputs(&self) -> [Vec<i32>; 4] {
        [&self.sorted_ids, &self.block_experts, &self.counts, &self.offsets].map(Array::get)
    }
}

#[test]
fn a_call_reads_what_the_one_before_it_wrote() {
    let Some(cuda) = cuda() else { return };
    let foreign = Foreign::new(&cuda);
    // Both routers; `moe_align` with one launch and with two. Many layers share the router's memory.
    let (few, many) = ("topk_router_grouped_32_f32", "topk_router_grouped_8_f32");
    let two: &[&str] = &["moe_align_count", "moe_align_place"];
    let calls: [(usize, &str, &[&str]); 5] = [
        (1, few, &["moe_align_single_warp"]),
        (100, few, &["moe_align_one"]),
        (300, few, two),
        (4096, many, two),
        (40_000, many, two),
    ];
    for (tokens, route, aligns) in calls {
        let mut random = Rng::new(tokens as u64, "");
        let mut floats = |count: usize| -> Vec<f32> {
            (0..count).map(|_| random.below(1 << 16) as f32 / 4096.0 - 8.0).collect()
        };
        let bias = Array::from(&cuda, &floats(EXPERTS));
        let layers: Vec<_> =
            (0..6).map(|_| Array::from(&cuda, &floats(tokens * EXPERTS))).collect();
        let mut layer = Layer::new(&cuda, tokens, route, aligns);
        let want: Vec<_> = layers
            .iter()
            .map(|x| {
                layer.run(x, &bias, Stream::default);
                cuda.synchronize().expect("the calls");
                layer.outputs()
            })
            .collect();
        for (x, want) in layers.iter().zip(&want) {
            // Results that another layer left in this memory would be noticed.
            let graph = foreign.capture(|_| {
                for other in layers.iter().chain([x]) {
                    layer.run(other, &bias, || foreign.stream().dependent_launch());
                }
            });
            for _ in 0..20 {
                graph.replay();
                assert!(layer.outputs() == *want, "{tokens} tokens");
            }
        }
    }
}
