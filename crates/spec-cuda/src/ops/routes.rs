//! Which kernels devices run, asked of handles without a device.

use std::collections::BTreeSet;

use spec_conformance::{Case, Layout, Rng, Subject};
use spec_core::ops::topk_router::preset;
use spec_core::ops::*;
use spec_core::{DType, Descriptor, Operator, Supports, TensorDesc};

use crate::archive::{Kind, entries};
use crate::limits::Limits;
use crate::{Cuda, cubin};

/// The route of a call on a device.
fn route<O: Operator>(limits: Limits, operator: &O, tensors: &O::Tensors) -> String
where
    Cuda: Supports<O>,
{
    let cuda = Cuda::without_device(limits);
    let descriptor = Descriptor::create(&cuda, operator, tensors).expect("a descriptor");
    descriptor.route().expect("a route").to_string()
}

/// The routes of random calls of every operator, the first `cases` seeds.
fn random(limits: Limits, cases: u64) -> Vec<spec_core::Route> {
    fn of<O: Subject>(cuda: &Cuda, cases: u64, routes: &mut Vec<spec_core::Route>)
    where
        Cuda: Supports<O>,
    {
        for seed in 0..cases {
            let case = Case::<O>::random(&mut Rng::new(seed, O::NAME));
            let route = case.route(cuda, Layout::PACKED);
            routes.push(route.unwrap_or_else(|failure| panic!("{} {seed}: {failure}", O::NAME)));
        }
    }
    let (cuda, mut routes) = (Cuda::without_device(limits), Vec::new());
    macro_rules! all {
        ($($module:ident: $operator:ident,)+) => { $( of::<$operator>(&cuda, cases, &mut routes); )+ };
    }
    spec_core::for_each_operator!(all);
    routes
}

