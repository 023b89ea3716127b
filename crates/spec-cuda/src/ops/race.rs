//! The number of blocks of a row in the kernels whose tokens race: `kernels/race.cuh`,
//! `kernels/race_leader_block.cuh`.

#[cfg(test)]
use spec_conformance::launch_params::Header;
use spec_core::ops::sample_logits;
use spec_core::philox::Purpose;
use spec_core::{Result, launch_params, race};

use crate::cluster::largest;
use crate::shape::MAX_CLUSTER;

launch_params! {
    /// Threads of each block of the kernels whose tokens race.
    pub(super) const SELECT_THREADS: u32 = 512;
    /// Tokens whose noise is drawn together.
    pub(super) const GROUP: usize = race::GROUP;
    /// Index of the first Philox block with the low bits of a group's least noise.
    const GROUP_BLOCKS: u32 = race::GROUP_BLOCKS;
    /// Index of the first Philox block with the differences between tokens' noise and the least noise.
    const TOKEN_BLOCKS: u32 = race::TOKEN_BLOCKS;
    /// Lower bounds are multiplied by this factor. It covers the errors of the approximate functions
    /// and the roundings of the exact functions several times over.
    const BOUND_SLACK: f32 = race::BOUND_SLACK;
    /// The largest number of tokens that a row draws.
    const MAX_DRAWS: usize = sample_logits::MAX_DRAWS;
    /// The kinds of decisions that random numbers make: which token is sampled, whether a draft is
    /// accepted, and which token replaces a rejected draft.
    const PURPOSE_SAMPLE: u32 = Purpose::Sample as u32;
    const PURPOSE_ACCEPT: u32 = Purpose::Accept as u32;
    const PURPOSE_RECOVER: u32 = Purpose::Recover as u32;
}

#[cfg(test)]
pub(super) const HEADER: Header =
    Header { name: "race", includes: &["common.cuh"], structs: &[CONSTANTS] };

/// Blocks of a long row where there are at least as many rows as multiprocessors.
const SHARING: u32 = 4;

/// Bytes of a long row: between the 250 and the 501 KiB of the table at [`blocks_for_leader`].
const LONG_ROW: usize = 384 << 10;

/// Tokens of a block where a row's blocks stay and rows wait for others: see [`blocks_that_stay`].
const KEPT: usize = 32 << 10;

/// How many blocks own a row: the largest cluster of which the device runs at least `rows` at a
/// time, so that no row waits for another. `at_once(blocks)` is the number of clusters of so many
/// blocks that the device runs at a time.
pub(super) fn blocks_for(rows: usize, at_once: impl Fn(u32) -> Result<u32>) -> Result<u32> {
    for blocks in [MAX_CLUSTER, 8, 4, 2] {
        if rows.max(1) <= at_once(blocks)? as usize {
            return Ok(blocks);
        }
    }
    Ok(1)
}

