//!include bound
// What ngram_match and hybrid_mtp_ngram share: the search for the last tokens'
// earlier occurrence, and the token budget of all requests.
//
// Passes, each its own dispatches, so that none waits for another workgroup:
//
// 1. `prepare` a thread a request (in the operator's own file): cuts lengths to
//              their rows and says how the request enters the budget.
// 2. `search`  a workgroup a (request, block of a haystack), a thread a token:
//              compares with the pattern's last token, extends backwards where
//              it is equal, keeps the block's longest match and the leftmost
//              among those. Blocks behind a match of full length are skipped.
// 3. `choose`  a workgroup a request: the best block, and from it how many
//              tokens the request would draft.
// 4. `share`   one workgroup, for large batches: prefix sums over the requests,
//              in order.
// 5. `copy`    a workgroup a request: its prefix sum where there was no `share`,
//              and from that the drafts it is granted, which it writes.
//
// Bytes moved: the haystacks once, up to the first match of full length; the
// floor is that over the memory's bandwidth.

struct Params {
    at: At,
    requests: u32,
    // Tokens of a row.
    input_cols: u32,
    generated_cols: u32,
    draft_cols: u32,
    max_ngram: u32,
    min_ngram: u32,
    threshold: u32,
    max_draft_tokens: u32,
    // Words of a length.
    length_words: u32,
    // Tokens of a block, and blocks of a row: first the prompt's, then those of
    // the generated tokens.
    block: u32,
    input_blocks: u32,
    blocks: u32,
    // First word of the partial results in the workspace.
    partials: u32,
    // The window of rows, and tokens from row to row in it.
    row0: u32,
    row1: u32,
    input_stride: u32,
    generated_stride: u32,
    draft_stride: u32,
}

// Words of a token, and whether there is a pass `share`.
override TOKEN_WORDS = 1u;
override SHARED = 0u;

const BAD_LENGTHS = 4u;
const NONE = 0xffffffffu;
// Tokens and lengths above any that is met: prefix sums stop there.
const MOST = 0x7fffffffu;
// Marks a position among the generated tokens; all of the prompt come before.
const GENERATED = 0x80000000u;

// A request between the passes, words from STATE * request on:
const STATE = 14u;
// tokens of the prompt, where the generated tokens start, how many there are;
const PROMPT = 0u;
const START = 1u;
const STEP = 2u;
// the longest pattern (0: no search), the most drafts;
const LONGEST = 3u;
const LIMIT = 4u;
// whether seq_lens_this_time is written, with what before any drafts, and what
// that adds to used tokens less requests done;
const WRITES = 5u;
const BASE = 6u;
const WEIGHT = 7u;
// whether the request counts in `left`; flags;
const ACTIVE = 8u;
const FLAGS = 9u;
// the position of a match of full length, the least known so far;
const HIT = 10u;
// drafts wanted, the position of the token before them, and what is taken of the
// budget by all before them.
const WANTED = 11u;
const SOURCE = 12u;
const TAKEN = 13u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<u32>;
// search: the workspace again, for atomics
@group(0) @binding(1) var<storage, read_write> racing: array<atomic<u32>>;
// search, copy
@group(0) @binding(2) var<storage, read> input_ids: array<u32>;
@group(0) @binding(3) var<storage, read> generated: array<u32>;
@group(0) @binding(4) var<storage, read_write> draft_tokens: array<u32>;
// choose, copy
@group(0) @binding(5) var<storage, read_write> this_time: array<i32>;
// choose
@group(0) @binding(6) var<storage, read_write> flags: array<atomic<u32>>;

var<workgroup> shared_best: array<vec2<u32>, 256>;
var<workgroup> shared_sums: array<u32, 256>;
var<workgroup> shared_word: u32;

fn load(request: u32, word: u32) -> u32 {
    return work[params.at.b1 + request * STATE + word];
}

fn store(request: u32, word: u32, value: u32) {
    work[params.at.b1 + request * STATE + word] = value;
}

// ---- prepare ---------------------------------------------------------------

// A length of 64 bits, cut to 0 ..= most.
fn cut(length: vec2<u32>, most: u32) -> u32 {
    if bitcast<i32>(length.y) < 0 {
        return 0u;
    }
    return select(min(length.x, most), most, length.y != 0u);
}

fn is_cut(length: vec2<u32>, to: u32) -> bool {
    return length.x != to || length.y != 0u;
}

