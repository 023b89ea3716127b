// The passes of suffix_lookup that find the windows of the longest match: `scan_own`,
// `scan_corpus`, `number` and `list`. This file is a part of that shader and uses its declarations.

// ---- passes 2 and 3 -------------------------------------------------------------

// Of each request: the longest match that ends in the tile, and how many windows have it.
var<workgroup> longest_of: array<atomic<u32>, REQUESTS>;
var<workgroup> count_of: array<atomic<u32>, REQUESTS>;

// The length of the match that ends at `place` of the tile's text, whose token there is `token`; 0
// for none.
fn match_of(row: u32, in_corpus: bool, place: u32, token: vec2<u32>) -> u32 {
    // A pattern shorter than a match must be, or a last token that is negative, matches nowhere.
    if load(row, PATTERN) < params.min_match || load(row, LAST_LOW) != token.x ||
        load(row, LAST_HIGH) != token.y {
        return 0u;
    }
    return match_at(row, in_corpus, place, load(row, LENGTH));
}

// Notes the tile `tile` of a text for the requests from `row0` to `row1`, REQUESTS at most. `note`
// is the number of the tile's note.
fn scan(row0: u32, row1: u32, in_corpus: bool, tile: u32, note: u32, thread: u32) {
    if thread < REQUESTS {
        atomicStore(&longest_of[thread], 0u);
        atomicStore(&count_of[thread], 0u);
    }
    workgroupBarrier();
    let length = load(row0, select(LENGTH, CORPUS, in_corpus));
    var own: array<vec2<u32>, OWN>;
    for (var i = 0u; i < OWN; i++) {
        let place = tile * TILE + i * THREADS + thread;
        // A negative token equals no last token that counts.
        own[i] = vec2(NONE);
        if place < length {
            own[i] = token_at(row0, in_corpus, place);
        }
    }
    for (var row = row0; row < row1; row++) {
        var longest = 0u;
        for (var i = 0u; i < OWN; i++) {
            let place = tile * TILE + i * THREADS + thread;
            longest = max(longest, match_of(row, in_corpus, place, own[i]));
        }
        if longest > 0u {
            atomicMax(&longest_of[row - row0], longest);
        }
    }
    workgroupBarrier();
    for (var row = row0; row < row1; row++) {
        let longest = atomicLoad(&longest_of[row - row0]);
        if longest == 0u {
            continue;
        }
        for (var i = 0u; i < OWN; i++) {
            let place = tile * TILE + i * THREADS + thread;
            if match_of(row, in_corpus, place, own[i]) == longest {
                atomicAdd(&count_of[row - row0], 1u);
            }
        }
    }
    workgroupBarrier();
    if thread < row1 - row0 {
        let longest = atomicLoad(&longest_of[thread]);
        store(row0 + thread, notes_at() + note, (longest << 16u) | atomicLoad(&count_of[thread]));
    }
}

@compute @workgroup_size(THREADS)
fn scan_own(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups {
        return;
    }
    let row = index / params.own_tiles;
    let tile = index % params.own_tiles;
    scan(row, row + 1u, false, tile, params.own_tiles - 1u - tile, thread);
}

@compute @workgroup_size(THREADS)
fn scan_corpus(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups {
        return;
    }
    let row0 = index / params.corpus_tiles * REQUESTS;
    let tile = index % params.corpus_tiles;
    let row1 = min(row0 + REQUESTS, params.row1 - params.row0);
    let tiles = params.own_tiles + params.corpus_tiles;
    scan(row0, row1, true, tile, tiles - 1u - tile, thread);
}

// ---- passes 4 and 5 -------------------------------------------------------------

var<workgroup> largest_so_far: atomic<u32>;
var<workgroup> broadcast_value: u32;

// A value of the first thread, in all threads.
fn broadcast(value: u32, thread: u32) -> u32 {
    if thread == 0u {
        broadcast_value = value;
    }
    return workgroupUniformLoad(&broadcast_value);
}

// The largest of a value over all threads, in all threads.
fn largest(value: u32, thread: u32) -> u32 {
    if thread == 0u {
        atomicStore(&largest_so_far, 0u);
    }
    workgroupBarrier();
    atomicMax(&largest_so_far, value);
    workgroupBarrier();
    return broadcast(atomicLoad(&largest_so_far), thread);
}

@compute @workgroup_size(THREADS)
fn number(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    if row >= params.at.groups {
        return;
    }
    let tiles = params.own_tiles + params.corpus_tiles;
    var own = 0u;
    for (var tile = thread; tile < tiles; tile += THREADS) {
        own = max(own, load(row, notes_at() + tile) >> 16u);
    }
    let longest = largest(own, thread);
    var windows = 0u;
    for (var base = 0u; base < tiles; base += THREADS) {
        let tile = base + thread;
        var count = 0u;
        if tile < tiles {
            let note = load(row, notes_at() + tile);
            count = select(0u, note & 0xffffu, longest > 0u && note >> 16u == longest);
        }
        let first = windows + scan_exclusive(thread, count);
        if tile < tiles {
            let is_listed = count > 0u && first < params.max_windows;
            store(row, notes_at() + tile, select(NONE, first, is_listed));
        }
        // A sum of all tiles would pass 32 bits no sooner than 2^32 places.
        windows += scan_total();
        workgroupBarrier();
    }
    windows = min(windows, params.max_windows);
    for (var window = thread; window < windows; window += THREADS) {
        store(row, offers_of_windows_at() + window, 0u);
    }
    if thread == 0u {
        store(row, LONGEST, longest);
        store(row, WINDOWS, windows);
    }
}

// A bit for each place of a tile, the last place first: whether a window of the longest match is
// there.
var<workgroup> found: array<atomic<u32>, TILE / 32u>;

@compute @workgroup_size(THREADS)
fn list(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups);
    if index >= params.at.groups {
        return;
    }
    let tiles = params.own_tiles + params.corpus_tiles;
    let row = index / tiles;
    let note = index % tiles;
    let first = broadcast(load(row, notes_at() + note), thread);
    if first == NONE {
        return;
    }
    let in_corpus = note >= params.own_tiles;
    let tile = select(params.own_tiles, tiles, in_corpus) - 1u - note;
    let length = load(row, select(LENGTH, CORPUS, in_corpus));
    let longest = load(row, LONGEST);
    if thread < TILE / 32u {
        atomicStore(&found[thread], 0u);
    }
    workgroupBarrier();
    var own = 0u;
    for (var i = 0u; i < OWN; i++) {
        let place = tile * TILE + i * THREADS + thread;
        var token = vec2(NONE);
        if place < length {
            token = token_at(row, in_corpus, place);
        }
        if match_of(row, in_corpus, place, token) == longest {
            own |= 1u << i;
            let bit = TILE - 1u - (i * THREADS + thread);
            atomicOr(&found[bit / 32u], 1u << (bit % 32u));
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < OWN; i++) {
        if (own >> i & 1u) == 0u {
            continue;
        }
        let bit = TILE - 1u - (i * THREADS + thread);
        var window = first + countOneBits(atomicLoad(&found[bit / 32u]) & ((1u << (bit % 32u)) - 1u));
        for (var word = 0u; word < bit / 32u; word++) {
            window += countOneBits(atomicLoad(&found[word]));
        }
        if window < params.max_windows {
            let end = tile * TILE + i * THREADS + thread + 1u;
            store(row, ends_at() + window, end | select(0u, IN_CORPUS, in_corpus));
        }
    }
}
