// The passes of rejection_sample that read whole rows: `scan`, `finish`, `resolve`
// and `locate`. Part of that shader, whose declarations they use.

var<workgroup> shared_partials: array<vec4<u32>, 256>;
var<workgroup> shared_sums: array<vec2<u32>, 256>;

// ---- scan ------------------------------------------------------------------

// Larger key, then lower index.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

fn combine(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    let second = better(a.zw, b.zw);
    if MODE == SAMPLE {
        return vec4(u64_add(a.xy, b.xy), second);
    }
    return vec4(better(a.xy, b.xy), second);
}

fn partial_at(job: u32, chunk: u32) -> u32 {
    return params.partials + (job * params.chunks + chunk) * PARTIAL;
}

// What combines with anything to that.
fn nothing() -> vec4<u32> {
    return vec4(0u, select(NONE, 0u, MODE == SAMPLE), 0u, NONE);
}

// Reduces over the workgroup; the result is in `shared_partials[0]`.
fn reduce(mine: vec4<u32>, thread: u32) {
    shared_partials[thread] = mine;
    workgroupBarrier();
    for (var half = 128u; half > 0u; half >>= 1u) {
        if thread < half {
            shared_partials[thread] =
                combine(shared_partials[thread], shared_partials[thread + half]);
        }
        workgroupBarrier();
    }
}

// The bits of the residual at column `i`, not finite where an operand is.
fn residual(t: u32, draft_at: u32, i: u32, rejected: u32) -> u32 {
    if HAS_DRAFT != 0u {
        return residual_bits(t, draft_bits(draft_at));
    }
    if !is_finite(t) {
        return INFINITY_BITS;
    }
    return select(t, 0u, i == rejected || (t >> 31u) == 1u);
}

// What a thread has seen of a chunk.
struct Seen {
    // Largest residual and its column, or the sum of the fixed-point ones.
    first: vec2<u32>,
    // Largest target that is a number from 0 up, as a signed integer (-1: none),
    // and its column.
    top: i32,
    top_at: u32,
    noted: u32,
}

// Columns must ascend: strict comparisons keep the lowest among equals.
fn see(seen: ptr<function, Seen>, t: u32, r: u32, i: u32) {
    // -0 is 0. From 0 up floats order as integers; infinity and NaN are above.
    let key = bitcast<i32>(select(t, 0u, t == 0x80000000u));
    if key > (*seen).top {
        if is_finite(t) {
            (*seen).top = key;
            (*seen).top_at = i;
        }
    }
    if MODE == GREEDY {
        if !is_finite(t) {
            (*seen).noted = NON_FINITE;
        }
    } else if MODE == SAMPLE {
        if is_finite(r) {
            (*seen).first = u64_add((*seen).first, fixed_probability(r));
        } else {
            (*seen).noted = NON_FINITE;
        }
    } else if r > (*seen).first.x {
        if is_finite(r) {
            (*seen).first = vec2(r, i);
        } else {
            (*seen).noted = NON_FINITE;
        }
    }
}

// Columns begin + thread, begin + thread + 256 and so on.
fn see_chunk(row: u32, begin: u32, end: u32, thread: u32, rejected: u32) -> Seen {
    var seen = Seen(nothing().xy, -1, NONE, 0u);
    let at = target_at(row, 0u);
    let other = draft_at(row, 0u);
    var i = begin + thread;
    // Four loads on their way at a time.
    for (; i + 768u < end; i += 1024u) {
        let t = vec4(
            target_bits(at + i),
            target_bits(at + i + 256u),
            target_bits(at + i + 512u),
            target_bits(at + i + 768u),
        );
        var r = vec4(0u);
        if MODE != GREEDY {
            r = vec4(
                residual(t.x, other + i, i, rejected),
                residual(t.y, other + i + 256u, i + 256u, rejected),
                residual(t.z, other + i + 512u, i + 512u, rejected),
                residual(t.w, other + i + 768u, i + 768u, rejected),
            );
        }
        see(&seen, t.x, r.x, i);
        see(&seen, t.y, r.y, i + 256u);
        see(&seen, t.z, r.z, i + 512u);
        see(&seen, t.w, r.w, i + 768u);
    }
    for (; i < end; i += 256u) {
        let t = target_bits(at + i);
        var r = 0u;
        if MODE != GREEDY {
            r = residual(t, other + i, i, rejected);
        }
        see(&seen, t, r, i);
    }
    return seen;
}

// The largest finite target of any sign: for chunks without one from 0 up.
fn top_of_any_sign(row: u32, begin: u32, end: u32, thread: u32) -> vec2<u32> {
    var top = vec2(0u, NONE);
    for (var i = begin + thread; i < end; i += 256u) {
        let t = target_bits(target_at(row, i));
        if is_finite(t) {
            top = better(top, vec2(sort_key(t), i));
        }
    }
    return top;
}

