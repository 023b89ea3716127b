// Every shader's uniform struct `Params`, at @binding(0), begins with `at: At`. The host writes
// there the index of each region's first element in its binding, in elements of its dtype. Bindings
// start at multiples of 256 bytes, regions anywhere.

struct At {
    b1: u32,
    b2: u32,
    b3: u32,
    b4: u32,
    b5: u32,
    b6: u32,
    b7: u32,
    b8: u32,
    // Always 0, but no compiler knows this value: see exact.wgsl.
    zero: u32,
    // The number of workgroups of this dispatch; workgroups beyond it have nothing to do.
    groups: u32,
    unused1: u32,
    unused2: u32,
}

// The number of a workgroup, over one dimension or two.
fn group_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}
