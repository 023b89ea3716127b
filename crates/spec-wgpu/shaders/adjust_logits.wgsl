//!include params/adjust_logits
//!include params/shared
//!include exact
//!include integers
//!include adjust_text
//!include adjust_arithmetic
//!include adjust_dry
//!include adjust_think
// adjust_logits: bias, penalties and tokens that may not come next, on logits in place.
//
// Each row of the window has a state and a hash table (open addressing, a slot a distinct token
// that anything touches) in the workspace. What the table gathers is counts, marks and the place
// of a token's first bias, so that the order of threads does not matter. Passes, each a dispatch:
//
// 1. `clear`   threads over the words of all tables.
// 2. `open`    a thread per row: its request, lengths, and the drafts on the way to it.
// 3. `weigh`   a thread per row: its penalties.
// 4. `count`   a thread per token of a row's text: penalties, n-grams.
// 5. `favour`  a workgroup per row: its biases.
// 6. `stop`    a workgroup per row: its stop tokens.
// 7. `ban`     a workgroup per row: its words.
// 8. The passes of DRY and of thinking budgets: see adjust_dry.wgsl and adjust_think.wgsl.
// 9. `finish`  a thread per slot: reads the token's logit, applies the rules in their order, and
//              writes it once.
//
// Passes 4 to 8 are left out where none of their arguments is there. Bytes moved: the text of
// each row, its table three times (12 bytes a slot, two slots a token or more), a sector for each
// touched logit; the floor is that over the memory's bandwidth.

// The type of logits: floats.wgsl.
override DTYPE: u32 = F32;
// Words of a slot: one more with DRY.
override SLOT: u32 = 3u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
// open
@group(0) @binding(2) var<storage, read> requests: array<u32>;
@group(0) @binding(3) var<storage, read> lengths: array<u32>;
@group(0) @binding(5) var<storage, read> prompt_lengths: array<u32>;
// weigh
@group(0) @binding(2) var<storage, read> repetition: array<u32>;
@group(0) @binding(3) var<storage, read> frequency: array<u32>;
@group(0) @binding(4) var<storage, read> presence: array<u32>;
@group(0) @binding(5) var<storage, read> no_repeat_ngram: array<i32>;
@group(0) @binding(6) var<storage, read> min_tokens: array<i32>;
// count, ban; open has the parents, too
@group(0) @binding(2) var<storage, read> tokens: array<u32>;
@group(0) @binding(3) var<storage, read> draft_tokens: array<u32>;
@group(0) @binding(4) var<storage, read> parents: array<i32>;
// ban
@group(0) @binding(5) var<storage, read> bad_offsets: array<i32>;
@group(0) @binding(6) var<storage, read> word_offsets: array<i32>;
@group(0) @binding(7) var<storage, read> word_tokens: array<u32>;
// stop
@group(0) @binding(2) var<storage, read> stop_tokens: array<u32>;
// favour, finish
@group(0) @binding(3) var<storage, read> bias_offsets: array<i32>;
@group(0) @binding(4) var<storage, read> bias_tokens: array<u32>;
@group(0) @binding(5) var<storage, read> bias_values: array<u32>;
// finish
@group(0) @binding(2) var<storage, read_write> logits: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> flags: array<atomic<u32>>;

// A row's state. The request is NONE where it is outside the arrays.
const REQUEST = 0u;
const LENGTH = 1u;
const PROMPT = 2u;
// Drafts on the way to the row.
const DEPTH = 3u;
const FLAGS = 4u;
// Penalties that are on: HAS_ bits, with HAS_STOPS where stop tokens are forbidden.
const ON = 5u;
const NGRAM = 6u;
// Penalties, as bits.
const REPETITION = 7u;
const FREQUENCY = 8u;
const PRESENCE = 9u;
// Of DRY: its multiplier and base, as bits; the allowed length; where the range starts; the most
// tokens of a sequence, 0 where the rule is off.
const MULTIPLIER = 10u;
const BASE = 11u;
const ALLOWED = 12u;
const RANGE_START = 13u;
const MATCH_LIMIT = 14u;
// Of a thinking budget: where the last start of a thinking ends, or 0; how many tokens of
// `think_forced` end the text; 1 where the thinking has ended before them.
const THOUGHT = 15u;
const TAKEN = 16u;
const IS_OVER = 17u;

// A slot: the column of the token, or NONE; its value; the place of its first bias, or NONE; with
// DRY, the length of the longest sequence that the token would repeat.
const KEY = 0u;
const VALUE = 1u;
const FIRST = 2u;
const MATCH = 3u;
// Of a value; below is how often the token was generated.
const FORBIDDEN = 0x80000000u;
const IN_TEXT = 0x40000000u;
const REPEATED_BIAS = 0x20000000u;
const COUNT = 0x1fffffffu;

