//!include params/rejection_sample
//!include params/shared
//!include floats
//!include integers
//!include philox
//!include probability
//!include recovery
// rejection_sample: verifies draft tokens, one row of output a request.
//
// Each pass is its own dispatches: a shader stage has 8 storage buffers, but the operator has 13
// tensors; and no workgroup ever waits for another:
//
// * `walk`    a workgroup per request, a thread per draft token: finds the first rejection.
// * `scan`    a workgroup per (request, chunk of the vocabulary): a partial result over the
//             residual of the rejected row; also writes the counts.
// * `finish`  a workgroup per request: reduces the partial results to a token, or finds the token
//             that wins the race among the residual's tokens (include/race_first.wgsl); writes the
//             output row.
//
// Matrices larger than a binding come in windows of rows [row0, row1) and chunks [chunk0, chunk1);
// other dispatches of the same pass handle the rest. A pass `gather` then runs before `walk`, with
// a thread per token, and reads the probabilities of the draft ids; and `finish` becomes four
// passes: `resolve`, `locate`, `end` and `emit`.
//
// With greedy acceptance, `scan` and `resolve` find the argmax of every token's row, and `walk`,
// `end` and `emit` follow. Where only some requests are greedy, `note` (a thread per request)
// stores which requests are greedy, `scan` and `resolve` look only at the rows of these requests'
// tokens, and then all passes of the other requests follow.
//
// Random numbers: `walk` draws the numbers that accept drafts and stores the position of the race.
// `scan`, which has a spare binding for the seeds, stores the seeds for the race.
//
// Bytes moved: the rejected rows of target_probs and draft_probs once, and for the race a few
// groups of 64 tokens of these rows again (with greedy acceptance, all rows of target_probs); the
// floor is this number of bytes over the memory's bandwidth. Everything else is a few words per
// token.
//
// Every maximum and the race have a rule for ties, so the result is the same for any chunk size.

// The type of the probabilities, whether draft_probs is present, whether one window holds
// everything, the purpose of a scan (the residual's argmax, a draw from the residual, or whole rows
// for greedy acceptance), and whether only some requests are greedy.
override DTYPE = 0u;
override HAS_DRAFT = 0u;
override WHOLE = 0u;
override MODE = 0u;
override MIXED = 0u;

const NONE = 0xffffffffu;
const REJECTED = 0x80000000u;
const ONE_BITS = 0x3f800000u;
// 1e-10, the least draft probability that counts.
const FLOOR_BITS = 0x2edbe6ffu;
// Threads of a workgroup that runs a race, and the numbers of groups and of tokens that the race
// lists at once.
const WIDE = 256u;
const RACE_LIST = 512u;
const RACE_TOKENS = 3u * WIDE;

// A request's state between the passes, STATE words: the row to recover from (or NONE), the number of
// accepted tokens, the first token, the rejected draft id (or NONE), the token after the accepted
// ones; for `locate` the seed (two words) and the time at which this token finishes the race, as
// far as is known; whether a draft was rejected; the position of the rejected draft in the
// request's text (two words); from `note`, the number of tokens and whether the request is greedy.
// A partial result, PARTIAL words: the largest residual and its index; the largest finite target and its
// index; flags.

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
// walk, scan, finish, gather, locate
@group(0) @binding(7) var<storage, read> target_probs: array<u32>;
@group(0) @binding(8) var<storage, read> draft_probs: array<u32>;
// walk, finish, gather, emit
@group(0) @binding(6) var<storage, read> draft_token_ids: array<u32>;
// walk, note
@group(0) @binding(2) var<storage, read> cu_num_draft: array<u32>;
// walk: uniform_samples, or seeds where those are drawn
@group(0) @binding(3) var<storage, read> randomness: array<u32>;
@group(0) @binding(4) var<storage, read> positions: array<u32>;
// note
@group(0) @binding(3) var<storage, read> greedy: array<u32>;
// finish, end
@group(0) @binding(3) var<storage, read> bonus_token_ids: array<u32>;
// walk, finish, resolve, end
@group(0) @binding(5) var<storage, read_write> flags: array<atomic<u32>>;
// scan
@group(0) @binding(6) var<storage, read> seeds: array<u32>;
// scan, emit
@group(0) @binding(2) var<storage, read_write> num_accepted: array<u32>;
@group(0) @binding(3) var<storage, read_write> accepted_counts: array<u32>;
@group(0) @binding(4) var<storage, read_write> recovered_counts: array<u32>;
@group(0) @binding(5) var<storage, read_write> bonus_counts: array<u32>;
// output_token_ids, in finish and in emit
@group(0) @binding(2) var<storage, read_write> output_token_ids: array<u32>;
@group(0) @binding(7) var<storage, read_write> output_rows: array<u32>;

