//!include params/append_tokens
//!include params/shared
//!include integers
// append_tokens: appends the tokens of a decode step to the texts of its requests.
//
// One thread per request, in two passes, because one dispatch cannot bind all of the arguments:
//
// 1. `decide` counts the tokens that the request takes, and says why the request ends, if it does.
// 2. `append` copies these tokens and writes the changed values.
//
// Bytes moved: new tokens, stop tokens and some words per request. The reads of a request depend on
// each other; only the work of other requests hides their latency.

@group(0) @binding(0) var<uniform> params: Params;
// REQUEST_WORDS words per request: its length before the call, the number of tokens that it takes,
// and its `finished`.
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
@group(0) @binding(3) var<storage, read> new_tokens: array<u32>;

// decide
@group(0) @binding(2) var<storage, read> given_lengths: array<u32>;
@group(0) @binding(4) var<storage, read> new_counts: array<u32>;
@group(0) @binding(5) var<storage, read> stop_tokens: array<u32>;
@group(0) @binding(6) var<storage, read> max_lengths: array<u32>;
@group(0) @binding(7) var<storage, read> given_finished: array<u32>;
@group(0) @binding(8) var<storage, read_write> flags: array<atomic<u32>>;

// append
@group(0) @binding(2) var<storage, read_write> lengths: array<u32>;
@group(0) @binding(4) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(5) var<storage, read_write> finished: array<u32>;
@group(0) @binding(6) var<storage, read_write> appended: array<u32>;
@group(0) @binding(7) var<storage, read_write> last_tokens: array<u32>;

const NONE = 0xffffffffu;

// The token in column `column` of a request's new tokens; NONE for a value that is no token.
fn new_token(request: u32, column: u32) -> u32 {
    let words = params.new_words;
    let at = (params.at.b3 + request * params.new_stride + column) * words;
    let value = integer(new_tokens[at], new_tokens[at + words - 1u], words);
    return select(NONE, value.x, value.y == 0u && (value.x >> 31u) == 0u);
}

fn is_stop(request: u32, token: u32) -> bool {
    let words = params.stop_words;
    for (var i = 0u; i < params.stops; i++) {
        let at = (params.at.b5 + request * params.stop_stride + i) * words;
        let stop = integer(stop_tokens[at], stop_tokens[at + words - 1u], words);
        if stop.x == token && stop.y == 0u {
            return true;
        }
    }
    return false;
}

@compute @workgroup_size(THREADS)
fn decide(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * THREADS + thread;
    if request >= params.requests {
        return;
    }
    var bits = 0u;
    var words = params.length_words;
    var at = (params.at.b2 + request) * words;
    let given = integer(given_lengths[at], given_lengths[at + words - 1u], words);
    let length = cut_length(given, params.max_len);
    bits |= select(0u, BAD_LENGTHS, is_cut(given, length));
    var state = RUNNING;
    if params.has_finished != 0u {
        state = given_finished[params.at.b7 + request];
    }
    var taken = 0u;
    if state == RUNNING {
        words = params.count_words;
        at = (params.at.b4 + request) * words;
        let new_count = integer(new_counts[at], new_counts[at + words - 1u], words);
        let count = cut_length(new_count, params.n);
        bits |= select(0u, BAD_LENGTHS, is_cut(new_count, count));
        var limit = params.max_len;
        if params.max_words != 0u {
            words = params.max_words;
            at = (params.at.b6 + request) * words;
            limit = cut_length(integer(max_lengths[at], max_lengths[at + words - 1u], words), limit);
        }
        let room = max(limit, length) - length;
        var is_bad = false;
        while taken < min(count, room) && state == RUNNING && !is_bad {
            let token = new_token(request, taken);
            is_bad = token == NONE;
            taken += select(1u, 0u, is_bad);
            if !is_bad && is_stop(request, token) {
                state = STOPPED;
            }
        }
        bits |= select(0u, OUT_OF_RANGE, is_bad);
        if state == RUNNING && length + taken >= limit {
            state = AT_LENGTH;
        }
    }
    let out = params.at.b1 + request * REQUEST_WORDS;
    work[out] = length;
    work[out + 1u] = taken;
    work[out + 2u] = state;
    if bits != 0u && params.has_flags != 0u {
        atomicOr(&flags[params.at.b8], bits);
    }
}

@compute @workgroup_size(THREADS)
fn append(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * THREADS + thread;
    if request >= params.requests {
        return;
    }
    let noted = params.at.b1 + request * REQUEST_WORDS;
    let before = work[noted];
    let taken = work[noted + 1u];
    let after = before + taken;
    let words = params.tokens_words;
    let text = params.at.b4 + request * params.tokens_stride;
    for (var i = 0u; i < taken; i++) {
        let at = (text + before + i) * words;
        tokens[at] = new_token(request, i);
        if words == 2u {
            tokens[at + 1u] = 0u;
        }
    }
    let length_at = (params.at.b2 + request) * params.length_words;
    lengths[length_at] = after;
    if params.length_words == 2u {
        lengths[length_at + 1u] = 0u;
    }
    appended[params.at.b6 + request] = taken;
    if params.has_finished != 0u {
        finished[params.at.b5 + request] = work[noted + 2u];
    }
    if params.has_last != 0u {
        let last = (text + max(after, 1u) - 1u) * words;
        let to = (params.at.b7 + request) * words;
        for (var word = 0u; word < words; word++) {
            last_tokens[to + word] = NONE;
            if after > 0u {
                last_tokens[to + word] = tokens[last + word];
            }
        }
    }
}
