//! A Markdown page from a template, with its plots as files beside it.
//!
//! A template is Markdown. A line that holds nothing but a directive is replaced:
//!
//! | directive | by |
//! |---|---|
//! | `{{machines}}` | the machines: devices, versions, dates, commands |
//! | `{{goals}}` | how many goals are met on each device, and a table of those missed |
//! | `{{operator NAME}}` | an operator: on each device its plots and its table |
//! | `{{rooflines}}` | each device's roofline |
//!
//! So every figure of the page comes from the reports.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::figures::{self, Figure, Looks};
use crate::plot::canvas::standalone;
use crate::view::{self, Group, distinct, three_digits, time};
use crate::{Error, Measurement, Report, Role, stats};

/// A page and its plots.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The Markdown.
    pub markdown: String,
    /// SVG by file name; the Markdown has them in its `plots/`.
    pub plots: BTreeMap<String, String>,
}

/// Fills a template. Reports come with a short name each, which plots are named
/// after; reports of one machine are put together under the first one's.
///
/// # Errors
///
/// [`Error::Template`]: an unknown directive; an operator that the reports do
/// not have, or that the template leaves out.
pub fn render(template: &str, reports: &[(String, Report)]) -> Result<Page, Error> {
    let plain: Vec<Report> = reports.iter().map(|(_, report)| report.clone()).collect();
    let machines = view::machines(&plain);
    let name_of = |machine: &Report| {
        let first = reports.iter().find(|(_, report)| report.same_machine(machine));
        first.map(|(name, _)| file_name(name)).unwrap_or_default()
    };
    let mut renderer = Renderer {
        names: machines.iter().map(name_of).collect(),
        machines,
        plots: BTreeMap::new(),
        shown: vec![],
    };
    let mut markdown = String::new();
    for line in template.lines() {
        let directive = line.trim().strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"));
        match directive {
            Some(directive) => markdown += renderer.directive(directive.trim())?.trim_end(),
            None if line.contains("{{") => {
                return Err(Error::Template(format!(
                    "a directive stands alone in its line: {line}"
                )));
            }
            None => markdown += line,
        }
        markdown.push('\n');
    }
    for machine in &renderer.machines {
        let left_out =
            machine.measurements.iter().find(|row| !renderer.shown.contains(&row.operator));
        if let Some(row) = left_out {
            let words = format!("the template has no {{{{operator {}}}}}", row.operator);
            return Err(Error::Template(words));
        }
    }
    Ok(Page { markdown, plots: renderer.plots })
}

struct Renderer {
    machines: Vec<Report>,
    names: Vec<String>,
    plots: BTreeMap<String, String>,
    shown: Vec<String>,
}

impl Renderer {
    fn directive(&mut self, directive: &str) -> Result<String, Error> {
        match directive.split_whitespace().collect::<Vec<_>>()[..] {
            ["machines"] => Ok(self.machines.iter().map(machine).collect()),
            ["goals"] => Ok(self.machines.iter().map(goals).collect()),
            ["operator", name] => self.operator(name),
            ["rooflines"] => Ok(self.rooflines()),
            _ => Err(Error::Template(format!("no such directive: {{{{{directive}}}}}"))),
        }
    }

    fn operator(&mut self, operator: &str) -> Result<String, Error> {
        let looks = Looks::of(operator, &self.machines);
        let mut out = String::new();
        let mut plots = vec![];
        for (machine, name) in self.machines.iter().zip(&self.names) {
            for group in view::groups(machine).iter().filter(|group| group.operator == operator) {
                // Writing to a string cannot fail, here and below.
                let _ = writeln!(out, "#### {}\n", escape(&group.device_words()));
                let mut figures = figures::lines(group, &looks);
                figures.extend(figures::ratios(group, &looks));
                for figure in figures {
                    let place = format!("{name}-{}", group.device);
                    out.push_str(&image(&place, &figure, &group.device_words(), &mut plots));
                }
                out.push('\n');
                out.push_str(&table(group));
            }
        }
        if out.is_empty() {
            return Err(Error::Template(format!("no report has the operator {operator}")));
        }
        self.plots.extend(plots);
        self.shown.push(operator.to_owned());
        Ok(out)
    }

    fn rooflines(&mut self) -> String {
        let mut out = String::new();
        let mut plots = vec![];
        for (machine, name) in self.machines.iter().zip(&self.names) {
            for figure in figures::rooflines(machine) {
                out.push_str(&image(name, &figure, "", &mut plots));
            }
        }
        self.plots.extend(plots);
        out
    }
}

/// The line that shows a plot, which goes into `plots`.
fn image(place: &str, figure: &Figure, device: &str, plots: &mut Vec<(String, String)>) -> String {
    let file = format!("{}.svg", file_name(&format!("{}-{place}", figure.name)));
    let words = format!("{} {device}", figure.name);
    plots.push((file.clone(), standalone(&figure.svg)));
    format!("![{}](plots/{file})\n", escape(words.trim()))
}

