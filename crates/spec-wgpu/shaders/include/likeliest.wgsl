//!include select
// The likeliest tokens of a row: the first tokens in the order of their keys (sort_key, descending,
// the lower index first among equals), found by one workgroup.
//
// To find n tokens, it suffices to look at the n groups of 64 tokens with the largest keys: each of
// these groups has a token that comes before all tokens of any other group. So there are two
// selections: of n groups, then of n among 64 n tokens.
//
// The including shader declares WIDE, the number of threads of its workgroup; LIKELIEST, the
// largest n; and two functions about the current row, which give a key of 0 for an absent entry:
//
// * likeliest_maximum(group): the largest key of a group's tokens, below params.groups;
// * likeliest_key(token): the key of a token, which may be beyond the vocabulary.

// The selected groups stand in no particular order. `likeliest` leaves the selected tokens and their
// keys in the order of the keys.
var<workgroup> likeliest_groups: array<u32, LIKELIEST>;
var<workgroup> likeliest_keys: array<u32, LIKELIEST>;
var<workgroup> likeliest_tokens: array<u32, LIKELIEST>;
var<workgroup> likeliest_listed: atomic<u32>;
var<workgroup> likeliest_known: Selection;
var<workgroup> likeliest_size: u32;

// Entry i of the selection among groups, or among the tokens of the selected groups: key and index.
fn likeliest_entry(of_groups: bool, i: u32) -> vec2<u32> {
    if of_groups {
        return vec2(likeliest_maximum(i), i);
    }
    let token = likeliest_groups[i / 64u] * 64u + i % 64u;
    return vec2(likeliest_key(token), token);
}

// The cut that keeps `wanted` of `size` entries: all larger keys, and the cut's own key up to an
// index. Every thread must call this function.
fn likeliest_cut(of_groups: bool, size: u32, wanted: u32, thread: u32) -> vec2<u32> {
    workgroupBarrier();
    if thread == 0u {
        likeliest_known = Selection(1u, 0u, 0u, vec2(0u, 0u), vec2(wanted, 0u));
    }
    for (var round = 0u; round < ROUNDS; round++) {
        let known = workgroupUniformLoad(&likeliest_known);
        if known.running == 0u {
            return vec2(known.key, known.index);
        }
        clear_bins(thread);
        var run = Run(SELECT_BINS, vec2(0u, 0u));
        for (var i = thread; i < size; i += WIDE) {
            let entry = likeliest_entry(of_groups, i);
            let bin = bin_of(round, known, entry.x, entry.y);
            if bin < SELECT_BINS {
                add_to_run(&run, bin, vec2(1u, 0u));
            }
        }
        end_run(&run);
        let found = pick_bin(thread, known.above, known.limit);
        if thread == 0u {
            var next = narrowed(round, known, found);
            if found.bin == SELECT_BINS {
                // All entries stay.
                next = Selection(0u, 0u, 0xffffffffu, known.above, known.limit);
            } else if round + 1u == KEY_ROUNDS
                && u64_add(found.above, found.within).x == wanted {
                // All entries with this key stay.
                next.running = 0u;
                next.index = 0xffffffffu;
            }
            likeliest_known = next;
        }
    }
    let known = workgroupUniformLoad(&likeliest_known);
    return vec2(known.key, known.index);
}

// Lists the entries that a cut keeps; returns their number. Every thread must call this function.
fn likeliest_list(of_groups: bool, size: u32, cut: vec2<u32>, thread: u32) -> u32 {
    if thread == 0u {
        atomicStore(&likeliest_listed, 0u);
    }
    workgroupBarrier();
    for (var i = thread; i < size; i += WIDE) {
        let entry = likeliest_entry(of_groups, i);
        let stays = entry.x > cut.x || (entry.x == cut.x && entry.y <= cut.y);
        if stays && entry.x != 0u {
            let place = atomicAdd(&likeliest_listed, 1u);
            likeliest_tokens[place] = entry.y;
            likeliest_keys[place] = entry.x;
        }
    }
    workgroupBarrier();
    if thread == 0u {
        likeliest_size = atomicLoad(&likeliest_listed);
    }
    return workgroupUniformLoad(&likeliest_size);
}

// Finds the first `wanted` tokens (at most LIKELIEST, and at most WIDE) and returns their number;
// they are then the first of `likeliest_tokens`. Every thread must call this function.
fn likeliest(wanted: u32, thread: u32) -> u32 {
    let cut_of_groups = likeliest_cut(true, params.groups, wanted, thread);
    let groups = likeliest_list(true, params.groups, cut_of_groups, thread);
    if thread < groups {
        likeliest_groups[thread] = likeliest_tokens[thread];
    }
    workgroupBarrier();
    let cut = likeliest_cut(false, groups * 64u, wanted, thread);
    let size = likeliest_list(false, groups * 64u, cut, thread);
    var key = 0u;
    var token = 0u;
    var place = size;
    if thread < size {
        key = likeliest_keys[thread];
        token = likeliest_tokens[thread];
        place = 0u;
        for (var i = 0u; i < size; i++) {
            let other = likeliest_keys[i];
            if other > key || (other == key && likeliest_tokens[i] < token) {
                place += 1u;
            }
        }
    }
    workgroupBarrier();
    if place < size {
        likeliest_keys[place] = key;
        likeliest_tokens[place] = token;
    }
    workgroupBarrier();
    return size;
}
