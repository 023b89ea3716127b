// `unique` by buckets: each bucket is sorted in workgroup memory. This file is a part of unique.wgsl
// and uses its declarations and those of unique_buckets.wgsl, unique_survey.wgsl (`fullest`) and
// unique_partition.wgsl (`held`).

// ---- sort_buckets ----------------------------------------------------------

// Bins with more keys than this are not ordered key by key.
const MAX_ORDERED = 32u;

// The number of keys of each bin; later where the bin begins.
var<workgroup> bins: array<atomic<u32>, BINS>;

fn bin_of(map: Map, key: vec2<u32>) -> u32 {
    return bucket_of(map, key).x >> BIN_SHIFT;
}

// The bin of a key in the high half; in the low half, the key's number in this bin.
fn bin_rank(map: Map, there: bool, key: vec2<u32>) -> u32 {
    let bin = bin_of(map, key);
    if there {
        return (bin << 16u) | atomicAdd(&bins[bin], 1u);
    }
    return 0u;
}

fn bin_four(map: Map, four: Four, len: u32, i: u32) -> vec4<u32> {
    let a = bin_rank(map, i < len, vec2(four.low.x, four.high.x));
    let b = bin_rank(map, i + THREADS < len, vec2(four.low.y, four.high.y));
    let c = bin_rank(map, i + 2u * THREADS < len, vec2(four.low.z, four.high.z));
    let d = bin_rank(map, i + 3u * THREADS < len, vec2(four.low.w, four.high.w));
    return vec4(a, b, c, d);
}

fn place(there: bool, rank: u32, key: vec2<u32>) {
    if there {
        held[atomicLoad(&bins[rank >> 16u]) + (rank & 0xffffu)] = stored_of(key);
    }
}

fn place_four(len: u32, four: Four, ranks: vec4<u32>, i: u32) {
    place(i < len, ranks.x, vec2(four.low.x, four.high.x));
    place(i + THREADS < len, ranks.y, vec2(four.low.y, four.high.y));
    place(i + 2u * THREADS < len, ranks.z, vec2(four.low.z, four.high.z));
    place(i + 3u * THREADS < len, ranks.w, vec2(four.low.w, four.high.w));
}

fn held_order(i: u32) -> vec2<u32> {
    return ordered(key_of(held[i]), params.sign);
}

// Sorts the held keys by a bitonic network, over the next power of two from `len` on.
fn sort_held(len: u32, thread: u32) {
    var size = 2u;
    while size < len {
        size <<= 1u;
    }
    // The padding is above all keys, or equal to the highest.
    let largest = stored_of(ordered(vec2(0xffffffffu), params.sign));
    for (var i = len + thread; i < size; i += THREADS) {
        held[i] = largest;
    }
    workgroupBarrier();
    for (var run = 2u; run <= size; run <<= 1u) {
        for (var gap = run / 2u; gap > 0u; gap >>= 1u) {
            for (var i = thread; i < size / 2u; i += THREADS) {
                let a = 2u * i - (i & (gap - 1u));
                let b = a + gap;
                let down = (a & run) != 0u;
                if u64_less(held_order(b), held_order(a)) != down {
                    let stored = held[a];
                    held[a] = held[b];
                    held[b] = stored;
                }
            }
            workgroupBarrier();
        }
    }
}

// Orders a few keys by insertion: each key goes behind the earlier keys that are not above it.
fn order_held(begin: u32, end: u32) {
    if begin == end {
        return;
    }
    var highest = held_order(begin);
    for (var i = begin + 1u; i < end; i++) {
        let order = held_order(i);
        if !u64_less(order, highest) {
            highest = order;
            continue;
        }
        let stored = held[i];
        var at = i;
        while at > begin && u64_less(order, held_order(at - 1u)) {
            held[at] = held[at - 1u];
            at -= 1u;
        }
        held[at] = stored;
    }
}

@compute @workgroup_size(THREADS)
fn sort_buckets(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    var source = AREA;
    var first = 0u;
    var end = params.n;
    if params.buckets == 1u {
        source = KEYS;
    } else {
        // After a partition, the cell of a bucket holds the bucket's end.
        if index > 0u {
            first = atomicLoad(&cells[params.at.b6 + index - 1u]);
        }
        end = atomicLoad(&cells[params.at.b6 + index]);
    }
    if first == end {
        return;
    }
    let len = end - first;
    let map = load_map();
    for (var bin = thread; bin < BINS; bin += THREADS) {
        atomicStore(&bins[bin], 0u);
    }
    if thread == 0u {
        atomicStore(&fullest, 0u);
    }
    let step = 4u * THREADS;
    let a = load_four(source, first, thread, len);
    var b = a;
    var c = a;
    var d = a;
    if FOURS > 1u {
        b = load_four(source, first, thread + step, len);
    }
    if FOURS > 2u {
        c = load_four(source, first, thread + 2u * step, len);
        d = load_four(source, first, thread + 3u * step, len);
    }
    workgroupBarrier();
    let ranks_a = bin_four(map, a, len, thread);
    var ranks_b = ranks_a;
    var ranks_c = ranks_a;
    var ranks_d = ranks_a;
    if FOURS > 1u {
        ranks_b = bin_four(map, b, len, thread + step);
    }
    if FOURS > 2u {
        ranks_c = bin_four(map, c, len, thread + 2u * step);
        ranks_d = bin_four(map, d, len, thread + 3u * step);
    }
    workgroupBarrier();
    let each = BINS / THREADS;
    var mine = 0u;
    var largest = 0u;
    for (var bin = thread * each; bin < (thread + 1u) * each; bin++) {
        let size = atomicLoad(&bins[bin]);
        mine += size;
        largest = max(largest, size);
    }
    // Where each possible key has a bin of its own, all keys of a bin are equal.
    let own_bins = map.shift == 0u && (map.scale >> BIN_SHIFT) > 0u;
    let equals = own_bins && state[params.at.b7 + CUT] == 0u;
    if largest > MAX_ORDERED && !equals {
        atomicMax(&fullest, largest);
    }
    let own_begin = scan_exclusive(thread, mine);
    let own_end = own_begin + mine;
    var before = own_begin;
    for (var bin = thread * each; bin < (thread + 1u) * each; bin++) {
        let size = atomicLoad(&bins[bin]);
        atomicStore(&bins[bin], before);
        before += size;
    }
    workgroupBarrier();
    place_four(len, a, ranks_a, thread);
    if FOURS > 1u {
        place_four(len, b, ranks_b, thread + step);
    }
    if FOURS > 2u {
        place_four(len, c, ranks_c, thread + 2u * step);
        place_four(len, d, ranks_d, thread + 3u * step);
    }
    workgroupBarrier();
    let by_network = atomicLoad(&fullest) > 0u;
    if by_network {
        sort_held(len, thread);
    } else if !equals {
        // The keys of several bins, of which only keys of the same bin are out of order.
        order_held(own_begin, own_end);
        workgroupBarrier();
    }
    for (var i = thread; i < len; i += THREADS) {
        put_key(AREA, first + i, held[i]);
    }
}
