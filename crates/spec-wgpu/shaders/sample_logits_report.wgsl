//!include sampling_row
//!include likeliest
// What sample_logits reports of the chosen tokens and of the likeliest tokens, by the logits as
// given: without temperature, mask and filters.
//
// The passes follow those of sample_logits.wgsl, each only where an output needs it:
//
// * `summarize` a workgroup per chunk: the sum of the weights, and the number of entries that reach
//              each of the row's tokens.
// * `conclude` a workgroup per row: sums over the chunks; log-probabilities and ranks.
// * `top`      a workgroup per row: the likeliest tokens.
//
// Bytes moved: the logits once more; for the likeliest tokens, the logits of a few groups.

@group(0) @binding(2) var<storage, read_write> ranks: array<u32>;
@group(0) @binding(4) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(5) var<storage, read_write> processed: array<f32>;
@group(0) @binding(6) var<storage, read_write> top_tokens: array<u32>;
@group(0) @binding(7) var<storage, read_write> top_logprobs: array<f32>;

const LIKELIEST = MAX_TOP;

// The keys of the row's tokens; the same keys in descending order, to count by, with 0 for a
// missing token; and the place of each token in this order.
var<workgroup> drawn_keys: array<u32, MAX_DRAWS>;
var<workgroup> ordered_keys: array<u32, MAX_DRAWS>;
var<workgroup> places: array<u32, MAX_DRAWS>;
var<workgroup> counts: array<atomic<u32>, MAX_DRAWS>;

// Where the summary of a chunk begins: a sum (two words), then for each place the number of entries
// that reach this place and no place before it.
fn summary_at(row: u32, chunk: u32) -> u32 {
    let job = (row - params.row0) * params.chunks + chunk;
    return params.at.b1 + params.summaries + job * (2u + params.draws);
}

// Negative infinity, which a shader compiler may not know.
fn negative_infinity() -> f32 {
    return bitcast<f32>(0xff800000u | params.at.zero);
}

// The logarithm of the softmax of a key, over the row's logits as given.
fn raw_logprob(row: u32, key: u32) -> f32 {
    let largest = load(row, RAW_LARGEST);
    let logarithm = bitcast<f32>(load(row, RAW_LOGARITHM));
    if key == largest && key > LOWEST_KEY {
        return -logarithm;
    }
    if key <= LOWEST_KEY || !is_finite(bits_of(largest)) {
        return negative_infinity();
    }
    let below = add_bits(bits_of(key), bits_of(largest) ^ 0x80000000u);
    return bitcast<f32>(below) - logarithm;
}

// Loads the keys of the row's tokens and orders them. Every thread must call this function.
fn order_tokens(row: u32, thread: u32) {
    if thread < params.draws {
        let token = work[drawn_at(row) + thread];
        drawn_keys[thread] = 0u;
        if token != NONE {
            drawn_keys[thread] = sort_key(logit(row, token));
        }
        atomicStore(&counts[thread], 0u);
    }
    workgroupBarrier();
    if thread < params.draws {
        let key = drawn_keys[thread];
        var place = 0u;
        for (var i = 0u; i < params.draws; i++) {
            let other = drawn_keys[i];
            if other > key || (other == key && i < thread) {
                place += 1u;
            }
        }
        ordered_keys[place] = key;
        places[thread] = place;
    }
    workgroupBarrier();
}

// The first place whose key an entry reaches; params.draws if there is no such place.
fn place_of(key: u32) -> u32 {
    var first = 0u;
    var end = params.draws;
    while first < end {
        let middle = (first + end) / 2u;
        if ordered_keys[middle] <= key {
            end = middle;
        } else {
            first = middle + 1u;
        }
    }
    return first;
}

// The number of entries of one place that are not yet added to `counts`.
struct Counts {
    place: u32,
    count: u32,
}

fn count_at(run: Counts) {
    if run.place < params.draws {
        atomicAdd(&counts[run.place], run.count);
    }
}

fn count_key(run: ptr<function, Counts>, key: u32, least: u32) {
    if key < least {
        return;
    }
    let place = place_of(key);
    if place != (*run).place {
        count_at(*run);
        *run = Counts(place, 0u);
    }
    (*run).count += 1u;
}

// e^(x - largest), as precise as a report needs, for an order that is not NaN's.
fn raw_weight(largest: u32, order: u32) -> f32 {
    let bits = bits_of(largest);
    if !is_finite(bits) {
        return select(0.0f, 1.0f, order == largest);
    }
    // A device may read a subnormal number as 0; this does not change a difference that matters.
    let below = max(bitcast<f32>(bits_of(order)) - bitcast<f32>(bits), -100.0f);
    return select(0.0f, exp(below), order > LOWEST_KEY);
}

