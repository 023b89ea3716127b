//! Grouping by expert on the CPU: a stable counting sort, tokens in parts.
//!
//! Each part counts its picks by expert. Prefix sums over parts and experts tell where each
//! part's picks of an expert start. Each part then writes its picks there.

use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use rayon::prelude::*;
use spec_core::ops::MoeAlign;
use spec_core::ops::moe_align::{Buffers, MAX_EXPERTS, Plan};
use spec_core::{DType, Kernel, Result, Route, Supports, ViewMut, dtype, flags};

use super::{by_int, kernel};
use crate::Cpu;
use crate::slices::{Int, Rows, Workspace, once, raise, shared, slice, slice_mut, workspace_size};

/// Picks below which splitting further costs more than it gains.
const MIN_PICKS: usize = 16 * 1024;
/// The local expert of a pick that is dropped.
const DROPPED: u16 = u16::MAX;
const _: () = assert!(MAX_EXPERTS < DROPPED as usize);

struct Prepared {
    plan: Plan,
    /// Parts of the tokens.
    parts: usize,
    /// Tokens of a part.
    share: usize,
}

// SAFETY: `launch` works on checked slices of the workspace and the buffers.
unsafe impl Supports<MoeAlign> for Cpu {
    unsafe fn prepare(&self, plan: &Plan) -> Result<Box<dyn Kernel<MoeAlign>>> {
        let tokens = plan.topk_ids.rows;
        let parts = rayon::current_num_threads().min(plan.picks() / MIN_PICKS).max(1);
        let share = tokens.div_ceil(parts).max(1);
        let prepared = Prepared { plan: plan.clone(), parts: tokens.div_ceil(share).max(1), share };
        let size = workspace_size(&[prepared.parts * prepared.stride() * 4]);
        // SAFETY: as for the `impl`.
        Ok(unsafe { kernel::<MoeAlign, _>(prepared, size, launch, loops) })
    }
}

fn loops(Prepared { parts, share, .. }: &Prepared, route: &mut Route) {
    route.push("moe_align", format_args!("{parts} parts of {share} tokens"));
}

fn launch(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    by_int!(prepared.plan.topk_ids.dtype, run(prepared, workspace, buffers))
}

/// The map from experts to local experts.
#[derive(Clone, Copy)]
struct Local<'a> {
    plan: &'a Plan,
    map: Option<&'a [i32]>,
    /// An expert below this number is its own local expert.
    same: u64,
}

impl<'a> Local<'a> {
    fn new(plan: &'a Plan, map: Option<&'a [i32]>) -> Self {
        let params = &plan.params;
        let same = if map.is_some() { 0 } else { params.experts.min(params.local_experts) };
        Local { plan, map, same: same as u64 }
    }

    /// The local expert of a pick, and flags.
    #[inline(always)]
    fn of(self, id: i64) -> (u16, u32) {
        if id.cast_unsigned() < self.same { (id as u16, 0) } else { self.looked_up(id) }
    }

    fn looked_up(self, id: i64) -> (u16, u32) {
        let expert = match (usize::try_from(id), self.map) {
            (Ok(expert), _) if expert >= self.plan.params.experts => i64::MIN,
            (Ok(expert), Some(map)) => i64::from(map[expert]),
            _ => id,
        };
        match usize::try_from(expert) {
            Ok(local) if local < self.plan.params.local_experts => (local as u16, 0),
            _ if expert == -1 => (DROPPED, 0),
            _ => (DROPPED, flags::OUT_OF_RANGE),
        }
    }
}

