//!include bound
//!include exact
//!include philox
//!include probability
//!include select
// sample_logits: the next token of each row of logits.
//
// Passes, each its own dispatches; no workgroup ever waits for another:
//
// * `gather`  a thread a row: what the row's request asks for.
// * `scan`    a workgroup a chunk of a row: its largest logit, of those allowed and
//             of all.
// * `open`    a workgroup a row: the largest logit of all chunks. A row that is
//             greedy, or has nothing to choose from, ends here.
// * `count` and `pick`, in turns: cut the row by top-k, then by top-p
//             (include/select.wgsl). A row that is not filtered leaves at once.
// * `sum` and `settle`: the sum of the weights, by chunk, then of the row: what top-p
//             takes a share of, what a token is drawn from, what its probability by
//             the logits alone is of.
// * `locate`  a workgroup a row: the token, in the chunk that holds it.
// * `share`   a workgroup a chunk: the probabilities.
//
// Logits larger than a binding come in windows of whole rows.
//
// Bytes moved: the logits, once a pass: twice without filters, eight times more with
// each; from a GPU's cache after the first where they fit it.

struct Params {
    at: At,
    vocab: u32,
    requests: u32,
    // Elements of a chunk, a multiple of 256, and chunks of a row.
    chunk: u32,
    chunks: u32,
    // Words of a position, of a row's request and of a token.
    position_words: u32,
    request_words: u32,
    token_words: u32,
    min_p_first: u32,
    // Which optional arguments are there: HAS_ bits.
    has: u32,
    // What a pass is for, and which round.
    purpose: u32,
    round: u32,
    // Where the workspace's partial results begin: states come first.
    partials: u32,
    // The window's rows, and elements from row to row in it.
    row0: u32,
    row1: u32,
    logits_stride: u32,
    mask_stride: u32,
    probs_stride: u32,
}

override DTYPE = 0u;

const HAS_REQUESTS = 1u;
const HAS_TOP_K = 2u;
const HAS_TOP_P = 4u;
const HAS_MIN_P = 8u;
const HAS_MASK = 16u;
const HAS_LOGPROBS = 32u;

// What `count` and `sum` weigh.
const BY_COUNT = 0u;
const BY_SHARE = 1u;
const TOTAL = 2u;
const RAW = 3u;

const NON_FINITE = 1u;
const BAD_LENGTHS = 4u;
const NONE = 0xffffffffu;
const THREADS = 256u;
const LOWEST_KEY = 0x007fffffu;
const ONE = vec2(0u, 256u);

// A row between the passes.
const STATE = 32u;
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
// A selection under way.
const ACTIVE = 19u;
const LIMIT = 20u;
const ABOVE = 22u;
const KNOWN_KEY = 24u;
const KNOWN_INDEX = 25u;
// What was drawn from, and where: the chunk, and what is left of the threshold.
const SUM = 26u;
const CHUNK = 28u;
const REST = 29u;

// A chunk's result, 3 words: largest key, its first index, largest of all keys; or a
// sum, two words.
const PARTIAL = 3u;

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
@group(0) @binding(2) var<storage, read_write> histogram: array<atomic<u32>>;
@group(0) @binding(3) var<storage, read> logits: array<u32>;
@group(0) @binding(4) var<storage, read> mask: array<u32>;
@group(0) @binding(5) var<storage, read_write> flags: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(7) var<storage, read_write> logprobs: array<f32>;
@group(0) @binding(8) var<storage, read_write> probs: array<f32>;

var<workgroup> shared_key: atomic<u32>;
var<workgroup> shared_raw: atomic<u32>;
var<workgroup> shared_index: atomic<u32>;
var<workgroup> shared_word: u32;

fn has(what: u32) -> bool {
    return (params.has & what) != 0u;
}

// ---- the workspace ----------------------------------------------------------

fn load(row: u32, field: u32) -> u32 {
    return work[params.at.b1 + row * STATE + field];
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
    work[params.at.b1 + row * STATE + field] = value;
}

