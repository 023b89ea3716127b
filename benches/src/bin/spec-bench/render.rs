//! `spec-bench report`: makes docs/performance.md, and pages of plots, from measurements.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use spec_bench::report::{Report, html, markdown};
use spec_cli::output;

const TEMPLATE: &str = "benches/pages/performance.md.in";
const RESULTS: &str = "benches/results";
const PAGE: &str = "docs/performance.md";
const PLOTS: &str = "docs/plots";

/// The result of a task, with a sentence as error.
type Result<T, E = String> = std::result::Result<T, E>;

/// What `spec-bench report` takes.
#[derive(Args)]
pub struct Options {
    /// Prove that docs/performance.md and docs/plots/ are what benches/results/ gives; write
    /// nothing
    #[arg(long, conflicts_with_all = ["html", "merge"])]
    check: bool,
    /// Write one page of plots and of every row instead
    #[arg(long, value_name = "PAGE", conflicts_with = "merge")]
    html: Option<PathBuf>,
    /// Write one file of the parts of a run that were measured one by one
    #[arg(long, value_name = "FILE", requires = "files")]
    merge: Option<PathBuf>,
    /// The measurements of --html and --merge [default of --html: benches/results/]
    #[arg(value_name = "JSON")]
    files: Vec<PathBuf>,
}

/// Renders, checks or merges, as the options say.
pub fn run(options: &Options) -> spec_cli::Result<ExitCode> {
    let done = match options {
        Options { merge: Some(one), files, .. } => merge(one, files),
        Options { html: Some(page), files, .. } => html_page(page, files),
        Options { files, .. } if !files.is_empty() => {
            Err("files of measurements go with --html or --merge".to_owned())
        }
        Options { check: true, .. } => check(),
        _ => render(),
    };
    let words = done.map_err(spec_cli::Error::Message)?;
    output::write(&words)?;
    Ok(ExitCode::SUCCESS)
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_owned()
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))
}

/// The page and the plots of the committed measurements, each with its path and its text.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let template =
        std::fs::read_to_string(root().join(TEMPLATE)).map_err(|e| format!("{TEMPLATE}: {e}"))?;
    let page = markdown::render(&template, &results()?).map_err(|e| e.to_string())?;
    let plots = page.plots.into_iter().map(|(name, svg)| (Path::new(PLOTS).join(name), svg));
    Ok([(PathBuf::from(PAGE), page.markdown)].into_iter().chain(plots).collect())
}

/// The committed measurements. The file `h100` comes before `h100-peers`, which completes the
/// rows of `h100`.
fn results() -> Result<Vec<Report>> {
    let mut paths = folder(&root().join(RESULTS))?;
    paths.retain(|path| path.extension().is_some_and(|e| e == "json"));
    paths.sort_by_key(|path| path.with_extension(""));
    if paths.is_empty() {
        return Err(format!("{RESULTS} has no measurements"));
    }
    all(&paths)
}

/// The files of a folder, sorted by name.
fn folder(path: &Path) -> Result<Vec<PathBuf>> {
    let words = |e: std::io::Error| format!("{}: {e}", path.display());
    let entries = std::fs::read_dir(path).map_err(words)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|e| e.map(|e| e.path())).collect::<Result<_, _>>().map_err(words)?;
    paths.sort();
    Ok(paths)
}

/// The existing plots that no page shows.
fn stale(wanted: &[(PathBuf, String)]) -> Result<Vec<PathBuf>> {
    let plots = root().join(PLOTS);
    if !plots.exists() {
        return Ok(vec![]);
    }
    let is_wanted = |path: &PathBuf| wanted.iter().any(|(name, _)| root().join(name) == *path);
    Ok(folder(&plots)?.into_iter().filter(|path| !is_wanted(path)).collect())
}

fn render() -> Result<String> {
    let files = files()?;
    let plots = root().join(PLOTS);
    std::fs::create_dir_all(&plots).map_err(|e| format!("{}: {e}", plots.display()))?;
    for path in stale(&files)? {
        std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    for (name, text) in &files {
        write(&root().join(name), text.as_bytes())?;
    }
    Ok(format!("{PAGE} and {} plots\n", files.len() - 1))
}

/// Checks that the committed page and plots are those that the measurements give.
fn check() -> Result<String> {
    let files = files()?;
    let differs = |(name, text): &&(PathBuf, String)| {
        std::fs::read(root().join(name)).map_or(true, |bytes| bytes != text.as_bytes())
    };
    let differing = files.iter().filter(differs).map(|(name, _)| name.display().to_string());
    let stale =
        stale(&files)?.into_iter().map(|path| format!("{} (nothing shows it)", path.display()));
    let wrong: Vec<String> = differing.chain(stale).collect();
    if wrong.is_empty() {
        return Ok(format!("{PAGE} and {} plots are what {RESULTS} gives\n", files.len() - 1));
    }
    Err(format!(
        "these are not what {RESULTS} and {TEMPLATE} give; run spec-bench report:\n  {}",
        wrong.join("\n  ")
    ))
}

/// Writes the HTML page of the named measurements, or of the committed ones if none are named.
fn html_page(page: &Path, files: &[PathBuf]) -> Result<String> {
    let reports = if files.is_empty() { results()? } else { all(files)? };
    let html = html::page(&reports).map_err(|e| e.to_string())?;
    write(page, html.as_bytes())?;
    Ok(String::new())
}

/// Merges the reports in `files`, which are parts of one run, and writes the file `one`.
fn merge(one: &Path, files: &[PathBuf]) -> Result<String> {
    let merged = Report::merge(all(files)?).map_err(|e| e.to_string())?;
    merged.write(one).map_err(|e| e.to_string())?;
    Ok(String::new())
}

fn all(files: &[impl AsRef<Path>]) -> Result<Vec<Report>> {
    files.iter().map(Report::read).collect::<Result<_, _>>().map_err(|e| e.to_string())
}
