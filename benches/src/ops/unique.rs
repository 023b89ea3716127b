//! Keys whose distinct values are known from how they were made: each key is a rank,
//! scrambled by a function that can be inverted.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::inputs::{random, seed};
use crate::shape::{Fields, ShapeError, words_of};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::Unique;
use spec_conformance::Failure;
use spec_conformance::{Argument, Case, find};
use spec_conformance::{Data, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    keys: usize,
    /// Bits in which keys differ.
    bits: u32,
    set: Set,
    dtype: DType,
    /// Whether each key is looked up among the distinct ones.
    inverse: bool,
}

/// How keys are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Set {
    /// Random numbers; one key in eight occurs twice.
    Uniform,
    /// The k-th most frequent key occurs about 1/k times as often as the most frequent.
    Zipf,
    /// Half of the keys have one of 64 values, the others are random.
    Heavy,
    /// Keys in a small part of the range, and one key at the end of the range.
    Bunched,
    /// Ascending keys; one key in eight occurs twice.
    Sorted,
    /// The keys of `Sorted` in descending order.
    Descending,
    /// The keys of `Sorted`, but one key in a thousand is replaced by an arbitrary key.
    Nearly,
    /// All keys are equal.
    Constant,
}

/// With more keys, a CPU takes minutes for some designs.
const MANY: usize = 1 << 28;

/// Keys, bits, and the goals on an H200 in microseconds.
const GOALS: [(usize, u32, f64); 5] = [
    (1 << 20, 64, 50.0),
    (1 << 24, 64, 400.0),
    (1 << 27, 64, 3000.0),
    (500_000_000, 64, 12_000.0),
    (500_000_000, 30, 7000.0),
];

impl Measured for Unique {
    type Shape = Shape;

    const SMALL: &str = "keys=5000,set=zipf";

