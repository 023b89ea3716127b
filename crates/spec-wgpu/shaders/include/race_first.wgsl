//!include race
//!include probability
// The first to finish of a race, by one workgroup: bounds of all groups, then exact times of
// the tokens of groups whose bound is not above the best time so far.
//
// The including shader declares WIDE, how many threads its workgroup has, a multiple of
// 64 and at most 1024; RACE_LIST, a multiple of 4; and of whatever a thread has made the race's
// subject:
//
// * race_slowness_bound(group): how many times its noise the first of a group's tokens needs
//   at least, below 0 where none takes part;
// * race_slowness(token): exactly how many times a token needs, below 0 where it takes no part.
//
// Bounds are kept in `work`, a word a group. A thread reads none that another one wrote.

const NO_TIME = 0xffffffffu;
// What a product of approximate factors may be off by, and much more.
const RACE_SLACK = 1.0f - 1.0f / 2048.0f;

// The bits of the least time so far: no smaller than those that count in the end.
var<workgroup> race_bar: atomic<u32>;
var<workgroup> race_winner: atomic<u32>;
// Of each team of 64 threads: the least bound of its groups, and the group.
var<workgroup> race_least_bounds: array<atomic<u32>, 16>;
var<workgroup> race_least_groups: array<atomic<u32>, 16>;
// Groups whose tokens are to be looked at.
var<workgroup> race_list: array<u32, RACE_LIST>;
var<workgroup> race_listed: atomic<u32>;

// What a race goes through: groups from a multiple of 4 to another, whose bounds lie in `work`
// from there on.
struct Course {
    draw: Draw,
    bounds: u32,
    first_block: u32,
    end_block: u32,
}

fn bound_at(course: Course, group: u32) -> u32 {
    return course.bounds + group;
}

// Finds the bounds of a thread's groups. Gives the least, and its group.
fn race_bounds(course: Course, thread: u32) -> vec2<u32> {
    var least = vec2(NO_TIME, NO_TIME);
    for (var four = course.first_block + thread; four < course.end_block; four += WIDE) {
        let slowness = vec4(
            race_slowness_bound(4u * four),
            race_slowness_bound(4u * four + 1u),
            race_slowness_bound(4u * four + 2u),
            race_slowness_bound(4u * four + 3u),
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
            work[bound_at(course, 4u * four + j)] = bounds[j];
        }
    }
    return least;
}

// The bits of a product of positive numbers.
fn race_product(a: f32, b: f32) -> u32 {
    let exponents = (bitcast<u32>(a) >> 23u) + (bitcast<u32>(b) >> 23u);
    if exponents > 128u {
        return bitcast<u32>(mul(a, b));
    }
    // What a device may take for 0.
    return multiply_bits(bitcast<u32>(a), bitcast<u32>(b));
}

// The bits of a token's time, by a thread of the 64 that look at its group; NO_TIME where it
// takes no part, or is later than the bar for sure.
fn race_time(draw: Draw, group: u32, thread: u32) -> u32 {
    let token = group * RACE_GROUP + thread % RACE_GROUP;
    let slowness = race_slowness(token);
    if slowness < 0.0f {
        return NO_TIME;
    }
    let least = least_of(draw, group);
    if bitcast<u32>(least.noise * slowness * RACE_SLACK) > atomicLoad(&race_bar) {
        return NO_TIME;
    }
    return race_product(noise_of(draw, least, token), slowness);
}

// The earlier of two, of equal times the lower token.
fn race_earlier(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x < a.x || (b.x == a.x && b.y < a.y));
}

fn race_look(draw: Draw, group: u32, thread: u32, best: ptr<function, vec2<u32>>) {
    let time = race_time(draw, group, thread);
    if time != NO_TIME {
        *best = race_earlier(*best, vec2(time, group * RACE_GROUP + thread % RACE_GROUP));
        atomicMin(&race_bar, time);
    }
}

// Lists groups of a tile of a course. Each thread looks at the bounds that it wrote.
fn race_list_groups(course: Course, tile: u32, above: u32, most: u32, thread: u32) {
    let end = min(course.end_block, tile + RACE_LIST / 4u);
    // The tile's first block of this thread's.
    let skipped = (tile - course.first_block + WIDE - 1u - thread) / WIDE;
    var four = course.first_block + thread + skipped * WIDE;
    for (; four < end; four += WIDE) {
        for (var j = 0u; j < 4u; j++) {
            let bound = work[bound_at(course, 4u * four + j)];
            if bound != NO_TIME && bound >= above && bound <= most {
                race_list[atomicAdd(&race_listed, 1u)] = 4u * four + j;
            }
        }
    }
}

// The first to finish, and when: (bits of its time, token), NO_TIME where nobody takes part. Of
// that and of a first known before. Every thread calls it, with the same course.
fn race_first(course: Course, known: vec2<u32>, thread: u32) -> vec2<u32> {
    let team = thread / RACE_GROUP;
    if thread < 16u {
        atomicStore(&race_least_bounds[thread], NO_TIME);
        atomicStore(&race_least_groups[thread], NO_TIME);
    }
    if thread == 0u {
        atomicStore(&race_bar, known.x);
        atomicStore(&race_winner, NO_TIME);
        atomicStore(&race_listed, 0u);
    }
    workgroupBarrier();
    let own = race_bounds(course, thread);
    atomicMin(&race_least_bounds[team], own.x);
    workgroupBarrier();
    if own.x != NO_TIME && own.x == atomicLoad(&race_least_bounds[team]) {
        atomicMin(&race_least_groups[team], own.y);
    }
    workgroupBarrier();
    // The likeliest of each team's groups come first, and leave few others to look at.
    var best = known;
    let group = atomicLoad(&race_least_groups[team]);
    if group != NO_TIME {
        race_look(course.draw, group, thread, &best);
        if own.y == group {
            work[bound_at(course, group)] = NO_TIME;
        }
    }
    workgroupBarrier();
    for (var tile = course.first_block; tile < course.end_block; tile += RACE_LIST / 4u) {
        race_list_groups(course, tile, 0u, atomicLoad(&race_bar), thread);
        workgroupBarrier();
        let listed = atomicLoad(&race_listed);
        for (var i = team; i < listed; i += WIDE / RACE_GROUP) {
            race_look(course.draw, race_list[i], thread, &best);
        }
        workgroupBarrier();
        if thread == 0u {
            atomicStore(&race_listed, 0u);
        }
        workgroupBarrier();
    }
    let first = atomicLoad(&race_bar);
    if best.x == first && first != NO_TIME {
        atomicMin(&race_winner, best.y);
    }
    workgroupBarrier();
    return vec2(first, atomicLoad(&race_winner));
}
