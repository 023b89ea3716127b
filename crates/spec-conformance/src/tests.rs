//! Tests that the checks can fail, and that random cases cover every branch of the operators.

use std::collections::HashSet;

use spec_core::ops::prompt_lookup::Occurrence::First;
use spec_core::ops::topk_router::{Scoring, Select};
use spec_core::ops::{
    AdjustLogits, DeduplicateTopk, DraftTree, HotSlots, HybridMtpNgram, IndexerTopk, MoeAlign,
    NgramMatch, PromptLookup, RejectionSample, SampleLogits, SuffixLookup, TopkRouter, TreeVerify,
    Unique,
};
use spec_core::philox::{Draw, Purpose};
use spec_core::{DType, Role, exact, race};

use crate::argument::{Argument, find};
use crate::case::{Case, Subject, compare};
use crate::plain::Plain;
use crate::tensor::{Data, Layout, Tensor};
use crate::{Golden, Rng};

#[test]
fn gaps_are_watched() {
    let tensor = Tensor::matrix(vec![1_i32, 2, 3, 4], 2, 2);
    let layout = Layout::gaps(1);
    let mut spread = tensor.spread(layout).into_owned();
    let Data::I32(data) = &mut spread else { panic!("i32 stays i32") };
    assert_eq!((data.len(), &data[..2], &data[3..5]), (6, &[1, 2][..], &[3, 4][..]));
    data[4] = 9;
    let read = tensor.gathered(layout, spread.clone()).expect("only an element changed");
    assert_eq!(read.data.show(3), "9");
    spread.splice(5, &Data::from(vec![0_i32]), 0..1);
    assert_eq!(tensor.gathered(layout, spread).err(), Some(5));
    assert_eq!(tensor.desc(layout).strides(), [3, 1]);
}

#[test]
fn differences_are_found() {
    let expected = Data::from(vec![1.0_f32, f32::NAN, -0.0, 1e-7]);
    let found = |got: Vec<f32>, tolerance| Data::from(got).first_difference(&expected, tolerance);
    assert_eq!(found(vec![1.0, -f32::NAN, -0.0, 1e-7], None), None);
    assert_eq!(found(vec![1.0, f32::NAN, 0.0, 1e-7], None), Some(2));
    assert_eq!(found(vec![1.00001, f32::NAN, 0.0, 0.0], Some(2e-5)), None);
    assert_eq!(found(vec![1.0001, f32::NAN, 0.0, 0.0], Some(2e-5)), Some(0));
    assert_eq!(found(vec![1.0, 0.0, -0.0, 1e-7], Some(2e-5)), Some(1));
    let tensor = |value| Tensor::matrix(vec![0_i32, 0, 0, value], 2, 2);
    let argument = |value| [Argument { name: "x", role: Role::Output, tensor: tensor(value) }];
    assert!(compare(&argument(5), &argument(5), |_| None).is_none());
    let failure = compare(&argument(5), &argument(6), |_| None).expect("5 is not 6");
    assert_eq!(failure.in_case("c").to_string(), "c: x[1, 1]: got 5, expected 6");
}

/// Every run has cases that take long, and no run spends most of its time on them.
#[test]
fn rare_seeds_are_rare_everywhere() {
    for n in [2, 12, 100, 1000] {
        for first in [1, 1 << 40, u64::MAX - 7 * n] {
            let seeds = (0..20 * n).map(|seed| first.wrapping_add(seed));
            let rare: Vec<bool> = seeds.map(|seed| Rng::new(seed, "x").rare(n)).collect();
            let count = rare.iter().filter(|rare| **rare).count();
            assert!((18..23).contains(&count), "{count} of {}", 20 * n);
            assert!(rare.windows(2 * n as usize).all(|some| some.contains(&true)), "one in {n}");
        }
        assert!(Rng::new(1, "x").rare(n) && Rng::new(1, "x").rare(100 * n));
    }
}

