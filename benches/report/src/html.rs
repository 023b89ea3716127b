//! One page of plots and tables, with nothing outside it: no network, no script.

use std::fmt::Write;

use crate::figures::{self, Figure, Looks};
use crate::plot::STYLE;
use crate::plot::canvas::escape;
use crate::view::{self, Group, Work, distinct, three_digits, time};
use crate::{Measurement, Report, Role, stats};

const PAGE_STYLE: &str = include_str!("page.css");

/// The page. Reports of one machine are put together, those of several follow
/// each other under each operator.
#[must_use]
pub fn page(reports: &[Report]) -> String {
    let machines = view::machines(reports);
    let all: Vec<Group<'_>> = machines.iter().flat_map(view::groups).collect();
    let operators = distinct(all.iter().map(|group| group.operator));

    let mut out = String::new();
    let links: String = [("machines", "Machines"), ("goals", "Goals")]
        .into_iter()
        .chain(operators.iter().map(|operator| (*operator, *operator)))
        .chain([("rooflines", "Rooflines"), ("reading", "How to read this")])
        .filter(|(id, _)| *id != "goals" || goals(&machines).is_some())
        .map(|(id, name)| format!("<li><a href=\"#{0}\">{1}</a></li>", escape(id), escape(name)))
        .collect();
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>spec: measured</title>\n\
         <style>\n{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n\
         <a class=\"skip\" href=\"#content\">Skip to the content</a>\n\
         <header><h1>spec: measured</h1>\n<nav aria-label=\"Sections\"><ul>{links}</ul></nav></header>\n\
         <main id=\"content\">\n"
    );
    out.push_str(&machines_section(&machines));
    out.push_str(&goals(&machines).unwrap_or_default());
    for operator in operators {
        let looks = Looks::of(operator, &machines);
        let _ = writeln!(out, "<section id=\"{0}\"><h2><code>{0}</code></h2>", escape(operator));
        for group in all.iter().filter(|group| group.operator == operator) {
            out.push_str(&group_section(group, &looks));
        }
        out.push_str("</section>\n");
    }
    out.push_str("<section id=\"rooflines\"><h2>Rooflines</h2>\n");
    out.push_str(ROOFLINE_WORDS);
    let rooflines: Vec<Figure> = machines.iter().flat_map(figures::rooflines).collect();
    out.push_str(&row_of(&rooflines));
    out.push_str("</section>\n");
    out.push_str(READING);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

const ROOFLINE_WORDS: &str = "<p>Bytes a second that this library reaches over the bytes that a call \
must move. Dotted: what a large copy on the device reaches. The curve takes what a call costs that does \
nothing into account. A point above the copy is a call whose data stays in a cache, or that reads much and \
writes next to nothing, which memory does faster than copying.</p>\n";

const READING: &str = "<section id=\"reading\"><h2>How to read this</h2>\n<dl>\n\
<dt>Median, 10 to 90 %</dt><dd>The middle of the samples of one call's time, and the interval that holds \
the middle four fifths of them. Bars through the points of a plot show the same interval.</dd>\n\
<dt>Floor</dt><dd>The bytes that the work must move at least, over the rate that a large copy reaches on \
the same device in the same run. Work that mostly reads can be faster, since memory reads faster than it copies; so \
can work whose data stays in a cache.</dd>\n\
<dt>Ratio</dt><dd>The time of the design that the operator started from (marked “= 1”; where there is none, \
the first baseline) over the row’s: above 1, the row is faster than that design.</dd>\n\
<dt>Roles</dt><dd><i>spec</i> is this library; <i>seed</i> the design that the operator started from; \
<i>baseline</i> another known design, or the plain loop; <i>peer</i> what users would pick instead.</dd>\n\
<dt>Goal</dt><dd>What the project set itself for that shape on that kind of device.</dd>\n\
</dl></section>\n";

fn machines_section(machines: &[Report]) -> String {
    let mut out =
        String::from("<section id=\"machines\"><h2>Machines</h2>\n<div class=\"cards\">\n");
    for report in machines {
        let host = &report.host;
        let memory = three_digits(host.memory_bytes as f64 / f64::from(1 << 30));
        let mut facts = vec![
            ("Measured", report.date.clone()),
            ("Processor", format!("{}, {} cores", host.cpu, host.cores)),
            ("Memory", format!("{memory} GiB")),
            ("System", host.os.clone()),
        ];
        for device in &report.devices {
            let mut words = vec![device.name.clone()];
            if let Some(rate) = device.copy_bytes_per_second {
                words.push(format!("a copy moves {} GB/s", three_digits(rate / 1e9)));
            }
            if let Some(overhead) = device.overhead_us {
                words.push(format!("a call that does nothing takes {}", time(overhead)));
            }
            words.extend(device.facts.iter().map(|(name, value)| format!("{name} {value}")));
            facts.push((&*device.id, words.join("; ")));
        }
        let versions: Vec<_> =
            report.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        facts.push(("Versions", versions.join(", ")));
        let _ = write!(out, "<div class=\"card\"><dl>");
        for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
            let _ = write!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        let _ = write!(out, "<dt>Commands</dt><dd>");
        for line in report.command.lines() {
            let _ = write!(out, "<code class=\"command\">{}</code>", escape(line));
        }
        out.push_str("</dd></dl></div>\n");
    }
    out + "</div></section>\n"
}

/// Which goals are met and which are missed; nothing where there are none.
fn goals(machines: &[Report]) -> Option<String> {
    let mut out = String::from("<section id=\"goals\"><h2>Goals</h2>\n<div class=\"goals\">\n");
    let mut any = false;
    for report in machines {
        for device in distinct(report.measurements.iter().map(|row| &*row.device)) {
            let of_device = report.measurements.iter().filter(|row| row.device == device);
            let judged: Vec<_> =
                of_device.filter_map(|row| Some((row, row.goal_us?, row.goal_met()?))).collect();
            if judged.is_empty() {
                continue;
            }
            any = true;
            let missed: Vec<_> = judged.iter().filter(|(.., met)| !met).collect();
            let _ = writeln!(
                out,
                "<div><p><b>{}</b>: {} of {} goals met.</p>",
                escape(&view::device_words(report, device)),
                judged.len() - missed.len(),
                judged.len(),
            );
            if missed.is_empty() {
                out.push_str("</div>\n");
                continue;
            }
            let rows = missed.iter().map(|(row, goal, _)| {
                format!(
                    "<tr><td><code>{}</code></td><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    escape(&row.operator),
                    escape(&row.shape),
                    time(row.median_us()),
                    time(*goal),
                    three_digits(row.median_us() / goal),
                )
            });
            let head = "<thead><tr><th scope=\"col\">operator</th><th scope=\"col\">shape</th>\
                        <th scope=\"col\">median</th><th scope=\"col\">goal</th>\
                        <th scope=\"col\">over goal</th></tr></thead>\n";
            let name = format!("Missed goals on {device}");
            out.push_str("<details open><summary>Missed</summary>");
            out.push_str(&scroller(
                &name,
                &format!("{head}<tbody>{}</tbody>", rows.collect::<String>()),
            ));
            out.push_str("</details></div>\n");
        }
    }
    any.then(|| out + "</div></section>\n")
}

fn group_section(group: &Group<'_>, looks: &Looks) -> String {
    let words = group.device_words();
    let mut out = format!("<section><h3>{}</h3>\n", escape(&words));
    let mut plots = figures::lines(group, looks);
    plots.extend(figures::ratios(group, looks));
    out.push_str(&row_of(&plots));
    out.push_str(&rows_table(group));
    out + "</section>\n"
}

/// Figures side by side, as the page is wide.
fn row_of(figures: &[Figure]) -> String {
    let figures = figures.iter().map(|figure| format!("<figure>{}</figure>\n", figure.svg));
    format!("<div class=\"figures\">{}</div>\n", figures.collect::<String>())
}

/// Every row of a group, and below it how it was timed and checked.
fn rows_table(group: &Group<'_>) -> String {
    let rows = || group.works.iter().flat_map(|work| work.rows.iter().copied());
    let methods = distinct(rows().map(|row| &*row.method));
    let checks = distinct(rows().map(|row| &*row.check));
    let has_goals = rows().any(|row| row.goal_us.is_some());
    let has_floor = rows().any(|row| group.report.floor_us(row).is_some());
    let mut columns = vec!["shape", "implementation", "role", "median", "10 to 90 %", "samples"];
    columns.extend(has_floor.then_some(["floor", "× floor"]).into_iter().flatten());
    columns.extend(has_goals.then_some("goal"));
    columns.extend(["ratio", "timed", "checked"]);
    let head: String =
        columns.iter().map(|name| format!("<th scope=\"col\">{name}</th>")).collect();

    let mut body = String::new();
    for work in &group.works {
        body.push_str("<tbody>");
        for (i, row) in work.rows.iter().enumerate() {
            let class = if row.role == Role::Spec { " class=\"ours\"" } else { "" };
            let _ = write!(body, "<tr{class}>");
            if i == 0 {
                let span = work.rows.len();
                let shape = escape(work.shape);
                let _ = write!(body, "<th scope=\"rowgroup\" rowspan=\"{span}\">{shape}</th>");
            }
            let mut cells = vec![escape(&row.implementation), role(row.role).into()];
            cells.push(time(row.median_us()));
            cells.push(view::interval(stats::spread(&row.samples_us)));
            cells.push(row.samples_us.len().to_string());
            if has_floor {
                let floor = work.floor_us(group.report);
                cells.push(floor.map(time).unwrap_or_default());
                cells.push(view::times_floor(row.median_us(), floor));
            }
            if has_goals {
                cells.push(goal(row));
            }
            cells.push(ratio(work, row));
            cells.push(letter('a', methods.iter().position(|method| *method == row.method)));
            cells.push(letter('A', checks.iter().position(|check| *check == row.check)));
            cells.iter().for_each(|cell| {
                let _ = write!(body, "<td>{cell}</td>");
            });
            body.push_str("</tr>\n");
        }
        body.push_str("</tbody>\n");
    }
    let name = format!("{} on {}", group.operator, group.device_words());
    let table = scroller(&name, &format!("<thead><tr>{head}</tr></thead>\n{body}"));
    let keys = |first: char, words: &[&str]| -> String {
        let key = |(i, words): (usize, &&str)| {
            format!("<b>{}</b> {}", letter(first, Some(i)), escape(words))
        };
        words.iter().enumerate().map(key).collect::<Vec<_>>().join("; ")
    };
    format!(
        "{table}<p class=\"keys\">Timed: {}. Checked against: {}.</p>\n",
        keys('a', &methods),
        keys('A', &checks)
    )
}

/// A table that scrolls sideways where the page is narrow, by keyboard too.
fn scroller(name: &str, inner: &str) -> String {
    format!(
        "<div class=\"scroll\" role=\"region\" tabindex=\"0\" aria-label=\"{0}\"><table>\
         <caption>{0}</caption>\n{inner}</table></div>\n",
        escape(name)
    )
}

fn goal(row: &Measurement) -> String {
    match (row.goal_us, row.goal_met()) {
        (Some(goal), Some(true)) => format!("{} <span class=\"met\">met</span>", time(goal)),
        (Some(goal), _) => format!("{} <b class=\"missed\">missed</b>", time(goal)),
        _ => String::new(),
    }
}

fn ratio(work: &Work<'_>, row: &Measurement) -> String {
    match work.reference() {
        Some(reference) if std::ptr::eq(reference, row) => "= 1".into(),
        Some(reference) => three_digits(reference.median_us() / row.median_us()),
        None => String::new(),
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::Spec => "spec",
        Role::Seed => "seed",
        Role::Baseline => "baseline",
        Role::Peer => "peer",
    }
}

/// The `i`th letter from `first`; after the alphabet's end, numbers.
fn letter(first: char, i: Option<usize>) -> String {
    match i {
        Some(i) if i < 26 => char::from(first as u8 + i as u8).to_string(),
        Some(i) => (i + 1).to_string(),
        None => String::new(),
    }
}