var<workgroup> shared_word: u32;
var<workgroup> shared_tokens: vec3<u32>;
var<workgroup> shared_flags: atomic<u32>;
var<workgroup> shared_first: atomic<u32>;

// A word of the workspace.
fn load(at: u32) -> u32 {
    return work[params.at.b1 + at];
}

fn store(at: u32, value: u32) {
    work[params.at.b1 + at] = value;
}

fn state_of(request: u32) -> u32 {
    return params.states + request * STATE;
}

// A draft id as an index into the vocabulary, or NONE.
fn draft_index(token: u32) -> u32 {
    let at = (params.at.b6 + token) * params.ids_words;
    let low = draft_token_ids[at];
    // A negative id is a large number here.
    let outside = low >= params.vocab
        || (params.ids_words == 2u && draft_token_ids[at + 1u] != 0u);
    return select(low, NONE, outside);
}

fn target_bits(at: u32) -> u32 {
    return float_bits(target_probs[float_word(at, DTYPE)], at, DTYPE);
}

fn draft_bits(at: u32) -> u32 {
    return float_bits(draft_probs[float_word(at, DTYPE)], at, DTYPE);
}

// The position of a request's draft in its text, in two's complement.
fn position_of(request: u32, draft: u32) -> vec2<u32> {
    let words = params.positions_words;
    let at = (params.at.b4 + request) * words;
    let first = integer(positions[at], positions[at + words - 1u], words);
    return u64_add(first, vec2(draft, 0u));
}

// The index of a token's column in the bound matrices.
fn target_at(token: u32, column: u32) -> u32 {
    let skipped = params.chunk0 * params.chunk;
    return params.at.b7 + (token - params.row0) * params.target_stride + column - skipped;
}

fn draft_at(token: u32, column: u32) -> u32 {
    let skipped = params.chunk0 * params.chunk;
    return params.at.b8 + (token - params.row0) * params.draft_stride + column - skipped;
}

// ---- gather ----------------------------------------------------------------

@compute @workgroup_size(SMALL)
fn gather(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let token = params.row0 + group_index(group, groups) * 64u + thread;
    if token >= params.row1 {
        return;
    }
    let id = draft_index(token);
    let begin = params.chunk0 * params.chunk;
    if id == NONE || id < begin || id / params.chunk >= params.chunk1 {
        return;
    }
    store(params.gathered + token, target_bits(target_at(token, id)));
    if HAS_DRAFT != 0u {
        store(params.draft_gathered + token, draft_bits(draft_at(token, id)));
    }
}

// ---- walk ------------------------------------------------------------------

