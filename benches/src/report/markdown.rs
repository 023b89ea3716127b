//! Makes a Markdown page from a template, with the plots as files beside the page.
//!
//! A template is Markdown. A line that holds only a directive is replaced, so that
//! every number of the page comes from the reports:
//!
//! | directive | replaced by |
//! |---|---|
//! | `{{others KIND}}` | for each device of a kind (`cuda`, `cpu`): how many times as fast as other designs this library is, by operator |
//! | `{{goals}}` | how many goals are met on each device, and a table of the missed goals |
//! | `{{plot NAME}}` | one plot of an operator on the machine where most others were timed: their times over this library's; with `, SERIES` after the name, time over the sizes of that series |
//! | `{{plots NAME}}` | all plots of an operator; with `, SERIES` after the name, only time over the sizes of that series |
//! | `{{operator NAME}}` | the tables of an operator, one per device, folded: one line per shape |
//! | `{{rooflines}}` | the devices' rooflines |
//! | `{{summary}}` | one line per machine: the date, the hardware, how busy the machine was |
//! | `{{machines}}` | the machines: devices, versions, dates, commands, load |

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::report::plot::{self, Figure};
use crate::report::view::{self, Group, digits, distinct, time, times};
use crate::report::{Error, Measurement, Report, Role, stats};

/// A page and its plots.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The Markdown.
    pub markdown: String,
    /// The plots as SVG by file name; the Markdown links to them in the folder `plots/`.
    pub plots: BTreeMap<String, String>,
}

/// Fills a template. The reports of one machine are merged.
///
/// # Errors
///
/// An unknown directive; an operator that the reports do not have, or that the
/// template leaves out; a plot that cannot be drawn.
pub fn render(template: &str, reports: &[Report]) -> Result<Page, Error> {
    let machines = view::machines(reports);
    let mut page = Page { markdown: String::new(), plots: BTreeMap::new() };
    for line in template.lines() {
        match line.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")) {
            Some(directive) => {
                let text = page.directive(directive, &machines)?;
                page.markdown.push_str(text.trim_end());
            }
            None => page.markdown.push_str(line),
        }
        page.markdown.push('\n');
    }
    for row in machines.iter().flat_map(|report| &report.measurements) {
        let shown = |line: &str| {
            let of = line.strip_prefix("{{operator ").or(line.strip_prefix("{{plot "));
            let of = of.and_then(|rest| rest.strip_suffix("}}")).unwrap_or_default();
            of.split(", ").next() == Some(&row.operator)
        };
        if !template.lines().any(shown) {
            return Err(Error(format!("the template shows nothing of {}", row.operator)));
        }
    }
    Ok(page)
}

impl Page {
    fn directive(&mut self, directive: &str, machines: &[Report]) -> Result<String, Error> {
        let (name, rest) = directive.split_once(' ').unwrap_or((directive, ""));
        let (operator, series) = rest.split_once(", ").unwrap_or((rest, ""));
        let groups = machines.iter().flat_map(view::groups);
        let groups: Vec<_> = groups.filter(|group| group.operator == operator).collect();
        if groups.is_empty() && ["plot", "plots", "operator"].contains(&name) {
            return Err(Error(format!("no report has the operator {operator}")));
        }
        match name {
            "others" => Ok(machines.iter().flat_map(|report| others(report, rest)).collect()),
            "goals" => Ok(machines.iter().map(goals).collect()),
            "plot" => {
                // The machine with the most others on that device that has the plot, and of equal ones
                // the latest.
                let mut alike: Vec<_> =
                    groups.iter().filter(|group| group.device == groups[0].device).collect();
                alike.sort_by_key(|group| std::cmp::Reverse(group.others().len()));
                let wanted = format!("{operator}-{series}");
                let mut figures = Vec::new();
                for group in alike {
                    figures = match series {
                        "" => plot::ratios(group)?,
                        _ => plot::times_over_sizes(operator, std::slice::from_ref(group.report))?,
                    };
                    figures.retain(|figure| series.is_empty() || figure.name == wanted);
                    if !figures.is_empty() {
                        break;
                    }
                }
                figures.truncate(1);
                if figures.is_empty() {
                    return Err(Error(format!("there is no plot of {rest}")));
                }
                Ok(self.images(figures))
            }
            "plots" => {
                let mut figures = plot::times_over_sizes(operator, machines)?;
                for group in groups.iter().filter(|group| !group.over_spec().is_empty()) {
                    figures.extend(plot::ratios(group)?);
                }
                figures.retain(|figure| {
                    series.is_empty() || figure.name == format!("{operator}-{series}")
                });
                if figures.is_empty() && !series.is_empty() {
                    return Err(Error(format!("{operator} has no three sizes of {series}")));
                }
                Ok(self.images(figures))
            }
            "operator" => Ok(groups.iter().map(folded).collect()),
            "rooflines" => Ok(self.images(plot::rooflines(machines)?)),
            "summary" => Ok(machines.iter().map(summary).collect()),
            "machines" => Ok(machines.iter().map(machine).collect()),
            _ => Err(Error(format!("no such directive: {{{{{directive}}}}}"))),
        }
    }

