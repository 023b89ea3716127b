//! One HTML page of plots and tables that needs no other file, no network and no script.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::report::view::distinct;
use crate::report::{Error, Report, markdown};

/// The page: the output of [`markdown::render`] for all rows, as HTML that contains the
/// plots.
///
/// # Errors
///
/// A plot that cannot be drawn.
pub fn page(reports: &[Report]) -> Result<String, Error> {
    let page = markdown::render(&template(reports), reports)?;
    let parser = Parser::new_ext(
        &page.markdown,
        Options::ENABLE_TABLES | Options::ENABLE_HEADING_ATTRIBUTES,
    );
    // Each image is replaced by its SVG. The description of the image is dropped, because
    // the title of an SVG is text already.
    let mut in_image = false;
    let events = parser.filter_map(|event| match event {
        Event::Start(Tag::Image { dest_url, .. }) => {
            in_image = true;
            let svg = page.plots.get(dest_url.trim_start_matches("plots/"));
            Some(Event::Html(svg.cloned().unwrap_or_default().into()))
        }
        Event::End(TagEnd::Image) => {
            in_image = false;
            None
        }
        other => (!in_image).then_some(other),
    });
    let mut body = String::new();
    pulldown_cmark::html::push_html(&mut body, events);
    let body = body.replace("<details>", "<details open>");
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>spec: measured</title>\n\
         <style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        include_str!("../../pages/page.css")
    ))
}

/// A template that shows everything in the reports.
fn template(reports: &[Report]) -> String {
    let rows = reports.iter().flat_map(|report| &report.measurements);
    let (mut links, mut sections) = (String::new(), String::new());
    for id in distinct(rows.map(|row| &*row.operator)) {
        let name = markdown::escape(id);
        links.push_str(&format!("· [{name}](#{id}) "));
        let text = format!("{{{{plots {id}}}}}\n\n{{{{operator {id}}}}}");
        sections.push_str(&format!("## {name} {{#{id}}}\n\n{text}\n\n"));
    }
    let page = include_str!("../../pages/page.md.in").replace("LINKS ", &links);
    page.replace("OPERATORS", sections.trim_end())
}
