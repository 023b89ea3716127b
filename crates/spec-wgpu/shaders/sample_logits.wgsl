//!include sampling_row
//!include params/shared
//!include integers
//!include philox
//!include probability
//!include select
//!include sampling_levels
//!include sampling_cut
//!include sampling_draw
//!include sampling_columns
// sample_logits: the next tokens of each row of logits.
//
// Passes, each its own dispatches; no workgroup ever waits for another:
//
// * `clear`    a thread per row: no flags, where the flags of each row are asked for.
// * `gather`   a thread per row: collects the parameters of the row's request. A row that is padding
//              has no token: the passes up to `open` leave it out, and the others find nothing to do.
// * `scan`     a workgroup per chunk of a row: the largest logit of each group of 64 entries, among
//              the allowed entries and, if something is reported, among all entries.
// * `open`     a workgroup per row: the largest logit of all groups. A row that is greedy, or has
//              nothing to choose from, is not cut. For a top-k of less than half the number of
//              groups, also finds the k-th largest of the groups' keys: at least k entries reach
//              this bound, and in most rows not many more.
// * `spread`   a workgroup per chunk, for rows that are cut without such a bound: the number and
//              the weight of the entries on each level, which is a distance from the largest entry.
// * `aim`      a workgroup per row: finds the levels where the cut lies.
// * `collect`  a workgroup per chunk: lists the entries that reach the bound, or that lie on the
//              levels of the cut; entries that equal the bound are only counted.
// * `cut`      a workgroup per row: cuts the list by top-k, then by top-p (include/select.wgsl).
//              Where a list would be too long, selects in the row itself.
// * `race`     a workgroup per row: draws the token (include/race_first.wgsl). Where rows draw
//              several tokens, `race_more` finds the first tokens to finish, and for greedy rows
//              `take` finds the first tokens in the order of their logits.
// * `sum`      a workgroup per chunk: the sum of the remaining weights.
// * `total`    a workgroup per row: the sum over all chunks of the row.
// * `write_probs`a workgroup per chunk: the probabilities.
//
// Rows by columns (include/sampling_columns.wgsl) have three more passes: `columns` before `scan`, which
// copies the row, `race_columns` behind the race, and `name_columns` behind the reports. A call for
// the largest logits alone has `columns`, `scan`, `open` and `write_largest`.
//
// The passes between `open` and the race serve top-k and top-p alone; for a row that has neither,
// their workgroups return at once. The passes behind the race serve the outputs that need the sum
// of the weights. The passes of sample_logits_report.wgsl follow. Logits larger than a binding come
// in windows of whole rows.
//
// Bytes moved: the logits once, and the logits of some groups again: for each draw and, with
// filters, those of the groups that reach the kept entries. A top-p alone reads the logits once or
// twice more.

const ONE = vec2(0u, 256u);

const ROUTE_NONE = 0u;
const ROUTE_BOUND = 1u;
const ROUTE_LEVELS = 2u;
const ROUTE_ROW = 3u;
// By top-p, among the entries as large as the largest one, as far as is known.
const ROUTE_LARGEST = 4u;

// gather
@group(0) @binding(2) var<storage, read> requests: array<u32>;
@group(0) @binding(3) var<storage, read> temperature: array<u32>;
@group(0) @binding(4) var<storage, read> seeds: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> top_k: array<u32>;
@group(0) @binding(6) var<storage, read> top_p: array<u32>;
@group(0) @binding(7) var<storage, read> min_p: array<u32>;
@group(0) @binding(8) var<storage, read> positions: array<u32>;
// the other passes
@group(0) @binding(2) var<storage, read_write> levels: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read> mask: array<u32>;
@group(0) @binding(5) var<storage, read_write> flags: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> tokens: array<u32>;
// clear, scan, open
@group(0) @binding(6) var<storage, read_write> row_flags: array<atomic<u32>>;
@group(0) @binding(7) var<storage, read_write> probs: array<f32>;

var<workgroup> shared_key: atomic<u32>;
var<workgroup> shared_raw: atomic<u32>;
var<workgroup> shared_index: atomic<u32>;
var<workgroup> shared_pair: vec2<u32>;

// ---- entries ----------------------------------------------------------------

fn allowed_word(row: u32, word: u32) -> u32 {
    if COLUMNS == 1u {
        return work[allowed_at(row) + word];
    }
    return mask[params.at.b4 + (row - params.row0) * params.mask_stride + word];
}

// The key of an entry; the key of negative infinity where the mask does not allow the entry.
fn masked(row: u32, column: u32, key: u32) -> u32 {
    if has(HAS_MASK) && ((allowed_word(row, column / 32u) >> (column % 32u)) & 1u) == 0u {
        return LOWEST_KEY;
    }
    return key;
}

fn key_of(row: u32, column: u32) -> u32 {
    return masked(row, column, sort_key(logit(row, column)));
}

