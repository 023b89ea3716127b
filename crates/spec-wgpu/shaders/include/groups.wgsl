//!include floats
// The largest of each group of 64 neighbouring entries of a chunk, by a workgroup of 256 threads.
//
// 32 threads handle a group, with two entries each, so that neighbouring threads read neighbouring
// entries. The result of each thread's two entries is kept for up to 64 groups at a time, and then
// reduced. The including shader declares DTYPE, the type of the entries.

const GROUP_LANES = 32u;
const TILE_GROUPS = 64u;

var<workgroup> tile_values: array<u32, TILE_GROUPS * GROUP_LANES>;
var<workgroup> quarter_values: array<u32, 256>;

// The distance from a lane's first entry to its second. Two halves of one word are neighbours.
fn pair_step() -> u32 {
    return select(1u, GROUP_LANES, DTYPE == F32);
}

// The columns of a lane's entries of a group.
fn pair_at(group: u32, lane: u32) -> vec2<u32> {
    let first = group * 64u + lane * select(2u, 1u, DTYPE == F32);
    return vec2(first, first + pair_step());
}

// Stores a lane's value for a group of a tile.
fn note_pair(tile_group: u32, lane: u32, value: u32) {
    tile_values[tile_group * GROUP_LANES + lane] = value;
}

// The largest value of a tile's group, for the first TILE_GROUPS threads. Every thread must call
// this function, and again before the next tile.
fn largest_of_tile(thread: u32) -> u32 {
    workgroupBarrier();
    // Each thread reduces a quarter of a group. Neighbouring threads begin at different entries,
    // and so at different memory banks.
    var largest = 0u;
    for (var j = 0u; j < 8u; j++) {
        largest = max(largest, tile_values[thread * 8u + (j + thread / 4u) % 8u]);
    }
    quarter_values[thread] = largest;
    workgroupBarrier();
    if thread >= TILE_GROUPS {
        return 0u;
    }
    let at = thread * 4u;
    return max(
        max(quarter_values[at], quarter_values[at + 1u]),
        max(quarter_values[at + 2u], quarter_values[at + 3u]),
    );
}