    fn table() -> Vec<Entry<Shape>> {
        let dtype = DType::U64;
        let shape = |keys, bits, set| Shape { keys, bits, set, dtype, inverse: false };
        let goals = GOALS.map(|(keys, bits, goal)| {
            Entry::goal(shape(keys, bits, Set::Uniform), goal).quick_if(keys == 1 << 20)
        });
        let more = [
            shape(1 << 20, 30, Set::Uniform),
            shape(1 << 24, 30, Set::Uniform),
            shape(1 << 24, 40, Set::Uniform),
            shape(1 << 24, 64, Set::Zipf),
            shape(1 << 24, 64, Set::Heavy),
            shape(1 << 24, 64, Set::Bunched),
            shape(1 << 24, 64, Set::Descending),
            shape(1 << 24, 64, Set::Nearly),
            shape(1 << 24, 64, Set::Constant),
        ];
        let more = more.map(|shape| Entry::plain(shape).quick_if(shape.keys == 1 << 20));
        let sorted = Entry::goal(shape(1 << 24, 64, Set::Sorted), 160.0);
        let inverse = |keys, set| Shape { inverse: true, ..shape(keys, 64, set) };
        let inverses = [
            Entry::plain(inverse(1 << 20, Set::Uniform)).quick_if(true),
            Entry::goal(inverse(1 << 24, Set::Uniform), 1200.0),
            Entry::plain(inverse(1 << 24, Set::Zipf)),
        ];
        let mut table: Vec<_> =
            goals.into_iter().chain(more).chain([sorted]).chain(inverses).collect();
        // The slowest rows come last, so that stopping a run early loses only them.
        table.sort_by_key(|entry| entry.shape.keys > MANY);
        table
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        let dtype = fields.dtype(&[DType::U64, DType::U32])?;
        let width = dtype.size() * 8;
        Ok(Shape {
            keys: fields.number("keys", 1 << 20, 1..=1 << 34)?,
            bits: fields.number("bits", width, 2..=width)? as u32,
            set: fields.word(
                "set",
                &[
                    ("uniform", Set::Uniform),
                    ("zipf", Set::Zipf),
                    ("heavy", Set::Heavy),
                    ("bunched", Set::Bunched),
                    ("sorted", Set::Sorted),
                    ("descending", Set::Descending),
                    ("nearly", Set::Nearly),
                    ("constant", Set::Constant),
                ],
            )?,
            dtype,
            inverse: fields.word("inverse", &[("no", false), ("yes", true)])?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { keys, bits, set, dtype, inverse } = *shape;
        let mut series = match set {
            Set::Uniform => format!("{bits} bits"),
            Set::Zipf => "zipf".to_owned(),
            Set::Heavy => "64 heavy".to_owned(),
            Set::Bunched => "bunched".to_owned(),
            Set::Sorted => "sorted".to_owned(),
            Set::Descending => "descending".to_owned(),
            Set::Nearly => "nearly sorted".to_owned(),
            Set::Constant => "constant".to_owned(),
        };
        if set != Set::Uniform && bits as usize != dtype.size() * 8 {
            series += &format!(", {bits} bits");
        }
        if dtype != DType::U64 {
            series += &format!(", {dtype}");
        }
        if inverse {
            series += ", inverse";
        }
        let shape = format!("{} keys, {series}", words_of(keys));
        Words { shape, series, size: keys as f64, unit: "keys" }
    }

    fn memory(shape: &Shape) -> u64 {
        let each = 2 * shape.dtype.size() + if shape.inverse { DType::I64.size() } else { 0 };
        (shape.keys * each) as u64
    }

    fn slow(shape: &Shape) -> bool {
        shape.keys > MANY
    }

    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { keys: n, dtype, inverse, .. } = *shape;
        let spread = Spread::new(shape);
        let ranks = spread.ranks(n, seed(&[n, shape.bits as usize]));
        let distinct = Distinct::of(&ranks, spread);
        let mut bytes = (n + distinct.count) as u64 * dtype.size() as u64;
        let looked_up = inverse.then(|| ranks.clone());
        let keys: Data = match dtype {
            DType::U32 => {
                ranks.into_par_iter().map(|rank| spread.key(rank) as u32).collect::<Vec<_>>().into()
            }
            _ => {
                let mut keys = ranks;
                keys.par_iter_mut().for_each(|rank| *rank = spread.key(*rank));
                keys.into()
            }
        };
        let case = Case::new(Unique::new())
            .input("keys", Tensor::vector(keys))
            .output("unique", dtype)
            .output("count", DType::U64);
        let case = if inverse {
            bytes += n as u64 * DType::I64.size() as u64;
            case.output("inverse", DType::I64)
        } else {
            case
        };
        let words = "the keys that were made, every element";
        let check = move |results: &[Argument]| {
            let failure = distinct.check(results);
            let Some(ranks) = looked_up.as_ref().filter(|_| failure.is_none()) else {
                return failure;
            };
            distinct.check_inverse(results, ranks)
        };
        Ok(Work::new(case, bytes).expecting(words, check))
    }
}

/// From ranks to keys and back.
#[derive(Clone, Copy, Debug)]
struct Spread {
    set: Set,
    bits: u32,
    /// Ranks are below this.
    ranks: u64,
}

/// The odd factor that scrambles ranks. Multiplying by an odd number can be inverted modulo any
/// power of two.
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

impl Spread {
    fn new(shape: &Shape) -> Self {
        let Shape { keys, bits, set, .. } = *shape;
        let all = if bits < 64 { 1 << bits } else { u64::MAX };
        let keys = keys as u64;
        let ranks = match set {
            Set::Zipf | Set::Heavy => keys,
            Set::Constant => 1,
            _ => keys - keys / 8,
        };
        let all = if set == Set::Bunched { all.isqrt() } else { all };
        Spread { set, bits, ranks: ranks.min(all) }
    }

    /// The rank of each of `n` keys.
    fn ranks(&self, n: usize, seed: u64) -> Vec<u64> {
        let ranks = self.ranks;
        match self.set {
            Set::Uniform | Set::Bunched | Set::Constant => {
                (0..n as u64).into_par_iter().map(|i| i % ranks).collect()
            }
            Set::Sorted | Set::Descending | Set::Nearly => {
                let (n, wide) = (n as u64, u128::from(ranks));
                let at = |i: u64| (u128::from(i) * wide / u128::from(n)) as u64;
                let stray = |i: u64| i.wrapping_mul(FACTOR) % ranks;
                (0..n)
                    .into_par_iter()
                    .map(|i| match self.set {
                        Set::Descending => at(n - 1 - i),
                        Set::Nearly if i % 1000 == 999 => stray(i),
                        _ => at(i),
                    })
                    .collect()
            }
            Set::Heavy => random(seed, n, |rng| {
                let bits = rng.next();
                if bits % 2 == 0 { bits / 2 % ranks.min(64) } else { bits / 2 % ranks }
            }),
            Set::Zipf => {
                let max = (ranks as f64 + 1.0).ln();
                random(seed, n, |rng| {
                    let uniform = (rng.next() >> 11) as f64 / (1u64 << 53) as f64;
                    // At least 1; rounding may give `ranks` + 1, so the rank is clamped.
                    ((uniform * max).exp() as u64).clamp(1, ranks) - 1
                })
            }
        }
    }

