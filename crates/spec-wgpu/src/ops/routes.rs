//! Tests of which entry points a call runs. The devices of these tests compile shaders and execute
//! nothing: wgpu's backend `noop`.

use std::collections::BTreeSet;

use spec_conformance::{Case, Layout, Subject};
use spec_core::ops::topk_router::preset;
use spec_core::ops::*;
use spec_core::{DType, Descriptor, Operator, Route, Supports, TensorDesc};

use crate::shader::Shader;
use crate::{Options, Wgpu};

/// A GPU with subgroups of 32 threads.
fn gpu() -> Wgpu {
    Wgpu::without_device(Some(32), &Options::default())
}

/// A device with WebGPU's default limits and no optional feature.
fn plain(max_binding: Option<u64>) -> Wgpu {
    Wgpu::without_device(None, &Options { plain: true, max_binding })
}

/// The route of a call on a device.
fn route<O: Operator>(gpu: &Wgpu, operator: &O, tensors: &O::Tensors) -> Route
where
    Wgpu: Supports<O>,
{
    let descriptor = Descriptor::create(gpu, operator, tensors).expect("a descriptor");
    descriptor.route().expect("a route")
}

/// The entry points that random calls of every operator run, the first `cases` seeds.
fn random(gpu: &Wgpu, cases: u64) -> BTreeSet<String> {
    fn of<O: Subject>(gpu: &Wgpu, cases: u64, reached: &mut BTreeSet<String>)
    where
        Wgpu: Supports<O>,
    {
        for seed in 0..cases {
            match Case::<O>::of_seed(seed).route(gpu, Layout::PACKED) {
                Ok(route) => reached.extend(route.kernels().map(str::to_owned)),
                // A row may be larger than a small binding.
                Err(failure) => assert!(failure.unsupported, "{} {seed}: {failure}", O::NAME),
            }
        }
    }
    let mut reached = BTreeSet::new();
    macro_rules! all {
        ($($module:ident: $operator:ident,)+) => { $( of::<$operator>(gpu, cases, &mut reached); )+ };
    }
    spec_core::for_each_operator!(all);
    reached
}

/// The entry points that run for data too large for random cases: keys of one binding, of several
/// windows that are bound together, and of windows that are bound one after the other; and indices
/// that no workgroup sorts alone. Tests beside `unique` check the results of such keys.
fn large() -> BTreeSet<String> {
    let windows = Options { plain: false, max_binding: Some(64 << 20) };
    let devices = [gpu(), Wgpu::without_device(Some(32), &windows), plain(Some(16 << 20))];
    let mut reached = BTreeSet::new();
    let mut add = |route: Route| reached.extend(route.kernels().map(str::to_owned));
    for gpu in &devices {
        for dtype in [DType::U32, DType::U64] {
            for (n, counts) in [(1 << 18, false), (24 << 20, true)] {
                let mut tensors = Unique::new().tensors(dtype, n);
                tensors.counts = counts.then(|| TensorDesc::new(DType::U64, [n]));
                add(route(gpu, &Unique::new(), &tensors));
            }
        }
    }
    let operator = DeduplicateTopk::new();
    add(route(&devices[0], &operator, &operator.tensors(2, 1 << 18)));
    reached
}

/// What `unique` does by buckets, which it does only with keys that are bound together.
const BY_BUCKETS: [&str; 10] = [
    "begin",
    "survey",
    "choose",
    "count_firsts",
    "arrange_firsts",
    "partition_first",
    "count_seconds",
    "arrange",
    "partition_second",
    "sort_buckets",
];

/// The entry points of all shaders. The shaders `unique_part..` have the entry points of buckets too,
/// which only `unique_whole..` runs: these are left out.
fn entry_points() -> BTreeSet<String> {
    let of_shader = |shader: &Shader| {
        let module = naga::front::wgsl::parse_str(&shader.text(false)).expect("a shader");
        let is_needed =
            |name: &str| !(shader.name.starts_with("unique_part") && BY_BUCKETS.contains(&name));
        let names = module.entry_points.into_iter().map(|entry| entry.name);
        let names = names.filter(|name| is_needed(name));
        names.map(|name| format!("{}.{name}", shader.name)).collect::<Vec<_>>()
    };
    super::shaders().flat_map(of_shader).collect()
}

/// Each entry point is what some call runs: random cases, whose results the tests of this crate check
/// on a device, or a call of [`large`]. And a call runs only entry points.
#[test]
fn every_entry_point_is_reached() {
    let mut reached = random(&gpu(), 1000);
    reached.extend(random(&plain(None), 200));
    reached.extend(random(&plain(Some(4096)), 200));
    reached.extend(large());
    let all = entry_points();
    let unreached: Vec<_> = all.difference(&reached).collect();
    assert!(unreached.is_empty(), "no call runs {unreached:?}");
    let unknown: Vec<_> = reached.difference(&all).collect();
    assert!(unknown.is_empty(), "no shader has {unknown:?}");
}

