// The pass of sample_logits that cuts rows, `cut`, and its selections. This file is a part of that
// shader and uses its declarations.

// The largest list that is cut by comparing each entry with each other entry.
const SHORT = 512u;

// The weight that a selection uses for an entry, and the place of its entries.
const BY_COUNT = 0u;
const BY_SHARE = 1u;
const IN_MAXIMA = 0u;
const IN_LIST = 1u;
const IN_ROW = 2u;

// ---- selecting --------------------------------------------------------------

// The entries to select among: where they are, and how many.
struct Source {
    kind: u32,
    at: u32,
    size: u32,
}

var<workgroup> selection: Selection;
// The cut so far: its key and the end of its indices.
var<workgroup> cut_so_far: vec2<u32>;

fn begin_selection(thread: u32, above: vec2<u32>, limit: vec2<u32>) {
    workgroupBarrier();
    if thread == 0u {
        selection = Selection(1u, 0u, 0u, above, limit);
    }
}

// An entry of a source: its key (0 if the cut so far drops the entry) and its index.
fn entry(row: u32, source: Source, i: u32, so_far: vec2<u32>) -> vec2<u32> {
    var key = 0u;
    var index = i;
    if source.kind == IN_MAXIMA {
        return vec2(work[source.at + i], 0u);
    }
    if source.kind == IN_LIST {
        key = work[source.at + 2u * i];
        index = work[source.at + 2u * i + 1u];
    } else {
        key = key_of(row, i);
    }
    let drops = key < so_far.x || (key == so_far.x && index >= so_far.y);
    return vec2(select(key, 0u, drops), index);
}

// Every thread must call this function.
fn select_round(row: u32, source: Source, round: u32, purpose: u32, thread: u32) {
    let now = workgroupUniformLoad(&selection);
    if now.running == 0u {
        return;
    }
    let so_far = workgroupUniformLoad(&cut_so_far);
    clear_bins(thread);
    let scale = scale_of(row);
    var floor = vec2(0u, 0u);
    if source.kind != IN_MAXIMA && drops_first(row) {
        floor = load_pair(row, FLOOR);
    }
    let weighs = purpose == BY_SHARE || any(floor != vec2(0u, 0u));
    var run = Run(SELECT_BINS, vec2(0u, 0u));
    for (var i = thread; i < source.size; i += WIDE) {
        let found = entry(row, source, i, so_far);
        let bin = bin_of(round, now, found.x, found.y);
        if bin == SELECT_BINS {
            continue;
        }
        var one = vec2(1u, 0u);
        if weighs {
            let q = fixed(scale, found.x);
            if u64_less(q, floor) {
                continue;
            }
            if purpose == BY_SHARE {
                one = q;
            }
        }
        if any(one != vec2(0u, 0u)) {
            add_to_run(&run, bin, one);
        }
    }
    end_run(&run);
    let found = pick_bin(thread, now.above, now.limit);
    if thread != 0u {
        return;
    }
    if found.bin == SELECT_BINS {
        // All entries stay.
        selection.running = 0u;
        return;
    }
    let next = narrowed(round, now, found);
    selection = next;
    if round + 1u == KEY_ROUNDS && source.kind != IN_MAXIMA {
        var one = vec2(1u, 0u);
        if purpose == BY_SHARE {
            one = fixed(scale, next.key);
        }
        // Whether the weights before the last entry with this key are below the limit.
        let before = u64_sub(u64_add(found.above, found.within), one);
        if u64_less(before, now.limit) {
            // All entries with this key stay that an earlier cut left.
            let end = select(NONE, so_far.y, next.key == so_far.x);
            selection.running = 0u;
            cut_so_far = vec2(next.key, end);
        }
    }
    if round + 1u == ROUNDS {
        selection.running = 0u;
        cut_so_far = vec2(next.key, next.index + 1u);
    }
}

