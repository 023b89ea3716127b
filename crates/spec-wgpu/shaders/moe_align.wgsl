//!include params/moe_align
//!include params/shared
//!include integers
//!include scan
// moe_align: groups a router's picks by expert, in stable order, and pads each expert's run to
// whole blocks of the matrix product.
//
// A stable counting sort in four dispatches. A workgroup owns a tile of neighbouring picks; each of
// its threads takes one pick per turn.
//
// * `count`   a workgroup per tile: counts the tile's picks of each expert, in the tile's column of
//             the workspace. Also fills the output with the value that stands for no pick.
// * `sum`     a workgroup per local expert, a thread per tile: replaces each tile's count by the sum
//             over earlier tiles. One thread that went through the tiles would wait for memory at
//             each of them.
// * `lay_out` one workgroup: finds where each expert's run starts, by a prefix sum.
// * `place`   a workgroup per tile: puts each pick behind the picks of the same expert in earlier
//             tiles, in earlier turns, and in earlier threads (which the thread counts one by one).
//             Also writes the expert of each block.
//
// workspace   [locals][tiles] counts, then [locals] sums, then [locals + 1] offsets
//
// Bytes moved: the picks twice, the outputs once, and a tile's counts three times.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read> topk_ids: array<u32>;
@group(0) @binding(3) var<storage, read> expert_map: array<u32>;
@group(0) @binding(4) var<storage, read_write> sorted_ids: array<u32>;
@group(0) @binding(5) var<storage, read_write> block_experts: array<u32>;
// `lay_out` binds counts, offsets and num_padded here; `place` binds the inverse instead.
@group(0) @binding(6) var<storage, read_write> counts: array<u32>;
@group(0) @binding(7) var<storage, read_write> offsets: array<u32>;
@group(0) @binding(8) var<storage, read_write> last: array<atomic<u32>>;

const DROPPED = 0xffffffffu;

var<workgroup> tile_experts: array<u32, THREADS>;

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
}

// The local expert of a pick (DROPPED for none), and flags for bad data.
fn local_of(pick: u32) -> vec2<u32> {
    let place = pick / params.k * params.stride + pick % params.k;
    let at = (params.at.b2 + place) * params.words;
    let expert = integer(topk_ids[at], topk_ids[at + params.words - 1u], params.words);
    if all(expert == vec2(DROPPED)) {
        return vec2(DROPPED, 0u);
    }
    if expert.y != 0u || expert.x >= params.experts {
        return vec2(DROPPED, OUT_OF_RANGE);
    }
    if params.has_map == 0u {
        return vec2(expert.x, 0u);
    }
    let mapped = expert_map[params.at.b3 + expert.x];
    if mapped == DROPPED {
        return vec2(DROPPED, 0u);
    }
    if mapped >= params.locals {
        return vec2(DROPPED, OUT_OF_RANGE);
    }
    return vec2(mapped, 0u);
}

fn counter(tile: u32, expert: u32) -> u32 {
    return params.at.b1 + expert * params.tiles + tile;
}

fn sum_of(expert: u32) -> u32 {
    return counter(0u, params.locals) + expert;
}

fn offset_of(expert: u32) -> u32 {
    return sum_of(params.locals) + expert;
}

@compute @workgroup_size(THREADS)
fn count(me: Invocation) {
    let tile = group_index(me.group, me.groups);
    if tile >= params.at.groups {
        return;
    }
    // A workgroup without a tile has no counters; it only fills the outputs.
    if tile < params.tiles {
        for (var e = me.thread; e < params.locals; e += THREADS) {
            atomicStore(&work[counter(tile, e)], 0u);
        }
    }
    storageBarrier();
    var bits = 0u;
    for (var turn = 0u; turn < params.turns; turn++) {
        let pick = (tile * params.turns + turn) * THREADS + me.thread;
        if pick < params.picks {
            let found = local_of(pick);
            bits |= found.y;
            if found.x != DROPPED {
                atomicAdd(&work[counter(tile, found.x)], 1u);
            }
        }
    }
    if bits != 0u && params.has_flags != 0u {
        atomicOr(&last[params.at.b8], bits);
    }
    for (var i = tile * THREADS + me.thread; i < params.capacity; i += params.at.groups * THREADS) {
        sorted_ids[params.at.b4 + i] = params.picks;
    }
}

