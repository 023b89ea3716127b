//! Host side of `kernels/hot_slots.cu`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::HotSlots;
use spec_core::ops::hot_slots::{Buffers, Plan};
use spec_core::{Kernel, Matrix, Result, Stream, Supports, ViewMut, launch_params};

use crate::Cuda;
use crate::archive::{Archive, archive};
use crate::args::{Integers, Rows};
use crate::kernel::{Function, Shape};
use crate::shape::WARP;

static KERNELS: Archive = archive!("hot_slots");

/// Words of the bitmap that sorts the misses of a hashed set, the most first: a range of 2^19
/// entries, down to a word for each thread.
const BITMAP_WORDS: [u32; 5] = [1 << 14, 1 << 13, 1 << 12, 1 << 11, 1 << 10];
/// Words of the bitmap that a narrow set is, the most first: a range of 2^20 entries, the positions
/// of a text of a million tokens, down to a word for each thread.
const BITS_WORDS: [u32; 6] = [1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11, 1 << 10];
/// The largest number of slots and of columns for which a thread's have a bit each in 32.
const MOST_SHARED: usize = 32 * THREADS as usize;
/// The least number of words of the list of misses.
const MIN_LIST: usize = 256;
/// Shared memory that the kernels use in addition to the dynamic shared memory, in bytes.
const FIXED_SHARED: u32 = 1024;

launch_params! {
    /// The parameters of the kernels of `hot_slots`.
    struct Params {
        /// The wanted entries, [batch, m].
        wanted: Rows as "Rows<const i32>",
        /// What each slot holds, [tables, h], updated by the kernel.
        resident: Rows as "Rows<i32>",
        /// When each slot was last wanted, [tables, h], updated by the kernel.
        used: Rows as "Rows<i32>",
        /// The blocks of slots, [tables, block_count]; not read unless `has_blocks`.
        block_table: Rows as "Rows<const i32>",
        /// The pages of entries, [tables, page_count].
        pages: Rows as "Rows<const i32>",
        /// Where each wanted entry lies, [batch, m].
        slots: Rows as "Rows<i32>",
        /// The entries to fetch, [batch, m].
        fetch_positions: Rows as "Rows<i32>",
        /// Where fetched entries go, [batch, m].
        fetch_slots: Rows as "Rows<i32>",
        /// The step, or the step of each row.
        steps: Integers,
        /// The entry of the first tail slot of each row, [batch], or null.
        tail_starts: Integers,
        /// The row of the state that each row has, [batch], or null.
        requests: u64 as "const i32*",
        /// Whether the slots of each row become empty first, [batch], or null.
        resets: u64 as "const i32*",
        /// The number of fetches of each row, [batch].
        fetches: u64 as "i32*",
        /// One word of flags, or null.
        flags: u64 as "u32*",
        /// A hash table, a list, and the slots that are taken for each block, or null if they lie
        /// in shared memory.
        workspace: u64 as "u32*",
        /// The number of rows.
        batch: u32,
        /// The number of rows of the state.
        tables: u32,
        /// The number of wanted values of a row.
        m: u32,
        /// The number of slots of a request.
        h: u32,
        /// Groups of columns and of slots that a warp has, see `Part`.
        column_groups: u32,
        slot_groups: u32,
        /// The number of tail slots.
        tail: u32,
        /// The number of slots of a block.
        block_size: u32,
        /// The number of columns of `block_table`.
        block_count: u32,
        /// The number of entries of a page.
        page_size: u32,
        /// The number of columns of `pages`.
        page_count: u32,
        /// The number of a page that stands for none.
        null_page: i32,
        /// Whether `block_table` is there.
        has_blocks: u32,
        /// 1 if each row has a step of its own, 0 if all rows have one.
        step_stride: u32,
        /// Whether each row of the columns, the state and the outputs begins at a multiple of 16
        /// bytes.
        by_vectors: u32,
        /// The base-2 logarithm of the places of the hash table, at least 10.
        log_places: u32,
        /// Words of the list of misses of a hashed set, a power of two, at least m.
        list_words: u32,
        /// Words of the bitmap that sorts this list, a multiple of the number of threads.
        bitmap_words: u32,
        /// Words with a bit for each slot, a multiple of 4.
        loser_words: u32,
        /// Words of the bitmap of a narrow set, a multiple of the number of threads; 0 if rows are
        /// too long for narrow sets.
        bits_words: u32,
        /// The inverses of `block_size` and `page_size`, see `inverse`.
        block_inverse: u32,
        block_shift: u32,
        page_inverse: u32,
        page_shift: u32,
    }

    /// Threads of a block whose row fits shared memory, and of other blocks.
    const THREADS: u32 = 512;
    const WORKSPACE_THREADS: u32 = 1024;
    /// Neighbouring columns of a thread, and neighbouring slots.
    const COLUMNS: u32 = 4;
    const SLOTS: u32 = 8;
    /// Bits of a digit of an age.
    const LOG_BINS: u32 = 11;
    /// The values of a digit. Shared memory has a counter for each.
    const BINS: u32 = 1 << LOG_BINS;
    /// The counters with the one of slots that no miss may take, in fours.
    const ALL_BINS: u32 = BINS + 4;
}

