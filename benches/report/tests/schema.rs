//! JSON out and in, reports put together, text for a terminal.

mod common;

use common::{report, row};
use spec_report::{DeviceRecord, Error, Report, Role, stats, table};

#[test]
fn what_is_written_is_read() {
    let path = std::env::temp_dir().join(format!("spec-report-{}.json", std::process::id()));
    let mut written = report();
    written.measurements[0].check = "\"quoted\", \\ and µ".into();
    written.write(&path).unwrap();
    let read = Report::read(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read.unwrap(), written);
}

#[test]
fn a_row_takes_a_line() {
    let report = report();
    let json = report.to_json();
    for row in &report.measurements {
        let shape = format!("\"shape\":\"{}\"", row.shape);
        let name = format!("\"implementation\":\"{}\"", row.implementation);
        let device = format!("\"device\":\"{}\"", row.device);
        let its =
            |line: &&str| line.contains(&shape) && line.contains(&name) && line.contains(&device);
        assert_eq!(json.lines().filter(its).count(), 1, "{json}");
    }
    let empty = Report::new("nothing");
    assert_eq!(Report::parse(&empty.to_json()).unwrap(), empty);
}

#[test]
fn samples_are_kept_to_a_tenth_of_a_nanosecond() {
    let mut report = report();
    report.measurements[0].samples_us = vec![1.234_567_89, 1e7 / 3.0];
    let read = Report::parse(&report.to_json()).unwrap();
    assert_eq!(read.measurements[0].samples_us, [1.2346, 3_333_333.333_3]);
}

#[test]
fn what_is_no_report_is_refused_with_the_reason() {
    let other = report().to_json().replace("spec-bench 1", "spec-bench 9");
    assert!(matches!(Report::parse(&other), Err(Error::Format(f)) if f == "spec-bench 9"));
    assert!(matches!(Report::parse("{}"), Err(Error::Json(_))));
    let unknown = report().to_json().replacen("\"bytes\"", "\"octets\"", 1);
    assert!(Report::parse(&unknown).unwrap_err().to_string().contains("octets"));
    for (samples, reason) in
        [(vec![], "no samples"), (vec![1.0, -2.0], "-2"), (vec![f64::NAN], "NaN")]
    {
        let mut bad = report();
        bad.measurements[0].samples_us = samples;
        let words = Report::parse(&bad.to_json()).unwrap_err().to_string();
        assert!(words.contains(reason) && words.contains("topk_router"), "{words}");
    }
    assert!(Report::read("/nowhere/at/all.json").unwrap_err().to_string().contains("/nowhere"));
}

#[test]
fn reports_of_one_machine_become_one() {
    let ours = report();
    let mut peers = Report::new("python3 peers.py");
    peers.host = ours.host.clone();
    peers.date = "2026-02-01".into();
    peers.versions.insert("torch".into(), "2.9".into());
    peers.devices.push(DeviceRecord {
        id: "cuda:0".into(),
        name: "Fast GPU".into(),
        facts: [("driver".to_owned(), "580".to_owned())].into(),
        ..DeviceRecord::default()
    });
    peers.measurements.push(row("cuda:0", 1024.0, "torch", Role::Peer, 40.0));
    // Timed again: the later one counts.
    peers.measurements.push(row("cuda:0", 1024.0, "spec", Role::Spec, 3.0));

    let merged = Report::merge(vec![ours.clone(), peers.clone()]).unwrap();
    assert_eq!(merged.measurements.len(), ours.measurements.len() + 1);
    let spec = merged
        .measurements
        .iter()
        .find(|r| r.device == "cuda:0" && r.size == 1024.0 && r.role == Role::Spec);
    assert_eq!(spec.unwrap().median_us(), 3.0);
    assert_eq!(merged.command, format!("{}\npython3 peers.py", ours.command));
    assert_eq!(merged.date, "2026-02-01");
    assert_eq!(merged.versions["torch"], "2.9");
    let device = merged.device("cuda:0").unwrap();
    assert_eq!(device.copy_bytes_per_second, Some(3e12));
    assert_eq!(device.facts["driver"], "580");

    peers.devices[0].name = "Other GPU".into();
    let words = Report::merge(vec![ours.clone(), peers.clone()]).unwrap_err().to_string();
    assert!(words.contains("Other GPU") && words.contains("Fast GPU"), "{words}");
    peers.host.cores = 99;
    assert!(matches!(Report::merge(vec![ours, peers]), Err(Error::Machines(_))));
    assert!(matches!(Report::merge(vec![]), Err(Error::Nothing)));
}

#[test]
fn the_floor_is_the_bytes_at_the_rate_of_a_copy() {
    let mut report = report();
    let row = row("cuda:0", 65536.0, "spec", Role::Spec, 40.0);
    // 65536 tokens of 1024 bytes at 3 TB/s.
    let floor = report.floor_us(&row).unwrap();
    assert!((floor - 65536.0 * 1024.0 / 3e6).abs() < 1e-9, "{floor}");
    report.devices.iter_mut().for_each(|device| device.copy_bytes_per_second = None);
    assert_eq!(report.floor_us(&row), None);
}

#[test]
fn a_goal_is_met_or_missed_as_printed() {
    let mut row = row("cuda:0", 1.0, "spec", Role::Spec, 2.5);
    assert_eq!(row.goal_met(), None);
    for (goal, met) in [(2.6, true), (2.5, true), (2.499, true), (2.4, false)] {
        row.goal_us = Some(goal);
        assert_eq!(row.goal_met(), Some(met), "{goal}");
    }
}

#[test]
fn median_and_spread_do_not_mind_an_outlier() {
    assert_eq!(stats::median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(stats::median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    assert!(stats::median(&[]).is_nan());
    let mut samples: Vec<f64> = (0..=100).map(f64::from).collect();
    assert_eq!(stats::spread(&samples), stats::Spread { low: 10.0, high: 90.0 });
    samples[100] = 1e9;
    assert_eq!(stats::spread(&samples), stats::Spread { low: 10.0, high: 90.0 });
    assert_eq!(stats::spread(&[7.0]), stats::Spread { low: 7.0, high: 7.0 });
    assert_eq!(stats::spread(&samples).relative(50.0), 1.6);
}

#[test]
fn the_text_has_a_table_for_each_operator_and_device() {
    let text = table::text(&report());
    assert!(text.contains("topk_router on cuda:0: Fast GPU\n"), "{text}");
    assert!(text.contains("topk_router on cpu: Some CPU, 2 cores\n"), "{text}");
    let line = |words: &[&str]| {
        let line = text.lines().find(|line| words.iter().all(|w| line.contains(w)));
        line.unwrap_or_else(|| panic!("{words:?} in no line of\n{text}")).to_owned()
    };
    // 1024 tokens: 3.5 µs against the seed's 21, with a goal of 2.8.
    let ours = line(&["1024 tokens", "spec", "3.50 µs"]);
    assert!(ours.contains("2.80 µs, missed") && ours.trim_end().ends_with("6.00"), "{ours}");
    assert!(line(&["block a token", "21.0 µs"]).ends_with("= 1"), "{text}");
    // The CPU has no goals: no such column.
    let cpu = text.split("\n\n").find(|table| table.contains("on cpu")).unwrap();
    assert!(!cpu.contains("goal") && cpu.contains("floor"), "{cpu}");
}
