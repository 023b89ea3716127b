//! `hot_slots` on the CPU: rows in parallel, each by a hash table of the wanted entries.
//!
//! A row puts its entries into the table, looks up each slot's entry there, and sorts only the
//! misses. The slots that misses take are the smallest of their sort keys, which a selection finds
//! without sorting the others.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::HotSlots;
use spec_core::ops::hot_slots::{Buffers, Plan};
use spec_core::{Kernel, Matrix, Result, Route, Supports, View, ViewMut, flags};

use super::kernel;
use crate::Cpu;
use crate::slices::{Ints, Workspace, once, raise, shared, slice, slice_mut, workspace_size};

/// Wanted values and slots below which waking another thread costs more than it gains.
const MIN_WORK: usize = 4096;
/// Stands for no slot and for no place in the table. An entry is not negative, so it also marks a
/// free place of the table.
const NONE: u32 = u32::MAX;
/// The multiplier of Fibonacci hashing: 2^32 divided by the golden ratio. Neighbouring entries, which
/// top-k rows are full of, then get places far from each other.
const GOLDEN: u32 = 0x9E37_79B9;

struct Prepared {
    plan: Plan,
    /// Parts of the rows.
    parts: usize,
    /// Rows of a part.
    share: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<HotSlots> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<HotSlots>>> {
        let batch = plan.batch();
        let work = batch.saturating_mul(plan.m() + plan.h());
        let parts = rayon::current_num_threads().min(work / MIN_WORK).min(batch).max(1);
        let share = batch.div_ceil(parts).max(1);
        let prepared = Prepared { plan: plan.clone(), parts: batch.div_ceil(share).max(1), share };
        let words = prepared.parts.saturating_mul(prepared.words());
        let owners = if plan.mapped { plan.tables() } else { 0 };
        let size = workspace_size(&[words.saturating_mul(8), owners.saturating_mul(4)]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<HotSlots, _>(prepared, size, launch, loops) })
    }
}

fn loops(Prepared { parts, share, .. }: &Prepared, route: &mut Route) {
    route.push("hot_slots", format_args!("{parts} parts of {share} rows"));
}

impl Prepared {
    /// Places of the hash table of a row: a power of two, so that at most half of them are filled.
    fn places(&self) -> usize {
        (2 * self.plan.m()).next_power_of_two().max(2)
    }

    /// 64-bit words of a part's scratch: see [`Scratch`].
    fn words(&self) -> usize {
        self.places() + self.plan.m() + self.plan.h()
    }
}

/// A matrix of i32 that several threads access, each its own rows.
#[derive(Clone, Copy)]
struct Grid<'a> {
    data: &'a [AtomicI32],
    matrix: Matrix,
}

impl<'a> Grid<'a> {
    fn new(view: ViewMut<'a>, matrix: Matrix) -> Result<Self> {
        Ok(Grid { data: shared(slice_mut(view)?), matrix })
    }

    fn row(&self, row: usize) -> &'a [AtomicI32] {
        &self.data[row * self.matrix.row_stride..][..self.matrix.cols]
    }
}

fn set(to: &AtomicI32, value: i32) {
    to.store(value, Ordering::Relaxed);
}

fn get(from: &AtomicI32) -> i32 {
    from.load(Ordering::Relaxed)
}

fn fill(row: &[AtomicI32], value: i32) {
    row.iter().for_each(|to| set(to, value));
}

/// A table of the plan to read; `None` where it is absent.
type Table<'a> = Option<(&'a [i32], Matrix)>;

fn table<'a>(view: Option<View<'a>>, matrix: Option<Matrix>) -> Result<Table<'a>> {
    Ok(view.map(slice::<i32>).transpose()?.zip(matrix))
}

fn row_of<'a>(table: Table<'a>, row: usize) -> Option<&'a [i32]> {
    table.map(|(data, matrix)| &data[row * matrix.row_stride..][..matrix.cols])
}

/// The arguments of a call.
struct Call<'a> {
    plan: &'a Plan,
    wanted: &'a [i32],
    resident: Grid<'a>,
    used: Grid<'a>,
    step: Ints<'a>,
    reset: Option<&'a [i32]>,
    tail_starts: Option<Ints<'a>>,
    blocks: Table<'a>,
    pages: Table<'a>,
    slots: Grid<'a>,
    fetch_positions: Grid<'a>,
    fetch_slots: Grid<'a>,
    fetches: &'a [AtomicI32],
}

