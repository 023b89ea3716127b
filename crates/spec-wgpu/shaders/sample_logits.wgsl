//!include params/sample_logits
//!include exact
//!include integers
//!include philox
//!include probability
//!include select
// sample_logits: the next token of each row of logits.
//
// Passes, each its own dispatches; no workgroup ever waits for another:
//
// * `gather`   a thread a row: what the row's request asks for.
// * `scan`     a workgroup a chunk of a row: its largest logit, of those allowed and
//              of all, and the largest key of each group of its entries.
// * `open`     a workgroup a row: the largest logit of all chunks. A row that is
//              greedy, or has nothing to choose from, ends here. For a top-k of less
//              than half the groups, the k-th of their keys: no less than k entries
//              reach it, and in most rows not many more.
// * `spread`   a workgroup a chunk: how many entries there are and what they weigh, by
//              how far below the largest they are, for rows that are cut otherwise.
// * `aim`      a workgroup a row: where among those the cut lies.
// * `collect`  a workgroup a chunk: lists what reaches the bound, or lies where the cut
//              does; entries that equal the bound are only counted.
// * `cut`      a workgroup a row: cuts the list by top-k, then by top-p
//              (include/select.wgsl). Where a list would be too long, it selects in the
//              row itself.
// * `sum`      a workgroup a chunk: the sum of the weights that are left.
// * `draw`     a workgroup a row: the token, in the chunk that holds it.
// * `share`    a workgroup a chunk: the probabilities.
//
// A row that is not filtered leaves the passes between `open` and `sum` at once.
// `sum` and `settle` also find what a token's probability by the logits alone is of.
// Logits larger than a binding come in windows of whole rows.
//
// Bytes moved: the logits twice; where there are filters, mostly once and of the rest
// the groups that reach what is kept; a top-p alone reads them once or twice more.

override DTYPE = 0u;
// Threads of a workgroup that has a row, a multiple of THREADS.
override WIDE = 256u;

const HAS_REQUESTS = 1u;
const HAS_TOP_K = 2u;
const HAS_TOP_P = 4u;
const HAS_MIN_P = 8u;
const HAS_MASK = 16u;
const HAS_LOGPROBS = 32u;

// What `sum` adds up: the weights that are left, or those of all logits as given.
const TOTAL = 0u;
const RAW = 1u;

const NON_FINITE = 1u;
const BAD_LENGTHS = 4u;
const NONE = 0xffffffffu;
const THREADS = 256u;
const LOWEST_KEY = 0x007fffffu;
const ONE = vec2(0u, 256u);

// A row between the passes.
const STATE = 64u;
const INVERSE = 0u;
const FOUND = 1u;
const TOKEN = 2u;
const TOP_K = 3u;
// In units of 2^-32, and whether there is one.
const TOP_P = 4u;
const HAS_SHARE = 5u;
const FLOOR = 6u;
const SEED = 8u;
const POSITION = 10u;
const LARGEST = 12u;
const RAW_LARGEST = 13u;
const RAW_SUM = 14u;
const GREEDY = 16u;
// The cut: larger keys stay, and that key below an index.
const CUT_KEY = 17u;
const CUT_END = 18u;
// How the row is cut: HOW_.
const HOW = 19u;
// The key that what is kept reaches; or the levels where the cut lies, from first to
// last, and what lies before them: entries, weight.
const BOUND = 20u;
const FIRST_LEVEL = 21u;
const LAST_LEVEL = 22u;
const BEFORE = 23u;
const BEFORE_WEIGHT = 24u;
// The limit of top-p, where it is known before the row is cut.
const LIMIT = 26u;
const SUM = 28u;
// A selection in the row under way.
const RUNNING = 30u;
const KNOWN_KEY = 31u;
const KNOWN_INDEX = 32u;
const ABOVE = 34u;

const HOW_NOT = 0u;
const HOW_BOUND = 1u;
const HOW_LEVELS = 2u;
const HOW_ROW = 3u;
// By top-p, among what is as large as the largest, as far as is known.
const HOW_LARGEST = 4u;

// A chunk's result, 3 words: largest key, its first index, largest of all keys; or a
// sum, two words; or how many entries equal the bound.
const PARTIAL = 3u;

