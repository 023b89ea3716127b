//! Tests that the checks can fail, and that random cases cover every branch of the operators.

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
    macro_rules! check {
        ($($module:ident: $operator:ident,)+) => { $( passes_32::<spec_core::ops::$operator>(); )+ };
    }
    spec_core::for_each_operator!(check);
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
pub(crate) fn results<O: Subject>(count: u64) -> Vec<(Case<O>, Vec<Argument>)> {
    let plain = Plain::default();
    (0..count)
        .map(|seed| {
            let case = Case::<O>::random(&mut Rng::new(seed, O::NAME));
            let results = case.run(&plain, Layout::PACKED).unwrap_or_else(|f| panic!("{f}"));
            (case, results)
        })
        .collect()
}

pub(crate) fn integers(results: &[Argument], name: &str) -> Vec<i64> {
    match find(results, name).map(|tensor| tensor.data.clone()) {
        Some(Data::I32(data)) => data.into_iter().map(i64::from).collect(),
        Some(Data::U32(data)) => data.into_iter().map(i64::from).collect(),
        Some(Data::I64(data)) => data,
        _ => Vec::new(),
    }
}

/// The flags that at least one of the runs raised.
pub(crate) fn flags<O: Subject>(runs: &[(Case<O>, Vec<Argument>)]) -> i64 {
    runs.iter().flat_map(|(_, results)| integers(results, "flags")).fold(0, |a, b| a | b) & 0xFF
}

pub(crate) fn share(of: impl Iterator<Item = bool>) -> f64 {
    let (mut yes, mut all) = (0, 0);
    for is in of {
        yes += usize::from(is);
        all += 1;
    }
    f64::from(yes as u32) / f64::from(all.max(1))
}

/// Checks that a share is between a tenth and nine tenths, so that neither side is neglected.
pub(crate) fn balanced(share: f64, what: &str) {
    assert!((0.1..0.9).contains(&share), "{what}: {share:.2}");
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