/// The kernels and launch shapes that an H100 takes for calls of an engine.
#[test]
fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
    const H100: Limits = Limits::H100;
    let router = |preset: &preset::Preset, dtype, tokens| {
        route(H100, &preset.router(), &preset.tensors(dtype, tokens))
    };
    let floats = |rows: usize, cols: usize| TensorDesc::new(DType::F32, [rows, cols]);

    let sample = |rows, change: &dyn Fn(sample_logits::Tensors) -> sample_logits::Tensors| {
        let operator = SampleLogits::new();
        route(H100, &operator, &change(operator.tensors(rows, 128_256)))
    };
    let topk = |rows, cols, k| {
        let operator = IndexerTopk::new(k);
        route(H100, &operator, &operator.tensors(DType::F32, rows, cols))
    };
    let blocks = |operator: IndexerTopk, rows, cols| {
        route(H100, &operator, &operator.tensors(DType::F32, rows, cols))
    };
    let candidates = {
        let operator = IndexerTopk::new(2048).candidate_block(8);
        let tensors = operator.tensors(DType::F32, 64, 1 << 14);
        route(H100, &operator, &tensors.candidates(TensorDesc::new(DType::I32, [64, 1 << 11])))
    };
    let unique = |n, counts: bool| {
        let operator = Unique::new();
        let mut tensors = operator.tensors(DType::U64, n);
        tensors.counts = counts.then(|| TensorDesc::new(DType::U64, [n]));
        route(H100, &operator, &tensors)
    };
    let deduplicate = |batch, k| {
        let operator = DeduplicateTopk::new();
        route(H100, &operator, &operator.tensors(batch, k))
    };
    let inverse = |batch, steps, k| {
        let operator = DeduplicateTopk::new().mtp_step(steps);
        let inverse = TensorDesc::new(DType::I32, [batch * steps, k]);
        route(H100, &operator, &operator.tensors(batch, k).inverse(inverse))
    };
    let align = |tokens| {
        let operator = MoeAlign::new(256, 64);
        route(H100, &operator, &operator.tensors(DType::I32, tokens, 8))
    };
    let calls = [
        (
            router(&preset::DEEPSEEK_V3, DType::F32, 1),
            "topk_router_grouped_32_f32 (1 block of 128 threads)",
        ),
        (
            router(&preset::DEEPSEEK_V3, DType::BF16, 4096),
            "topk_router_grouped_8_bf16 (256 blocks of 128 threads)",
        ),
        (
            router(&preset::KIMI_K2, DType::F32, 64),
            "topk_router_sigmoid_384_f32 (8 blocks of 256 threads)",
        ),
        (
            router(&preset::GLM_4_5, DType::F32, 64),
            "topk_router_flat_256_f32 (16 blocks of 128 threads)",
        ),
        (
            router(&preset::QWEN3, DType::BF16, 64),
            "topk_router_softmax_128_bf16 (8 blocks of 256 threads)",
        ),
        (
            router(&preset::MIXTRAL, DType::F32, 64),
            "topk_router_general_f32 (16 blocks of 128 threads)",
        ),
        (sample(1, &|t| t), "sample_logits_plain_f32 (16 blocks of 512 threads in clusters of 16)"),
        (
            sample(32, &|t| t),
            "sample_logits_plain_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(256, &|t| t),
            "sample_logits_plain_f32 (1024 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(32, &|t| t.top_k(TensorDesc::new(DType::I32, [32]))),
            "sample_logits_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(32, &|t| t.probs(floats(32, 128_256))),
            "sample_logits_probs_f32 (96 blocks of 512 threads in clusters of 3)",
        ),
        (
            sample(32, &|t| t.logprobs(TensorDesc::new(DType::F32, [32]))),
            "sample_logits_plain_f32 (128 blocks of 512 threads in clusters of 4), \
             sample_logits_report_f32 (128 blocks of 512 threads in clusters of 4)",
        ),
        (
            sample(256, &|t| t.logprobs(TensorDesc::new(DType::F32, [256]))),
            "sample_logits_draw_report_f32 (1024 blocks of 512 threads in clusters of 4)",
        ),
        (
            topk(1, 8192, 2048),
            "indexer_topk_digits_f32 (2 blocks of 1024 threads in clusters of 2)",
        ),
        (
            topk(64, 1 << 17, 2048),
            "indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2)",
        ),
        (topk(1024, 8192, 512), "indexer_topk_bound_f32 (1024 blocks of 256 threads)"),
        (topk(64, 1024, 16), "indexer_topk_few_f32 (64 blocks of 128 threads)"),
        (
            blocks(IndexerTopk::new(16).forced_first(1).forced_last(2), 64, 1024),
            "indexer_topk_few_f32 (64 blocks of 128 threads)",
        ),
        (
            blocks(IndexerTopk::new(2048).pool(8), 64, 1 << 17),
            "indexer_topk_pool_f32 (1024 blocks of 256 threads), \
             indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2)",
        ),
        (
            blocks(IndexerTopk::new(2048).pool(8).forced_last(1), 64, 1 << 17),
            "indexer_topk_pool_f32 (1024 blocks of 256 threads), \
             indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2), \
             indexer_topk_finish_f32 (512 blocks of 256 threads)",
        ),
        (
            blocks(IndexerTopk::new(16).pool(128).forced_last(1), 64, 1 << 17),
            "indexer_topk_pool_f32 (1024 blocks of 256 threads), \
             indexer_topk_few_f32 (64 blocks of 128 threads)",
        ),
        (
            blocks(IndexerTopk::new(2048).forced_last(64), 64, 1 << 17),
            "indexer_topk_ranges (1 block of 256 threads), \
             indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2), \
             indexer_topk_finish_f32 (512 blocks of 256 threads)",
        ),
        (
            candidates,
            "indexer_topk_compact_f32 (256 blocks of 256 threads), \
             indexer_topk_bound_f32 (128 blocks of 512 threads in clusters of 2), \
             indexer_topk_finish_f32 (512 blocks of 256 threads)",
        ),
        (unique(9216, false), "unique_sort_buckets_64 (1 block of 512 threads)"),
        (
            unique(1 << 17, false),
            "memset (17664 bytes), \
             unique_check_64 (33 blocks of 512 threads), \
             unique_survey_64 (16 blocks of 1024 threads), \
             unique_partition_high_64 (16 blocks of 512 threads), \
             unique_sort_buckets_64 (64 blocks of 512 threads), \
             unique_by_digits_64 (16 blocks of 512 threads), \
             unique_compact_64 (32 blocks of 512 threads)",
        ),
        (
            unique(1 << 23, false),
            "memset (37376 bytes), \
             unique_check_64 (343 blocks of 512 threads), \
             unique_survey_64 (132 blocks of 1024 threads), \
             unique_spread_64 (132 blocks of 1024 threads), \
             unique_map_parts_64 (1024 blocks of 1024 threads), \
             unique_partition_wide_64 (132 blocks of 1024 threads), \
             unique_thinned_high_64 (264 blocks of 512 threads), \
             unique_thinned_low_64 (264 blocks of 512 threads), \
             unique_sort_buckets_64 (1024 blocks of 512 threads), \
             unique_by_digits_64 (264 blocks of 512 threads), \
             unique_compact_64 (264 blocks of 512 threads)",
        ),
        (
            unique(1 << 25, true),
            "memset (98816 bytes), \
             unique_check_64 (392 blocks of 512 threads), \
             unique_survey_64 (132 blocks of 1024 threads), \
             unique_partition_high_64 (4096 blocks of 512 threads), \
             unique_partition_low_64 (4160 blocks of 512 threads), \
             unique_sort_buckets_64 (4096 blocks of 512 threads), \
             unique_by_digits_64 (264 blocks of 512 threads), \
             unique_compact_64 (264 blocks of 512 threads), \
             unique_firsts (16 blocks of 512 threads), \
             unique_counts (8192 blocks of 512 threads)",
        ),
        (deduplicate(64, 2048), "deduplicate_topk_2 (64 blocks of 1024 threads)"),
        (deduplicate(64, 1 << 15), "deduplicate_topk_general (64 blocks of 1024 threads)"),
        (inverse(115, 2, 2048), "deduplicate_topk_ranked_4 (115 blocks of 1024 threads)"),
        (inverse(115, 4, 2048), "deduplicate_topk_ranked_8 (115 blocks of 1024 threads)"),
        (
            inverse(64, 8, 2048),
            "deduplicate_topk_16 (64 blocks of 1024 threads), \
             deduplicate_topk_locate (1024 blocks of 1024 threads)",
        ),
        (align(1), "moe_align_single_warp (16 blocks of 256 threads)"),
        (align(64), "moe_align_one (2 blocks of 256 threads in clusters of 2)"),
        (
            align(1 << 16),
            "moe_align_count (128 blocks of 1024 threads), \
             moe_align_place (128 blocks of 1024 threads)",
        ),
    ];
    for (given, expected) in calls {
        assert_eq!(given, expected);
    }
}

