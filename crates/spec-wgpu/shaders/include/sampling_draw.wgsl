//!include race_many
//!include likeliest
// The passes of sample_logits that choose tokens, and the passes that compute the probabilities
// from which tokens were chosen. This file is a part of that shader and uses its declarations.

override RACE_LIST = 256u;
override RACE_TOKENS = 768u;
const LIKELIEST = MAX_DRAWS;

// ---- the race ---------------------------------------------------------------

// The row that the functions of the race and of the selection are about.
var<private> racing: u32;
var<private> filters: Filters;
// The least weight that a group's largest entry needs, as an approximate exponential finds it.
var<private> least_weight: f32;

fn race_group_bound(group: u32) -> f32 {
    let key = work[maxima_at(racing) + group];
    let below = exponent(filters.scale, key);
    if is_cut_off(filters, key, group * RACE_GROUP) || below <= NO_UNIT || exp(below) < least_weight {
        return -1.0f;
    }
    return exp(-below) * RACE_SLACK;
}

// A logit, and the word of the mask with the token's bit.
fn race_entry(token: u32) -> vec2<u32> {
    let column = min(token, params.vocab - 1u);
    var allowed = NONE;
    if has(HAS_MASK) {
        allowed = allowed_word(racing, column / 32u);
    }
    return vec2(logit(racing, column), allowed);
}

// The key of an entry; 0 for a token that is not allowed or does not exist.
fn key_of_entry(token: u32, entry: vec2<u32>) -> u32 {
    let allowed = token < params.vocab && ((entry.y >> (token % 32u)) & 1u) != 0u;
    return select(0u, sort_key(entry.x), allowed);
}

fn race_token_bound(token: u32, entry: vec2<u32>) -> f32 {
    let key = key_of_entry(token, entry);
    let below = exponent(filters.scale, key);
    if is_cut_off(filters, key, token) || below <= NO_UNIT {
        return -1.0f;
    }
    return exp(-below) * RACE_SLACK;
}

fn race_slowness(token: u32, entry: vec2<u32>) -> f32 {
    let key = key_of_entry(token, entry);
    if all(fixed_weight(kept_weight(filters, key, token)) == vec2(0u, 0u)) {
        return -1.0f;
    }
    // The result is 1 for the exponent 0.
    return exact_exp(-exponent(filters.scale, key));
}

fn course_of(row: u32) -> Course {
    racing = row;
    filters = filters_of(row);
    let floor = f32(filters.floor.y) * 0.00390625f + f32(filters.floor.x) * 9.094947e-13f;
    least_weight = floor * RACE_SLACK - 1e-11f;
    let bounds = params.at.b1 + params.bounds + (row - params.row0) * params.groups;
    let draw = Draw(load_pair(row, SEED), load_pair(row, POSITION), PURPOSE_SAMPLE);
    return Course(draw, bounds, 0u, params.groups / 4u);
}

fn likeliest_maximum(group: u32) -> u32 {
    let key = work[maxima_at(racing) + group];
    return select(key, 0u, key <= LOWEST_KEY);
}

fn likeliest_key(token: u32) -> u32 {
    if token >= params.vocab {
        return 0u;
    }
    let key = key_of(racing, token);
    return select(key, 0u, key <= LOWEST_KEY);
}

// The first token with the row's largest key. Every thread must call this function.
fn first_of_largest(row: u32, thread: u32) -> u32 {
    let largest = load(row, LARGEST);
    if thread == 0u {
        atomicStore(&race_bar, NONE);
        atomicStore(&race_winner, NONE);
    }
    workgroupBarrier();
    for (var group = thread; group < params.groups; group += WIDE) {
        if work[maxima_at(row) + group] == largest {
            atomicMin(&race_bar, group);
        }
    }
    workgroupBarrier();
    let token = atomicLoad(&race_bar) * RACE_GROUP + thread;
    if thread < RACE_GROUP && token < params.vocab && key_of(row, token) == largest {
        atomicMin(&race_winner, token);
    }
    workgroupBarrier();
    return atomicLoad(&race_winner);
}