/// A factor and a shift that divide numbers below 2^31 by a size up to 2^31 - 1: the product of a
/// number and the factor, shifted right by the shift, is the quotient.
fn inverse(size: usize) -> (u32, u32) {
    let size = size as u64;
    let shift = 31 + size.next_power_of_two().ilog2();
    ((1_u64 << shift).div_ceil(size) as u32, shift)
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "hot_slots", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

/// What a row has in shared memory and in the workspace. The data decide whether its set is narrow
/// or hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    log_places: u32,
    list_words: u32,
    bitmap_words: u32,
    loser_words: u32,
    bits_words: u32,
    /// Words for the slots that are taken, half a word each.
    taken_words: u32,
    /// Words of shared memory that a narrow set has besides its bitmap.
    id_words: u32,
    in_shared: bool,
}

impl Room {
    /// For rows of `m` entries with `h` slots, in blocks with `shared` bytes of dynamic shared
    /// memory.
    fn new(m: usize, h: usize, shared: u32) -> Self {
        // At most half of the places are filled; each thread clears one at least.
        let places = (2 * m).next_power_of_two().max(WORKSPACE_THREADS as usize);
        let ids = m.next_multiple_of(8);
        let of = |bitmap_words, in_shared| Room {
            log_places: places.ilog2(),
            list_words: m.next_power_of_two().max(MIN_LIST) as u32,
            bitmap_words,
            loser_words: (h as u32).div_ceil(32).next_multiple_of(4),
            bits_words: 0,
            taken_words: ids as u32 / 2,
            // An owner and an entry for each id, and half a word to list it as a miss.
            id_words: (2 * ids + ids / 2) as u32,
            in_shared,
        };
        let rooms = BITMAP_WORDS.map(|words| of(words, true));
        let fits = |room: &Room| room.shared() <= shared;
        let in_shared = |room: &Room| h <= MOST_SHARED && m <= MOST_SHARED && fits(room);
        let hashed = rooms.into_iter().find(in_shared).unwrap_or(of(BITMAP_WORDS[0], false));
        let narrow = BITS_WORDS.map(|bits_words| Room { bits_words, ..hashed });
        narrow.into_iter().find(fits).unwrap_or(hashed)
    }

    /// Threads of a block.
    fn threads(&self) -> u32 {
        if self.in_shared { THREADS } else { WORKSPACE_THREADS }
    }

    /// Words of a hash table, a list, and the slots that are taken.
    fn words(&self) -> u32 {
        (2 << self.log_places) + self.list_words + self.taken_words
    }

