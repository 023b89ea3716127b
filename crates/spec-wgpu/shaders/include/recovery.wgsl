// The passes of rejection_sample that read whole rows: `scan`, `resolve` and
// `locate`. Part of that shader, whose declarations they use.

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
        }
        atomicStore(&shared_flags, 0u);
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
    let skipped = params.chunk0 * params.chunk;
    let target_at = params.at.b2 + (row - params.row0) * params.target_stride - skipped;
    let draft_at = params.at.b3 + (row - params.row0) * params.draft_stride - skipped;
    var mine = nothing();
    var noted = 0u;
    for (var i = begin + thread; i < end; i += 256u) {
        let t = target_bits(target_at + i);
        if is_finite(t) {
            // Columns ascend, so a strict comparison keeps the lowest.
            let key = sort_key(t);
            if key > mine.z {
                mine.z = key;
                mine.w = i;
            }
        } else {
            noted = NON_FINITE;
        }
        if MODE != GREEDY {
            let r = residual(t, draft_at + i, i, rejected);
            if !is_finite(r) {
                noted = NON_FINITE;
            } else if MODE == SAMPLE {
                let sum = u64_add(mine.xy, fixed_probability(r));
                mine.x = sum.x;
                mine.y = sum.y;
            } else if r > mine.x {
                mine.x = r;
                mine.y = i;
            }
        }
    }
    if noted != 0u {
        atomicOr(&shared_flags, noted);
    }
    reduce(mine, thread);
    if thread == 0u {
        let result = shared_partials[0];
        let partial = partial_at(job, chunk);
        store(partial, result.x);
        store(partial + 1u, result.y);
        store(partial + 2u, result.z);
        store(partial + 3u, result.w);
        store(partial + 4u, atomicLoad(&shared_flags));
    }
}

// ---- resolve ---------------------------------------------------------------

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

fn sum_before(thread: u32) -> vec2<u32> {
    if thread == 0u {
        return vec2(0u, 0u);
    }
    return shared_sums[thread - 1u];
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
    let total = shared_sums[255];
    let threshold = u64_mul_high(draw(job, RECOVERY_POSITION).xy, total);
    var before = sum_before(thread);
    if u64_less(threshold, before) || !u64_less(threshold, shared_sums[thread]) {
        return;
    }
    for (var chunk = begin; chunk < end; chunk++) {
        let after = u64_add(before, partial_of(job, chunk).xy);
        if u64_less(threshold, after) {
            let left = u64_sub(threshold, before);
            let state = state_of(job);
            store(state + 5u, chunk);
            store(state + 6u, left.x);
            store(state + 7u, left.y);
            return;
        }
        before = after;
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
        atomicStore(&shared_flags, 0u);
    }
    if workgroupUniformLoad(&shared_word) == NONE {
        return;
    }
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
        let found = atomicLoad(&shared_flags);
        // No finite target at all: token 0.
        let fallback = select(best.w, 0u, best.z == 0u);
        if MODE == GREEDY {
            store(params.tops + 2u * job, fallback);
            store(params.tops + 2u * job + 1u, found);
        } else {
            let token = select(best.y, fallback, MODE == SAMPLE || best.x == 0u);
            store(state_of(job) + 4u, token);
            if found != 0u {
                atomicOr(&flags[params.at.b7], found);
            }
        }
    }
    if MODE == SAMPLE {
        draw_chunk(job, thread);
    }
}

// ---- locate ----------------------------------------------------------------

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
    if thread == 0u {
        let row = load(state);
        let chunk = load(state + 5u);
        // A row of NONE has no chunk.
        let here = row >= params.row0 && row < params.row1 && chunk >= params.chunk0 && chunk < params.chunk1;
        shared_word = select(NONE, chunk, here);
    }
    let chunk = workgroupUniformLoad(&shared_word);
    if chunk == NONE {
        return;
    }
    let row = load(state);
    let rejected = load(state + 3u);
    let threshold = vec2(load(state + 6u), load(state + 7u));
    let end = min((chunk + 1u) * params.chunk, params.vocab);
    let skipped = params.chunk0 * params.chunk;
    let target_at = params.at.b2 + (row - params.row0) * params.target_stride - skipped;
    let draft_at = params.at.b3 + (row - params.row0) * params.draft_stride - skipped;
    // Consecutive columns a thread, so that running sums follow the columns.
    let each = params.chunk / 256u;
    let begin = chunk * params.chunk + thread * each;
    let stop = min(begin + each, end);
    var mine = vec2(0u, 0u);
    for (var i = begin; i < stop; i++) {
        mine = u64_add(mine, fixed_residual(target_at + i, draft_at + i, i, rejected));
    }
    scan_sums(mine, thread);
    var before = sum_before(thread);
    if u64_less(threshold, before) || !u64_less(threshold, shared_sums[thread]) {
        return;
    }
    for (var i = begin; i < stop; i++) {
        before = u64_add(before, fixed_residual(target_at + i, draft_at + i, i, rejected));
        if u64_less(threshold, before) {
            store(state + 4u, i);
            return;
        }
    }
}

fn fixed_residual(target_at: u32, draft_at: u32, i: u32, rejected: u32) -> vec2<u32> {
    let r = residual(target_bits(target_at), draft_at, i, rejected);
    if is_finite(r) {
        return fixed_probability(r);
    }
    return vec2(0u, 0u);
}

