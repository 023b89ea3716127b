//!include params/sample_logits
//!include exact
//!include u64
//!include groups
// What the shaders of sample_logits share: a row's state in the workspace, its logits, and their
// weights.

override DTYPE = 0u;
// Threads of a workgroup that has a row, a multiple of THREADS.
override WIDE = 256u;
const THREADS = 256u;

const HAS_REQUESTS = 1u;
const HAS_TOP_K = 2u;
const HAS_TOP_P = 4u;
const HAS_MIN_P = 8u;
const HAS_MASK = 16u;
const HAS_PROCESSED = 32u;
const HAS_LOGPROBS = 64u;
const HAS_RANKS = 128u;
const HAS_TOP_TOKENS = 256u;
const HAS_TOP_LOGPROBS = 512u;

const NONE = 0xffffffffu;
const LOWEST_KEY = 0x007fffffu;

// A row between the passes.
const STATE = 64u;
const INVERSE = 0u;
const FOUND = 1u;
// The first of the row's tokens.
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
// How the row's tokens come: FATE_.
const FATE = 16u;
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
// The sum of the weights that are left.
const SUM = 28u;
// A selection in the row under way.
const RUNNING = 30u;
const KNOWN_KEY = 31u;
const KNOWN_INDEX = 32u;
const ABOVE = 34u;
// The logarithm of the sum of the weights of all logits as given.
const RAW_LOGARITHM = 36u;

// The race decides; the first of the order are taken; TOKEN alone is.
const FATE_DRAWN = 0u;
const FATE_GREEDY = 1u;
const FATE_CERTAIN = 2u;

// A chunk's result, 2 words: a sum; or how many entries equal the bound.
const PARTIAL = 2u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
@group(0) @binding(3) var<storage, read> logits: array<u32>;

var<workgroup> shared_word: u32;

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

// The largest key of each group of 64 entries that may be chosen; of each group as given.
fn maxima_at(row: u32) -> u32 {
    return params.at.b1 + params.maxima + (row - params.row0) * params.groups;
}

fn raw_maxima_at(row: u32) -> u32 {
    return params.at.b1 + params.raw_maxima + (row - params.row0) * params.groups;
}

// A row's tokens, for reports.
fn drawn_at(row: u32) -> u32 {
    return params.at.b1 + params.drawn + (row - params.row0) * params.draws;
}

// ---- entries ----------------------------------------------------------------

// The f32 that a key is of, as bits.
fn bits_of(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, (key >> 31u) == 1u);
}

fn logit_at(row: u32, column: u32) -> u32 {
    return params.at.b3 + (row - params.row0) * params.logits_stride + column;
}

// A logit as bits of an f32.
fn logit(row: u32, column: u32) -> u32 {
    let at = logit_at(row, column);
    return float_bits(logits[float_word(at, DTYPE)], at, DTYPE);
}

// A number that orders as a float does: its sort_key, but that -0 is below 0, NaN with a sign
// below all and NaN without above all.
fn order_of(bits: u32) -> u32 {
    return bits ^ (bitcast<u32>(bitcast<i32>(bits) >> 31u) | 0x80000000u);
}

fn orders_of(bits: vec2<u32>) -> vec2<u32> {
    return vec2(order_of(bits.x), order_of(bits.y));
}

const ORDER_OF_INFINITY = 0xff800000u;

// The sort_key of the largest of some, of which none is NaN without a sign; 0 for none.
fn key_of_order(order: u32) -> u32 {
    if order == 0x7fffffffu {
        return 0x80000000u;
    }
    return select(max(order, LOWEST_KEY), 0u, order == 0u);
}

// The bits of a lane's entries.
fn pair_of(row: u32, column: u32) -> vec2<u32> {
    let at = logit_at(row, column);
    if DTYPE == F32 {
        return vec2(logits[at], logits[at + pair_step()]);
    }
    let word = logits[at / 2u];
    if at % 2u == 0u {
        return vec2(float_bits(word, 0u, DTYPE), float_bits(word, 1u, DTYPE));
    }
    return vec2(float_bits(word, 1u, DTYPE), float_bits(logits[at / 2u + 1u], 0u, DTYPE));
}

// The orders of a lane's entries, not 0, of which some may be beyond the row: these are 0.
fn last_orders(row: u32, column: u32, end: u32) -> vec2<u32> {
    var orders = vec2(0u);
    if column < end {
        orders.x = max(order_of(logit(row, column)), 1u);
    }
    if column + pair_step() < end {
        orders.y = max(order_of(logit(row, column + pair_step())), 1u);
    }
    return orders;
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

// A key that all reach whose weight has a unit, and not many others.
fn weighing_key(scale: Scale) -> u32 {
    let largest = bits_of(scale.largest);
    if !is_finite(largest) {
        return scale.largest;
    }
    return sort_key(bitcast<u32>(bitcast<f32>(largest) - 29.0f / scale.inverse));
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

// The logarithm of a sum in units of 2^-40.
fn logarithm(sum: vec2<u32>) -> f32 {
    return log(f32(sum.y) * 0.00390625f + f32(sum.x) * 9.094947e-13f);
}
