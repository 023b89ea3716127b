//! JSON out and in, reports put together, text for a terminal.

mod common;

use common::{report, row};
use spec_bench::report::{DeviceRecord, Fact, Load, Report, Role, html, markdown, stats, table};

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
    let empty = Report::default();
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
    let words = |json: &str| Report::parse(json).unwrap_err().to_string();
    let other = words(&report().to_json().replace("spec-bench 1", "spec-bench 9"));
    assert!(other.contains("`spec-bench 9`, expected `spec-bench 1`"), "{other}");
    assert!(words("{}").starts_with("not a report: "));
    let unknown = report().to_json().replacen("\"bytes\"", "\"octets\"", 1);
    assert!(words(&unknown).contains("octets"));
    for samples in [vec![], vec![1.0, -2.0], vec![0.0]] {
        let mut bad = report();
        bad.measurements[0].samples_us = samples;
        assert!(words(&bad.to_json()).starts_with("topk_router, 1 tokens, f32, spec: "));
    }
    assert!(Report::read("/nowhere/at/all.json").unwrap_err().to_string().contains("/nowhere"));
}

#[test]
fn whole_numbers_are_numbers() {
    let fact = |words: &str| serde_json::to_string(&Fact::from(words)).unwrap();
    assert_eq!(["132", "9.0", "1980 MHz"].map(fact), ["132", "\"9.0\"", "\"1980 MHz\""]);
}

#[test]
fn reports_of_one_machine_become_one() {
    let ours = Report { date: "2026-01-31".into(), ..report() };
    let mut peers = Report {
        command: "python3 peers.py".into(),
        host: ours.host.clone(),
        date: "2026-02-01".into(),
        load: Some(Load { wall_s: 2.0, all_cpu_s: 2.0, ..Load::default() }),
        ..Report::default()
    };
    peers.versions.insert("torch".into(), "2.9".into());
    peers.devices.push(DeviceRecord {
        id: "cuda:0".into(),
        name: "Fast GPU".into(),
        facts: [("driver".to_owned(), "580".into())].into(),
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
    assert_eq!(merged.date, "2026-01-31 to 2026-02-01");
    assert_eq!(merged.versions["torch"], "2.9");
    let device = merged.device("cuda:0").unwrap();
    assert_eq!(device.copy_bytes_per_second, Some(3e12));
    assert_eq!(device.facts["driver"], Fact::Number(580));
    assert_eq!(merged.load.unwrap().others(), 1.0);

    peers.devices[0].name = "Other GPU".into();
    let words = Report::merge(vec![ours.clone(), peers.clone()]).unwrap_err().to_string();
    assert!(words.contains("Other GPU") && words.contains("Fast GPU"), "{words}");
    peers.host.cores = 99;
    let words = Report::merge(vec![ours, peers]).unwrap_err().to_string();
    assert!(words.contains("2 cores of Some CPU; 99 cores of Some CPU"), "{words}");
    assert!(Report::merge(vec![]).is_err());
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
    assert_eq!(stats::spread(&samples), (10.0, 90.0));
    samples[100] = 1e9;
    assert_eq!(stats::spread(&samples), (10.0, 90.0));
    assert_eq!(stats::spread(&[7.0]), (7.0, 7.0));
}

#[test]
fn the_text_has_a_table_for_each_operator_and_device() {
    let mut report = report();
    let text = table::text(&report);
    for part in [
        "topk_router on cuda:0: Fast GPU\n",
        "topk_router on cpu: Some CPU, 2 cores\n",
        "\n  1024 tokens, f32, floor 900 ns, goal 2.80 µs, missed (set for this GPU)\n",
        "x floor: ",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    // 1024 tokens: 3.5 µs against the seed's 21, on an empty kernel of 0.9.
    let cells = |start: &str| -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| line.trim_start().starts_with(start));
        lines
            .map(|line| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect())
            .collect()
    };
    assert_eq!(cells("spec ")[1], ["spec", "3.50 µs", "3.46 – 3.77 µs", "3.89", "1.00"]);
    assert_eq!(cells("block")[1][4], "6.00");
    assert!(!text.contains("busy"));
    report.load = Some(Load { wall_s: 1.0, all_cpu_s: 1.0, ..Load::default() });
    assert!(table::text(&report).contains("other programs took 1.0 of 2 cores"));
}

/// What is committed: names and numbers as long as they come.
fn measured() -> Vec<Report> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/results");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension() == Some("json".as_ref()))
        .map(|path| Report::read(path).unwrap())
        .collect()
}

#[test]
fn tables_fit_a_terminal() {
    for report in measured() {
        for line in table::text(&report).lines() {
            assert!(line.chars().count() <= 110, "{} columns: {line}", line.chars().count());
        }
    }
}