// The sum of the weights that the cut so far leaves. Every thread must call this function.
fn sum_of_source(row: u32, source: Source, thread: u32) -> vec2<u32> {
    let so_far = workgroupUniformLoad(&cut_so_far);
    let scale = scale_of(row);
    var floor = vec2(0u, 0u);
    if drops_first(row) {
        floor = load_pair(row, FLOOR);
    }
    var own = vec2(0u, 0u);
    for (var i = thread; i < source.size; i += WIDE) {
        let found = entry(row, source, i, so_far);
        if found.x != 0u {
            let q = fixed(scale, found.x);
            if !u64_less(q, floor) {
                own = u64_add(own, q);
            }
        }
    }
    clear_bins(thread);
    add_to_bin(thread % SELECT_BINS, own);
    workgroupBarrier();
    _ = sum_through(thread, bin_weight(thread));
    return sum_of_all();
}

// The limit of top-p: a share of a sum, at least 1, so that the first entry is kept.
fn limit_of(row: u32, sum: vec2<u32>) -> vec2<u32> {
    let limit = u64_mul_high(sum, vec2(0u, load(row, TOP_P)));
    return select(limit, vec2(1u, 0u), all(limit == vec2(0u, 0u)));
}

// The number of entries of equal weight q that a limit keeps after `others`, the weight of other
// entries. The weights before the last kept entry are below the limit.
fn kept_of_equals(others: vec2<u32>, limit: vec2<u32>, q: vec2<u32>) -> u32 {
    let rest = u64_sub(limit, others);
    // The smallest number of entries whose weights reach the rest; columns are below 2^24.
    var least = 0u;
    for (var bit = 0x800000u; bit > 0u; bit >>= 1u) {
        let tried = least | bit;
        // The weight of tried - 1 entries, with q at most 2^40, does not overflow.
        let before = u64_add(u32_mul(q.x, tried - 1u), vec2(0u, q.y * (tried - 1u)));
        if u64_less(before, rest) {
            least = tried;
        }
    }
    return least;
}

// The end of the cut among the entries that equal the bound, if `some` of these are kept.
fn end_of_equals(row: u32, bound: u32, some: u32, thread: u32) {
    // A thread handles a few neighbouring chunks.
    let each = (params.chunks + SELECT_BINS - 1u) / SELECT_BINS;
    let first = min(thread * each, params.chunks);
    let end = select(min(first + each, params.chunks), first, thread >= SELECT_BINS);
    var own = 0u;
    for (var chunk = first; chunk < end; chunk++) {
        own += work[partial_at(row, chunk)];
    }
    let through = sum_through(thread, vec2(own, 0u)).x;
    if thread < SELECT_BINS && through - own < some && through >= some {
        var before = through - own;
        var chunk = first;
        while chunk + 1u < end && before + work[partial_at(row, chunk)] < some {
            before += work[partial_at(row, chunk)];
            chunk += 1u;
        }
        shared_pair = vec2(chunk, some - before);
    }
    let found = workgroupUniformLoad(&shared_pair);
    // Within that chunk, a thread handles a few entries.
    let per_thread = params.chunk / SELECT_BINS;
    let end_of_chunk = min(params.vocab, (found.x + 1u) * params.chunk);
    let start = min(found.x * params.chunk + thread * per_thread, end_of_chunk);
    let stop = select(min(start + per_thread, end_of_chunk), start, thread >= SELECT_BINS);
    var bits = 0u;
    for (var column = start; column < stop; column++) {
        let key = key_of(row, column);
        bits |= select(0u, 1u << (column - start), key == bound);
    }
    let count = countOneBits(bits);
    let all = sum_through(thread, vec2(count, 0u)).x;
    if thread < SELECT_BINS && all - count < found.y && all >= found.y {
        for (var before = all - count; before + 1u < found.y; before++) {
            bits &= bits - 1u;
        }
        cut_so_far = vec2(bound, start + firstTrailingBit(bits) + 1u);
    }
    workgroupBarrier();
}

