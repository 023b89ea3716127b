//! The benchmarks of the operators: the library behind the program `spec-bench`.
//!
//! A [`Row`] is an operator on one shape. [`rows`] returns the rows of the
//! project's tables, most of them with a goal; [`row`] makes a row of any other
//! shape. A row makes its [`Inputs`] once. Uploaded to a device ([`OnDevice`]),
//! the same inputs are given to every implementation on that device: this library
//! and the designs of [`baselines`]. Every element of the results is checked,
//! against a plain loop or against an answer that is known from how the inputs
//! were made.
//!
//! [`run`] times and checks rows on devices, and returns a [`report::Report`]. [`Row::save`]
//! writes inputs and expected results to files: other libraries are timed on them.
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
mod files;
mod inputs;
mod machine;
mod ops;
pub mod report;
mod run;
mod shape;
#[cfg(test)]
mod tests;
mod work;

use std::path::Path;
use std::sync::Arc;

use baselines::Designs;

pub use machine::host;
pub use run::{Event, Options, Outcome, run};
pub use shape::ShapeError;
pub use work::{Effort, Implementation, Inputs, OnDevice};

use chain::{Chain, DecodeTail, DecodeTailTrees, RouteAlign, SelectDeduplicate};
use shape::Fields;
use spec_conformance::Subject;
use work::Work;

/// An operator on one shape: a row of a table.
#[derive(Clone)]
pub struct Row {
    /// The operator's name.
    pub operator: &'static str,
    /// The shape in words, the same for every device and implementation:
    /// "1024 tokens, f32".
    pub shape: String,
    /// The name of the curve over size to which the row belongs; empty for no curve.
    pub series: String,
    /// The row's place on its curve.
    pub size: f64,
    /// The unit of [`size`](Self::size).
    pub size_unit: &'static str,
    /// Whether the row is one of the few rows of `--quick`.
    pub quick: bool,
    /// The time that the project wants to reach.
    pub goal: Goal,
    /// Bytes of all arguments of the operator.
    pub memory: u64,
    /// Whether a CPU would take minutes for the row.
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
    /// No goal is known beforehand.
    #[default]
    Unknown,
    /// Microseconds on an NVIDIA H200 or H100.
    Hopper(f64),
    /// A multiple of the time of the row with the named shape, on the same device.
    Times(f64, String),
}

impl Row {
    /// Makes the inputs.
    ///
    /// # Errors
    /// A sentence, if the inputs are made of a text that does not load.
    pub fn inputs(&self) -> Result<Box<dyn Inputs>, String> {
        (self.inputs)()
    }

    /// Writes the inputs to `FOLDER/OPERATOR/SHAPE`, for the scripts under `benches/peers/`.
    ///
    /// # Errors
    /// As [`inputs`](Self::inputs) and [`Inputs::save`].
    pub fn save(&self, folder: &Path) -> Result<(), String> {
        let folder = folder.join(self.operator).join(&self.shape);
        let failed = |error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let inputs = self.inputs()?;
        inputs.save(&folder)?;
        let about = serde_json::json!({ "bytes": inputs.bytes() });
        std::fs::write(folder.join("row.json"), about.to_string()).map_err(failed)
    }
}

/// The words and numbers by which tables show a shape.
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
    /// A row whose goal is `us` microseconds on an H200.
    fn goal(shape: S, us: f64) -> Self {
        Entry { shape, quick: false, goal: Goal::Hopper(us) }
    }

    /// A row without a goal.
    fn plain(shape: S) -> Self {
        Entry { shape, quick: false, goal: Goal::Unknown }
    }

    /// The same row, part of `--quick` if `quick` is true.
    fn quick_if(self, quick: bool) -> Self {
        Entry { quick, ..self }
    }
}

/// An operator that is timed: its table, and how to make its inputs.
pub(crate) trait Measured: Subject + Designs + spec::Portable {
    type Shape: Clone + Send + Sync + 'static;

    /// A shape, as a user writes it, that every device computes in a moment.
    const SMALL: &str;

    /// The operator's rows.
    fn table() -> Vec<Entry<Self::Shape>>;

    /// Parses a shape that a user gives. Only the keys and their ranges are checked
    /// here; creating the operator refuses all other bad shapes.
    fn parse(fields: &mut Fields<'_>) -> Result<Self::Shape, ShapeError>;

    fn words(shape: &Self::Shape) -> Words;

    /// Bytes of all arguments.
    fn memory(shape: &Self::Shape) -> u64;

    /// Whether a CPU would take minutes for the designs on this shape.
    fn slow(shape: &Self::Shape) -> bool {
        Self::memory(shape) > 4 << 30
    }

    /// Makes the inputs and the expected answer.
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

/// The keys that `parse` accepts, with their values.
fn keys_of<S>(parse: impl FnOnce(&mut Fields<'_>) -> Result<S, ShapeError>) -> Vec<String> {
    // An empty text has no key that could be refused.
    let Ok(mut fields) = Fields::parse("", "") else { return Vec::new() };
    parse(&mut fields).map_or_else(|_| Vec::new(), |_| fields.keys())
}

fn parsed<O: Measured>(text: &str) -> Result<Row, ShapeError> {
    let mut fields = Fields::parse(O::NAME, text)?;
    let shape = O::parse(&mut fields)?;
    fields.finish()?;
    Ok(row_of::<O>(Entry::plain(shape)))
}

/// The functions of an operator or a chain, found by its name.
struct Table {
    name: &'static str,
    rows: fn() -> Vec<Row>,
    parse: fn(&str) -> Result<Row, ShapeError>,
    keys: fn() -> Vec<String>,
    /// [`Measured::SMALL`]; `None` for a chain.
    small: Option<&'static str>,
}

const fn table<O: Measured>() -> Table {
    Table {
        name: O::NAME,
        rows: rows_of::<O>,
        parse: parsed::<O>,
        keys: || keys_of(O::parse),
        small: Some(O::SMALL),
    }
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
        small: None,
    }
}

macro_rules! tables {
    ($($module:ident: $operator:ident,)+) => {
        &[
            $( table::<spec::ops::$operator>(), )+
            chain::<RouteAlign>(),
            chain::<SelectDeduplicate>(),
            chain::<DecodeTail>(),
            chain::<DecodeTailTrees>(),
        ]
    };
}

/// Every operator, and chains of operators, in the order of reports.
const TABLES: &[Table] = spec::for_each_operator!(tables);

/// The operators' names, in the order of reports.
pub fn operators() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|table| table.name)
}

/// The rows of every operator's table.
pub fn rows() -> Vec<Row> {
    TABLES.iter().flat_map(|table| (table.rows)()).collect()
}

/// Each operator with a small shape, as [`row`] takes it, for tests.
#[doc(hidden)]
pub fn small_shapes() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLES.iter().filter_map(|table| Some((table.name, table.small?)))
}

/// The keys of an operator's shape with their values: `tokens=1 to 2^24`, `dtype=f32|bf16`.
/// Empty for an unknown operator.
pub fn keys(operator: &str) -> Vec<String> {
    let table = TABLES.iter().find(|table| table.name == operator);
    table.map(|table| (table.keys)()).unwrap_or_default()
}

/// A row of a shape that a user gives: `tokens=4096,experts=256,dtype=bf16`. Keys
/// that are left out get typical values. If the operator's table has the same shape,
/// the result is the row of the table, with its goal.
///
/// # Errors
/// An unknown operator, key or value; the message lists the known ones.
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
