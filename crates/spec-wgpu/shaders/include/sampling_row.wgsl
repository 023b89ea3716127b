//!include params/sample_logits
//!include exact
//!include u64
//!include groups
// What the shaders of sample_logits share: a row's state in the workspace, its logits, and their
// weights.

override DTYPE = 0u;
// Threads of a workgroup that handles a whole row, a multiple of THREADS.
override WIDE = 256u;
// 1 if the passes read the copy of the rows that `columns` makes (sampling_columns.wgsl).
override COLUMNS = 0u;

const NONE = 0xffffffffu;
const LOWEST_KEY = 0x007fffffu;

// The state of a row between the passes, and the index of each word.
const INVERSE = 0u;
const FOUND = 1u;
// The first of the row's tokens; NONE for a row that is padding.
const TOKEN = 2u;
const TOP_K = 3u;
// The share of top-p in units of 2^-32, and whether there is a share.
const TOP_P = 4u;
const HAS_SHARE = 5u;
const FLOOR = 6u;
const SEED = 8u;
const POSITION = 10u;
const LARGEST = 12u;
const RAW_LARGEST = 13u;
// How the row's tokens are chosen: FATE_.
const FATE = 16u;
// The cut: larger keys stay, and entries with the cut's key stay below an index.
const CUT_KEY = 17u;
const CUT_END = 18u;
// How the row is cut: ROUTE_.
const CUT_ROUTE = 19u;
// The bound, which every kept key reaches. Or the levels in which the cut lies, from first to last,
// and the number and the weight of the entries before these levels.
const BOUND = 20u;
const FIRST_LEVEL = 21u;
const LAST_LEVEL = 22u;
const BEFORE = 23u;
const BEFORE_WEIGHT = 24u;
// The limit of top-p, if it is known before the row is cut.
const LIMIT = 26u;
// The sum of the remaining weights.
const SUM = 28u;
// The state of a selection in the row.
const RUNNING = 30u;
const KNOWN_KEY = 31u;
const KNOWN_INDEX = 32u;
const ABOVE = 34u;
// The logarithm of the sum of the weights of all logits as given.
const RAW_LOGARITHM = 36u;
// Of rows by columns: the row's place in `winners`; the given largest logit; the token to take, the
// column that stands for it, and whether the row draws from this column.
const PLACE = 37u;
const GIVEN = 38u;
const FORCED = 39u;
const FORCED_COLUMN = 40u;
const FORCED_KEPT = 41u;

// The place of padding: PLACE_NOTHING with the sign bit set.
const PLACE_PADDING = 0xffffffffu;

// The race decides; the first tokens in the order of logits are taken; or only TOKEN is. Until
// `open`, a row may be padding, which has no token.
const FATE_DRAWN = 0u;
const FATE_GREEDY = 1u;
const FATE_CERTAIN = 2u;
const FATE_PADDING = 3u;

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

// A word of the state, the same in all threads of a workgroup, as uniform control flow requires.
fn load_for_all(row: u32, field: u32, thread: u32) -> u32 {
    if thread == 0u {
        shared_word = load(row, field);
    }
    return workgroupUniformLoad(&shared_word);
}

