// Thinking budgets: the token that each row must take. This file is a part of adjust_logits and
// uses its declarations. Passes before `finish`, which writes the flags:
//
// 1. `think_start`  a thread per token of a row's text: where the last `think_start` ends.
// 2. `think_taken`  a workgroup per row: how many tokens of `think_forced` end the text.
// 3. `think_over`   a thread per token of a row's text: whether the thinking has ended before them.
// 4. `think_write`  a thread per row: writes the token that the row must take, or -1 for none.

@group(0) @binding(5) var<storage, read> think_budget: array<i32>;
// think_start of `think_start`, think_end of `think_over`, think_forced of the others
@group(0) @binding(6) var<storage, read> think_list: array<u32>;
// think_forced of `think_over`, forced of `think_write`
@group(0) @binding(7) var<storage, read> think_other: array<u32>;
@group(0) @binding(7) var<storage, read_write> forced: array<i32>;

// Whether the tokens that end `back` before the last are the first `count` of `think_list`. The
// draft there is that of `at_row` of all rows.
fn has_list(text: Text, at_row: u32, back: u32, count: u32) -> bool {
    if back + count > text.length + text.depth {
        return false;
    }
    var other = at_row;
    for (var j = 0u; j < count; j++) {
        let token = wide(think_list[params.at.b6 + count - 1u - j]);
        if any(token_back(text, other, back + j) != token) {
            return false;
        }
        other = row_before(text, other, back + j);
    }
    return true;
}

// The same of `think_other`.
fn has_other(text: Text, at_row: u32, back: u32, count: u32) -> bool {
    if back + count > text.length + text.depth {
        return false;
    }
    var other = at_row;
    for (var j = 0u; j < count; j++) {
        let token = wide(think_other[params.at.b7 + count - 1u - j]);
        if any(token_back(text, other, back + j) != token) {
            return false;
        }
        other = row_before(text, other, back + j);
    }
    return true;
}

// By how many tokens a thinking is past its budget, with 1 added; 0 where no budget is used up. The
// row has a request.
fn past_budget(row: u32, request: u32) -> u32 {
    let budget = think_budget[params.at.b5 + request];
    var start = load(row, PROMPT);
    if params.start_tokens != 0u {
        start = load(row, THOUGHT);
        if start == 0u {
            return 0u;
        }
    }
    let thought = load(row, LENGTH) + load(row, DEPTH) - start;
    if budget < 0 || thought < u32(budget) || params.end_tokens == 0u || params.forced_tokens == 0u {
        return 0u;
    }
    return thought - u32(budget) + 1u;
}

@compute @workgroup_size(THREADS)
fn think_start(
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
    let text = text_of(row, request);
    let len = text.length + text.depth;
    let place = (index % params.chunks) * THREADS + thread;
    if place >= len {
        return;
    }
    let back = len - 1u - place;
    let at_row = row_at(text, params.row0 + row, back);
    if has_list(text, at_row, back, params.start_tokens) {
        atomicMax(&work[params.at.b1 + row * STATE + THOUGHT], place + 1u);
    }
}

@compute @workgroup_size(THREADS)
fn think_taken(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    let request = request_of(row);
    if request == NONE {
        return;
    }
    let text = text_of(row, request);
    let past = past_budget(row, request);
    // Without a token, each text ends in the list.
    for (var count = thread + 1u; count < min(past, params.forced_tokens + 1u); count += THREADS) {
        if has_list(text, params.row0 + row, 0u, count) {
            atomicMax(&work[params.at.b1 + row * STATE + TAKEN], count);
        }
    }
}

@compute @workgroup_size(THREADS)
fn think_over(
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
    let text = text_of(row, request);
    let len = text.length + text.depth;
    let place = (index % params.chunks) * THREADS + thread;
    let start = select(load(row, THOUGHT), load(row, PROMPT), params.start_tokens == 0u);
    if past_budget(row, request) == 0u || place < start || place + load(row, TAKEN) >= len {
        return;
    }
    let back = len - 1u - place;
    let at_row = row_at(text, params.row0 + row, back);
    if has_list(text, at_row, back, params.end_tokens)
        || has_other(text, at_row, back, params.forced_tokens) {
        store(row, IS_OVER, 1u);
    }
}

@compute @workgroup_size(ROW_THREADS)
fn think_write(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * 64u + thread;
    if row >= params.row1 - params.row0 {
        return;
    }
    let request = request_of(row);
    var token = NONE;
    if request != NONE {
        let taken = load(row, TAKEN);
        if past_budget(row, request) != 0u && load(row, IS_OVER) == 0u && taken < params.forced_tokens {
            token = think_list[params.at.b6 + taken];
            if token >= params.vocab {
                raise(row, OUT_OF_RANGE);
                token = NONE;
            }
        }
    }
    forced[params.at.b7 + params.row0 + row] = bitcast<i32>(token);
}
