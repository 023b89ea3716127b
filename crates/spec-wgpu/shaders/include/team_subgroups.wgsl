//!include bound
// Teams that are subgroups of LANES threads: the functions of team.wgsl, without its barriers.

struct Invocation {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

var<private> team_lane: u32;
var<private> team_index: u32;

fn team_begin(me: Invocation) {
    team_lane = me.lane;
    team_index = me.subgroup;
}

fn team_max(value: u32) -> u32 {
    return subgroupMax(value);
}

fn team_min(value: u32) -> u32 {
    return subgroupMin(value);
}

fn team_add(value: u32) -> u32 {
    return subgroupAdd(value);
}