fn run<T: Int>(prepared: &Prepared, workspace: ViewMut<'_>, buffers: Buffers<'_>) -> Result<()> {
    let plan = &prepared.plan;
    let ids = Rows::<T>::new(buffers.topk_ids, plan.topk_ids)?;
    let map = buffers.expert_map.map(slice::<i32>).transpose()?;
    let local = Local::new(plan, map);
    let stride = prepared.stride();
    let starts = Workspace::new(workspace)?.take::<u32>(prepared.parts * stride)?;
    let bits = AtomicU32::new(0);
    starts.par_chunks_mut(stride).enumerate().for_each(|(part, counts)| {
        counts.fill(0);
        let mut bad = 0;
        for span in ids.spans(prepared.tokens_of(part)) {
            for id in span {
                let (local, flags) = local.of(id.wide());
                bad |= flags;
                if local != DROPPED {
                    counts[usize::from(local)] += 1;
                }
            }
        }
        if bad != 0 {
            bits.fetch_or(bad, Ordering::Relaxed);
        }
    });
    let sorted = sorted_ids(buffers.sorted_ids)?;
    let offsets = slice_mut::<i32>(buffers.offsets)?;
    let blocks = slice_mut(buffers.block_experts)?;
    let counts = slice_mut::<i32>(buffers.counts)?;
    let padded = prepared.place_runs(starts, offsets, counts, sorted, blocks);
    slice_mut::<i32>(buffers.num_padded)?[0] = padded;
    let sorted = shared(sorted);
    let inverse = buffers.inverse.map(slice_mut::<i32>).transpose()?.map(shared);
    let k = plan.topk_ids.cols;
    starts.par_chunks_mut(stride).enumerate().for_each(|(part, next)| {
        let tokens = prepared.tokens_of(part);
        let mut pick = tokens.start * k;
        let picks = ids.spans(tokens);
        let mut places = Places { local, next, sorted };
        match inverse {
            Some(inverse) => {
                for span in picks {
                    for (id, inverse) in span.iter().zip(&inverse[pick..]) {
                        inverse.store(places.take(pick, id.wide()), Ordering::Relaxed);
                        pick += 1;
                    }
                }
            }
            None => {
                for id in picks.flatten() {
                    places.take(pick, id.wide());
                    pick += 1;
                }
            }
        }
    });
    if plan.has_layout {
        let sorted = sorted.iter().map(|pick| pick.load(Ordering::Relaxed));
        if let Some(tokens) = buffers.sorted_tokens {
            let picks = plan.picks() as i32;
            for (token, pick) in slice_mut::<i32>(tokens)?.iter_mut().zip(sorted) {
                // A pick below the number of picks says that there are some, so `k` is not 0.
                *token = if (0..picks).contains(&pick) { pick / k as i32 } else { -1 };
            }
        }
        let block_size = plan.params.block_size as i32;
        if let Some(limits) = buffers.block_limits {
            limit_blocks(block_size, offsets, counts, slice_mut(limits)?);
        }
        if let Some(used) = buffers.num_blocks {
            slice_mut::<i32>(used)?[0] = padded / block_size;
        }
    }
    raise(buffers.flags, bits.into_inner())
}

/// Writes where the picks of each block end; 0 behind the last run.
fn limit_blocks(block_size: i32, offsets: &[i32], counts: &[i32], limits: &mut [i32]) {
    limits.fill(0);
    let runs = offsets.windows(2).zip(counts);
    for (run, &count) in runs {
        let (first, end) = (once(&run[0]), once(&run[1]));
        let filled = first.saturating_add(count);
        let blocks = limits.iter_mut().enumerate();
        let own = (end / block_size).saturating_sub(first / block_size).max(0) as usize;
        for (block, limit) in blocks.skip((first / block_size).max(0) as usize).take(own) {
            *limit = (block as i32 + 1).saturating_mul(block_size).min(filled);
        }
    }
}

/// Where the picks of one part go.
struct Places<'a> {
    local: Local<'a>,
    /// The place of the part's next pick of each local expert.
    next: &'a mut [u32],
    sorted: &'a [AtomicI32],
}

impl Places<'_> {
    /// Puts a pick of this expert in its place, and returns the place; -1 if the pick is dropped.
    #[inline(always)]
    fn take(&mut self, pick: usize, id: i64) -> i32 {
        let (local, _) = self.local.of(id);
        if local == DROPPED {
            return -1;
        }
        let next = &mut self.next[usize::from(local)];
        let place = *next;
        *next += 1;
        let Some(slot) = self.sorted.get(place as usize) else { return beyond() };
        slot.store(pick as i32, Ordering::Relaxed);
        place as i32
    }
}

/// The place of a pick for which `sorted_ids` has no room: another thread has moved the pick to
/// the last expert since the picks were counted.
#[cold]
fn beyond() -> i32 {
    -1
}

impl Prepared {
    /// Counters of a part.
    fn stride(&self) -> usize {
        self.plan.params.local_experts.max(1)
    }

    fn tokens_of(&self, part: usize) -> std::ops::Range<usize> {
        let tokens = self.plan.topk_ids.rows;
        (part * self.share).min(tokens)..((part + 1) * self.share).min(tokens)
    }

