// Copies whole parts, to measure the rate that a device's memory reaches.

@group(0) @binding(0) var<storage, read> source: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read_write> copied: array<vec4<u32>>;

// A workgroup copies 1024 vectors; neighbouring threads copy neighbouring vectors.
@compute @workgroup_size(256)
fn copy(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let first = group.x * 1024u + thread;
    for (var i = 0u; i < 4u; i++) {
        copied[first + i * 256u] = source[first + i * 256u];
    }
}
