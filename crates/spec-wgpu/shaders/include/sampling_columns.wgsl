// The passes of sample_logits for rows whose columns may stand for other tokens, may be a part of a
// row, may have a forced token, or list the tokens that race. This file is a part of that shader and
// uses its declarations.
//
// `columns` copies such a row to the workspace: its logits as f32, the token of each column, and a
// bit for each column that is allowed. With COLUMNS, all other passes read the copy. The race alone
// differs: its noise is that of the columns' tokens, whose groups of 64 need not be groups of
// columns, so `race_columns` takes the place of the race.

const TOKENS = 0x1000000u;

// columns
@group(0) @binding(2) var<storage, read> token_ids: array<u32>;
@group(0) @binding(7) var<storage, read> maxima: array<u32>;
@group(0) @binding(8) var<storage, read> forced: array<u32>;
// name_columns
@group(0) @binding(2) var<storage, read_write> winners: array<u32>;
@group(0) @binding(5) var<storage, read_write> kept_counts: array<u32>;
@group(0) @binding(7) var<storage, read_write> kept_tokens: array<u32>;
// write_largest
@group(0) @binding(2) var<storage, read_write> largest_logits: array<u32>;

// ---- the copy ---------------------------------------------------------------

// The token of a column, or NONE; and whether its id is neither a token nor -1.
fn read_token(row: u32, column: u32) -> vec2<u32> {
    if !has(HAS_IDS) {
        return vec2(params.first_token + column, 0u);
    }
    let index = params.at.b2 + (row - params.row0) * params.ids_stride + column;
    let at = index * params.ids_words;
    let id = integer(token_ids[at], token_ids[at + params.ids_words - 1u], params.ids_words);
    if id.y == 0u && id.x < TOKENS {
        return vec2(id.x, 0u);
    }
    return vec2(NONE, select(1u, 0u, id.x == NONE && id.y == NONE));
}

fn token_is_allowed(row: u32, token: u32) -> bool {
    if !has(HAS_TOKEN_MASK) {
        return true;
    }
    let word = token / 32u;
    if word >= params.mask_words {
        return false;
    }
    let bits = mask[params.at.b4 + (row - params.row0) * params.mask_stride + word];
    return ((bits >> (token % 32u)) & 1u) != 0u;
}

@compute @workgroup_size(THREADS)
fn columns(
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
    if has(HAS_REQUESTS) && load(row, FATE) == FATE_PADDING {
        return;
    }
    if chunk == 0u && thread == 0u {
        if has(HAS_MAXIMA) {
            store(row, GIVEN, maxima[params.at.b7 + row]);
        }
        var token = NONE;
        if has(HAS_FORCED) {
            token = forced[params.at.b8 + row];
        }
        store(row, FORCED, token);
    }
    var found = 0u;
    let end = min(params.vocab, (chunk + 1u) * params.chunk);
    // A thread has the columns of a word of the mask.
    for (var first = chunk * params.chunk + thread * 32u; first < end; first += THREADS * 32u) {
        var bits = 0u;
        for (var column = first; column < min(end, first + 32u); column++) {
            let token = read_token(row, column);
            var value = ABSENT;
            if token.x != NONE {
                let at = params.at.b3 + (row - params.row0) * params.logits_stride + column;
                value = float_bits(logits[float_word(at, DTYPE)], at, DTYPE);
                if is_nan(value) || value == 0x7f800000u {
                    found |= NON_FINITE;
                }
                // NaN counts as negative infinity.
                value = select(value, 0xff800000u, is_nan(value));
                if token_is_allowed(row, token.x) {
                    bits |= 1u << (column % 32u);
                }
            } else if token.y != 0u {
                found |= OUT_OF_RANGE;
            }
            work[value_at(row, column)] = value;
            work[column_token_at(row, column)] = token.x;
        }
        work[allowed_at(row) + first / 32u] = bits;
    }
    if found != 0u {
        raise(row, found);
    }
}

// ---- the race ---------------------------------------------------------------

var<workgroup> column_bar: atomic<u32>;
var<workgroup> column_token_bar: atomic<u32>;
var<workgroup> column_winner: atomic<u32>;

// A finish: the bits of a time, the token, the column.
fn finishes_before(a: vec3<u32>, b: vec3<u32>) -> bool {
    if a.x != b.x {
        return a.x < b.x;
    }
    return a.y < b.y || (a.y == b.y && a.z < b.z);
}

