//!include race
//!include probability
// Finds the first token to finish a race, by one workgroup. First come bounds of all groups, then
// exact times of two tokens in some groups with low bounds. The best of these times is the bar: a
// group whose bound is above the bar cannot finish first, and neither can a token whose time would
// exceed the bar with its group's least noise alone. Some dozens of tokens are left, one thread
// each.
//
// The including shader declares WIDE, the number of threads of its workgroup, a multiple of 128 and
// at most 1024; RACE_LIST, the number of groups that are listed at once; RACE_TOKENS, the number of
// tokens that are listed at once, three times WIDE; and these functions about the race of the
// current thread, where a token's slowness is the factor from its noise to its time:
//
// * race_group_bound(group): a lower bound of the slowness of a group's fastest token, below 0 if
//   no token of the group takes part;
// * race_entry(token): the data that decide a token's slowness, as they are in memory;
// * race_token_bound(token, entry): a lower bound of a token's slowness, below 0 if the token
//   surely takes no part;
// * race_slowness(token, entry): the exact slowness of a token, below 0 if it takes no part.
//
// Bounds are approximate, and multiplied by RACE_SLACK; a group and its heaviest token have the
// same bound. Bounds are kept in `work`, one word per group; a thread reads only the bounds that it
// wrote.

const NO_TIME = 0xffffffffu;
// Much more than the error of a few approximate factors.
const RACE_SLACK = 1.0f - 1.0f / 2048.0f;
// Each slice of threads selects the group with its least bound; the tokens of these groups make the
// bar.
const RACE_SLICES = 64u;

// The bits of a time that no token of the final result exceeds.
var<workgroup> race_bar: atomic<u32>;
var<workgroup> race_winner: atomic<u32>;
// For each slice: its least bound, the group with this bound, and that group's heaviest token.
var<workgroup> slice_bounds: array<atomic<u32>, RACE_SLICES>;
var<workgroup> slice_groups: array<atomic<u32>, RACE_SLICES>;
var<workgroup> slice_tokens: array<atomic<u32>, RACE_SLICES>;
// Listed groups whose tokens are next, and lower bounds of the groups' noise; listed tokens.
var<workgroup> race_groups: array<u32, RACE_LIST>;
var<workgroup> race_noises: array<f32, RACE_LIST>;
var<workgroup> race_group_count: atomic<u32>;
var<workgroup> race_tokens: array<u32, RACE_TOKENS>;
var<workgroup> race_token_count: atomic<u32>;
var<workgroup> race_word: u32;

// The groups of a race, from one multiple of 4 to another; their bounds lie in `work` from `bounds`
// on.
struct Course {
    draw: Draw,
    bounds: u32,
    first_block: u32,
    end_block: u32,
}

// Broadcasts a number that thread 0 knows.
fn race_for_all(number: u32, thread: u32) -> u32 {
    if thread == 0u {
        race_word = number;
    }
    return workgroupUniformLoad(&race_word);
}

// Finds the bounds of a thread's groups. Returns the least bound and its group.
fn race_bounds(course: Course, thread: u32) -> vec2<u32> {
    var least = vec2(NO_TIME, NO_TIME);
    for (var four = course.first_block + thread; four < course.end_block; four += WIDE) {
        let slowness = vec4(
            race_group_bound(4u * four),
            race_group_bound(4u * four + 1u),
            race_group_bound(4u * four + 2u),
            race_group_bound(4u * four + 3u),
        );
        var bounds = vec4(NO_TIME);
        if any(slowness >= vec4(0.0f)) {
            let words = block(course.draw, four);
            for (var j = 0u; j < 4u; j++) {
                if slowness[j] >= 0.0f {
                    bounds[j] = bitcast<u32>(noise_bound(words[j]) * slowness[j]);
                    if bounds[j] < least.x {
                        least = vec2(bounds[j], 4u * four + j);
                    }
                }
            }
        }
        for (var j = 0u; j < 4u; j++) {
            work[course.bounds + 4u * four + j] = bounds[j];
        }
    }
    return least;
}

