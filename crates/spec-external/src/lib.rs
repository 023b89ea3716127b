//! # Distinct keys of files larger than memory
//!
//! Reads keys from any number of files of any size, and writes the distinct keys in
//! ascending order, within a limit of host memory and a limit of device memory. The
//! operator [`unique`](spec::ops::unique) sorts them, on any device that
//! [`Supports`](spec::Supports) it.
//!
//! ## The parts
//!
//! | | what it is |
//! |---|---|
//! | [`Input`] | a file or a stream, which may be compressed, and its form according to its first bytes |
//! | [`Source`] | a format to read: parts, each a stream of keys |
//! | [`Sink`] | a format to write: ascending blocks, encoded by several threads |
//! | [`Output`] | a file that appears under its name only when it is complete |
//! | [`Key`] | a key type: u64, i64, u32 or i32 |
//! | [`Progress`], [`Summary`] | the progress of a run, and its results |
//!
//! A new format is a `Source` or a `Sink`, in this crate or in another one.
//!
//! A [`Handle`](spec::Handle) is the device that the keys are sorted on.
//!
//! ```
//! use spec::Handle;
//! use spec_external::raw::{self, RawSink};
//! use spec_external::{Output, Distinct};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("spec-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let (input, output) = (folder.join("features.bin"), folder.join("distinct.bin"));
//! # std::fs::write(&input, [3u64, 1, 3, 2].map(u64::to_le_bytes).concat())?;
//! let handle: Handle = "cpu".parse()?; // or "cuda:0", "auto"
//! let mut unique = Distinct::default();
//! unique.memory = 4 << 30;
//!
//! let source = raw::open::<u64>(&input)?;
//! let sink = RawSink::new(Output::create(&output, false, &[&input])?, false);
//! let summary = unique.run(&handle, &*source, sink, &())?;
//! assert_eq!((summary.keys, summary.distinct), (4, 3));
//! # assert_eq!(std::fs::read(&output)?, [1u64, 2, 3].map(u64::to_le_bytes).concat());
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

// docs.rs shows which feature an item needs.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod buffer;
#[cfg(feature = "parquet")]
mod caught;
#[cfg(feature = "parquet")]
pub mod columns;
mod content;
#[cfg(feature = "csv")]
pub mod csv;
mod drain;
mod error;
mod feed;
mod input;
mod key;
mod lane;
mod lines;
mod live;
mod magic;
mod merge;
mod options;
mod os;
mod output;
#[cfg(any(feature = "gzip", feature = "zstd"))]
mod packed;
mod pipeline;
pub mod process;
pub mod raw;
mod report;
mod run;
mod sink;
mod sized;
mod source;
mod staging;
mod temp;
pub mod text;
mod watch;

pub use content::Content;
pub use error::{Error, Place, Result};
pub use input::Input;
pub use key::Key;
pub use options::Distinct;
pub use output::Output;
pub use report::{Phase, PhaseSummary, Progress, Summary};
pub use sink::{Discard, Sink};
pub use source::{Chain, Part, Skipped, Source};