#[test]
fn a_page_says_how_many_times_as_fast_and_shows_it() {
    let template =
        "{{others cuda}}\n{{goals}}\n{{plots topk_router, f32}}\n{{operator topk_router}}\n";
    let page = markdown::render(template, &[report()]).unwrap();
    for part in [
        "| `topk_router` | torch &lt;ops> & more | 3 | 3.60 × (1 tokens, f32) | 8.57 × | 16.7 × (65536 tokens, f32) |",
        "<summary>cuda:0: Fast GPU: 2 of 3 goals met</summary>",
        "| `topk_router` | 1024 tokens, f32 | 3.50 µs | 2.80 µs | 1.25 × |",
        "![topk\\_router, f32 on Fast GPU: time of a call over tokens](plots/topk_router-f32.svg)\n\
         ![topk\\_router, f32 on cpu: Some CPU, 2 cores: time of a call over tokens]\
         (plots/topk_router-f32-2.svg)\n",
        "| 21.0 µs (6.00 ×) | 30.0 µs (8.57 ×) |",
    ] {
        assert!(
            page.markdown.replace('\u{a0}', " ").contains(part),
            "{part} is not in\n{}",
            page.markdown
        );
    }
    assert_eq!(page.plots.len(), 2);
    let svg = &page.plots["topk_router-f32.svg"];
    // A curve an implementation, a bound, and a name for each in the legend.
    assert!(svg.matches("<polyline").count() >= 6, "{svg}");
    // A bar with two caps on each of the nine points.
    let thin = |line: &&str| line.starts_with("<line") && line.contains(r#"stroke-width="1" x1"#);
    let coloured = |line: &&str| ["#0072B2", "#D55E00", "#00805D"].iter().any(|c| line.contains(c));
    assert_eq!(svg.lines().filter(thin).filter(coloured).count(), 9 * 3, "{svg}");
    assert_eq!(svg.matches("torch &lt;ops&gt; &amp; more").count(), 1, "{svg}");
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");

    // A page for readers has one plot of an operator.
    let template = "{{plot topk_router, f32}}\n{{plot topk_router}}\n";
    let page = markdown::render(template, &[report()]).unwrap();
    let plots: Vec<_> = page.plots.keys().collect();
    assert_eq!(plots, ["topk_router-f32.svg", "topk_router-ratios-cuda0.svg"]);

    let refused = |template: &str| markdown::render(template, &[report()]).unwrap_err().to_string();
    assert_eq!(refused("{{goals}}"), "the template shows nothing of topk_router");
    assert_eq!(refused("{{operator sort}}"), "no report has the operator sort");
    assert_eq!(refused("{{plots topk_router, f16}}"), "topk_router has no three sizes of f16");
    assert_eq!(refused("{{more}}"), "no such directive: {{more}}");
}

#[test]
fn the_html_page_has_every_plot_and_row() {
    for reports in [vec![report()], measured(), vec![Report::default()]] {
        let page = html::page(&reports).unwrap();
        assert!(!page.contains("<img") && !page.contains("{{"), "{page}");
        for row in reports.iter().flat_map(|report| &report.measurements) {
            let time = (row.shape.replace(' ', "\u{a0}"), row.shape.clone());
            assert!(page.contains(&time.0) || page.contains(&time.1), "{}", row.shape);
        }
    }
    let page = html::page(&[report()]).unwrap();
    // Time over size, ratios and a roofline, on two devices.
    assert_eq!(page.matches("<svg").count(), 6);
    assert!(page.contains("torch &lt;ops&gt; &amp; more"), "{page}");
}

#[test]
fn the_html_page_begins_with_when_and_where() {
    let mut busy = report();
    busy.load = Some(Load { wall_s: 1.0, all_cpu_s: 1.0, ..Load::default() });
    let top = |report| {
        let page = html::page(&[report]).unwrap();
        page.split_once("<h2").unwrap().0.to_owned()
    };
    let machine = "2026-01-31: 2 cores of Some CPU, Fast GPU; ";
    assert!(top(report()).contains(&format!("{machine}load unknown")), "{}", top(report()));
    let busy = top(busy);
    assert!(busy.contains(&format!("{machine}the machine was busy")), "{busy}");
}

#[test]
fn the_html_page_fits_a_telephone_and_says_a_title_once() {
    for reports in [vec![report()], measured()] {
        let page = html::page(&reports).unwrap();
        for svg in page.split("<svg").skip(1) {
            let width = svg.split("width=\"").nth(1).and_then(|rest| rest.split('"').next());
            assert!(width.unwrap().parse::<u32>().unwrap() <= 480, "{}", &svg[..200]);
        }
    }
    let page = html::page(&[report()]).unwrap();
    for (title, times) in [("topk_router: time over spec", 2), ("topk_router, f32\n", 2)] {
        assert_eq!(page.matches(title).count(), times, "{title} in\n{page}");
    }
}