// The first token of a request, the request's number of tokens, and flags.
fn request_tokens(request: u32) -> vec3<u32> {
    // Where `cu_num_draft` has no leading 0, the tokens of request 0 start at 0.
    var bounds = array(0u, 0u);
    let absent = request == 0u && params.leading == 0u;
    for (var k = select(0u, 1u, absent); k < 2u; k++) {
        let at = (params.at.b2 + request + params.leading + k - 1u) * params.cu_words;
        var offset = cu_num_draft[at];
        if params.cu_words == 2u && cu_num_draft[at + 1u] != 0u {
            offset = NONE;
        }
        // A negative offset is a large number here.
        if offset > params.tokens {
            return vec3(0u, 0u, BAD_LENGTHS);
        }
        bounds[k] = offset;
    }
    if bounds[1] < bounds[0] {
        return vec3(0u, 0u, BAD_LENGTHS);
    }
    let count = bounds[1] - bounds[0];
    let cut = min(count, params.max_spec_len);
    return vec3(bounds[0], cut, select(0u, BAD_LENGTHS, cut < count));
}

fn uniform_bits(request: u32, token: u32, draft: u32) -> u32 {
    if params.has_uniform != 0u {
        return randomness[params.at.b3 + token];
    }
    let at = (params.at.b3 + request) * 2u;
    let seed = vec2(randomness[at], randomness[at + 1u]);
    let draw = Draw(seed, position_of(request, draft), PURPOSE_ACCEPT);
    let word = block(draw, 0u).x >> 8u;
    // Exact: 24 bits and a power of two.
    return bitcast<u32>(f32(word) * bitcast<f32>((127u - 24u) << 23u));
}

// u * max(draft, 1e-10) < target, or target >= max(draft, 1e-10).
fn accepts(t: u32, d: u32, u: u32) -> bool {
    let above = sort_key(d) > sort_key(FLOOR_BITS);
    let least = select(FLOOR_BITS, d, above);
    return sort_key(t) >= sort_key(least) || sort_key(multiply_bits(u, least)) < sort_key(t);
}

// Whether a request accepts drafts by the target's argmax.
fn is_greedy(request: u32) -> bool {
    return MODE == GREEDY || (MIXED != 0u && load(state_of(request) + 12u) != 0u);
}

// REJECTED if a token is rejected, and flags.
fn judge(request: u32, token: u32, draft: u32) -> u32 {
    let id = draft_index(token);
    if is_greedy(request) {
        let top = load(params.tops + 2u * token);
        let noted = load(params.tops + 2u * token + 1u);
        let missed = select(0u, OUT_OF_RANGE, id == NONE);
        return select(0u, REJECTED, id != top) | noted | missed;
    }
    if id == NONE {
        return REJECTED | OUT_OF_RANGE;
    }
    var t = 0u;
    var d = ONE_BITS;
    if WHOLE != 0u {
        t = target_bits(target_at(token, id));
    } else {
        t = load(params.gathered + token);
    }
    if HAS_DRAFT != 0u {
        if WHOLE != 0u {
            d = draft_bits(draft_at(token, id));
        } else {
            d = load(params.draft_gathered + token);
        }
    }
    let u = uniform_bits(request, token, draft);
    if !(is_finite(t) && is_finite(d) && is_finite(u)) {
        return REJECTED | NON_FINITE;
    }
    return select(REJECTED, 0u, accepts(t, d, u));
}

@compute @workgroup_size(SMALL)
fn walk(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.requests {
        return;
    }
    if thread == 0u {
        shared_tokens = request_tokens(request);
        shared_word = NONE;
        atomicStore(&shared_first, NONE);
        atomicStore(&shared_flags, shared_tokens.z);
    }
    let tokens = workgroupUniformLoad(&shared_tokens);
    // Looks at 64 positions at a time, until a token is rejected.
    var first = NONE;
    for (var base = 0u; base < tokens.y && first == NONE; base += 64u) {
        let position = base + thread;
        var verdict = 0u;
        if position < tokens.y {
            verdict = judge(request, tokens.x + position, position);
        }
        if (verdict & REJECTED) != 0u {
            atomicMin(&shared_first, position);
        }
        workgroupBarrier();
        if thread == 0u {
            shared_word = atomicLoad(&shared_first);
        }
        first = workgroupUniformLoad(&shared_word);
        // Flags of tokens behind the first rejection do not count.
        let noted = verdict & ~REJECTED;
        if noted != 0u && position <= first {
            atomicOr(&shared_flags, noted);
        }
    }
    workgroupBarrier();
    if thread != 0u {
        return;
    }
    let found = atomicLoad(&shared_flags);
    if found != 0u {
        atomicOr(&flags[params.at.b5], found);
    }
    let state = state_of(request);
    store(state + 1u, min(first, tokens.y));
    store(state + 2u, tokens.x);
    store(state + 8u, select(1u, 0u, first == NONE));
    store(state, NONE);
    if first == NONE {
        return;
    }
    let row = tokens.x + first;
    if is_greedy(request) {
        store(state + 4u, load(params.tops + 2u * row));
        return;
    }
    store(state, row);
    store(state + 3u, draft_index(row));
    if MODE == SAMPLE {
        let position = position_of(request, first);
        store(state + 9u, position.x);
        store(state + 10u, position.y);
    }
}

