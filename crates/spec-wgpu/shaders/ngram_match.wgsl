//!include ngram
// ngram_match: drafts the tokens that followed an earlier occurrence of the last tokens.
// include/ngram.wgsl describes the passes, their mapping of threads to data and the bytes they
// move. This file has the first pass, `prepare`.

// prepare
@group(0) @binding(2) var<storage, read> input_ids_len: array<u32>;
@group(0) @binding(3) var<storage, read> prompt_lens: array<u32>;
@group(0) @binding(4) var<storage, read> step_idx: array<u32>;
@group(0) @binding(5) var<storage, read> max_dec_len: array<u32>;
@group(0) @binding(6) var<storage, read> draft_token_num: array<i32>;
@group(0) @binding(7) var<storage, read> seq_lens_encoder: array<i32>;
@group(0) @binding(8) var<storage, read> seq_lens_decoder: array<i32>;

// One of the four lengths of a request, as 64 bits. WGSL functions take no pointers to buffers, so
// one function serves all four.
fn length(which: u32, request: u32) -> vec2<u32> {
    let words = params.length_words;
    let high = words - 1u;
    var value = vec2(0u, 0u);
    switch which {
        case 0u: {
            let at = (params.at.b2 + request) * words;
            value = integer(input_ids_len[at], input_ids_len[at + high], words);
        }
        case 1u: {
            let at = (params.at.b3 + request) * words;
            value = integer(prompt_lens[at], prompt_lens[at + high], words);
        }
        case 2u: {
            let at = (params.at.b4 + request) * words;
            value = integer(step_idx[at], step_idx[at + high], words);
        }
        default: {
            let at = (params.at.b5 + request) * words;
            value = integer(max_dec_len[at], max_dec_len[at + high], words);
        }
    }
    return value;
}

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
    let encoder = seq_lens_encoder[params.at.b7 + request];
    let decoder = seq_lens_decoder[params.at.b8 + request];
    var noted = select(0u, BAD_LENGTHS, min(encoder, decoder) < 0);
    if encoder > 0 {
        // The request stays unchanged: its seq_lens_this_time counts as used.
        store_entry(request, Entry(0u, false, 0u, 0u, true, noted));
        return;
    }
    if decoder <= 0 {
        store_entry(request, Entry(0u, true, 0u, 0u, false, noted));
        return;
    }
    noted |= store_lengths(request, length(0u, request), length(1u, request), length(2u, request));
    let own = draft_token_num[params.at.b6 + request];
    let limit = draft_limit(own, length(3u, request), load(request, STEP));
    // The request uses one token and is done.
    store_entry(request, Entry(limit, true, 1u, 0u, true, noted));
}
