//!include exact
//!include team
// The topk experts of each token, by the exact rules of spec_core::exact.
//
// A team of LANES threads owns a token; lane l owns experts l, l + LANES, ...
// and keeps their choices as sort keys in workgroup memory. A workgroup holds as
// many teams as that memory has room for.
//
// 1. Softmax only: the row's maximum, then its sum as an integer, by team_max
//    and team_add.
// 2. Score, choice and key of each expert.
// 3. Groups: some lanes a group find its two largest keys; every group counts
//    the groups before it and so knows its rank.
// 4. topk rounds: the team's largest key, among those the lowest expert. Each
//    lane knows its two best, and looks again only when both are taken.
// 5. A lane an expert: the score again, and the weight.
//
// (Scores four at a time, in vectors, were no faster on an H100: 209 us against
// 198 for 65536 tokens of 256 experts.)
//
// Bytes moved: the logits once and 8 bytes a chosen expert, which is the floor.

override LANES: u32 = 32u;
override TEAMS: u32 = 8u;
override THREADS: u32 = 256u;
// The most reductions of a token, and those of all teams.
override SLOTS: u32 = 67u;
override TEAM_WORDS: u32 = 536u;
override DTYPE: u32 = 0u;
override SOFTMAX: bool = false;

struct Params {
    at: At,
    tokens: u32,
    experts: u32,
    x_stride: u32,
    weights_stride: u32,
    indices_stride: u32,
    has_bias: u32,
    has_flags: u32,
    groups: u32,
    group_size: u32,
    // ceil(2^20 / group_size): expert * this >> 20 is the expert's group.
    group_inverse: u32,
    topk_groups: u32,
    top2_sum: u32,
    // Lanes that share a group: its key is found from so many parts.
    parts: u32,
    // The key of an expert whose group is not kept.
    masked_key: u32,
    topk: u32,
    renormalize: u32,
    scale: f32,
    // Words of workgroup memory of a team.
    team_words: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> bias: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<f32>;
@group(0) @binding(4) var<storage, read_write> indices: array<u32>;
@group(0) @binding(5) var<storage, read_write> flags: array<atomic<u32>>;

// Words of workgroup memory for all teams' keys.
const POOL = 3328u;
const NEGATIVE_INFINITY = 0xff800000u;
const NOBODY = 0xffffffffu;

// Of each team: a key an expert; for every part of a group its largest and
// second largest key; the chosen experts; their scores.
var<workgroup> pool: array<u32, POOL>;

fn keys_at() -> u32 {
    return team_index * params.team_words;
}

fn parts_at() -> u32 {
    return keys_at() + params.experts;
}

fn chosen_at() -> u32 {
    let parts = select(0u, 2u * params.groups * params.parts, params.groups > 1u);
    return parts_at() + parts;
}

// The bits of the float that a sort key stands for.
fn key_bits(key: u32) -> u32 {
    return select(~key, key ^ 0x80000000u, (key >> 31u) == 1u);
}

fn logit(row: u32, expert: u32) -> u32 {
    let index = row + expert;
    return float_bits(x[float_word(index, DTYPE)], index, DTYPE);
}

// What a token's softmax needs: the bits of the maximum and the factor.
struct Row {
    maximum: u32,
    factor: f32,
}

// Leaves each expert's weight in the place of its key.
fn softmax_row(row: u32) -> Row {
    var largest = 0u;
    for (var e = team_lane; e < params.experts; e += LANES) {
        largest = max(largest, sort_key(logit(row, e)));
    }
    let maximum = key_bits(team_max(largest));
    // Sums of at most 1024 halves of a word.
    var low = 0u;
    var high = 0u;
    for (var e = team_lane; e < params.experts; e += LANES) {
        let weight = softmax_weight(logit(row, e), maximum);
        pool[keys_at() + e] = bitcast<u32>(weight);
        let fixed = softmax_fixed(weight);
        low += fixed & 0xffffu;
        high += fixed >> 16u;
    }
    low = team_add(low);
    high = team_add(high);
    let sum_low = low + (high << 16u);
    let sum_high = (high >> 16u) + select(0u, 1u, sum_low < low);
    return Row(maximum, softmax_factor(vec2(sum_low, sum_high)));
}

// Turns logits into keys; returns whether one, or a bias, is not finite.
fn find_keys(row: u32, softmax: Row) -> bool {
    var bad = false;
    for (var e = team_lane; e < params.experts; e += LANES) {
        let logit_bits = logit(row, e);
        var score = 0.0f;
        if SOFTMAX {
            score = softmax_score(bitcast<f32>(pool[keys_at() + e]), softmax.factor);
        } else {
            score = exact_sigmoid(logit_bits);
        }
        var choice = bitcast<u32>(score);
        bad = bad || !is_finite(logit_bits);
        if params.has_bias != 0u {
            let b = bias[params.at.b2 + e];
            bad = bad || !is_finite(b);
            choice = add_bits(choice, b);
        }
        if is_nan(logit_bits) {
            choice = NEGATIVE_INFINITY;
        }
        pool[keys_at() + e] = sort_key(choice);
    }
    return bad;
}

// Puts `key` into the two largest so far.
fn insert(largest: vec2<u32>, key: u32) -> vec2<u32> {
    return vec2(max(largest.x, key), max(largest.y, min(largest.x, key)));
}

// Gives the experts of groups that are not kept their masked key. Every thread
// of the workgroup comes here.
fn mask_groups() {
    workgroupBarrier();
    let all = params.groups * params.parts;
    let first = parts_at();
    let second = first + all;
    for (var part = team_lane; part < all; part += LANES) {
        let g = part / params.parts;
        var largest = vec2(0u);
        for (var i = part % params.parts; i < params.group_size; i += params.parts) {
            largest = insert(largest, pool[keys_at() + g * params.group_size + i]);
        }
        pool[first + part] = largest.x;
        pool[second + part] = largest.y;
    }
    workgroupBarrier();
    for (var g = team_lane; g < params.groups; g += LANES) {
        var largest = vec2(0u);
        for (var i = 0u; i < params.parts; i++) {
            // A part that had no expert left 0, below every key.
            largest = insert(largest, pool[first + g * params.parts + i]);
            largest = insert(largest, pool[second + g * params.parts + i]);
        }
        var key = largest.x;
        if params.top2_sum != 0u && params.group_size > 1u {
            key = sort_key(add_bits(key_bits(largest.x), key_bits(largest.y)));
        }
        // No other lane reads this word, but others read its neighbours:
        // the result goes where only this group's parts were.
        pool[first + g * params.parts] = key;
    }
    workgroupBarrier();
    for (var g = team_lane; g < params.groups; g += LANES) {
        let key = pool[first + g * params.parts];
        var rank = 0u;
        for (var other = 0u; other < params.groups; other++) {
            let theirs = pool[first + other * params.parts];
            rank += select(0u, 1u, theirs > key || (theirs == key && other < g));
        }
        pool[second + g * params.parts] = select(0u, 1u, rank < params.topk_groups);
    }
    workgroupBarrier();
    for (var e = team_lane; e < params.experts; e += LANES) {
        let g = (e * params.group_inverse) >> 20u;
        if pool[second + g * params.parts] == 0u {
            pool[keys_at() + e] = params.masked_key;
        }
    }
}

// A lane's two largest keys with their experts, the lower first among equals;
// (0, NOBODY) for what is not there.
fn best_of_lane() -> vec4<u32> {
    var best = vec4(0u, NOBODY, 0u, NOBODY);
    for (var e = team_lane; e < params.experts; e += LANES) {
        let key = pool[keys_at() + e];
        if key > best.x {
            best = vec4(key, e, best.xy);
        } else if key > best.z {
            best = vec4(best.xy, key, e);
        }
    }
    return best;
}

fn choose() {
    var best = best_of_lane();
    for (var round = 0u; round < params.topk; round++) {
        let key = team_max(best.x);
        let expert = team_min(select(NOBODY, best.y, best.x == key));
        if best.y == expert {
            // Below every key: not chosen again.
            pool[keys_at() + expert] = 0u;
            pool[chosen_at() + round] = expert;
            best = vec4(best.zw, 0u, NOBODY);
            if best.y == NOBODY {
                best = best_of_lane();
            }
        }
    }
    workgroupBarrier();
}

fn write_weights(token: u32, row: u32, softmax: Row) {
    let chosen = chosen_at();
    let scores = chosen + params.topk;
    for (var i = team_lane; i < params.topk; i += LANES) {
        let bits = logit(row, pool[chosen + i]);
        var score = 0.0f;
        if SOFTMAX {
            score = softmax_score(softmax_weight(bits, softmax.maximum), softmax.factor);
        } else {
            score = exact_sigmoid(bits);
        }
        pool[scores + i] = bitcast<u32>(score);
    }
    workgroupBarrier();
    var sum = 1e-20f;
    for (var i = 0u; i < params.topk; i++) {
        sum += bitcast<f32>(pool[scores + i]);
    }
    if token >= params.tokens {
        return;
    }
    for (var i = team_lane; i < params.topk; i += LANES) {
        var weight = params.scale * bitcast<f32>(pool[scores + i]);
        if params.renormalize != 0u {
            weight = weight / sum;
        }
        weights[params.at.b3 + token * params.weights_stride + i] = weight;
        indices[params.at.b4 + token * params.indices_stride + i] = pool[chosen + i];
    }
}

@compute @workgroup_size(THREADS)
fn main(me: Invocation) {
    let group = group_index(me.group, me.groups);
    if group >= params.at.groups {
        return;
    }
    team_begin(me);
    let token = group * TEAMS + team_index;
    // Teams past the last token go along, for the barriers, and write nothing.
    let row = params.at.b1 + min(token, params.tokens - 1u) * params.x_stride;
    var softmax = Row(0u, 0.0f);
    if SOFTMAX {
        softmax = softmax_row(row);
    }
    let bad = find_keys(row, softmax);
    if bad && params.has_flags != 0u {
        atomicOr(&flags[params.at.b5], 1u);
    }
    if params.groups > 1u {
        mask_groups();
    }
    choose();
    write_weights(token, row, softmax);
}