#[test]
fn sizes_are_of_every_length() {
    let mut rng = Rng::new(3, "sizes");
    for high in [0, 1, 2, 7, 24, 1000] {
        let drawn: Vec<usize> = (0..40_000).map(|_| rng.size(high)).collect();
        assert_eq!((drawn.iter().min(), drawn.iter().max()), (Some(&0), Some(&high)));
        for low in (0..10).map(|bits| 1 << bits).filter(|low| 2 * low - 1 <= high) {
            let within = share(drawn.iter().map(|size| (low..2 * low).contains(size)));
            let fair = 0.9375 / f64::from(high.ilog2() + 1);
            assert!((within / fair - 1.0).abs() < 0.25, "{low} of {high}: {within}");
        }
    }
}

/// Every input that can have 64 bits has numbers beyond 32 bits in some cases, so a backend that
/// narrows such an input fails.
#[test]
fn inputs_of_64_bits_pass_32() {
    passes_32::<AdjustLogits>();
    passes_32::<DeduplicateTopk>();
    passes_32::<HotSlots>();
    passes_32::<HybridMtpNgram>();
    passes_32::<IndexerTopk>();
    passes_32::<MoeAlign>();
    passes_32::<NgramMatch>();
    passes_32::<PromptLookup>();
    passes_32::<RejectionSample>();
    passes_32::<SampleLogits>();
    passes_32::<SuffixLookup>();
    passes_32::<TopkRouter>();
    passes_32::<TreeVerify>();
    passes_32::<Unique>();
}

fn passes_32<O: Subject>() {
    let cases: Vec<Case<O>> =
        (0..300).map(|seed| Case::random(&mut Rng::new(seed, O::NAME))).collect();
    let wide = |tensor: &Tensor| match &tensor.data {
        Data::I64(values) => values.iter().any(|&value| i32::try_from(value).is_err()),
        _ => false,
    };
    for argument in O::ARGUMENTS {
        if argument.role != Role::Output && argument.dtypes.contains(&DType::I64) {
            let met = cases.iter().filter(|case| case.get(argument.name).is_some_and(wide)).count();
            assert!(met >= 3, "{}: {met} of 300 cases have a wide {}", O::NAME, argument.name);
        }
    }
}

/// The random cases with the seeds `0..count`, and their results on the plain loops.
fn results<O: Subject>(count: u64) -> Vec<(Case<O>, Vec<Argument>)> {
    let plain = Plain::default();
    (0..count)
        .map(|seed| {
            let case = Case::<O>::random(&mut Rng::new(seed, O::NAME));
            let results = case.run(&plain, Layout::PACKED).unwrap_or_else(|f| panic!("{f}"));
            (case, results)
        })
        .collect()
}

fn integers(results: &[Argument], name: &str) -> Vec<i64> {
    match find(results, name).map(|tensor| tensor.data.clone()) {
        Some(Data::I32(data)) => data.into_iter().map(i64::from).collect(),
        Some(Data::U32(data)) => data.into_iter().map(i64::from).collect(),
        Some(Data::I64(data)) => data,
        _ => Vec::new(),
    }
}

/// The flags that at least one of the runs raised.
fn flags<O: Subject>(runs: &[(Case<O>, Vec<Argument>)]) -> i64 {
    runs.iter().flat_map(|(_, results)| integers(results, "flags")).fold(0, |a, b| a | b) & 0xFF
}

fn share(of: impl Iterator<Item = bool>) -> f64 {
    let (mut yes, mut all) = (0, 0);
    for is in of {
        yes += usize::from(is);
        all += 1;
    }
    f64::from(yes as u32) / f64::from(all.max(1))
}

/// Checks that a share is between a tenth and nine tenths, so that neither side is neglected.
fn balanced(share: f64, what: &str) {
    assert!((0.1..0.9).contains(&share), "{what}: {share:.2}");
}

