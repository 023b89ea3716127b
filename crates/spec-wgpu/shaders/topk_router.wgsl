//!include exact
//!include team
//!include params/topk_router
// The topk experts of each token, by the exact rules of spec_core::exact.
//
// A team of LANES threads owns a token; lane l owns experts l, l + LANES, ... and keeps their
// choices as sort keys in workgroup memory. A workgroup has as many teams as fit in this memory;
// keys that do not fit are kept in a workspace (IN_STORAGE).
//
// 1. For softmax only: the row's maximum, then the sum of its weights as an integer, by team_max
//    and team_add.
// 2. Score, choice and key of each expert.
// 3. Groups: some lanes per group find the group's two largest keys. The rank of a group is the
//    number of groups before it.
// 4. topk rounds: the largest key of the team, and the lowest expert with this key. Each lane
//    remembers its two best experts, and searches again only when both are taken.
// 5. A lane per chosen expert: the score again, and the weight.
//
// `replay` stands for `main` where the experts are given: it leaves out steps 2 to 4.
//
// `place` is a dispatch of its own with a thread per pick, if experts have places, or picks are
// counted, or `logical` is asked for.
//
// (Computing four scores at a time, in vectors, was no faster on an H100: 209 us against 198 for
// 65536 tokens of 256 experts.)
//
// Bytes moved: the logits once and 8 bytes per chosen expert, which is the floor.

override LANES: u32 = 32u;
override TEAMS: u32 = 8u;
override THREADS: u32 = 256u;
// The largest number of reductions of a team, and this number times TEAMS.
override SLOTS: u32 = 67u;
override TEAM_WORDS: u32 = 536u;
override DTYPE: u32 = 0u;
// How logits become scores.
override SCORING: u32 = 0u;
override IN_STORAGE: bool = false;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> bias: array<u32>;
@group(0) @binding(3) var<storage, read_write> weights: array<atomic<u32>>;
@group(0) @binding(4) var<storage, read_write> indices: array<u32>;
@group(0) @binding(5) var<storage, read_write> flags: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read> num_tokens: array<u32>;
@group(0) @binding(7) var<storage, read_write> workspace: array<u32>;

// `replay` binds this instead of the bias.
@group(0) @binding(2) var<storage, read> given: array<u32>;

// `place` binds these instead of the first three and of `num_tokens`.
@group(0) @binding(1) var<storage, read> replicas: array<u32>;
@group(0) @binding(2) var<storage, read> replica_counts: array<u32>;
@group(0) @binding(3) var<storage, read_write> load: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> logical: array<u32>;

const NEGATIVE_INFINITY = 0xff800000u;
const NOBODY = 0xffffffffu;
// 2^60. The largest score is the square root of the largest logit; LIFT times this score is finite.
const LIFT = 1152921504606846976.0f;

// The words of each team: a key per expert; the largest and the second largest key of every part of
// a group; the chosen experts; the scores of the chosen experts.
var<workgroup> pool: array<u32, POOL>;
// Where the team's words begin.
var<private> team_at: u32;

fn word_at(at: u32) -> u32 {
    if IN_STORAGE {
        return workspace[at];
    }
    return pool[at];
}

fn set_word(at: u32, value: u32) {
    if IN_STORAGE {
        workspace[at] = value;
    } else {
        pool[at] = value;
    }
}

fn barrier() {
    workgroupBarrier();
    if IN_STORAGE {
        storageBarrier();
    }
}