const NONE = 0xffffffffu;
const ONE_BITS = 0x3f800000u;
const NEGATIVE_INFINITY = 0xff800000u;

fn has(bit: u32) -> bool {
    return (params.has & bit) != 0u;
}

// `row` is a row's number in the window, here and below.
fn load(row: u32, word: u32) -> u32 {
    return atomicLoad(&work[params.at.b1 + row * STATE + word]);
}

fn store(row: u32, word: u32, value: u32) {
    atomicStore(&work[params.at.b1 + row * STATE + word], value);
}

// The request of a row; NONE for a row behind the window, or with a request outside the arrays.
fn request_of(row: u32) -> u32 {
    if row >= params.row1 - params.row0 {
        return NONE;
    }
    return load(row, REQUEST);
}

fn raise(row: u32, bits: u32) {
    atomicOr(&work[params.at.b1 + row * STATE + FLAGS], bits);
}

fn table_of(row: u32) -> u32 {
    return params.at.b1 + params.tables + row * params.slots * SLOT;
}

// Where the slot of a token is in the workspace; NONE for a token without a column, with a flag for
// one outside the vocabulary. A table has more slots than a row touches tokens.
fn slot_of(row: u32, token: vec2<u32>) -> u32 {
    // A token before the first column gives a number that no column has.
    let column = token.x - params.first_token;
    if token.y != 0u || column >= params.columns {
        if token.y != 0u || token.x >= params.vocab {
            raise(row, OUT_OF_RANGE);
        }
        return NONE;
    }
    let table = table_of(row);
    let mask = params.slots - 1u;
    var slot = ((column * 0x9e3779b1u) >> 7u) & mask;
    for (var probe = 0u; probe < params.slots; probe++) {
        let at = table + slot * SLOT;
        loop {
            let found = atomicLoad(&work[at]);
            if found == column {
                return at;
            }
            if found != NONE {
                break;
            }
            // It may fail for no reason, and then is tried again.
            let taken = atomicCompareExchangeWeak(&work[at], NONE, column);
            if taken.exchanged {
                return at;
            }
        }
        slot = (slot + 1u) & mask;
    }
    return NONE;
}

fn forbid(row: u32, token: vec2<u32>) {
    let at = slot_of(row, token);
    if at != NONE {
        atomicOr(&work[at + VALUE], FORBIDDEN);
    }
}

// An i32 token as 64 bits.
fn wide(token: u32) -> vec2<u32> {
    return integer(token, token, 1u);
}

@compute @workgroup_size(THREADS)
fn clear(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = group_index(group, groups) * THREADS * CLEARED + thread;
    for (var i = 0u; i < CLEARED; i++) {
        let at = first + i * THREADS;
        if at < params.table_words {
            let empty = select(NONE, 0u, at % SLOT == VALUE || at % SLOT == MATCH);
            atomicStore(&work[params.at.b1 + params.tables + at], empty);
        }
    }
}

// A length cut to 0 ..= most, with a flag where the cut changes the length.
fn cut_of_row(row: u32, given: vec2<u32>, max_length: u32) -> u32 {
    let kept = cut_length(given, max_length);
    if is_cut(given, kept) {
        raise(row, BAD_LENGTHS);
    }
    return kept;
}

// How many drafts are on the way to a row; 0, with a flag, for a bad parent on it.
fn climb(row: u32) -> u32 {
    if !has(HAS_DRAFTS) {
        return 0u;
    }
    var at = params.row0 + row;
    var depth = 0u;
    loop {
        let parent = parents[params.at.b4 + at];
        if parent == -1 {
            break;
        }
        // A way without a cycle has fewer drafts than there are rows.
        if bitcast<u32>(parent) >= params.rows || depth + 1u >= params.rows {
            raise(row, BAD_LENGTHS);
            return 0u;
        }
        at = bitcast<u32>(parent);
        depth += 1u;
    }
    return depth;
}

@compute @workgroup_size(ROW_THREADS)
fn open(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * 64u + thread;
    if row >= params.row1 - params.row0 {
        return;
    }
    var request = params.row0 + row;
    if has(HAS_REQUESTS) {
        request = requests[params.at.b2 + request];
    }
    store(row, FLAGS, 0u);
    if request >= params.requests {
        store(row, REQUEST, NONE);
        // -1 is padding.
        if request != NONE {
            raise(row, BAD_LENGTHS);
        }
        return;
    }
    store(row, REQUEST, request);
    var at = (params.at.b3 + request) * params.length_words;
    let last = params.length_words - 1u;
    let length =
        cut_of_row(row, integer(lengths[at], lengths[at + last], params.length_words), params.max_length);
    at = (params.at.b5 + request) * params.prompt_words;
    let prompt = integer(
        prompt_lengths[at],
        prompt_lengths[at + params.prompt_words - 1u],
        params.prompt_words,
    );
    store(row, LENGTH, length);
    store(row, PROMPT, cut_of_row(row, prompt, length));
    store(row, DEPTH, climb(row));
    if has(HAS_THINK) {
        store(row, THOUGHT, 0u);
        store(row, TAKEN, 0u);
        store(row, IS_OVER, 0u);
    }
}