// Whether `open` has found that the row is padding, the same in all threads of a workgroup.
fn is_padding(row: u32, thread: u32) -> bool {
    return has(HAS_REQUESTS) && load_for_all(row, TOKEN, thread) == NONE;
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

// The largest key of each group of 64 entries, among the allowed entries; below, among all entries.
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

// ---- columns ----------------------------------------------------------------

// The logit of a column that stands for no token: a NaN whose order is 0.
const ABSENT = 0xffffffffu;

fn value_at(row: u32, column: u32) -> u32 {
    return params.at.b1 + params.values + (row - params.row0) * params.vocab + column;
}

fn column_token_at(row: u32, column: u32) -> u32 {
    return params.at.b1 + params.column_tokens + (row - params.row0) * params.vocab + column;
}

fn allowed_at(row: u32) -> u32 {
    return params.at.b1 + params.allowed + (row - params.row0) * ((params.vocab + 31u) / 32u);
}

fn time_at(row: u32, column: u32) -> u32 {
    return params.at.b1 + params.times + (row - params.row0) * params.vocab + column;
}

// The token of a column that was chosen, or NONE for no column; 0 if a row without tokens chose a
// column that stands for none.
fn named(row: u32, column: u32) -> u32 {
    if column == NONE {
        return NONE;
    }
    let token = work[column_token_at(row, column)];
    return select(token, 0u, token == NONE);
}

// Whether a forced token is taken. False for padding.
fn is_forced(row: u32) -> bool {
    return has(HAS_FORCED) && load(row, PLACE) != PLACE_PADDING && load(row, FORCED_COLUMN) != NONE;
}

// Whether the row is padding, the same in all threads of a workgroup.
fn is_padding_row(row: u32, thread: u32) -> bool {
    return load_for_all(row, PLACE, thread) == PLACE_PADDING;
}

// ---- entries ----------------------------------------------------------------

// The bits of the f32 that a key stands for.
fn bits_of(key: u32) -> u32 {
    return select(~key, key & 0x7fffffffu, (key >> 31u) == 1u);
}

fn logit_at(row: u32, column: u32) -> u32 {
    return params.at.b3 + (row - params.row0) * params.logits_stride + column;
}

// A logit as bits of an f32.
fn logit(row: u32, column: u32) -> u32 {
    if COLUMNS == 1u {
        return work[value_at(row, column)];
    }
    let at = logit_at(row, column);
    return float_bits(logits[float_word(at, DTYPE)], at, DTYPE);
}

// A number that orders as a float does. It is the sort_key, except that -0 is below 0, NaN with a
// sign is below all numbers and NaN without a sign is above all numbers.
fn order_of(bits: u32) -> u32 {
    return bits ^ (bitcast<u32>(bitcast<i32>(bits) >> 31u) | 0x80000000u);
}

fn orders_of(bits: vec2<u32>) -> vec2<u32> {
    return vec2(order_of(bits.x), order_of(bits.y));
}

const ORDER_OF_INFINITY = 0xff800000u;

// The sort_key for the largest of several orders, none of which is NaN without a sign; 0 for order
// 0.
fn key_of_order(order: u32) -> u32 {
    if order == 0x7fffffffu {
        return 0x80000000u;
    }
    return select(max(order, LOWEST_KEY), 0u, order == 0u);
}

// The bits of a lane's entries.
fn pair_of(row: u32, column: u32) -> vec2<u32> {
    if COLUMNS == 1u {
        return vec2(work[value_at(row, column)], work[value_at(row, column + pair_step())]);
    }
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

// The least order of an entry. In a copied row, only absent entries have the order 0.
fn least_order() -> u32 {
    return select(1u, 0u, COLUMNS == 1u);
}

// The orders of a lane's entries, which are not 0; 0 for an entry beyond the row.
fn last_orders(row: u32, column: u32, end: u32) -> vec2<u32> {
    var orders = vec2(0u);
    if column < end {
        orders.x = max(order_of(logit(row, column)), least_order());
    }
    if column + pair_step() < end {
        orders.y = max(order_of(logit(row, column + pair_step())), least_order());
    }
    return orders;
}

// The parameters that turn keys into weights.
struct Scale {
    largest: u32,
    inverse: f32,
}

fn scale_of(row: u32) -> Scale {
    return Scale(load(row, LARGEST), bitcast<f32>(load(row, INVERSE)));
}

// A weight whose exponent is below this is less than one unit.
const NO_UNIT = -28.0f;

// (x - largest) * inverse: the exponent of a weight; -128 for some weights of less than one unit.
fn exponent(scale: Scale, key: u32) -> f32 {
    if key == scale.largest {
        return 0.0f;
    }
    let largest = bits_of(scale.largest);
    if key <= LOWEST_KEY || !is_finite(largest) {
        return -128.0f;
    }
    let below = add_bits(bits_of(key), largest ^ 0x80000000u);
    // Where the product is 2^8 or more in magnitude, the weight is 0; a smaller product cannot
    // overflow.
    let exponents = ((below >> 23u) & 255u) + (bitcast<u32>(scale.inverse) >> 23u);
    if exponents >= 254u + 8u {
        return -128.0f;
    }
    return mul(bitcast<f32>(below), scale.inverse);
}

// A key that every entry reaches whose weight is at least one unit, and not many others.
fn weighing_key(scale: Scale) -> u32 {
    let largest = bits_of(scale.largest);
    if !is_finite(largest) {
        return scale.largest;
    }
    return sort_key(bitcast<u32>(bitcast<f32>(largest) - 29.0f / scale.inverse));
}

fn weight(scale: Scale, key: u32) -> f32 {
    // The result is 1 for the exponent 0.
    return exact_exp(exponent(scale, key));
}

// A weight in units of 2^-40, as in fixed_probability: 20 bits, then 20 bits. Every operation is
// exact.
fn halves(w: f32) -> vec2<u32> {
    let units = w * 1048576.0f;
    let high = u32(units);
    return vec2(high, u32((units - f32(high)) * 1048576.0f));
}

// The sum of at most 2^12 halves, as one number.
fn joined(sums: vec2<u32>) -> vec2<u32> {
    return u64_add(vec2(sums.x << 20u, sums.x >> 12u), vec2(sums.y, 0u));
}

// The logarithm of a sum in units of 2^-40.
fn logarithm(sum: vec2<u32>) -> f32 {
    return log(f32(sum.y) * 0.00390625f + f32(sum.x) * 9.094947e-13f);
}