@compute @workgroup_size(256)
fn scan(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let at = group_index(group, groups);
    if at >= params.at.groups {
        return;
    }
    let job = at % params.jobs;
    let chunk = params.chunk0 + at / params.jobs;
    if thread == 0u {
        shared_word = job;
        if MODE != GREEDY {
            shared_word = load(state_of(job));
            if chunk == 0u && WHOLE != 0u {
                write_counts(job);
            }
            if chunk == 0u && MODE == SAMPLE {
                store_random(job);
            }
        } else if MIXED != 0u {
            shared_word = NONE;
        }
        atomicStore(&shared_flags, 0u);
    }
    if MODE == GREEDY && MIXED != 0u {
        workgroupBarrier();
        if is_followed(job, thread) {
            shared_word = job;
        }
    }
    let row = workgroupUniformLoad(&shared_word);
    if row < params.row0 || row >= params.row1 {
        return;
    }
    var rejected = NONE;
    if MODE != GREEDY {
        rejected = load(state_of(job) + 3u);
    }
    let begin = chunk * params.chunk;
    let end = min(begin + params.chunk, params.vocab);
    let seen = see_chunk(row, begin, end, thread, rejected);
    if seen.noted != 0u {
        atomicOr(&shared_flags, seen.noted);
    }
    let top = select(0u, u32(seen.top) | 0x80000000u, seen.top >= 0);
    reduce(vec4(seen.first, top, seen.top_at), thread);
    if thread == 0u {
        shared_word = shared_partials[0].z;
    }
    var result = shared_partials[0];
    if workgroupUniformLoad(&shared_word) == 0u {
        reduce(vec4(nothing().xy, top_of_any_sign(row, begin, end, thread)), thread);
        result = vec4(result.xy, shared_partials[0].zw);
    }
    if thread == 0u {
        let partial = partial_at(job, chunk);
        store(partial, result.x);
        store(partial + 1u, result.y);
        store(partial + 2u, result.z);
        store(partial + 3u, result.w);
        store(partial + 4u, atomicLoad(&shared_flags));
    }
}

// The random number of a request's recovery, for `resolve` and `finish`.
fn store_random(request: u32) {
    let at = (params.at.b6 + request) * 2u;
    let state = state_of(request);
    let position = vec2(load(state + 11u), load(state + 12u));
    let random = draw(vec2(seeds[at], seeds[at + 1u]), position, RECOVER);
    store(state + 5u, random.x);
    store(state + 6u, random.y);
}

// Whether a greedy request among those that this thread looks at has the token.
fn is_followed(token: u32, thread: u32) -> bool {
    var followed = false;
    for (var request = thread; request < params.requests; request += 256u) {
        let state = state_of(request);
        let inside = token - load(state + 2u) < load(state + 13u);
        followed = followed || (inside && load(state + 14u) != 0u);
    }
    return followed;
}

// ---- resolve ---------------------------------------------------------------

// What the functions below find, for the whole workgroup: a token, and for
// recovery by sampling the chunk that holds a better one (or NONE) and what is
// left of the threshold there.
var<workgroup> shared_token: u32;
var<workgroup> shared_chunk: u32;
var<workgroup> shared_left: vec2<u32>;

fn partial_of(job: u32, chunk: u32) -> vec4<u32> {
    let at = partial_at(job, chunk);
    return vec4(load(at), load(at + 1u), load(at + 2u), load(at + 3u));
}

// Running sums over the threads of the workgroup, inclusive, in `shared_sums`.
fn scan_sums(mine: vec2<u32>, thread: u32) {
    shared_sums[thread] = mine;
    workgroupBarrier();
    for (var step = 1u; step < 256u; step <<= 1u) {
        var sum = shared_sums[thread];
        if thread >= step {
            sum = u64_add(sum, shared_sums[thread - step]);
        }
        workgroupBarrier();
        shared_sums[thread] = sum;
        workgroupBarrier();
    }
}

// Whether the running sum passes the threshold at this thread, and the sum
// before it.
fn passes(threshold: vec2<u32>, thread: u32) -> bool {
    return !u64_less(threshold, sum_before(thread)) && u64_less(threshold, shared_sums[thread]);
}

fn sum_before(thread: u32) -> vec2<u32> {
    if thread == 0u {
        return vec2(0u, 0u);
    }
    return shared_sums[thread - 1u];
}

// Reduces a job's partial results, by all threads of the workgroup.
fn resolve_job(job: u32, thread: u32) {
    if thread == 0u {
        atomicStore(&shared_flags, 0u);
        shared_chunk = NONE;
    }
    workgroupBarrier();
    var mine = nothing();
    var noted = 0u;
    for (var chunk = thread; chunk < params.chunks; chunk += 256u) {
        mine = combine(mine, partial_of(job, chunk));
        noted |= load(partial_at(job, chunk) + 4u);
    }
    if noted != 0u {
        atomicOr(&shared_flags, noted);
    }
    reduce(mine, thread);
    if thread == 0u {
        let best = shared_partials[0];
        // No positive residual: the largest finite target. None: token 0.
        let fallback = select(best.w, 0u, best.z == 0u);
        shared_token = select(best.y, fallback, MODE != ARGMAX || best.x == 0u);
    }
    if MODE == SAMPLE {
        draw_chunk(job, thread);
    }
    workgroupBarrier();
}

