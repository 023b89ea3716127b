//!include ngram_search
// prompt_lookup: drafts the tokens that followed an earlier occurrence of a text's last tokens. The
// text is the request's only haystack; the text is bound again as `generated`, where the pattern
// ends.
//
// Passes, each its own dispatches:
//
// 1. `prepare` a thread per request: cuts the request's length to its row.
// 2. `search`  in include/ngram_search.wgsl.
// 3. `finish`  a workgroup per request: finds the best block, copies the draft, pads the row.
//
// Bytes moved: the texts once, up to the first match of full length; the floor is this number of
// bytes over the memory's bandwidth.

// The word of a request's state that says whether the request's length was cut.
const FLAGS = 4u;

// prepare
@group(0) @binding(2) var<storage, read> lengths: array<u32>;
// finish
@group(0) @binding(5) var<storage, read_write> counts: array<i32>;

@compute @workgroup_size(64)
fn prepare(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * 64u + thread;
    if request >= params.requests {
        return;
    }
    let words = params.length_words;
    let at = (params.at.b2 + request) * words;
    let given = integer(lengths[at], lengths[at + words - 1u], words);
    let length = cut_length(given, params.input_cols);
    let before = max(length, 1u) - 1u;
    var longest = min(params.max_ngram, before);
    if longest < params.min_ngram || params.max_draft_tokens == 0u {
        longest = 0u;
    }
    store(request, PROMPT, length);
    store(request, START, 0u);
    store(request, STEP, before);
    store(request, LONGEST, longest);
    store(request, FLAGS, select(0u, BAD_LENGTHS, is_cut(given, length)));
    store(request, HIT, NONE);
}

@compute @workgroup_size(64)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    let request = params.row0 + row;
    if request >= params.row1 {
        return;
    }
    let best = best_block(request, thread);
    var first = 0u;
    var count = 0u;
    if best.x > 0u && best.x >= params.min_ngram {
        // The draft starts behind the last token of the match.
        first = rank(best.y) + 1u;
        count = min(params.max_draft_tokens, load(request, PROMPT) - first);
    }
    let from_at = params.at.b2 + row * params.input_stride + first;
    let to_at = params.at.b4 + row * params.draft_stride;
    for (var i = thread; i < params.draft_cols; i += 64u) {
        if i < count {
            copy_token(true, from_at + i, to_at + i);
        } else {
            // -1 in every type of token.
            draft_tokens[TOKEN_WORDS * (to_at + i)] = NONE;
            draft_tokens[TOKEN_WORDS * (to_at + i + 1u) - 1u] = NONE;
        }
    }
    if thread == 0u {
        counts[params.at.b5 + request] = i32(count);
        let noted = load(request, FLAGS);
        if noted != 0u {
            atomicOr(&flags[params.at.b6], noted);
        }
    }
}
