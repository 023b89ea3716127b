//! KV offload of requests at the batch of the write-up on deduplicating top-k rows: slots that hold
//! most of what a step wants, or nothing of it.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::HotSlots;
use spec::ops::hot_slots::MAX_SLOTS;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    batch: usize,
    m: usize,
    h: usize,
    /// Wanted entries that no slot holds, of a thousand.
    misses: usize,
}

/// Entries are positions below this number: of a long context.
const POSITIONS: usize = 1 << 17;
/// The greatest age of a slot. Its age is the number of steps since its entry left the top-k set.
const OLDEST: usize = 100;
const STEP: i32 = 100_000;

impl Designs for HotSlots {}

impl Measured for HotSlots {
    type Shape = Shape;

    const SMALL: &str = "batch=3,m=50,h=100";

    fn table() -> Vec<Entry<Shape>> {
        let row = |batch, misses| Shape { batch, m: 2048, h: 4096, misses };
        vec![
            Entry::goal(row(1, 20), 6.0),
            Entry::goal(row(32, 20), 7.0),
            Entry::goal(row(115, 20), 10.0).quick_if(true),
            Entry::goal(row(1, 1000), 10.0),
            Entry::goal(row(32, 1000), 12.0),
            Entry::goal(row(115, 1000), 18.0).quick_if(true),
            // Four steps of multi-token prediction.
            Entry::goal(Shape { batch: 115, m: 8192, h: 16_384, misses: 20 }, 40.0),
            Entry::plain(Shape { batch: 115, m: 8192, h: 16_384, misses: 1000 }),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        Ok(Shape {
            batch: fields.number("batch", 115, 1..=1 << 16)?,
            m: fields.number("m", 2048, 0..=MAX_SLOTS)?,
            h: fields.number("h", 4096, 0..=MAX_SLOTS)?,
            misses: fields.number("misses", 20, 0..=1000)?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { batch, m, h, misses } = shape;
        let share = match misses {
            1000 => "all misses".to_owned(),
            _ => format!("{} % misses", *misses as f64 / 10.0),
        };
        let series = format!("{m} of {h} slots, {share}");
        Words {
            shape: format!("{batch} rows, {series}"),
            series,
            size: *batch as f64,
            unit: "rows",
        }
    }

    /// Wanted entries and their slots, the state, and both lists.
    fn memory(shape: &Shape) -> u64 {
        (shape.batch * (4 * shape.m + 2 * shape.h) * 4) as u64
    }

    /// Ascending rows, as `deduplicate_topk` gives them, of which the misses and the slots that hold
    /// the others are anywhere.
    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { batch, m, h, misses } = *shape;
        let rng = &mut Rng::new(seed(&[batch, m, h, misses]), "hot_slots");
        let hits = (m - (m * misses).div_ceil(1000)).min(h);
        let (mut wanted, mut resident, mut used) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..batch {
            // The first h of these entries are in slots, in random order.
            let entries = rng.permutation(POSITIONS.max(h + m));
            let mut row: Vec<i32> =
                entries[h - hits..][..m].iter().map(|&entry| entry as i32).collect();
            row.sort_unstable();
            wanted.extend(row);
            for slot in rng.permutation(h) {
                resident.push(entries[slot] as i32);
                // What is wanted now was mostly wanted in the last step.
                let is_wanted = slot >= h - hits;
                used.push(STEP - 1 - if is_wanted { 0 } else { rng.below(OLDEST) as i32 });
            }
        }
        let case = Case::new(HotSlots::new())
            .input("wanted", Tensor::matrix(wanted, batch, m))
            .in_place("resident", Tensor::matrix(resident, batch, h))
            .in_place("used", Tensor::matrix(used, batch, h))
            .input("step", Tensor::vector(vec![STEP]))
            .output("slots", DType::I32)
            .output("fetch_positions", DType::I32)
            .output("fetch_slots", DType::I32)
            .output("fetches", DType::I32);
        Ok(Work::new(case, Self::memory(shape)))
    }
}