@compute @workgroup_size(WIDE)
fn cut(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    if thread == 0u {
        var route = load(row, CUT_ROUTE);
        let some = atomicLoad(&levels[levels_at(row) + LISTED]);
        if route != ROUTE_NONE && some > params.capacity {
            route = ROUTE_ROW;
        }
        cut_so_far = vec2(load(row, CUT_KEY), load(row, CUT_END));
        shared_pair = vec2(route, some);
    }
    let found = workgroupUniformLoad(&shared_pair);
    if found.x == ROUTE_NONE {
        return;
    }
    var in_row = found.x == ROUTE_ROW;
    if found.x == ROUTE_LARGEST {
        in_row = !cut_largest(row, thread);
    } else if !in_row && found.y <= min(SHORT, WIDE) {
        cut_short_list(row, found.x == ROUTE_BOUND, found.y, thread);
    } else if !in_row {
        cut_list(row, found.x == ROUTE_BOUND, found.y, thread);
    }
    if in_row {
        cut_in_row(row, thread);
    }
    workgroupBarrier();
    if thread == 0u {
        store(row, CUT_KEY, cut_so_far.x);
        store(row, CUT_END, cut_so_far.y);
        store(row, CUT_ROUTE, select(ROUTE_NONE, ROUTE_ROW, in_row));
    }
}

fn cut_list(row: u32, bounds: bool, size: u32, thread: u32) {
    let list = Source(IN_LIST, list_at(row), size);
    if thread == 0u {
        shared_pair = vec2(load(row, TOP_K), load(row, HAS_SHARE));
    }
    let wanted = workgroupUniformLoad(&shared_pair);
    // The number of entries that equal the bound and are kept.
    var equal = 0u;
    if bounds && wanted.x > size {
        equal = wanted.x - size;
    } else if wanted.x > 0u {
        var before = 0u;
        if !bounds {
            before = load(row, BEFORE);
        }
        begin_selection(thread, vec2(before, 0u), vec2(wanted.x, 0u));
        for (var round = 0u; round < ROUNDS; round++) {
            select_round(row, list, round, BY_COUNT, thread);
        }
    }
    if wanted.y == 1u {
        workgroupBarrier();
        var above = vec2(0u, 0u);
        var limit = vec2(0u, 0u);
        var beyond = false;
        let others = sum_of_source(row, list, thread);
        if !bounds && wanted.x == 0u {
            above = load_pair(row, BEFORE_WEIGHT);
            limit = load_pair(row, LIMIT);
        } else if equal == 0u {
            limit = limit_of(row, others);
        } else {
            let q = fixed(scale_of(row), load(row, BOUND));
            let equals = u64_add(u32_mul(q.x, equal), vec2(0u, q.y * equal));
            limit = limit_of(row, u64_add(others, equals));
            if u64_less(others, limit) {
                equal = kept_of_equals(others, limit, q);
                beyond = true;
            } else {
                equal = 0u;
            }
        }
        if thread == 0u {
            shared_word = select(0u, 1u, beyond);
        }
        if workgroupUniformLoad(&shared_word) == 0u {
            begin_selection(thread, above, limit);
            for (var round = 0u; round < ROUNDS; round++) {
                select_round(row, list, round, BY_SHARE, thread);
            }
        }
    }
    if thread == 0u {
        shared_word = equal;
    }
    let some = workgroupUniformLoad(&shared_word);
    if some > 0u {
        end_of_equals(row, load(row, BOUND), some, thread);
    }
}

var<workgroup> short_keys: array<vec2<u32>, SHORT>;
var<workgroup> short_weights: array<vec2<u32>, SHORT>;