// The bits of the product of two positive numbers.
fn race_product(a: f32, b: f32) -> u32 {
    let exponents = (bitcast<u32>(a) >> 23u) + (bitcast<u32>(b) >> 23u);
    if exponents > 128u {
        return bitcast<u32>(mul(a, b));
    }
    // A product that a device may take for 0.
    return multiply_bits(bitcast<u32>(a), bitcast<u32>(b));
}

// The bits of a token's time; NO_TIME if the token takes no part, or surely finishes after the bar.
fn race_time(draw: Draw, token: u32) -> u32 {
    let slowness = race_slowness(token, race_entry(token));
    if slowness < 0.0f {
        return NO_TIME;
    }
    let least = least_of(draw, token / RACE_GROUP);
    if bitcast<u32>(least.noise * slowness * RACE_SLACK) > atomicLoad(&race_bar) {
        return NO_TIME;
    }
    return race_product(noise_of(draw, least, token), slowness);
}

// Begins a race in which a time is already known from an earlier part: finds the bounds of all
// groups, and lists two tokens of each slice's group, which usually finish early. Every thread must
// call this function.
fn race_begin(course: Course, known: u32, thread: u32) {
    let slice = thread % RACE_SLICES;
    if thread < RACE_SLICES {
        atomicStore(&slice_bounds[thread], NO_TIME);
        atomicStore(&slice_groups[thread], NO_TIME);
        atomicStore(&slice_tokens[thread], NO_TIME);
    }
    if thread == 0u {
        atomicStore(&race_bar, known);
        atomicStore(&race_winner, NO_TIME);
        atomicStore(&race_group_count, 0u);
        atomicStore(&race_token_count, 0u);
    }
    workgroupBarrier();
    let own = race_bounds(course, thread);
    atomicMin(&slice_bounds[slice], own.x);
    workgroupBarrier();
    if own.x != NO_TIME && own.x == atomicLoad(&slice_bounds[slice]) {
        atomicMin(&slice_groups[slice], own.y);
    }
    workgroupBarrier();
    // Two groups at a time, so that their loads are in flight together.
    let teams = WIDE / RACE_GROUP;
    for (var i = thread / RACE_GROUP; i < RACE_SLICES; i += 2u * teams) {
        let groups = vec2(atomicLoad(&slice_groups[i]), atomicLoad(&slice_groups[i + teams]));
        let there = groups != vec2(NO_TIME);
        let safe = select(vec2(4u * course.first_block), groups, there);
        let tokens = safe * RACE_GROUP + thread % RACE_GROUP;
        let first = race_entry(tokens.x);
        let second = race_entry(tokens.y);
        let bounds = vec2(race_group_bound(safe.x), race_group_bound(safe.y));
        let slowness = vec2(race_token_bound(tokens.x, first), race_token_bound(tokens.y, second));
        let heaviest = there & (slowness >= vec2(0.0f)) & (slowness * RACE_SLACK <= bounds);
        if heaviest.x {
            atomicMin(&slice_tokens[i], tokens.x);
        }
        if heaviest.y {
            atomicMin(&slice_tokens[i + teams], tokens.y);
        }
    }
    workgroupBarrier();
    // The heaviest token of a group, and the one that has the group's least noise.
    let group = atomicLoad(&slice_groups[slice]);
    if thread < RACE_SLICES && group != NO_TIME {
        let first = group * RACE_GROUP + least_lane(course.draw, group);
        race_tokens[atomicAdd(&race_token_count, 1u)] = first;
        let heaviest = atomicLoad(&slice_tokens[slice]);
        if heaviest != first && heaviest != NO_TIME {
            race_tokens[atomicAdd(&race_token_count, 1u)] = heaviest;
        }
    }
    workgroupBarrier();
}

// The progress of a race: the thread's block and the group in this block to list next; the listed
// group to look at next, and the number of listed groups; whether the list was too short.
struct Progress {
    four: u32,
    j: u32,
    next: u32,
    count: u32,
    more: bool,
}

fn race_progress(course: Course, thread: u32) -> Progress {
    return Progress(course.first_block + thread, 0u, 0u, 0u, true);
}

