//! Which slots of a small buffer on the device hold the KV entries that a decode step reads, and
//! which entries must be fetched into the buffer: the bookkeeping of KV offload.
//!
//! Sparse attention reads a few thousand of the entries of a text. With KV offload, all entries lie
//! in host memory, and each request has a buffer of `h` slots on the device. A call gets the
//! entries that a step wants, as `indexer_topk` or `deduplicate_topk` gives them. It finds the
//! entries that are in a slot (**hits**), gives a slot to each of the others (**misses**), and lists
//! the misses with their slots. The caller copies the KV of the listed entries, once for each layer
//! that shares the list, and attends over `slots`. An entry is whatever a number names: a position,
//! a block, a slot of a global cache.
//!
//! ```text
//! step 100                    slot 0  1  2  3
//! resident before                  7  .  9  3        . is empty
//! used before                     98  0 97 99
//! wanted  1 2 3                                      3 is a hit; 1 and 2 are misses
//! resident after                   7  1  2  3        the empty slot goes first, then the oldest
//! used after                      98  * * *          * is 100
//! slots   1 2 3      fetch_positions 1 2 -1      fetch_slots 1 2 -1      fetches 2
//! ```
//!
//! A row wants the *set* of its values from 0 on: neither their order nor repetition changes
//! anything but the columns in which answers stand. A negative value gets -1.
//!
//! 1. Where `reset` is nonzero, all slots of the request become empty first: `resident` is -1, and
//!    `used` stays.
//! 2. An entry that lies outside of the slots takes no slot and is never fetched. With `pages`, an
//!    entry whose page `q = pages[request][entry / page_size]` exists and is above `null_page` lies
//!    at `q * page_size + entry % page_size` of the cache. Otherwise, with `tail_starts`, an entry
//!    from the tail's start on lies in slot `h + entry - tail_starts`, one of `tail` slots behind the
//!    others, which the model writes itself.
//! 3. Each other entry that a slot holds is a hit: the lowest such slot has it. The slot's `used`
//!    becomes `step`.
//! 4. The `n` misses take `n` slots that are no hits: empty slots first, then slots by age, `(step -
//!    used) mod 2^32`, the greatest first; the lower slot first among equals. These slots in
//!    ascending order get the misses in ascending order. Where fewer slots are left, the lowest
//!    misses get them, and the others get -1.
//! 5. With `block_table`, `slots` and `fetch_slots` have the place of slot `s` in the cache,
//!    `block_table[request][s / block_size] * block_size + s % block_size`. A slot whose block is
//!    negative or missing is not there: it is no hit and is never taken. A buffer grows in this way.
//!
//! Every state is valid: any bits in `resident` and `used` give one defined result, and no slot is
//! given twice. A step that runs again over its own result, without `reset`, fetches nothing and
//! changes nothing. After a copy has failed, `reset` and the same call fetch everything again.
//!
//! Source: the KV offload of SGLang (HiSparse) and vLLM. Both keep the slots in a list in the order
//! of their last use. A list can be damaged, an age cannot, and the length of the text is a clock
//! that is there already.
//!
//! # Bad data
//! Flag 4:
//! * a request outside `-1 .. tables`, or one that a lower row has too. Such a row is left out, as
//!   is padding, a request of -1, which sets no flag: -1 and 0 in the outputs, the state untouched,
//!   nothing else of the row looked at;
//! * more misses than slots;
//! * a negative tail start, which counts as 0, whatever is wanted.
//!
//! Flag 2:
//! * a wanted entry whose place by `pages` is 2^31 or more, that lies behind the tail, or whose tail
//!   slot is not there: -1;
//! * a slot below `h` whose place is 2^31 or more, whatever is wanted: the slot is not there.
//!
//! # Example
//! ```
//! use spec::ops::HotSlots;
//! use spec::ops::hot_slots::{Buffers, Required};
//! use spec::{DType, Handle, TensorDesc};
//!
//! // The step of the picture above.
//! let params = HotSlots::new();
//! let tensors = params.tensors(1, 3, 4);
//! let handle = Handle::cpu()?;
//! let hot = handle.create(&params, &tensors)?;
//! let mut workspace = hot.workspace(&handle)?;
//! let (mut resident, mut used) = ([7, -1, 9, 3], [98, 0, 97, 99]);
//! let (mut slots, mut fetch_positions, mut fetch_slots) = ([0; 3], [0; 3], [0; 3]);
//! let mut fetches = [0];
//! let buffers = Buffers::new(Required {
//!     wanted: (&[1, 2, 3]).into(),
//!     resident: (&mut resident).into(),
//!     used: (&mut used).into(),
//!     step: (&[100]).into(),
//!     slots: (&mut slots).into(),
//!     fetch_positions: (&mut fetch_positions).into(),
//!     fetch_slots: (&mut fetch_slots).into(),
//!     fetches: (&mut fetches).into(),
//! });
//! hot.call(&mut workspace, buffers)?;
//! assert_eq!((slots, fetches), ([1, 2, 3], [2]));
//! assert_eq!((fetch_positions, fetch_slots), ([1, 2, -1], [1, 2, -1]));
//! assert_eq!((resident, used), ([7, 1, 2, 3], [98, 100, 100, 100]));
//! # Ok::<(), spec::Error>(())
//! ```

