//! The launch shape of a kernel.

use std::fmt;

use cudarc::driver::sys;

/// The threads of a warp.
pub(crate) const WARP: u32 = 32;

/// The largest number of blocks in a cluster on any device.
pub(crate) const MAX_CLUSTER: u32 = 16;

/// The launch shape: the grid, the block, its shared memory and the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks in x (below 2^31) and y (below 2^16).
    pub grid: [u32; 2],
    /// Threads of a block.
    pub block: u32,
    /// Dynamic shared memory of a block, in bytes.
    pub shared: u32,
    /// Blocks in x that form a cluster; 1 for no cluster, which works on every device.
    pub cluster: u32,
}

impl Shape {
    /// A grid of `blocks` blocks of `threads` threads each.
    pub fn new(blocks: u32, threads: u32) -> Self {
        Shape { grid: [blocks, 1], block: threads, shared: 0, cluster: 1 }
    }

    /// The same shape with `bytes` bytes of dynamic shared memory per block.
    pub fn shared(self, bytes: u32) -> Self {
        Shape { shared: bytes, ..self }
    }

    /// The same shape with clusters of `blocks` blocks.
    pub fn cluster(self, blocks: u32) -> Self {
        Shape { cluster: blocks, ..self }
    }

    /// The launch configuration for the driver. The configuration points to `attributes`.
    pub(crate) fn config(
        self,
        stream: sys::CUstream,
        dependent: bool,
        attributes: &mut Attributes,
    ) -> sys::CUlaunchConfig_st {
        use sys::CUlaunchAttributeID_enum as Id;
        let mut count = 0;
        let mut add = |id, value| {
            attributes[count] = sys::CUlaunchAttribute_st { id, pad: [0; 4], value };
            count += 1;
        };
        if self.cluster > 1 {
            let blocks =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: self.cluster, y: 1, z: 1 };
            add(
                Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                sys::CUlaunchAttributeValue_union { clusterDim: blocks },
            );
        }
        if dependent {
            add(
                Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                sys::CUlaunchAttributeValue_union { programmaticStreamSerializationAllowed: 1 },
            );
        }
        sys::CUlaunchConfig_st {
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: 1,
            blockDimX: self.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        }
    }
}

/// As `16 blocks of 512 threads in clusters of 4`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y] = self.grid;
        if y == 1 {
            write!(f, "{x} block{}", if x == 1 { "" } else { "s" })?;
        } else {
            write!(f, "{x} x {y} blocks")?;
        }
        write!(f, " of {} threads", self.block)?;
        if self.cluster > 1 { write!(f, " in clusters of {}", self.cluster) } else { Ok(()) }
    }
}

pub(crate) type Attributes = [sys::CUlaunchAttribute_st; 2];

pub(crate) const NO_ATTRIBUTES: Attributes = [sys::CUlaunchAttribute_st {
    id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_IGNORE,
    pad: [0; 4],
    value: sys::CUlaunchAttributeValue_union { pad: [0; 64] },
}; 2];