fn store_pair(row: u32, field: u32, value: vec2<u32>) {
    store(row, field, value.x);
    store(row, field + 1u, value.y);
}

fn partial_at(row: u32, chunk: u32) -> u32 {
    return params.at.b1 + params.partials + (row * params.chunks + chunk) * PARTIAL;
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

// e^((x - largest) * inverse).
fn weight(scale: Scale, key: u32) -> f32 {
    if key == scale.largest {
        return 1.0f;
    }
    let x = bits_of(key);
    let largest = bits_of(scale.largest);
    if key <= LOWEST_KEY || !is_finite(largest) {
        return 0.0f;
    }
    let below = add_bits(x, largest ^ 0x80000000u);
    // From 2^8 on, nothing is left; what no multiplication can then overflow.
    let exponents = ((below >> 23u) & 255u) + (bitcast<u32>(scale.inverse) >> 23u);
    if exponents >= 254u + 8u {
        return 0.0f;
    }
    return exact_exp(mul(bitcast<f32>(below), scale.inverse));
}

fn fixed(scale: Scale, key: u32) -> vec2<u32> {
    return fixed_probability(bitcast<u32>(weight(scale, key)));
}

// An entry of a row as filters see it.
struct Entry {
    // 0 for what min_p dropped before them.
    key: u32,
    // 0 for what the cut, or min_p after it, drops.
    fixed: vec2<u32>,
}

// The parts of a row's state that entries need.
struct Filters {
    scale: Scale,
    floor: vec2<u32>,
    cut_key: u32,
    cut_end: u32,
    last: bool,
}

fn filters_of(row: u32, last: bool) -> Filters {
    let floor = load_pair(row, FLOOR);
    return Filters(scale_of(row), floor, load(row, CUT_KEY), load(row, CUT_END), last);
}

fn entry(row: u32, column: u32, f: Filters) -> Entry {
    let key = masked(row, column, sort_key(logit(row, column)));
    let q = fixed(f.scale, key);
    let light = u64_less(q, f.floor);
    if light && params.min_p_first != 0u {
        return Entry(0u, vec2(0u, 0u));
    }
    let kept = key > f.cut_key || (key == f.cut_key && column < f.cut_end);
    return Entry(key, select(vec2(0u, 0u), q, kept && !(light && f.last)));
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
    store(row, ACTIVE, 0u);
    if !(zero || bad) {
        // Cut to 2^-100 .. 2^100.
        let cut = clamp(degrees, 27u << 23u, 227u << 23u);
        let mantissa = bitcast<f32>((cut & 0x7fffffu) | 0x3f800000u);
        let scale = bitcast<f32>((254u - (cut >> 23u)) << 23u);
        store(row, INVERSE, bitcast<u32>(mul(exact_reciprocal(mantissa), scale)));
        store_pair(row, SEED, seeds[params.at.b4 + request]);
        let at = (params.at.b8 + row) * params.position_words;
        let low = positions[at];
        var high = select(0u, NONE, (low >> 31u) == 1u);
        if params.position_words == 2u {
            high = positions[at + 1u];
        }
        store_pair(row, POSITION, vec2(low, high));
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
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    var best = 0u;
    var index = NONE;
    var raw = 0u;
    var odd = false;
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        let bits = logit(row, column);
        odd = odd || is_nan(bits) || bits == 0x7f800000u;
        let all = sort_key(bits);
        let key = masked(row, column, all);
        raw = max(raw, all);
        if key > best {
            best = key;
            index = column;
        }
    }
    atomicMax(&shared_key, best);
    atomicMax(&shared_raw, raw);
    workgroupBarrier();
    if best == atomicLoad(&shared_key) {
        atomicMin(&shared_index, index);
    }
    workgroupBarrier();
    if odd {
        atomicOr(&flags[params.at.b5], NON_FINITE);
    }
    if thread == 0u {
        let at = partial_at(row, chunk);
        work[at] = atomicLoad(&shared_key);
        work[at + 1u] = atomicLoad(&shared_index);
        work[at + 2u] = atomicLoad(&shared_raw);
    }
}

@compute @workgroup_size(THREADS)
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
    for (var chunk = thread; chunk < params.chunks; chunk += THREADS) {
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
            for (var word = thread; word * 32u < params.vocab; word += THREADS) {
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
        let k = load(row, TOP_K);
        let greedy = load(row, GREEDY) == 1u;
        store(row, LARGEST, largest);
        store(row, RAW_LARGEST, atomicLoad(&shared_raw));
        // The last word of a mask may have bits that stand for nothing.
        store(row, TOKEN, select(0u, token, token < params.vocab));
        store(row, GREEDY, select(0u, 1u, none || greedy));
        let found = select(load(row, FOUND), NON_FINITE, none);
        if found != 0u {
            atomicOr(&flags[params.at.b5], found);
        }
        begin_selection(row, !(none || greedy) && k > 0u, vec2(k, 0u));
    }
    for (var word = thread; word < SELECT_WORDS; word += THREADS) {
        atomicStore(&histogram[params.at.b2 + row * SELECT_WORDS + word], 0u);
    }
}

// ---- cutting ----------------------------------------------------------------

fn begin_selection(row: u32, wanted: bool, limit: vec2<u32>) {
    store(row, ACTIVE, select(0u, 1u, wanted));
    store_pair(row, LIMIT, limit);
    store_pair(row, ABOVE, vec2(0u, 0u));
    store(row, KNOWN_KEY, 0u);
    store(row, KNOWN_INDEX, 0u);
}

fn known_of(row: u32) -> Narrowed {
    return Narrowed(load(row, KNOWN_KEY), load(row, KNOWN_INDEX), load_pair(row, ABOVE));
}

@compute @workgroup_size(THREADS)
fn count(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job / params.chunks;
    if load_for_all(row, ACTIVE, thread) == 0u {
        return;
    }
    clear_bins(thread);
    let chunk = job % params.chunks;
    let filters = filters_of(row, false);
    let known = known_of(row);
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        let found = entry(row, column, filters);
        let bin = bin_of(params.round, known, found.key, column);
        var weight = found.fixed;
        if params.purpose == BY_COUNT {
            weight = vec2(1u, 0u);
        }
        if bin < SELECT_BINS && any(weight != vec2(0u, 0u)) {
            add_to_bin(bin, weight);
        }
    }
    merge_bins(row, thread);
}

