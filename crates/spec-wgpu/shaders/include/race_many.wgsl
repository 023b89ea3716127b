//!include race_first
// Finds the first tokens to finish a race, by one workgroup: as race_first.wgsl, but the time of
// the last of these tokens is the bar. The workgroup has MANY_WIDE threads.

// The largest number of such tokens, plus all tokens that may be listed at once.
const RACE_FOUND = MAX_DRAWS + 3u * MANY_WIDE;

// The times and tokens found so far; no token of the final result is lost. Sorted after
// `race_settle`.
var<workgroup> found_times: array<u32, RACE_FOUND>;
var<workgroup> found_tokens: array<u32, RACE_FOUND>;
var<workgroup> race_found: atomic<u32>;

// The number of found tokens that finish before `one`.
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

// Sorts the found tokens, keeps the first `wanted` and moves the bar. Every thread must call this
// function.
fn race_settle(wanted: u32, thread: u32) {
    let found = race_for_all(atomicLoad(&race_found), thread);
    // The tokens of this thread that stay.
    var own = array<vec3<u32>, 4>();
    var count = 0u;
    for (var i = thread; i < found; i += WIDE) {
        let one = vec2(found_times[i], found_tokens[i]);
        let place = race_place(found, one);
        if place < wanted {
            own[count] = vec3(place, one);
            count += 1u;
        }
    }
    workgroupBarrier();
    for (var k = 0u; k < count; k++) {
        let one = own[k];
        found_times[one.x] = one.y;
        found_tokens[one.x] = one.z;
        if one.x + 1u == wanted {
            atomicStore(&race_bar, one.y);
        }
    }
    if thread == 0u {
        atomicStore(&race_found, min(found, wanted));
    }
    workgroupBarrier();
}

// Finds the first `wanted` tokens to finish and returns their number; they are then the first of
// `found_tokens`. Every thread must call this function, with the same course.
fn race_many(course: Course, wanted: u32, thread: u32) -> u32 {
    if thread == 0u {
        atomicStore(&race_found, 0u);
    }
    race_begin(course, NO_TIME, thread);
    var early = true;
    var progress = race_progress(course, thread);
    loop {
        let tokens = atomicLoad(&race_token_count);
        for (var i = thread; i < tokens; i += WIDE) {
            let time = race_time(course.draw, race_tokens[i]);
            if time != NO_TIME && time <= atomicLoad(&race_bar) {
                let place = atomicAdd(&race_found, 1u);
                found_times[place] = time;
                found_tokens[place] = race_tokens[i];
            }
        }
        workgroupBarrier();
        race_settle(wanted, thread);
        if early && thread == 0u {
            // The tokens that made the bar are found again.
            atomicStore(&race_found, 0u);
        }
        early = false;
        if !race_next(course, &progress, thread) {
            break;
        }
    }
    return race_for_all(atomicLoad(&race_found), thread);
}