// The largest key in the group of an entry.
fn largest_beside(row: u32, column: u32) -> u32 {
    return work[maxima_at(row) + column / 64u];
}

fn fixed_weight(w: f32) -> vec2<u32> {
    let split = halves(w);
    return vec2((split.x << 20u) | split.y, split.x >> 12u);
}

fn fixed(scale: Scale, key: u32) -> vec2<u32> {
    return fixed_weight(weight(scale, key));
}

// The parts of a row's state that entries need.
struct Filters {
    scale: Scale,
    floor: vec2<u32>,
    cut_key: u32,
    cut_end: u32,
}

fn filters_of(row: u32) -> Filters {
    let floor = load_pair(row, FLOOR);
    return Filters(scale_of(row), floor, load(row, CUT_KEY), load(row, CUT_END));
}

fn is_cut_off(f: Filters, key: u32, column: u32) -> bool {
    return key < f.cut_key || (key == f.cut_key && column >= f.cut_end);
}

// The weight of an entry; 0 if the cut or min_p drops the entry.
fn kept_weight(f: Filters, key: u32, column: u32) -> f32 {
    if is_cut_off(f, key, column) {
        return 0.0f;
    }
    let w = weight(f.scale, key);
    return select(w, 0.0f, u64_less(fixed_weight(w), f.floor));
}

// ---- flags ------------------------------------------------------------------

@compute @workgroup_size(64)
fn clear(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = params.row0 + group_index(group, groups) * 64u + thread;
    if row < params.row1 {
        atomicStore(&row_flags[params.at.b6 + row], 0u);
    }
}

// Sets flags of a row.
fn raise(row: u32, bits: u32) {
    atomicOr(&flags[params.at.b5], bits);
    if has(HAS_ROW_FLAGS) {
        atomicOr(&row_flags[params.at.b6 + row], bits);
    }
}

// ---- gather -----------------------------------------------------------------

@compute @workgroup_size(64)
fn gather(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = params.row0 + group_index(group, groups) * 64u + thread;
    if row >= params.row1 {
        return;
    }
    var request = row;
    var is_padded = false;
    if has(HAS_REQUESTS) {
        // A negative request is a large number here.
        let at = (params.at.b2 + row) * params.request_words;
        let high = requests[at + params.request_words - 1u];
        request = requests[at];
        is_padded = request == NONE && high == NONE;
        if params.request_words == 2u && high != 0u {
            request = NONE;
        }
    }
    var degrees = 0x7fc00000u;
    if request < params.requests {
        degrees = temperature[params.at.b3 + request];
    }
    let zero = (degrees << 1u) == 0u;
    let bad = is_nan(degrees) || (!zero && (degrees >> 31u) == 1u);
    var found = select(0u, BAD_LENGTHS, bad && !is_padded);
    let fate = select(FATE_DRAWN, FATE_GREEDY, zero || bad);
    store(row, FATE, select(fate, FATE_PADDING, is_padded));
    store(row, CUT_KEY, 0u);
    store(row, CUT_END, 0u);
    store(row, CUT_ROUTE, ROUTE_NONE);
    if !(zero || bad) {
        store(row, INVERSE, bitcast<u32>(exact_inverse(degrees)));
        store_pair(row, SEED, seeds[params.at.b4 + request]);
        let words = params.position_words;
        let at = (params.at.b8 + row) * words;
        store_pair(row, POSITION, integer(positions[at], positions[at + words - 1u], words));
        var k = 0u;
        if has(HAS_TOP_K) {
            k = top_k[params.at.b5 + request];
        }
        // A negative top-k is a large number here, and so turns the filter off.
        store(row, TOP_K, select(k, 0u, k >= params.vocab));
        var share = 0x3f800000u;
        if has(HAS_TOP_P) {
            share = top_p[params.at.b6 + request];
        }
        let off = !is_nan(share) && (share >> 31u) == 0u && share >= 0x3f800000u;
        store(row, HAS_SHARE, select(1u, 0u, off));
        store(row, TOP_P, share_units(share));
        var least = 0u;
        if has(HAS_MIN_P) {
            least = min_p[params.at.b7 + request];
        }
        if is_nan(share) || is_nan(least) {
            found |= BAD_LENGTHS;
        }
        var floor = vec2(0u, 0u);
        if is_nan(least) {
            floor = ONE;
        } else if (least >> 31u) == 0u {
            floor = fixed_probability(least);
        }
        store_pair(row, FLOOR, floor);
    }
    store(row, FOUND, found);
}

// floor(share * 2^32) for a share above 0 and below 1; 0 for all other shares.
fn share_units(bits: u32) -> u32 {
    let exponent = bits >> 23u;
    if exponent >= 127u || exponent < 95u {
        return 0u;
    }
    let mantissa = (bits & 0x7fffffu) | 0x800000u;
    if exponent >= 118u {
        return mantissa << (exponent - 118u);
    }
    return mantissa >> (118u - exponent);
}

