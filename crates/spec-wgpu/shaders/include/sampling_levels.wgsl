// The passes of sample_logits that narrow down the entries for top-k and top-p: `spread`, `aim` and
// `collect`. This file is a part of that shader and uses its declarations.

// The distance of entries from the largest entry, by the exponent of their weight, in levels of
// 1/32. An entry below all levels weighs nothing.
const LEVELS = 1024u;
const LAST = 896u;
// A row has SPREAD words for the levels: the numbers of entries, the low words and the high words of
// the weights; then the number of listed entries.

// The number of levels that a thread handles.
const EACH = 4u;
const LISTED = 3072u;

fn list_at(row: u32) -> u32 {
    return params.at.b1 + params.lists + (row - params.row0) * params.capacity * 2u;
}

fn levels_at(row: u32) -> u32 {
    return params.at.b2 + (row - params.row0) * SPREAD;
}

// The level of an entry; LAST for an entry that weighs nothing. The level is the same in all passes
// and follows the order of keys, since exact.wgsl does all rounding on the way.
fn level(scale: Scale, key: u32) -> u32 {
    let below = exponent(scale, key);
    return select(u32(below * -32.0f), LAST, below <= NO_UNIT);
}

// ---- levels -----------------------------------------------------------------

var<workgroup> level_count: array<atomic<u32>, LEVELS>;
var<workgroup> level_low: array<atomic<u32>, LEVELS>;
var<workgroup> level_high: array<atomic<u32>, LEVELS>;

fn add_to_level(at: u32, count: u32, own: vec2<u32>) {
    if at >= LAST {
        return;
    }
    atomicAdd(&level_count[at], count);
    let before = atomicAdd(&level_low[at], own.x);
    let high = own.y + select(0u, 1u, before + own.x < before);
    if high != 0u {
        atomicAdd(&level_high[at], high);
    }
}

@compute @workgroup_size(THREADS)
fn spread(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job / params.chunks;
    let chunk = job % params.chunks;
    if load_for_all(row, CUT_ROUTE, thread) != ROUTE_LEVELS {
        return;
    }
    for (var at = thread; at < LEVELS; at += THREADS) {
        atomicStore(&level_count[at], 0u);
        atomicStore(&level_low[at], 0u);
        atomicStore(&level_high[at], 0u);
    }
    workgroupBarrier();
    let scale = scale_of(row);
    var floor = vec2(0u, 0u);
    if params.min_p_first != 0u {
        floor = load_pair(row, FLOOR);
    }
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let weighing = weighing_key(scale);
    // Successive entries of the same level are added at once.
    var current = LAST;
    var count = 0u;
    var own = vec2(0u, 0u);
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        if largest_beside(row, column) < weighing {
            continue;
        }
        let below = exponent(scale, key_of(row, column));
        if below <= NO_UNIT {
            continue;
        }
        let q = fixed_weight(exact_exp(below));
        if u64_less(q, floor) {
            continue;
        }
        let at = u32(below * -32.0f);
        if at != current {
            add_to_level(current, count, own);
            current = at;
            count = 0u;
            own = vec2(0u, 0u);
        }
        count += 1u;
        own = u64_add(own, q);
    }
    add_to_level(current, count, own);
    workgroupBarrier();
    for (var at = thread; at < LEVELS; at += THREADS) {
        let count = atomicLoad(&level_count[at]);
        if count == 0u {
            continue;
        }
        let to = levels_at(row) + at;
        atomicAdd(&levels[to], count);
        let low = atomicLoad(&level_low[at]);
        let before = atomicAdd(&levels[to + LEVELS], low);
        let carry = select(0u, 1u, before + low < before);
        let high = atomicLoad(&level_high[at]) + carry;
        if high != 0u {
            atomicAdd(&levels[to + 2u * LEVELS], high);
        }
    }
}