@compute @workgroup_size(WIDE)
fn race(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    let fate = load_for_all(row, FATE, thread);
    var token = 0u;
    if fate == FATE_DRAWN {
        // `race_columns` draws from a copied row.
        if COLUMNS == 0u {
            token = race_first(course_of(row), vec2(NO_TIME, NONE), thread).y;
        }
    } else if fate == FATE_GREEDY {
        token = first_of_largest(row, thread);
    } else {
        token = load(row, TOKEN);
    }
    if thread == 0u {
        write_token(row, 0u, token);
    }
}

@compute @workgroup_size(WIDE)
fn race_more(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    let fate = load_for_all(row, FATE, thread);
    var token = NONE;
    if fate == FATE_DRAWN {
        if COLUMNS == 0u {
            if thread < race_many(course_of(row), params.draws, thread) {
                token = found_tokens[thread];
            }
        }
    } else if thread == 0u {
        token = load(row, TOKEN);
    }
    if fate != FATE_GREEDY && thread < params.draws {
        write_token(row, thread, token);
    }
}

@compute @workgroup_size(WIDE)
fn take(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    if load_for_all(row, FATE, thread) != FATE_GREEDY {
        return;
    }
    racing = row;
    let there = likeliest(params.draws, thread);
    if thread < params.draws {
        write_token(row, thread, select(NONE, likeliest_tokens[thread], thread < there));
    }
}

// NONE stands for no token, and has the bits of -1.
fn write_token(row: u32, place: u32, token: u32) {
    let at = params.at.b6 + (row - params.row0) * params.tokens_stride + place;
    let to = at * params.token_words;
    tokens[to] = token;
    if params.token_words == 2u {
        tokens[to + 1u] = select(0u, NONE, token == NONE);
    }
    work[drawn_at(row) + place] = token;
    if place == 0u {
        store(row, TOKEN, token);
    }
}

// ---- sums -------------------------------------------------------------------

@compute @workgroup_size(THREADS)
fn sum(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job / params.chunks;
    let chunk = job % params.chunks;
    if load_for_all(row, FATE, thread) != FATE_DRAWN {
        return;
    }
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let kept = filters_of(row);
    let least = max(kept.cut_key, weighing_key(kept.scale));
    var sums = vec2(0u, 0u);
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        if largest_beside(row, column) >= least {
            sums += halves(kept_weight(kept, key_of(row, column), column));
        }
    }
    let through = sum_through(thread, joined(sums));
    if thread == THREADS - 1u {
        let at = partial_at(row, chunk);
        work[at] = through.x;
        work[at + 1u] = through.y;
    }
}

@compute @workgroup_size(THREADS)
fn total(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job;
    var own = vec2(0u, 0u);
    for (var chunk = thread; chunk < params.chunks; chunk += THREADS) {
        let at = partial_at(row, chunk);
        own = u64_add(own, vec2(work[at], work[at + 1u]));
    }
    _ = sum_through(thread, own);
    let total = sum_of_all();
    if thread == 0u {
        store_pair(row, SUM, total);
    }
}

// ---- probabilities ----------------------------------------------------------

@compute @workgroup_size(THREADS)
fn write_probs(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let job = group_index(group, groups);
    if job >= params.at.groups {
        return;
    }
    let row = params.row0 + job / params.chunks;
    let chunk = job % params.chunks;
    let certain = load(row, FATE) != FATE_DRAWN;
    let token = load(row, TOKEN);
    let kept = filters_of(row);
    let least = max(kept.cut_key, weighing_key(kept.scale));
    let factor = softmax_factor_of(load_pair(row, SUM), 40u);
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    let to = params.at.b7 + (row - params.row0) * params.probs_stride;
    for (var column = chunk * params.chunk + thread; column < end; column += THREADS) {
        var value = 0.0f;
        if certain {
            value = select(0.0f, 1.0f, column == token);
        } else if largest_beside(row, column) >= least {
            let w = kept_weight(kept, key_of(row, column), column);
            if any(halves(w) != vec2(0u, 0u)) {
                value = softmax_score(w, factor);
            }
        }
        probs[to + column] = value;
    }
}