// ---- the largest ------------------------------------------------------------

// For each group of a tile, the largest of all logits, where the mask makes a difference.
var<workgroup> group_raw: array<atomic<u32>, TILE_GROUPS>;

// What a thread has seen of a chunk: the least order of its entries, and whether an entry was
// infinite or NaN without a sign.
struct Seen {
    least: u32,
    odd: bool,
}

// Looks at a lane's two entries. The order of an absent entry is 0, and so may be that of NaN.
fn see_pair(
    seen: ptr<function, Seen>,
    row: u32,
    tile_group: u32,
    column: u32,
    lane: u32,
    orders_in: vec2<u32>,
) {
    var orders = orders_in;
    if max(orders.x, orders.y) >= ORDER_OF_INFINITY {
        (*seen).odd = true;
        // NaN counts as negative infinity.
        orders = select(orders, vec2(LOWEST_KEY), orders > vec2(ORDER_OF_INFINITY));
    }
    if has(HAS_MASK) && column < params.vocab {
        if params.raw_maxima != params.maxima {
            atomicMax(&group_raw[tile_group], max(orders.x, orders.y));
        }
        let next = min(column + pair_step(), params.vocab - 1u);
        let allowed = vec2(
            (allowed_word(row, column / 32u) >> (column % 32u)) & 1u,
            (allowed_word(row, next / 32u) >> (next % 32u)) & 1u,
        );
        orders = select(vec2(0u), orders, allowed == vec2(1u));
    }
    note_pair(tile_group, lane, max(orders.x, orders.y));
}

@compute @workgroup_size(THREADS)
fn scan(
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
    if has(HAS_REQUESTS) && load_for_all(row, FATE, thread) == FATE_PADDING {
        return;
    }
    let separate = params.raw_maxima != params.maxima;
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let team = thread / GROUP_LANES;
    let lane = thread % GROUP_LANES;
    let teams = THREADS / GROUP_LANES;
    let last = (chunk + 1u) * (params.chunk / 64u);
    var seen = Seen(NONE, false);
    for (var tile = chunk * (params.chunk / 64u); tile < last; tile += TILE_GROUPS) {
        if separate {
            if thread < TILE_GROUPS {
                atomicStore(&group_raw[thread], 0u);
            }
            workgroupBarrier();
        }
        let in_tile = min(last - tile, TILE_GROUPS);
        // Four groups at a time, so that their loads are in flight together.
        for (var i = team; i < in_tile; i += 4u * teams) {
            let column = pair_at(tile + i, lane).x;
            let step = teams * 64u;
            if (tile + i) * 64u + 3u * step + 64u <= end && i + 3u * teams < in_tile {
                let first = pair_of(row, column);
                let second = pair_of(row, column + step);
                let third = pair_of(row, column + 2u * step);
                let fourth = pair_of(row, column + 3u * step);
                let a = orders_of(first);
                let b = orders_of(second);
                let c = orders_of(third);
                let d = orders_of(fourth);
                let least = min(min(a, b), min(c, d));
                seen.least = min(seen.least, min(least.x, least.y));
                see_pair(&seen, row, i, column, lane, a);
                see_pair(&seen, row, i + teams, column + step, lane, b);
                see_pair(&seen, row, i + 2u * teams, column + 2u * step, lane, c);
                see_pair(&seen, row, i + 3u * teams, column + 3u * step, lane, d);
            } else {
                for (var k = i; k < min(in_tile, i + 4u * teams); k += teams) {
                    let at = pair_at(tile + k, lane).x;
                    let orders = last_orders(row, at, end);
                    // The order of a present entry is not 0.
                    let there = select(orders, vec2(NONE), orders == vec2(0u));
                    seen.least = min(seen.least, min(there.x, there.y));
                    see_pair(&seen, row, k, at, lane, orders);
                }
            }
        }
        let largest = largest_of_tile(thread);
        if thread < in_tile {
            // A group that has entries has a key.
            let lowest = select(0u, LOWEST_KEY, (tile + thread) * 64u < end);
            work[maxima_at(row) + tile + thread] = max(key_of_order(largest), lowest);
            if separate {
                let raw = key_of_order(atomicLoad(&group_raw[thread]));
                // A group of columns that stand for no tokens has no key.
                work[raw_maxima_at(row) + tile + thread] = max(raw, lowest * least_order());
            }
        }
    }
    // `columns` has looked at the logits of a copied row.
    if COLUMNS == 0u && (seen.odd || seen.least < LOWEST_KEY) {
        raise(row, NON_FINITE);
    }
}

