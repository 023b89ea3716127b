// `unique` by buckets: one or two partitions move the keys to buckets that fit workgroup memory;
// there each bucket is sorted. Distinct keys need no stable order, so a tile does not depend on the
// tiles before it: a tile reserves room for its keys of each digit by one atomic addition. This
// file is a part of that shader and uses its declarations.
//
//   survey            reads the keys once: their range, which bits vary, whether they ascend
//   choose            one workgroup: finds a map from keys to buckets that cover equal shares of
//                     the range of a sample, unless the keys bunch within this range
//   count_firsts      counts the keys with each first digit of a bucket's number
//   arrange_firsts    one workgroup: finds where each first digit begins
//   partition_first   a workgroup per tile: moves keys to their first digits
//   count_seconds, arrange, partition_second
//                     count, arrange and move the keys by their second digits; all keys of a tile
//                     have one first digit. If a bucket has more keys than workgroup memory holds,
//                     `unique` sorts the keys by digits instead
//   sort_buckets      a workgroup per bucket: spreads the keys over bins that cover equal shares of
//                     the bucket's range, and orders the few keys of each bin; where a bin has many
//                     keys, sorts the whole bucket by a network
//
// Where there are few buckets, their numbers have one digit, the first. Bytes moved: the keys 3
// times per partition, and twice to sort.

// Loads of four keys that a thread makes for a tile or a bucket.
override FOURS: u32 = 1u;
// The number of keys of a tile, and the largest number of keys of a bucket.
override CAPACITY: u32 = 1024u;
// Room for the digits of a partition, a multiple of THREADS.
override SPLIT: u32 = 256u;
// The number of bins of a bucket, a power of two, and the shift from 32 bits to a bin's number.
override BINS: u32 = 512u;
override BIN_SHIFT: u32 = 23u;

// Words from the counter of one first digit to the next, where there are second digits. All tiles
// add to these counters, and additions within one cache line wait for each other.
const APART = 32u;

// The table, word by word: [buckets] the number of keys of each, later where its next key goes; the
// same for [first digits], APART words apart; [first digits + 1] the tiles before each; [surveys]
// lowest and highest key.
@group(0) @binding(6) var<storage, read_write> cells: array<atomic<u32>>;

fn first_cells() -> u32 {
    return params.at.b6 + params.buckets;
}

fn tile_cells() -> u32 {
    return first_cells() + APART * params.firsts;
}

fn extreme_cells() -> u32 {
    return tile_cells() + params.firsts + 1u;
}

// The map from keys to buckets: key - low, cut to `width` and shifted to 32 bits, times `scale` is
// a fixed-point number. Its integer part is the bucket, its fraction the place in the bucket.
struct Map {
    low: vec2<u32>,
    width: vec2<u32>,
    shift: u32,
    scale: u32,
}

fn load_map() -> Map {
    let at = params.at.b7 + MAP;
    let low = vec2(state[at], state[at + 1u]);
    let width = vec2(state[at + 2u], state[at + 3u]);
    return Map(low, width, state[at + 4u], state[at + 5u]);
}

fn shifted(from_low: vec2<u32>, shift: u32) -> u32 {
    if shift == 32u {
        return from_low.y;
    }
    return ((from_low.y << 1u) << (31u - shift)) | (from_low.x >> shift);
}

// The place in the bucket, and the bucket.
fn bucket_of(map: Map, key: vec2<u32>) -> vec2<u32> {
    let order = ordered(key, params.sign);
    var from_low = u64_sub(order, map.low);
    if u64_less(map.width, from_low) {
        from_low = select(map.width, vec2(0u), u64_less(order, map.low));
    }
    return u32_mul(shifted(from_low, map.shift), map.scale);
}

// floor(2^32 * parts / (top + 1)) for parts <= top.
fn scale_of(parts: u32, top: u32) -> u32 {
    var rest = parts;
    var scale = 0u;
    for (var bit = 0u; bit < 32u; bit++) {
        let carry = (rest >> 31u) == 1u;
        rest <<= 1u;
        scale <<= 1u;
        if carry || rest > top {
            rest -= top + 1u;
            scale |= 1u;
        }
    }
    return scale;
}