fn launch(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let plan = &prepared.plan;
    let mut workspace = Workspace::new(workspace)?;
    let words = workspace.take::<u64>(prepared.parts * prepared.words())?;
    let bits = AtomicU32::new(0);
    let rows = match buffers.requests {
        None => None,
        Some(requests) => {
            let owners = workspace.take::<u32>(plan.tables())?;
            let requests = slice::<i32>(requests)?;
            bits.fetch_or(find_owners(requests, owners), Ordering::Relaxed);
            Some((requests, &*owners))
        }
    };
    let call = Call {
        plan,
        wanted: slice(buffers.wanted)?,
        resident: Grid::new(buffers.resident, plan.resident)?,
        used: Grid::new(buffers.used, plan.used)?,
        step: Ints::new(buffers.step)?,
        reset: buffers.reset.map(slice::<i32>).transpose()?,
        tail_starts: buffers.tail_starts.map(Ints::new).transpose()?,
        blocks: table(buffers.block_table, plan.block_table)?,
        pages: table(buffers.pages, plan.pages)?,
        slots: Grid::new(buffers.slots, plan.slots)?,
        fetch_positions: Grid::new(buffers.fetch_positions, plan.fetch_positions)?,
        fetch_slots: Grid::new(buffers.fetch_slots, plan.fetch_slots)?,
        fetches: shared(slice_mut(buffers.fetches)?),
    };
    words.par_chunks_mut(prepared.words()).enumerate().for_each(|(part, words)| {
        let mut scratch = Scratch::new(prepared, words);
        let mut bad = 0;
        let first = part * prepared.share;
        for row in first..(first + prepared.share).min(plan.batch()) {
            let owned = |request: &usize| owners_of(rows, *request) == Some(row as u32);
            let request = match rows {
                None => Some(row),
                Some((requests, _)) => usize::try_from(once(&requests[row])).ok().filter(owned),
            };
            match request {
                Some(request) => bad |= call.row(row, request, &mut scratch),
                None => call.leave_out(row),
            }
        }
        if bad != 0 {
            bits.fetch_or(bad, Ordering::Relaxed);
        }
    });
    raise(buffers.flags, bits.into_inner())
}

/// The row that owns each request: the lowest of `requests` that has it. Returns flags.
fn find_owners(requests: &[i32], owners: &mut [u32]) -> u32 {
    owners.fill(NONE);
    let mut bits = 0;
    for (row, request) in requests.iter().enumerate() {
        let request = once(request);
        let owner = usize::try_from(request).ok().and_then(|request| owners.get_mut(request));
        match owner {
            Some(owner) if *owner == NONE => *owner = row as u32,
            None if request == -1 => {}
            _ => bits = flags::BAD_LENGTHS,
        }
    }
    bits
}

fn owners_of(rows: Option<(&[i32], &[u32])>, request: usize) -> Option<u32> {
    rows.and_then(|(_, owners)| owners.get(request).copied())
}

/// What one row works with; its contents do not matter when a row begins.
struct Scratch<'a> {
    /// The hash table: an entry in the high half of a word, its slot in the low half.
    table: &'a mut [u64],
    /// Bits to shift a hash to the right by, so that a place of the table is left.
    shift: u32,
    /// The place in the table of the entry of each column; `NONE` for a column whose answer is known.
    at: &'a mut [u32],
    /// The distinct entries, then the misses.
    entries: &'a mut [u32],
    /// Sort keys of the slots that misses may take.
    free: &'a mut [u64],
}

/// A place of the table that is free.
const FREE: u64 = u64::MAX;

impl<'a> Scratch<'a> {
    fn new(prepared: &Prepared, words: &'a mut [u64]) -> Self {
        let (table, rest) = words.split_at_mut(prepared.places());
        let (columns, free) = rest.split_at_mut(prepared.plan.m());
        let bytes = spec_core::dtype::as_bytes_mut(columns);
        // `from_bytes_mut` succeeds: words of 64 bits are aligned for those of 32.
        let halves = spec_core::dtype::from_bytes_mut(bytes).unwrap_or_default();
        let (at, entries) = halves.split_at_mut(prepared.plan.m());
        Scratch { shift: 32 - table.len().ilog2(), table, at, entries, free }
    }

    /// The place of an entry in the table, or the free place where it would go. At most half of the
    /// places are filled, so the search ends.
    fn find(&self, entry: u32) -> usize {
        let mut place = (entry.wrapping_mul(GOLDEN) >> self.shift) as usize;
        while (self.table[place] >> 32) as u32 != entry && self.table[place] != FREE {
            place = (place + 1) & (self.table.len() - 1);
        }
        place
    }
}