// Whether the penalty with these bits is on: a number, not `none`.
fn is_on(row: u32, bits: u32, none: u32) -> bool {
    if !is_finite(bits) {
        raise(row, BAD_LENGTHS);
        return false;
    }
    return bits != none;
}

@compute @workgroup_size(ROW_THREADS)
fn weigh(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * 64u + thread;
    let request = request_of(row);
    if request == NONE {
        return;
    }
    var on = 0u;
    if has(HAS_REPETITION) {
        let bits = flushed(repetition[params.at.b2 + request]);
        store(row, REPETITION, bits);
        if bits == 0u || (bits >> 31u) == 1u {
            raise(row, BAD_LENGTHS);
        } else if is_on(row, bits, ONE_BITS) {
            on |= HAS_REPETITION;
        }
    }
    if has(HAS_FREQUENCY) {
        let bits = flushed(frequency[params.at.b3 + request]);
        store(row, FREQUENCY, bits);
        if is_on(row, bits & 0x7fffffffu, 0u) {
            on |= HAS_FREQUENCY;
        }
    }
    if has(HAS_PRESENCE) {
        let bits = flushed(presence[params.at.b4 + request]);
        store(row, PRESENCE, bits);
        if is_on(row, bits & 0x7fffffffu, 0u) {
            on |= HAS_PRESENCE;
        }
    }
    var ngram = 0u;
    if has(HAS_NGRAM) {
        ngram = u32(max(no_repeat_ngram[params.at.b5 + request], 0));
    }
    store(row, NGRAM, ngram);
    if has(HAS_STOPS) {
        let generated = load(row, LENGTH) - load(row, PROMPT) + load(row, DEPTH);
        let wanted = min_tokens[params.at.b6 + request];
        if wanted > 0 && generated < u32(wanted) {
            on |= HAS_STOPS;
        }
    }
    store(row, ON, on);
}

@compute @workgroup_size(THREADS)
fn count(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    let row = index / params.chunks;
    let request = request_of(row);
    if request == NONE {
        return;
    }
    let text = text_of(row, request);
    let len = text.length + text.depth;
    let place = (index % params.chunks) * THREADS + thread;
    if place >= len {
        return;
    }
    let back = len - 1u - place;
    let last = params.row0 + row;
    let at_row = row_at(text, last, back);
    let token = token_back(text, at_row, back);
    let on = load(row, ON);
    let generated = place >= load(row, PROMPT);
    let counts = (on & (HAS_FREQUENCY | HAS_PRESENCE)) != 0u && generated;
    let marks = (on & HAS_REPETITION) != 0u;
    if counts || marks {
        let slot = slot_of(row, token);
        if slot != NONE {
            if counts {
                atomicAdd(&work[slot + VALUE], 1u);
            }
            if marks {
                atomicOr(&work[slot + VALUE], IN_TEXT);
            }
        }
    }
    let n = load(row, NGRAM);
    if n > 0u && place >= n - 1u {
        let before = row_before(text, at_row, back);
        if repeats(text, last, before, back + 1u, n - 1u) {
            forbid(row, token);
        }
    }
}

// Whether two offsets do not bound a part of a list of `len` elements.
fn are_bad(start: i32, end: i32, len: u32) -> bool {
    return start < 0 || end < start || u32(end) > len;
}

@compute @workgroup_size(THREADS)
fn favour(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    let request = request_of(row);
    if request == NONE {
        return;
    }
    let start = bias_offsets[params.at.b3 + request];
    let end = bias_offsets[params.at.b3 + request + 1u];
    if are_bad(start, end, params.biases) {
        raise(row, BAD_LENGTHS);
        return;
    }
    for (var i = u32(start) + thread; i < u32(end); i += THREADS) {
        let at = slot_of(row, wide(bias_tokens[params.at.b4 + i]));
        if at != NONE {
            let before = atomicMin(&work[at + FIRST], i);
            if before != NONE {
                atomicOr(&work[at + VALUE], REPEATED_BIAS);
            }
        }
    }
}

@compute @workgroup_size(ROW_THREADS)
fn stop(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    let request = request_of(row);
    if request == NONE || (load(row, ON) & HAS_STOPS) == 0u {
        return;
    }
    for (var i = thread; i < params.stops; i += 64u) {
        let token = stop_tokens[params.at.b2 + request * params.stops_stride + i];
        if token != NONE {
            forbid(row, wide(token));
        }
    }
}