// Cuts a request's lengths to its rows; flags if any was cut.
fn store_lengths(request: u32, prompt: vec2<u32>, start: vec2<u32>, step: vec2<u32>) -> u32 {
    let prompt_cut = cut(prompt, params.input_cols);
    let start_cut = cut(start, params.generated_cols);
    // The pattern ends with generated[step], which must lie in the row.
    let after = params.generated_cols - start_cut;
    let step_cut = cut(step, max(after, 1u) - 1u);
    store(request, PROMPT, prompt_cut);
    store(request, START, start_cut);
    store(request, STEP, step_cut);
    let any_cut = is_cut(prompt, prompt_cut) || is_cut(start, start_cut) || is_cut(step, step_cut);
    return select(0u, BAD_LENGTHS, any_cut);
}

// min(own, max_dec_len - step - 1), or 0 where that is negative.
fn draft_limit(own: i32, max_dec_len: vec2<u32>, step: u32) -> u32 {
    let decode = cut(max_dec_len, MOST);
    if own <= 0 || decode <= step {
        return 0u;
    }
    return min(u32(own), decode - step - 1u);
}

// What `prepare` knows of a request besides its lengths.
struct Entry {
    limit: u32,
    writes: bool,
    base: u32,
    weight: u32,
    is_active: bool,
    flags: u32,
}

fn store_entry(request: u32, entry: Entry) {
    var longest = 0u;
    if entry.limit > 0u {
        longest = min(params.max_ngram, load(request, STEP));
        longest = select(longest, 0u, longest < params.min_ngram);
    }
    store(request, LONGEST, longest);
    store(request, LIMIT, entry.limit);
    store(request, WRITES, select(0u, 1u, entry.writes));
    store(request, BASE, entry.base);
    store(request, WEIGHT, entry.weight);
    store(request, ACTIVE, select(0u, 1u, entry.is_active));
    store(request, FLAGS, entry.flags);
    store(request, HIT, NONE);
}

// ---- search ----------------------------------------------------------------

