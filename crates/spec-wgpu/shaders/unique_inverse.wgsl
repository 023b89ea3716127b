//!include params/unique_inverse
//!include u64
// unique: where each key is among the distinct keys. Runs after the dispatches of unique.wgsl, and only
// where `inverse` is asked for. The host inserts unique_keys_32.wgsl or unique_keys_64.wgsl.
//
// The distinct keys of a window are cut into at most SPLITTERS segments of 2^shift keys each.
// Workgroup memory holds the first key of each segment. A thread looks up one key after the other:
// it finds the segment there, and the distinct key in the segment, both by halving.
//
// Bytes of 2^24 keys: the keys and the inverse once, and 14 distinct keys for each key, of which
// all but the last few lie in a cache.
//
// If keys change during the call, the distinct keys may lack a key: then its place is that of
// another one. Whatever the distinct keys are, a place is a number of one of them.

const SPLITTER_BITS = 10u;
const SPLITTERS = 1024u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// The window of the distinct keys.
@group(0) @binding(2) var<storage, read> distinct: array<u32>;
// How many distinct keys there are in all, a u64.
@group(0) @binding(3) var<storage, read> count: array<u32>;
@group(0) @binding(4) var<storage, read_write> inverse: array<u32>;

fn key_at(i: u32) -> vec2<u32> {
    let at = WORDS * (params.at.b1 + i);
    return ordered(key_of(stored_of(vec2(keys[at], keys[at + WORDS - 1u]))), params.sign);
}

fn distinct_at(i: u32) -> vec2<u32> {
    let at = WORDS * (params.at.b2 + i);
    return ordered(key_of(stored_of(vec2(distinct[at], distinct[at + WORDS - 1u]))), params.sign);
}

// The first key of each segment.
var<workgroup> splitters: array<vec2<u32>, SPLITTERS>;

// How many segments start at or below a key.
fn segments_from(key: vec2<u32>, segments: u32) -> u32 {
    var low = 0u;
    var high = segments;
    while low < high {
        let middle = (low + high) / 2u;
        if u64_less(key, splitters[middle]) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return low;
}

// The last distinct key of low .. high that is not above a key; the first one if all are above.
fn place_in(key: vec2<u32>, first: u32, end: u32) -> u32 {
    var low = first;
    var high = end;
    while low + 1u < high {
        let middle = low + (high - low) / 2u;
        if u64_less(key, distinct_at(middle)) {
            high = middle;
        } else {
            low = middle;
        }
    }
    return low;
}

@compute @workgroup_size(THREADS)
fn find(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    // The distinct keys of the window; there is at least one in the first window.
    let all_keys = count[params.at.b3];
    let beyond = max(all_keys, params.first) - params.first;
    let len = min(max(beyond, select(0u, 1u, params.first == 0u)), params.window);
    if index >= params.at.groups || len == 0u {
        return;
    }
    let shift = max(32u - countLeadingZeros(len - 1u), SPLITTER_BITS) - SPLITTER_BITS;
    let segments = ((len - 1u) >> shift) + 1u;
    for (var i = thread; i < segments; i += THREADS) {
        splitters[i] = distinct_at(i << shift);
    }
    workgroupBarrier();
    for (var row = 0u; row < ROWS; row++) {
        let i = (index * ROWS + row) * THREADS + thread;
        if i >= params.len {
            break;
        }
        let key = key_at(i);
        let from_segments = segments_from(key, segments);
        // A key below the window belongs to an earlier window, unless there is none.
        if from_segments > 0u || params.first == 0u {
            let first = (max(from_segments, 1u) - 1u) << shift;
            let place = params.first + place_in(key, first, min(first + (1u << shift), len));
            let at = params.at.b4 + params.words * i;
            inverse[at] = place;
            if params.words == 2u {
                inverse[at + 1u] = 0u;
            }
        }
    }
}