@compute @workgroup_size(THREADS)
fn sum(me: Invocation) {
    let expert = group_index(me.group, me.groups);
    if expert >= params.locals {
        return;
    }
    var before = 0u;
    for (var first = 0u; first < params.tiles; first += THREADS) {
        let tile = first + me.thread;
        var own = 0u;
        if tile < params.tiles {
            own = atomicLoad(&work[counter(tile, expert)]);
        }
        let in_turn = scan_exclusive(me.thread, own);
        if tile < params.tiles {
            atomicStore(&work[counter(tile, expert)], before + in_turn);
        }
        before += scan_total();
    }
    if me.thread == 0u {
        atomicStore(&work[sum_of(expert)], before);
    }
}

// The padded length of an expert's run.
fn run_of(expert: u32) -> u32 {
    let sum = atomicLoad(&work[sum_of(expert)]);
    return (sum + params.block_size - 1u) / params.block_size * params.block_size;
}

@compute @workgroup_size(THREADS)
fn lay_out(me: Invocation) {
    let share = (params.locals + THREADS - 1u) / THREADS;
    let first = min(me.thread * share, params.locals);
    let end = min(first + share, params.locals);
    var own = 0u;
    for (var e = first; e < end; e++) {
        own += run_of(e);
    }
    var at = scan_exclusive(me.thread, own);
    for (var e = first; e < end; e++) {
        counts[params.at.b6 + e] = atomicLoad(&work[sum_of(e)]);
        offsets[params.at.b7 + e] = at;
        atomicStore(&work[offset_of(e)], at);
        at += run_of(e);
    }
    if me.thread == 0u {
        let padded = scan_total();
        offsets[params.at.b7 + params.locals] = padded;
        atomicStore(&work[offset_of(params.locals)], padded);
        atomicStore(&last[params.at.b8], padded);
    }
}

// The expert of the block at `place`: the last expert whose run starts at or before it.
fn expert_at(place: u32) -> u32 {
    var low = 0u;
    var high = select(0u, params.locals, place < atomicLoad(&work[offset_of(params.locals)]));
    while low < high {
        let middle = (low + high) / 2u;
        if atomicLoad(&work[offset_of(middle)]) <= place {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low - 1u;
}

@compute @workgroup_size(THREADS)
fn place(me: Invocation) {
    let tile = group_index(me.group, me.groups);
    if tile >= params.at.groups {
        return;
    }
    for (var turn = 0u; turn < params.turns; turn++) {
        let pick = (tile * params.turns + turn) * THREADS + me.thread;
        var local = DROPPED;
        if pick < params.picks {
            local = local_of(pick).x;
        }
        tile_experts[me.thread] = local;
        workgroupBarrier();
        var before = 0u;
        var after = 0u;
        if local != DROPPED {
            for (var i = 0u; i < THREADS; i++) {
                let same = select(0u, 1u, tile_experts[i] == local);
                before += select(0u, same, i < me.thread);
                after += select(0u, same, i > me.thread);
            }
        }
        var to = DROPPED;
        if local != DROPPED {
            let turns_before = atomicLoad(&work[counter(tile, local)]);
            to = atomicLoad(&work[offset_of(local)]) + turns_before + before;
            sorted_ids[params.at.b4 + to] = pick;
        }
        if pick < params.picks && params.has_inverse != 0u {
            counts[params.at.b6 + pick] = to;
        }
        // All threads have read the counters before the last pick of each expert counts this turn.
        storageBarrier();
        workgroupBarrier();
        if local != DROPPED && after == 0u {
            atomicAdd(&work[counter(tile, local)], before + 1u);
        }
        storageBarrier();
        workgroupBarrier();
    }
    for (var b = tile * THREADS + me.thread; b < params.blocks; b += params.at.groups * THREADS) {
        block_experts[params.at.b5 + b] = expert_at(b * params.block_size);
    }
}
