// `unique` by buckets: what the keys are, and how the call goes on. This file is a part of
// unique.wgsl and uses its declarations and those of unique_buckets.wgsl, whose comment says what
// the dispatches do.

// ---- survey ----------------------------------------------------------------

var<workgroup> seen_bits: array<atomic<u32>, 3>;
// The lowest and the highest key of each thread.
var<workgroup> extremes: array<vec4<u32>, THREADS>;

fn lesser(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(b, a, u64_less(a, b));
}

fn greater(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, u64_less(a, b));
}

fn wider(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return vec4(lesser(a.xy, b.xy), greater(a.zw, b.zw));
}

// Leaves the lowest and the highest key of all threads in `extremes[0]`.
fn reduce_extremes(thread: u32, mine: vec4<u32>) {
    extremes[thread] = mine;
    workgroupBarrier();
    for (var half = THREADS / 2u; half > 0u; half >>= 1u) {
        if thread < half {
            extremes[thread] = wider(extremes[thread], extremes[thread + half]);
        }
        workgroupBarrier();
    }
}

// What a thread has seen: the extremes, the bits that differ from the first key's, and whether the
// keys ascend.
struct Surveyed {
    both: vec4<u32>,
    differ: vec2<u32>,
    ascends: bool,
}

fn see(seen: Surveyed, first: vec2<u32>, key: vec2<u32>) -> Surveyed {
    let order = ordered(key, params.sign);
    return Surveyed(
        vec4(lesser(seen.both.xy, order), greater(seen.both.zw, order)),
        seen.differ | (key ^ first),
        seen.ascends,
    );
}

fn ascends_at(i: u32, key: vec2<u32>) -> bool {
    let next = key_of(take_key(KEYS, min(i + 1u, params.n - 1u)));
    return i >= params.n || !u64_less(ordered(next, params.sign), ordered(key, params.sign));
}

// A workgroup handles every n-th tile, with n workgroups.
@compute @workgroup_size(THREADS)
fn survey(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups {
        return;
    }
    if thread < 3u {
        atomicStore(&seen_bits[thread], 0u);
    }
    let first = key_of(take_key(KEYS, 0u));
    var seen = Surveyed(NO_KEYS, vec2(0u), true);
    for (var tile = index; tile < params.tiles; tile += params.at.groups) {
        for (var row = 0u; row < ROWS; row += 4u) {
            let i = (tile * ROWS + row) * THREADS + thread;
            let four = load_four(KEYS, 0u, i, params.n);
            let a = vec2(four.low.x, four.high.x);
            let b = vec2(four.low.y, four.high.y);
            let c = vec2(four.low.z, four.high.z);
            let d = vec2(four.low.w, four.high.w);
            if seen.ascends {
                seen.ascends = ascends_at(i, a) && ascends_at(i + THREADS, b)
                    && ascends_at(i + 2u * THREADS, c) && ascends_at(i + 3u * THREADS, d);
            }
            // Keys past the end repeat the last key.
            seen = see(see(see(see(seen, first, a), first, b), first, c), first, d);
        }
    }
    reduce_extremes(thread, seen.both);
    let words = vec3(seen.differ, select(1u, 0u, seen.ascends));
    if words.x != 0u {
        atomicOr(&seen_bits[0], words.x);
    }
    if words.y != 0u {
        atomicOr(&seen_bits[1], words.y);
    }
    if words.z != 0u {
        atomicOr(&seen_bits[2], words.z);
    }
    workgroupBarrier();
    if thread < 3u {
        let word = atomicLoad(&seen_bits[thread]);
        if word != 0u {
            atomicOr(&marks[params.at.b7 + thread], word);
        }
    }
    if thread == 0u {
        let at = extreme_cells() + 4u * index;
        table[at] = extremes[0].x;
        table[at + 1u] = extremes[0].y;
        table[at + 2u] = extremes[0].z;
        table[at + 3u] = extremes[0].w;
    }
}

// ---- choose ----------------------------------------------------------------

// The number of keys of a sample, and of the bins that count them.
const SAMPLES = 4096u;
const SAMPLE_BINS = 1024u;
// The keys bunch if a bin has this many times the average.
const BUNCHED = 8u;
// Below this number of buckets, a sample does not pay.
const SAMPLED_BUCKETS = 64u;

var<workgroup> sample_bins: array<atomic<u32>, SAMPLE_BINS>;
var<workgroup> fullest: atomic<u32>;

