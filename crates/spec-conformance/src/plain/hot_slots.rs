//! `hot_slots`: one row after the other, each by sorting.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use spec_core::flags::{BAD_LENGTHS, OUT_OF_RANGE};
use spec_core::ops::hot_slots::{Buffers, Plan};
use spec_core::{Matrix, Result};

use crate::host::{ints, packed, raise, slice, slice_mut};

/// Where a slot lies.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    At(i32),
    Missing,
    TooFar,
}

/// A number of a cache, from the number of a block and a place in the block.
fn place_in(block: i32, size: usize, within: usize) -> Place {
    let place = i64::from(block) * size as i64 + within as i64;
    i32::try_from(place).map_or(Place::TooFar, Place::At)
}

fn place_of(slot: usize, block_size: usize, blocks: Option<&[i32]>) -> Place {
    let Some(blocks) = blocks else { return Place::At(slot as i32) };
    match blocks.get(slot / block_size) {
        Some(&block) if block >= 0 => place_in(block, block_size, slot % block_size),
        _ => Place::Missing,
    }
}

/// Where the wanted values of a row lie: outside of the slots at a place (-1 for nowhere), or in a
/// slot.
enum Lies {
    Outside(i32),
    InSlots,
}

/// What decides where the entries of a row lie, besides the state.
struct Tables<'a> {
    plan: &'a Plan,
    blocks: Option<&'a [i32]>,
    pages: Option<&'a [i32]>,
    tail_start: Option<i64>,
}

impl Tables<'_> {
    fn place(&self, slot: usize) -> Place {
        place_of(slot, self.plan.params.block_size, self.blocks)
    }

    /// Where an entry lies, which raises flags.
    fn lies(&self, entry: i32, flags: &mut u32) -> Lies {
        let params = &self.plan.params;
        let Ok(position) = usize::try_from(entry) else { return Lies::Outside(-1) };
        let page = self.pages.and_then(|pages| pages.get(position / params.page_size));
        let place = match (page, self.tail_start) {
            (Some(&page), _) if page > params.null_page => {
                place_in(page, params.page_size, position % params.page_size)
            }
            (_, Some(start)) if i64::from(entry) >= start => {
                match usize::try_from(i64::from(entry) - start) {
                    Ok(behind) if behind < params.tail => self.place(self.plan.h() + behind),
                    _ => Place::TooFar,
                }
            }
            _ => return Lies::InSlots,
        };
        match place {
            Place::At(place) => Lies::Outside(place),
            _ => {
                *flags |= OUT_OF_RANGE;
                Lies::Outside(-1)
            }
        }
    }
}

fn row_of<T>(data: &[T], matrix: Matrix, row: usize) -> &[T] {
    &data[row * matrix.row_stride..][..matrix.cols]
}

fn row_of_mut<T>(data: &mut [T], matrix: Matrix, row: usize) -> &mut [T] {
    &mut data[row * matrix.row_stride..][..matrix.cols]
}

/// The outputs of a row.
struct Written<'a> {
    slots: &'a mut [i32],
    fetch_positions: &'a mut [i32],
    fetch_slots: &'a mut [i32],
    fetches: &'a mut i32,
}

