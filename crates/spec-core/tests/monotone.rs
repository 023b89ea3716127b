//! How far the exact functions are from monotone, over all f32. The documentation of the
//! functions states these numbers; these tests fail if a change of the functions changes them.

use std::thread;

use spec_core::exact;

/// The float at index `order` of all floats in ascending order. The inverse of [`order`].
fn float(order: u64) -> f32 {
    let order = order as u32;
    f32::from_bits(if order >> 31 == 1 { order & 0x7FFF_FFFF } else { !order })
}

fn order(value: f32) -> u64 {
    let bits = value.to_bits();
    u64::from(if bits >> 31 == 1 { !bits } else { bits | 0x8000_0000 })
}

/// How many values are below the value of some smaller float, and by how many ulps at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Falls {
    count: u64,
    ulps: u32,
}

/// Counts the falls of `f` from `low` to `high`. The values of `f` are not negative.
fn falls(f: impl Fn(f32) -> f32 + Copy + Send, low: f32, high: f32) -> Falls {
    // The number of floats that a thread evaluates before the start of its part, so that it knows
    // the largest value before the part. No function here falls below a value further back.
    const BEFORE: u64 = 1 << 24;
    let (low, high) = (order(low), order(high));
    let threads = thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let part = (high - low) / threads + 1;
    let of_thread = move |thread: u64| {
        let first = low + thread * part;
        let end = (first + part).min(high + 1);
        let before = first.saturating_sub(BEFORE).max(low)..first;
        let mut largest = before.map(|o| f(float(o)).to_bits()).max().unwrap_or(0);
        let mut falls = Falls::default();
        for o in first..end {
            let value = f(float(o)).to_bits();
            falls.count += u64::from(value < largest);
            falls.ulps = falls.ulps.max(largest.saturating_sub(value));
            largest = largest.max(value);
        }
        falls
    };
    thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || of_thread(thread))).collect();
        workers.into_iter().fold(Falls::default(), |sum, worker| {
            let falls = worker.join().expect("a thread that counts");
            Falls { count: sum.count + falls.count, ulps: sum.ulps.max(falls.ulps) }
        })
    })
}

/// Below `EXP_MIN` all values are 0.
const LOW: f32 = exact::EXP_MIN;
/// For all x from this value on, 1 + e^-x rounds to 1: sigmoid is 1, softplus is x, and its
/// square root is correctly rounded.
const HIGH: f32 = 32.0;

#[test]
#[ignore = "slow: a billion values, seconds when optimized"]
fn exp_falls_by_an_ulp() {
    assert_eq!(falls(exact::exp, LOW, 0.0), Falls { count: 2983, ulps: 1 });
}

#[test]
#[ignore = "slow: two billion values, seconds when optimized"]
fn sigmoid_falls_by_some_ulps() {
    let negative = falls(exact::sigmoid, LOW, -0.0);
    assert_eq!(negative, Falls { count: 48_148_916, ulps: 5 });
    let positive = falls(exact::sigmoid, 0.0, HIGH);
    assert_eq!(positive, Falls { count: 1_022_622, ulps: 2 });
    assert!(exact::sigmoid(HIGH) == 1.0 && exact::sigmoid(f32::MAX) == 1.0);
}

#[test]
#[ignore = "slow: two billion values, seconds when optimized"]
fn sqrt_softplus_falls_by_some_ulps() {
    let negative = falls(exact::sqrt_softplus, LOW, -0.0);
    assert_eq!(negative, Falls { count: 10_434_489, ulps: 2 });
    let positive = falls(exact::sqrt_softplus, 0.0, HIGH);
    assert_eq!(positive, Falls { count: 47_792_214, ulps: 2 });
    assert_eq!(exact::sqrt_softplus(HIGH), HIGH.sqrt());
}