// The chunk whose running sum is the first to exceed the threshold.
fn draw_chunk(job: u32, thread: u32) {
    let each = (params.chunks + 255u) / 256u;
    let begin = min(thread * each, params.chunks);
    let end = min(begin + each, params.chunks);
    var mine = vec2(0u, 0u);
    for (var chunk = begin; chunk < end; chunk++) {
        mine = u64_add(mine, partial_of(job, chunk).xy);
    }
    scan_sums(mine, thread);
    let random = vec2(load(state_of(job) + 5u), load(state_of(job) + 6u));
    let threshold = u64_mul_high(random, shared_sums[255]);
    if !passes(threshold, thread) {
        return;
    }
    var before = sum_before(thread);
    for (var chunk = begin; chunk < end; chunk++) {
        let after = u64_add(before, partial_of(job, chunk).xy);
        if u64_less(threshold, after) {
            shared_chunk = chunk;
            shared_left = u64_sub(threshold, before);
            return;
        }
        before = after;
    }
}

fn raise_flags() {
    let found = atomicLoad(&shared_flags);
    if found != 0u {
        atomicOr(&flags[params.at.b5], found);
    }
}

@compute @workgroup_size(256)
fn resolve(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.jobs {
        return;
    }
    if thread == 0u {
        shared_word = job;
        if MODE != GREEDY {
            shared_word = load(state_of(job));
        }
    }
    if workgroupUniformLoad(&shared_word) == NONE {
        return;
    }
    resolve_job(job, thread);
    if thread != 0u {
        return;
    }
    if MODE == GREEDY {
        store(params.tops + 2u * job, shared_token);
        store(params.tops + 2u * job + 1u, atomicLoad(&shared_flags));
        return;
    }
    let state = state_of(job);
    store(state + 4u, shared_token);
    store(state + 7u, shared_chunk);
    store(state + 8u, shared_left.x);
    store(state + 9u, shared_left.y);
    raise_flags();
}

// ---- locate ----------------------------------------------------------------

fn fixed_residual(row: u32, i: u32, rejected: u32) -> vec2<u32> {
    let r = residual(target_bits(target_at(row, i)), draft_at(row, i), i, rejected);
    if is_finite(r) {
        return fixed_probability(r);
    }
    return vec2(0u, 0u);
}

// Finds the drawn token in its chunk, by all threads of the workgroup.
fn locate_token(row: u32, rejected: u32, chunk: u32, threshold: vec2<u32>, thread: u32) {
    let end = min((chunk + 1u) * params.chunk, params.vocab);
    // Consecutive columns a thread, so that running sums follow the columns.
    let each = params.chunk / 256u;
    let begin = chunk * params.chunk + thread * each;
    let stop = min(begin + each, end);
    var mine = vec2(0u, 0u);
    for (var i = begin; i < stop; i++) {
        mine = u64_add(mine, fixed_residual(row, i, rejected));
    }
    scan_sums(mine, thread);
    if passes(threshold, thread) {
        var before = sum_before(thread);
        for (var i = begin; i < stop; i++) {
            before = u64_add(before, fixed_residual(row, i, rejected));
            if u64_less(threshold, before) {
                shared_token = i;
                break;
            }
        }
    }
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn locate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.jobs {
        return;
    }
    let state = state_of(job);
    let row = load(state);
    if thread == 0u {
        let chunk = load(state + 7u);
        let here = row >= params.row0 && row < params.row1
            && chunk >= params.chunk0 && chunk < params.chunk1;
        shared_chunk = select(NONE, chunk, here);
    }
    let chunk = workgroupUniformLoad(&shared_chunk);
    if chunk == NONE {
        return;
    }
    let left = vec2(load(state + 8u), load(state + 9u));
    locate_token(row, load(state + 3u), chunk, left, thread);
    if thread == 0u {
        store(state + 4u, shared_token);
    }
}

// ---- finish ----------------------------------------------------------------

@compute @workgroup_size(256)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let request = group_index(group, groups);
    if request >= params.requests {
        return;
    }
    let state = state_of(request);
    if thread == 0u {
        shared_word = load(state);
        if shared_word == NONE {
            let bonus = bonus_of(request);
            shared_token = bonus.x;
            if bonus.y != 0u {
                atomicOr(&flags[params.at.b5], bonus.y);
            }
        }
    }
    let row = workgroupUniformLoad(&shared_word);
    if row != NONE {
        resolve_job(request, thread);
        let chunk = workgroupUniformLoad(&shared_chunk);
        if MODE == SAMPLE && chunk != NONE {
            locate_token(row, load(state + 3u), chunk, shared_left, thread);
        }
        if thread == 0u {
            raise_flags();
        }
    }
    let last = shared_token;
    let first = params.at.b2 + request * params.output_stride;
    for (var slot = thread; slot <= params.max_spec_len; slot += 256u) {
        let token = row_token(state, slot, last);
        let at = (first + slot) * params.output_words;
        output_token_ids[at] = token;
        if params.output_words == 2u {
            output_token_ids[at + 1u] = sign_of(token);
        }
    }
}