/// How many blocks own a row of so many bytes where one block ends the row alone, as in the kernels
/// of plain rows and of recovered tokens. `at_once` is that of [`blocks_for`].
///
/// With at least as many rows as multiprocessors, the device is busy with one block per row, and a
/// block that reads its row alone has nothing to exchange. But one block takes long to read a long
/// row. Blocks that start together also read together, and then end their rows together, while
/// nothing is read. So a long row has a cluster: all of its blocks but one end once they have read,
/// and blocks of other rows read in their place.
///
/// `sharing` blocks of the kernel fit a multiprocessor, but there they read no faster than one. So a
/// row has a cluster of [`MAX_CLUSTER`] only if no two blocks need to share a multiprocessor.
///
/// On an H100 (132 multiprocessors), in microseconds with 1, 2 and 4 blocks, plain rows:
///
/// | Rows | 125 KiB per row    | 250 KiB          | 501 KiB           |
/// |-----:|------------------|------------------|-------------------|
/// |   96 | 13.5, 14.9, 17.8 | 18.9, 19.1, 20.4 | 26.5, 27.7, 26.8  |
/// |  132 | 15.2, 16.3, 21.5 | 22.1, 22.7, 24.9 | 34.2, 34.9, 33.9  |
/// |  256 | 22.3, 25.6, 35.2 | 33.8, 35.9, 38.1 | 62.3, 58.7, 52.6  |
/// |  512 | 35.3, 42.5, 61.7 | 57.7, 58.9, 66.1 | 100.8, 99.8, 93.6 |
///
/// and recovered tokens, whose target and draft are rows of 501 KiB each (`rejection_sample`):
///
/// | Requests | Blocks: microseconds                 |
/// |---------:|--------------------------------------|
/// |        8 | 8: 10.3, 16: 13.6                    |
/// |       24 | 2: 16.3, 4: 16.0                     |
/// |       48 | 1: 25.9, 2: 25.6, 4: 26.9            |
/// |       64 | 1: 31.0, 2: 30.8, 4: 33.5            |
/// |      256 | 1: 100.9, 2: 101.9, 4: 101.2, 8: 135 |
///
/// With a `blocks_for_leader` that returns a number at once, `spec-bench sample_logits --device cuda:0
/// --shape rows=256,vocab=128256,filter=plain,dtype=bf16` times this number of blocks for rows of
/// 250 KiB, and `spec-bench rejection_sample --device cuda:0 --shape
/// batch=8,drafts=8,vocab=128256,recovery=sample` times it for recovered tokens.
pub(super) fn blocks_for_leader(
    rows: usize,
    bytes: usize,
    multiprocessors: u32,
    sharing: u32,
    at_once: impl Fn(u32) -> Result<u32>,
) -> Result<u32> {
    if rows < multiprocessors as usize {
        return blocks_for(rows, |blocks| {
            let clusters = at_once(blocks)?;
            Ok(if blocks == MAX_CLUSTER { clusters / sharing } else { clusters })
        });
    }
    if bytes >= LONG_ROW { largest(SHARING, at_once) } else { Ok(1) }
}

