//! The picks of a router with 256 experts, as in DeepSeek-V3.

use crate::baselines::Designs;
use crate::inputs::seed;
use crate::shape::{Fields, ShapeError};
use crate::work::Work;
use crate::{Entry, Measured, Words};
use spec::DType;
use spec::ops::MoeAlign;
use spec::ops::moe_align::MAX_EXPERTS;
use spec_conformance::{Case, Rng, Tensor};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    tokens: usize,
    k: usize,
    align: MoeAlign,
    picks: Picks,
}

/// How a router distributes tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Picks {
    /// All experts are equally popular.
    Even,
    /// Each next expert is half as popular.
    Skewed,
}

const EXPERTS: usize = 256;
const TOPK: usize = 8;
const BLOCK: usize = 64;

impl Designs for MoeAlign {}

impl Measured for MoeAlign {
    type Shape = Shape;

    const SMALL: &str = "tokens=30,experts=8,k=2";

    fn table() -> Vec<Entry<Shape>> {
        let row = |tokens, experts, picks| Shape {
            tokens,
            k: TOPK,
            align: MoeAlign::new(experts, BLOCK),
            picks,
        };
        let even = |tokens| row(tokens, EXPERTS, Picks::Even);
        vec![
            Entry::goal(even(1), 2.3),
            Entry::plain(even(256)),
            Entry::goal(even(4096), 5.0).quick_if(true),
            Entry::goal(even(16_384), 9.0),
            Entry::plain(even(65_536)),
            Entry::plain(row(16_384, EXPERTS, Picks::Skewed)),
            Entry::plain(row(4096, MAX_EXPERTS, Picks::Even)),
        ]
    }

    fn parse(fields: &mut Fields<'_>) -> Result<Shape, ShapeError> {
        let experts = fields.number("experts", EXPERTS, 1..=MAX_EXPERTS)?;
        Ok(Shape {
            tokens: fields.number("tokens", 4096, 1..=1 << 24)?,
            k: fields.number("k", TOPK, 1..=64)?,
            align: MoeAlign::new(experts, fields.number("block", BLOCK, 1..=1 << 16)?),
            picks: fields.word("picks", &[("even", Picks::Even), ("skewed", Picks::Skewed)])?,
        })
    }

    fn words(shape: &Shape) -> Words {
        let Shape { tokens, k, align, picks } = shape;
        let mut series = format!("{} experts, top {k}", align.experts);
        if align.block_size != BLOCK {
            series += &format!(", blocks of {}", align.block_size);
        }
        if *picks == Picks::Skewed {
            series += ", skewed";
        }
        Words {
            shape: format!("{tokens} tokens, {series}"),
            series,
            size: *tokens as f64,
            unit: "tokens",
        }
    }

    fn memory(shape: &Shape) -> u64 {
        let picks = shape.tokens * shape.k;
        let capacity = shape.align.capacity(picks).unwrap_or(usize::MAX / 64);
        let runs = 2 * shape.align.local_experts + 2;
        ((2 * picks + capacity + capacity / shape.align.block_size + runs) * 4) as u64
    }

    /// Random picks. As with a real router, no token picks the same expert twice.
    fn work(shape: &Shape) -> Result<Work<Self>, String> {
        let Shape { tokens, k, align, picks } = *shape;
        let experts = align.experts;
        if k > experts {
            return Err(format!("{k} of {experts} experts, expected at most all of them"));
        }
        let rng = &mut Rng::new(seed(&[tokens, k, experts]), "moe_align");
        let mut ids: Vec<i32> = Vec::with_capacity(tokens * k);
        for token in 0..tokens {
            while ids.len() < (token + 1) * k {
                let expert = match picks {
                    Picks::Even => rng.below(experts),
                    Picks::Skewed => (rng.next().trailing_zeros() as usize).min(experts - 1),
                };
                // If the token has picked this expert already, it picks the next free expert.
                let taken = &ids[token * k..];
                let free = (0..experts).map(|step| ((expert + step) % experts) as i32);
                let free = free.into_iter().find(|expert| !taken.contains(expert));
                ids.extend(free);
            }
        }
        align.capacity(tokens * k).ok_or("more picks than an i32 counts")?;
        let case = Case::new(align)
            .input("topk_ids", Tensor::matrix(ids, tokens, k))
            .output("sorted_ids", DType::I32)
            .output("block_experts", DType::I32)
            .output("counts", DType::I32)
            .output("offsets", DType::I32)
            .output("num_padded", DType::I32)
            .output("inverse", DType::I32);
        Ok(Work::new(case, Self::memory(shape)))
    }
}