// The map of the keys between two extremes to `parts` parts; the range must have at least as many
// values.
fn map_of(both: vec4<u32>, parts: u32) -> Map {
    let width = u64_sub(both.zw, both.xy);
    let shift = 32u - countLeadingZeros(width.y);
    return Map(both.xy, width, shift, scale_of(parts, shifted(width, shift)));
}

fn narrow(both: vec4<u32>, parts: u32) -> bool {
    let width = u64_sub(both.zw, both.xy);
    return width.y == 0u && width.x < parts;
}

// The lowest and the highest of the thread's samples.
fn sampled_extremes(thread: u32) -> vec4<u32> {
    let stride = params.n / SAMPLES;
    var both = NO_KEYS;
    for (var i = thread; i < SAMPLES; i += THREADS) {
        let order = ordered(key_of(take_key(KEYS, i * stride)), params.sign);
        both = wider(both, vec4(order, order));
    }
    return both;
}

// The range of a sample and a little more, because some keys likely lie beyond the sample; within
// the range of all keys.
fn likely_range(all: vec4<u32>, sampled: vec4<u32>) -> vec4<u32> {
    let width = u64_sub(sampled.zw, sampled.xy);
    let margin = vec2((width.x >> 6u) | (width.y << 26u), width.y >> 6u);
    let below = u64_sub(sampled.xy, all.xy);
    let above = u64_sub(all.zw, sampled.zw);
    let low = u64_sub(sampled.xy, lesser(below, margin));
    return vec4(low, u64_add(sampled.zw, lesser(above, margin)));
}

// The largest number of samples in a bin.
fn fullest_bin(map: Map, bins: u32, thread: u32) -> u32 {
    for (var i = thread; i < SAMPLE_BINS; i += THREADS) {
        atomicStore(&sample_bins[i], 0u);
    }
    if thread == 0u {
        atomicStore(&fullest, 0u);
    }
    workgroupBarrier();
    let stride = params.n / SAMPLES;
    for (var i = thread; i < SAMPLES; i += THREADS) {
        let key = key_of(take_key(KEYS, i * stride));
        atomicAdd(&sample_bins[bucket_of(map, key).y], 1u);
    }
    workgroupBarrier();
    for (var i = thread; i < bins; i += THREADS) {
        atomicMax(&fullest, atomicLoad(&sample_bins[i]));
    }
    workgroupBarrier();
    return atomicLoad(&fullest);
}

@compute @workgroup_size(THREADS)
fn choose(@builtin(local_invocation_index) thread: u32) {
    let at = params.at.b7;
    if state[at + UNSORTED] == 0u {
        if thread == 0u {
            state[at + MODE] = ASCENDING;
        }
        return;
    }
    if params.buckets == 0u {
        return;
    }
    var mine = NO_KEYS;
    for (var i = thread; i < params.surveys; i += THREADS) {
        let cell = extreme_cells() + 4u * i;
        let both = vec4(table[cell], table[cell + 1u], table[cell + 2u], table[cell + 3u]);
        mine = wider(mine, both);
    }
    reduce_extremes(thread, mine);
    let all_keys = extremes[0];
    var range = all_keys;
    let bins = min(params.buckets, SAMPLE_BINS);
    if params.buckets >= SAMPLED_BUCKETS {
        workgroupBarrier();
        reduce_extremes(thread, sampled_extremes(thread));
        range = likely_range(all_keys, extremes[0]);
    }
    // Fewer values than buckets would make buckets in which all keys are equal.
    if narrow(range, params.buckets) {
        return;
    }
    if params.buckets >= SAMPLED_BUCKETS {
        if fullest_bin(map_of(range, bins), bins, thread) * bins > BUNCHED * SAMPLES {
            return;
        }
    }
    let map = map_of(range, params.buckets);
    if thread == 0u {
        state[at + MAP] = map.low.x;
        state[at + MAP + 1u] = map.low.y;
        state[at + MAP + 2u] = map.width.x;
        state[at + MAP + 3u] = map.width.y;
        state[at + MAP + 4u] = map.shift;
        state[at + MAP + 5u] = map.scale;
        state[at + CUT] = select(0u, 1u, any(range != all_keys));
        state[at + MODE] = BY_BUCKETS;
    }
}

fn by_buckets() -> bool {
    return state[params.at.b7 + MODE] == BY_BUCKETS;
}