/// Goes through the rows one by one.
pub(crate) fn run(plan: &Plan, buffers: Buffers<'_>) -> Result<()> {
    let wanted = packed(slice::<i32>(buffers.wanted)?, &plan.wanted);
    let requests = buffers.requests.map(slice::<i32>).transpose()?;
    let (resident, used) = (slice_mut::<i32>(buffers.resident)?, slice_mut::<i32>(buffers.used)?);
    let step = ints(buffers.step)?;
    let reset = buffers.reset.map(slice::<i32>).transpose()?;
    let tail_starts = buffers.tail_starts.map(ints).transpose()?;
    let blocks = buffers.block_table.map(slice::<i32>).transpose()?;
    let pages = buffers.pages.map(slice::<i32>).transpose()?;
    let slots = slice_mut::<i32>(buffers.slots)?;
    let fetch_positions = slice_mut::<i32>(buffers.fetch_positions)?;
    let fetch_slots = slice_mut::<i32>(buffers.fetch_slots)?;
    let fetches = slice_mut::<i32>(buffers.fetches)?;
    let mut flags = 0;
    let mut taken = HashSet::new();
    for row in 0..plan.batch() {
        let mut written = Written {
            slots: row_of_mut(slots, plan.slots, row),
            fetch_positions: row_of_mut(fetch_positions, plan.fetch_positions, row),
            fetch_slots: row_of_mut(fetch_slots, plan.fetch_slots, row),
            fetches: &mut fetches[row],
        };
        written.slots.fill(-1);
        written.fetch_positions.fill(-1);
        written.fetch_slots.fill(-1);
        *written.fetches = 0;
        let request = requests.map_or(row as i64, |requests| requests[row].into());
        if request == -1 {
            continue;
        }
        let table = match usize::try_from(request) {
            Ok(table) if table < plan.tables() && taken.insert(table) => table,
            _ => {
                flags |= BAD_LENGTHS;
                continue;
            }
        };
        let resident = row_of_mut(resident, plan.resident, table);
        let used = row_of_mut(used, plan.used, table);
        if reset.is_some_and(|reset| reset[row] != 0) {
            resident.fill(-1);
        }
        let mut tail_start = tail_starts.as_ref().map(|starts| starts[row]);
        if tail_start.is_some_and(|start| start < 0) {
            tail_start = Some(0);
            flags |= BAD_LENGTHS;
        }
        let tables = Tables {
            plan,
            blocks: blocks.zip(plan.block_table).map(|(all, of)| row_of(all, of, table)),
            pages: pages.zip(plan.pages).map(|(all, of)| row_of(all, of, table)),
            tail_start,
        };
        let step = step[if plan.step_by_row() { row } else { 0 }] as i32;
        let wanted = &wanted[row * plan.m()..][..plan.m()];
        flags |= one_row(&tables, wanted, (resident, used), step, &mut written);
    }
    raise(buffers.flags, flags)
}

/// One row that is not left out; returns flags.
fn one_row(
    tables: &Tables<'_>,
    wanted: &[i32],
    (resident, used): (&mut [i32], &mut [i32]),
    step: i32,
    written: &mut Written<'_>,
) -> u32 {
    let mut flags = 0;
    let mut entries = BTreeSet::new();
    for &entry in wanted {
        if let Lies::InSlots = tables.lies(entry, &mut flags) {
            entries.insert(entry);
        }
    }
    // Hits, and the slots that misses may take: empty ones first, then by age.
    let mut slot_of = BTreeMap::new();
    let mut free = Vec::new();
    for slot in 0..resident.len() {
        match tables.place(slot) {
            Place::At(_)
                if entries.contains(&resident[slot]) && !slot_of.contains_key(&resident[slot]) =>
            {
                slot_of.insert(resident[slot], slot);
                used[slot] = step;
            }
            Place::At(_) => {
                let age = step.wrapping_sub(used[slot]).cast_unsigned();
                let is_empty = resident[slot] < 0;
                free.push((!is_empty, u32::MAX - if is_empty { 0 } else { age }, slot));
            }
            Place::Missing => {}
            Place::TooFar => flags |= OUT_OF_RANGE,
        }
    }
    free.sort_unstable();
    let misses: Vec<i32> =
        entries.into_iter().filter(|entry| !slot_of.contains_key(entry)).collect();
    if misses.len() > free.len() {
        flags |= BAD_LENGTHS;
    }
    let mut victims: Vec<usize> =
        free.into_iter().take(misses.len()).map(|(_, _, slot)| slot).collect();
    victims.sort_unstable();
    for (at, (&slot, &entry)) in victims.iter().zip(&misses).enumerate() {
        (resident[slot], used[slot]) = (entry, step);
        slot_of.insert(entry, slot);
        written.fetch_positions[at] = entry;
        if let Place::At(place) = tables.place(slot) {
            written.fetch_slots[at] = place;
        }
    }
    *written.fetches = victims.len() as i32;
    for (to, &entry) in written.slots.iter_mut().zip(wanted) {
        // The flags were raised above.
        *to = match tables.lies(entry, &mut 0) {
            Lies::Outside(place) => place,
            Lies::InSlots => match slot_of.get(&entry).map(|&slot| tables.place(slot)) {
                Some(Place::At(place)) => place,
                _ => -1,
            },
        };
    }
    flags
}
