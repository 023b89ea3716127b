//! A small report, made up.

#![allow(dead_code, reason = "each test program takes what it needs")]

use spec_bench::report::{DeviceRecord, Host, Measurement, Report, Role};

/// A row of the router, with nine samples around a median.
pub fn row(
    device: &str,
    tokens: f64,
    implementation: &str,
    role: Role,
    median: f64,
) -> Measurement {
    let around = [1.0, 0.99, 1.0, 1.01, 1.3, 0.98, 1.0, 1.02, 1.0];
    Measurement {
        operator: "topk_router".into(),
        shape: format!("{tokens} tokens, f32"),
        series: "f32".into(),
        size: tokens,
        size_unit: "tokens".into(),
        device: device.into(),
        implementation: implementation.into(),
        role,
        method: format!("20 calls on {device}"),
        samples_us: around.map(|part| (part * median * 1e3).round() / 1e3).to_vec(),
        bytes: tokens as u64 * 1024,
        goal_us: None,
        goal_from: None,
        check: "CPU backend, every element".into(),
    }
}

/// Two devices, three sizes, us, the seed and a peer; goals on the GPU.
pub fn report() -> Report {
    let mut report = Report {
        command: "spec-bench --save run.json".into(),
        date: "2026-01-31".into(),
        host: Host {
            cpu: "Some CPU".into(),
            cores: 2,
            memory_bytes: 16 << 30,
            os: "Linux x86_64".into(),
        },
        versions: [("spec".to_owned(), "0.1.0".to_owned())].into(),
        ..Report::default()
    };
    let device = |id: &str, name: &str, rate, overhead| DeviceRecord {
        id: id.into(),
        name: name.into(),
        copy_bytes_per_second: Some(rate),
        overhead_us: overhead,
        ..DeviceRecord::default()
    };
    report.devices =
        vec![device("cuda:0", "Fast GPU", 3e12, Some(0.9)), device("cpu", "Some CPU", 2e10, None)];
    for (tokens, spec, seed, peer, goal) in [
        (1.0, 2.5, 7.5, 9.0, 2.5),
        (1024.0, 3.5, 21.0, 30.0, 2.8),
        (65536.0, 42.0, 1083.0, 700.0, 50.0),
    ] {
        let mut ours = row("cuda:0", tokens, "spec", Role::Spec, spec);
        ours.goal_us = Some(goal);
        ours.goal_from = Some("set for this GPU".into());
        report.measurements.push(ours);
        report.measurements.push(row("cuda:0", tokens, "block per token", Role::Seed, seed));
        report.measurements.push(row("cuda:0", tokens, "torch <ops> & more", Role::Peer, peer));
        report.measurements.push(row("cpu", tokens, "spec", Role::Spec, spec * 100.0));
        report.measurements.push(row("cpu", tokens, "plain loop", Role::Baseline, seed * 100.0));
    }
    report
}