// How far entries are below the largest, by the exponent of their weight: 1/32 a
// level. What is below all levels weighs nothing.
const LEVELS = 1024u;
const LAST = 896u;
// A row's words for them: entries, weights' low and high words; then how many entries
// are listed.
const SPREAD = 3328u;
// Levels of a thread.
const EACH = 4u;
const LISTED = 3072u;

// Entries of a list that is cut by comparing each with each.
const SHORT = 512u;

// What a selection weighs, and where its entries are.
const BY_COUNT = 0u;
const BY_SHARE = 1u;
const IN_MAXIMA = 0u;
const IN_LIST = 1u;
const IN_ROW = 2u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
// gather
@group(0) @binding(2) var<storage, read> requests: array<u32>;
@group(0) @binding(3) var<storage, read> temperature: array<u32>;
@group(0) @binding(4) var<storage, read> seeds: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read> top_k: array<u32>;
@group(0) @binding(6) var<storage, read> top_p: array<u32>;
@group(0) @binding(7) var<storage, read> min_p: array<u32>;
@group(0) @binding(8) var<storage, read> positions: array<u32>;
// the others
@group(0) @binding(2) var<storage, read_write> levels: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> logits: array<u32>;
@group(0) @binding(4) var<storage, read> mask: array<u32>;
@group(0) @binding(5) var<storage, read_write> flags: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(7) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(8) var<storage, read_write> probs: array<f32>;

var<workgroup> shared_key: atomic<u32>;
var<workgroup> shared_raw: atomic<u32>;
var<workgroup> shared_index: atomic<u32>;
var<workgroup> thread_keys: array<u32, THREADS>;
var<workgroup> shared_word: u32;
var<workgroup> shared_pair: vec2<u32>;

fn has(what: u32) -> bool {
    return (params.has & what) != 0u;
}

// ---- the workspace ----------------------------------------------------------

fn load(row: u32, field: u32) -> u32 {
    return work[params.at.b1 + (row - params.row0) * STATE + field];
}

// The same in all threads of a workgroup, as control flow asks for.
fn load_for_all(row: u32, field: u32, thread: u32) -> u32 {
    if thread == 0u {
        shared_word = load(row, field);
    }
    return workgroupUniformLoad(&shared_word);
}

fn load_pair(row: u32, field: u32) -> vec2<u32> {
    return vec2(load(row, field), load(row, field + 1u));
}

fn store(row: u32, field: u32, value: u32) {
    work[params.at.b1 + (row - params.row0) * STATE + field] = value;
}

fn store_pair(row: u32, field: u32, value: vec2<u32>) {
    store(row, field, value.x);
    store(row, field + 1u, value.y);
}

fn partial_at(row: u32, chunk: u32) -> u32 {
    let job = (row - params.row0) * params.chunks + chunk;
    return params.at.b1 + params.partials + job * PARTIAL;
}

fn maxima_at(row: u32, chunk: u32) -> u32 {
    let job = (row - params.row0) * params.chunks + chunk;
    return params.at.b1 + params.maxima + job * params.groups;
}

// The largest key of the entries of a chunk that a thread goes over: of columns that
// leave the same rest as the thread by the number of groups.
fn largest_of_thread(row: u32, chunk: u32, thread: u32) -> u32 {
    return work[maxima_at(row, chunk) + (thread & (params.groups - 1u))];
}

fn list_at(row: u32) -> u32 {
    return params.at.b1 + params.lists + (row - params.row0) * params.capacity * 2u;
}

fn levels_at(row: u32) -> u32 {
    return params.at.b2 + (row - params.row0) * SPREAD;
}

// ---- entries ----------------------------------------------------------------

// The f32 that a key is of, as bits.
fn bits_of(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, (key >> 31u) == 1u);
}

// A logit as bits of an f32.
fn logit(row: u32, column: u32) -> u32 {
    let at = params.at.b3 + (row - params.row0) * params.logits_stride + column;
    return float_bits(logits[float_word(at, DTYPE)], at, DTYPE);
}

fn allowed_word(row: u32, word: u32) -> u32 {
    return mask[params.at.b4 + (row - params.row0) * params.mask_stride + word];
}

// The key of an entry: negative infinity's where the mask does not allow it.
fn masked(row: u32, column: u32, key: u32) -> u32 {
    if has(HAS_MASK) && ((allowed_word(row, column / 32u) >> (column % 32u)) & 1u) == 0u {
        return LOWEST_KEY;
    }
    return key;
}