@compute @workgroup_size(THREADS)
fn aim(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    if load_for_all(row, CUT_ROUTE, thread) != ROUTE_LEVELS {
        return;
    }
    // A thread handles neighbouring levels.
    let at = levels_at(row) + thread * EACH;
    var counts = array<u32, EACH>();
    var weights = array<vec2<u32>, EACH>();
    var count = 0u;
    var own = vec2(0u, 0u);
    for (var j = 0u; j < EACH; j++) {
        counts[j] = atomicLoad(&levels[at + j]);
        weights[j].x = atomicLoad(&levels[at + j + LEVELS]);
        weights[j].y = atomicLoad(&levels[at + j + 2u * LEVELS]);
        count += counts[j];
        own = u64_add(own, weights[j]);
    }
    var k = load(row, TOP_K);
    let shares = load(row, HAS_SHARE) == 1u;
    let through = sum_through(thread, own);
    let sum = sum_of_all();
    let through_count = sum_through(thread, vec2(count, 0u)).x;
    let some = sum_of_all().x;
    // Entries that no draw can choose do not matter to top-p, and lie below all entries that do.
    if k >= some {
        k = 0u;
    }
    let limit = limit_of(row, sum);
    var before = u64_sub(through, own);
    var before_count = through_count - count;
    for (var j = 0u; j < EACH; j++) {
        let next = u64_add(before, weights[j]);
        let next_count = before_count + counts[j];
        var here = u64_less(before, limit) && !u64_less(next, limit);
        if k > 0u {
            here = before_count < k && next_count >= k;
        }
        // This holds for at most one thread.
        if here && (k > 0u || shares) {
            let last = thread * EACH + j;
            var route = ROUTE_LEVELS;
            store(row, LAST_LEVEL, last);
            store_pair(row, LIMIT, limit);
            if next_count <= params.capacity {
                store(row, FIRST_LEVEL, 0u);
                store(row, BEFORE, 0u);
                store_pair(row, BEFORE_WEIGHT, vec2(0u, 0u));
            } else {
                // For top-p after top-k, all that is kept must be listed.
                if k == 0u && last == 0u {
                    route = ROUTE_LARGEST;
                    store(row, BOUND, load(row, LARGEST));
                } else if counts[j] > params.capacity || (k > 0u && shares) {
                    route = ROUTE_ROW;
                }
                store(row, FIRST_LEVEL, last);
                store(row, BEFORE, before_count);
                store_pair(row, BEFORE_WEIGHT, before);
            }
            store(row, CUT_ROUTE, route);
        }
        before = next;
        before_count = next_count;
    }
    storageBarrier();
    // Where nothing is cut off, no thread has stored CUT_ROUTE.
    if thread == 0u {
        store(row, TOP_K, k);
        if k == 0u && !shares {
            store(row, CUT_ROUTE, ROUTE_NONE);
        }
    }
}

// ---- lists ------------------------------------------------------------------

var<workgroup> listed: atomic<u32>;
var<workgroup> equals: atomic<u32>;

@compute @workgroup_size(THREADS)
fn collect(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job / params.chunks;
    let chunk = job % params.chunks;
    let route = load_for_all(row, CUT_ROUTE, thread);
    if route == ROUTE_NONE || route == ROUTE_ROW {
        return;
    }
    if thread == 0u {
        atomicStore(&listed, 0u);
        atomicStore(&equals, 0u);
    }
    workgroupBarrier();
    let bound = load(row, BOUND);
    let scale = scale_of(row);
    let first = load(row, FIRST_LEVEL);
    let last = load(row, LAST_LEVEL);
    var floor = vec2(0u, 0u);
    if params.min_p_first != 0u {
        floor = load_pair(row, FLOOR);
    }
    // A bit for each of this thread's entries, of which there are at most 32.
    var bits = 0u;
    var equal = 0u;
    let begin = chunk * params.chunk + thread;
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    for (var i = 0u; begin + i * THREADS < end; i++) {
        let column = begin + i * THREADS;
        let largest = largest_beside(row, column);
        if route == ROUTE_LEVELS {
            if level(scale, largest) > last {
                continue;
            }
        } else if largest < bound {
            continue;
        }
        let key = key_of(row, column);
        var takes = key > bound;
        if route == ROUTE_LEVELS {
            let at = level(scale, key);
            takes = at >= first && at <= last;
            if takes && any(floor != vec2(0u, 0u)) {
                takes = !u64_less(fixed(scale, key), floor);
            }
        } else if key == bound {
            equal += 1u;
        }
        bits |= select(0u, 1u << i, takes);
    }
    let count = countOneBits(bits);
    var place = 0u;
    if count != 0u {
        place = atomicAdd(&listed, count);
    }
    if equal != 0u {
        atomicAdd(&equals, equal);
    }
    workgroupBarrier();
    if thread == 0u {
        work[partial_at(row, chunk)] = atomicLoad(&equals);
        let all = atomicLoad(&listed);
        shared_word = 0u;
        if all != 0u {
            shared_word = atomicAdd(&levels[levels_at(row) + LISTED], all);
        }
    }
    place += workgroupUniformLoad(&shared_word);
    // The order of entries in the list does not matter.
    while bits != 0u && place < params.capacity {
        let column = begin + firstTrailingBit(bits) * THREADS;
        let to = list_at(row) + 2u * place;
        work[to] = key_of(row, column);
        work[to + 1u] = column;
        bits &= bits - 1u;
        place += 1u;
    }
}
