// Where keys and occurrences of `unique` lie: each tensor in one binding.
//
// (As elements of two words, 64-bit keys made the passes by digits slower on an H200: 5.3 ms
// against 4.1 for 2^24 keys of a Zipf distribution. Keys are therefore read and written as single
// words.)

// The keys as given.
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read_write> area: array<u32>;
@group(0) @binding(5) var<storage, read_write> distinct: array<u32>;
// One u64 per distinct key.
@group(0) @binding(8) var<storage, read_write> counters: array<atomic<u32>>;

fn take_key(source: u32, i: u32) -> Stored {
    if source == KEYS {
        let at = WORDS * (params.at.b1 + i);
        return stored_of(vec2(keys[at], keys[at + WORDS - 1u]));
    }
    if source == AREA {
        let at = WORDS * (params.at.b4 + i);
        return stored_of(vec2(area[at], area[at + WORDS - 1u]));
    }
    let at = WORDS * (params.at.b5 + i);
    return stored_of(vec2(distinct[at], distinct[at + WORDS - 1u]));
}

fn put_key(sink: u32, i: u32, stored: Stored) {
    if sink == AREA {
        let at = WORDS * (params.at.b4 + i);
        area[at] = key_of(stored).x;
        if WORDS == 2u {
            area[at + 1u] = key_of(stored).y;
        }
    } else {
        let at = WORDS * (params.at.b5 + i);
        distinct[at] = key_of(stored).x;
        if WORDS == 2u {
            distinct[at + 1u] = key_of(stored).y;
        }
    }
}

fn add_occurrences(i: u32, number: u32) {
    atomicAdd(&counters[params.at.b8 + 2u * i], number);
}

fn clear_occurrences(i: u32) {
    atomicStore(&counters[params.at.b8 + 2u * i], 0u);
    atomicStore(&counters[params.at.b8 + 2u * i + 1u], 0u);
}
