//! Devices as people name them.

use std::str::FromStr;

use crate::{Error, Result};

/// A device as a person names it; the device need not exist.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceName {
    /// The backend's name in lower case, or `auto`.
    pub backend: String,
    /// The index, if the name has one.
    pub index: Option<usize>,
}

impl FromStr for DeviceName {
    type Err = Error;

    /// Parses `cpu`, `cuda`, `cuda:1`, `wgpu:0`, `auto`.
    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::DeviceName {
            text: text.to_owned(),
            expected: "`auto`, a backend as in `cpu`, or one of its devices as in `cuda:0`".into(),
        };
        let (backend, index) = match text.trim().split_once(':') {
            None => (text.trim(), None),
            Some((backend, digits)) => {
                let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                let index = digits.parse().ok().filter(|_| plain).ok_or_else(bad)?;
                (backend, Some(index))
            }
        };
        let single = matches!(backend, "auto") && index.is_some()
            || matches!(backend, "cpu") && index.is_some_and(|i| i != 0);
        if backend.is_empty()
            || single
            || !backend.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        {
            return Err(bad());
        }
        Ok(DeviceName { backend: backend.to_owned(), index })
    }
}
