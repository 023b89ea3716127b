//!include race_first
// The first so many to finish of a race, by one workgroup: as race_first.wgsl, with the last of
// those as the bar.

// The most of them, and with what all tokens that are listed may add.
const MOST_DRAWS = 64u;
const RACE_FOUND = MOST_DRAWS + RACE_TOKENS;

// Times and tokens found so far: of those that count in the end, none is missing. Sorted,
// after `race_settle`.
var<workgroup> found_times: array<u32, RACE_FOUND>;
var<workgroup> found_tokens: array<u32, RACE_FOUND>;
var<workgroup> race_found: atomic<u32>;

// How many found ones come before one.
fn race_place(found: u32, one: vec2<u32>) -> u32 {
    var place = 0u;
    for (var i = 0u; i < found; i++) {
        let time = found_times[i];
        if time < one.x || (time == one.x && found_tokens[i] < one.y) {
            place += 1u;
        }
    }
    return place;
}

// Sorts what was found, keeps the first so many and moves the bar. Gives how many there are.
// Every thread calls it.
fn race_settle(most: u32, thread: u32) -> u32 {
    let found = race_for_all(atomicLoad(&race_found), thread);
    // The found ones of a thread, WIDE apart.
    const EACH_FOUND = (RACE_FOUND + 127u) / 128u;
    var own = array<vec3<u32>, EACH_FOUND>();
    var count = 0u;
    for (var i = thread; i < found; i += WIDE) {
        let one = vec2(found_times[i], found_tokens[i]);
        let place = race_place(found, one);
        if place < most {
            own[count] = vec3(place, one);
            count += 1u;
        }
    }
    workgroupBarrier();
    for (var k = 0u; k < count; k++) {
        let one = own[k];
        found_times[one.x] = one.y;
        found_tokens[one.x] = one.z;
        if one.x + 1u == most {
            atomicStore(&race_bar, one.y);
        }
    }
    if thread == 0u {
        atomicStore(&race_found, min(found, most));
    }
    workgroupBarrier();
    return min(found, most);
}

// Finds times of the tokens that are listed. Every thread calls it.
fn race_find(draw: Draw, most: u32, thread: u32) {
    let tokens = race_for_all(atomicLoad(&race_token_count), thread);
    for (var i = thread; i < tokens; i += WIDE) {
        let time = race_time(draw, race_tokens[i]);
        if time != NO_TIME && time <= atomicLoad(&race_bar) {
            let place = atomicAdd(&race_found, 1u);
            found_times[place] = time;
            found_tokens[place] = race_tokens[i];
        }
    }
    if thread == 0u {
        atomicStore(&race_token_count, 0u);
    }
    workgroupBarrier();
    _ = race_settle(most, thread);
}

// Finds the first `most` to finish: how many there are, which are then the first of `found_tokens`.
// Every thread calls it, with the same course.
fn race_many(course: Course, most: u32, thread: u32) -> u32 {
    let team = thread / RACE_GROUP;
    let teams = WIDE / RACE_GROUP;
    let early = race_begin(course, NO_TIME, thread);
    if thread == 0u {
        atomicStore(&race_found, 0u);
    }
    // The last of so many early ones is the bar.
    if thread < 2u * RACE_SLICES {
        found_times[thread] = early;
        found_tokens[thread] = thread;
    }
    workgroupBarrier();
    if thread < 2u * RACE_SLICES && early != NO_TIME {
        if race_place(2u * RACE_SLICES, vec2(early, thread)) + 1u == most {
            atomicStore(&race_bar, early);
        }
    }
    workgroupBarrier();
    var cursor = race_cursor(course, thread);
    loop {
        race_list(course, &cursor);
        workgroupBarrier();
        let listed = race_for_all(atomicLoad(&race_group_count), thread);
        let count = min(listed, RACE_LIST);
        for (var first = 0u; first < count; first += teams) {
            if first + team < count {
                let token = race_groups[first + team] * RACE_GROUP + thread % RACE_GROUP;
                // All fit.
                _ = race_keep(first + team, token, race_entry(token));
            }
            workgroupBarrier();
            if race_for_all(atomicLoad(&race_token_count), thread) > RACE_TOKENS - WIDE {
                race_find(course.draw, most, thread);
            }
        }
        race_find(course.draw, most, thread);
        if listed <= RACE_LIST {
            break;
        }
        if thread == 0u {
            atomicStore(&race_group_count, 0u);
        }
        workgroupBarrier();
    }
    return race_for_all(atomicLoad(&race_found), thread);
}