#[test]
fn random_rejections_get_everywhere() {
    let runs = results::<RejectionSample>(300);
    assert_eq!(flags(&runs), 7);
    let all = |name| runs.iter().flat_map(move |(_, results)| integers(results, name));
    balanced(share(all("accepted_counts").map(|n| n > 0)), "requests that accept");
    balanced(share(all("recovered_counts").map(|n| n > 0)), "requests that recover");
    balanced(share(all("bonus_counts").map(|n| n > 0)), "requests with a bonus");
    let given = |name| share(runs.iter().map(|(case, _)| case.get(name).is_some()));
    balanced(given("draft_probs"), "cases with draft_probs");
    balanced(given("uniform_samples"), "cases with uniform_samples");
    balanced(given("seeds"), "cases with seeds");
    balanced(given("greedy"), "cases with greedy requests");
    let bare = |(case, _): &(Case<RejectionSample>, _)| {
        let rows = |name| case.get(name).map(Tensor::rows);
        rows("cu_num_draft") == rows("bonus_token_ids")
    };
    balanced(share(runs.iter().map(bare)), "offsets without a leading 0");
    for name in ["draft_token_ids", "bonus_token_ids", "cu_num_draft", "output_token_ids"] {
        for dtype in [DType::I32, DType::U32, DType::I64] {
            let is = |(case, _): &(Case<RejectionSample>, _)| {
                case.get(name).is_some_and(|ids| ids.data.dtype() == dtype)
            };
            balanced(share(runs.iter().map(is)), name);
        }
    }
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
}

#[test]
fn random_drafts_get_everywhere() {
    fn check<O: Subject>() {
        let runs = results::<O>(300);
        assert_eq!(flags(&runs), 4);
        let written = |(case, results): &(Case<O>, Vec<Argument>)| {
            let name = "draft_tokens";
            let (before, after) = (integers(&case.arguments, name), integers(results, name));
            (!before.is_empty()).then(|| before != after)
        };
        balanced(share(runs.iter().filter_map(written)), "cases with drafts");
        let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
        balanced(share(good), "cases without bad data");
    }
    check::<NgramMatch>();
    check::<HybridMtpNgram>();
}

#[test]
fn random_texts_get_everywhere() {
    let runs = results::<PromptLookup>(300);
    assert_eq!(flags(&runs), 4);
    let drafts = runs.iter().flat_map(|(_, results)| integers(results, "counts"));
    balanced(share(drafts.map(|n| n > 0)), "requests with drafts");
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
    balanced(share(runs.iter().map(|(case, _)| case.operator.occurrence == First)), "first");
    let columns =
        runs.iter().map(|(case, _)| case.get("lengths").is_some_and(|t| t.shape.len() == 2));
    balanced(share(columns), "lengths as a column");
    balanced(share(runs.iter().map(|(case, _)| case.operator.pad_with_last)), "padded");
    are_in_slots(&runs);
    let runs = results::<SuffixLookup>(300);
    assert_eq!(flags(&runs), 4);
    balanced(share(runs.iter().map(|(case, _)| case.operator.pad_with_last)), "padded");
    are_in_slots(&runs);
}

/// Checks that texts lie in slots in some cases, with requests of every kind, and with limits.
fn are_in_slots<O: Subject>(runs: &[(Case<O>, Vec<Argument>)]) {
    let is = |of: fn(&Case<O>) -> bool| share(runs.iter().map(|(case, _)| of(case)));
    balanced(is(|case| case.get("requests").is_some()), "cases with requests");
    balanced(is(|case| case.get("max_drafts").is_some()), "cases with limits");
    let is_wide = |case: &Case<O>| {
        let dtype = |name| case.get(name).map(|tensor| tensor.data.dtype());
        dtype("drafts") != dtype("tokens")
    };
    balanced(is(is_wide), "drafts wider than tokens");
    let requests: Vec<(i64, usize)> = runs
        .iter()
        .flat_map(|(case, _)| {
            let slots = case.get("tokens").map_or(0, Tensor::rows);
            let requests = integers(&case.arguments, "requests");
            requests.into_iter().map(move |request| (request, slots))
        })
        .collect();
    let is_known = |&(request, slots): &(i64, usize)| {
        usize::try_from(request).is_ok_and(|request| request < slots)
    };
    balanced(share(requests.iter().map(is_known)), "requests with a text");
    let others = || requests.iter().filter(|request| !is_known(request));
    balanced(share(others().map(|(request, _)| *request == -1)), "requests that are padding");
}

