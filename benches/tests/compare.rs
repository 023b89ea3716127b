//! What moved is said to have moved, and what did not is not.

mod common;

use common::report;
use spec_bench::report::compare::{Change, MIN_CHANGE, Outcome, compare, noise, text};
use spec_bench::report::{Load, Report, Role};

/// Numbers from 0 to 1.
fn units(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Times of one distribution: a smallest time and a long tail, as clocks give.
fn skewed(seed: u64, samples: usize, least: f64) -> Vec<f64> {
    let mut unit = units(seed);
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
    let new: Vec<f64> = old.iter().map(|time| time * (1.0 + MIN_CHANGE / 2.0)).collect();
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
    let few = outcome(vec![10.0, 10.1, 10.2], vec![20.0, 20.1, 20.2]);
    assert_eq!(few, Outcome::Perhaps("3 samples are too few".into()));
}

/// A report with rows enough of others, each row of it shifted as a whole: what
/// two runs of one program on a machine with neighbours look like.
fn shifted(seed: u64, by: f64) -> Report {
    let mut report = report();
    let mut unit = units(seed);
    for size in 2..40 {
        let (tokens, other) = (f64::from(size), Role::Baseline);
        report.measurements.push(common::row("cpu", tokens, "spec", Role::Spec, 100.0));
        report.measurements.push(common::row("cpu", tokens, "plain loop", other, 400.0));
    }
    for row in &mut report.measurements {
        let factor = by.powf(2.0 * unit() - 1.0);
        row.samples_us.iter_mut().for_each(|us| *us *= factor);
    }
    report
}

#[test]
fn what_rows_of_others_move_by_is_noise() {
    let is_ours = |change: &&Change<'_>| change.new.is_some_and(|row| row.role == Role::Spec);
    let moved = |old: &Report, new: &Report| {
        let moved = [Outcome::Faster, Outcome::Slower];
        let changes = compare(old, new);
        changes.iter().filter(is_ours).filter(|change| moved.contains(&change.outcome)).count()
    };
    // Rows whose samples lie within two percent of each other, moved by up to 30.
    let (old, mut new) = (shifted(1, 1.3), shifted(2, 1.3));
    let factor = noise(&old, &new, "cpu");
    assert!((1.15..1.7).contains(&factor), "{factor}");
    let ours = old.measurements.iter().filter(|row| row.role == Role::Spec).count();
    assert!(moved(&old, &new) * 5 < ours, "{} of {ours}", moved(&old, &new));
    assert!(text(&old, &new).contains("cpu: rows of others moved by "), "{}", text(&old, &new));
    // What is beyond it is seen all the same.
    let at = new.measurements.iter().position(|row| row.device == "cpu" && row.role == Role::Spec);
    new.measurements[at.unwrap()].samples_us.iter_mut().for_each(|us| *us *= 4.0);
    let slower = compare(&old, &new).remove(at.unwrap());
    assert_eq!((&*slower.new.unwrap().device, slower.outcome), ("cpu", Outcome::Slower));
    // Where others stand still, so does the noise.
    assert_eq!(noise(&report(), &report(), "cuda:0"), 1.0);
}

#[test]
fn a_busy_processor_cannot_tell_and_a_gpu_can() {
    let (old, mut new) = (report(), report());
    let ours = |row: &&mut spec_bench::report::Measurement| row.role == Role::Spec;
    for row in new.measurements.iter_mut().filter(ours) {
        row.samples_us.iter_mut().for_each(|us| *us *= 2.0);
    }
    let of = |new: &Report, device: &str| {
        let mut all = compare(&old, new).into_iter();
        all.find(|change| change.new.is_some_and(|row| row.device == device)).unwrap().outcome
    };
    let load = |all_cpu_s| Load { average_before: 0.5, wall_s: 10.0, own_cpu_s: 12.0, all_cpu_s };
    new.load = Some(load(13.5));
    assert_eq!(of(&new, "cpu"), Outcome::Slower, "0.15 of 2 cores is little");
    new.load = Some(load(16.0));
    assert_eq!(of(&new, "cpu"), Outcome::Perhaps("the machine was busy".into()));
    assert_eq!(of(&new, "cuda:0"), Outcome::Slower);
    let words = "now: the machine was busy: other programs took 0.4 of 2 cores during the run of 10 s \
                 (load average before it: 0.5)\n";
    assert!(text(&old, &new).starts_with(words), "{}", text(&old, &new));
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
    let with = |outcome: Outcome| -> Vec<&Change<'_>> {
        changes.iter().filter(|change| change.outcome == outcome).collect()
    };
    assert_eq!(changes.len(), rows + 1);
    assert_eq!(with(Outcome::Same).len(), rows - 2);
    assert_eq!(with(Outcome::Added)[0].new.unwrap().shape, "7 tokens, f32");
    assert_eq!(
        (with(Outcome::Removed)[0].old, with(Outcome::Removed)[0].new),
        (Some(&removed), None)
    );
    assert_eq!(with(Outcome::Slower)[0].new.unwrap().implementation, "block per token");

    let words = text(&old, &new);
    assert!(
        words.contains(" +100.0 %  slower  topk_router, 1 tokens, f32, block per token"),
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
        let changes = compare(&old, &new);
        let of_device = |change: &&Change<'_>| change.new.is_some_and(|row| row.device == device);
        let outcome = changes.iter().find(of_device).unwrap().outcome.clone();
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
