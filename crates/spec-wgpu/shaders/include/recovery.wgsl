//!include race_first
//!include groups
// The passes of rejection_sample that read whole rows: `scan`, `finish`, `resolve` and `locate`.
// This file is a part of that shader and uses its declarations.

var<workgroup> shared_partials: array<vec4<u32>, 256>;

// ---- scan ------------------------------------------------------------------

// The pair with the larger key; of equal keys, the one with the lower index.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

fn combine(a: vec4<u32>, b: vec4<u32>) -> vec4<u32> {
    return vec4(better(a.xy, b.xy), better(a.zw, b.zw));
}

// The neutral element of `combine`.
const NOTHING = vec4(0u, NONE, 0u, NONE);

fn partial_at(job: u32, chunk: u32) -> u32 {
    return params.partials + (job * params.chunks + chunk) * PARTIAL;
}

// The largest residual of a group of 64 columns of a job's row.
fn maximum_at(job: u32, group: u32) -> u32 {
    return params.maxima + job * params.groups + group;
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

// The bits of the residual at column `i`; not finite where an operand is not finite.
fn residual(t: u32, d: u32, i: u32, rejected: u32) -> u32 {
    if HAS_DRAFT != 0u {
        return residual_bits(t, d);
    }
    if !is_finite(t) {
        return INFINITY_BITS;
    }
    return select(t, 0u, i == rejected || (t >> 31u) == 1u);
}

// What a thread has seen of a chunk.
struct Seen {
    // The largest residual and its column, if no residual is drawn.
    first: vec2<u32>,
    // The largest target that is a number from 0 up, as a signed integer (-1: none), and its
    // column.
    top: i32,
    top_at: u32,
    noted: u32,
}

// Columns must ascend: strict comparisons keep the lowest column among equals. Returns the
// residual, 0 where there is none.
fn see(seen: ptr<function, Seen>, t: u32, d: u32, i: u32, rejected: u32) -> u32 {
    // -0 counts as 0. From 0 up, floats order as integers; infinity and NaN are above all numbers.
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
        return 0u;
    }
    let r = residual(t, d, i, rejected);
    if !is_finite(r) {
        (*seen).noted = NON_FINITE;
        return 0u;
    }
    if MODE == ARGMAX && r > (*seen).first.x {
        (*seen).first = vec2(r, i);
    }
    return r;
}

// Looks at a lane's two columns of a group. Columns may lie beyond the row.
fn see_pair(
    seen: ptr<function, Seen>,
    tile_group: u32,
    lane: u32,
    t: vec2<u32>,
    d: vec2<u32>,
    i: vec2<u32>,
    rejected: u32,
    end: u32,
) {
    var r = vec2(0u);
    if i.x < end {
        r.x = see(seen, t.x, d.x, i.x, rejected);
    }
    if i.y < end {
        r.y = see(seen, t.y, d.y, i.y, rejected);
    }
    if MODE == SAMPLE {
        note_pair(tile_group, lane, max(r.x, r.y));
    }
}

fn targets_of(row: u32, i: vec2<u32>) -> vec2<u32> {
    let at = target_at(row, i.x);
    let word = target_probs[float_word(at, DTYPE)];
    let first = float_bits(word, at, DTYPE);
    if DTYPE != F32 && at % 2u == 0u {
        return vec2(first, float_bits(word, 1u, DTYPE));
    }
    return vec2(first, target_bits(target_at(row, i.y)));
}

fn drafts_of(row: u32, i: vec2<u32>) -> vec2<u32> {
    if HAS_DRAFT == 0u || MODE == GREEDY {
        return vec2(0u);
    }
    let at = draft_at(row, i.x);
    let word = draft_probs[float_word(at, DTYPE)];
    let first = float_bits(word, at, DTYPE);
    if DTYPE != F32 && at % 2u == 0u {
        return vec2(first, float_bits(word, 1u, DTYPE));
    }
    return vec2(first, draft_bits(draft_at(row, i.y)));
}

// Looks at the thread's columns of a chunk. For a job that is drawn from, stores the largest
// residual of each group.
fn see_chunk(job: u32, row: u32, chunk: u32, thread: u32, rejected: u32) -> Seen {
    var seen = Seen(NOTHING.xy, -1, NONE, 0u);
    let team = thread / GROUP_LANES;
    let lane = thread % GROUP_LANES;
    let teams = 256u / GROUP_LANES;
    let end = min((chunk + 1u) * params.chunk, params.vocab);
    let last = (chunk + 1u) * (params.chunk / RACE_GROUP);
    for (var tile = chunk * (params.chunk / RACE_GROUP); tile < last; tile += TILE_GROUPS) {
        let in_tile = min(last - tile, TILE_GROUPS);
        // Two groups at a time, so that their loads are in flight together.
        for (var g = team; g < in_tile; g += 2u * teams) {
            let i = pair_at(tile + g, lane);
            let j = pair_at(tile + g + teams, lane);
            // Columns beyond the row read the last column, and the value is ignored.
            let last_token = vec2(params.vocab - 1u);
            let t = targets_of(row, min(i, last_token));
            let other_t = targets_of(row, min(j, last_token));
            let d = drafts_of(row, min(i, last_token));
            let other_d = drafts_of(row, min(j, last_token));
            see_pair(&seen, g, lane, t, d, i, rejected, end);
            if g + teams < in_tile {
                see_pair(&seen, g + teams, lane, other_t, other_d, j, rejected, end);
            }
        }
        if MODE == SAMPLE {
            let largest = largest_of_tile(thread);
            if thread < in_tile {
                store(maximum_at(job, tile + thread), largest);
            }
        }
    }
    return seen;
}