/// How many blocks own a row in a kernel whose blocks all stay until the row ends, as in the kernel
/// that writes the probabilities of plain rows. `at_once` is that of [`blocks_for`], and `sharing`
/// that of [`blocks_for_leader`].
///
/// While all rows can run at once, a row has as many blocks as let them: any number of 3 to 8, or
/// [`MAX_CLUSTER`] if no two blocks need to share a multiprocessor. Where rows have to wait for
/// others, a block has [`KEPT`] tokens, of which the shared memory of half a multiprocessor holds
/// most, and a row has [`SHARING`] blocks at most: blocks wait for each other.
///
/// On an H100 (132 multiprocessors), rows of f32:
///
/// | Rows | Tokens  | Blocks: microseconds                              |
/// |-----:|--------:|---------------------------------------------------|
/// |    1 | 151,936 | 8: 15.2, 16: 12.7                                 |
/// |    8 | 128,256 | 7: 17.2, 8: 16.4, 16: 17.2                        |
/// |   16 | 128,256 | 7: 23.3, 8: 21.4                                  |
/// |   24 | 128,256 | 7: 27.3, 8: 25.3                                  |
/// |   32 | 128,256 | 4: 36.3, 5: 33.2, 6: 32.1, 7: 30.6, 8: 33.0       |
/// |   64 | 128,256 | 2: 59.9, 3: 49.1, 4: 58.4                         |
/// |  128 | 128,256 | 2: 105.4, 3: 99.8, 4: 96.6                        |
/// |  256 | 128,256 | 1: 227.9, 2: 204.2, 3: 174.0, 4: 168.1, 8: 179.1  |
/// |  128 |  32,000 | 1: 30.0, 2: 31.0, 4: 39.1                         |
///
/// In these measurements the kernel did not yet ask that what it reads for the last time leave the
/// second-level cache first, which saves 1 to 5 %. With a `blocks_that_stay` that returns a number
/// at once, `spec-bench sample_logits --device cuda:0 --shape
/// rows=32,vocab=128256,filter=plain,wants=probs` times this number of blocks.
pub(super) fn blocks_that_stay(
    rows: usize,
    vocab: usize,
    sharing: u32,
    at_once: impl Fn(u32) -> Result<u32>,
) -> Result<u32> {
    let rows = rows.max(1);
    if rows <= (at_once(MAX_CLUSTER)? / sharing) as usize {
        return Ok(MAX_CLUSTER);
    }
    for blocks in (3..=8).rev() {
        if rows <= at_once(blocks)? as usize {
            return Ok(blocks);
        }
    }
    largest(vocab.div_ceil(KEPT).clamp(1, SHARING as usize) as u32, at_once)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many clusters of so many blocks an H100 runs at a time.
    fn h100(blocks: u32) -> Result<u32> {
        let clusters = [(2, 132), (3, 79), (4, 62), (5, 47), (6, 39), (7, 32), (8, 30), (16, 14)];
        Ok(clusters.iter().find(|&&(size, _)| size == blocks).expect("a cluster's size").1)
    }

    #[test]
    fn no_row_waits_while_smaller_teams_are_left() {
        for (rows, expected) in [(0, 16), (14, 16), (15, 8), (62, 4), (63, 2), (133, 1)] {
            assert_eq!(blocks_for(rows, h100).unwrap(), expected, "{rows} rows");
        }
        assert_eq!(blocks_for(1, |_| Ok(0)).unwrap(), 1);
    }

    #[test]
    fn blocks_share_long_rows_where_every_multiprocessor_has_one() {
        let long = 128_256 * 4;
        for bytes in [32_000 * 4, 128_256 * 2, long] {
            let busy = if bytes == long { 4 } else { 1 };
            let fewer_rows = [(0, 16), (7, 16), (8, 8), (32, 4), (64, 2), (131, 2)];
            for (rows, expected) in
                fewer_rows.into_iter().chain([(132, busy), (300, busy), (1 << 20, busy)])
            {
                let blocks = blocks_for_leader(rows, bytes, 132, 2, h100).unwrap();
                assert_eq!(blocks, expected, "{rows} rows of {bytes} bytes");
            }
        }
        // With one block a multiprocessor.
        let alone = |blocks: u32| Ok([66, 30, 15, 7][blocks.ilog2() as usize - 1]);
        for (rows, expected) in [(7, 16), (8, 8), (24, 4), (32, 2), (64, 2), (100, 1), (256, 4)] {
            let blocks = blocks_for_leader(rows, long, 132, 1, alone).unwrap();
            assert_eq!(blocks, expected, "{rows} rows");
        }
        let small = |blocks: u32| Ok(if blocks == 2 { 8 } else { 0 });
        assert_eq!(blocks_for_leader(1000, long, 16, 2, small).unwrap(), 2);
        assert_eq!(blocks_for_leader(1000, long, 16, 2, |_| Ok(0)).unwrap(), 1);
    }

    #[test]
    fn blocks_that_stay_run_at_once_while_they_can() {
        for vocab in [32_000_usize, 64_000, 128_256, 262_144] {
            for (rows, expected) in [
                (0, 16),
                (7, 16),
                (8, 8),
                (30, 8),
                (32, 7),
                (39, 6),
                (47, 5),
                (62, 4),
                (79, 3),
                (80, vocab.div_ceil(KEPT).min(4) as u32),
            ] {
                let blocks = blocks_that_stay(rows, vocab, 2, h100).unwrap();
                assert_eq!(blocks, expected, "{rows} rows of {vocab} tokens");
            }
        }
        // A device that runs clusters of two blocks, or none.
        let small = |blocks: u32| Ok(if blocks == 2 { 8 } else { 0 });
        assert_eq!(blocks_that_stay(1, 128_256, 2, small).unwrap(), 2);
        assert_eq!(blocks_that_stay(1, 32_000, 2, small).unwrap(), 1);
        assert_eq!(blocks_that_stay(0, 128_256, 2, |_| Ok(0)).unwrap(), 1);
    }
}
