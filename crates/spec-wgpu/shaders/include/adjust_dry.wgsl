// DRY: how long a sequence each token would repeat, and the penalty for it. This file is a part of
// adjust_logits and uses its declarations. Three passes before `finish`:
//
// 1. `dry_weigh`  a thread per row: the row's penalty and range.
// 2. `dry_limit`  a workgroup per row: how many tokens at the end of the text are no breakers.
// 3. `dry_match`  a thread per token of a row's text: the length of the sequence before it.

// dry_weigh
@group(0) @binding(2) var<storage, read> dry_multiplier: array<u32>;
@group(0) @binding(3) var<storage, read> dry_base: array<u32>;
@group(0) @binding(4) var<storage, read> dry_allowed: array<i32>;
@group(0) @binding(5) var<storage, read> dry_range: array<i32>;
// dry_limit, dry_match
@group(0) @binding(5) var<storage, read> dry_breakers: array<u32>;

@compute @workgroup_size(ROW_THREADS)
fn dry_weigh(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * 64u + thread;
    let request = request_of(row);
    if request == NONE {
        return;
    }
    // Where the rule is off, no sequence has a token.
    store(row, MATCH_LIMIT, 0u);
    let multiplier = flushed(dry_multiplier[params.at.b2 + request]);
    if (multiplier & 0x7fffffffu) == 0u {
        return;
    }
    let base = dry_base[params.at.b3 + request];
    let is_bad = (multiplier >> 31u) == 1u || !is_finite(multiplier);
    // The bits of positive numbers order as the numbers do.
    if is_bad || (base >> 31u) == 1u || base < ONE_BITS || !is_finite(base) {
        raise(row, BAD_LENGTHS);
        return;
    }
    store(row, MATCH_LIMIT, MAX_MATCH);
    store(row, MULTIPLIER, multiplier);
    store(row, BASE, base);
    store(row, ALLOWED, u32(max(dry_allowed[params.at.b4 + request], 0)));
    let len = load(row, LENGTH) + load(row, DEPTH);
    var count = len;
    if has(HAS_RANGE) {
        let range = dry_range[params.at.b5 + request];
        count = select(len, min(u32(max(range, 0)), len), range > 0);
    }
    store(row, RANGE_START, len - count);
}

fn is_token(index: u32, token: u32) -> bool {
    return index < params.breakers
        && dry_breakers[params.at.b5 + min(index, params.breakers - 1u)] == token;
}

fn is_breaker(token: vec2<u32>) -> bool {
    // A breaker has 32 bits.
    if any(wide(token.x) != token) {
        return false;
    }
    // Four a turn: see the rules for turns in src/ops/mod.rs.
    for (var i = 0u; i < params.breakers; i += 4u) {
        if is_token(i, token.x) || is_token(i + 1u, token.x) || is_token(i + 2u, token.x)
            || is_token(i + 3u, token.x) {
            return true;
        }
    }
    return false;
}

@compute @workgroup_size(ROW_THREADS)
fn dry_limit(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) back: u32,
) {
    let row = group_index(group, groups);
    let request = request_of(row);
    if request == NONE {
        return;
    }
    let text = text_of(row, request);
    if load(row, MATCH_LIMIT) <= back || back >= text.length + text.depth {
        return;
    }
    let at_row = row_at(text, params.row0 + row, back);
    if is_breaker(token_back(text, at_row, back)) {
        atomicMin(&work[params.at.b1 + row * STATE + MATCH_LIMIT], back);
    }
}

@compute @workgroup_size(THREADS)
fn dry_match(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    let row = index / params.chunks;
    let request = request_of(row);
    if request == NONE {
        return;
    }
    let limit = load(row, MATCH_LIMIT);
    let least = max(load(row, ALLOWED), 1u);
    let start = load(row, RANGE_START);
    let text = text_of(row, request);
    let len = text.length + text.depth;
    let place = (index % params.chunks) * THREADS + thread;
    if limit < least || place <= start || place >= len {
        return;
    }
    let back = len - 1u - place;
    let last = params.row0 + row;
    let at_row = row_at(text, last, back);
    let before = row_before(text, at_row, back);
    let count = match_length(text, last, before, back + 1u, min(limit, place - start));
    if count < least {
        return;
    }
    let token = token_back(text, at_row, back);
    if is_breaker(token) {
        return;
    }
    let slot = slot_of(row, token);
    if slot != NONE {
        atomicMax(&work[slot + MATCH], count);
    }
}

// A logit after the penalty for a sequence of `count` tokens, as bits.
fn dry_adjusted(row: u32, count: u32, x: u32) -> u32 {
    let base = load(row, BASE);
    var power = ONE_BITS;
    for (var n = load(row, ALLOWED); n < count && is_finite(power); n++) {
        power = product(power, base);
    }
    if !is_finite(power) {
        return NEGATIVE_INFINITY;
    }
    let penalty = product(load(row, MULTIPLIER), power);
    if !is_finite(penalty) {
        return NEGATIVE_INFINITY;
    }
    return minus(x, penalty);
}