impl Call<'_> {
    fn leave_out(&self, row: usize) {
        fill(self.slots.row(row), -1);
        self.list(row, 0);
    }

    /// Ends the lists of a row behind `fetches` entries.
    fn list(&self, row: usize, fetches: usize) {
        fill(&self.fetch_positions.row(row)[fetches..], -1);
        fill(&self.fetch_slots.row(row)[fetches..], -1);
        set(&self.fetches[row], fetches as i32);
    }

    /// A row of a request that no other row has; returns flags.
    fn row(&self, row: usize, request: usize, scratch: &mut Scratch<'_>) -> u32 {
        let plan = self.plan;
        let (resident, used) = (self.resident.row(request), self.used.row(request));
        if self.reset.is_some_and(|reset| once(&reset[row]) != 0) {
            fill(resident, -1);
        }
        let step = self.step.get(if plan.step_by_row() { row } else { 0 }) as i32;
        let start = self.tail_starts.as_ref().map(|starts| starts.get(row));
        let mut bits = if start.is_some_and(|start| start < 0) { flags::BAD_LENGTHS } else { 0 };
        let places = Places {
            plan,
            blocks: row_of(self.blocks, request),
            pages: row_of(self.pages, request),
            tail_start: start.map(|start| start.max(0)),
        };
        let distinct = self.enter(row, &places, scratch, &mut bits);
        let hits = hit(&places, (resident, used), step, scratch, &mut bits);
        let mut fetches = 0;
        if hits < distinct {
            let slots = take(&places, (resident, used), step, distinct, scratch, &mut bits);
            fetches = slots;
            self.fetch(row, &places, (resident, used), step, fetches, scratch);
        }
        self.list(row, fetches);
        let slots = self.slots.row(row);
        for (to, &at) in slots.iter().zip(&*scratch.at).filter(|(_, at)| **at != NONE) {
            let slot = scratch.table[at as usize] as u32;
            set(to, if slot == NONE { -1 } else { places.of_slot(slot as usize).or_none() });
        }
        bits
    }

    /// Puts the entries of a row into the table, and answers the columns whose entries lie outside
    /// of the slots. Returns the number of distinct entries.
    fn enter(
        &self,
        row: usize,
        places: &Places<'_>,
        scratch: &mut Scratch<'_>,
        bits: &mut u32,
    ) -> usize {
        scratch.table.fill(FREE);
        let m = self.plan.m();
        let wanted = &self.wanted[row * self.plan.wanted.row_stride..][..m];
        let mut distinct = 0;
        for (column, (entry, to)) in wanted.iter().zip(self.slots.row(row)).enumerate() {
            let entry = once(entry);
            scratch.at[column] = match places.of_entry(entry, bits) {
                Some(place) => {
                    set(to, place);
                    NONE
                }
                None => {
                    let entry = entry.cast_unsigned();
                    let at = scratch.find(entry);
                    if scratch.table[at] == FREE {
                        scratch.table[at] = u64::from(entry) << 32 | u64::from(NONE);
                        scratch.entries[distinct] = entry;
                        distinct += 1;
                    }
                    at as u32
                }
            };
        }
        distinct
    }

    /// Gives the misses, which are sorted, to the slots that were taken, which ascend.
    fn fetch(
        &self,
        row: usize,
        places: &Places<'_>,
        (resident, used): (&[AtomicI32], &[AtomicI32]),
        step: i32,
        count: usize,
        scratch: &mut Scratch<'_>,
    ) {
        let (positions, slots) = (self.fetch_positions.row(row), self.fetch_slots.row(row));
        for miss in 0..count {
            let (slot, entry) = (scratch.free[miss] as usize, scratch.entries[miss]);
            set(&resident[slot], entry.cast_signed());
            set(&used[slot], step);
            set(&positions[miss], entry.cast_signed());
            set(&slots[miss], places.of_slot(slot).or_none());
            let at = scratch.find(entry);
            scratch.table[at] = u64::from(entry) << 32 | slot as u64;
        }
    }
}

/// Finds the hits, and notes their slots in the table. Returns their number.
fn hit(
    places: &Places<'_>,
    (resident, used): (&[AtomicI32], &[AtomicI32]),
    step: i32,
    scratch: &mut Scratch<'_>,
    bits: &mut u32,
) -> usize {
    let mut hits = 0;
    for (slot, (entry, used)) in resident.iter().zip(used).enumerate() {
        let place = places.of_slot(slot);
        *bits |= place.bits();
        let entry = get(entry);
        if place.is_there() && entry >= 0 {
            let at = scratch.find(entry.cast_unsigned());
            let word = &mut scratch.table[at];
            // The lowest slot of an entry comes first.
            if *word != FREE && *word as u32 == NONE {
                *word = u64::from(entry.cast_unsigned()) << 32 | slot as u64;
                set(used, step);
                hits += 1;
            }
        }
    }
    hits
}