// The probability of a draft token; 0 without draft probabilities that count.
fn draft_of(at: u32) -> u32 {
    if HAS_DRAFT != 0u && MODE != GREEDY {
        return draft_bits(at);
    }
    return 0u;
}

// The largest finite target of any sign, for chunks that have no target from 0 up.
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

@compute @workgroup_size(SCAN_THREADS)
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
                store_seed(job);
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
    let seen = see_chunk(job, row, chunk, thread, rejected);
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
        reduce(vec4(NOTHING.xy, top_of_any_sign(row, begin, end, thread)), thread);
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

// Stores the seed of a request, for the race in `finish` or `locate`.
fn store_seed(request: u32) {
    let at = (params.at.b6 + request) * 2u;
    let state = state_of(request);
    store(state + 5u, seeds[at]);
    store(state + 6u, seeds[at + 1u]);
}

// Whether a greedy request among those that this thread looks at contains the token.
fn is_followed(token: u32, thread: u32) -> bool {
    var followed = false;
    for (var request = thread; request < params.requests; request += 256u) {
        let state = state_of(request);
        let inside = token - load(state + 2u) < load(state + 11u);
        followed = followed || (inside && load(state + 12u) != 0u);
    }
    return followed;
}

// ---- resolve ---------------------------------------------------------------

// The token that a workgroup finds.
var<workgroup> shared_token: u32;

fn partial_of(job: u32, chunk: u32) -> vec4<u32> {
    let at = partial_at(job, chunk);
    return vec4(load(at), load(at + 1u), load(at + 2u), load(at + 3u));
}

// Reduces a job's partial results, by all threads of the workgroup, to the largest entry, or to the
// fallback for a token that cannot be drawn.
fn resolve_job(job: u32, thread: u32) {
    if thread == 0u {
        atomicStore(&shared_flags, 0u);
    }
    workgroupBarrier();
    var mine = NOTHING;
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
        // Without a positive residual, the largest finite target; without a finite target, token 0.
        let fallback = select(best.w, 0u, best.z == 0u);
        shared_token = select(best.y, fallback, best.x == 0u);
    }
    workgroupBarrier();
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
    store(state + 7u, NO_TIME);
    raise_flags();
}

// ---- locate ----------------------------------------------------------------

// The job that the race belongs to, its row and its rejected token.
var<private> racing: vec3<u32>;

fn race_group_bound(group: u32) -> f32 {
    return slowness_bound(load(maximum_at(racing.x, group)));
}

// A lower bound of the inverse of a residual; below 0 for a residual that cannot be drawn.
fn slowness_bound(r: u32) -> f32 {
    if r < MIN_RESIDUAL || !is_finite(r) {
        return -1.0f;
    }
    // The upper limit is that of exact_inverse.
    return RACE_SLACK / bitcast<f32>(min(r, 227u << 23u));
}

// The probabilities of a token.
fn race_entry(token: u32) -> vec2<u32> {
    let column = min(token, params.vocab - 1u);
    return vec2(target_bits(target_at(racing.y, column)), draft_of(draft_at(racing.y, column)));
}

// The residual of a token.
fn residual_of_entry(token: u32, entry: vec2<u32>) -> u32 {
    return select(0u, residual(entry.x, entry.y, token, racing.z), token < params.vocab);
}

fn race_token_bound(token: u32, entry: vec2<u32>) -> f32 {
    return slowness_bound(residual_of_entry(token, entry));
}

fn race_slowness(token: u32, entry: vec2<u32>) -> f32 {
    let r = residual_of_entry(token, entry);
    if r < MIN_RESIDUAL || !is_finite(r) {
        return -1.0f;
    }
    return exact_inverse(r);
}

// The winner of a row's race, among the tokens of the window and the winner known before, and its
// time. Every thread must call this function.
fn race_in_window(job: u32, row: u32, known: vec2<u32>, thread: u32) -> vec2<u32> {
    let state = state_of(job);
    racing = vec3(job, row, load(state + 3u));
    let seed = vec2(load(state + 5u), load(state + 6u));
    let draw = Draw(seed, vec2(load(state + 9u), load(state + 10u)), PURPOSE_RECOVER);
    let blocks = params.chunk / (4u * RACE_GROUP);
    let bounds = params.at.b1 + params.bounds + job * params.groups;
    let course = Course(draw, bounds, params.chunk0 * blocks, params.chunk1 * blocks);
    return race_first(course, known, thread);
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
    if thread == 0u {
        shared_word = load(state);
    }
    let row = workgroupUniformLoad(&shared_word);
    if row < params.row0 || row >= params.row1 {
        return;
    }
    let found = race_in_window(job, row, vec2(load(state + 7u), load(state + 4u)), thread);
    if thread == 0u && found.x != NO_TIME {
        store(state + 4u, found.y);
        store(state + 7u, found.x);
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
        if MODE == SAMPLE {
            let found = race_in_window(request, row, vec2(NO_TIME, NONE), thread);
            if thread == 0u && found.x != NO_TIME {
                shared_token = found.y;
            }
        }
        if thread == 0u {
            raise_flags();
        }
        workgroupBarrier();
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