// Lists the next groups whose bounds do not exceed the bar, as many as fit. Each thread looks at
// the bounds that it wrote.
fn list_groups(course: Course, progress: ptr<function, Progress>) {
    let bar = atomicLoad(&race_bar);
    for (; (*progress).four < course.end_block; (*progress).four += WIDE) {
        let first = 4u * (*progress).four;
        // All four loads are in flight together.
        let at = course.bounds + first;
        let bounds = vec4(work[at], work[at + 1u], work[at + 2u], work[at + 3u]);
        for (; (*progress).j < 4u; (*progress).j += 1u) {
            let bound = bounds[(*progress).j];
            if bound == NO_TIME || bound > bar {
                continue;
            }
            let place = atomicAdd(&race_group_count, 1u);
            if place >= RACE_LIST {
                return;
            }
            let group = first + (*progress).j;
            race_groups[place] = group;
            race_noises[place] = bitcast<f32>(bound) / race_group_bound(group);
        }
        (*progress).j = 0u;
    }
}

// Lists a token of a listed group if its bound does not exceed the bar.
fn list_token(place: u32, token: u32, entry: vec2<u32>) {
    let slowness = race_token_bound(token, entry);
    let bound = race_noises[place] * slowness * RACE_SLACK;
    if slowness >= 0.0f && bitcast<u32>(bound) <= atomicLoad(&race_bar) {
        race_tokens[atomicAdd(&race_token_count, 1u)] = token;
    }
}

// Replaces the list of tokens by further tokens that the bar leaves, none of which was listed since
// the race began. Returns false if no tokens are left. Every thread must call this function.
fn race_next(course: Course, progress: ptr<function, Progress>, thread: u32) -> bool {
    workgroupBarrier();
    if thread == 0u {
        atomicStore(&race_token_count, 0u);
    }
    workgroupBarrier();
    let teams = WIDE / RACE_GROUP;
    let lane = thread % RACE_GROUP;
    loop {
        if (*progress).next >= (*progress).count {
            if !(*progress).more {
                break;
            }
            if thread == 0u {
                atomicStore(&race_group_count, 0u);
            }
            workgroupBarrier();
            list_groups(course, progress);
            workgroupBarrier();
            let listed = race_for_all(atomicLoad(&race_group_count), thread);
            (*progress).next = 0u;
            (*progress).count = min(listed, RACE_LIST);
            (*progress).more = listed > RACE_LIST;
            continue;
        }
        // Two entries at a time, so that their loads are in flight together.
        let first = (*progress).next + thread / RACE_GROUP;
        let second = first + teams;
        let last = (*progress).count - 1u;
        let token = race_groups[min(first, last)] * RACE_GROUP + lane;
        let other = race_groups[min(second, last)] * RACE_GROUP + lane;
        let entry = race_entry(token);
        let other_entry = race_entry(other);
        if first <= last {
            list_token(first, token, entry);
        }
        if second <= last {
            list_token(second, other, other_entry);
        }
        (*progress).next += 2u * teams;
        workgroupBarrier();
        if race_for_all(atomicLoad(&race_token_count), thread) > RACE_TOKENS - 2u * WIDE {
            break;
        }
    }
    return race_for_all(atomicLoad(&race_token_count), thread) != 0u;
}

// The earlier of two finishes; of equal times, the lower token.
fn race_earlier(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x < a.x || (b.x == a.x && b.y < a.y));
}

// The first finish of the race and of an earlier part, `known`: (bits of its time, token), with
// NO_TIME if no token takes part. Every thread must call this function, with the same course.
fn race_first(course: Course, known: vec2<u32>, thread: u32) -> vec2<u32> {
    race_begin(course, known.x, thread);
    var best = known;
    var progress = race_progress(course, thread);
    loop {
        let tokens = atomicLoad(&race_token_count);
        for (var i = thread; i < tokens; i += WIDE) {
            let time = race_time(course.draw, race_tokens[i]);
            if time != NO_TIME {
                best = race_earlier(best, vec2(time, race_tokens[i]));
                atomicMin(&race_bar, time);
            }
        }
        if !race_next(course, &progress, thread) {
            break;
        }
    }
    let first = atomicLoad(&race_bar);
    if best.x == first && first != NO_TIME {
        atomicMin(&race_winner, best.y);
    }
    workgroupBarrier();
    return vec2(first, atomicLoad(&race_winner));
}