fn racing_state(request: u32, word: u32) -> u32 {
    return atomicLoad(&racing[params.at.b1 + request * STATE + word]);
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

// How many tokens that end at a haystack's `position` equal those that end at
// the pattern's last token, up to `longest`.
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

// The longer match, then the lower position.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

@compute @workgroup_size(256)
fn search(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups {
        return;
    }
    // First blocks first, so that later ones can see their matches.
    let rows = params.row1 - params.row0;
    let request = params.row0 + index % rows;
    let block = index / rows;
    let in_prompt = block < params.input_blocks;
    let mark = select(GENERATED, 0u, in_prompt);
    let begin = select(block - params.input_blocks, block, in_prompt) * params.block;
    if thread == 0u {
        let longest = racing_state(request, LONGEST);
        let passed = racing_state(request, HIT) < (begin | mark);
        shared_word = select(longest, 0u, passed);
    }
    let longest = workgroupUniformLoad(&shared_word);
    let generated_at = params.at.b3 + (request - params.row0) * params.generated_stride
        + racing_state(request, START);
    let step = racing_state(request, STEP);
    let length = select(step, racing_state(request, PROMPT), in_prompt);
    // A match must have a token after it.
    let end = select(0u, min(begin + params.block, max(length, 1u) - 1u), longest > 0u);
    var haystack_at = generated_at;
    if in_prompt {
        haystack_at = params.at.b2 + (request - params.row0) * params.input_stride;
    }
    var best = vec2(0u, NONE);
    if begin < end {
        let last = generated_token(generated_at + step);
        // Four loads on their way at a time, of the low words; few are equal.
        for (var i = begin + thread; i < end && best.x < longest; i += 1024u) {
            let at = min(vec4(i, i + 256u, i + 512u, i + 768u), vec4(end - 1u));
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
                let position = i + 256u * k;
                if equal[k] && position < end {
                    let matched = match_length(
                        in_prompt, haystack_at, position, generated_at + step, longest);
                    // Positions ascend, so a strict comparison keeps the leftmost.
                    if matched > best.x {
                        best = vec2(matched, position | mark);
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

// ---- choose ----------------------------------------------------------------

@compute @workgroup_size(64)
fn choose(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.requests {
        return;
    }
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
    if thread != 0u {
        return;
    }
    best = shared_best[0];
    var noted = load(request, FLAGS);
    if load(request, WRITES) == 0u {
        // Untouched, but what it has counts as used.
        let kept = this_time[params.at.b5 + request];
        store(request, WEIGHT, u32(max(kept, 0)));
        noted |= select(0u, BAD_LENGTHS, kept < 0);
    }
    var wanted = 0u;
    if best.x > 0u && best.x >= params.min_ngram {
        let length = load(request, select(STEP, PROMPT, best.y < GENERATED));
        let candidates = length - (best.y & ~GENERATED) - 1u;
        wanted = min(load(request, LIMIT), candidates);
        let slot = load(request, BASE);
        let room = params.draft_cols - min(slot, params.draft_cols);
        if wanted > room {
            wanted = room;
            noted |= BAD_LENGTHS;
        }
    }
    store(request, WANTED, wanted);
    store(request, SOURCE, best.y);
    if noted != 0u {
        atomicOr(&flags[params.at.b6], noted);
    }
}

// ---- share -----------------------------------------------------------------

// What is taken of the budget before a request's drafts: the drafts wanted by
// those before it, and what is taken without drafts, which is tokens used up to
// it and the requests still to come. A request done adds to the one and leaves
// the other; its weight is the sum of both. Requests to come start as all that
// are active.

// A sum that stops at MOST, where every threshold is reached.
fn add_capped(a: u32, b: u32) -> u32 {
    return min(a + b, MOST);
}

// Running sum over the threads of the workgroup, inclusive.
fn scan_capped(thread: u32, value: u32) -> u32 {
    workgroupBarrier();
    var sum = value;
    shared_sums[thread] = sum;
    for (var step = 1u; step < 256u; step <<= 1u) {
        workgroupBarrier();
        var left = 0u;
        if thread >= step {
            left = shared_sums[thread - step];
        }
        workgroupBarrier();
        sum = add_capped(sum, left);
        shared_sums[thread] = sum;
    }
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(256)
fn share(@builtin(local_invocation_index) thread: u32) {
    var active_requests = 0u;
    for (var request = thread; request < params.requests; request += 256u) {
        active_requests += load(request, ACTIVE);
    }
    scan_capped(thread, active_requests);
    var before = shared_sums[255];
    for (var first = 0u; first < params.requests; first += 256u) {
        let request = first + thread;
        var mine = 0u;
        if request < params.requests {
            mine = load(request, WEIGHT);
            if request > 0u {
                mine = add_capped(mine, load(request - 1u, WANTED));
            }
        }
        let sum = scan_capped(thread, mine);
        if request < params.requests {
            store(request, TAKEN, add_capped(before, sum));
        }
        before = add_capped(before, shared_sums[255]);
    }
}

// ---- copy ------------------------------------------------------------------

// What `share` finds for one request, by all threads of the workgroup.
fn taken_before(request: u32, thread: u32) -> u32 {
    var sum = 0u;
    for (var other = thread; other < params.requests; other += 256u) {
        sum = add_capped(sum, load(other, ACTIVE));
        if other <= request {
            sum = add_capped(sum, load(other, WEIGHT));
        }
        if other < request {
            sum = add_capped(sum, load(other, WANTED));
        }
    }
    shared_sums[thread] = sum;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if thread < half {
            shared_sums[thread] = add_capped(shared_sums[thread], shared_sums[thread + half]);
        }
        workgroupBarrier();
    }
    return shared_sums[0];
}

// drafts = 0 if taken >= threshold - 1, else min(wanted, threshold - taken).
fn granted(wanted: u32, taken: u32) -> u32 {
    if taken + 1u >= params.threshold {
        return 0u;
    }
    return min(wanted, params.threshold - taken);
}

@compute @workgroup_size(256)
fn copy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    let request = params.row0 + row;
    if request >= params.row1 {
        return;
    }
    var taken = 0u;
    if SHARED != 0u {
        taken = load(request, TAKEN);
    } else {
        taken = taken_before(request, thread);
    }
    let base = load(request, BASE);
    let drafts = granted(load(request, WANTED), taken);
    let source = load(request, SOURCE);
    let in_prompt = source < GENERATED;
    var from_at = params.at.b2 + row * params.input_stride;
    if !in_prompt {
        from_at = params.at.b3 + row * params.generated_stride + load(request, START);
    }
    from_at += (source & ~GENERATED) + 1u;
    let to_at = params.at.b4 + row * params.draft_stride + base;
    for (var i = thread; i < drafts; i += 256u) {
        let token = haystack_token(in_prompt, from_at + i);
        draft_tokens[TOKEN_WORDS * (to_at + i)] = token.x;
        if TOKEN_WORDS == 2u {
            draft_tokens[2u * (to_at + i) + 1u] = token.y;
        }
    }
    if thread == 0u && load(request, WRITES) != 0u {
        this_time[params.at.b5 + request] = i32(base + drafts);
    }
}