    /// Turns each part's counts into where its picks start; writes offsets, counts, the
    /// expert of each block (-1 behind the last run) and the padding behind each run. Returns
    /// where the last run ends.
    fn place_runs(
        &self,
        starts: &mut [u32],
        offsets: &mut [i32],
        counts: &mut [i32],
        sorted: &mut [i32],
        blocks: &mut [i32],
    ) -> i32 {
        let padding = self.plan.picks() as i32;
        let block_size = self.plan.params.block_size;
        let mut next = 0;
        for (local, count) in counts.iter_mut().enumerate() {
            offsets[local] = next as i32;
            let first = next;
            for part in 0..self.parts {
                let start = &mut starts[part * self.stride() + local];
                next += std::mem::replace(start, next);
            }
            *count = (next - first) as i32;
            // Behind an empty run there is no padding: the run starts at the end of a block.
            if next > first {
                let end = next.next_multiple_of(block_size as u32);
                sorted[next as usize..end as usize].fill(padding);
                blocks[first as usize / block_size..end as usize / block_size].fill(local as i32);
                next = end;
            }
        }
        offsets[counts.len()] = next as i32;
        sorted[next as usize..].fill(padding);
        blocks[next as usize / block_size..].fill(-1);
        next as i32
    }
}

/// `sorted_ids` as i32, whatever its dtype: picks are not negative, so a u32 has the same bits.
fn sorted_ids(view: ViewMut<'_>) -> Result<&mut [i32]> {
    match view.dtype() {
        // `from_bytes_mut` succeeds: size and alignment of both types are the same.
        DType::U32 => {
            Ok(dtype::from_bytes_mut(dtype::as_bytes_mut(slice_mut::<u32>(view)?))
                .unwrap_or_default())
        }
        _ => slice_mut(view),
    }
}

#[cfg(test)]
mod tests {
    use spec_core::{Descriptor, Operator, TensorDesc};

    use spec_core::ops::moe_align::Required;

    use super::*;

    /// The operator's outputs on `threads` threads: sorted ids, offsets, inverse.
    fn aligned(ids: &[i32], k: usize, threads: usize) -> [Vec<i32>; 3] {
        let params = MoeAlign::new(300, 16);
        let inverse = TensorDesc::new(DType::I32, [ids.len()]);
        let tensors = params.tensors(DType::I32, ids.len() / k, k).inverse(inverse);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let descriptor = Descriptor::create(&Cpu::open(0).unwrap(), &params, &tensors).unwrap();
            let capacity = params.capacity(ids.len()).unwrap();
            let (mut sorted, mut blocks) = (vec![0; capacity], vec![0; capacity / 16]);
            let (mut counts, mut offsets) = (vec![0; 300], vec![0; 301]);
            let (mut padded, mut inverse) = ([0], vec![0; ids.len()]);
            let buffers = Buffers::new(Required {
                topk_ids: ids.into(),
                sorted_ids: (&mut sorted[..]).into(),
                block_experts: (&mut blocks[..]).into(),
                counts: (&mut counts[..]).into(),
                offsets: (&mut offsets[..]).into(),
                num_padded: (&mut padded[..]).into(),
            })
            .inverse(&mut inverse[..]);
            let mut workspace = vec![0xA5u8; descriptor.workspace_size()];
            descriptor.call(&mut workspace, buffers).unwrap();
            [sorted, offsets, inverse]
        })
    }

    #[test]
    fn picks_that_change_after_they_were_counted_have_no_place_beyond_the_end() {
        let params = MoeAlign::new(2, 1);
        let plan = params.plan(&params.tensors(DType::I32, 4, 1)).unwrap();
        let mut sorted = [-7; 4];
        let mut places = Places {
            local: Local::new(&plan, None),
            next: &mut [0, 2],
            sorted: shared(&mut sorted[..]),
        };
        let taken = [1, 1, 1, 5].map(|id| places.take(9, id));
        assert_eq!((taken, sorted), ([2, 3, -1, -1], [-7, -7, 9, 9]));
    }

    #[test]
    fn parts_are_put_together_in_the_order_of_picks() {
        let hash = |i: u32| i.wrapping_mul(0x9E37_79B9).rotate_left(11);
        // Some picks name no expert.
        let ids: Vec<i32> = (0..5 * MIN_PICKS as u32).map(|i| hash(i) as i32 % 301).collect();
        for threads in [1, 2, 5] {
            let [sorted, offsets, inverse] = aligned(&ids, 5, threads);
            for (expert, run) in offsets.windows(2).enumerate() {
                let picks =
                    (0..ids.len() as i32).filter(|&pick| ids[pick as usize] == expert as i32);
                let run = &sorted[run[0] as usize..run[1] as usize];
                let there = run.iter().copied().take_while(|&pick| pick < ids.len() as i32);
                assert!(there.eq(picks), "expert {expert}, {threads} threads");
            }
            for (pick, (&place, &id)) in inverse.iter().zip(&ids).enumerate() {
                let is = usize::try_from(place).ok().map(|place| sorted[place]);
                let known = (0..300).contains(&id);
                assert_eq!(is, known.then_some(pick as i32), "pick {pick}, {threads} threads");
            }
        }
    }
}