    fn mask(&self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// The difference between the keys of neighbouring ranks in a sorted set.
    fn step(&self) -> u64 {
        (self.mask() / self.ranks).max(1)
    }

    /// Whether each key is its rank times [`step`](Self::step).
    fn is_even(&self) -> bool {
        matches!(self.set, Set::Sorted | Set::Descending | Set::Nearly)
    }

    /// Folds the upper half of the bits into the lower half. The function is its own inverse.
    fn fold(&self, x: u64) -> u64 {
        x ^ (x >> self.bits.div_ceil(2))
    }

    fn key(&self, rank: u64) -> u64 {
        if self.is_even() {
            return rank * self.step();
        }
        if self.set == Set::Bunched {
            // The factor is odd and `part` a power of two, so each key belongs to one rank only.
            let part = self.ranks.next_power_of_two();
            let inside = rank.wrapping_mul(FACTOR) % part;
            return if rank + 1 == self.ranks { self.mask() } else { inside };
        }
        // Adding 1 makes sure that the key of a constant set is not 0.
        let x = (rank + 1).wrapping_mul(FACTOR) & self.mask();
        self.fold(self.fold(x).wrapping_mul(FACTOR) & self.mask())
    }

    /// The rank with this key, if there is one.
    fn rank(&self, key: u64) -> Option<u64> {
        let rank = if self.is_even() {
            key.is_multiple_of(self.step()).then(|| key / self.step())?
        } else if self.set == Set::Bunched {
            let part = self.ranks.next_power_of_two();
            if key == self.mask() {
                self.ranks - 1
            } else {
                key.wrapping_mul(inverse(FACTOR)) % part
            }
        } else {
            let undo = inverse(FACTOR);
            let x = self.fold(self.fold(key).wrapping_mul(undo) & self.mask());
            (x.wrapping_mul(undo) & self.mask()).wrapping_sub(1) & self.mask()
        };
        (rank < self.ranks && self.key(rank) == key).then_some(rank)
    }
}

/// The inverse of an odd number modulo 2^64, by Newton's method: three bits are right
/// at first, and each step doubles the number of right bits.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |x, _| x.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// The ranks that occur in a set of keys.
struct Distinct {
    spread: Spread,
    /// A bitmap with one bit per rank.
    seen: Vec<u64>,
    count: usize,
}

impl Distinct {
    fn of(ranks: &[u64], spread: Spread) -> Self {
        let mut seen = vec![0u64; spread.ranks.div_ceil(64) as usize];
        for rank in ranks {
            seen[(rank / 64) as usize] |= 1 << (rank % 64);
        }
        let count = seen.iter().map(|word| word.count_ones() as usize).sum();
        Distinct { spread, seen, count }
    }

    /// Checks that the results have the right number of keys, that the keys ascend, and that
    /// each key occurs in the input. Together this means that the results are right.
    fn check(&self, results: &[Argument]) -> Option<Failure> {
        let wrong = |argument: &str, index: Option<usize>, got: String, expected: String| {
            let index = index.map(|index| Box::from([index]));
            Some(Failure { index, got, ..Failure::of(argument, expected) })
        };
        let count = match find(results, "count").map(|tensor| &tensor.data) {
            Some(Data::U64(count)) => count[0],
            _ => return Some(Failure::of("count", "a u64")),
        };
        if count != self.count as u64 {
            return wrong("count", Some(0), count.to_string(), self.count.to_string());
        }
        let Some(keys) = distinct_keys(results) else {
            return Some(Failure::of("unique", "keys"));
        };
        if keys.len() != self.count {
            let got = format!("{} keys", keys.len());
            return wrong("unique", None, got, self.count.to_string());
        }
        let is_there = |key: u64| {
            let word = |rank: u64| self.seen.get((rank / 64) as usize).copied().unwrap_or(0);
            self.spread.rank(key).is_some_and(|rank| word(rank) >> (rank % 64) & 1 == 1)
        };
        let bad = keys
            .par_iter()
            .enumerate()
            .position_first(|(i, key)| !is_there(*key) || i > 0 && keys[i - 1] >= *key)?;
        let got = match bad {
            0 => keys[0].to_string(),
            _ => format!("{} after {}", keys[bad], keys[bad - 1]),
        };
        wrong("unique", Some(bad), got, "the next larger key of the input".to_owned())
    }

