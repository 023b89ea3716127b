use crate::Rng;
use crate::case::{Case, Subject};
use crate::plain;
use crate::tensor::Tensor;
use spec_core::ops::indexer_topk::{IndexerTopk, MAX_K, MAX_POOL};
use spec_core::{DType, Result};

/// Columns of a long row.
const LONG: usize = 1 << 17;

impl Subject for IndexerTopk {
    const GOLDEN: &'static str = include_str!("../../golden/indexer_topk.json");

    fn plain(plan: &Self::Plan, buffers: Self::Buffers<'_>) -> Result<()> {
        plain::indexer_topk::run(plan, buffers)
    }

    fn examples() -> Vec<Case<Self>> {
        let scores = [
            [0.0, 0.5, -0.0, 0.5, 0.0, 2.0],
            [1.0; 6],
            [f32::NAN, -1.0, f32::NAN, f32::NEG_INFINITY, -2.0, f32::NAN],
            [9.0, 8.0, 1.0, 3.0, 2.0, 7.0],
            [9.0, 8.0, 1.0, 3.0, 2.0, 7.0],
        ];
        // The last row starts at its third score, and its length is beyond the row. Blocks have
        // two positions: the second row and the last one lack a block.
        let case = Case::new(IndexerTopk::new(4).block_size(2))
            .input("scores", scores)
            .input("lengths", [6, 6, 6, 3, 9])
            .input("starts", [0, 0, 0, 1, 2])
            .output("indices", DType::I32)
            .output("values", DType::F32)
            .input("block_table", [[7, 2, 5], [4, 0, -1], [0, 1, 2], [9, 8, 7], [6, -3, 0]])
            .output("slots", DType::I32);
        vec![case.in_place("flags", [0_u32]), example_of_blocks(), example_of_candidates()]
    }

    fn random(rng: &mut Rng) -> Case<Self> {
        // Rare rows are longer than the memory of a thread block or workgroup holds at once. Others
        // are so long that a kernel may look at a part of a row before it reads the rest.
        let (rows, cols) = match () {
            () if rng.rare(100) => (rng.between(1, 2), rng.between(20_000, 90_000)),
            () if rng.rare(29) => match rng.pick(&[1, 1, 1, 2, 2, 4]) {
                1 => (1, rng.between(LONG, 2 * LONG)),
                rows => (rows, LONG + rng.below(300)),
            },
            () if rng.rare(17) => (rng.size(9), rng.between(1000, 17_000)),
            () => (rng.size(12), rng.size(600)),
        };
        // A large k is rare, because it makes outputs as wide as long rows.
        let k = if rng.rare(12) || rows <= 1 && rng.chance(3) {
            rng.pick(&[1, 2, 16, 64, 100, 512, 2048, MAX_K])
        } else {
            rng.pick(&[1, 2, 16, 64, 100])
        };
        let style = match cols < LONG {
            true => rng.below(8),
            false => rng.pick(&[0, 2, 5, 6, 7, 7, 8, 8]),
        };
        // Positions, blocks, or columns of candidates.
        let kind = rng.pick(&[0, 0, 1, 1, 2]);
        let candidate_block = rng.pick(&[1, 1, 2, 3, 8, 8, 64, MAX_POOL]);
        let cols = if kind == 2 { cols / candidate_block * candidate_block } else { cols };
        let values = scores(rng, style, rows, cols);
        let dtype = rng.float_dtype();
        let scores = Tensor::matrix(Rng::floats(dtype, values), rows, cols);
        let block_size = rng.pick(&[1, 2, 7, 16, 64, 256]);
        let mut operator = IndexerTopk::new(k).block_size(block_size);
        if kind == 1 {
            operator = with_blocks(operator, rng, cols);
        }
        let mut items = cols.div_ceil(operator.pool);
        let mut case = Case::new(operator).input("scores", scores);
        if kind == 2 {
            case.operator.candidate_block = candidate_block;
            items = 2 * cols;
            case = with_candidates(case, rng, rows, cols);
        } else {
            case = with_ranges(case, rng, rows, cols);
        }
        case = case.output("indices", rng.id_dtype());
        if rng.chance(2) {
            case = case.output("values", DType::F32);
        }
        if rng.chance(2) {
            case = paged(case, rng, rows, items).output("slots", DType::I32);
        }
        case.in_place("flags", Tensor::vector(rng.flags()))
    }
}