    /// Size of the dynamic shared memory of a block in bytes. A row has either a hashed or a narrow
    /// set.
    fn shared(&self) -> u32 {
        let taken = if self.in_shared { self.taken_words } else { 0 };
        let places = if self.in_shared { self.words() - taken } else { 0 };
        let hashed = self.bitmap_words + places;
        // A narrow set has half a word more for each word of the bitmap, and four words with their
        // eight halves behind the bitmap.
        let narrow = match self.bits_words {
            0 => 0,
            words => self.id_words + words + 4 + (words + 8) / 2,
        };
        let common = ALL_BINS + self.loser_words + taken + WARP;
        4 * (common + hashed.max(narrow))
    }
}

struct Prepared {
    cuda: Cuda,
    plan: Plan,
    function: Function,
    shape: Shape,
    room: Room,
    workspace_size: usize,
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Supports<HotSlots> for Cuda {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<HotSlots>>> {
        let limits = self.limits();
        let room = Room::new(plan.m(), plan.h(), limits.shared - FIXED_SHARED);
        // The workspace has a part for each block. So there are few blocks, and each takes several
        // rows.
        let rows = plan.batch() as u32;
        let (name, blocks) = match room.in_shared {
            true => ("hot_slots", rows),
            false => ("hot_slots_workspace", rows.min(limits.multiprocessors)),
        };
        let words = if room.in_shared { 0 } else { blocks as usize * room.words() as usize };
        Ok(Box::new(Prepared {
            cuda: self.clone(),
            plan: plan.clone(),
            function: self.function(&KERNELS, name)?,
            shape: Shape::new(blocks, room.threads()).shared(room.shared()),
            room,
            workspace_size: words * 4,
        }))
    }
}

// SAFETY: the kernel accesses only the memory that the plan describes, whatever the data.
unsafe impl Kernel<HotSlots> for Prepared {
    fn workspace_size(&self) -> usize {
        self.workspace_size
    }

