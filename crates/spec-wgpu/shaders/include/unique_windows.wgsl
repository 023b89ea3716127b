// Where keys and occurrences of `unique` lie: tensors are larger than a binding, and up to four
// windows of each tensor are bound. All windows but the last have `params.window` keys. Windows
// start at multiples of a binding's alignment, so that `params.at` of a tensor's first window holds
// for all of its windows.

// The keys as given.
@group(0) @binding(1) var<storage, read> keys: array<Stored>;
@group(0) @binding(9) var<storage, read> keys_1: array<Stored>;
@group(0) @binding(10) var<storage, read> keys_2: array<Stored>;
@group(0) @binding(11) var<storage, read> keys_3: array<Stored>;
@group(0) @binding(4) var<storage, read_write> area: array<Stored>;
@group(0) @binding(12) var<storage, read_write> area_1: array<Stored>;
@group(0) @binding(13) var<storage, read_write> area_2: array<Stored>;
@group(0) @binding(14) var<storage, read_write> area_3: array<Stored>;
@group(0) @binding(5) var<storage, read_write> distinct: array<Stored>;
@group(0) @binding(15) var<storage, read_write> distinct_1: array<Stored>;
@group(0) @binding(16) var<storage, read_write> distinct_2: array<Stored>;
@group(0) @binding(17) var<storage, read_write> distinct_3: array<Stored>;
// One u64 per distinct key.
@group(0) @binding(8) var<storage, read_write> counters: array<atomic<u32>>;
@group(0) @binding(18) var<storage, read_write> counters_1: array<atomic<u32>>;
@group(0) @binding(19) var<storage, read_write> counters_2: array<atomic<u32>>;
@group(0) @binding(20) var<storage, read_write> counters_3: array<atomic<u32>>;

fn take_from_keys(i: u32) -> Stored {
    if i < params.window {
        return keys[params.at.b1 + i];
    }
    if i < 2u * params.window {
        return keys_1[params.at.b1 + i - params.window];
    }
    if i < 3u * params.window {
        return keys_2[params.at.b1 + i - 2u * params.window];
    }
    return keys_3[params.at.b1 + i - 3u * params.window];
}

fn take_from_area(i: u32) -> Stored {
    if i < params.window {
        return area[params.at.b4 + i];
    }
    if i < 2u * params.window {
        return area_1[params.at.b4 + i - params.window];
    }
    if i < 3u * params.window {
        return area_2[params.at.b4 + i - 2u * params.window];
    }
    return area_3[params.at.b4 + i - 3u * params.window];
}

fn take_from_distinct(i: u32) -> Stored {
    if i < params.window {
        return distinct[params.at.b5 + i];
    }
    if i < 2u * params.window {
        return distinct_1[params.at.b5 + i - params.window];
    }
    if i < 3u * params.window {
        return distinct_2[params.at.b5 + i - 2u * params.window];
    }
    return distinct_3[params.at.b5 + i - 3u * params.window];
}

fn take_key(source: u32, i: u32) -> Stored {
    if source == KEYS {
        return take_from_keys(i);
    }
    if source == AREA {
        return take_from_area(i);
    }
    return take_from_distinct(i);
}

fn put_in_area(i: u32, stored: Stored) {
    if i < params.window {
        area[params.at.b4 + i] = stored;
    } else if i < 2u * params.window {
        area_1[params.at.b4 + i - params.window] = stored;
    } else if i < 3u * params.window {
        area_2[params.at.b4 + i - 2u * params.window] = stored;
    } else {
        area_3[params.at.b4 + i - 3u * params.window] = stored;
    }
}

fn put_in_distinct(i: u32, stored: Stored) {
    if i < params.window {
        distinct[params.at.b5 + i] = stored;
    } else if i < 2u * params.window {
        distinct_1[params.at.b5 + i - params.window] = stored;
    } else if i < 3u * params.window {
        distinct_2[params.at.b5 + i - 2u * params.window] = stored;
    } else {
        distinct_3[params.at.b5 + i - 3u * params.window] = stored;
    }
}

fn put_key(sink: u32, i: u32, stored: Stored) {
    if sink == AREA {
        put_in_area(i, stored);
    } else {
        put_in_distinct(i, stored);
    }
}

fn add_occurrences(i: u32, number: u32) {
    if i < params.window {
        atomicAdd(&counters[params.at.b8 + 2u * i], number);
    } else if i < 2u * params.window {
        atomicAdd(&counters_1[params.at.b8 + 2u * (i - params.window)], number);
    } else if i < 3u * params.window {
        atomicAdd(&counters_2[params.at.b8 + 2u * (i - 2u * params.window)], number);
    } else {
        atomicAdd(&counters_3[params.at.b8 + 2u * (i - 3u * params.window)], number);
    }
}

fn clear_occurrences(i: u32) {
    if i < params.window {
        atomicStore(&counters[params.at.b8 + 2u * i], 0u);
        atomicStore(&counters[params.at.b8 + 2u * i + 1u], 0u);
    } else if i < 2u * params.window {
        atomicStore(&counters_1[params.at.b8 + 2u * (i - params.window)], 0u);
        atomicStore(&counters_1[params.at.b8 + 2u * (i - params.window) + 1u], 0u);
    } else if i < 3u * params.window {
        atomicStore(&counters_2[params.at.b8 + 2u * (i - 2u * params.window)], 0u);
        atomicStore(&counters_2[params.at.b8 + 2u * (i - 2u * params.window) + 1u], 0u);
    } else {
        atomicStore(&counters_3[params.at.b8 + 2u * (i - 3u * params.window)], 0u);
        atomicStore(&counters_3[params.at.b8 + 2u * (i - 3u * params.window) + 1u], 0u);
    }
}
