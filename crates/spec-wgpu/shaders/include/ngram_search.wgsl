//!include params/ngram
//!include params/shared
//!include integers
// The search of ngram_match, hybrid_mtp_ngram and prompt_lookup: finds where the last tokens of a
// text, the pattern, occurred before. A workgroup handles a block of a request's haystack, with a
// thread per token. The thread compares its token with the pattern's last token and extends the
// match backwards where both are equal. The workgroup keeps the block's longest match, the leftmost
// (or rightmost) among equally long ones. Blocks beyond a match of full length are skipped.
//
// A request has up to two haystacks: its row of input_ids, then its generated
// tokens. The pattern ends with generated[START + STEP].

// 32-bit words of a token, and whether the last of several matches counts instead of the first.
override TOKEN_WORDS = 1u;
override LAST = 0u;

const NONE = 0xffffffffu;
// At least as large as any token or length.
const MAX_I32 = 0x7fffffffu;
// Marks a position among the generated tokens; all positions of the prompt come before.
const GENERATED = 0x80000000u;

// The state of a request between the passes: STATE words from word STATE * request on. Operators
// define further words of their own.
// the number of prompt tokens, where the generated tokens start, the index of the last token;
const PROMPT = 0u;
const START = 1u;
const STEP = 2u;
// the length of the longest pattern (0: no search);
const LONGEST = 3u;
// the row of `input_ids` of a request of prompt_lookup, NONE for none;
const SLOT = 5u;
// the least known rank of a match of full length.
const HIT = 10u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
// search: the workspace again, for atomics
@group(0) @binding(1) var<storage, read_write> racing: array<atomic<u32>>;
// search, and where drafts are copied
@group(0) @binding(2) var<storage, read> input_ids: array<u32>;
@group(0) @binding(3) var<storage, read> generated: array<u32>;
@group(0) @binding(4) var<storage, read_write> draft_tokens: array<u32>;
// in passes that know the result
@group(0) @binding(6) var<storage, read_write> flags: array<atomic<u32>>;

var<workgroup> shared_best: array<vec2<u32>, 256>;
var<workgroup> shared_word: u32;

fn load(request: u32, word: u32) -> u32 {
    return work[params.at.b1 + request * STATE + word];
}

fn store(request: u32, word: u32, value: u32) {
    work[params.at.b1 + request * STATE + word] = value;
}

// ---- search ----------------------------------------------------------------

fn racing_state(request: u32, word: u32) -> u32 {
    return atomicLoad(&racing[params.at.b1 + request * STATE + word]);
}

fn has_form(bit: u32) -> bool {
    return (params.form & bit) != 0u;
}

// Whether the window of texts has the row `slot`.
fn is_in_window(slot: u32) -> bool {
    return slot >= params.slot0 && slot < params.slot1;
}

fn input_token(at: u32) -> vec2<u32> {
    if TOKEN_WORDS == 1u {
        return vec2(input_ids[at], 0u);
    }
    return vec2(input_ids[2u * at], input_ids[2u * at + 1u]);
}

fn generated_token(at: u32) -> vec2<u32> {
    if TOKEN_WORDS == 1u {
        return vec2(generated[at], 0u);
    }
    return vec2(generated[2u * at], generated[2u * at + 1u]);
}

fn haystack_token(in_prompt: bool, at: u32) -> vec2<u32> {
    if in_prompt {
        return input_token(at);
    }
    return generated_token(at);
}

fn low_word(in_prompt: bool, at: u32) -> u32 {
    if in_prompt {
        return input_ids[TOKEN_WORDS * at];
    }
    return generated[TOKEN_WORDS * at];
}

// The number of tokens, up to `longest`, that are equal in the texts that end at a haystack's
// `position` and at the pattern's last token.
fn match_length(
    in_prompt: bool,
    haystack_at: u32,
    position: u32,
    last_at: u32,
    longest: u32,
) -> u32 {
    var matched = 0u;
    while matched < longest && matched <= position {
        let token = haystack_token(in_prompt, haystack_at + position - matched);
        if any(token != generated_token(last_at - matched)) {
            break;
        }
        matched++;
    }
    return matched;
}

// The rank of a position in the order of preference, and the position of a rank. With LAST there is
// only one haystack.
fn rank(position: u32) -> u32 {
    return select(position, MAX_I32 - position, LAST != 0u);
}

// The longer match, then the lower rank.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