// The least of the threads' finishes. Every thread must call this function.
fn first_finish(own: vec3<u32>, thread: u32) -> vec3<u32> {
    workgroupBarrier();
    if thread == 0u {
        atomicStore(&column_bar, NO_TIME);
        atomicStore(&column_token_bar, NONE);
        atomicStore(&column_winner, NONE);
    }
    workgroupBarrier();
    atomicMin(&column_bar, own.x);
    workgroupBarrier();
    let time = atomicLoad(&column_bar);
    if own.x == time {
        atomicMin(&column_token_bar, own.y);
    }
    workgroupBarrier();
    let token = atomicLoad(&column_token_bar);
    if own.x == time && own.y == token {
        atomicMin(&column_winner, own.z);
    }
    workgroupBarrier();
    return vec3(time, token, atomicLoad(&column_winner));
}

// Whether a column of a row that draws is drawn from.
fn column_races(row: u32, column: u32) -> bool {
    let w = kept_weight(filters, key_of(row, column), column);
    return any(fixed_weight(w) != vec2(0u, 0u));
}

// The time of a column; NO_TIME if the column does not race, or if it surely finishes after `bar`.
fn column_time(row: u32, column: u32, draw: Draw, bar: u32) -> u32 {
    if largest_beside(row, column) < filters.cut_key || !column_races(row, column) {
        return NO_TIME;
    }
    let token = work[column_token_at(row, column)];
    let slowness = exact_exp(-exponent(filters.scale, key_of(row, column)));
    if bar != NO_TIME {
        let high = block(draw, token / 256u)[(token / 64u) % 4u];
        if bitcast<u32>(noise_bound(high) * slowness * RACE_SLACK) > bar {
            return NO_TIME;
        }
    }
    let least = least_of(draw, token / RACE_GROUP);
    return race_product(noise_of(draw, least, token), slowness);
}

// The column that stands for the forced token, or NONE. Every thread must call this function.
fn find_forced(row: u32, thread: u32) -> u32 {
    workgroupBarrier();
    if thread == 0u {
        atomicStore(&column_winner, NONE);
    }
    workgroupBarrier();
    let token = load(row, FORCED);
    if token < TOKENS {
        for (var column = thread; column < params.vocab; column += WIDE) {
            if work[column_token_at(row, column)] == token {
                atomicMin(&column_winner, column);
                break;
            }
        }
    }
    workgroupBarrier();
    let column = atomicLoad(&column_winner);
    if thread == 0u && token != NONE && column == NONE {
        // Another rank may have a token that no column stands for here.
        if !has(HAS_MAXIMA) || bitcast<i32>(token) < 0i {
            raise(row, OUT_OF_RANGE);
        }
    }
    return column;
}

// Chooses the columns of a row that draws, and the column that is forced. Afterwards the first of
// the drawn columns is in TOKEN, and all are where reports look for them.
@compute @workgroup_size(WIDE)
fn race_columns(
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
    filters = filters_of(row);
    if fate == FATE_DRAWN {
        let draw = Draw(load_pair(row, SEED), load_pair(row, POSITION), PURPOSE_SAMPLE);
        let many = params.draws > 1u;
        var own = vec3(NO_TIME, NONE, NONE);
        for (var column = thread; column < params.vocab; column += WIDE) {
            let time = column_time(row, column, draw, select(own.x, NO_TIME, many));
            if many {
                work[time_at(row, column)] = time;
            }
            let finish = vec3(time, work[column_token_at(row, column)], column);
            if time != NO_TIME && finishes_before(finish, own) {
                own = finish;
            }
        }
        var last = first_finish(own, thread);
        if thread == 0u {
            store(row, PLACE, select(last.x, PLACE_NOTHING, last.x == NO_TIME));
            store(row, TOKEN, last.z);
            work[drawn_at(row)] = last.z;
        }
        for (var place = 1u; place < params.draws; place++) {
            own = vec3(NO_TIME, NONE, NONE);
            for (var column = thread; column < params.vocab; column += WIDE) {
                let time = work[time_at(row, column)];
                if time == NO_TIME {
                    continue;
                }
                let finish = vec3(time, work[column_token_at(row, column)], column);
                if finishes_before(last, finish) && finishes_before(finish, own) {
                    own = finish;
                }
            }
            last = first_finish(own, thread);
            if thread == 0u {
                work[drawn_at(row) + place] = last.z;
            }
        }
    }
    if !has(HAS_FORCED) || is_padding_row(row, thread) {
        return;
    }
    let column = find_forced(row, thread);
    if thread != 0u {
        return;
    }
    store(row, FORCED_COLUMN, column);
    if column == NONE {
        return;
    }
    var kept = column == load(row, TOKEN);
    if fate == FATE_DRAWN {
        kept = column_races(row, column);
    }
    store(row, FORCED_KEPT, select(0u, 1u, kept));
    work[drawn_at(row)] = column;
    for (var place = 1u; place < params.draws; place++) {
        work[drawn_at(row) + place] = NONE;
    }
}