/// The entry points that a GPU runs for calls of an engine.
#[test]
fn a_gpu_runs_these_shaders_for_calls_of_an_engine() {
    let gpu = gpu();
    let of = |len: usize| TensorDesc::new(DType::I32, [len]);
    let floats = |len: usize| TensorDesc::new(DType::F32, [len]);
    let adjust = {
        let operator = AdjustLogits::new();
        let tensors = operator.tensors(DType::BF16, 32, 128_256, 32, 4096);
        route(&gpu, &operator, &tensors.repetition(floats(32)))
    };
    let append = AppendTokens::new();
    let append = route(&gpu, &append, &append.tensors(DType::I64, 256, 4096, 8));
    let deduplicate = DeduplicateTopk::new();
    let deduplicate = route(&gpu, &deduplicate, &deduplicate.tensors(64, 2048));
    let tree = DraftTree::new();
    let tree = route(&gpu, &tree, &tree.tensors(DType::I64, 64, 8, 8).budget(of(1)));
    let slots = HotSlots::new();
    let slots = route(&gpu, &slots, &slots.tensors(115, 2048, 4096));
    let hybrid = HybridMtpNgram::new(8);
    let hybrid = route(&gpu, &hybrid, &hybrid.tensors(32, 8192, 8192, 8));
    let ngram = NgramMatch::new();
    let ngram = route(&gpu, &ngram, &ngram.tensors(32, 8192, 8192, 8));
    let topk = |rows, cols, k| {
        let operator = IndexerTopk::new(k);
        route(&gpu, &operator, &operator.tensors(DType::F32, rows, cols))
    };
    let align = MoeAlign::new(256, 64);
    let align = route(&gpu, &align, &align.tensors(DType::I32, 4096, 8));
    let reject = RejectionSample::lossless(4);
    let reject = route(&gpu, &reject, &reject.tensors(64, 256, 128_256));
    let sample = |change: &dyn Fn(sample_logits::Tensors) -> sample_logits::Tensors| {
        let operator = SampleLogits::new();
        route(&gpu, &operator, &change(operator.tensors(64, 128_256)))
    };
    let unique = |n| route(&gpu, &Unique::new(), &Unique::new().tensors(DType::U64, n));
    let router = preset::DEEPSEEK_V3;
    let router = route(&gpu, &router.router(), &router.tensors(DType::BF16, 64));
    let suffix = SuffixLookup::new();
    let suffix = route(&gpu, &suffix, &suffix.tensors(DType::I64, 32, 8192, 8));
    let verify = TreeVerify::new(8);
    let verify = route(&gpu, &verify, &verify.tensors(64, 64));
    let prompt = PromptLookup::new();
    let prompt = route(&gpu, &prompt, &prompt.tensors(DType::I64, 32, 8192));
    let calls = [
        (
            adjust,
            "adjust_logits.clear adjust_logits.open adjust_logits.weigh adjust_logits.count \
             adjust_logits.finish",
        ),
        (append, "append_tokens.decide append_tokens.append"),
        (deduplicate, "deduplicate_topk.main"),
        (
            tree,
            "draft_tree.survive draft_tree.rank draft_tree.keep draft_tree.allot \
             draft_tree.order draft_tree.nodes",
        ),
        (slots, "hot_slots.prepare hot_slots.enter hot_slots.assign hot_slots.answer"),
        (
            hybrid,
            "hybrid_mtp_ngram.prepare hybrid_mtp_ngram.search hybrid_mtp_ngram.choose \
             hybrid_mtp_ngram.copy",
        ),
        (ngram, "ngram_match.prepare ngram_match.search ngram_match.choose ngram_match.copy"),
        (
            topk(1, 8192, 2048),
            "indexer_topk.clear indexer_topk.count indexer_topk.pick indexer_topk.count_chosen \
             indexer_topk.place",
        ),
        (
            topk(64, 1 << 17, 2048),
            "indexer_topk.survey indexer_topk.bound indexer_topk.collect indexer_topk.settle \
             indexer_topk.count_chosen indexer_topk.place",
        ),
        (align, "moe_align.count moe_align.sum moe_align.lay_out moe_align.place"),
        (prompt, "prompt_lookup.prepare prompt_lookup.search prompt_lookup.finish"),
        (reject, "rejection_sample.walk rejection_sample.scan rejection_sample.finish"),
        (
            sample(&|t| t),
            "sample_logits.gather sample_logits.scan sample_logits.open sample_logits.race",
        ),
        (
            sample(&|t| t.top_k(of(64)).top_p(floats(64))),
            "sample_logits.gather sample_logits.scan sample_logits.open sample_logits.spread \
             sample_logits.aim sample_logits.collect sample_logits.cut sample_logits.race",
        ),
        (
            sample(&|t| t.logprobs(floats(64))),
            "sample_logits.gather sample_logits.scan sample_logits.open sample_logits.race \
             sample_logits_report.summarize sample_logits_report.conclude",
        ),
        (suffix, "suffix_lookup.look suffix_lookup.grow suffix_lookup.finish"),
        (router, "topk_router.main"),
        (verify, "tree_verify.main"),
        (
            unique(1 << 12),
            "unique_whole_64.begin unique_whole_64.survey unique_whole_64.choose \
             unique_whole_64.sort_buckets unique_whole_64.heads unique_whole_64.prefix \
             unique_whole_64.compact",
        ),
        (
            unique(1 << 20),
            "unique_whole_64.begin unique_whole_64.survey unique_whole_64.choose \
             unique_whole_64.count_firsts unique_whole_64.arrange \
             unique_whole_64.partition_first unique_whole_64.sort_buckets unique_whole_64.count \
             unique_whole_64.prefix unique_whole_64.scatter unique_whole_64.heads \
             unique_whole_64.compact",
        ),
    ];
    for (given, expected) in calls {
        // An entry point that runs several times counts once.
        let mut names: Vec<_> = given.kernels().collect();
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(*name));
        assert_eq!(names.join(" "), expected);
    }
}