// What turns keys into weights.
struct Scale {
    largest: u32,
    inverse: f32,
}

fn scale_of(row: u32) -> Scale {
    return Scale(load(row, LARGEST), bitcast<f32>(load(row, INVERSE)));
}

// What a weight has no unit of lies below this.
const NO_UNIT = -28.0f;

// (x - largest) * inverse: the exponent of a weight; -128 for some that have no unit.
fn exponent(scale: Scale, key: u32) -> f32 {
    if key == scale.largest {
        return 0.0f;
    }
    let largest = bits_of(scale.largest);
    if key <= LOWEST_KEY || !is_finite(largest) {
        return -128.0f;
    }
    let below = add_bits(bits_of(key), largest ^ 0x80000000u);
    // From 2^8 on, nothing is left; what no multiplication can then overflow.
    let exponents = ((below >> 23u) & 255u) + (bitcast<u32>(scale.inverse) >> 23u);
    if exponents >= 254u + 8u {
        return -128.0f;
    }
    return mul(bitcast<f32>(below), scale.inverse);
}

fn weight(scale: Scale, key: u32) -> f32 {
    // 1 for 0.
    return exact_exp(exponent(scale, key));
}

// A weight in units of 2^-40, as fixed_probability has it: 20 bits, then 20. Every
// operation is exact.
fn halves(w: f32) -> vec2<u32> {
    let units = w * 1048576.0f;
    let high = u32(units);
    return vec2(high, u32((units - f32(high)) * 1048576.0f));
}

// The sum of some halves, of 2^12 at most.
fn joined(sums: vec2<u32>) -> vec2<u32> {
    return u64_add(vec2(sums.x << 20u, sums.x >> 12u), vec2(sums.y, 0u));
}

fn fixed_weight(w: f32) -> vec2<u32> {
    let split = halves(w);
    return vec2((split.x << 20u) | split.y, split.x >> 12u);
}

fn fixed(scale: Scale, key: u32) -> vec2<u32> {
    return fixed_weight(weight(scale, key));
}

