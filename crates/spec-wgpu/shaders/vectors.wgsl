//!include bound
// Copies up to seven small vectors into one buffer, or out of it.
//
// For operators with more vectors of [batch] than a stage has bindings. One
// thread a word of the packed buffer; vector v lies there from word
// params.start[v] on. Bytes moved: twice those of the vectors, which are small.

struct Params {
    at: At,
    // First word of each vector in the packed buffer; the eighth is the end.
    start: array<vec4<u32>, 2>,
}

@group(0) @binding(0) var<uniform> params: Params;

@group(0) @binding(1) var<storage, read_write> packed: array<u32>;

@group(0) @binding(2) var<storage, read> in1: array<u32>;
@group(0) @binding(3) var<storage, read> in2: array<u32>;
@group(0) @binding(4) var<storage, read> in3: array<u32>;
@group(0) @binding(5) var<storage, read> in4: array<u32>;
@group(0) @binding(6) var<storage, read> in5: array<u32>;
@group(0) @binding(7) var<storage, read> in6: array<u32>;
@group(0) @binding(8) var<storage, read> in7: array<u32>;

@group(0) @binding(2) var<storage, read_write> out1: array<u32>;
@group(0) @binding(3) var<storage, read_write> out2: array<u32>;
@group(0) @binding(4) var<storage, read_write> out3: array<u32>;
@group(0) @binding(5) var<storage, read_write> out4: array<u32>;
@group(0) @binding(6) var<storage, read_write> out5: array<u32>;
@group(0) @binding(7) var<storage, read_write> out6: array<u32>;
@group(0) @binding(8) var<storage, read_write> out7: array<u32>;

fn start(v: u32) -> u32 {
    return params.start[v >> 2u][v & 3u];
}

// The vector that word `i` of the packed buffer belongs to; 7 for none.
fn vector_of(i: u32) -> u32 {
    var v = 0u;
    while v < 7u && i >= start(v + 1u) {
        v++;
    }
    return v;
}

@compute @workgroup_size(256)
fn gather(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * 256u + thread;
    let v = vector_of(i);
    if v == 7u {
        return;
    }
    let j = i - start(v);
    var word = 0u;
    switch v {
        case 0u: { word = in1[params.at.b2 + j]; }
        case 1u: { word = in2[params.at.b3 + j]; }
        case 2u: { word = in3[params.at.b4 + j]; }
        case 3u: { word = in4[params.at.b5 + j]; }
        case 4u: { word = in5[params.at.b6 + j]; }
        case 5u: { word = in6[params.at.b7 + j]; }
        default: { word = in7[params.at.b8 + j]; }
    }
    packed[params.at.b1 + i] = word;
}

@compute @workgroup_size(256)
fn scatter(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let i = group_index(group, groups) * 256u + thread;
    let v = vector_of(i);
    if v == 7u {
        return;
    }
    let j = i - start(v);
    let word = packed[params.at.b1 + i];
    switch v {
        case 0u: { out1[params.at.b2 + j] = word; }
        case 1u: { out2[params.at.b3 + j] = word; }
        case 2u: { out3[params.at.b4 + j] = word; }
        case 3u: { out4[params.at.b5 + j] = word; }
        case 4u: { out5[params.at.b6 + j] = word; }
        case 5u: { out6[params.at.b7 + j] = word; }
        default: { out7[params.at.b8 + j] = word; }
    }
}
