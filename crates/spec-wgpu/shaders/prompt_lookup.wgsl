//!include ngram_search
// prompt_lookup: drafts the tokens that followed an earlier occurrence of a text's last tokens. The
// text is the request's only haystack; the text is bound again as `generated`, where the pattern
// ends.
//
// Passes, each its own dispatches:
//
// 1. `prepare` a thread per request: finds the request's text, and cuts its length to its row.
// 2. `search`  in include/ngram_search.wgsl.
// 3. `finish`  a workgroup per request: finds the best block, copies the draft, pads the row.
//
// Passes 2 and 3 are dispatched for each window of texts, and leave out requests whose text lies in
// another window.
//
// Bytes moved: the texts once, up to the first match of full length; the floor is this number of
// bytes over the memory's bandwidth.

// 32-bit words of a draft, which may be wider than a token.
override DRAFT_WORDS = 1u;

// Words of a request's state: flags, and the largest number of drafts.
const FLAGS = 4u;
const LIMIT = 6u;

// prepare
@group(0) @binding(2) var<storage, read> lengths: array<u32>;
@group(0) @binding(3) var<storage, read> requests: array<u32>;
@group(0) @binding(4) var<storage, read> max_drafts: array<i32>;
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
    var slot = request;
    if has_form(MAPPED) {
        let words = select(1u, 2u, has_form(WIDE_REQUESTS));
        let at = (params.at.b3 + request) * words;
        slot = row_of(integer(requests[at], requests[at + words - 1u], words));
    }
    // NONE is -1, which is padding.
    var noted = select(BAD_LENGTHS, 0u, slot < params.texts || slot == NONE);
    var length = 0u;
    if slot < params.texts {
        let words = params.length_words;
        let at = (params.at.b2 + slot) * words;
        let given = integer(lengths[at], lengths[at + words - 1u], words);
        length = cut_length(given, params.input_cols);
        noted |= select(0u, BAD_LENGTHS, is_cut(given, length));
    } else {
        slot = NONE;
    }
    var limit = params.max_draft_tokens;
    if has_form(LIMITED) {
        limit = min(limit, u32(max(max_drafts[params.at.b4 + request], 0)));
    }
    let before = max(length, 1u) - 1u;
    var longest = min(params.max_ngram, before);
    if longest < params.min_ngram || limit == 0u {
        longest = 0u;
    }
    store(request, PROMPT, length);
    store(request, START, 0u);
    store(request, STEP, before);
    store(request, LONGEST, longest);
    store(request, FLAGS, noted);
    store(request, SLOT, slot);
    store(request, LIMIT, limit);
    store(request, HIT, NONE);
}

// Writes a draft, in every type of token.
fn put_draft(at: u32, token: vec2<u32>) {
    draft_tokens[DRAFT_WORDS * at] = token.x;
    if DRAFT_WORDS == 2u {
        draft_tokens[2u * at + 1u] = token.y;
    }
}

fn text_token(at: u32) -> vec2<u32> {
    let token = input_token(at);
    return integer(token.x, token.y, TOKEN_WORDS);
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
    let slot = load(request, SLOT);
    let is_none = slot == NONE;
    // The first window has the requests without a text.
    if !select(is_in_window(slot), params.slot0 == 0u, is_none) {
        return;
    }
    let length = load(request, PROMPT);
    var first = 0u;
    var count = 0u;
    if !is_none && best.x > 0u && best.x >= params.min_ngram {
        // The draft starts behind the last token of the match.
        first = rank(best.y) + 1u;
        count = min(load(request, LIMIT), length - first);
    }
    let text_at = params.at.b2 + (slot - params.slot0) * params.input_stride;
    // -1 in every type of token.
    var padding = vec2(NONE);
    if has_form(PAD_WITH_LAST) && length > 0u {
        padding = text_token(text_at + length - 1u);
    }
    let to_at = params.at.b4 + row * params.draft_stride;
    for (var i = thread; i < params.draft_cols; i += 64u) {
        var token = padding;
        if i < count {
            token = text_token(text_at + first + i);
        }
        put_draft(to_at + i, token);
    }
    if thread == 0u {
        counts[params.at.b5 + request] = i32(count);
        let noted = load(request, FLAGS);
        if noted != 0u {
            atomicOr(&flags[params.at.b6], noted);
        }
    }
}
