//! Small vectors in and out of a workspace.
//!
//! An operator with a dozen vectors of `[batch]` has more buffers than a stage
//! has bindings. Gathered into one part of the workspace, they take one.
//! This copies by a shader, not by the encoder's copy commands: those would ask
//! the caller's buffers for usages beyond `STORAGE`.

use spec_core::Result;

use crate::Wgpu;
use crate::memory::Region;
use crate::record::Recorder;
use crate::shader::{Access, Program, Shader};

pub(crate) static SHADER: Shader =
    Shader { name: "vectors", source: include_str!("../shaders/vectors.wgsl") };

/// The most vectors of one gather or scatter.
pub(crate) const MAX_VECTORS: usize = 7;

/// Copies vectors into a packed region and out of it.
pub(crate) struct Vectors {
    gather: Program,
    scatter: Program,
}

impl Vectors {
    pub(crate) fn new(gpu: &Wgpu) -> Result<Self> {
        let mut reads = [Access::Read; MAX_VECTORS + 1];
        reads[0] = Access::Write;
        let writes = [Access::Write; MAX_VECTORS + 1];
        Ok(Vectors {
            gather: gpu.program(&SHADER, "gather", &reads, &[])?,
            scatter: gpu.program(&SHADER, "scatter", &writes, &[])?,
        })
    }

    /// Copies up to seven vectors one behind the other into `packed`, whose
    /// first word is the first vector's. Absent vectors take no words.
    pub(crate) fn gather(
        &self,
        recorder: &mut Recorder<'_>,
        vectors: &[Region<'_>],
        packed: Region<'_>,
    ) -> Result<()> {
        copy(recorder, &self.gather, vectors, packed)
    }

    /// The reverse of [`gather`](Self::gather): from `packed` to the vectors.
    pub(crate) fn scatter(
        &self,
        recorder: &mut Recorder<'_>,
        packed: Region<'_>,
        vectors: &[Region<'_>],
    ) -> Result<()> {
        copy(recorder, &self.scatter, vectors, packed)
    }
}

fn copy(
    recorder: &mut Recorder<'_>,
    program: &Program,
    vectors: &[Region<'_>],
    packed: Region<'_>,
) -> Result<()> {
    debug_assert!(vectors.len() <= MAX_VECTORS);
    let mut regions = [Region::nothing(); MAX_VECTORS + 1];
    regions[0] = packed.words();
    let mut starts = [0; MAX_VECTORS + 1];
    let mut end = 0;
    for i in 0..MAX_VECTORS {
        starts[i] = end;
        if let Some(vector) = vectors.get(i) {
            regions[i + 1] = vector.words();
            end += (vector.bytes / 4) as u32;
        }
    }
    starts[MAX_VECTORS] = end;
    recorder.dispatch(program, &regions, &starts, u64::from(end).div_ceil(256))
}