@compute @workgroup_size(THREADS)
fn pick(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    if load_for_all(row, ACTIVE, thread) == 0u {
        return;
    }
    let known = known_of(row);
    let limit = load_pair(row, LIMIT);
    let found = pick_bin(row, thread, known.above, limit);
    if thread != 0u {
        return;
    }
    if found.bin == SELECT_BINS {
        // All that is there stays.
        store(row, ACTIVE, 0u);
        return;
    }
    let next = narrowed(params.round, known, found);
    store(row, KNOWN_KEY, next.key);
    store(row, KNOWN_INDEX, next.index);
    store_pair(row, ABOVE, next.above);
    if params.round + 1u == KEY_ROUNDS {
        var weight = vec2(1u, 0u);
        if params.purpose == BY_SHARE {
            weight = fixed(scale_of(row), next.key);
        }
        // Whether the weights before the last of that key are below the limit.
        let before = u64_sub(u64_add(found.above, found.within), weight);
        if u64_less(before, limit) {
            // All that an earlier cut left of them.
            let end = select(NONE, load(row, CUT_END), next.key == load(row, CUT_KEY));
            store(row, ACTIVE, 0u);
            store(row, CUT_KEY, next.key);
            store(row, CUT_END, end);
        }
    }
    if params.round + 1u == ROUNDS {
        store(row, ACTIVE, 0u);
        store(row, CUT_KEY, next.key);
        store(row, CUT_END, next.index + 1u);
    }
}

// ---- sums -------------------------------------------------------------------