// Whether the text ends in the `count` tokens of words before `end`. The row is one of all rows.
fn ends_in(text: Text, row: u32, end: u32, count: u32) -> bool {
    var own = row;
    for (var j = 0u; j < count; j++) {
        let token = wide(word_tokens[params.at.b7 + end - 1u - j]);
        if any(token_back(text, own, j) != token) {
            return false;
        }
        own = row_before(text, own, j);
    }
    return true;
}

@compute @workgroup_size(ROW_THREADS)
fn ban(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    let request = request_of(row);
    if request == NONE {
        return;
    }
    let start = bad_offsets[params.at.b5 + request];
    let end = bad_offsets[params.at.b5 + request + 1u];
    if are_bad(start, end, params.words) {
        raise(row, BAD_LENGTHS);
        return;
    }
    let text = text_of(row, request);
    let before = select(load(row, PROMPT), 0u, params.words_in_prompt != 0u);
    let searched = text.length + text.depth - before;
    for (var word = u32(start) + thread; word < u32(end); word += 64u) {
        let first = word_offsets[params.at.b6 + word];
        let behind = word_offsets[params.at.b6 + word + 1u];
        if are_bad(first, behind, params.word_tokens) || first == behind {
            raise(row, BAD_LENGTHS);
        } else {
            let last = u32(behind) - 1u;
            let others = last - u32(first);
            if others <= searched && ends_in(text, params.row0 + row, last, others) {
                forbid(row, wide(word_tokens[params.at.b7 + last]));
            }
        }
    }
}

// Writes an element, which nobody else does. A neighbour may write the other half of its word.
fn write_logit(at: u32, word: u32, bits: u32) {
    let place = float_word(at, DTYPE);
    if DTYPE == F32 {
        atomicStore(&logits[place], bits);
        return;
    }
    atomicXor(&logits[place], half_change(word, at, bits, DTYPE));
}

fn bias_of(token: u32, i: u32, end: u32, x: u32) -> u32 {
    if i < end {
        if bias_tokens[params.at.b4 + i] == token {
            return plus(x, flushed(bias_values[params.at.b5 + i]));
        }
    }
    return x;
}

@compute @workgroup_size(THREADS)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let groups_of_row = (params.slots + THREADS - 1u) / THREADS;
    let index = group_index(group, groups);
    let row = index / groups_of_row;
    if row >= params.row1 - params.row0 {
        return;
    }
    let slot = (index % groups_of_row) * THREADS + thread;
    if slot == 0u && has(HAS_FLAGS) {
        let bits = load(row, FLAGS);
        if bits != 0u {
            atomicOr(&flags[params.at.b6], bits);
        }
    }
    if slot >= params.slots {
        return;
    }
    let place = table_of(row) + slot * SLOT;
    let column = atomicLoad(&work[place + KEY]);
    if column == NONE {
        return;
    }
    let token = column + params.first_token;
    let value = atomicLoad(&work[place + VALUE]);
    let at = params.at.b2 + row * params.logits_stride + column;
    let word = atomicLoad(&logits[float_word(at, DTYPE)]);
    if (value & FORBIDDEN) != 0u {
        write_logit(at, word, NEGATIVE_INFINITY);
        return;
    }
    var x = flushed(float_bits(word, at, DTYPE));
    let first = atomicLoad(&work[place + FIRST]);
    if first != NONE {
        x = plus(x, flushed(bias_values[params.at.b5 + first]));
        if (value & REPEATED_BIAS) != 0u {
            let end = u32(bias_offsets[params.at.b3 + load(row, REQUEST) + 1u]);
            for (var i = first + 1u; i < min(end, params.biases); i += 4u) {
                x = bias_of(token, i, end, x);
                x = bias_of(token, i + 1u, end, x);
                x = bias_of(token, i + 2u, end, x);
                x = bias_of(token, i + 3u, end, x);
            }
        }
    }
    let on = load(row, ON);
    if (on & HAS_REPETITION) != 0u && (value & IN_TEXT) != 0u {
        x = repeated(x, load(row, REPETITION));
    }
    let count = value & COUNT;
    if (on & HAS_FREQUENCY) != 0u && count > 0u {
        x = minus(x, product(load(row, FREQUENCY), bitcast<u32>(f32(count))));
    }
    if (on & HAS_PRESENCE) != 0u && count > 0u {
        x = minus(x, load(row, PRESENCE));
    }
    if SLOT > MATCH {
        let repeated = atomicLoad(&work[place + MATCH]);
        if repeated > 0u {
            x = dry_adjusted(row, repeated, x);
        }
    }
    write_logit(at, word, x);
}