// As cut_list, for a list in which each thread has at most one entry: the thread counts and weighs
// the entries that come before its own.
fn cut_short_list(row: u32, bounds: bool, size: u32, thread: u32) {
    let k = load(row, TOP_K);
    let shares = load(row, HAS_SHARE) == 1u;
    let scale = scale_of(row);
    var key = 0u;
    var index = 0u;
    var own = vec2(0u, 0u);
    if thread < size {
        key = work[list_at(row) + 2u * thread];
        index = work[list_at(row) + 2u * thread + 1u];
        own = fixed(scale, key);
        short_keys[thread] = vec2(key, index);
        short_weights[thread] = own;
    }
    if thread == 0u {
        shared_pair = vec2(0u, 0u);
    }
    workgroupBarrier();
    var rank = 0u;
    var before = vec2(0u, 0u);
    if thread < size {
        for (var i = 0u; i < size; i++) {
            let other = short_keys[i];
            if other.x > key || (other.x == key && other.y < index) {
                rank += 1u;
                before = u64_add(before, short_weights[i]);
            }
        }
    }
    // The number of listed entries that top-k keeps, and of entries that equal the bound.
    var kept = size;
    var equal = 0u;
    if k > 0u {
        let earlier = select(load(row, BEFORE), 0u, bounds);
        kept = min(k - earlier, size);
        equal = select(0u, k - kept, bounds);
    }
    let last = thread < size && rank + 1u == kept;
    if last {
        shared_pair = u64_add(before, own);
    }
    let others = workgroupUniformLoad(&shared_pair);
    var above = vec2(0u, 0u);
    var limit = vec2(NONE, NONE);
    if shares {
        if !bounds && k == 0u {
            above = load_pair(row, BEFORE_WEIGHT);
            limit = load_pair(row, LIMIT);
        } else {
            let q = fixed(scale, load(row, BOUND));
            let equals = u64_add(u32_mul(q.x, equal), vec2(0u, q.y * equal));
            limit = limit_of(row, u64_add(others, equals));
            if u64_less(others, limit) {
                equal = kept_of_equals(others, limit, q);
            } else {
                equal = 0u;
            }
        }
    }
    before = u64_add(above, before);
    if thread < size && rank < kept && u64_less(before, limit) {
        // The last entry that is kept.
        if last || !u64_less(u64_add(before, own), limit) {
            cut_so_far = vec2(key, index + 1u);
        }
    }
    if thread == 0u {
        shared_word = equal;
    }
    let some = workgroupUniformLoad(&shared_word);
    if some > 0u {
        end_of_equals(row, load(row, BOUND), some, thread);
    }
}

// Whether top-p keeps only entries that equal the largest one; if so, cuts these.
fn cut_largest(row: u32, thread: u32) -> bool {
    var own = 0u;
    if thread < SELECT_BINS {
        for (var chunk = thread; chunk < params.chunks; chunk += SELECT_BINS) {
            own += work[partial_at(row, chunk)];
        }
    }
    _ = sum_through(thread, vec2(own, 0u));
    let all = sum_of_all().x;
    if thread == 0u {
        let some = kept_of_equals(vec2(0u, 0u), load_pair(row, LIMIT), ONE);
        shared_word = select(0u, some, some <= all);
    }
    let some = workgroupUniformLoad(&shared_word);
    if some == 0u {
        return false;
    }
    end_of_equals(row, load(row, BOUND), some, thread);
    return true;
}

// Selects in a row whose entries fit no list: the steps of this dispatch.
fn cut_in_row(row: u32, thread: u32) {
    let all = Source(IN_ROW, 0u, params.vocab);
    if thread == 0u {
        let k = load(row, TOP_K);
        let begun = params.first_step > 0u;
        if begun {
            selection = Selection(
                load(row, RUNNING),
                load(row, KNOWN_KEY),
                load(row, KNOWN_INDEX),
                load_pair(row, ABOVE),
                load_pair(row, LIMIT),
            );
        } else {
            selection = Selection(select(0u, 1u, k > 0u), 0u, 0u, vec2(0u, 0u), vec2(k, 0u));
        }
        shared_word = load(row, HAS_SHARE);
    }
    let shares = workgroupUniformLoad(&shared_word) == 1u;
    for (var step = params.first_step; step < params.end_step; step++) {
        if step < ROUNDS {
            select_round(row, all, step, BY_COUNT, thread);
        } else if shares && step == ROUNDS {
            let sum = sum_of_source(row, all, thread);
            begin_selection(thread, vec2(0u, 0u), limit_of(row, sum));
        } else if shares {
            select_round(row, all, step - ROUNDS - 1u, BY_SHARE, thread);
        }
    }
    if thread == 0u {
        store(row, RUNNING, selection.running);
        store(row, KNOWN_KEY, selection.key);
        store(row, KNOWN_INDEX, selection.index);
        store_pair(row, ABOVE, selection.above);
        store_pair(row, LIMIT, selection.limit);
    }
}
