//! Distinct keys of files larger than memory: [`spec_external`], whose page says
//! how it works.
//!
//! A [`Handle`](crate::Handle) is the device it takes.
//!
//! ```
//! use spec::Handle;
//! use spec::external::raw::{self, RawSink};
//! use spec::external::{Output, Distinct};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("spec-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let (input, output) = (folder.join("features.bin"), folder.join("distinct.bin"));
//! # std::fs::write(&input, [3u64, 1, 3, 2].map(u64::to_le_bytes).concat())?;
//! let handle: Handle = "cpu".parse()?;
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

pub use spec_external::*;