struct Four {
    low: vec4<u32>,
    high: vec4<u32>,
}

// Keys `at`, `at + THREADS` and so on of the `len` keys from `first` on; the last key replaces keys
// past the end. All four loads are in flight together.
fn load_four(source: u32, first: u32, at: u32, len: u32) -> Four {
    let last = len - 1u;
    let a = key_of(take_key(source, first + min(at, last)));
    let b = key_of(take_key(source, first + min(at + THREADS, last)));
    let c = key_of(take_key(source, first + min(at + 2u * THREADS, last)));
    let d = key_of(take_key(source, first + min(at + 3u * THREADS, last)));
    return Four(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

// Extremes of no key at all: `wider` with other extremes gives those.
const NO_KEYS = vec4<u32>(0xffffffffu, 0xffffffffu, 0u, 0u);

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

// ---- what is counted -------------------------------------------------------

// The number of keys of a tile with each digit; later where the digit begins in the tile.
var<workgroup> sizes: array<atomic<u32>, SPLIT>;
var<workgroup> found: u32;

// A tile: where it lies, and how bucket numbers become digits.
struct Tile {
    source: u32,
    sink: u32,
    first: u32,
    len: u32,
    // The digit is (bucket - base) >> bits.
    base: u32,
    bits: u32,
    // Where the digits' counters begin, and how far apart they are.
    cells: u32,
    apart: u32,
}

// Tile `index` of all keys, for the first digits.
fn first_tile(index: u32) -> Tile {
    let first = index * CAPACITY;
    let len = min(params.n - first, CAPACITY);
    if params.low_bits == 0u {
        return Tile(KEYS, AREA, first, len, 0u, 0u, params.at.b6, 1u);
    }
    return Tile(KEYS, DISTINCT, first, len, 0u, params.low_bits, first_cells(), APART);
}

// Tile `index` for the second digits; a tile beyond the last one has no keys. Every thread of the
// workgroup must call this function.
fn second_tile(index: u32, thread: u32) -> Tile {
    if thread == 0u {
        found = params.firsts;
    }
    workgroupBarrier();
    for (var i = thread; i < params.firsts; i += THREADS) {
        let before = atomicLoad(&cells[tile_cells() + i]);
        if before <= index && index < atomicLoad(&cells[tile_cells() + i + 1u]) {
            found = i;
        }
    }
    workgroupBarrier();
    let digit = found;
    if digit == params.firsts {
        return Tile(DISTINCT, AREA, 0u, 0u, 0u, 0u, params.at.b6, 1u);
    }
    let tile = index - atomicLoad(&cells[tile_cells() + digit]);
    var first = tile * CAPACITY;
    if digit > 0u {
        first += atomicLoad(&cells[first_cells() + APART * (digit - 1u)]);
    }
    let len = min(atomicLoad(&cells[first_cells() + APART * digit]) - first, CAPACITY);
    let base = digit << params.low_bits;
    return Tile(DISTINCT, AREA, first, len, base, 0u, params.at.b6 + base, 1u);
}

fn digit_in(tile: Tile, map: Map, key: vec2<u32>) -> u32 {
    return (bucket_of(map, key).y - tile.base) >> tile.bits;
}

fn clear_sizes(thread: u32) {
    for (var digit = thread; digit < SPLIT; digit += THREADS) {
        atomicStore(&sizes[digit], 0u);
    }
}

fn count_key(tile: Tile, map: Map, there: bool, key: vec2<u32>) {
    if there {
        atomicAdd(&sizes[digit_in(tile, map, key)], 1u);
    }
}

fn count_tile(tile: Tile, map: Map, thread: u32) {
    for (var row = 0u; row < FOURS; row++) {
        let i = 4u * row * THREADS + thread;
        let four = load_four(tile.source, tile.first, i, tile.len);
        count_key(tile, map, i < tile.len, vec2(four.low.x, four.high.x));
        count_key(tile, map, i + THREADS < tile.len, vec2(four.low.y, four.high.y));
        count_key(tile, map, i + 2u * THREADS < tile.len, vec2(four.low.z, four.high.z));
        count_key(tile, map, i + 3u * THREADS < tile.len, vec2(four.low.w, four.high.w));
    }
}

fn add_sizes(tile: Tile, thread: u32) {
    for (var digit = thread; digit < SPLIT; digit += THREADS) {
        let size = atomicLoad(&sizes[digit]);
        if size > 0u {
            atomicAdd(&cells[tile.cells + tile.apart * digit], size);
        }
    }
}

// A workgroup handles every n-th tile, with n workgroups.
@compute @workgroup_size(THREADS)
fn count_firsts(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    let map = load_map();
    clear_sizes(thread);
    workgroupBarrier();
    let tiles = (params.n + CAPACITY - 1u) / CAPACITY;
    for (var i = index; i < tiles; i += params.at.groups) {
        count_tile(first_tile(i), map, thread);
    }
    workgroupBarrier();
    add_sizes(first_tile(index), thread);
}

@compute @workgroup_size(THREADS)
fn count_seconds(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    clear_sizes(thread);
    let tile = second_tile(index, thread);
    if tile.len == 0u {
        return;
    }
    count_tile(tile, load_map(), thread);
    workgroupBarrier();
    add_sizes(tile, thread);
}

// Replaces the number of keys with each first digit by the number of keys before it, and finds the
// tiles for the second digits.
@compute @workgroup_size(THREADS)
fn arrange_firsts(@builtin(local_invocation_index) thread: u32) {
    if !by_buckets() {
        return;
    }
    var before = 0u;
    var tiles_before = 0u;
    for (var start = 0u; start < params.firsts; start += THREADS) {
        let i = start + thread;
        var len = 0u;
        if i < params.firsts {
            len = table[first_cells() + APART * i];
        }
        let tiles = (len + CAPACITY - 1u) / CAPACITY;
        let sum = before + scan_exclusive(thread, len);
        before += scan_total();
        let tile_sum = tiles_before + scan_exclusive(thread, tiles);
        tiles_before += scan_total();
        if i < params.firsts {
            table[first_cells() + APART * i] = sum;
            table[tile_cells() + i] = tile_sum;
        }
    }
    if thread == 0u {
        table[tile_cells() + params.firsts] = tiles_before;
    }
}

// Replaces the number of keys in each bucket by the number of keys before it.
@compute @workgroup_size(THREADS)
fn arrange(@builtin(local_invocation_index) thread: u32) {
    if !by_buckets() {
        return;
    }
    let at = params.at.b6;
    var before = 0u;
    var most = 0u;
    for (var start = 0u; start < params.buckets; start += CHUNK * THREADS) {
        let first = start + thread * CHUNK;
        let end = min(first + CHUNK, params.buckets);
        var mine = 0u;
        for (var i = first; i < end; i++) {
            most = max(most, table[at + i]);
            mine += table[at + i];
        }
        var sum = before + scan_exclusive(thread, mine);
        for (var i = first; i < end; i++) {
            let len = table[at + i];
            table[at + i] = sum;
            sum += len;
        }
        before += scan_total();
    }
    if most > CAPACITY {
        state[params.at.b7 + MODE] = BY_DIGITS;
    }
}

// ---- partitions ------------------------------------------------------------

// For each digit, the difference between a key's final place and its place in the tile.
var<workgroup> shifts: array<u32, SPLIT>;
// The keys of the tile or bucket, in order.
var<workgroup> held: array<Stored, CAPACITY>;

// The digit of a key in the high half; in the low half, the key's number among the tile's keys with
// this digit.
fn rank(tile: Tile, map: Map, there: bool, key: vec2<u32>) -> u32 {
    let digit = digit_in(tile, map, key);
    if there {
        return (digit << 16u) | atomicAdd(&sizes[digit], 1u);
    }
    return 0u;
}

fn rank_four(tile: Tile, map: Map, four: Four, i: u32) -> vec4<u32> {
    let a = rank(tile, map, i < tile.len, vec2(four.low.x, four.high.x));
    let b = rank(tile, map, i + THREADS < tile.len, vec2(four.low.y, four.high.y));
    let c = rank(tile, map, i + 2u * THREADS < tile.len, vec2(four.low.z, four.high.z));
    let d = rank(tile, map, i + 3u * THREADS < tile.len, vec2(four.low.w, four.high.w));
    return vec4(a, b, c, d);
}

fn hold(there: bool, rank: u32, key: vec2<u32>) {
    if there {
        held[atomicLoad(&sizes[rank >> 16u]) + (rank & 0xffffu)] = stored_of(key);
    }
}

fn hold_four(len: u32, four: Four, ranks: vec4<u32>, i: u32) {
    hold(i < len, ranks.x, vec2(four.low.x, four.high.x));
    hold(i + THREADS < len, ranks.y, vec2(four.low.y, four.high.y));
    hold(i + 2u * THREADS < len, ranks.z, vec2(four.low.z, four.high.z));
    hold(i + 3u * THREADS < len, ranks.w, vec2(four.low.w, four.high.w));
}

fn spread_tile(tile: Tile, thread: u32) {
    let map = load_map();
    clear_sizes(thread);
    let step = 4u * THREADS;
    let a = load_four(tile.source, tile.first, thread, tile.len);
    var b = a;
    var c = a;
    var d = a;
    if FOURS > 1u {
        b = load_four(tile.source, tile.first, thread + step, tile.len);
    }
    if FOURS > 2u {
        c = load_four(tile.source, tile.first, thread + 2u * step, tile.len);
        d = load_four(tile.source, tile.first, thread + 3u * step, tile.len);
    }
    workgroupBarrier();
    let ranks_a = rank_four(tile, map, a, thread);
    var ranks_b = ranks_a;
    var ranks_c = ranks_a;
    var ranks_d = ranks_a;
    if FOURS > 1u {
        ranks_b = rank_four(tile, map, b, thread + step);
    }
    if FOURS > 2u {
        ranks_c = rank_four(tile, map, c, thread + 2u * step);
        ranks_d = rank_four(tile, map, d, thread + 3u * step);
    }
    workgroupBarrier();
    let each = SPLIT / THREADS;
    var mine = 0u;
    for (var digit = thread * each; digit < (thread + 1u) * each; digit++) {
        mine += atomicLoad(&sizes[digit]);
    }
    var before = scan_exclusive(thread, mine);
    for (var digit = thread * each; digit < (thread + 1u) * each; digit++) {
        let size = atomicLoad(&sizes[digit]);
        atomicStore(&sizes[digit], before);
        if size > 0u {
            let at = tile.cells + tile.apart * digit;
            shifts[digit] = atomicAdd(&cells[at], size) - before;
        }
        before += size;
    }
    workgroupBarrier();
    hold_four(tile.len, a, ranks_a, thread);
    if FOURS > 1u {
        hold_four(tile.len, b, ranks_b, thread + step);
    }
    if FOURS > 2u {
        hold_four(tile.len, c, ranks_c, thread + 2u * step);
        hold_four(tile.len, d, ranks_d, thread + 3u * step);
    }
    workgroupBarrier();
    for (var i = thread; i < tile.len; i += THREADS) {
        let stored = held[i];
        put_key(tile.sink, shifts[digit_in(tile, map, key_of(stored))] + i, stored);
    }
}

@compute @workgroup_size(THREADS)
fn partition_first(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    spread_tile(first_tile(index), thread);
}

@compute @workgroup_size(THREADS)
fn partition_second(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups || !by_buckets() {
        return;
    }
    let tile = second_tile(index, thread);
    if tile.len > 0u {
        spread_tile(tile, thread);
    }
}

// ---- sort_buckets ----------------------------------------------------------

// Bins with more keys than this are not ordered key by key.
const MOST_ORDERED = 32u;

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
    let most = stored_of(ordered(vec2(0xffffffffu), params.sign));
    for (var i = len + thread; i < size; i += THREADS) {
        held[i] = most;
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
    var most = 0u;
    for (var bin = thread * each; bin < (thread + 1u) * each; bin++) {
        let size = atomicLoad(&bins[bin]);
        mine += size;
        most = max(most, size);
    }
    // Where each possible key has a bin of its own, all keys of a bin are equal.
    let own_bins = map.shift == 0u && (map.scale >> BIN_SHIFT) > 0u;
    let equals = own_bins && state[params.at.b7 + CUT] == 0u;
    if most > MOST_ORDERED && !equals {
        atomicMax(&fullest, most);
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
