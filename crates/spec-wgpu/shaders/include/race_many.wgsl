//!include race_first
//!include select
// The first so many to finish of a race, by one workgroup: as race_first.wgsl, with the last of
// those as the bar.

// The most of them, and with what all threads find at once.
const MOST_DRAWS = 64u;
const RACE_FOUND = 576u;

// Times and tokens found so far: of those that count in the end, none is missing. Sorted,
// after `race_settle`.
var<workgroup> race_times: array<u32, RACE_FOUND>;
var<workgroup> race_tokens: array<u32, RACE_FOUND>;
var<workgroup> race_found: atomic<u32>;
var<workgroup> race_word: u32;

// The number that another thread counted, for all.
fn race_count(thread: u32, what: u32) -> u32 {
    if thread == 0u {
        race_word = what;
    }
    return workgroupUniformLoad(&race_word);
}

// Sorts what was found, keeps the first so many and moves the bar. Gives how many there are.
// Every thread calls it.
fn race_settle(most: u32, thread: u32) -> u32 {
    let found = race_count(thread, atomicLoad(&race_found));
    // Two of each thread at most.
    var own = array<vec2<u32>, 2>();
    var places = array(NO_TIME, NO_TIME);
    for (var k = 0u; k < 2u; k++) {
        let i = thread + k * WIDE;
        if i < found {
            own[k] = vec2(race_times[i], race_tokens[i]);
            places[k] = 0u;
            for (var j = 0u; j < found; j++) {
                let time = race_times[j];
                if time < own[k].x || (time == own[k].x && race_tokens[j] < own[k].y) {
                    places[k] += 1u;
                }
            }
        }
    }
    workgroupBarrier();
    for (var k = 0u; k < 2u; k++) {
        if places[k] < most {
            race_times[places[k]] = own[k].x;
            race_tokens[places[k]] = own[k].y;
            if places[k] + 1u == most {
                atomicStore(&race_bar, own[k].x);
            }
        }
    }
    if thread == 0u {
        atomicStore(&race_found, min(found, most));
    }
    workgroupBarrier();
    return min(found, most);
}

// A bound that some `count` groups do not exceed, and few others: the 16 leading bits of the
// last of them. Every thread calls it, after race_bounds.
fn race_threshold(course: Course, count: u32, thread: u32) -> u32 {
    var known = Picked(0u, vec2(0u, 0u), vec2(0u, 0u));
    for (var round = 0u; round < 2u; round++) {
        clear_bins(thread);
        for (var four = course.first_block + thread; four < course.end_block; four += WIDE) {
            for (var j = 0u; j < 4u; j++) {
                let bound = work[bound_at(course, 4u * four + j)];
                if bound == NO_TIME {
                    continue;
                }
                if round == 0u {
                    // Positive: the exponent.
                    add_to_bin(bound >> 23u, vec2(1u, 0u));
                } else if bound >> 23u == known.bin {
                    add_to_bin((bound >> 15u) & 255u, vec2(1u, 0u));
                }
            }
        }
        let next = pick_bin(thread, known.above, vec2(count, 0u));
        if next.bin == SELECT_BINS {
            // There are not so many.
            return NO_TIME;
        }
        if round == 1u {
            return (known.bin << 23u) | (next.bin << 15u) | 0x7fffu;
        }
        known = next;
    }
    return NO_TIME;
}

// Finds the first `most` to finish: how many there are, which are then the first of `race_tokens`.
// Every thread calls it, with the same course.
fn race_many(course: Course, most: u32, thread: u32) -> u32 {
    let team = thread / RACE_GROUP;
    let teams = WIDE / RACE_GROUP;
    if thread == 0u {
        atomicStore(&race_bar, NO_TIME);
        atomicStore(&race_listed, 0u);
        atomicStore(&race_found, 0u);
    }
    workgroupBarrier();
    _ = race_bounds(course, thread);
    let threshold = race_threshold(course, most, thread);
    // First what is likeliest, then what the bar leaves of the others.
    for (var stage = 0u; stage < 2u; stage++) {
        if stage == 1u {
            _ = race_settle(most, thread);
        }
        for (var tile = course.first_block; tile < course.end_block; tile += RACE_LIST / 4u) {
            if stage == 0u {
                race_list_groups(course, tile, 0u, threshold, thread);
            } else if threshold != NO_TIME {
                race_list_groups(course, tile, threshold + 1u, atomicLoad(&race_bar), thread);
            }
            workgroupBarrier();
            let listed = race_count(thread, atomicLoad(&race_listed));
            for (var first = 0u; first < listed; first += teams) {
                if first + team < listed {
                    let group = race_list[first + team];
                    let time = race_time(course.draw, group, thread);
                    if time != NO_TIME && time <= atomicLoad(&race_bar) {
                        let place = atomicAdd(&race_found, 1u);
                        race_times[place] = time;
                        race_tokens[place] = group * RACE_GROUP + thread % RACE_GROUP;
                    }
                }
                workgroupBarrier();
                if race_count(thread, atomicLoad(&race_found)) > RACE_FOUND - WIDE {
                    _ = race_settle(most, thread);
                }
            }
            if thread == 0u {
                atomicStore(&race_listed, 0u);
            }
            workgroupBarrier();
        }
    }
    return race_settle(most, thread);
}