#[test]
fn random_trees_get_everywhere() {
    let runs = results::<TreeVerify>(300);
    assert_eq!(flags(&runs), 6);
    let is = |of: fn(&Case<TreeVerify>) -> bool| share(runs.iter().map(|(case, _)| of(case)));
    let is_packed = |case: &Case<TreeVerify>, name| {
        case.get(name).is_some_and(|tokens| tokens.shape.len() == 1)
    };
    balanced(is(|case| case.get("first_child").is_some()), "trees");
    balanced(is(|case| case.get("row_offsets").is_some()), "packed rows");
    let packed_drafts = runs.iter().map(|(case, _)| is_packed(case, "draft_tokens"));
    balanced(share(packed_drafts), "packed drafts");
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
    for has_links in [false, true] {
        let of_form =
            runs.iter().filter(|(case, _)| case.get("first_child").is_some() == has_links);
        let kept = of_form.flat_map(|(_, results)| integers(results, "num_tokens"));
        balanced(share(kept.map(|count| count > 1)), "requests that keep drafts");
    }
    let packed = runs.iter().filter(|(case, _)| case.get("row_offsets").is_some());
    let counts: Vec<i64> =
        packed.flat_map(|(_, results)| integers(results, "num_tokens")).collect();
    assert!(counts.contains(&0), "some requests have no rows");
}

#[test]
fn random_draft_trees_get_everywhere() {
    let runs = results::<DraftTree>(400);
    assert_eq!(flags(&runs), 5);
    let is = |of: fn(&Case<DraftTree>) -> bool| share(runs.iter().map(|(case, _)| of(case)));
    balanced(is(|case| case.operator.cumulative), "shares of the whole way");
    balanced(is(|case| case.operator.min_drafts > 0), "drafts that come before all others");
    balanced(is(|case| case.operator.min_survival > 0.0), "a least survival");
    for name in ["parents", "counts", "trust", "finished", "budget", "masks", "row_offsets", "rows"]
    {
        balanced(share(runs.iter().map(|(case, _)| case.get(name).is_some())), name);
    }
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
    let drafts = runs.iter().flat_map(|(_, results)| integers(results, "num_drafts"));
    balanced(share(drafts.map(|count| count > 0)), "requests with drafts");
    // A budget cuts some requests whose trees would be larger alone.
    let cut =
        runs.iter().filter(|(case, _)| case.get("budget").is_some()).map(|(case, results)| {
            let mut alone = case.clone();
            alone.arguments.retain(|argument| argument.name != "budget");
            let alone = alone.run(&Plain::default(), Layout::PACKED).expect("the plain loop runs");
            integers(&alone, "num_drafts") != integers(results, "num_drafts")
        });
    balanced(share(cut), "batches that a budget cuts");
    let depths = runs.iter().flat_map(|(_, results)| integers(results, "depths"));
    balanced(share(depths.filter(|depth| *depth > 0).map(|depth| depth > 2)), "deep nodes");
}

#[test]
fn random_routers_get_everywhere() {
    let runs = results::<TopkRouter>(200);
    assert_eq!(flags(&runs), 7);
    for name in ["num_tokens", "replicas", "load"] {
        balanced(share(runs.iter().map(|(case, _)| case.get(name).is_some())), name);
    }
    balanced(share(runs.iter().map(|(case, _)| case.operator.shared_experts > 0)), "shared");
    balanced(share(runs.iter().map(|(case, _)| case.operator.select == Select::Logit)), "logits");
    for scoring in [Scoring::Sigmoid, Scoring::Softmax, Scoring::SqrtSoftplus] {
        let is = runs.iter().map(|(case, _)| case.operator.scoring == scoring);
        balanced(share(is), "a way to score");
    }
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
    balanced(share(runs.iter().map(|(case, _)| case.operator.groups > 1)), "grouped");
    balanced(share(runs.iter().map(|(case, _)| case.get("bias").is_some())), "biased");
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let is = |(case, _): &(Case<TopkRouter>, _)| {
            case.get("x").is_some_and(|x| x.data.dtype() == dtype)
        };
        balanced(share(runs.iter().map(is)), dtype.name());
    }
}

