//! Groups a router's picks by expert, for grouped matrix products.
//!
//! Pick `i = t * k + j` is the `j`-th expert of token `t`. Each local expert gets
//! a run of `sorted_ids`: its picks, then padding to a multiple of `block_size`,
//! so that a block of the product works for one expert, the one that
//! `block_experts` has for it. The runs follow one another in the order of the
//! experts.
//!
//! ```text
//! topk_ids       [[1, 0],        picks of expert 0: 1, 3        expert 1: 0, 2
//!                 [1, 0]]
//! block_size 4
//! sorted_ids     1 3 . . | 0 2 . . | . . . .        . is tokens * k
//! block_experts  0       | 1       | -1
//! counts         2 2     offsets 0 4 8     num_padded 8     inverse 4 0 5 1
//! sorted_tokens  0 1 . . | 0 1 . . | . . . .        . is -1
//! block_limits   2       | 6       | 0             num_blocks 2
//! ```
//!
//! **The order is stable**: picks ascend in each run, on every backend and at every
//! repeat. A product that sums a token's experts in the order of its rows then
//! gives the same bits again, which kernels that scatter by atomics do not.
//!
//! With expert parallelism `expert_map` takes an expert of the model to its number
//! here, or to -1 where another device has it; those picks are dropped, as are
//! picks of expert -1, which is padding.
//!
//! Source: `moe_align_block_size` of vLLM and SGLang, whose `sorted_token_ids`,
//! `expert_ids` and `num_tokens_post_padded` are `sorted_ids`, `block_experts` and
//! `num_padded`. The grouped products of TensorRT-LLM and FlashInfer take
//! `sorted_tokens` (`permuted_idx_to_token_idx`), `inverse`
//! (`expanded_idx_to_permuted_idx`), `sorted_ids` (`permuted_idx_to_expanded_idx`),
//! `block_experts` (`cta_idx_xy_to_batch_idx`), `block_limits`
//! (`cta_idx_xy_to_mn_limit`), `num_blocks` (`num_non_exiting_ctas`) and `num_padded`
//! (`permuted_idx_size`).
//!
//! # Bad data
//! Flag 2: an expert that is neither -1 nor in `0 .. experts`, or that the map
//! takes to neither -1 nor `0 .. local_experts`. Its pick is dropped. Entries of
//! the map that no pick asks for are not looked at.
//!
//! # Example
//! ```
//! use spec::ops::MoeAlign;
//! use spec::ops::moe_align::{Buffers, Required};
//! use spec::{DType, Handle, TensorDesc};
//!
//! // The two tokens of the picture above.
//! let topk_ids = [1, 0, 1, 0];
//! let params = MoeAlign::new(2, 4);
//! let tensors = params.tensors(DType::I32, 2, 2).inverse(TensorDesc::new(DType::I32, [4]));
//! assert_eq!(tensors.sorted_ids.shape(), [12]);
//! let handle = Handle::cpu()?;
//! let align = handle.create(&params, &tensors)?;
//! let mut workspace = align.workspace(&handle)?;
//! let (mut sorted_ids, mut block_experts) = ([0i32; 12], [0i32; 3]);
//! let (mut counts, mut offsets, mut num_padded) = ([0i32; 2], [0i32; 3], [0i32]);
//! let mut inverse = [0i32; 4];
//! let buffers = Buffers::new(Required {
//!     topk_ids: (&topk_ids).into(),
//!     sorted_ids: (&mut sorted_ids).into(),
//!     block_experts: (&mut block_experts).into(),
//!     counts: (&mut counts).into(),
//!     offsets: (&mut offsets).into(),
//!     num_padded: (&mut num_padded).into(),
//! })
//! .inverse(&mut inverse);
//! align.call(&mut workspace, buffers)?;
//! assert_eq!(sorted_ids, [1, 3, 4, 4, 0, 2, 4, 4, 4, 4, 4, 4]);
//! assert_eq!((block_experts, num_padded), ([0, 1, -1], [8]));
//! assert_eq!((counts, offsets, inverse), ([2, 2], [0, 4, 8], [4, 0, 5, 1]));
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc, sizes};

/// The most experts.
pub const MAX_EXPERTS: usize = 4096;

