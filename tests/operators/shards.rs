//! Ranks that each have some columns of a row choose the token of the whole row, on every backend.

use spec::ops::SampleLogits;
use spec::ops::sample_logits::{Buffers, Tensors};
use spec::{DType, Handle, Result, TensorDesc};

const VOCAB: usize = 700;
const ROWS: usize = 48;

/// What a rank has, or the whole row: columns `first ..` of every row, and the requests' options.
struct Columns {
    first: usize,
    logits: Vec<f32>,
}

/// The logits of all rows. Many are equal, some are NaN or infinite.
fn logits() -> Vec<f32> {
    let mut state = 1u64;
    let mut next = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let row_of = |row: usize, next: &mut dyn FnMut() -> f32| -> Vec<f32> {
        let mut own: Vec<f32> = (0..VOCAB)
            .map(|_| match row % 4 {
                0 => next() * 8.0,
                1 => (next() * 4.0).floor(),
                _ => (next() + next() + next() - 1.5) * 9.0,
            })
            .collect();
        let at = (next() * VOCAB as f32) as usize % VOCAB;
        match row {
            5 => own.fill(f32::NEG_INFINITY),
            6 => own[at] = f32::INFINITY,
            7 => own[at] = f32::NAN,
            8 => own.fill(f32::NAN),
            _ => {}
        }
        own
    };
    (0..ROWS).flat_map(|row| row_of(row, &mut next)).collect()
}

/// The columns from `first` to `end` of all rows.
fn part(logits: &[f32], first: usize, end: usize) -> Columns {
    let rows = logits.chunks(VOCAB).flat_map(|row| &row[first..end]);
    Columns { first, logits: rows.copied().collect() }
}

/// Bits for every token; row 9 allows tokens of the last rank only, row 10 none.
fn mask() -> Vec<i32> {
    let words = VOCAB.div_ceil(32);
    let allowed = |row: usize, word: usize| match row {
        9 if word < words - 1 => 0,
        10 => 0,
        _ => -1 ^ ((row * 7 + word) as i32 & 3),
    };
    (0..ROWS).flat_map(|row| (0..words).map(move |word| allowed(row, word))).collect()
}

/// Calls the operator for a rank's columns: with `maxima`, or as for a whole row. Returns `winners`
/// and tokens; without `draws`, returns nothing but the largest logits.
fn call(
    handle: &Handle,
    columns: &Columns,
    maxima: Option<&[f32]>,
    draws: bool,
) -> Result<(Vec<u64>, Vec<i32>, Vec<f32>)> {
    let sample = SampleLogits::default().first_token(columns.first as i32);
    let cols = columns.logits.len() / ROWS;
    let mut tensors: Tensors = sample.tensors(ROWS, cols);
    tensors.mask = Some(TensorDesc::new(DType::I32, [ROWS, VOCAB.div_ceil(32)]));
    if draws {
        tensors.winners = Some(TensorDesc::new(DType::U64, [ROWS]));
        tensors.maxima = maxima.map(|_| TensorDesc::new(DType::F32, [ROWS]));
        tensors.min_p = Some(TensorDesc::new(DType::F32, [ROWS]));
        tensors.forced = Some(TensorDesc::new(DType::I32, [ROWS]));
    } else {
        tensors.tokens = TensorDesc::new(DType::I32, [ROWS, 0]);
        tensors.largest = Some(TensorDesc::new(DType::F32, [ROWS]));
    }
    let op = handle.create(&sample, &tensors)?;
    let mut workspace = op.workspace(handle)?;
    let positions: Vec<i64> = (0..ROWS as i64).map(|row| row * 31 - 40).collect();
    let temperature: Vec<f32> = (0..ROWS).map(|row| [0.8, 1.3, 0.0][row % 3]).collect();
    let seeds: Vec<u64> = (0..ROWS as u64).map(|row| row % 5 + (row << 40)).collect();
    let min_p: Vec<f32> = (0..ROWS).map(|row| [0.0, 0.02][row % 2]).collect();
    let forced: Vec<i32> =
        (0..ROWS).map(|row| if row % 11 == 3 { (row * 14) as i32 } else { -1 }).collect();
    let (logits, positions) = (handle.upload(&columns.logits)?, handle.upload(&positions)?);
    let (temperature, seeds) = (handle.upload(&temperature)?, handle.upload(&seeds)?);
    let (mask, min_p) = (handle.upload(&mask())?, handle.upload(&min_p)?);
    let forced = handle.upload(&forced)?;
    let maxima = maxima.map(|maxima| handle.upload(maxima)).transpose()?;
    let mut tokens = handle.allocate::<i32>(if draws { ROWS } else { 0 })?;
    let mut winners = handle.allocate::<u64>(ROWS)?;
    let mut largest = handle.allocate::<f32>(ROWS)?;
    let mut buffers = Buffers::new(
        logits.view(),
        positions.view(),
        temperature.view(),
        seeds.view(),
        tokens.view_mut(),
    )
    .mask(mask.view());
    if draws {
        buffers = buffers.min_p(min_p.view()).forced(forced.view());
        buffers = buffers.winners(winners.view_mut());
        buffers.maxima = maxima.as_ref().map(|maxima| maxima.view());
    } else {
        buffers = buffers.largest(largest.view_mut());
    }
    op.call(&mut workspace, buffers)?;
    if draws {
        Ok((winners.to_vec()?, tokens.to_vec()?, Vec::new()))
    } else {
        Ok((Vec::new(), Vec::new(), largest.to_vec()?))
    }
}

/// The ranks' largest logits reduced by MAX, then their winners by MIN.
fn reduced(handle: &Handle, ranks: &[Columns]) -> Result<Vec<u64>> {
    let mut maxima = vec![f32::NEG_INFINITY; ROWS];
    for rank in ranks {
        let (_, _, largest) = call(handle, rank, None, false)?;
        maxima.iter_mut().zip(largest).for_each(|(max, own)| *max = max.max(own));
    }
    let mut winners = vec![u64::MAX; ROWS];
    for rank in ranks {
        let (own, ..) = call(handle, rank, Some(&maxima), true)?;
        winners.iter_mut().zip(own).for_each(|(least, own)| *least = (*least).min(own));
    }
    Ok(winners)
}

/// Shards may begin at any token, also within a group of 64 tokens, and have any length.
#[test]
fn ranks_find_the_winner_of_the_whole_row() -> Result<()> {
    let logits = logits();
    let ends = [
        vec![350, 700],
        vec![64, 128, 700],
        vec![1, 90, 91, 500, 700],
        vec![88, 175, 263, 350, 438, 525, 613, 700],
    ];
    for handle in crate::common::handles() {
        let (whole, tokens, _) = call(&handle, &part(&logits, 0, VOCAB), None, true)?;
        for (winner, token) in whole.iter().zip(&tokens) {
            assert_eq!(*winner as u32 as i32, *token);
        }
        for ends in &ends {
            let firsts = std::iter::once(&0).chain(ends);
            let ranks: Vec<Columns> =
                firsts.zip(ends).map(|(&first, &end)| part(&logits, first, end)).collect();
            assert_eq!(reduced(&handle, &ranks)?, whole, "{ends:?} on {}", handle.device());
        }
        // Without the other ranks' largest logits, a rank's winner is its own.
        let (own, ..) = call(&handle, &part(&logits, 350, VOCAB), None, true)?;
        assert!(own.iter().zip(&whole).any(|(own, whole)| own != whole));
    }
    Ok(())
}
