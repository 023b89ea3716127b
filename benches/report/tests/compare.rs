//! What moved is said to have moved, and what did not is not.

mod common;

use common::report;
use spec_report::compare::{Change, LEAST, Outcome, compare, text};
use spec_report::{Report, Role};

/// Times of one distribution: a smallest time and a long tail, as clocks give.
fn skewed(seed: u64, samples: usize, least: f64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut unit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..samples).map(|_| least * (1.0 - 0.03 * (1.0 - unit()).ln())).collect()
}

/// Two reports of one row each.
fn pair(old: Vec<f64>, new: Vec<f64>) -> (Report, Report) {
    let mut reports = [report(), report()];
    for (report, samples) in reports.iter_mut().zip([old, new]) {
        report.measurements.truncate(1);
        report.measurements[0].samples_us = samples;
    }
    reports.into()
}

fn outcome(old: Vec<f64>, new: Vec<f64>) -> Outcome {
    let (old, new) = pair(old, new);
    compare(&old, &new).remove(0).outcome
}

#[test]
fn samples_of_one_distribution_have_not_moved() {
    for samples in [5, 9, 15, 101] {
        let moved = (0..500)
            .filter(|i| {
                let seeds = [2 * i + 1, 2 * i + 2];
                let [old, new] = seeds.map(|seed| skewed(seed, samples, 10.0));
                outcome(old, new) != Outcome::Same
            })
            .count();
        assert!(moved <= 2, "{moved} of 500 with {samples} samples");
    }
}

#[test]
fn a_tenth_more_or_less_is_seen() {
    for samples in [7, 15, 101] {
        for (factor, wanted) in [(1.15, Outcome::Slower), (0.85, Outcome::Faster)] {
            let seen = (0..200)
                .filter(|i| {
                    let old = skewed(2 * i + 1, samples, 10.0);
                    let new = skewed(2 * i + 2, samples, 10.0 * factor);
                    outcome(old, new) == wanted
                })
                .count();
            assert!(seen >= 190, "{seen} of 200 with {samples} samples times {factor}");
        }
    }
}

#[test]
fn a_small_move_is_none_however_sure() {
    let old = skewed(1, 1000, 10.0);
    let new: Vec<f64> = old.iter().map(|time| time * (1.0 + LEAST / 2.0)).collect();
    assert_eq!(outcome(old, new), Outcome::Same);
}

#[test]
fn an_outlier_moves_nothing() {
    let old = vec![10.0, 10.1, 10.0, 10.2, 10.1, 10.0, 10.1];
    let mut new = old.clone();
    new[3] = 500.0;
    assert_eq!(outcome(old, new), Outcome::Same);
}

#[test]
fn noise_wider_than_the_move_hides_it() {
    // Half of the calls take twice as long, in both runs; one more in the new.
    let old: Vec<f64> = (0..101).map(|i| if i < 50 { 20.0 } else { 10.0 }).collect();
    let new: Vec<f64> = (0..101).map(|i| if i < 51 { 20.0 } else { 10.0 }).collect();
    assert_eq!(outcome(old, new), Outcome::Same);
}

#[test]
fn few_samples_cannot_tell() {
    assert_eq!(outcome(vec![10.0, 10.1, 10.2], vec![20.0, 20.1, 20.2]), Outcome::TooFew);
}

#[test]
fn every_row_is_in_the_answer() {
    let (old, mut new) = (report(), report());
    let rows = old.measurements.len();
    let added = common::row("cuda:0", 7.0, "spec", Role::Spec, 1.0);
    new.measurements.push(added);
    let removed = new.measurements.remove(0);
    new.measurements[0].samples_us.iter_mut().for_each(|time| *time *= 2.0);
    let changes = compare(&old, &new);
    let with = |outcome: Outcome| -> Vec<&Change> {
        changes.iter().filter(|change| change.outcome == outcome).collect()
    };
    assert_eq!(changes.len(), rows + 1);
    assert_eq!(with(Outcome::Same).len(), rows - 2);
    assert_eq!(with(Outcome::Added)[0].shape, "7 tokens, f32");
    let gone = with(Outcome::Removed)[0];
    assert_eq!((&gone.implementation, gone.new_us), (&removed.implementation, None));
    let slower = with(Outcome::Slower)[0];
    assert_eq!((&*slower.implementation, slower.speedup()), ("block a token", Some(0.5)));

    let words = text(&old, &new);
    assert!(
        words.contains(" +100.0 %  slower  topk_router, 1 tokens, f32, block a token"),
        "{words}"
    );
    let counts = format!("1 slower, 0 faster, {} as before, 1 new, 1 gone", rows - 2);
    assert!(words.contains(&counts), "{words}");
}

#[test]
fn other_devices_and_methods_are_not_compared() {
    let reason = |edit: fn(&mut Report), device: &str| {
        let (old, mut new) = (report(), report());
        edit(&mut new);
        let mut of_device = compare(&old, &new).into_iter().filter(|c| c.device == device);
        let outcome = of_device.next().unwrap().outcome;
        if let Outcome::Incomparable(reason) = &outcome {
            assert!(text(&old, &new).contains(&format!("rows not compared: {reason}")));
        }
        outcome
    };
    let other = |words: &str| Outcome::Incomparable(words.to_owned());
    let gpu: fn(&mut Report) = |r| r.devices[0].name = "Slow GPU".into();
    assert_eq!(reason(gpu, "cuda:0"), other("cuda:0 was Fast GPU and is Slow GPU"));
    assert_eq!(reason(gpu, "cpu"), Outcome::Same);
    let cores: fn(&mut Report) = |r| r.host.cores = 8;
    assert_eq!(
        reason(cores, "cpu"),
        other("cpu was 2 cores of Some CPU and is 8 cores of Some CPU")
    );
    assert_eq!(reason(cores, "cuda:0"), Outcome::Same);
    let method: fn(&mut Report) = |r| r.measurements.iter_mut().for_each(|m| m.method = "x".into());
    assert_eq!(
        reason(method, "cuda:0"),
        other("timed by \"20 calls on cuda:0\" before and by \"x\" now")
    );
    // The number of calls is no other way of timing.
    let calls: fn(&mut Report) = |r| {
        r.measurements.iter_mut().for_each(|m| m.method = m.method.replace("20 calls", "1 call"));
    };
    assert_eq!(reason(calls, "cuda:0"), Outcome::Same);
    let (old, mut new) = (report(), report());
    new.versions.insert("spec".into(), "0.2.0".into());
    assert!(text(&old, &new).starts_with("spec: 0.1.0 before, 0.2.0 now\n"));
}