// The level of an entry, LAST for one that weighs nothing. The same in all passes, and
// in the order of keys: what is rounded on the way is rounded by exact.wgsl.
fn level(scale: Scale, key: u32) -> u32 {
    let below = exponent(scale, key);
    return select(u32(below * -32.0f), LAST, below <= NO_UNIT);
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

// The weight of an entry, 0 for what the cut or min_p drops.
fn kept_weight(row: u32, column: u32, f: Filters) -> f32 {
    return kept_of(masked(row, column, sort_key(logit(row, column))), column, f);
}

fn kept_of(key: u32, column: u32, f: Filters) -> f32 {
    if key < f.cut_key || (key == f.cut_key && column >= f.cut_end) {
        return 0.0f;
    }
    let w = weight(f.scale, key);
    return select(w, 0.0f, u64_less(fixed_weight(w), f.floor));
}

fn kept(row: u32, column: u32, f: Filters) -> vec2<u32> {
    return fixed_weight(kept_weight(row, column, f));
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
    if has(HAS_REQUESTS) {
        // Negative ones are large here.
        let at = (params.at.b2 + row) * params.request_words;
        request = requests[at];
        if params.request_words == 2u && requests[at + 1u] != 0u {
            request = NONE;
        }
    }
    var degrees = 0x7fc00000u;
    if request < params.requests {
        degrees = temperature[params.at.b3 + request];
    }
    let zero = (degrees << 1u) == 0u;
    let bad = is_nan(degrees) || (!zero && (degrees >> 31u) == 1u);
    var found = select(0u, BAD_LENGTHS, bad);
    store(row, GREEDY, select(0u, 1u, zero || bad));
    store(row, CUT_KEY, 0u);
    store(row, CUT_END, 0u);
    store(row, HOW, HOW_NOT);
    if !(zero || bad) {
        // Cut to 2^-100 .. 2^100.
        let cut = clamp(degrees, 27u << 23u, 227u << 23u);
        let mantissa = bitcast<f32>((cut & 0x7fffffu) | 0x3f800000u);
        let scale = bitcast<f32>((254u - (cut >> 23u)) << 23u);
        store(row, INVERSE, bitcast<u32>(mul(exact_reciprocal(mantissa), scale)));
        store_pair(row, SEED, seeds[params.at.b4 + request]);
        let words = params.position_words;
        let at = (params.at.b8 + row) * words;
        store_pair(row, POSITION, integer(positions[at], positions[at + words - 1u], words));
        var k = 0u;
        if has(HAS_TOP_K) {
            k = top_k[params.at.b5 + request];
        }
        // Negative ones are large here too.
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

// floor(share * 2^32) of a number above 0 and below 1; 0 for all others.
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

// What a thread has seen of a row: the largest key of what is allowed and of all, and
// whether there was NaN.
struct Seen {
    key: u32,
    raw: u32,
    nan: bool,
}

fn see(seen: ptr<function, Seen>, row: u32, column: u32, bits: u32) {
    let key = sort_key(bits);
    (*seen).nan = (*seen).nan || is_nan(bits);
    (*seen).raw = max((*seen).raw, key);
    (*seen).key = max((*seen).key, masked(row, column, key));
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
    if thread == 0u {
        atomicStore(&shared_key, 0u);
        atomicStore(&shared_raw, 0u);
        atomicStore(&shared_index, NONE);
    }
    workgroupBarrier();
    let begin = chunk * params.chunk + thread;
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    var seen = Seen(0u, 0u, false);
    var column = begin;
    // Four at a time, all on their way at once.
    for (; column + 3u * THREADS < end; column += 4u * THREADS) {
        let first = logit(row, column);
        let second = logit(row, column + THREADS);
        let third = logit(row, column + 2u * THREADS);
        let fourth = logit(row, column + 3u * THREADS);
        see(&seen, row, column, first);
        see(&seen, row, column + THREADS, second);
        see(&seen, row, column + 2u * THREADS, third);
        see(&seen, row, column + 3u * THREADS, fourth);
    }
    for (; column < end; column += THREADS) {
        see(&seen, row, column, logit(row, column));
    }
    var best = seen.key;
    let raw = seen.raw;
    let odd = seen.nan || raw == 0xff800000u;
    thread_keys[thread] = best;
    atomicMax(&shared_key, best);
    atomicMax(&shared_raw, raw);
    workgroupBarrier();
    if best == atomicLoad(&shared_key) {
        // Its first: of few threads, or soon found.
        column = begin;
        while column < end && masked(row, column, sort_key(logit(row, column))) != best {
            column += THREADS;
        }
        atomicMin(&shared_index, column);
    }
    workgroupBarrier();
    if odd {
        atomicOr(&flags[params.at.b5], NON_FINITE);
    }
    if thread < params.groups {
        for (var other = thread + params.groups; other < THREADS; other += params.groups) {
            best = max(best, thread_keys[other]);
        }
        work[maxima_at(row, chunk) + thread] = best;
    }
    if thread == 0u {
        let at = partial_at(row, chunk);
        work[at] = atomicLoad(&shared_key);
        work[at + 1u] = atomicLoad(&shared_index);
        work[at + 2u] = atomicLoad(&shared_raw);
    }
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
    if thread == 0u {
        atomicStore(&shared_key, 0u);
        atomicStore(&shared_raw, 0u);
        atomicStore(&shared_index, NONE);
    }
    workgroupBarrier();
    var best = 0u;
    var index = NONE;
    var raw = 0u;
    for (var chunk = thread; chunk < params.chunks; chunk += WIDE) {
        let at = partial_at(row, chunk);
        raw = max(raw, work[at + 2u]);
        if work[at] > best {
            best = work[at];
            index = work[at + 1u];
        }
    }
    atomicMax(&shared_key, best);
    atomicMax(&shared_raw, raw);
    workgroupBarrier();
    if best == atomicLoad(&shared_key) {
        atomicMin(&shared_index, index);
    }
    workgroupBarrier();
    if thread == 0u {
        shared_word = atomicLoad(&shared_key);
    }
    let largest = workgroupUniformLoad(&shared_word);
    let none = largest <= LOWEST_KEY;
    if none {
        // The lowest token that is allowed, else 0.
        if thread == 0u {
            atomicStore(&shared_index, select(0u, NONE, has(HAS_MASK)));
        }
        workgroupBarrier();
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
        let greedy = none || load(row, GREEDY) == 1u;
        store(row, LARGEST, largest);
        store(row, RAW_LARGEST, atomicLoad(&shared_raw));
        // The last word of a mask may have bits that stand for nothing.
        store(row, TOKEN, select(0u, token, token < params.vocab));
        store(row, GREEDY, select(0u, 1u, greedy));
        let found = select(load(row, FOUND), NON_FINITE, none);
        if found != 0u {
            atomicOr(&flags[params.at.b5], found);
        }
        var how = HOW_NOT;
        if !greedy && (load(row, TOP_K) > 0u || load(row, HAS_SHARE) == 1u) {
            let half = params.chunks * params.groups / 2u;
            let bounds = load(row, TOP_K) - 1u < half && !drops_first(row);
            how = select(HOW_LEVELS, HOW_BOUND, bounds);
        }
        shared_word = how;
    }
    var how = workgroupUniformLoad(&shared_word);
    if how == HOW_NOT {
        return;
    }
    if how == HOW_BOUND {
        let groups = Source(IN_MAXIMA, maxima_at(row, 0u), params.chunks * params.groups);
        begin_selection(thread, vec2(0u, 0u), vec2(load(row, TOP_K), 0u));
        for (var round = 0u; round < KEY_ROUNDS; round++) {
            select_round(row, groups, round, BY_COUNT, thread);
        }
        let bound = workgroupUniformLoad(&selection);
        // Groups without entries may leave too few.
        if bound.running == 0u && bound.key == 0u {
            how = HOW_LEVELS;
        }
        if thread == 0u {
            store(row, BOUND, bound.key);
        }
    }
    if thread == 0u {
        store(row, HOW, how);
        atomicStore(&levels[levels_at(row) + LISTED], 0u);
    }
    if how == HOW_LEVELS {
        for (var word = thread; word < LEVELS * 3u; word += WIDE) {
            atomicStore(&levels[levels_at(row) + word], 0u);
        }
    }
}

// Whether what weighs little is dropped before the row is cut.
fn drops_first(row: u32) -> bool {
    return params.min_p_first != 0u && any(load_pair(row, FLOOR) != vec2(0u, 0u));
}

// ---- selecting --------------------------------------------------------------

// Entries to select among: where, how many.
struct Source {
    kind: u32,
    at: u32,
    size: u32,
}

var<workgroup> selection: Selection;
// The cut so far: its key and its end.
var<workgroup> cut_so_far: vec2<u32>;

fn begin_selection(thread: u32, above: vec2<u32>, limit: vec2<u32>) {
    workgroupBarrier();
    if thread == 0u {
        selection = Selection(1u, 0u, 0u, above, limit);
    }
}

// An entry of a source: its key, 0 for one that the cut so far drops, and its index.
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
        key = masked(row, i, sort_key(logit(row, i)));
    }
    let drops = key < so_far.x || (key == so_far.x && index >= so_far.y);
    return vec2(select(key, 0u, drops), index);
}

// Every thread calls it.
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
        // All that is there stays.
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
        // Whether the weights before the last of that key are below the limit.
        let before = u64_sub(u64_add(found.above, found.within), one);
        if u64_less(before, now.limit) {
            // All that an earlier cut left of them.
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

// The sum of the weights that the cut so far leaves. Every thread calls it.
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

// The limit of top-p: a share of a sum, at least 1, so that the first is kept.
fn limit_of(row: u32, sum: vec2<u32>) -> vec2<u32> {
    let limit = u64_mul_high(sum, vec2(0u, load(row, TOP_P)));
    return select(limit, vec2(1u, 0u), all(limit == vec2(0u, 0u)));
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
    if load_for_all(row, HOW, thread) != HOW_LEVELS {
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
    if level(scale, largest_of_thread(row, chunk, thread)) < LAST {
        let end = min(params.vocab, (chunk + 1u) * params.chunk);
        // Neighbours of one level are added at once.
        var current = LAST;
        var count = 0u;
        var own = vec2(0u, 0u);
        for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
            let key = masked(row, column, sort_key(logit(row, column)));
            let below = exponent(scale, key);
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
    }
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
    if load_for_all(row, HOW, thread) != HOW_LEVELS {
        return;
    }
    // A thread has neighbouring levels.
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
    // What no draw can choose does not matter to top-p, and is below all that does.
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
        // Of one thread at most.
        if here && (k > 0u || shares) {
            let last = thread * EACH + j;
            var how = HOW_LEVELS;
            store(row, LAST_LEVEL, last);
            store_pair(row, LIMIT, limit);
            if next_count <= params.capacity {
                store(row, FIRST_LEVEL, 0u);
                store(row, BEFORE, 0u);
                store_pair(row, BEFORE_WEIGHT, vec2(0u, 0u));
            } else {
                // For top-p after top-k, all that is kept must be listed.
                if k == 0u && last == 0u {
                    how = HOW_LARGEST;
                    store(row, BOUND, load(row, LARGEST));
                } else if counts[j] > params.capacity || (k > 0u && shares) {
                    how = HOW_ROW;
                }
                store(row, FIRST_LEVEL, last);
                store(row, BEFORE, before_count);
                store_pair(row, BEFORE_WEIGHT, before);
            }
            store(row, HOW, how);
        }
        before = next;
        before_count = next_count;
    }
    storageBarrier();
    // Where nothing is cut off, no other thread says so.
    if thread == 0u {
        store(row, TOP_K, k);
        if k == 0u && !shares {
            store(row, HOW, HOW_NOT);
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
    let how = load_for_all(row, HOW, thread);
    if how == HOW_NOT || how == HOW_ROW {
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
    let largest = largest_of_thread(row, chunk, thread);
    var reaches = largest >= bound;
    if how == HOW_LEVELS {
        reaches = level(scale, largest) <= last;
    }
    // Which of this thread's entries, of 32 at most.
    var bits = 0u;
    var equal = 0u;
    let begin = chunk * params.chunk + thread;
    if reaches {
        let end = min(params.vocab, (chunk + 1u) * params.chunk);
        var bit = 1u;
        for (var column = begin; column < end; column += THREADS) {
            let key = masked(row, column, sort_key(logit(row, column)));
            var takes = key > bound;
            if how == HOW_LEVELS {
                let at = level(scale, key);
                takes = at >= first && at <= last;
                if takes && any(floor != vec2(0u, 0u)) {
                    takes = !u64_less(fixed(scale, key), floor);
                }
            } else if key == bound {
                equal += 1u;
            }
            bits |= select(0u, bit, takes);
            bit <<= 1u;
        }
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
    // Which place an entry has does not matter.
    while bits != 0u && place < params.capacity {
        let column = begin + firstTrailingBit(bits) * THREADS;
        let to = list_at(row) + 2u * place;
        work[to] = masked(row, column, sort_key(logit(row, column)));
        work[to + 1u] = column;
        bits &= bits - 1u;
        place += 1u;
    }
}

// How many entries of a weight, after others, a limit keeps: the weights before the
// last are below it.
fn kept_of_equals(others: vec2<u32>, limit: vec2<u32>, q: vec2<u32>) -> u32 {
    let rest = u64_sub(limit, others);
    // The least whose weights reach the rest; the rows' columns are below 2^24.
    var least = 0u;
    for (var bit = 0x800000u; bit > 0u; bit >>= 1u) {
        let tried = least | bit;
        // Of tried - 1 entries, q at most 2^40: no overflow.
        let before = u64_add(u32_mul(q.x, tried - 1u), vec2(0u, q.y * (tried - 1u)));
        if u64_less(before, rest) {
            least = tried;
        }
    }
    return least;
}

// Where the cut ends among the entries that equal the bound, to keep some of them.
fn end_of_equals(row: u32, bound: u32, some: u32, thread: u32) {
    // A thread has a few chunks in a row.
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
    // And a few entries of that chunk.
    let few = params.chunk / SELECT_BINS;
    let end_of_chunk = min(params.vocab, (found.x + 1u) * params.chunk);
    let start = min(found.x * params.chunk + thread * few, end_of_chunk);
    let stop = select(min(start + few, end_of_chunk), start, thread >= SELECT_BINS);
    var bits = 0u;
    for (var column = start; column < stop; column++) {
        let key = masked(row, column, sort_key(logit(row, column)));
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
        var how = load(row, HOW);
        let some = atomicLoad(&levels[levels_at(row) + LISTED]);
        if how != HOW_NOT && some > params.capacity {
            how = HOW_ROW;
        }
        cut_so_far = vec2(load(row, CUT_KEY), load(row, CUT_END));
        shared_pair = vec2(how, some);
    }
    let found = workgroupUniformLoad(&shared_pair);
    if found.x == HOW_NOT {
        return;
    }
    var in_row = found.x == HOW_ROW;
    if found.x == HOW_LARGEST {
        in_row = !cut_largest(row, thread);
    } else if !in_row && found.y <= min(SHORT, WIDE) {
        cut_short_list(row, found.x == HOW_BOUND, found.y, thread);
    } else if !in_row {
        cut_list(row, found.x == HOW_BOUND, found.y, thread);
    }
    if in_row {
        cut_in_row(row, thread);
    }
    workgroupBarrier();
    if thread == 0u {
        store(row, CUT_KEY, cut_so_far.x);
        store(row, CUT_END, cut_so_far.y);
        store(row, HOW, select(HOW_NOT, HOW_ROW, in_row));
    }
}

fn cut_list(row: u32, bounds: bool, size: u32, thread: u32) {
    let list = Source(IN_LIST, list_at(row), size);
    if thread == 0u {
        shared_pair = vec2(load(row, TOP_K), load(row, HAS_SHARE));
    }
    let wanted = workgroupUniformLoad(&shared_pair);
    // How many of the entries that equal the bound are kept.
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

// As cut_list, where each thread has an entry at most: it counts and weighs those before
// it in the order.
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
    // How many of the list top-k keeps, and of those that equal the bound.
    var most = size;
    var equal = 0u;
    if k > 0u {
        let earlier = select(load(row, BEFORE), 0u, bounds);
        most = min(k - earlier, size);
        equal = select(0u, k - most, bounds);
    }
    let last = thread < size && rank + 1u == most;
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
    if thread < size && rank < most && u64_less(before, limit) {
        // The last of them.
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

// Whether top-p keeps no more than what is as large as the largest; then that is cut.
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

// Selects in a row that no list holds: the steps of this dispatch.
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

// ---- sums -------------------------------------------------------------------

// Whether a row takes part in a sum.
fn sums(row: u32) -> bool {
    return params.purpose == RAW || load(row, GREEDY) == 0u;
}

@compute @workgroup_size(THREADS)
fn sum(
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
    if thread == 0u {
        shared_word = select(0u, 1u, sums(row));
    }
    if workgroupUniformLoad(&shared_word) == 0u {
        return;
    }
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    var own = vec2(0u, 0u);
    if params.purpose == RAW {
        let raw = Scale(load(row, RAW_LARGEST), 1.0f);
        var sums = vec2(0u, 0u);
        for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
            sums += halves(weight(raw, sort_key(logit(row, column))));
        }
        own = joined(sums);
    } else {
        let filters = filters_of(row);
        let largest = largest_of_thread(row, chunk, thread);
        if largest >= filters.cut_key && exponent(filters.scale, largest) > NO_UNIT {
            var sums = vec2(0u, 0u);
            var column = chunk * params.chunk + thread;
            for (; column + THREADS < end; column += 2u * THREADS) {
                let first = masked(row, column, sort_key(logit(row, column)));
                let next = column + THREADS;
                let second = masked(row, next, sort_key(logit(row, next)));
                sums += halves(kept_of(first, column, filters));
                sums += halves(kept_of(second, next, filters));
            }
            if column < end {
                sums += halves(kept_weight(row, column, filters));
            }
            own = joined(sums);
        }
    }
    let through = sum_through(thread, own);
    if thread == THREADS - 1u {
        let at = partial_at(row, chunk);
        work[at] = through.x;
        work[at + 1u] = through.y;
    }
}

// The sum of all of a row's logits as given.
@compute @workgroup_size(THREADS)
fn settle(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    var own = vec2(0u, 0u);
    for (var chunk = thread; chunk < params.chunks; chunk += THREADS) {
        let at = partial_at(row, chunk);
        own = u64_add(own, vec2(work[at], work[at + 1u]));
    }
    _ = sum_through(thread, own);
    let total = sum_of_all();
    if thread == 0u {
        store_pair(row, RAW_SUM, total);
    }
}

// ---- results ----------------------------------------------------------------

@compute @workgroup_size(THREADS)
fn draw(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    if load_for_all(row, GREEDY, thread) == 1u {
        if thread == 0u {
            write_token(row, load(row, TOKEN));
        }
        return;
    }
    // A thread has a few chunks in a row.
    let each_chunks = (params.chunks + THREADS - 1u) / THREADS;
    let first_chunk = min(thread * each_chunks, params.chunks);
    let end_chunk = min(first_chunk + each_chunks, params.chunks);
    var of_chunks = vec2(0u, 0u);
    for (var chunk = first_chunk; chunk < end_chunk; chunk++) {
        let at = partial_at(row, chunk);
        of_chunks = u64_add(of_chunks, vec2(work[at], work[at + 1u]));
    }
    let through_chunks = sum_through(thread, of_chunks);
    let total = sum_of_all();
    let random = philox(vec4(load_pair(row, POSITION), 0u, 0u), load_pair(row, SEED)).xy;
    let threshold = u64_mul_high(random, total);
    var before = u64_sub(through_chunks, of_chunks);
    // Of one thread.
    if !u64_less(threshold, before) && u64_less(threshold, through_chunks) {
        var chunk = first_chunk;
        for (; chunk + 1u < end_chunk; chunk++) {
            let at = partial_at(row, chunk);
            let next = u64_add(before, vec2(work[at], work[at + 1u]));
            if u64_less(threshold, next) {
                break;
            }
            before = next;
        }
        store_pair(row, SUM, total);
        shared_word = chunk;
        shared_pair = u64_sub(threshold, before);
    }
    let begin = workgroupUniformLoad(&shared_word) * params.chunk;
    let rest = workgroupUniformLoad(&shared_pair);
    // And a few entries in a row of the chunk that holds the threshold.
    let filters = filters_of(row);
    let each = params.chunk / THREADS;
    let first = min(params.vocab, begin + thread * each);
    let end = min(params.vocab, first + each);
    var own = vec2(0u, 0u);
    for (var column = first; column < end; column++) {
        own = u64_add(own, kept(row, column, filters));
    }
    let through = sum_through(thread, own);
    before = u64_sub(through, own);
    if !u64_less(rest, before) && u64_less(rest, through) {
        var column = first;
        for (; column + 1u < end; column++) {
            let next = u64_add(before, kept(row, column, filters));
            if u64_less(rest, next) {
                break;
            }
            before = next;
        }
        write_token(row, column);
    }
}

fn write_token(row: u32, token: u32) {
    store(row, TOKEN, token);
    let to = (params.at.b6 + row) * params.token_words;
    tokens[to] = token;
    if params.token_words == 2u {
        tokens[to + 1u] = 0u;
    }
    if !has(HAS_LOGPROBS) {
        return;
    }
    let key = sort_key(logit(row, token));
    let largest = load(row, RAW_LARGEST);
    if key <= LOWEST_KEY {
        // Negative infinity, which a shader compiler may not know.
        logprobs[params.at.b7 + row] = bitcast<f32>(0xff800000u | params.at.zero);
        return;
    }
    var below = 0.0f;
    if key != largest {
        if !is_finite(bits_of(largest)) {
            logprobs[params.at.b7 + row] = bitcast<f32>(0xff800000u | params.at.zero);
            return;
        }
        below = bitcast<f32>(add_bits(bits_of(key), bits_of(largest) ^ 0x80000000u));
    }
    let sum = load_pair(row, RAW_SUM);
    // 1 and more, in units of 2^-40.
    let whole = f32(sum.y) * 0.00390625f + f32(sum.x) * 9.094947e-13f;
    logprobs[params.at.b7 + row] = below - log(whole);
}

@compute @workgroup_size(THREADS)
fn share(
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
    let certain = load(row, GREEDY) == 1u;
    let token = load(row, TOKEN);
    let filters = filters_of(row);
    let factor = softmax_factor_of(load_pair(row, SUM), 40u);
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let to = params.at.b8 + (row - params.row0) * params.probs_stride;
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        var value = 0.0f;
        if certain {
            value = select(0.0f, 1.0f, column == token);
        } else {
            let w = kept_weight(row, column, filters);
            if any(halves(w) != vec2(0u, 0u)) {
                value = softmax_score(w, factor);
            }
        }
        probs[to + column] = value;
    }
}
