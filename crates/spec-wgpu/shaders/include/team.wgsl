//!include bound
// Teams: LANES threads of a workgroup that reduce values among themselves. This form needs no
// optional feature: each reduction takes a fresh word of workgroup memory, one atomic per thread
// and one barrier, so every thread of the workgroup must take part. team_subgroups.wgsl does the
// same with subgroups.
//
// The including shader declares LANES, TEAMS, SLOTS (the largest number of reductions per team) and
// TEAM_WORDS (TEAMS * SLOTS) as overrides, has workgroups of LANES * TEAMS threads, and calls
// team_begin first.

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
}

var<workgroup> team_words: array<atomic<u32>, TEAM_WORDS>;
var<private> team_lane: u32;
var<private> team_index: u32;
var<private> team_next: u32;

fn team_begin(me: Invocation) {
    team_lane = me.thread % LANES;
    team_index = me.thread / LANES;
    team_next = team_index * SLOTS;
    for (var i = me.thread; i < TEAM_WORDS; i += LANES * TEAMS) {
        atomicStore(&team_words[i], 0u);
    }
    workgroupBarrier();
}

fn team_max(value: u32) -> u32 {
    let slot = team_next;
    team_next += 1u;
    atomicMax(&team_words[slot], value);
    workgroupBarrier();
    return atomicLoad(&team_words[slot]);
}

fn team_min(value: u32) -> u32 {
    return ~team_max(~value);
}

fn team_add(value: u32) -> u32 {
    let slot = team_next;
    team_next += 1u;
    atomicAdd(&team_words[slot], value);
    workgroupBarrier();
    return atomicLoad(&team_words[slot]);
}
