// Where keys and occurrences of `unique` lie: tensors are larger than a binding, and a dispatch has
// one window to read and one to write. The dispatch leaves other windows alone.

// The keys as given.
@group(0) @binding(1) var<storage, read> keys: array<u32>;
// The windows of the tensors `area` and `distinct` that the dispatch reads.
@group(0) @binding(2) var<storage, read_write> area_in: array<u32>;
@group(0) @binding(3) var<storage, read_write> distinct_in: array<u32>;
// The windows of the same tensors that the dispatch writes.
@group(0) @binding(4) var<storage, read_write> area: array<u32>;
@group(0) @binding(5) var<storage, read_write> distinct: array<u32>;
// One u64 per distinct key.
@group(0) @binding(8) var<storage, read_write> counters: array<atomic<u32>>;

fn take_key(source: u32, i: u32) -> Stored {
    let j = i - params.bound;
    if source == KEYS {
        let at = WORDS * (params.at.b1 + j);
        return stored_of(vec2(keys[at], keys[at + WORDS - 1u]));
    }
    if source == AREA {
        let at = WORDS * (params.at.b2 + j);
        return stored_of(vec2(area_in[at], area_in[at + WORDS - 1u]));
    }
    let at = WORDS * (params.at.b3 + j);
    return stored_of(vec2(distinct_in[at], distinct_in[at + WORDS - 1u]));
}

fn put_key(sink: u32, i: u32, stored: Stored) {
    // An index below `to` wraps to a large number.
    let to = i - params.to;
    if to >= params.to_len {
        return;
    }
    if sink == AREA {
        let at = WORDS * (params.at.b4 + to);
        area[at] = key_of(stored).x;
        if WORDS == 2u {
            area[at + 1u] = key_of(stored).y;
        }
    } else {
        let at = WORDS * (params.at.b5 + to);
        distinct[at] = key_of(stored).x;
        if WORDS == 2u {
            distinct[at + 1u] = key_of(stored).y;
        }
    }
}

fn add_occurrences(i: u32, number: u32) {
    let to = i - params.to;
    if to < params.to_len {
        atomicAdd(&counters[params.at.b8 + 2u * to], number);
    }
}

fn clear_occurrences(i: u32) {
    let to = i - params.to;
    atomicStore(&counters[params.at.b8 + 2u * to], 0u);
    atomicStore(&counters[params.at.b8 + 2u * to + 1u], 0u);
}