// ---- tokens -----------------------------------------------------------------

var<workgroup> kept_word: u32;
var<workgroup> kept_total: atomic<u32>;

// The number of columns that race, of those with at least this key. Every thread must call this
// function.
fn count_kept(row: u32, least: u32, thread: u32) -> u32 {
    workgroupBarrier();
    if thread == 0u {
        atomicStore(&kept_total, 0u);
    }
    workgroupBarrier();
    var own = 0u;
    for (var column = thread; column < params.vocab; column += THREADS) {
        let key = key_of(row, column);
        if key >= least && column_races(row, column) {
            own += 1u;
        }
    }
    atomicAdd(&kept_total, own);
    workgroupBarrier();
    if thread == 0u {
        kept_word = atomicLoad(&kept_total);
    }
    return workgroupUniformLoad(&kept_word);
}

// Writes the first of `count` columns that race, in the order of columns. Every thread must call
// this function.
fn list_kept(row: u32, count: u32, thread: u32) {
    let to = params.at.b7 + (row - params.row0) * params.kept_stride;
    // Columns with larger keys are listed, and the first of those with this key.
    var cut = 0u;
    var ties = NONE;
    if count > params.kept {
        // The largest key that at least `kept` columns reach.
        for (var bit = 32u; bit > 0u; bit--) {
            let higher = cut | (1u << (bit - 1u));
            if count_kept(row, higher, thread) >= params.kept {
                cut = higher;
            }
        }
        ties = params.kept - count_kept(row, cut + 1u, thread);
    }
    var listed = 0u;
    var tied = 0u;
    for (var first = 0u; first < params.vocab; first += THREADS) {
        let column = first + thread;
        var key = 0u;
        var races = false;
        if column < params.vocab {
            key = key_of(row, column);
            races = key >= cut && column_races(row, column);
        }
        let is_tie = races && key == cut;
        // The numbers of ties and of larger keys up to this column.
        let counts = vec2(select(0u, 1u, is_tie), select(0u, 1u, races && !is_tie));
        let through = sum_through(thread, counts);
        let all = sum_of_all();
        let ties_before = tied + through.x - counts.x;
        let place = listed + through.y - counts.y + min(ties_before, ties);
        if (is_tie && ties_before < ties) || (races && !is_tie) {
            kept_tokens[to + place] = work[column_token_at(row, column)];
        }
        listed += all.y;
        tied += all.x;
        workgroupBarrier();
    }
    let end = listed + min(tied, ties);
    for (var place = end + thread; place < params.kept; place += THREADS) {
        kept_tokens[to + place] = NONE;
    }
}

// Writes the outputs that hold tokens, after the reports, which are about columns.
@compute @workgroup_size(THREADS)
fn name_columns(
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
    filters = filters_of(row);
    if thread < params.draws {
        let token = named(row, work[drawn_at(row) + thread]);
        let at = params.at.b6 + (row - params.row0) * params.tokens_stride + thread;
        let to = at * params.token_words;
        tokens[to] = token;
        if params.token_words == 2u {
            tokens[to + 1u] = select(0u, NONE, token == NONE);
        }
    }
    if has(HAS_WINNERS) && thread == 0u {
        let at = 2u * (params.at.b2 + row);
        winners[at] = named(row, work[drawn_at(row)]);
        let place = min(load(row, PLACE), PLACE_NOTHING);
        winners[at + 1u] = select(place, PLACE_FORCED, is_forced(row));
    }
    if !has(HAS_KEPT) && !has(HAS_COUNTS) {
        return;
    }
    var count = 0u;
    if fate == FATE_DRAWN {
        count = count_kept(row, 0u, thread);
        if has(HAS_KEPT) {
            list_kept(row, count, thread);
        }
    } else {
        let column = load(row, TOKEN);
        count = select(1u, 0u, column == NONE);
        if has(HAS_KEPT) {
            let to = params.at.b7 + (row - params.row0) * params.kept_stride;
            for (var place = thread; place < params.kept; place += THREADS) {
                kept_tokens[to + place] = NONE;
                if place == 0u {
                    kept_tokens[to] = named(row, column);
                }
            }
        }
    }
    if has(HAS_COUNTS) && thread == 0u {
        kept_counts[params.at.b5 + row] = count;
    }
}

@compute @workgroup_size(64)
fn write_largest(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = params.row0 + group_index(group, groups) * 64u + thread;
    if row >= params.row1 {
        return;
    }
    let there = load(row, PLACE) != PLACE_PADDING;
    largest_logits[params.at.b2 + row] = select(0xff800000u, bits_of(load(row, LARGEST)), there);
}