@compute @workgroup_size(THREADS)
fn summarize(
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
    if is_padding(row, thread) {
        return;
    }
    order_tokens(row, thread);
    let sums = has(HAS_LOGPROBS) || has(HAS_TOP_LOGPROBS);
    let raw = Scale(load(row, RAW_LARGEST), 1.0f);
    let weighing = select(NONE, weighing_key(raw), sums);
    // Entries with smaller keys reach no token. Places without a token come last.
    var least = NONE;
    if has(HAS_RANKS) {
        for (var place = 0u; place < params.draws; place++) {
            if ordered_keys[place] != 0u {
                least = ordered_keys[place];
            }
        }
    }
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let team = thread / GROUP_LANES;
    let lane = thread % GROUP_LANES;
    var own = 0.0f;
    // Successive entries of the same place are counted at once.
    var run = Counts(params.draws, 0u);
    for (var group = chunk * (params.chunk / 64u) + team; group * 64u < end; group += THREADS / GROUP_LANES) {
        let largest = work[raw_maxima_at(row) + group];
        if largest < weighing && largest < least {
            continue;
        }
        let column = pair_at(group, lane).x;
        var orders = vec2(0u);
        if group * 64u + 64u <= end {
            orders = max(orders_of(pair_of(row, column)), vec2(least_order()));
        } else {
            orders = last_orders(row, column, end);
        }
        // NaN counts as negative infinity.
        orders = select(orders, vec2(LOWEST_KEY), orders > vec2(ORDER_OF_INFINITY));
        if largest >= weighing {
            own += raw_weight(raw.largest, orders.x) + raw_weight(raw.largest, orders.y);
        }
        if largest >= least {
            count_key(&run, key_of_order(orders.x), least);
            count_key(&run, key_of_order(orders.y), least);
        }
    }
    count_at(run);
    // In units of 2^-40, since a sum of integers does not depend on the order of additions.
    let through = sum_through(thread, joined(halves(own)));
    let at = summary_at(row, chunk);
    if thread == THREADS - 1u {
        work[at] = through.x;
        work[at + 1u] = through.y;
    }
    if thread < params.draws {
        work[at + 2u + thread] = atomicLoad(&counts[thread]);
    }
}

@compute @workgroup_size(THREADS)
fn conclude(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    order_tokens(row, thread);
    if has(HAS_LOGPROBS) || has(HAS_TOP_LOGPROBS) {
        var own = vec2(0u, 0u);
        for (var chunk = thread; chunk < params.chunks; chunk += THREADS) {
            let at = summary_at(row, chunk);
            own = u64_add(own, vec2(work[at], work[at + 1u]));
        }
        _ = sum_through(thread, own);
        let raw = sum_of_all();
        if thread == 0u {
            store(row, RAW_LOGARITHM, bitcast<u32>(logarithm(raw)));
        }
        storageBarrier();
    }
    if has(HAS_RANKS) {
        // A thread adds up some of the chunks for one place.
        let place = thread % MAX_DRAWS;
        if place < params.draws {
            var count = 0u;
            for (var chunk = thread / MAX_DRAWS; chunk < params.chunks; chunk += 4u) {
                count += work[summary_at(row, chunk) + 2u + place];
            }
            atomicAdd(&counts[place], count);
        }
        workgroupBarrier();
    }
    if thread >= params.draws {
        return;
    }
    let key = drawn_keys[thread];
    let there = key != 0u;
    let at = row - params.row0;
    if has(HAS_LOGPROBS) {
        var value = negative_infinity();
        if there {
            value = raw_logprob(row, key);
        }
        logprobs[params.at.b4 + at * params.logprobs_stride + thread] = value;
    }
    if has(HAS_RANKS) {
        var rank = 0u;
        for (var place = 0u; there && place <= places[thread]; place++) {
            rank += atomicLoad(&counts[place]);
        }
        // A column that stands for no token has no rank.
        if COLUMNS == 1u && there && logit(row, work[drawn_at(row) + thread]) == ABSENT {
            rank = 0u;
        }
        ranks[params.at.b2 + at * params.ranks_stride + thread] = rank;
    }
    if has(HAS_PROCESSED) {
        var value = negative_infinity();
        // What a row draws from may lack a forced column.
        let lacking = COLUMNS == 1u && is_forced(row) && load(row, FORCED_KEPT) == 0u;
        if load(row, FATE) != FATE_DRAWN {
            value = select(value, 0.0f, thread == 0u && there && !lacking);
        } else if there && !lacking {
            // The mask allows every drawn token.
            value = exponent(scale_of(row), key) - logarithm(load_pair(row, SUM));
        }
        processed[params.at.b5 + at * params.processed_stride + thread] = value;
    }
}

// ---- the likeliest ----------------------------------------------------------

// The row that the selection reads.
var<private> reported: u32;

fn likeliest_maximum(group: u32) -> u32 {
    return work[raw_maxima_at(reported) + group];
}

fn likeliest_key(token: u32) -> u32 {
    if token >= params.vocab {
        return 0u;
    }
    let bits = logit(reported, token);
    if COLUMNS == 1u && bits == ABSENT {
        return 0u;
    }
    return sort_key(bits);
}

@compute @workgroup_size(WIDE)
fn top(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    reported = params.row0 + job;
    var size = 0u;
    if !is_padding(reported, thread) {
        size = likeliest(params.top, thread);
    }
    if thread >= params.top {
        return;
    }
    if has(HAS_TOP_TOKENS) {
        var token = select(NONE, likeliest_tokens[thread], thread < size);
        if COLUMNS == 1u {
            token = named(reported, token);
        }
        top_tokens[params.at.b6 + job * params.top_tokens_stride + thread] = token;
    }
    if has(HAS_TOP_LOGPROBS) {
        var value = negative_infinity();
        if thread < size {
            value = raw_logprob(reported, likeliest_keys[thread]);
        }
        top_logprobs[params.at.b7 + job * params.top_logprobs_stride + thread] = value;
    }
}
