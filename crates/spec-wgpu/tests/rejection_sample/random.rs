//! Random calls of `rejection_sample`, bad data included.

use half::{bf16, f16};
use spec_core::DType;
use spec_core::ops::RejectionSample;
use spec_core::ops::rejection_sample::{Acceptance, Recovery};

use super::Case;
use super::common::Random;

/// What the probabilities of a random case look like.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Like a model's, target and draft unlike.
    Plain,
    /// Nearly equal target and draft.
    Close,
    /// Any bits of a float near the ends of its exponents.
    Wild,
    /// Residuals of a few units of 2^-40.
    Tiny,
    /// A handful of values, so that most are equal.
    Few,
    /// No target from 0 up.
    Negative,
}

pub const KINDS: [Kind; 6] =
    [Kind::Plain, Kind::Close, Kind::Wild, Kind::Tiny, Kind::Few, Kind::Negative];

/// A float of any sign whose exponent is near the smallest, the largest, the
/// bounds between fast and exact subtraction, or 1.
fn wild(r: &mut Random) -> f32 {
    let starts = [0, 0, 20, 28, 86, 100, 120, 125, 244, 251];
    let exponent = (starts[r.below(10) as usize] + r.below(6)).min(255) as u32;
    let mantissa = match r.below(4) {
        0 => 0,
        1 => 0x007F_FFFF,
        2 => 1 << r.below(23),
        _ => r.below(1 << 23) as u32,
    };
    f32::from_bits(((r.below(6) / 5) as u32 * 0x8000_0000) | (exponent << 23) | mantissa)
}

fn unit(r: &mut Random) -> f32 {
    (r.next() >> 40) as f32 / (1 << 24) as f32
}

pub fn random_case(r: &mut Random, batch: usize, vocab: usize, kind: Kind, bad: bool) -> Case {
    let dtype = [DType::F32, DType::F16, DType::BF16][r.below(3) as usize];
    let round = |v: f32| match dtype {
        DType::F16 => f16::from_f32(v).to_f32(),
        DType::BF16 => bf16::from_f32(v).to_f32(),
        _ => v,
    };
    let (acceptance, recovery) = match r.below(5) {
        0 => (Acceptance::Greedy, Recovery::Argmax),
        1 | 2 => (Acceptance::Probabilistic, Recovery::Argmax),
        _ => (Acceptance::Probabilistic, Recovery::Sample),
    };
    let max_spec_len = r.below(7) as usize;
    let params = RejectionSample { max_spec_len, acceptance, recovery };
    let mut offsets = vec![0i64];
    for _ in 0..batch {
        let count = r.below(max_spec_len as u64 + 1 + u64::from(bad));
        offsets.push(offsets[offsets.len() - 1] + count as i64);
    }
    let tokens = offsets[batch] as usize;
    let (mut target, mut draft) = (Vec::new(), Vec::new());
    for _ in 0..tokens * vocab {
        let t = match kind {
            Kind::Wild => wild(r),
            Kind::Tiny => unit(r) * 2f32.powi(-36),
            Kind::Few => r.below(4) as f32 * 0.25,
            Kind::Negative => -unit(r),
            _ if r.below(4) == 0 => 0.0,
            _ => unit(r).powi(12) * 0.9,
        };
        let t = round(t);
        let d = match kind {
            Kind::Plain => unit(r).powi(12) * 0.9,
            Kind::Tiny => unit(r) * 2f32.powi(-37),
            Kind::Few => r.below(3) as f32 * 0.25,
            Kind::Negative => unit(r),
            Kind::Close => t * (0.8 + 0.3 * unit(r)),
            Kind::Wild if r.below(3) == 0 => {
                f32::from_bits(t.to_bits().wrapping_add(r.below(5) as u32).wrapping_sub(2))
            }
            Kind::Wild => wild(r),
        };
        target.push(t);
        draft.push(round(d));
    }
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, f32::MAX, f32::MIN, -1.0];
    if bad && tokens > 0 {
        for _ in 0..tokens {
            let at = r.below(target.len() as u64) as usize;
            target[at] = round(odd[r.below(8) as usize]);
            let at = r.below(target.len() as u64) as usize;
            draft[at] = round(odd[r.below(8) as usize]);
        }
        if r.below(3) == 0 {
            let row = r.below(tokens as u64) as usize;
            target[row * vocab..][..vocab].fill(f32::NAN);
        }
    }
    let mut wide = [false; 3];
    wide.iter_mut().for_each(|w| *w = r.below(2) == 0);
    let id = |r: &mut Random, row: &[f32], wide: bool| {
        if bad && r.below(6) == 0 {
            let far = if wide { 1 << 32 } else { i64::from(i32::MAX) };
            return [-1, vocab as i64, far, i64::from(i32::MIN)][r.below(4) as usize];
        }
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap_or(0);
        if r.below(2) == 0 { best as i64 } else { r.below(vocab as u64) as i64 }
    };
    let ids: Vec<i64> =
        (0..tokens).map(|t| id(r, &target[t * vocab..][..vocab], wide[0])).collect();
    let bonus = (0..batch).map(|_| id(r, &[], wide[1])).collect();
    if bad && r.below(3) == 0 {
        let at = r.below(batch as u64 + 1) as usize;
        let far = if wide[2] { 1 << 33 } else { i64::from(i32::MIN) };
        offsets[at] = [-3, tokens as i64 + 1, far, 1][r.below(4) as usize];
    }
    let mut uniform: Vec<f32> = (0..tokens)
        .map(|_| match r.below(10) {
            0 if bad => odd[r.below(8) as usize],
            0 | 1 if kind == Kind::Wild => wild(r),
            _ => unit(r),
        })
        .collect();
    // Targets at the very bound of acceptance, where its rounding decides.
    for (token, &id) in ids.iter().enumerate().filter(|(_, id)| (0..vocab as i64).contains(id)) {
        let at = token * vocab + id as usize;
        if r.below(4) == 0 {
            // 12 by 13 bits: a product halfway between two floats.
            uniform[token] = (r.below(1 << 12) | 0x801) as f32 / 4096.0;
            draft[at] = round((r.below(1 << 13) | 0x1001) as f32 / 16_384.0);
        }
        let bound = match r.below(3) {
            0 => uniform[token] * draft[at].max(1e-10),
            1 => draft[at].max(1e-10),
            _ => continue,
        };
        if bound > 0.0 && bound.is_finite() {
            target[at] = round(f32::from_bits(bound.to_bits() + r.below(3) as u32 - 1));
        }
    }
    Case {
        params,
        dtype,
        wide,
        vocab,
        gaps: [0; 3].map(|_| r.below(4) as usize),
        target,
        draft: (r.below(3) > 0).then_some(draft),
        ids,
        bonus,
        offsets,
        uniform: (r.below(2) == 0).then_some(uniform),
        random: [r.next(), r.next()],
    }
}
