//!include ngram
// hybrid_mtp_ngram: extends the drafts of a multi-token-prediction head by n-gram matching.
// include/ngram.wgsl describes the passes, their mapping of threads to data and the bytes they
// move. This file has the first pass, `prepare`.

// prepare
@group(0) @binding(2) var<storage, read> input_ids_len: array<u32>;
@group(0) @binding(3) var<storage, read> step_idx: array<u32>;
@group(0) @binding(4) var<storage, read> max_dec_len: array<u32>;
@group(0) @binding(5) var<storage, read> seq_lens_this_time: array<i32>;
@group(0) @binding(6) var<storage, read> seq_lens_decoder: array<i32>;

// One of the three lengths of a request, as 64 bits. WGSL functions take no pointers to buffers, so
// one function serves all three.
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
            value = integer(step_idx[at], step_idx[at + high], words);
        }
        default: {
            let at = (params.at.b4 + request) * words;
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
    let have = seq_lens_this_time[params.at.b5 + request];
    let decoder = seq_lens_decoder[params.at.b6 + request];
    let is_active = decoder > 0;
    var noted = select(0u, BAD_LENGTHS, decoder < 0);
    if have <= 0 {
        store_entry(request, Entry(0u, false, 0u, 0u, is_active, noted));
        return;
    }
    let none = vec2(0u, 0u);
    noted |= store_lengths(request, length(0u, request), none, length(1u, request));
    let own = i32(params.max_draft_tokens) - have + 1;
    let limit = draft_limit(own, length(2u, request), load(request, STEP));
    // The request uses `have` tokens and is done. A request without room to draft stays unchanged,
    // and its `have` tokens count as used too.
    let entry = Entry(limit, limit > 0u, u32(have), u32(have) - 1u, is_active, noted);
    store_entry(request, entry);
}
