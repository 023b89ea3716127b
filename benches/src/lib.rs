//! What is timed, and how: the definitions behind the program `spec-bench`.
//!
//! A [`Row`] is an operator on one shape. [`rows`] are those that the project
//! sets itself goals for, and what goes with them; [`row`] makes one of a shape
//! of one's own. A row makes its [`Inputs`] once; on a device ([`OnDevice`])
//! they are what every implementation there is called with, this library's and
//! the designs of [`baselines`], and what comes out is checked, every
//! element, against a plain loop or what is known of the inputs.
//!
//! [`run`] does all of that for rows and devices and makes a
//! [`report::Report`] of it.
//!
//! ```
//! use spec_bench::Effort;
//! use spec::Handle;
//!
//! let row = spec_bench::row("topk_router", "tokens=3,experts=64,dtype=bf16").unwrap();
//! assert_eq!(row.shape, "3 tokens, bf16, 64 experts");
//! let cpu = Handle::cpu().unwrap();
//! let inputs = row.inputs().unwrap();
//! let mut call = inputs.upload(&cpu).unwrap();
//! for (which, implementation) in call.implementations().into_iter().enumerate() {
//!     call.select(which).unwrap();
//!     let timing = call.time(&Effort::of(&cpu, true)).unwrap();
//!     println!("{}: {} s, as {}", implementation.name, timing.median(), call.check().unwrap());
//! }
//! ```

pub mod baselines;
mod chain;
mod inputs;
mod machine;
mod ops;
pub mod report;
mod run;
mod shape;
#[cfg(test)]
mod tests;
mod work;

use std::sync::Arc;

use baselines::Designs;

pub use machine::host;
pub use run::{Event, Options, Outcome, run};
pub use shape::ShapeError;
pub use work::{Effort, Implementation, Inputs, OnDevice};

use chain::{Chain, DecodeTail, RouteAlign, SelectDeduplicate};
use shape::Fields;
use spec::ops::{
    AdjustLogits, AppendTokens, DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch,
    PromptLookup, RejectionSample, SampleLogits, SuffixLookup, TopkRouter, TreeVerify, Unique,
};
use spec_conformance::Subject;
use work::Work;

/// An operator on one shape: what a row of a table is about.
#[derive(Clone)]
pub struct Row {
    /// The operator's name.
    pub operator: &'static str,
    /// The shape in words, the same for every device and implementation:
    /// "1024 tokens, f32".
    pub shape: String,
    /// Which curve over size the row belongs to; empty where to none.
    pub series: String,
    /// Where on that curve.
    pub size: f64,
    /// What [`size`](Self::size) counts.
    pub size_unit: &'static str,
    /// Whether it is one of few that show each operator.
    pub quick: bool,
    /// What the project wants to reach.
    pub goal: Goal,
    /// Bytes of all its arguments.
    pub memory: u64,
    /// Why a processor would take minutes for it, if it would.
    pub slow: bool,
    inputs: Arc<Make>,
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Row({}, {})", self.operator, self.shape)
    }
}

type Make = dyn Fn() -> Result<Box<dyn Inputs>, String> + Send + Sync;

/// The project's goal for a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Goal {
    /// None that is known beforehand.
    #[default]
    Unknown,
    /// Microseconds on an NVIDIA H200 or H100.
    Hopper(f64),
    /// So many times what the row of that shape takes, on the same device.
    Times(f64, String),
}

impl Row {
    /// Makes the inputs.
    ///
    /// # Errors
    /// A sentence, where a text that they come from cannot be had.
    pub fn inputs(&self) -> Result<Box<dyn Inputs>, String> {
        (self.inputs)()
    }
}

/// What a table says of one shape.
pub(crate) struct Words {
    pub(crate) shape: String,
    pub(crate) series: String,
    pub(crate) size: f64,
    pub(crate) unit: &'static str,
}

/// A row of an operator's table.
pub(crate) struct Entry<S> {
    pub(crate) shape: S,
    pub(crate) quick: bool,
    pub(crate) goal: Goal,
}

impl<S> Entry<S> {
    /// A row that an H200 should take so many microseconds for.
    fn goal(shape: S, us: f64) -> Self {
        Entry { shape, quick: false, goal: Goal::Hopper(us) }
    }

    /// A row without a goal.
    fn plain(shape: S) -> Self {
        Entry { shape, quick: false, goal: Goal::Unknown }
    }

    /// The same, among those of `--quick` if so.
    fn quick_if(self, quick: bool) -> Self {
        Entry { quick, ..self }
    }
}

/// An operator that is timed: its table, and how its inputs are made.
pub(crate) trait Measured: Subject + Designs + spec::Portable {
    type Shape: Clone + Send + Sync + 'static;

    /// The rows that the project has.
    fn table() -> Vec<Entry<Self::Shape>>;