use crate::check::{Checker, MAX_I32};
use crate::declare::operator;
use crate::{DType, Matrix, Operator, Result, TensorDesc, Vector};

/// The largest number of wanted values of a row, and of slots of a request.
pub const MAX_SLOTS: usize = 65536;
/// The largest number of tail slots.
pub const MAX_TAIL: usize = 1024;

operator! {
    /// Which slots of a device buffer hold the KV entries that a step wants, and which entries must
    /// be fetched: KV offload with exact LRU.
    pub struct HotSlots = "hot_slots";

    options {
        /// The number of slots of a block of `block_table`.
        optional block_size: usize [1..=i32::MAX] = 1,
        /// The number of entries of a page of `pages`.
        optional page_size: usize [1..=i32::MAX] = 1,
        /// The number of a page that stands for none, as do all lower numbers.
        optional null_page: i32 [-1..] = -1,
        /// The number of slots behind the `h` others that the model writes itself.
        optional tail: usize [0..=MAX_TAIL] = 0,
    }

    presence {
        tail needs tail_starts;
        pages needs block_table;
    }

    sizes {
        batch in 0..=MAX_I32,
        m in 0..=MAX_SLOTS,
        tables = "batch" without requests,
        tables in 0..=MAX_I32,
        h in 0..=MAX_SLOTS,
        blocks in 0..=MAX_I32,
        page_count in 0..=MAX_I32,
    }

    arguments by name {
        /// The entries that each row wants; negative values are padding.
        required wanted: in [I32] "[batch, m]",
        /// The row of `resident`, `used`, `pages` and `block_table` that each row has; -1 for
        /// padding. Absent: row r has row r.
        optional requests: in [I32] "[batch]",
        /// The entry that each slot holds; negative for an empty slot.
        required resident: inout [I32] "[tables, h]",
        /// The step at which each slot was last wanted.
        required used: inout [I32] "[tables, h]",
        /// A number that grows from call to call, such as the length of the text. Its low 32 bits
        /// count.
        required step: in [I32, I64] "[1] or [batch]",
        /// Where nonzero, all slots of the row's request become empty first.
        optional reset: in [I32] "[batch]",
        /// Where the first tail slot's entry is.
        optional tail_starts: in [I32, I64] "[batch]",
        /// The block of the cache that holds each `block_size` slots; negative for none. Absent: the
        /// place of a slot is its number.
        optional block_table: in [I32] "[tables, blocks]",
        /// The page of the cache that holds each `page_size` entries outside of the slots.
        optional pages: in [I32] "[tables, page_count]",
        /// Where each wanted entry lies; -1 where it does not.
        required slots: out [I32] "[batch, m]",
        /// The entries to fetch, ascending, then -1.
        required fetch_positions: out [I32] "[batch, m]",
        /// Where each of `fetch_positions` goes, then -1.
        required fetch_slots: out [I32] "[batch, m]",
        /// The number of entries to fetch of each row.
        required fetches: out [I32] "[batch]",
        /// Bits for bad data, OR-ed into the previous value; only the caller clears them. 2: an
        /// entry behind the tail, or with a place above 2^31 - 1, has slot -1, or a slot with such
        /// a place is not there. 4: a request is out of range or comes twice, and was left out;
        /// there are more misses than slots; or a tail start is negative and counts as 0.
        optional flags: inout [U32] "[1]",
    }
}