// The key of the largest logit over all ranks, where `own` is that of the row. A number that cannot be
// it is left out, with a flag.
fn given_largest(row: u32, own: u32) -> u32 {
    let bits = load(row, GIVEN);
    let key = sort_key(bits);
    if is_nan(bits) || key < own {
        // Whatever ends the row.
        raise(row, BAD_LENGTHS);
        return own;
    }
    return key;
}

@compute @workgroup_size(WIDE)
fn open(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    if has(HAS_REQUESTS) && load_for_all(row, FATE, thread) == FATE_PADDING {
        if thread == 0u {
            store(row, TOKEN, NONE);
            store(row, FATE, FATE_CERTAIN);
            if COLUMNS == 1u {
                store(row, PLACE, PLACE_PADDING);
            }
        }
        return;
    }
    if thread == 0u {
        atomicStore(&shared_key, 0u);
        atomicStore(&shared_raw, 0u);
        atomicStore(&shared_index, NONE);
    }
    workgroupBarrier();
    var largest_key = 0u;
    var largest_raw_key = 0u;
    for (var group = thread; group < params.groups; group += WIDE) {
        largest_key = max(largest_key, work[maxima_at(row) + group]);
        // The same maxima where nothing is reported.
        largest_raw_key = max(largest_raw_key, work[raw_maxima_at(row) + group]);
    }
    atomicMax(&shared_key, largest_key);
    atomicMax(&shared_raw, largest_raw_key);
    workgroupBarrier();
    if thread == 0u {
        shared_word = atomicLoad(&shared_key);
        if COLUMNS == 1u && has(HAS_MAXIMA) {
            shared_word = given_largest(row, shared_word);
        }
    }
    let largest = workgroupUniformLoad(&shared_word);
    let none = largest <= LOWEST_KEY;
    if none {
        // The lowest allowed token, else 0.
        if has(HAS_MASK) {
            for (var word = thread; word * 32u < params.vocab; word += WIDE) {
                let bits = allowed_word(row, word);
                if bits != 0u {
                    atomicMin(&shared_index, word * 32u + firstTrailingBit(bits));
                    break;
                }
            }
        }
        workgroupBarrier();
    }
    if thread == 0u {
        let token = atomicLoad(&shared_index);
        var fate = select(load(row, FATE), FATE_CERTAIN, none);
        store(row, LARGEST, largest);
        store(row, RAW_LARGEST, atomicLoad(&shared_raw));
        // Bits of a mask's last word that lie beyond the vocabulary stand for no token.
        store(row, TOKEN, select(0u, token, token < params.vocab));
        if COLUMNS == 1u {
            let is_elsewhere = fate == FATE_GREEDY && atomicLoad(&shared_key) < largest;
            let has_nothing = is_elsewhere || (none && token == NONE);
            store(row, PLACE, select(PLACE_CERTAIN, PLACE_NOTHING, has_nothing));
            if is_elsewhere {
                // Another rank has the largest logit.
                store(row, TOKEN, NONE);
                fate = FATE_CERTAIN;
            }
        }
        store(row, FATE, fate);
        let found = select(load(row, FOUND), NON_FINITE, none);
        if found != 0u {
            raise(row, found);
        }
        var route = ROUTE_NONE;
        let filtered = load(row, TOP_K) > 0u || load(row, HAS_SHARE) == 1u;
        if fate == FATE_DRAWN && params.capacity > 0u && filtered {
            let bounds = load(row, TOP_K) - 1u < params.groups / 2u && !drops_first(row);
            route = select(ROUTE_LEVELS, ROUTE_BOUND, bounds);
        }
        shared_word = route;
    }
    var route = workgroupUniformLoad(&shared_word);
    if route == ROUTE_NONE {
        return;
    }
    if route == ROUTE_BOUND {
        let groups = Source(IN_MAXIMA, maxima_at(row), params.groups);
        begin_selection(thread, vec2(0u, 0u), vec2(load(row, TOP_K), 0u));
        for (var round = 0u; round < KEY_ROUNDS; round++) {
            select_round(row, groups, round, BY_COUNT, thread);
        }
        let bound = workgroupUniformLoad(&selection);
        // Groups without entries may leave fewer than k keys.
        if bound.running == 0u && bound.key == 0u {
            route = ROUTE_LEVELS;
        }
        if thread == 0u {
            store(row, BOUND, bound.key);
        }
    }
    if thread == 0u {
        store(row, CUT_ROUTE, route);
        atomicStore(&levels[levels_at(row) + LISTED], 0u);
    }
    if route == ROUTE_LEVELS {
        for (var word = thread; word < LEVELS * 3u; word += WIDE) {
            atomicStore(&levels[levels_at(row) + word], 0u);
        }
    }
}

// Whether min_p drops entries before the row is cut.
fn drops_first(row: u32) -> bool {
    return params.min_p_first != 0u && any(load_pair(row, FLOOR) != vec2(0u, 0u));
}