// ---- note -------------------------------------------------------------------

@compute @workgroup_size(SMALL)
fn note(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * 64u + thread;
    if request >= params.requests {
        return;
    }
    let at = params.at.b3 + request;
    var truth = 0u;
    if params.greedy_words == 0u {
        truth = (greedy[at / 4u] >> (8u * (at % 4u))) & 0xffu;
    } else {
        truth = greedy[at];
    }
    let tokens = request_tokens(request);
    let state = state_of(request);
    store(state + 2u, tokens.x);
    store(state + 11u, tokens.y);
    store(state + 12u, truth);
}

// ---- end --------------------------------------------------------------------

// The bonus token, which ends a row of accepted drafts, and flags.
fn bonus_of(request: u32) -> vec2<u32> {
    let at = (params.at.b3 + request) * params.bonus_words;
    let low = bonus_token_ids[at];
    let outside = low >= params.vocab
        || (params.bonus_words == 2u && bonus_token_ids[at + 1u] != 0u);
    return select(vec2(low, 0u), vec2(0u, OUT_OF_RANGE), outside);
}

@compute @workgroup_size(SMALL)
fn end(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups) * 64u + thread;
    if request >= params.requests || load(state_of(request) + 8u) != 0u {
        return;
    }
    let bonus = bonus_of(request);
    store(state_of(request) + 4u, bonus.x);
    if bonus.y != 0u {
        atomicOr(&flags[params.at.b5], bonus.y);
    }
}

// ---- emit -------------------------------------------------------------------

// The high word of a token as 64 bits: -1 is the only negative token.
fn sign_of(token: u32) -> u32 {
    return select(0u, NONE, token == NONE);
}

// The token in slot `slot` of an output row; `last` follows the accepted tokens.
fn row_token(state: u32, slot: u32, last: u32) -> u32 {
    let accepted = load(state + 1u);
    if slot < accepted {
        return draft_token_ids[(params.at.b6 + load(state + 2u) + slot) * params.ids_words];
    }
    return select(NONE, last, slot == accepted);
}

fn write_counts(request: u32) {
    let state = state_of(request);
    let accepted = load(state + 1u);
    let recovered = load(state + 8u);
    num_accepted[params.at.b2 + request] = accepted + 1u;
    accepted_counts[params.at.b3 + request] = accepted;
    recovered_counts[params.at.b4 + request] = recovered;
    bonus_counts[params.at.b5 + request] = 1u - recovered;
}

@compute @workgroup_size(SMALL)
fn emit(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = params.row0 + group_index(group, groups);
    if request >= params.row1 {
        return;
    }
    let state = state_of(request);
    let last = load(state + 4u);
    let row = params.at.b7 + (request - params.row0) * params.output_stride;
    for (var slot = thread; slot <= params.max_spec_len; slot += 64u) {
        let token = row_token(state, slot, last);
        let at = (row + slot) * params.output_words;
        output_rows[at] = token;
        if params.output_words == 2u {
            output_rows[at + 1u] = sign_of(token);
        }
    }
    if thread == 0u {
        write_counts(request);
    }
}