#[test]
fn random_sets_get_everywhere() {
    let duplicates = |(case, results): &(Case<Unique>, Vec<Argument>)| {
        let rows = |of: &[Argument], name| find(of, name).map_or(0, Tensor::rows);
        rows(results, "unique") < rows(&case.arguments, "keys")
    };
    balanced(share(results::<Unique>(100).iter().map(duplicates)), "duplicate keys");
    let padded = |(_, results): &(Case<DeduplicateTopk>, Vec<Argument>)| {
        integers(results, "unique").contains(&-1)
    };
    balanced(share(results::<DeduplicateTopk>(100).iter().map(padded)), "padded rows");
}

#[test]
fn random_slots_get_everywhere() {
    let runs = results::<HotSlots>(300);
    assert_eq!(flags(&runs), 6);
    for name in ["requests", "reset", "tail_starts", "block_table", "pages"] {
        balanced(share(runs.iter().map(|(case, _)| case.get(name).is_some())), name);
    }
    let good = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 0xFF == 0);
    balanced(share(good), "cases without bad data");
    let ran_out = runs.iter().map(|(_, results)| integers(results, "flags")[0] & 4 != 0);
    balanced(share(ran_out), "cases that lack slots, or with bad requests or tail starts");
    let fetches = runs.iter().flat_map(|(_, results)| integers(results, "fetches"));
    balanced(share(fetches.map(|n| n > 0)), "rows that fetch");
    let has_hits = |(_, results): &(Case<HotSlots>, Vec<Argument>)| {
        let fetched: HashSet<i64> = integers(results, "fetch_slots").into_iter().collect();
        integers(results, "slots").iter().any(|slot| !fetched.contains(slot))
    };
    balanced(share(runs.iter().map(has_hits)), "cases with hits or entries outside of the slots");
    let placed = runs.iter().flat_map(|(_, results)| integers(results, "slots"));
    balanced(share(placed.map(|slot| slot >= 0)), "entries with a place");
    // Every length for which a backend has code of its own.
    let longest = |name| {
        runs.iter().filter_map(|(case, _)| case.get(name)).map(Tensor::cols).max().unwrap_or(0)
    };
    assert!(longest("wanted") > 8192 && longest("resident") > 8192);
}

/// Noise and exponential variates have the bits that an independent implementation computed.
#[test]
fn noise_is_that_of_the_vectors() {
    let json: serde_json::Value =
        serde_json::from_str(include_str!("../golden/race.json")).unwrap();
    let pairs = |name: &str| -> Vec<[u64; 2]> {
        serde_json::from_value(json[name].clone()).expect("pairs of a fraction and bits")
    };
    for bits in [33, 64] {
        for [n, expected] in pairs(&format!("exponential_{bits}")) {
            assert_eq!(u64::from(exact::exponential(n, bits).to_bits()), expected, "{n}, {bits}");
        }
    }
    let cases = json["noise"].as_array().expect("cases of noise");
    assert!(!cases.is_empty());
    for case in cases {
        let purposes = [Purpose::Sample, Purpose::Accept, Purpose::Recover];
        let number = |name: &str| &case[name];
        let purpose = purposes[number("purpose").as_u64().unwrap() as usize];
        let seed = number("seed").as_u64().unwrap();
        let draw = Draw::at(seed, number("position").as_i64().unwrap(), purpose);
        let first = case["first_tokens"].as_array().unwrap();
        let first = first.iter().enumerate().map(|(token, bits)| (token as u32, bits));
        let others = case["tokens"].as_object().unwrap();
        let others = others.iter().map(|(token, bits)| (token.parse().unwrap(), bits));
        for (token, bits) in first.chain(others) {
            let noise = race::noise(draw, token);
            assert_eq!(Some(u64::from(noise.to_bits())), bits.as_u64(), "{draw:?}, {token}");
        }
    }
}

/// The plain loops, with which random cases are compared, give the golden vectors, which an
/// independent implementation computed.
#[test]
fn plain_loops_give_the_golden_vectors() {
    for report in crate::check_golden(&Plain::default(), &Golden::Embedded, &mut |_| {}).unwrap() {
        assert!(report.failures.is_empty(), "{report:?}");
    }
}