/// Sorts the misses among the entries to the front of `entries`, and the slots that they take to the
/// front of `free`. Returns the number of slots.
fn take(
    places: &Places<'_>,
    (resident, used): (&[AtomicI32], &[AtomicI32]),
    step: i32,
    distinct: usize,
    scratch: &mut Scratch<'_>,
    bits: &mut u32,
) -> usize {
    let mut misses = 0;
    for of in 0..distinct {
        let entry = scratch.entries[of];
        if scratch.table[scratch.find(entry)] as u32 == NONE {
            scratch.entries[misses] = entry;
            misses += 1;
        }
    }
    scratch.entries[..misses].sort_unstable();
    let mut free = 0;
    for (slot, (entry, used)) in resident.iter().zip(used).enumerate() {
        let entry = get(entry);
        let is_hit = || {
            let word = scratch.table[scratch.find(entry.cast_unsigned())];
            word != FREE && word as u32 == slot as u32
        };
        if places.of_slot(slot).is_there() && (entry < 0 || !is_hit()) {
            let age = step.wrapping_sub(get(used)).cast_unsigned();
            // Empty slots before others, then the greatest age, then the lowest slot.
            let class = if entry < 0 { 0 } else { 1 << 32 | u64::from(!age) };
            scratch.free[free] = class << 16 | slot as u64;
            free += 1;
        }
    }
    if free < misses {
        *bits |= flags::BAD_LENGTHS;
    }
    let count = misses.min(free);
    let free = &mut scratch.free[..free];
    if count < free.len() {
        free.select_nth_unstable(count);
    }
    let free = &mut free[..count];
    free.iter_mut().for_each(|key| *key &= 0xFFFF);
    free.sort_unstable();
    count
}

/// Where a slot lies in the cache.
#[derive(Clone, Copy)]
enum Place {
    At(i32),
    Missing,
    TooFar,
}

impl Place {
    /// Place `within` of a block of `size`.
    fn in_block(block: i32, size: usize, within: usize) -> Self {
        let place = i64::from(block) * size as i64 + within as i64;
        i32::try_from(place).map_or(Place::TooFar, Place::At)
    }

    fn is_there(self) -> bool {
        matches!(self, Place::At(_))
    }

    fn or_none(self) -> i32 {
        if let Place::At(place) = self { place } else { -1 }
    }

    /// The flags that the place of one of the `h` slots raises.
    fn bits(self) -> u32 {
        if let Place::TooFar = self { flags::OUT_OF_RANGE } else { 0 }
    }
}

/// What decides where the entries and the slots of a row lie, besides the state.
struct Places<'a> {
    plan: &'a Plan,
    blocks: Option<&'a [i32]>,
    pages: Option<&'a [i32]>,
    tail_start: Option<i64>,
}

impl Places<'_> {
    #[inline]
    fn of_slot(&self, slot: usize) -> Place {
        let Some(blocks) = self.blocks else { return Place::At(slot as i32) };
        let size = self.plan.params.block_size;
        match blocks.get(slot / size).map(once) {
            Some(block) if block >= 0 => Place::in_block(block, size, slot % size),
            _ => Place::Missing,
        }
    }

    /// The place of an entry that lies outside of the slots, -1 for none, which may raise flags;
    /// `None` for an entry that may be in a slot.
    #[inline]
    fn of_entry(&self, entry: i32, bits: &mut u32) -> Option<i32> {
        let Ok(position) = usize::try_from(entry) else { return Some(-1) };
        let params = &self.plan.params;
        let page = self.pages.and_then(|pages| pages.get(position / params.page_size)).map(once);
        let place = match page.filter(|&page| page > params.null_page) {
            Some(page) => Place::in_block(page, params.page_size, position % params.page_size),
            None => {
                let behind = i64::from(entry) - self.tail_start?;
                match usize::try_from(behind) {
                    Err(_) => return None,
                    Ok(behind) if behind < params.tail => self.of_slot(self.plan.h() + behind),
                    Ok(_) => Place::TooFar,
                }
            }
        };
        if !place.is_there() {
            *bits |= flags::OUT_OF_RANGE;
        }
        Some(place.or_none())
    }
}