    unsafe fn launch(
        &self,
        workspace: ViewMut<'_>,
        b: Buffers<'_>,
        stream: Stream<'_>,
    ) -> Result<()> {
        let Prepared { cuda, plan, room, .. } = self;
        let groups =
            |count: usize, of_thread: u32| (count as u32).div_ceil(room.threads() * of_thread);
        let columns = |matrix: Option<Matrix>| matrix.map_or(0, |matrix| matrix.cols as u32);
        let no_tail = Integers { data: 0, wide: 0 };
        let (block_inverse, block_shift) = inverse(plan.params.block_size);
        let (page_inverse, page_shift) = inverse(plan.params.page_size);
        let by_columns = [
            cuda.rows(b.wanted, &plan.wanted)?,
            cuda.rows(b.slots, &plan.slots)?,
            cuda.rows(b.fetch_positions, &plan.fetch_positions)?,
            cuda.rows(b.fetch_slots, &plan.fetch_slots)?,
        ];
        let state = [cuda.rows(b.resident, &plan.resident)?, cuda.rows(b.used, &plan.used)?];
        let [wanted, slots, fetch_positions, fetch_slots] = by_columns;
        let [resident, used] = state;
        let by_vectors = by_columns.iter().all(|rows| rows.are_aligned(plan.batch()))
            && state.iter().all(|rows| rows.are_aligned(plan.tables()));
        let params = Params {
            wanted,
            resident,
            used,
            block_table: match &plan.block_table {
                Some(matrix) => cuda.rows(b.block_table, matrix)?,
                None => Rows::ABSENT,
            },
            pages: match &plan.pages {
                Some(matrix) => cuda.rows(b.pages, matrix)?,
                None => Rows::ABSENT,
            },
            slots,
            fetch_positions,
            fetch_slots,
            steps: cuda.integers(b.step, plan.step.dtype)?,
            tail_starts: match plan.tail_starts {
                Some(dtype) => cuda.integers(b.tail_starts, dtype)?,
                None => no_tail,
            },
            requests: cuda.pointer(b.requests)?,
            resets: cuda.pointer(b.reset)?,
            fetches: cuda.pointer(b.fetches)?,
            flags: cuda.pointer(b.flags)?,
            workspace: cuda.workspace(workspace, self.workspace_size)?,
            batch: plan.batch() as u32,
            tables: plan.tables() as u32,
            m: plan.m() as u32,
            h: plan.h() as u32,
            column_groups: groups(plan.m(), COLUMNS),
            slot_groups: groups(plan.h(), SLOTS),
            tail: plan.params.tail as u32,
            block_size: plan.params.block_size as u32,
            block_count: columns(plan.block_table),
            page_size: plan.params.page_size as u32,
            page_count: columns(plan.pages),
            null_page: plan.params.null_page,
            has_blocks: u32::from(plan.block_table.is_some()),
            step_stride: u32::from(plan.step_by_row()),
            by_vectors: u32::from(by_vectors),
            log_places: room.log_places,
            list_words: room.list_words,
            bitmap_words: room.bitmap_words,
            loser_words: room.loser_words,
            bits_words: room.bits_words,
            block_inverse,
            block_shift,
            page_inverse,
            page_shift,
        };
        // SAFETY: `Params` has the layout of the kernel's struct; the buffers were checked against
        // the plan, and the kernel compares requests, blocks, pages and entries, which are data,
        // with the plan's sizes before it uses them as indices.
        cuda.enqueue(stream, |queue| unsafe { queue.launch(&self.function, self.shape, &params) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::routes::route;
    use super::*;
    use crate::limits::Limits;

    #[test]
    fn rows_of_engines_fit_shared_memory() {
        let room = |m, h, kib: u32| Room::new(m, h, kib * 1024 - FIXED_SHARED);
        assert_eq!(room(2048, 4096, 227).bitmap_words, 1 << 14);
        // Narrow sets of 2^20 entries; of fewer where rows are long or shared memory is small; of
        // none where rows are too long for them.
        let bits = |m, h, kib| 32 * room(m, h, kib).bits_words;
        assert_eq!([bits(2048, 4096, 227), bits(8192, 16_384, 227)], [1 << 20, 1 << 19]);
        assert_eq!([bits(2048, 4096, 99), bits(65_536, 65_536, 227)], [1 << 18, 0]);
        assert!(room(2048, 4096, 99).in_shared && room(8192, 16_384, 227).in_shared);
        // Every device has room for what does not go to the workspace.
        let largest = room(65_536, 65_536, 99);
        assert!(!largest.in_shared && largest.shared() <= 99 * 1024 - FIXED_SHARED);
        assert_eq!((largest.log_places, largest.list_words), (17, 65_536));
    }

    #[test]
    fn inverses_divide() {
        let sizes = (0..31).flat_map(|log| [1_usize << log, (1 << log) + 1, (2 << log) - 1]);
        for size in sizes.filter(|&size| (1..=i32::MAX as usize).contains(&size)) {
            let (factor, shift) = inverse(size);
            let numbers = [0, 1, 2, 1000, size - 1, size, size + 1, 65_535, i32::MAX as usize];
            let multiples = (1..5).map(|of| i32::MAX as usize / of / size * size);
            let below = multiples.clone().map(|number| number.saturating_sub(1));
            for number in numbers.into_iter().chain(multiples).chain(below) {
                let number = number.min(i32::MAX as usize);
                assert_eq!((number as u64 * u64::from(factor)) >> shift, (number / size) as u64);
            }
        }
    }

    /// The kernels and launch shapes that an H100 takes for calls of an engine.
    #[test]
    fn an_h100_takes_the_kernels_that_were_tuned_for_it() {
        let slots = |batch, m, h| {
            let operator = HotSlots::new();
            route(Limits::H100, &operator, &operator.tensors(batch, m, h))
        };
        let calls = [
            (slots(115, 2048, 4096), "hot_slots (115 blocks of 512 threads)"),
            (slots(115, 8192, 16_384), "hot_slots (115 blocks of 512 threads)"),
            (slots(200, 16_384, 65_536), "hot_slots_workspace (132 blocks of 1024 threads)"),
        ];
        for (given, expected) in calls {
            assert_eq!(given, expected);
        }
    }
}
