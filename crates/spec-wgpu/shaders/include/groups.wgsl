//!include floats
// The largest of each group of 64 neighbouring entries of a chunk, by a workgroup of 256 threads.
//
// 32 threads have a group: two entries each, so that neighbours read neighbours. What they make
// of the two is kept for up to 64 groups at a time, and then reduced. The including shader declares
// DTYPE, the type of the entries.

const GROUP_LANES = 32u;
const TILE_GROUPS = 64u;

var<workgroup> tile_values: array<u32, TILE_GROUPS * GROUP_LANES>;
var<workgroup> quarter_values: array<u32, 256>;

// How far the second of a lane's entries is behind the first. Two halves of one word are neighbours.
fn pair_step() -> u32 {
    return select(1u, GROUP_LANES, DTYPE == F32);
}

// The columns of a lane's entries of a group.
fn pair_at(group: u32, lane: u32) -> vec2<u32> {
    let first = group * 64u + lane * select(2u, 1u, DTYPE == F32);
    return vec2(first, first + pair_step());
}

// Notes what a lane has of a group of a tile.
fn note_pair(tile_group: u32, lane: u32, value: u32) {
    tile_values[tile_group * GROUP_LANES + lane] = value;
}

// The largest of a tile's group, for the first TILE_GROUPS threads. Every thread calls it, before
// the next tile too.
fn largest_of_tile(thread: u32) -> u32 {
    workgroupBarrier();
    // A quarter of a group a thread; neighbours begin at other entries, and so at other banks.
    var most = 0u;
    for (var j = 0u; j < 8u; j++) {
        most = max(most, tile_values[thread * 8u + (j + thread / 4u) % 8u]);
    }
    quarter_values[thread] = most;
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