fn keys_at() -> u32 {
    return team_at;
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

// The score of a logit, for a scoring function that depends on this logit alone.
fn single_score(bits: u32) -> f32 {
    if SCORING == SQRT_SOFTPLUS {
        return exact_sqrt_softplus(bits);
    }
    return exact_sigmoid(bits);
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
    // Sums of at most 4096 halves, of 16 bits each, of the weights.
    var low = 0u;
    var high = 0u;
    for (var e = team_lane; e < params.experts; e += LANES) {
        let weight = softmax_weight(logit(row, e), maximum);
        set_word(keys_at() + e, bitcast<u32>(weight));
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

// Turns logits into keys; returns whether a logit or a bias is not finite.
fn find_keys(row: u32, softmax: Row) -> bool {
    var bad = false;
    for (var e = team_lane; e < params.experts; e += LANES) {
        let logit_bits = logit(row, e);
        var choice = logit_bits;
        if params.by_logit == 0u {
            var score = 0.0f;
            if SCORING == SOFTMAX {
                score = softmax_score(bitcast<f32>(word_at(keys_at() + e)), softmax.factor);
            } else {
                score = single_score(logit_bits);
            }
            choice = bitcast<u32>(score);
        }
        bad = bad || !is_finite(logit_bits);
        if params.has_bias != 0u {
            let index = params.at.b2 + e;
            let b = float_bits(bias[float_word(index, params.bias_type)], index, params.bias_type);
            bad = bad || !is_finite(b);
            choice = add_bits(choice, b);
        }
        if is_nan(logit_bits) {
            choice = NEGATIVE_INFINITY;
        }
        set_word(keys_at() + e, sort_key(choice));
    }
    return bad;
}

// Inserts `key` into the two largest keys so far.
fn insert(largest: vec2<u32>, key: u32) -> vec2<u32> {
    return vec2(max(largest.x, key), max(largest.y, min(largest.x, key)));
}

// Writes for each group, at `second`, whether the group is kept, by its key at `first`: the rank of
// a group is the number of groups before it.
fn keep_by_rank(first: u32, second: u32) {
    for (var g = team_lane; g < params.groups; g += LANES) {
        let key = word_at(first + g * params.parts);
        var rank = 0u;
        for (var other = 0u; other < params.groups; other++) {
            let theirs = word_at(first + other * params.parts);
            rank += select(0u, 1u, theirs > key || (theirs == key && other < g));
        }
        set_word(second + g * params.parts, select(0u, 1u, rank < params.topk_groups));
    }
}

// As keep_by_rank, but the number of iterations grows with the number of groups, not with its
// square. Finds bit by bit the largest value that enough keys reach, then up to which group the
// keys equal to this value are kept.
fn keep_by_bits(first: u32, second: u32) {
    var least = 0u;
    for (var bit = 0x80000000u; bit != 0u; bit >>= 1u) {
        var count = 0u;
        for (var g = team_lane; g < params.groups; g += LANES) {
            count += select(0u, 1u, word_at(first + g * params.parts) >= (least | bit));
        }
        if team_add(count) >= params.topk_groups {
            least |= bit;
        }
    }
    var above = 0u;
    for (var g = team_lane; g < params.groups; g += LANES) {
        above += select(0u, 1u, word_at(first + g * params.parts) > least);
    }
    let equals = params.topk_groups - team_add(above);
    var end = 0u;
    for (var bit = 4096u; bit != 0u; bit >>= 1u) {
        var count = 0u;
        for (var g = team_lane; g < min(params.groups, end + bit); g += LANES) {
            count += select(0u, 1u, word_at(first + g * params.parts) == least);
        }
        if team_add(count) <= equals {
            end += bit;
        }
    }
    for (var g = team_lane; g < params.groups; g += LANES) {
        let key = word_at(first + g * params.parts);
        set_word(second + g * params.parts, select(0u, 1u, key > least || (key == least && g < end)));
    }
}

// Gives the experts of groups that are not kept their masked key. Every thread of the workgroup
// must call this function.
fn mask_groups() {
    barrier();
    let all = params.groups * params.parts;
    let first = parts_at();
    let second = first + all;
    for (var part = team_lane; part < all; part += LANES) {
        let g = part / params.parts;
        var largest = vec2(0u);
        for (var i = part % params.parts; i < params.group_size; i += params.parts) {
            largest = insert(largest, word_at(keys_at() + g * params.group_size + i));
        }
        set_word(first + part, largest.x);
        set_word(second + part, largest.y);
    }
    barrier();
    for (var g = team_lane; g < params.groups; g += LANES) {
        var largest = vec2(0u);
        for (var i = 0u; i < params.parts; i++) {
            // A part without experts left 0, which is below every key.
            largest = insert(largest, word_at(first + g * params.parts + i));
            largest = insert(largest, word_at(second + g * params.parts + i));
        }
        var key = largest.x;
        if params.top2_sum != 0u && params.group_size > 1u {
            key = sort_key(add_bits(key_bits(largest.x), key_bits(largest.y)));
        }
        // Other lanes read neighbours of this word but not the word itself, which belonged to this
        // group's parts.
        set_word(first + g * params.parts, key);
    }
    barrier();
    if params.groups > MANY_GROUPS {
        keep_by_bits(first, second);
    } else {
        keep_by_rank(first, second);
    }
    barrier();
    for (var part = team_lane; part < all; part += LANES) {
        let g = part / params.parts;
        if word_at(second + g * params.parts) == 0u {
            for (var i = part % params.parts; i < params.group_size; i += params.parts) {
                set_word(keys_at() + g * params.group_size + i, params.masked_key);
            }
        }
    }
    // From here on, other lanes handle these experts.
    barrier();
}

// A lane's two largest keys with their experts, the lower expert first among equal keys; (0,
// NOBODY) for an expert that does not exist.
fn best_of_lane() -> vec4<u32> {
    var best = vec4(0u, NOBODY, 0u, NOBODY);
    for (var e = team_lane; e < params.experts; e += LANES) {
        let key = word_at(keys_at() + e);
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
            // 0 is below every key, so the expert is not chosen again.
            set_word(keys_at() + expert, 0u);
            set_word(chosen_at() + round, expert);
            best = vec4(best.zw, 0u, NOBODY);
            if best.y == NOBODY {
                best = best_of_lane();
            }
        }
    }
    barrier();
}

fn write_index(token: u32, column: u32, index: u32) {
    let at = params.at.b4 + token * params.indices_stride + column;
    if params.wide == 0u {
        indices[at] = index;
    } else {
        indices[2u * at] = index;
        indices[2u * at + 1u] = select(0u, NOBODY, index == NOBODY);
    }
}

fn write_weight(token: u32, column: u32, weight: f32) {
    let at = params.at.b3 + token * params.weights_stride + column;
    let word = float_word(at, params.weights_type);
    let bits = bitcast<u32>(weight);
    if params.weights_type == F32 {
        atomicStore(&weights[word], bits);
    } else {
        let change = half_change(atomicLoad(&weights[word]), at, bits, params.weights_type);
        atomicXor(&weights[word], change);
    }
}

fn write_weights(token: u32, row: u32, softmax: Row) {
    let chosen = chosen_at();
    let scores = chosen + params.topk;
    for (var i = team_lane; i < params.topk; i += LANES) {
        let expert = word_at(chosen + i);
        var score = 0.0f;
        if expert != NOBODY {
            let bits = logit(row, expert);
            if SCORING == SOFTMAX {
                score = softmax_score(softmax_weight(bits, softmax.maximum), softmax.factor);
            } else {
                score = single_score(bits);
            }
        }
        set_word(scores + i, bitcast<u32>(score));
    }
    barrier();
    var sum = 1e-20f;
    for (var i = 0u; i < params.topk; i++) {
        sum += bitcast<f32>(word_at(scores + i));
    }
    if token >= params.tokens {
        return;
    }
    if is_padding(token) {
        for (var i = team_lane; i < params.topk + params.shared_experts; i += LANES) {
            write_weight(token, i, 0.0f);
            write_index(token, i, NOBODY);
        }
        return;
    }
    for (var i = team_lane; i < params.topk; i += LANES) {
        let expert = word_at(chosen + i);
        let score = bitcast<f32>(word_at(scores + i));
        var weight = params.scale * score;
        if params.renormalize != 0u {
            // The share score / sum comes first: a large scale times a score could overflow. LIFT
            // keeps the share from being subnormal, which a device might take for 0.
            weight = (params.scale / LIFT) * (score * LIFT / sum);
        }
        // A scale below 0 would give what is no pick a weight of -0.
        write_weight(token, i, select(weight, 0.0f, expert == NOBODY));
        write_index(token, i, expert);
    }
    for (var i = team_lane; i < params.shared_experts; i += LANES) {
        write_weight(token, params.topk + i, params.shared_weight);
        write_index(token, params.topk + i, params.physical + i);
    }
}

// Whether a token's row lies behind the rows in use.
fn is_padding(token: u32) -> bool {
    if params.has_num_tokens == 0u {
        return false;
    }
    let wanted = bitcast<i32>(num_tokens[params.at.b6]);
    return params.first + token >= u32(max(wanted, 0));
}

fn raise(bits: u32) {
    if params.has_flags != 0u {
        atomicOr(&flags[params.at.b5], bits);
    }
}

// Prepares a team for its token, whose number is returned. The first thread of all checks
// `num_tokens`.
fn begin(me: Invocation, group: u32) -> u32 {
    team_begin(me);
    let token = group * TEAMS + team_index;
    team_at = team_index * params.team_words;
    if IN_STORAGE {
        team_at = params.at.b7 + token * params.team_words;
    }
    if params.has_num_tokens != 0u && group == 0u && me.thread == 0u {
        let wanted = bitcast<i32>(num_tokens[params.at.b6]);
        if wanted < 0 || u32(wanted) > params.all_tokens {
            raise(4u);
        }
    }
    return token;
}

// A token, or the last one for teams past it: they take part in the barriers and write nothing.
fn clamped(token: u32) -> u32 {
    return min(token, max(params.tokens, 1u) - 1u);
}

@compute @workgroup_size(THREADS)
fn main(me: Invocation) {
    let group = group_index(me.group, me.groups);
    if group >= params.at.groups {
        return;
    }
    let token = begin(me, group);
    let row = params.at.b1 + clamped(token) * params.x_stride;
    var softmax = Row(0u, 0.0f);
    if SCORING == SOFTMAX {
        softmax = softmax_row(row);
    }
    let bad = find_keys(row, softmax);
    if bad && token < params.tokens && !is_padding(token) {
        raise(1u);
    }
    if params.groups > 1u {
        mask_groups();
    }
    choose();
    write_weights(token, row, softmax);
}

// Takes the experts that a token is given; returns whether one is neither -1 nor an expert.
fn take_given(token: u32) -> bool {
    var bad = false;
    for (var i = team_lane; i < params.topk; i += LANES) {
        var expert = given[params.at.b2 + clamped(token) * params.given_stride + i];
        if expert >= params.experts {
            bad = bad || expert != NOBODY;
            expert = NOBODY;
        }
        set_word(chosen_at() + i, expert);
    }
    return bad;
}

@compute @workgroup_size(THREADS)
fn replay(me: Invocation) {
    let group = group_index(me.group, me.groups);
    if group >= params.at.groups {
        return;
    }
    let token = begin(me, group);
    let row = params.at.b1 + clamped(token) * params.x_stride;
    var softmax = Row(0u, 0.0f);
    if SCORING == SOFTMAX {
        softmax = softmax_row(row);
    }
    var bits = select(0u, 2u, take_given(token));
    for (var e = team_lane; e < params.experts; e += LANES) {
        bits |= select(1u, 0u, is_finite(logit(row, e)));
    }
    if bits != 0u && token < params.tokens && !is_padding(token) {
        raise(bits);
    }
    barrier();
    write_weights(token, row, softmax);
}

// Replaces a picked expert by its place, and counts the pick.
@compute @workgroup_size(PLACED)
fn place(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * 256u + thread;
    // Columns of shared experts have no place to find and are not counted.
    let columns = params.topk + select(0u, params.shared_experts, params.has_logical != 0u);
    if index >= params.tokens * columns {
        return;
    }
    let token = index / columns;
    let column = index % columns;
    let at = params.at.b4 + token * params.indices_stride + column;
    var expert = indices[at << params.wide];
    let shared_expert = column >= params.topk;
    if shared_expert && expert != NOBODY {
        expert = params.experts + column - params.topk;
    }
    if params.has_logical != 0u {
        logical[params.at.b6 + token * params.logical_stride + column] = expert;
    }
    if shared_expert || expert == NOBODY {
        return;
    }
    var found = expert;
    if params.has_replicas != 0u {
        let given = bitcast<i32>(replica_counts[params.at.b2 + expert]);
        let count = clamp(given, 1, i32(params.max_replicas));
        if count != given {
            raise(4u);
        }
        let turn = ((params.first_wrapped + token) * 2654435769u) % u32(count);
        found = replicas[params.at.b1 + expert * params.replicas_stride + turn];
        if found >= params.physical {
            raise(2u);
            found = NOBODY;
        }
        write_index(token, column, found);
    }
    if params.has_load != 0u && found != NOBODY {
        atomicAdd(&load[params.at.b3 + found], 1u);
    }
}