/// Blocks of four scores; of the second row, the only block is forced twice.
fn example_of_blocks() -> Case<IndexerTopk> {
    let scores = [
        [1.0, 0.0, 7.0, 0.5, f32::NAN, -1.0, -2.0, 9.0, 3.0, 3.0],
        [-0.0, -1.0, f32::NAN, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    ];
    let operator = IndexerTopk::new(3).pool(4).forced_first(1).forced_last(1);
    let case = Case::new(operator)
        .input("scores", scores)
        .input("lengths", [10, 3])
        .output("indices", DType::I32)
        .output("values", DType::F32);
    case.in_place("flags", [0_u32])
}

/// Candidates of two positions; the third of the second row is bad.
fn example_of_candidates() -> Case<IndexerTopk> {
    let scores = [[1.0, 0.0, 7.0, 0.5, 9.0, -1.0], [1.0, 1.0, 1.0, 1.0, f32::NAN, 1.0]];
    let case = Case::new(IndexerTopk::new(3).candidate_block(2))
        .input("scores", scores)
        .input("lengths", [9, 100])
        .input("candidates", [[0, 2, 4], [30, -1, -7]])
        .output("indices", DType::I32)
        .output("values", DType::F32);
    case.in_place("flags", [0_u32])
}

/// The operator with blocks of several scores, forced blocks, or both.
fn with_blocks(operator: IndexerTopk, rng: &mut Rng, cols: usize) -> IndexerTopk {
    let pool = if cols < 5000 && rng.chance(8) { MAX_POOL } else { rng.pick(&[1, 1, 2, 4, 8, 64]) };
    let k = operator.k;
    let first = rng.pick(&[0, 1, 2, k / 3, k]).min(k);
    let last = rng.pick(&[0, 1, 3, k / 2, k]).min(k - first);
    let (first, last) = if rng.chance(4) { (0, 0) } else { (first, last) };
    operator.pool(pool).forced_first(first).forced_last(last)
}

/// The case with lengths and starts of 32 or 64 bits, some of them beyond the row.
fn with_ranges(
    mut case: Case<IndexerTopk>,
    rng: &mut Rng,
    rows: usize,
    cols: usize,
) -> Case<IndexerTopk> {
    let mut some = |case: Case<IndexerTopk>, name, max: usize| {
        let bad = rng.chance(4);
        let vector = (0..rows).map(|_| match (bad, rng.below(6)) {
            (true, 0) => rng.pick(&[-1, i64::from(i32::MIN), i64::from(i32::MAX)]),
            (true, 1) => (cols + 1 + rng.below(5)) as i64,
            _ => rng.between(0, max) as i64,
        });
        let vector = vector.collect();
        case.input(name, Tensor::vector(Rng::integers(rng.int_dtype(), vector)))
    };
    let (lengths, starts) = (cols.is_multiple_of(2), cols.is_multiple_of(3));
    if lengths {
        case = some(case, "lengths", cols - if starts { cols / 4 } else { 0 });
    }
    if starts {
        case = some(case, "starts", cols / 4);
    }
    case
}

/// The case with candidates of positions below twice the columns: ascending or not, distinct or
/// not, some missing; and often with lengths. Sometimes some of both are bad.
fn with_candidates(
    case: Case<IndexerTopk>,
    rng: &mut Rng,
    rows: usize,
    cols: usize,
) -> Case<IndexerTopk> {
    let block = case.operator.candidate_block;
    let c = cols / block;
    let (style, is_bad) = (rng.below(4), rng.chance(3));
    // The last candidate whose positions are all below 2^31.
    let last = ((1_usize << 31) / block - 1) as i32;
    let mut candidates = Vec::with_capacity(rows * c);
    for _ in 0..rows {
        let mut row: Vec<i32> = match style {
            // Every second block, or its neighbour.
            0 => (0..c).map(|i| (2 * i + rng.below(2)) as i32).collect(),
            1 => rng.permutation(c).into_iter().map(|i| i as i32).collect(),
            _ => (0..c).map(|_| rng.below(2 * c) as i32).collect(),
        };
        let kept = if rng.chance(2) { c } else { rng.between(0, c) };
        row[kept..].fill(-1);
        for candidate in &mut row {
            if is_bad && rng.chance(20) {
                *candidate = rng.pick(&[-1, -2, i32::MIN, i32::MAX, last, last.saturating_add(1)]);
            }
        }
        candidates.extend(row);
    }
    let case = case.input("candidates", Tensor::matrix(candidates, rows, c));
    if rng.chance(3) {
        return case;
    }
    let mut lengths: Vec<i64> = (0..rows)
        .map(|_| match is_bad && rng.chance(4) {
            true => rng.pick(&[-1, i64::from(i32::MIN), i64::from(i32::MAX)]),
            false => rng.between(0, 2 * cols + 1) as i64,
        })
        .collect();
    let dtype = rng.int_dtype();
    if dtype == DType::I64 && is_bad {
        rng.beyond_32_bits(&mut lengths);
    }
    case.input("lengths", Tensor::vector(Rng::integers(dtype, lengths)))
}

/// The case with a paged cache of `cols` positions or blocks. There is a table for each row, or for each request that rows name.
/// Sometimes blocks are missing or invalid.
fn paged(case: Case<IndexerTopk>, rng: &mut Rng, rows: usize, cols: usize) -> Case<IndexerTopk> {
    let mapped = rng.chance(2);
    let tables = if mapped { rng.size(5) } else { rows };
    let size = case.operator.block_size;
    // Blocks for all positions of a row, for some of them, or more than needed.
    let needed = cols.div_ceil(size);
    let blocks = rng.pick(&[needed, needed, needed + 3, needed / 2]);
    let is_bad = rng.chance(3);
    // The last block whose slots all fit an i32, and the first one whose last slot does not.
    let last = ((1_usize << 31) / size - 1) as i32;
    let bad = [-1, i32::MIN, i32::MAX, last.saturating_add(1), last];
    let table = (0..tables * blocks).map(|_| match is_bad && rng.chance(20) {
        true => rng.pick(&bad),
        false => rng.below(100_000) as i32,
    });
    let table = Tensor::matrix(table.collect::<Vec<i32>>(), tables, blocks);
    let case = case.input("block_table", table);
    if !mapped {
        return case;
    }
    let requests = (0..rows).map(|_| match tables == 0 || is_bad && rng.chance(5) {
        true => rng.pick(&[-1, tables as i32, i32::MIN, i32::MAX]),
        false => rng.below(tables) as i32,
    });
    case.input("requests", Tensor::vector(requests.collect::<Vec<i32>>()))
}

/// Rows of scores in one of nine styles.
fn scores(rng: &mut Rng, style: usize, rows: usize, cols: usize) -> Vec<f32> {
    let mut level = rng.normal();
    let burst = rng.between(16, 600);
    let mut values: Vec<f32> = (0..rows * cols)
        .map(|i| match style {
            // Many zeros, as a ReLU gives them; zeros of both signs.
            0 => (rng.normal() - 1.5).max(0.0),
            1 => rng.pick(&[0.0, -0.0, 1.0]),
            // All equal; a few distinct values; values that differ only in their last bits.
            2 => level,
            3 => rng.below(5) as f32 - 2.0,
            4 => f32::from_bits(0x3F80_0000 + rng.below(300) as u32),
            // Ascending; descending.
            5 => i as f32,
            6 => -(i as f32),
            // Bursts of neighbouring scores at the same level.
            8 => {
                if i % burst == 0 {
                    level = 2.0 * rng.normal();
                }
                level + rng.normal()
            }
            _ => rng.normal(),
        })
        .collect();
    if rng.chance(3) && !values.is_empty() {
        for _ in 0..rng.between(1, 1 + values.len() / 4) {
            let at = rng.below(values.len());
            values[at] = rng.bad_float();
        }
    }
    values
}