// Whether a row takes part in a sum.
fn sums(row: u32) -> bool {
    if params.purpose == RAW {
        return true;
    }
    if params.purpose == BY_SHARE && load(row, HAS_SHARE) == 0u {
        return false;
    }
    return load(row, GREEDY) == 0u;
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
    let filters = filters_of(row, params.purpose == TOTAL);
    let raw = Scale(load(row, RAW_LARGEST), 1.0f);
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    var own = vec2(0u, 0u);
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        if params.purpose == RAW {
            own = u64_add(own, fixed(raw, sort_key(logit(row, column))));
        } else {
            own = u64_add(own, entry(row, column, filters).fixed);
        }
    }
    let through = sum_through(thread, own);
    if thread == THREADS - 1u {
        let at = partial_at(row, chunk);
        work[at] = through.x;
        work[at + 1u] = through.y;
    }
}

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
    if thread == 0u {
        shared_word = select(0u, 1u, sums(row));
    }
    if workgroupUniformLoad(&shared_word) == 0u {
        if thread == 0u && params.purpose == BY_SHARE {
            begin_selection(row, false, vec2(0u, 0u));
        }
        return;
    }
    // A thread has a few chunks in a row.
    let each = (params.chunks + THREADS - 1u) / THREADS;
    let first = min(thread * each, params.chunks);
    let end = min(first + each, params.chunks);
    var own = vec2(0u, 0u);
    for (var chunk = first; chunk < end; chunk++) {
        let at = partial_at(row, chunk);
        own = u64_add(own, vec2(work[at], work[at + 1u]));
    }
    let through = sum_through(thread, own);
    let total = sum_of_all();
    if params.purpose == TOTAL {
        let bits = philox(vec4(load_pair(row, POSITION), 0u, 0u), load_pair(row, SEED)).xy;
        let threshold = u64_mul_high(bits, total);
        var before = u64_sub(through, own);
        // Of one thread.
        if !u64_less(threshold, before) && u64_less(threshold, through) {
            var chunk = first;
            for (; chunk + 1u < end; chunk++) {
                let at = partial_at(row, chunk);
                let next = u64_add(before, vec2(work[at], work[at + 1u]));
                if u64_less(threshold, next) {
                    break;
                }
                before = next;
            }
            store_pair(row, SUM, total);
            store(row, CHUNK, chunk);
            store_pair(row, REST, u64_sub(threshold, before));
        }
    } else if thread == 0u {
        if params.purpose == RAW {
            store_pair(row, RAW_SUM, total);
        } else {
            // At least 1, so that the first is kept.
            let limit = u64_mul_high(total, vec2(0u, load(row, TOP_P)));
            let none = all(limit == vec2(0u, 0u));
            begin_selection(row, true, select(limit, vec2(1u, 0u), none));
        }
    }
}

// ---- results ----------------------------------------------------------------

@compute @workgroup_size(THREADS)
fn locate(
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
    // A thread has a few entries in a row.
    let filters = filters_of(row, true);
    let rest = load_pair(row, REST);
    let begin = load(row, CHUNK) * params.chunk;
    let each = params.chunk / THREADS;
    let first = min(params.vocab, begin + thread * each);
    let end = min(params.vocab, first + each);
    var own = vec2(0u, 0u);
    for (var column = first; column < end; column++) {
        own = u64_add(own, entry(row, column, filters).fixed);
    }
    let through = sum_through(thread, own);
    var before = u64_sub(through, own);
    // Of one thread.
    if !u64_less(rest, before) && u64_less(rest, through) {
        var column = first;
        for (; column + 1u < end; column++) {
            let next = u64_add(before, entry(row, column, filters).fixed);
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
    let filters = filters_of(row, true);
    let factor = softmax_factor_of(load_pair(row, SUM), 40u);
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let to = params.at.b8 + (row - params.row0) * params.probs_stride;
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        var value = 0.0f;
        if certain {
            value = select(0.0f, 1.0f, column == token);
        } else {
            let found = entry(row, column, filters);
            if any(found.fixed != vec2(0u, 0u)) {
                value = softmax_score(weight(filters.scale, found.key), factor);
            }
        }
        probs[to + column] = value;
    }
}