@compute @workgroup_size(SEARCH_THREADS)
fn search(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups {
        return;
    }
    // Preferred blocks come first, so that other blocks can see their matches.
    let rows = params.row1 - params.row0;
    let request = params.row0 + index % rows;
    let block = select(index / rows, params.blocks - 1u - index / rows, LAST != 0u);
    let in_prompt = block < params.input_blocks;
    let mark = select(GENERATED, 0u, in_prompt);
    let begin = select(block - params.input_blocks, block, in_prompt) * params.block;
    if thread == 0u {
        let longest = racing_state(request, LONGEST);
        // The best rank that a match in this block can have.
        let least = rank(select(begin | mark, begin + params.block - 1u, LAST != 0u));
        let passed = racing_state(request, HIT) < least;
        shared_word = select(longest, 0u, passed);
        if has_form(MAPPED) && !is_in_window(racing_state(request, SLOT)) {
            shared_word = NONE;
        }
    }
    let longest = workgroupUniformLoad(&shared_word);
    if longest == NONE {
        // The search of another window has the request's text.
        return;
    }
    var row = request - params.row0;
    if has_form(MAPPED) {
        row = racing_state(request, SLOT) - params.slot0;
    }
    let generated_at = params.at.b3 + row * params.generated_stride + racing_state(request, START);
    let step = racing_state(request, STEP);
    let length = select(step, racing_state(request, PROMPT), in_prompt);
    // A match must have a token after it.
    let end = select(0u, min(begin + params.block, max(length, 1u) - 1u), longest > 0u);
    var haystack_at = generated_at;
    if in_prompt {
        haystack_at = params.at.b2 + row * params.input_stride;
    }
    var best = vec2(0u, NONE);
    if begin < end {
        let last = generated_token(generated_at + step);
        // Four loads at a time are in flight, of the low words; few are equal. The loads start from
        // the preferred end, so a strict comparison keeps the preferred match.
        let count = end - begin;
        for (var i = thread; i < count && best.x < longest; i += 1024u) {
            let turn = min(vec4(i, i + 256u, i + 512u, i + 768u), vec4(count - 1u));
            let at = select(begin + turn, end - 1u - turn, vec4(LAST != 0u));
            let low = vec4(
                low_word(in_prompt, haystack_at + at.x),
                low_word(in_prompt, haystack_at + at.y),
                low_word(in_prompt, haystack_at + at.z),
                low_word(in_prompt, haystack_at + at.w),
            );
            let equal = low == vec4(last.x);
            if !any(equal) {
                continue;
            }
            for (var k = 0u; k < 4u && best.x < longest; k++) {
                if equal[k] && i + 256u * k < count {
                    let position = at[k];
                    let matched = match_length(
                        in_prompt, haystack_at, position, generated_at + step, longest);
                    if matched > best.x {
                        best = vec2(matched, rank(position | mark));
                    }
                }
            }
        }
    }
    shared_best[thread] = best;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if thread < half {
            shared_best[thread] = better(shared_best[thread], shared_best[thread + half]);
        }
        workgroupBarrier();
    }
    if thread == 0u {
        best = shared_best[0];
        let partial = params.at.b1 + params.partials + 2u * (request * params.blocks + block);
        atomicStore(&racing[partial], best.x);
        atomicStore(&racing[partial + 1u], best.y);
        if best.x == longest && longest > 0u {
            atomicMin(&racing[params.at.b1 + request * STATE + HIT], best.y);
        }
    }
}

// The best match of a request's blocks, for thread 0 of a workgroup of 64 threads.
fn best_block(request: u32, thread: u32) -> vec2<u32> {
    var best = vec2(0u, NONE);
    for (var block = thread; block < params.blocks; block += 64u) {
        let partial = params.at.b1 + params.partials + 2u * (request * params.blocks + block);
        best = better(best, vec2(work[partial], work[partial + 1u]));
    }
    shared_best[thread] = best;
    workgroupBarrier();
    for (var half = 32u; half > 0u; half >>= 1u) {
        if thread < half {
            shared_best[thread] = better(shared_best[thread], shared_best[thread + half]);
        }
        workgroupBarrier();
    }
    return shared_best[0];
}

// Copies a token from a row of input_ids or of the generated tokens to the drafts.
fn copy_token(in_prompt: bool, from_at: u32, to_at: u32) {
    let token = haystack_token(in_prompt, from_at);
    draft_tokens[TOKEN_WORDS * to_at] = token.x;
    if TOKEN_WORDS == 2u {
        draft_tokens[2u * to_at + 1u] = token.y;
    }
}