    /// A paragraph of plots, which a wide page shows side by side.
    fn images(&mut self, figures: Vec<Figure>) -> String {
        figures.into_iter().map(|figure| self.image(figure)).collect::<String>() + "\n"
    }

    /// The line that shows a plot. The plot is kept under a name that no other plot has.
    fn image(&mut self, Figure { mut name, words, svg }: Figure) -> String {
        name.retain(|c| c.is_ascii_alphanumeric() || " -_".contains(c));
        let name = name.replace(' ', "-");
        let named =
            |i: usize| if i == 1 { format!("{name}.svg") } else { format!("{name}-{i}.svg") };
        let file = (1..).map(named).find(|file| !self.plots.contains_key(file)).unwrap_or_default();
        let line = format!("![{}](plots/{file})\n", escape(&words));
        self.plots.insert(file, svg);
        line
    }
}

/// Tables of how many times as fast this library is on the devices of a kind. Each row is
/// compared with the peer that users would pick instead; without a peer, with the design
/// that the operator started from; without such a design, with the plain loop.
fn others(report: &Report, kind: &str) -> Vec<String> {
    let groups = view::groups(report);
    let table = |device: &str| {
        let mut table = Table::new(["operator", "against", "shapes", "least", "median", "most"]);
        for group in groups.iter().filter(|group| group.device == device) {
            let roles = [Role::Peer, Role::Seed, Role::Baseline];
            let others = group.others();
            let role = roles.into_iter().find(|role| others.iter().any(|who| who.1 == *role));
            for who in others.iter().filter(|who| Some(who.1) == role) {
                let mut all = group.over_spec();
                all.retain(|(row, _)| row.who() == *who);
                all.sort_by(|a, b| a.1.total_cmp(&b.1));
                let (Some(least), Some(max)) = (all.first(), all.last()) else { continue };
                let end = |(row, ratio): &(&Measurement, f64)| {
                    format!("{} ({})", times(*ratio), escape(&row.shape))
                };
                let ratios: Vec<f64> = all.iter().map(|(_, ratio)| *ratio).collect();
                let (name, shapes) = (format!("`{}`", group.operator), all.len().to_string());
                let median = times(stats::median(&ratios));
                table.0.push(vec![name, escape(who.0), shapes, end(least), median, end(max)]);
            }
        }
        let words = escape(&view::device_words(report, device));
        (table.0.len() > 1).then(|| format!("**{words}**: times as fast\n\n{}\n", table.text(2)))
    };
    let mut devices = distinct(groups.iter().map(|group| group.device));
    devices.retain(|id| id.split(':').next() == Some(kind));
    devices.into_iter().filter_map(table).collect()
}

/// For each device, how many goals are met, and which goals are missed.
fn goals(report: &Report) -> String {
    let mut out = String::new();
    for device in distinct(report.measurements.iter().map(|row| &*row.device)) {
        let rows = report.measurements.iter().filter(|row| row.device == device);
        let all: Vec<_> =
            rows.filter_map(|row| Some((row, row.goal_us?, row.goal_met()?))).collect();
        let mut table = Table::new(["missed", "shape", "median", "goal", "over goal"]);
        for (row, goal, _) in all.iter().filter(|(.., met)| !met) {
            let (median, operator) = (row.median_us(), format!("`{}`", row.operator));
            table.0.push(vec![
                operator,
                escape(&row.shape),
                time(median),
                time(*goal),
                times(median / goal),
            ]);
        }
        let words = view::device_words(report, device);
        let met = all.len() + 1 - table.0.len();
        let words = format!("{words}: {met} of {} goals met", all.len());
        match table.0.len() {
            _ if all.is_empty() => {}
            1 => out.push_str(&format!("{}\n\n", escape(&words))),
            _ => out.push_str(&details(&words, &table.text(2))),
        }
    }
    out
}

/// A text that a reader can unfold, under the heading `words`.
fn details(words: &str, text: &str) -> String {
    let words = words.replace('<', "&lt;");
    format!("<details>\n<summary>{words}</summary>\n\n{text}\n</details>\n\n")
}

