// The passes of suffix_lookup that find the windows of the longest match: `scan_own`,
// `scan_corpus`, `number` and `list`. This file is a part of that shader and uses its declarations.

// ---- passes 2 and 3 -------------------------------------------------------------

// Of each request: the longest match that ends in the tile, and how many windows have it.
var<workgroup> longest_of: array<atomic<u32>, REQUESTS>;
var<workgroup> count_of: array<atomic<u32>, REQUESTS>;

// Some places of a text, TILE at most.
struct Tile {
    in_corpus: bool,
    first: u32,
}

// The tile of a note. Notes go from the most recent tile of the request's own text to the first tile
// of the corpus.
fn tile_of(note: u32) -> Tile {
    let tiles = params.own_tiles + params.corpus_tiles;
    let in_corpus = note >= params.own_tiles;
    return Tile(in_corpus, (select(params.own_tiles, tiles, in_corpus) - 1u - note) * TILE);
}

// The token at a place of a tile; a negative one, which equals no last token that counts, behind the
// text's end.
fn tile_token(request: Request, tile: Tile, at: u32) -> vec2<u32> {
    if tile.first + at >= select(request.length, request.corpus, tile.in_corpus) {
        return vec2(NONE);
    }
    return token_at(request, tile.in_corpus, tile.first + at);
}

// The length of the match that ends at a place of a tile, whose token there is `token`; 0 for none.
fn match_with(request: Request, tile: Tile, at: u32, token: vec2<u32>) -> u32 {
    // A pattern shorter than a match must be, or a last token that is negative, matches nowhere.
    if request.pattern < params.min_match || any(request.last != token) {
        return 0u;
    }
    return match_at(request, tile.in_corpus, tile.first + at);
}

fn match_of(request: Request, tile: Tile, at: u32) -> u32 {
    return match_with(request, tile, at, tile_token(request, tile, at));
}

// Notes the tile `tile` of a text for the requests from `row0` to `row1`, REQUESTS at most. `note`
// is the number of the tile's note.
fn scan(row0: u32, row1: u32, note: u32, thread: u32) {
    if thread < REQUESTS {
        atomicStore(&longest_of[thread], 0u);
        atomicStore(&count_of[thread], 0u);
    }
    workgroupBarrier();
    let tile = tile_of(note);
    // One request, or a corpus that is the same for each of them.
    let first = request_of(row0);
    var own: array<vec2<u32>, OWN>;
    for (var i = 0u; i < OWN; i++) {
        own[i] = tile_token(first, tile, i * THREADS + thread);
    }
    for (var row = row0; row < row1; row++) {
        let request = request_of(row);
        var longest = 0u;
        for (var i = 0u; i < OWN; i++) {
            longest = max(longest, match_with(request, tile, i * THREADS + thread, own[i]));
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
        let request = request_of(row);
        for (var i = 0u; i < OWN; i++) {
            if match_with(request, tile, i * THREADS + thread, own[i]) == longest {
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
    scan(row, row + 1u, index % params.own_tiles, thread);
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
    let row1 = min(row0 + REQUESTS, params.row1 - params.row0);
    scan(row0, row1, params.own_tiles + index % params.corpus_tiles, thread);
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
    store_windows(row, longest, min(windows, params.max_windows), thread);
}

// Writes the longest match and how many windows have it. All of them belong to the root.
fn store_windows(row: u32, longest: u32, windows: u32, thread: u32) {
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

// Writes where the windows of a tile end whose matches are the longest, the first of which has the
// number `first`. Returns how many there are, in all threads.
fn list_tile(
    request: Request,
    row: u32,
    tile: Tile,
    longest: u32,
    first: u32,
    thread: u32,
) -> u32 {
    if thread < TILE / 32u {
        atomicStore(&found[thread], 0u);
    }
    workgroupBarrier();
    var own = 0u;
    for (var i = 0u; i < OWN; i++) {
        let at = i * THREADS + thread;
        if match_of(request, tile, at) == longest {
            own |= 1u << i;
            let bit = TILE - 1u - at;
            atomicOr(&found[bit / 32u], 1u << (bit % 32u));
        }
    }
    workgroupBarrier();
    for (var i = 0u; i < OWN; i++) {
        if (own >> i & 1u) == 0u {
            continue;
        }
        let at = i * THREADS + thread;
        let bit = TILE - 1u - at;
        var window = first + countOneBits(atomicLoad(&found[bit / 32u]) & ((1u << (bit % 32u)) - 1u));
        for (var word = 0u; word < bit / 32u; word++) {
            window += countOneBits(atomicLoad(&found[word]));
        }
        if window < params.max_windows {
            let end = tile.first + at + 1u;
            store(row, ends_at() + window, end | select(0u, IN_CORPUS, tile.in_corpus));
        }
    }
    var windows = 0u;
    for (var word = 0u; word < TILE / 32u; word++) {
        windows += countOneBits(atomicLoad(&found[word]));
    }
    return broadcast(windows, thread);
}

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
    if first != NONE {
        let longest = load(row, LONGEST);
        _ = list_tile(request_of(row), row, tile_of(note), longest, first, thread);
    }
}