impl HotSlots {
    /// Packed descriptors for `batch` rows of `m` wanted values, each with a buffer of `h` slots. All
    /// rows have the same i32 step, and no optional argument is given.
    pub fn tensors(&self, batch: usize, m: usize, h: usize) -> Tensors {
        let wanted = TensorDesc::new(DType::I32, [batch, m]);
        let table = TensorDesc::new(DType::I32, [batch, h]);
        Tensors::new(Required {
            wanted,
            resident: table,
            used: table,
            step: TensorDesc::new(DType::I32, [1]),
            slots: wanted,
            fetch_positions: wanted,
            fetch_slots: wanted,
            fetches: TensorDesc::new(DType::I32, [batch]),
        })
    }
}

/// A validated call, from which a backend prepares a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The parameters.
    pub params: HotSlots,
    /// The wanted entries.
    pub wanted: Matrix,
    /// Whether `requests` names the table row of each row.
    pub mapped: bool,
    /// What each slot holds; rows are tables.
    pub resident: Matrix,
    /// When each slot was last wanted; rows are tables.
    pub used: Matrix,
    /// The steps: one, or one of each row.
    pub step: Vector,
    /// Whether `reset` is given.
    pub has_reset: bool,
    /// The dtype of `tail_starts`, where given.
    pub tail_starts: Option<DType>,
    /// The blocks of slots, where given; rows are tables.
    pub block_table: Option<Matrix>,
    /// The pages of entries, where given; rows are tables.
    pub pages: Option<Matrix>,
    /// Where wanted entries lie.
    pub slots: Matrix,
    /// The entries to fetch.
    pub fetch_positions: Matrix,
    /// Where fetched entries go.
    pub fetch_slots: Matrix,
}

impl Plan {
    /// The number of rows.
    pub fn batch(&self) -> usize {
        self.wanted.rows
    }

    /// The number of wanted values of a row.
    pub fn m(&self) -> usize {
        self.wanted.cols
    }

    /// The number of slots of a request, tail slots not counted.
    pub fn h(&self) -> usize {
        self.resident.cols
    }

    /// The number of rows of the state.
    pub fn tables(&self) -> usize {
        self.resident.rows
    }

    /// Whether each row has a step of its own.
    pub fn step_by_row(&self) -> bool {
        self.step.len != 1
    }
}

impl Operator for HotSlots {
    type Plan = Plan;

    fn plan(&self, t: &Tensors) -> Result<Plan> {
        Checker::declared(self, t)?;
        let matrix = |desc: &Option<TensorDesc>| desc.as_ref().map(TensorDesc::matrix);
        Ok(Plan {
            params: *self,
            wanted: t.wanted.matrix(),
            mapped: t.requests.is_some(),
            resident: t.resident.matrix(),
            used: t.used.matrix(),
            step: t.step.vector(),
            has_reset: t.reset.is_some(),
            tail_starts: t.tail_starts.as_ref().map(TensorDesc::dtype),
            block_table: matrix(&t.block_table),
            pages: matrix(&t.pages),
            slots: t.slots.matrix(),
            fetch_positions: t.fetch_positions.matrix(),
            fetch_slots: t.fetch_slots.matrix(),
        })
    }
}