    /// Checks that each key is the distinct key that `inverse` names.
    fn check_inverse(&self, results: &[Argument], ranks: &[u64]) -> Option<Failure> {
        let (Some(keys), Some(Data::I64(inverse))) =
            (distinct_keys(results), find(results, "inverse").map(|tensor| &tensor.data))
        else {
            return Some(Failure::of("inverse", "i64 places of keys"));
        };
        let there = |place: i64| keys.get(usize::try_from(place).ok()?).copied();
        let is_wrong = |(place, rank): (&i64, &u64)| there(*place) != Some(self.spread.key(*rank));
        let bad = inverse.par_iter().zip(ranks).position_first(is_wrong)?;
        Some(Failure {
            index: Some(Box::from([bad])),
            got: format!("{}, where {:?} is", inverse[bad], there(inverse[bad])),
            ..Failure::of("inverse", format!("the place of {}", self.spread.key(ranks[bad])))
        })
    }
}

/// The distinct keys among the results.
fn distinct_keys(results: &[Argument]) -> Option<Cow<'_, [u64]>> {
    match find(results, "unique").map(|tensor| &tensor.data) {
        Some(Data::U64(keys)) => Some(Cow::Borrowed(keys)),
        Some(Data::U32(keys)) => Some(keys.iter().copied().map(u64::from).collect()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = Shape> {
        let sets = [
            Set::Uniform,
            Set::Zipf,
            Set::Heavy,
            Set::Bunched,
            Set::Sorted,
            Set::Descending,
            Set::Nearly,
            Set::Constant,
        ];
        sets.into_iter().flat_map(|set| {
            [64, 63, 33, 30, 17].map(|bits| Shape {
                keys: 5000,
                bits,
                set,
                dtype: DType::U64,
                inverse: false,
            })
        })
    }

    #[test]
    fn keys_go_back_to_their_ranks() {
        assert_eq!(inverse(FACTOR).wrapping_mul(FACTOR), 1);
        for shape in shapes() {
            let spread = Spread::new(&shape);
            let keys: Vec<u64> = (0..spread.ranks).map(|rank| spread.key(rank)).collect();
            for (rank, key) in keys.iter().enumerate() {
                assert!(*key <= spread.mask(), "{shape:?}: {key}");
                assert_eq!(spread.rank(*key), Some(rank as u64), "{shape:?}");
            }
            let strangers = (0..2000).filter(|key| !keys.contains(key));
            assert!(strangers.into_iter().all(|key| spread.rank(key).is_none()), "{shape:?}");
        }
    }

    #[test]
    fn sets_are_spread_as_they_say() {
        for shape in shapes() {
            let spread = Spread::new(&shape);
            let ranks = spread.ranks(shape.keys, 7);
            let keys: Vec<u64> = ranks.iter().map(|rank| spread.key(*rank)).collect();
            let mut distinct = keys.clone();
            distinct.sort_unstable();
            distinct.dedup();
            assert_eq!(Distinct::of(&ranks, spread).count, distinct.len());
            match shape.set {
                Set::Uniform => assert_eq!(distinct.len(), 4375),
                Set::Sorted => assert!(keys.is_sorted() && distinct.len() == 4375),
                Set::Descending => assert!(keys.is_sorted_by(|a, b| a >= b)),
                Set::Nearly => {
                    let falls = keys.windows(2).filter(|two| two[0] > two[1]).count();
                    assert!((1..=10).contains(&falls), "{falls}");
                }
                Set::Heavy => {
                    let often = ranks.iter().filter(|rank| **rank < 64).count();
                    assert!((2400..2700).contains(&often), "{often}");
                }
                Set::Bunched => {
                    let (last, rest) = distinct.split_last().unwrap();
                    assert_eq!(*last, spread.mask());
                    assert!(rest.iter().all(|key| *key < spread.ranks.next_power_of_two()));
                }
                Set::Constant => assert!(distinct.len() == 1 && distinct[0] != 0),
                Set::Zipf => {
                    // The k-th key has the probability ln((k + 1) / k) / ln 5001.
                    let often = |below| ranks.iter().filter(|rank| **rank < below).count();
                    assert!((350..470).contains(&often(1)), "{}", often(1));
                    assert!((1320..1500).contains(&often(10)), "{}", often(10));
                    assert!((1200..2500).contains(&distinct.len()), "{}", distinct.len());
                }
            }
        }
    }
}
