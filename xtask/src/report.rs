//! `cargo xtask report`: docs/performance.md from what was measured.

use std::path::{Path, PathBuf};

use spec_report::{Report, html, markdown};

use crate::{Result, read, root, write};

const TEMPLATE: &str = "benches/report/performance.md.in";
const RESULTS: &str = "benches/results";
const PAGE: &str = "docs/performance.md";
const PLOTS: &str = "docs/plots";

/// Runs the task with the words after its name.
pub fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        [] => render(),
        ["--check"] => check(),
        ["--html", page, files @ ..] => html_page(Path::new(page), files),
        ["--merge", one, files @ ..] if !files.is_empty() => merge(Path::new(one), files),
        other => Err(format!(
            "expected nothing, --check, --html PAGE [JSON..] or --merge ONE JSON.., not {other:?}"
        )),
    }
}

/// The page and the plots that the committed measurements give: path and text.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let template = String::from_utf8(read(&root().join(TEMPLATE))?).map_err(|e| e.to_string())?;
    let page = markdown::render(&template, &results()?).map_err(|e| e.to_string())?;
    let plots = page.plots.into_iter().map(|(name, svg)| (Path::new(PLOTS).join(name), svg));
    Ok([(PathBuf::from(PAGE), page.markdown)].into_iter().chain(plots).collect())
}

/// The committed measurements: `h100` before `h100-peers`, which complete it.
fn results() -> Result<Vec<Report>> {
    let mut paths = folder(&root().join(RESULTS))?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort_by_key(|path| path.with_extension(""));
    if paths.is_empty() {
        return Err(format!("{RESULTS} has no measurements"));
    }
    all(&paths)
}

/// The files of a folder, in the order of their names.
fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let words = |e: std::io::Error| format!("{}: {e}", path.display());
    let entries = std::fs::read_dir(path).map_err(words)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(words)?;
    paths.sort();
    Ok(paths)
}

/// Plots that are there and that nothing shows.
fn stale(wanted: &[(PathBuf, String)]) -> Result<Vec<PathBuf>> {
    let plots = root().join(PLOTS);
    if !plots.exists() {
        return Ok(vec![]);
    }
    let is_wanted = |path: &PathBuf| wanted.iter().any(|(name, _)| root().join(name) == *path);
    Ok(folder(&plots)?.into_iter().filter(|path| !is_wanted(path)).collect())
}

fn render() -> Result<()> {
    let files = files()?;
    let plots = root().join(PLOTS);
    std::fs::create_dir_all(&plots).map_err(|e| format!("{}: {e}", plots.display()))?;
    for path in stale(&files)? {
        std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    for (name, text) in &files {
        write(&root().join(name), text.as_bytes())?;
    }
    println!("{PAGE} and {} plots", files.len() - 1);
    Ok(())
}

/// Proves that what is committed is what the measurements give.
fn check() -> Result<()> {
    let files = files()?;
    let differs = |(name, text): &&(PathBuf, String)| {
        std::fs::read(root().join(name)).map_or(true, |bytes| bytes != text.as_bytes())
    };
    let differing = files.iter().filter(differs).map(|(name, _)| name.display().to_string());
    let stale =
        stale(&files)?.into_iter().map(|path| format!("{} (nothing shows it)", path.display()));
    let wrong: Vec<String> = differing.chain(stale).collect();
    if wrong.is_empty() {
        println!("{PAGE} and {} plots are what {RESULTS} gives", files.len() - 1);
        return Ok(());
    }
    Err(format!(
        "these are not what {RESULTS} and {TEMPLATE} give; run cargo xtask report:\n  {}",
        wrong.join("\n  ")
    ))
}

/// The page of any measurements; of the committed ones where none are named.
fn html_page(page: &Path, files: &[&str]) -> Result<()> {
    let reports = if files.is_empty() { results()? } else { all(files)? };
    let html = html::page(&reports).map_err(|e| e.to_string())?;
    write(page, html.as_bytes())
}

/// One file of the parts of a run that were measured one by one.
fn merge(one: &Path, files: &[&str]) -> Result<()> {
    let merged = Report::merge(all(files)?).map_err(|e| e.to_string())?;
    merged.write(one).map_err(|e| e.to_string())
}

fn all(files: &[impl AsRef<Path>]) -> Result<Vec<Report>> {
    files.iter().map(Report::read).collect::<Result<_, _>>().map_err(|e| e.to_string())
}
