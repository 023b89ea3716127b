//! How many blocks own a row in the kernels whose tokens race: `kernels/race.cuh`, `kernels/race_lead.cuh`.

use spec_core::Result;

use crate::cluster::{MAX_CLUSTER, largest};

/// Threads of a block: `SELECT_THREADS`.
pub(super) const THREADS: u32 = 512;

/// Blocks of a long row where there are at least as many rows as multiprocessors.
const SHARING: u32 = 4;

/// Bytes of a long row: between the 250 and the 501 KiB of the table at [`blocks_for_lead`].
const LONG_ROW: usize = 384 << 10;

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
/// With at least as many rows as multiprocessors, the device is busy with one block a row, and a
/// block that reads its row alone has nothing to exchange. But one block takes long to read a long
/// row. Blocks that start together also read together, and then end their rows together, while
/// nothing is read. So a long row has a cluster: all of its blocks but one end once they have read,
/// and blocks of other rows read in their place.
///
/// Two blocks of these kernels fit a multiprocessor, but there they read no faster than one. So a
/// row has a cluster of [`MAX_CLUSTER`] only if no two blocks need to share a multiprocessor.
/// 8 requests of `rejection_sample` with rows of 128,256 f32 take 13.0 us with 16 blocks each on an
/// H100, and 10.5 with 8.
///
/// Plain rows on an H100 (132 multiprocessors), in microseconds with 1, 2 and 4 blocks:
///
/// | Rows | 125 KiB a row    | 250 KiB          | 501 KiB             |
/// |-----:|------------------|------------------|---------------------|
/// |   96 |                  | 20.6, 20.7, 22.9 | 28.8, 29.0, 29.5    |
/// |  132 |                  | 23.6, 25.8, 28.0 | 36.9, 38.5, 36.9    |
/// |  256 | 23.3, 27.0, 33.8 | 39.6, 42.5, 43.6 | 70.4, 65.9, 59.2    |
/// |  512 |                  | 69.9, 72.9, 76.1 | 116.7, 115.8, 105.9 |
///
/// With a `blocks_for_lead` that returns a number at once, `spec-bench sample_logits --device cuda:0
/// --shape rows=256,vocab=128256,filter=plain,dtype=bf16` times this number of blocks for rows of
/// 250 KiB, and `spec-bench rejection_sample --device cuda:0 --shape
/// batch=8,drafts=8,vocab=128256,recovery=sample` times it for recovered tokens.
pub(super) fn blocks_for_lead(
    rows: usize,
    bytes: usize,
    multiprocessors: u32,
    at_once: impl Fn(u32) -> Result<u32>,
) -> Result<u32> {
    if rows < multiprocessors as usize {
        return blocks_for(rows, |blocks| {
            let clusters = at_once(blocks)?;
            Ok(if blocks == MAX_CLUSTER { clusters / 2 } else { clusters })
        });
    }
    if bytes >= LONG_ROW { largest(SHARING, at_once) } else { Ok(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many clusters of so many blocks an H100 runs at a time.
    fn h100(blocks: u32) -> Result<u32> {
        Ok([132, 62, 30, 14][blocks.ilog2() as usize - 1])
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
            let many = if bytes == long { 4 } else { 1 };
            let few = [(0, 16), (7, 16), (8, 8), (32, 4), (64, 2), (131, 2)];
            for (rows, expected) in
                few.into_iter().chain([(132, many), (300, many), (1 << 20, many)])
            {
                let blocks = blocks_for_lead(rows, bytes, 132, h100).unwrap();
                assert_eq!(blocks, expected, "{rows} rows of {bytes} bytes");
            }
        }
        let small = |blocks: u32| Ok(if blocks == 2 { 8 } else { 0 });
        assert_eq!(blocks_for_lead(1000, long, 16, small).unwrap(), 2);
        assert_eq!(blocks_for_lead(1000, long, 16, |_| Ok(0)).unwrap(), 1);
    }
}