operator! {
    /// Groups a router's picks by expert, for grouped matrix products.
    pub struct MoeAlign = "moe_align";

    options {
        /// Experts that `topk_ids` knows.
        required experts: usize [1..=MAX_EXPERTS],
        /// Rows of a block of the product: each run is a multiple of it.
        required block_size: usize [1..],
        /// Experts that have a run here: all of them, or fewer with `expert_map`.
        optional local_experts: usize [0..=experts] as experts,
    }

    presence {
        local_experts needs expert_map;
    }

    sizes {
        // The place of each pick is an i32.
        capacity = "ceil((tokens * k + local_experts * (block_size - 1)) / block_size) * block_size"
            in 0..=MAX_I32,
    }

    arguments by name {
        /// The experts that each token goes to, as `topk_router` gives them; -1 for
        /// none.
        required topk_ids: in [I32, U32, I64] "[tokens, k]",
        /// The local number of each expert, -1 where it is not here; absent: all
        /// are, under their own numbers.
        optional expert_map: in [I32] "[experts]",
        /// Picks (`token * k + j`) by local expert, ascending in each run; `tokens *
        /// k` in padding and to the end. The capacity is `tokens * k + local_experts
        /// * (block_size - 1)`, rounded up to a multiple of `block_size`.
        required sorted_ids: out [I32, U32] "[capacity]",
        /// The local expert of each block of `sorted_ids`, -1 after the last.
        required block_experts: out [I32] "[capacity / block_size]",
        /// Picks of each local expert.
        required counts: out [I32] "[local_experts]",
        /// Where each local expert's run starts in `sorted_ids`, and where the last
        /// ends.
        required offsets: out [I32] "[local_experts + 1]",
        /// Places of `sorted_ids` that belong to a run, padding included.
        required num_padded: out [I32] "[1]",
        /// Where each pick went in `sorted_ids`, -1 where it was dropped.
        optional inverse: out [I32] "[tokens * k]",
        /// The token of each pick of `sorted_ids`, -1 in padding and to the end.
        optional sorted_tokens: out [I32] "[capacity]",
        /// Where the picks of each block of `sorted_ids` end, as a place in `sorted_ids`: the
        /// padding of the block starts there. 0 after the last block.
        optional block_limits: out [I32] "[capacity / block_size]",
        /// Blocks of `sorted_ids` that belong to a run.
        optional num_blocks: out [I32] "[1]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: an
        /// expert is out of range; its pick was dropped.
        optional flags: inout [U32] "[1]",
    }
}

impl MoeAlign {
    /// Length of `sorted_ids` for so many picks: what is enough whatever they are.
    /// `None` where it does not fit an i32.
    pub fn capacity(&self, picks: usize) -> Option<usize> {
        let capacity = sizes::defined(self, "capacity", &[("tokens", picks), ("k", 1)])?;
        i32::try_from(capacity).is_ok().then_some(capacity)
    }

    /// Packed descriptors for `tokens` tokens of `k` picks each, of this type, and of no
    /// optional argument.
    pub fn tensors(&self, dtype: DType, tokens: usize, k: usize) -> Tensors {
        let picks = tokens.saturating_mul(k);
        let capacity = self.capacity(picks).unwrap_or(usize::MAX);
        let vector = |len| TensorDesc::new(DType::I32, [len]);
        Tensors::new(Required {
            topk_ids: TensorDesc::new(dtype, [tokens, k]),
            sorted_ids: vector(capacity),
            block_experts: vector(capacity.checked_div(self.block_size).unwrap_or(usize::MAX)),
            counts: vector(self.local_experts),
            offsets: vector(self.local_experts.saturating_add(1)),
            num_padded: vector(1),
        })
    }
}

/// A validated call: what a backend makes ready.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: MoeAlign,
    /// The picks; rows are tokens.
    pub topk_ids: Matrix,
    /// Whether there is a map.
    pub has_map: bool,
    /// Whether the inverse is wanted.
    pub has_inverse: bool,
    /// Whether any of `sorted_tokens`, `block_limits` and `num_blocks` is wanted.
    pub has_layout: bool,
    /// Length of `sorted_ids`, a multiple of the block size that fits an i32.
    pub capacity: usize,
}

impl Plan {
    /// Picks of all tokens.
    pub fn picks(&self) -> usize {
        self.topk_ids.rows * self.topk_ids.cols
    }

    /// Blocks that `sorted_ids` has room for.
    pub fn blocks(&self) -> usize {
        self.capacity / self.params.block_size
    }
}

impl Operator for MoeAlign {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        let (_, sizes) = Checker::declared(self, t)?;
        let capacity = sizes.of("capacity");
        let mut topk_ids = t.topk_ids.matrix();
        if topk_ids.cols == 0 {
            // However many tokens there are, without picks there is nothing to go through.
            topk_ids.rows = 0;
        }
        let layout = [&t.sorted_tokens, &t.block_limits, &t.num_blocks];
        let has_layout = layout.iter().any(|tensor| tensor.is_some());
        let (has_map, has_inverse) = (t.expert_map.is_some(), t.inverse.is_some());
        Ok(Plan { params: *self, topk_ids, has_map, has_inverse, has_layout, capacity })
    }
}