fn machine(report: &Report) -> String {
    let host = &report.host;
    let gib = host.memory_bytes as f64 / f64::from(1 << 30);
    let mut out = format!(
        "**{}**, {} cores, {} GiB, {}; measured {}.\n\n",
        escape(&host.cpu),
        host.cores,
        three_digits(gib),
        escape(&host.os),
        escape(&report.date),
    );
    let versions = report.versions.iter().map(|(name, version)| format!("{name} {version}"));
    let _ = writeln!(out, "Versions: {}.\n", escape(&versions.collect::<Vec<_>>().join(", ")));
    out.push_str(
        "| device | | a copy moves | a call that does nothing takes |\n|---|---|---|---|\n",
    );
    for device in &report.devices {
        let facts = device.facts.iter().map(|(name, value)| format!("{name} {value}"));
        let words: Vec<String> = [device.name.clone()].into_iter().chain(facts).collect();
        let rate = device.copy_bytes_per_second;
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            device.id,
            escape(&words.join("; ")),
            rate.map(|rate| format!("{} GB/s", three_digits(rate / 1e9))).unwrap_or_default(),
            device.overhead_us.map(time).unwrap_or_default(),
        );
    }
    let _ = write!(out, "\n```console\n");
    for line in report.command.lines() {
        let _ = writeln!(out, "$ {line}");
    }
    out + "```\n\n"
}

fn goals(report: &Report) -> String {
    let mut out = String::new();
    for device in distinct(report.measurements.iter().map(|row| &*row.device)) {
        let rows = report.measurements.iter().filter(|row| row.device == device);
        let judged: Vec<_> =
            rows.filter_map(|row| Some((row, row.goal_us?, row.goal_met()?))).collect();
        if judged.is_empty() {
            continue;
        }
        let missed: Vec<_> = judged.iter().filter(|(.., met)| !met).collect();
        let words = escape(&view::device_words(report, device));
        let (met, all) = (judged.len() - missed.len(), judged.len());
        let _ = writeln!(out, "**{words}**: {met} of {all} goals met.\n");
        if missed.is_empty() {
            continue;
        }
        out.push_str("| missed | shape | median | goal | over goal |\n|---|---|---|---|---|\n");
        for (row, goal, _) in missed {
            let median = row.median_us();
            let _ = writeln!(
                out,
                "| `{}` | {} | {} | {} | {} × |",
                row.operator,
                escape(&row.shape),
                time(median),
                time(*goal),
                three_digits(median / goal),
            );
        }
        out.push('\n');
    }
    out
}

/// A line a shape: this library, then how the others compare.
fn table(group: &Group<'_>) -> String {
    let rows = || group.works.iter().flat_map(|work| work.rows.iter().copied());
    let others: Vec<_> =
        group.implementations().into_iter().filter(|(_, role)| *role != Role::Spec).collect();
    let mut table =
        vec![["shape", "spec", "10 to 90 %", "floor", "goal"].map(str::to_owned).to_vec()];
    table[0].extend(others.iter().map(|(name, _)| escape(name)));
    for work in &group.works {
        let ours = work.spec();
        let mut line = vec![escape(work.shape)];
        line.push(ours.map(|row| time(row.median_us())).unwrap_or_default());
        line.push(ours.map(interval).unwrap_or_default());
        let floor = work.floor_us(group.report);
        line.push(floor.map(time).unwrap_or_default());
        line.push(ours.map(goal).unwrap_or_default());
        for (name, role) in &others {
            let cell = work.row(name, *role).map(|row| match ours {
                Some(ours) => {
                    let ratio = three_digits(row.median_us() / ours.median_us());
                    format!("{} ({ratio} ×)", time(row.median_us()))
                }
                None => time(row.median_us()),
            });
            line.push(cell.unwrap_or_default());
        }
        table.push(line);
    }
    // A column that no row fills is left out.
    let used = |c: &usize| *c == 0 || table[1..].iter().any(|line| !line[*c].is_empty());
    let columns: Vec<usize> = (0..table[0].len()).filter(used).collect();
    let mut out = String::new();
    for (i, line) in table.iter().enumerate() {
        // Figures stay with their units, shapes in their line; headings may wrap.
        let cell =
            |c: &usize| if i == 0 { line[*c].clone() } else { line[*c].replace(' ', "\u{a0}") };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
        if i == 0 {
            let _ = writeln!(out, "|---|{}", "---:|".repeat(columns.len() - 1));
        }
    }
    let words = |field: fn(&Measurement) -> &String| {
        distinct(rows().map(field)).into_iter().cloned().collect::<Vec<_>>().join("; ")
    };
    let samples = distinct(rows().map(|row| row.samples_us.len()));
    let samples = match (samples.iter().min(), samples.iter().max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
        (Some(least), _) => least.to_string(),
        _ => String::new(),
    };
    let _ = writeln!(
        out,
        "\nTimed: {}; {samples} samples. Checked against: {}.\n",
        escape(&view::methods(rows().map(|row| &*row.method)).join("; ")),
        escape(&words(|row| &row.check)),
    );
    out
}

fn interval(row: &Measurement) -> String {
    view::interval(stats::spread(&row.samples_us))
}

fn goal(row: &Measurement) -> String {
    match (row.goal_us, row.goal_met()) {
        (Some(goal), Some(false)) => format!("{}, **missed**", time(goal)),
        (Some(goal), _) => time(goal),
        _ => String::new(),
    }
}

/// A name as a file may have it: letters, digits, dots and dashes.
fn file_name(words: &str) -> String {
    let of = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let parts = words.chars().map(of).collect::<String>();
    parts.split('-').filter(|part| !part.is_empty()).collect::<Vec<_>>().join("-")
}

/// Text without meaning to Markdown, in a table too.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '\n' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
