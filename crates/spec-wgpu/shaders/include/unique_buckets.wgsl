// `unique` by buckets: one or two partitions move the keys to buckets that fit workgroup memory;
// there each bucket is sorted. Distinct keys need no stable order, so a tile does not depend on the
// tiles before it: a tile reserves room for its keys of each digit by one atomic addition. This
// file is a part of that shader and uses its declarations. It has what the dispatches share: the
// table, the map from keys to buckets, loads. Three more files have the dispatches:
//
// unique_survey.wgsl
//   survey            reads the keys once: their range, which bits vary, whether they ascend
//   choose            one workgroup: finds a map from keys to buckets that cover equal shares of
//                     the range of a sample, unless the keys bunch within this range
// unique_partition.wgsl
//   count_firsts      counts the keys with each first digit of a bucket's number
//   arrange_firsts    one workgroup: finds where each first digit begins
//   partition_first   a workgroup per tile: moves keys to their first digits
//   count_seconds, arrange, partition_second
//                     count, arrange and move the keys by their second digits; all keys of a tile
//                     have one first digit. If a bucket has more keys than workgroup memory holds,
//                     `unique` sorts the keys by digits instead
// unique_sort_buckets.wgsl
//   sort_buckets      a workgroup per bucket: spreads the keys over bins that cover equal shares of
//                     the bucket's range, and orders the few keys of each bin; where a bin has many
//                     keys, sorts the whole bucket by a network
//
// Where there are few buckets, their numbers have one digit, the first. Bytes moved: the keys 3
// times per partition, and twice to sort.

// Loads of four keys that a thread makes for a tile or a bucket.
override FOURS: u32 = 1u;
// The number of keys of a tile, and the largest number of keys of a bucket.
override CAPACITY: u32 = 1024u;
// Room for the digits of a partition, a multiple of THREADS.
override SPLIT: u32 = 256u;
// The number of bins of a bucket, a power of two, and the shift from 32 bits to a bin's number.
override BINS: u32 = 512u;
override BIN_SHIFT: u32 = 23u;

// The table, word by word: [buckets] the number of keys of each, later where its next key goes; the
// same for [first digits], CELL_STRIDE words apart; [first digits + 1] the tiles before each;
// [surveys] lowest and highest key.
@group(0) @binding(6) var<storage, read_write> cells: array<atomic<u32>>;

fn first_cells() -> u32 {
    return params.at.b6 + params.buckets;
}

fn tile_cells() -> u32 {
    return first_cells() + CELL_STRIDE * params.firsts;
}

fn extreme_cells() -> u32 {
    return tile_cells() + params.firsts + 1u;
}

// The map from keys to buckets: key - low, cut to `width` and shifted to 32 bits, times `scale` is
// a fixed-point number. Its integer part is the bucket, its fraction the place in the bucket.
struct Map {
    low: vec2<u32>,
    width: vec2<u32>,
    shift: u32,
    scale: u32,
}

fn load_map() -> Map {
    let at = params.at.b7 + MAP;
    let low = vec2(state[at], state[at + 1u]);
    let width = vec2(state[at + 2u], state[at + 3u]);
    return Map(low, width, state[at + 4u], state[at + 5u]);
}

fn shifted(from_low: vec2<u32>, shift: u32) -> u32 {
    if shift == 32u {
        return from_low.y;
    }
    return ((from_low.y << 1u) << (31u - shift)) | (from_low.x >> shift);
}

// The place in the bucket, and the bucket.
fn bucket_of(map: Map, key: vec2<u32>) -> vec2<u32> {
    let order = ordered(key, params.sign);
    var from_low = u64_sub(order, map.low);
    if u64_less(map.width, from_low) {
        from_low = select(map.width, vec2(0u), u64_less(order, map.low));
    }
    return u32_mul(shifted(from_low, map.shift), map.scale);
}

// floor(2^32 * parts / (top + 1)) for parts <= top.
fn scale_of(parts: u32, top: u32) -> u32 {
    var rest = parts;
    var scale = 0u;
    for (var bit = 0u; bit < 32u; bit++) {
        let carry = (rest >> 31u) == 1u;
        rest <<= 1u;
        scale <<= 1u;
        if carry || rest > top {
            rest -= top + 1u;
            scale |= 1u;
        }
    }
    return scale;
}

struct Four {
    low: vec4<u32>,
    high: vec4<u32>,
}

// Keys `at`, `at + THREADS` and so on of the `len` keys from `first` on; the last key replaces keys
// past the end. All four loads are in flight together.
fn load_four(source: u32, first: u32, at: u32, len: u32) -> Four {
    let last = len - 1u;
    let a = key_of(take_key(source, first + min(at, last)));
    let b = key_of(take_key(source, first + min(at + THREADS, last)));
    let c = key_of(take_key(source, first + min(at + 2u * THREADS, last)));
    let d = key_of(take_key(source, first + min(at + 3u * THREADS, last)));
    return Four(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y));
}

// Extremes of no key at all: `wider` with other extremes gives those.
const NO_KEYS = vec4<u32>(0xffffffffu, 0xffffffffu, 0u, 0u);