/// A table that a reader can unfold, with one line per shape: this library's time, then
/// the ratios of the other designs.
fn folded(group: &Group<'_>) -> String {
    let others = group.others();
    let head = ["shape", "spec", "10 to 90 %", "floor", "goal"].map(str::to_owned);
    let mut table =
        Table(vec![head.into_iter().chain(others.iter().map(|who| escape(who.0))).collect()]);
    for work in &group.works {
        let ours = work.spec();
        let mut line = vec![
            escape(work.shape),
            ours.map(|row| time(row.median_us())).unwrap_or_default(),
            ours.map(Measurement::interval).unwrap_or_default(),
            work.floor_us.map(time).unwrap_or_default(),
            ours.and_then(Measurement::goal).unwrap_or_default(),
        ];
        for who in &others {
            let row = work.rows.iter().find(|row| row.who() == *who);
            let ratio =
                row.and_then(|row| work.over_spec(row)).map(|ratio| format!(" ({})", times(ratio)));
            line.push(
                row.map(|row| time(row.median_us())).unwrap_or_default()
                    + &ratio.unwrap_or_default(),
            );
        }
        table.0.push(line);
    }
    let all = |words: Vec<String>| escape(&words.join("; "));
    let samples = || group.rows().map(|row| row.samples_us.len());
    let text = format!(
        "{}\nTimed: {}; {} to {} samples. Checked against: {}.\n",
        table.text(1),
        all(distinct(group.rows().map(|row| view::way(&row.method)))),
        samples().min().unwrap_or(0),
        samples().max().unwrap_or(0),
        all(distinct(group.rows().map(|row| row.check.clone()))),
    );
    details(&group.device_words(), &text)
}

/// The date of a machine's report, the machine's hardware, and how busy it was.
fn summary(report: &Report) -> String {
    let gpus = report.devices.iter().filter(|device| device.id != "cpu");
    let gpus = distinct(gpus.map(|device| &*device.name)).into_iter();
    let gpus: String = gpus.map(|name| format!(", {}", escape(name))).collect();
    let load = load(report).map_or("load unknown".to_owned(), |words| escape(&words));
    let (date, host) = (escape(&report.date), escape(&report.host.words()));
    format!("- {date}: {host}{gpus}; {load}\n")
}

/// How many cores other programs took, if that was measured.
fn load(report: &Report) -> Option<String> {
    let (others, cores) = (report.load?.others(), report.host.cores);
    let quiet = || format!("other programs took {others:.1} of {cores} cores meanwhile");
    Some(report.busy().unwrap_or_else(quiet))
}

/// The machine of a report with its devices and versions, and the command that repeats the run.
fn machine(report: &Report) -> String {
    let host = &report.host;
    let gib = digits(host.memory_bytes as f64 / f64::from(1 << 30));
    let versions: Vec<_> = report.versions.iter().map(|(name, v)| format!("{name} {v}")).collect();
    let load = load(report).map(|words| format!("\n\nLoad: {words}.")).unwrap_or_default();
    let mut table = Table::new(["device", "", "a copy moves", "a call that does nothing takes"]);
    for device in &report.devices {
        let facts = device.facts.iter().map(|(name, value)| format!("; {name} {value}"));
        let words = device.name.clone() + &facts.collect::<String>();
        let rate = device.copy_bytes_per_second.map(|rate| format!("{} GB/s", digits(rate / 1e9)));
        let overhead = device.overhead_us.map(time).unwrap_or_default();
        table.0.push(vec![
            format!("`{}`", device.id),
            escape(&words),
            rate.unwrap_or_default(),
            overhead,
        ]);
    }
    format!(
        "**{}**, {} cores, {gib} GiB, {}; measured {}.\n\nVersions: {}.{load}\n\n{}\n```console\n{}```\n\n",
        escape(&host.cpu),
        host.cores,
        escape(&host.os),
        escape(&report.date),
        escape(&versions.join(", ")),
        table.text(2),
        report.command.lines().map(|line| format!("$ {line}\n")).collect::<String>(),
    )
}

/// Cells by row; the first row is the head.
struct Table(Vec<Vec<String>>);

impl Table {
    fn new<const N: usize>(head: [&str; N]) -> Self {
        Table(vec![head.map(str::to_owned).to_vec()])
    }

    /// The table as Markdown, without columns that are empty in every row. The first
    /// `left` columns are text, the others numbers.
    fn text(&self, left: usize) -> String {
        let rows = &self.0;
        let filled = |c: &usize| rows[1..].iter().any(|row| !row[*c].is_empty());
        let columns: Vec<usize> = (0..rows[0].len()).filter(filled).collect();
        let mut out = String::new();
        for (i, row) in rows.iter().enumerate() {
            for &c in &columns {
                // A number must not be parted from its unit. Writing to a string cannot fail.
                let space = if i > 0 && c >= left { "\u{a0}" } else { " " };
                let _ = write!(out, "| {} ", row[c].replace(' ', space));
            }
            out.push_str("|\n");
            if i == 0 {
                let rule = columns.iter().map(|c| if *c < left { "|---" } else { "|---:" });
                out.push_str(&(rule.collect::<String>() + "|\n"));
            }
        }
        out
    }
}

/// Escapes text so that Markdown shows the text as it is, also in a table.
pub(crate) fn escape(text: &str) -> String {
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
