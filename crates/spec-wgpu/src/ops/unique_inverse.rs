//! Where each key of `unique` is among the distinct keys: a search for each key, after the dispatches
//! that write the distinct keys.

use bytemuck::{Pod, Zeroable};
#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::{DType, Result, Vector, launch_params};

use crate::Wgpu;
use crate::launch::Recorder;
use crate::memory::Region;
use crate::shader::{Access, Program, Shader, params};

/// The shader for keys of `$bits` bits.
macro_rules! form {
    ($bits:literal) => {
        Shader {
            name: concat!("unique_inverse_", $bits),
            source: concat!(
                "//!include unique_keys_",
                $bits,
                "\n",
                include_str!("../../shaders/unique_inverse.wgsl")
            ),
            params: params!("unique_inverse"),
        }
    };
}

/// The shaders for keys of one and of two 32-bit words.
pub(super) static SHADERS: [Shader; 2] = [form!("32"), form!("64")];

/// Keys that a workgroup looks up.
const TILE: u64 = ROWS * THREADS;

launch_params! {
    /// What the shaders of `unique` take that look keys up.
    struct Params: Pod, Zeroable {
        /// Keys of the window that is read.
        len: u32,
        /// The number of the first distinct key of the window that is searched.
        first: u32,
        /// The largest number of distinct keys of that window.
        window: u32,
        /// 32-bit words of an element of the inverse.
        words: u32,
        /// The highest bit of a signed key's upper word.
        sign: u32,
        unused_1: u32,
        unused_2: u32,
        unused_3: u32,
    }

    /// Threads of a workgroup.
    const THREADS: u64 = 256;
    /// Keys that a thread looks up.
    const ROWS: u64 = 16;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "unique_inverse", includes: &["bound"], structs: &[Params::DESCRIPTION] };

/// Looks keys up among the distinct keys.
pub(super) struct Inverse {
    program: Program,
    /// Keys.
    n: u64,
    /// Keys of a window: all keys, or as many as can be bound at once.
    window: u64,
    /// 32-bit words of an element of the inverse.
    words: u64,
    is_signed: bool,
}

impl Inverse {
    /// The program for these keys, for places of the type `to`, and for windows of `window` keys.
    pub(super) fn new(gpu: &Wgpu, keys: &Vector, to: DType, window: u64) -> Result<Self> {
        let shader = &SHADERS[keys.dtype.size() / 4 - 1];
        let bindings = [Access::Read, Access::Read, Access::Read, Access::Write];
        Ok(Inverse {
            program: gpu.program(shader, "find", &bindings, &[])?,
            n: keys.len as u64,
            window,
            words: to.size() as u64 / 4,
            is_signed: matches!(keys.dtype, DType::I32 | DType::I64),
        })
    }

    /// Records the dispatches: each window of the keys, in each window of the distinct keys. A key
    /// at or above the first distinct key of a window gets its place there, so the last such window
    /// in ascending order decides.
    pub(super) fn record(
        &self,
        r: &mut Recorder<'_>,
        [keys, distinct, count, places]: [Region<'_>; 4],
    ) -> Result<()> {
        let Inverse { n, window, words, .. } = *self;
        let starts = || (0..n).step_by(window.max(1) as usize);
        for start in starts() {
            let len = window.min(n - start);
            for first in starts() {
                let regions = [
                    keys.elements(start, len),
                    distinct.elements(first, window),
                    count.words(),
                    places.words().elements(words * start, words * len),
                ];
                let params = Params {
                    len: len as u32,
                    first: first as u32,
                    window: window.min(n - first) as u32,
                    words: words as u32,
                    sign: if self.is_signed { 1 << 31 } else { 0 },
                    unused_1: 0,
                    unused_2: 0,
                    unused_3: 0,
                };
                r.dispatch(&self.program, &regions, &params, len.div_ceil(TILE))?;
            }
        }
        Ok(())
    }
}
