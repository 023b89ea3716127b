//! The manifest: a text file with the hashes of the committed kernels and of their sources.
//!
//! ```text
//! package nvidia-cuda-nvrtc-cu12==12.9.86
//! compiler 12.9
//! option --std=c++17
//! header common.cuh <sha256>
//! source deduplicate_topk.cu <sha256>
//! image deduplicate_topk sass 90 <sha256 of the unpacked image>
//! archive deduplicate_topk.bin <sha256>
//! bytes deduplicate_topk.bin <size of the archive>
//! crc32 deduplicate_topk.bin <CRC-32 of the archive, which programs check>
//! ```

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

/// The lines of a manifest. The key is a line without its last word; the value is the last word,
/// a hash or another value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Manifest(BTreeMap<String, String>);

/// The SHA-256 of `bytes` in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Manifest {
    /// # Errors
    /// A sentence if two lines have one key: a program would take the value of the first, and this
    /// tool that of the last.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut manifest = Manifest::default();
        for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
            let (key, value) = line.rsplit_once(' ').unwrap_or((line, ""));
            if manifest.0.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(format!("the manifest has two lines `{key} ..`"));
            }
        }
        Ok(manifest)
    }

    pub(crate) fn set(&mut self, key: String, value: String) {
        self.0.insert(key, value);
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub(crate) fn text(&self) -> String {
        let mut text =
            "# What the archives here were made from, by `cargo xtask kernels`.\n".to_owned();
        for (key, value) in &self.0 {
            text.push_str(&format!("{key} {value}\n"));
        }
        text
    }

    /// One line for each difference.
    pub(crate) fn differences(&self, other: &Manifest) -> Vec<String> {
        let keys = self.0.keys().chain(other.0.keys().filter(|k| !self.0.contains_key(*k)));
        keys.filter(|key| self.0.get(*key) != other.0.get(*key))
            .map(|key| {
                let word = |m: &Manifest| m.get(key).unwrap_or("absent").to_owned();
                format!("{key}: {} in the manifest, {} now", word(self), word(other))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_survives_its_text() {
        let mut manifest = Manifest::default();
        manifest.set("source a.cu".to_owned(), sha256(b"a"));
        manifest.set("image a sass 90".to_owned(), sha256(b"b"));
        assert_eq!(Manifest::parse(&manifest.text()), Ok(manifest.clone()));
        let twice = format!("{}source a.cu {}\n", manifest.text(), sha256(b"c"));
        assert!(Manifest::parse(&twice).is_err());
        assert!(manifest.differences(&manifest).is_empty());
        let mut other = Manifest::default();
        other.set("source a.cu".to_owned(), sha256(b"a"));
        assert_eq!(manifest.differences(&other).len(), 1);
        assert_eq!(other.differences(&manifest).len(), 1);
    }
}
