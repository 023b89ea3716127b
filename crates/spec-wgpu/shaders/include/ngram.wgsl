//!include ngram_search
// What ngram_match and hybrid_mtp_ngram share: the search for an earlier occurrence of the last
// tokens, and the token budget of all requests.
//
// Each pass is its own dispatches, so that no workgroup waits for another:
//
// 1. `prepare` a thread per request (in the operator's own file): cuts lengths to their rows and
//              says how the request enters the budget.
// 2. `search`  a workgroup per (request, block of a haystack), a thread per token: compares with
//              the pattern's last token, extends the match backwards where both are equal, and
//              keeps the block's longest match, the leftmost among equally long ones. Blocks behind
//              a match of full length are skipped.
// 3. `choose`  a workgroup per request: finds the best block, and from it the number of tokens that
//              the request would draft.
// 4. `divide`   one workgroup, for large batches: prefix sums over the requests, in order.
// 5. `copy`    a workgroup per request: computes the request's prefix sum if there was no `divide`,
//              then writes the drafts that the budget grants.
//
// Bytes moved: the haystacks once, up to the first match of full length; the floor is this number
// of bytes over the memory's bandwidth.

// More words of a request's state:
// the largest number of drafts;
const LIMIT = 4u;
// whether seq_lens_this_time is written, its value without drafts, and the used tokens that this
// value adds, minus the requests done;
const WRITES = 5u;
const BASE = 6u;
const WEIGHT = 7u;
// whether the request counts in `left`; flags;
const ACTIVE = 8u;
const FLAGS = 9u;
// drafts wanted, the position of the token before the drafts, and the part of the budget that is
// taken before this request's drafts.
const WANTED = 11u;
const SOURCE = 12u;
const TAKEN = 13u;

// choose, copy
@group(0) @binding(5) var<storage, read_write> this_time: array<i32>;

var<workgroup> shared_sums: array<u32, 256>;

// ---- prepare ---------------------------------------------------------------

// Cuts a request's lengths to its rows; returns flags if a length was cut.
fn store_lengths(request: u32, prompt: vec2<u32>, start: vec2<u32>, step: vec2<u32>) -> u32 {
    let prompt_cut = cut_length(prompt, params.input_cols);
    let start_cut = cut_length(start, params.generated_cols);
    // The pattern ends with generated[step], which must lie in the row.
    let after = params.generated_cols - start_cut;
    let step_cut = cut_length(step, max(after, 1u) - 1u);
    store(request, PROMPT, prompt_cut);
    store(request, START, start_cut);
    store(request, STEP, step_cut);
    let any_cut = is_cut(prompt, prompt_cut) || is_cut(start, start_cut) || is_cut(step, step_cut);
    return select(0u, BAD_LENGTHS, any_cut);
}

// min(own, max_dec_len - step - 1), or 0 where this is negative.
fn draft_limit(own: i32, max_dec_len: vec2<u32>, step: u32) -> u32 {
    let decode = cut_length(max_dec_len, MAX_I32);
    if own <= 0 || decode <= step {
        return 0u;
    }
    return min(u32(own), decode - step - 1u);
}

// What `prepare` knows of a request in addition to its lengths.
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
    let best = best_block(request, thread);
    if thread != 0u {
        return;
    }
    var noted = load(request, FLAGS);
    let now = this_time[params.at.b5 + request];
    noted |= select(0u, BAD_LENGTHS, now < 0);
    if load(request, WRITES) == 0u {
        // The request keeps its seq_lens_this_time, which counts as used tokens.
        store(request, WEIGHT, u32(max(now, 0)));
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

// The part of the budget that is taken before a request's drafts is the sum of: drafts wanted by
// earlier requests, tokens used up to this request without drafts, and requests still to come. A
// request that is done adds its used tokens and is no longer to come; its weight is the sum of both
// changes. At the start, all active requests are to come.

// A sum that stops at MOST, which reaches every threshold.
fn add_capped(a: u32, b: u32) -> u32 {
    return min(a + b, MAX_I32);
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
fn divide(@builtin(local_invocation_index) thread: u32) {
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

// The result of `divide` for one request, computed by all threads of the workgroup.
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
    if params.shared_budget != 0u {
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
        copy_token(in_prompt, from_at + i, to_at + i);
    }
    if thread == 0u && load(request, WRITES) != 0u {
        this_time[params.at.b5 + request] = i32(base + drafts);
    }
}