    /// A shape of one's own. Checked no further than its keys go: what the
    /// operator itself refuses, it refuses when it is created.
    fn parse(fields: &mut Fields<'_>) -> Result<Self::Shape, ShapeError>;

    fn words(shape: &Self::Shape) -> Words;

    /// Bytes of all arguments.
    fn memory(shape: &Self::Shape) -> u64;

    /// Whether a processor would take minutes for the designs of this shape.
    fn slow(shape: &Self::Shape) -> bool {
        Self::memory(shape) > 4 << 30
    }

    /// Inputs and answer.
    fn work(shape: &Self::Shape) -> Result<Work<Self>, String>;
}

fn row_of<O: Measured>(entry: Entry<O::Shape>) -> Row {
    let Entry { shape, quick, goal } = entry;
    let words = O::words(&shape);
    Row {
        operator: O::NAME,
        shape: words.shape,
        series: words.series,
        size: words.size,
        size_unit: words.unit,
        quick,
        goal,
        memory: O::memory(&shape),
        slow: O::slow(&shape),
        inputs: Arc::new(move || Ok(Box::new(O::work(&shape)?))),
    }
}

fn rows_of<O: Measured>() -> Vec<Row> {
    O::table().into_iter().map(row_of::<O>).collect()
}

/// The keys that `parse` takes.
fn keys_of<S>(parse: impl FnOnce(&mut Fields<'_>) -> Result<S, ShapeError>) -> Vec<String> {
    // Without a key given there is nothing to refuse.
    let Ok(mut fields) = Fields::parse("", "") else { return Vec::new() };
    parse(&mut fields).map_or_else(|_| Vec::new(), |_| fields.keys())
}

fn parsed<O: Measured>(text: &str) -> Result<Row, ShapeError> {
    let mut fields = Fields::parse(O::NAME, text)?;
    let shape = O::parse(&mut fields)?;
    fields.finish()?;
    Ok(row_of::<O>(Entry::plain(shape)))
}

/// What is done with an operator of any name.
struct Table {
    name: &'static str,
    rows: fn() -> Vec<Row>,
    parse: fn(&str) -> Result<Row, ShapeError>,
    keys: fn() -> Vec<String>,
}

const fn table<O: Measured>() -> Table {
    Table { name: O::NAME, rows: rows_of::<O>, parse: parsed::<O>, keys: || keys_of(O::parse) }
}

const fn chain<C: Chain>() -> Table {
    Table {
        name: C::NAME,
        rows: || C::table().into_iter().map(chain::row_of::<C>).collect(),
        parse: |text| {
            let mut fields = Fields::parse(C::NAME, text)?;
            let shape = C::parse(&mut fields)?;
            fields.finish()?;
            Ok(chain::row_of::<C>(shape))
        },
        keys: || keys_of(C::parse),
    }
}

/// Every operator, and chains of operators, in the order of reports.
const TABLES: [Table; 17] = [
    table::<TopkRouter>(),
    table::<DeduplicateTopk>(),
    table::<RejectionSample>(),
    table::<SampleLogits>(),
    table::<NgramMatch>(),
    table::<HybridMtpNgram>(),
    table::<PromptLookup>(),
    table::<SuffixLookup>(),
    table::<AdjustLogits>(),
    table::<TreeVerify>(),
    table::<AppendTokens>(),
    table::<MoeAlign>(),
    table::<IndexerTopk>(),
    table::<Unique>(),
    chain::<RouteAlign>(),
    chain::<SelectDeduplicate>(),
    chain::<DecodeTail>(),
];

/// The operators' names, in the order of reports.
pub fn operators() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|table| table.name)
}

/// The rows of every operator's table.
pub fn rows() -> Vec<Row> {
    TABLES.iter().flat_map(|table| (table.rows)()).collect()
}

/// What the keys of an operator's shape may be: `tokens=1 to 2^24`, `dtype=f32|bf16`.
/// Nothing for a name that is no operator's.
pub fn keys(operator: &str) -> Vec<String> {
    let table = TABLES.iter().find(|table| table.name == operator);
    table.map(|table| (table.keys)()).unwrap_or_default()
}

/// A row of one's own: `tokens=4096,experts=256,dtype=bf16`. Keys that are left
/// out are those of a typical row; a shape that is one of the operator's table
/// has its goal.
///
/// # Errors
/// An operator, key or value that there is not, with those that there are.
pub fn row(operator: &str, shape: &str) -> Result<Row, ShapeError> {
    match TABLES.iter().find(|table| table.name == operator) {
        Some(table) => {
            let row = (table.parse)(shape)?;
            let known = (table.rows)().into_iter().find(|known| known.shape == row.shape);
            Ok(known.unwrap_or(row))
        }
        None => {
            let known: Vec<_> = operators().collect();
            let words = format!("there is no operator `{operator}`, expected {}", known.join(", "));
            Err(ShapeError(words))
        }
    }
}