/// The routes of calls whose data are too large for random cases, on an H100.
fn large() -> Vec<String> {
    let mut routes = Vec::new();
    for dtype in [DType::I32, DType::U64] {
        for n in [1 << 17, 1 << 23, 1 << 25] {
            let operator = Unique::new();
            let tensors = operator.tensors(dtype, n);
            routes.push(route(Limits::H100, &operator, &tensors));
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let preset = preset::DEEPSEEK_V3;
        routes.push(route(Limits::H100, &preset.router(), &preset.tensors(dtype, 4096)));
    }
    let operator = TreeVerify::new(4);
    routes.push(route(Limits::H100, &operator, &operator.tensors(2, 1 << 16)));
    routes
}

/// The names of the compiled kernels.
fn compiled() -> BTreeSet<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/compiled");
    let files = std::fs::read_dir(folder).expect("the folder of the archives");
    let paths = files.map(|file| file.expect("a file").path());
    let archives = paths.filter(|path| path.extension().is_some_and(|name| name == "bin"));
    let kernels = archives.flat_map(|path| {
        let bytes = std::fs::read(&path).expect("an archive");
        let all = entries(&bytes).expect("an archive");
        let is_it = |e: &&crate::archive::Entry<'_>| e.kind == Kind::Sass && e.architecture == 90;
        let cubin = all.iter().find(is_it).and_then(|entry| entry.unpack()).expect("a cubin");
        cubin::kernels(&cubin)
    });
    kernels.collect()
}

/// Each compiled kernel is what some call runs: random cases, which test the kernel's results on a
/// GPU, or a call of [`large`]. And a call runs only compiled kernels.
#[test]
fn every_compiled_kernel_is_reached() {
    let smaller = ["cluster=1", "cluster=4,l2=0", "multiprocessors=16,shared=99"];
    let smaller = smaller.map(|list| Limits::H100.lowered(list).expect("limits"));
    let mut routes = random(Limits::H100, 6000);
    for limits in smaller.into_iter().chain([Limits::A100, Limits::RTX_4090]) {
        routes.extend(random(limits, 500));
    }
    let mut reached: BTreeSet<String> =
        routes.iter().flat_map(|route| route.kernels().map(str::to_owned)).collect();
    for route in large() {
        reached
            .extend(route.split(", ").filter_map(|step| Some(step.split_once(" (")?.0.to_owned())));
    }
    assert!(reached.remove("memset"));
    let compiled = compiled();
    let unreached: Vec<_> = compiled.difference(&reached).collect();
    assert!(unreached.is_empty(), "no call runs {unreached:?}");
    let unknown: Vec<_> = reached.difference(&compiled).collect();
    assert!(unknown.is_empty(), "not compiled: {unknown:?}");
}

/// No launch has a larger cluster than the device runs.
#[test]
fn clusters_are_as_large_as_the_device_runs_them() {
    let largest = |limits| {
        let routes = random(limits, 300).into_iter().map(|route| route.to_string());
        let sizes = routes.flat_map(|route| {
            let clusters = route.split("in clusters of ").skip(1);
            let sizes = clusters.map(|rest| rest[..rest.find(')').expect("its end")].to_owned());
            sizes.collect::<Vec<_>>()
        });
        sizes.map(|size| size.parse().expect("a number")).max().unwrap_or(1)
    };
    for cluster in [1, 2, 4, 8, 16] {
        let limits = Limits::H100.lowered(&format!("cluster={cluster}")).expect("limits");
        assert_eq!(largest(limits), cluster);
    }
    assert_eq!(largest(Limits::A100), 1);
}
