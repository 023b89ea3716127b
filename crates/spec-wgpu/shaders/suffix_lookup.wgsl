//!include params/suffix_lookup
//!include params/shared
//!include integers
//!include scan
//!include suffix_windows
// suffix_lookup: drafts from the longest suffix that occurred before, in a request's own text and
// in a corpus that requests share.
//
// Texts lie in windows of rows, and requests in others; where each request has the text of its own
// row, both are the same. Each request of a window has a state, a note for each tile of 1024 places, a list of
// windows, offers and nodes in the workspace. Passes, each its own dispatches:
//
// 1. `prepare`     a thread per request: its text, its length, its last token, how long a match can be.
//                  The following passes leave out requests whose text lies in another window.
// 2. `scan_own`    a workgroup per tile of a request's text: the longest match that ends in the tile,
//                  and how many windows have it.
// 3. `scan_corpus` a workgroup per tile of the corpus and 64 requests: the same for each of these
//                  requests, so that the corpus is read once for 64 requests.
// 4. `number`      a workgroup per request: its longest match, and the number of the first window
//                  with that match in each tile, the most recent window first:
//
//        tiles, most recent first     | 3 x 1 | 5 x 2 | - | 5 x 1 | 4 x 9 |     longest 5
//        numbers of their windows             | 0   1 |   | 2     |
//
// 5. `list`        a workgroup per request and tile: writes where the numbered windows end.
//
//    `look`        passes 1 to 5 in one dispatch, a workgroup per request, where the texts have so few
//                  tiles that a workgroup reads all of them sooner than five dispatches start.
//
// 6. `grow`        a workgroup per request: grows the tree from the windows alone, the best node first.
//                  Several dispatches grow some nodes each where one would make too many turns.
// 7. `finish`      a thread per request and node: writes the drafts and what belongs to them.
// 8. `link`        a thread per request and node: writes first children and next siblings.
//
// Bytes moved: texts once, the corpus once for 64 requests; the floor is this number of bytes over
// the memory's bandwidth.

// Words of a token.
override TOKEN_WORDS: u32 = 1u;
// Words of a draft, which may be wider than a token.
override DRAFT_WORDS: u32 = 1u;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> work: array<atomic<u32>>;
// prepare, look, scan_own, scan_corpus, list, grow
@group(0) @binding(2) var<storage, read> tokens: array<u32>;
// look, scan_corpus, list, grow
@group(0) @binding(3) var<storage, read> corpus: array<u32>;
// prepare, look
@group(0) @binding(4) var<storage, read> lengths: array<u32>;
@group(0) @binding(5) var<storage, read> corpus_length: array<u32>;
@group(0) @binding(6) var<storage, read> requests: array<u32>;
@group(0) @binding(7) var<storage, read> max_drafts: array<i32>;
// finish
@group(0) @binding(2) var<storage, read_write> drafts: array<u32>;
@group(0) @binding(3) var<storage, read_write> counts: array<u32>;
@group(0) @binding(4) var<storage, read_write> parents: array<u32>;
@group(0) @binding(5) var<storage, read_write> shares: array<f32>;
@group(0) @binding(6) var<storage, read_write> match_lengths: array<u32>;
@group(0) @binding(7) var<storage, read_write> flags: array<atomic<u32>>;
// link
@group(0) @binding(2) var<storage, read_write> first_child: array<u32>;
@group(0) @binding(3) var<storage, read_write> next_sibling: array<u32>;

// Places of a tile that a thread looks at.
const OWN = TILE / THREADS;
// Windows of a request that a thread has.
const OWN_WINDOWS = MAX_WINDOWS / THREADS;
// Offers that a thread has: an offer that never becomes one of up to MAX_DRAFTS nodes has windows that
// no other such offer has.
const OWN_OFFERS = (MAX_WINDOWS + MAX_DRAFTS + THREADS - 1u) / THREADS;

// A request's state.
const LENGTH = 0u;
const CORPUS = 1u;
const FLAGS = 2u;
// The last token of the text.
const LAST_LOW = 3u;
const LAST_HIGH = 4u;
// How many tokens a match can have: the text's last tokens down to one that is negative.
const PATTERN = 5u;
const LONGEST = 6u;
const WINDOWS = 7u;
const NODES = 8u;
const OFFERED = 9u;
// The offer that became the last node, counted from 1, and the depth of that node; 0 for the root.
const OFFER = 10u;
const DEPTH = 11u;
// 1 once no offer is left.
const DONE = 12u;
// The row of the request's text in its window; NONE for a request without a text.
const SLOT = 13u;
// The most drafts of the request.
const LIMIT = 14u;
// 1 where the window of texts has the request's text, or is the first one and there is no text.
const HERE = 15u;

// A window in the corpus. Places are below 2^31.
const IN_CORPUS = 0x80000000u;
const NONE = 0xffffffffu;

fn has(bit: u32) -> bool {
    return (params.has & bit) != 0u;
}

// ---- the workspace --------------------------------------------------------------

// `row` is a request's number in the window of rows, here and below.
fn base_of(row: u32) -> u32 {
    return params.at.b1 + row * params.row_words;
}

fn load(row: u32, word: u32) -> u32 {
    return atomicLoad(&work[base_of(row) + word]);
}

fn store(row: u32, word: u32, value: u32) {
    atomicStore(&work[base_of(row) + word], value);
}

// Where parts of a request's words begin, behind its state: a note a tile; where each window ends;
// the offer that each window belongs to, counted from 1, 0 for the root; what each offer is worth,
// 0 once it has become a node; the node and the depth of each offer; the nodes.
fn notes_at() -> u32 {
    return STATE;
}

fn ends_at() -> u32 {
    return notes_at() + params.own_tiles + params.corpus_tiles;
}

fn offers_of_windows_at() -> u32 {
    return ends_at() + params.max_windows;
}

fn worths_at() -> u32 {
    return offers_of_windows_at() + params.max_windows;
}

fn origins_at() -> u32 {
    return worths_at() + params.offers;
}

fn nodes_at() -> u32 {
    return origins_at() + params.offers;
}

// ---- texts ----------------------------------------------------------------------

// What a thread knows of the request that it serves. A thread reads these words of the state once:
// a load of an atomic word costs as long as a miss of the nearest cache, each time.
struct Request {
    // Where the text begins, in tokens of the binding.
    text: u32,
    length: u32,
    corpus: u32,
    // How many tokens a match can have.
    pattern: u32,
    last: vec2<u32>,
}

fn request_of(row: u32) -> Request {
    return Request(
        text_of(load(row, SLOT)),
        load(row, LENGTH),
        load(row, CORPUS),
        load(row, PATTERN),
        vec2(load(row, LAST_LOW), load(row, LAST_HIGH)),
    );
}

// Where the text in row `slot` of the window of texts begins.
fn text_of(slot: u32) -> u32 {
    return params.at.b2 + slot * params.tokens_stride;
}

// The token at `at` of the texts' binding.
fn text_token(at: u32) -> vec2<u32> {
    let word = at * TOKEN_WORDS;
    return integer(tokens[word], tokens[word + TOKEN_WORDS - 1u], TOKEN_WORDS);
}

// A token of a request's text, or of the corpus.
fn token_at(request: Request, in_corpus: bool, place: u32) -> vec2<u32> {
    if in_corpus {
        let at = (params.at.b3 + place) * TOKEN_WORDS;
        return integer(corpus[at], corpus[at + TOKEN_WORDS - 1u], TOKEN_WORDS);
    }
    return text_token(request.text + place);
}

fn is_negative(token: vec2<u32>) -> bool {
    return bitcast<i32>(token.y) < 0;
}

// The length of a window's match, whose last token is at `place`, where the request's last token
// stands; 0 where no window ends behind it.
fn match_at(request: Request, in_corpus: bool, place: u32) -> u32 {
    let text_length = select(request.length, request.corpus, in_corpus);
    if place + 1u >= text_length || is_negative(token_at(request, in_corpus, place + 1u)) {
        return 0u;
    }
    let longest = min(request.pattern, place + 1u);
    let end = request.text + request.length - 1u;
    var n = 1u;
    while n < longest && all(token_at(request, in_corpus, place - n) == text_token(end - n)) {
        n += 1u;
    }
    return select(0u, n, n >= params.min_match);
}

// ---- pass 1 ---------------------------------------------------------------------

// The request, with a pattern as long as the text and `max_match` allow. One thread of each request
// `writes` the request's state, but for PATTERN.
fn describe(row: u32, writes: bool) -> Request {
    let request = params.row0 + row;
    var slot = request;
    if has(HAS_REQUESTS) {
        let words = select(1u, 2u, has(WIDE_REQUESTS));
        let at = (params.at.b6 + request) * words;
        slot = row_of(integer(requests[at], requests[at + words - 1u], words));
    }
    let is_known = slot < params.texts;
    let is_here = slot >= params.slot0 && slot < params.slot1;
    // NONE is -1, which is padding.
    var bits = select(BAD_LENGTHS, 0u, is_known || slot == NONE);
    var length = 0u;
    if is_known {
        let words = params.length_words;
        let at = (params.at.b4 + slot) * words;
        let given = integer(lengths[at], lengths[at + words - 1u], words);
        length = cut_length(given, params.max_len);
        bits |= select(0u, BAD_LENGTHS, is_cut(given, length));
    }
    // The corpus is as long for every request: one workgroup scans it for many.
    var of_corpus = params.corpus_size;
    if has(HAS_CORPUS_LENGTH) {
        let words = params.corpus_length_words;
        let at = params.at.b5 * words;
        let given = integer(corpus_length[at], corpus_length[at + words - 1u], words);
        of_corpus = cut_length(given, params.corpus_size);
        bits |= select(0u, BAD_LENGTHS, is_known && is_cut(given, of_corpus));
    }
    // A text of another window has no tokens here.
    length = select(0u, length, is_here);
    slot = select(NONE, slot - params.slot0, is_here);
    var last = vec2(NONE);
    if length > 0u {
        last = text_token(text_of(slot) + length - 1u);
    }
    var limit = params.n;
    if has(HAS_MAX_DRAFTS) {
        limit = min(limit, u32(max(max_drafts[params.at.b7 + request], 0)));
    }
    if writes {
        store(row, SLOT, slot);
        store(row, LENGTH, length);
        store(row, CORPUS, of_corpus);
        store(row, FLAGS, bits);
        store(row, LAST_LOW, last.x);
        store(row, LAST_HIGH, last.y);
        store(row, NODES, 0u);
        store(row, OFFERED, 0u);
        store(row, OFFER, 0u);
        store(row, DEPTH, 0u);
        store(row, DONE, 0u);
        store(row, LIMIT, limit);
        store(row, HERE, select(0u, 1u, is_here || (!is_known && params.slot0 == 0u)));
    }
    return Request(text_of(slot), length, of_corpus, min(params.max_match, length), last);
}

@compute @workgroup_size(ROW_THREADS)
fn prepare(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups) * 64u + thread;
    if row >= params.row1 - params.row0 {
        return;
    }
    let request = describe(row, true);
    let end = request.text + request.length - 1u;
    var pattern = 0u;
    while pattern < request.pattern && !is_negative(text_token(end - pattern)) {
        pattern += 1u;
    }
    store(row, PATTERN, pattern);
}

// Of the text's last tokens, counted from the end, the first that is negative.
var<workgroup> first_negative: atomic<u32>;

@compute @workgroup_size(THREADS)
fn look(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    if row >= params.at.groups {
        return;
    }
    var request = describe(row, thread == 0u);
    if thread == 0u {
        atomicStore(&first_negative, request.pattern);
    }
    workgroupBarrier();
    // A match has at most 64 tokens, so each thread looks at one of them.
    if thread < request.pattern && is_negative(text_token(request.text + request.length - 1u - thread)) {
        atomicMin(&first_negative, thread);
    }
    workgroupBarrier();
    request.pattern = atomicLoad(&first_negative);
    let tiles = params.own_tiles + params.corpus_tiles;
    var own = 0u;
    for (var note = 0u; note < tiles; note++) {
        let tile = tile_of(note);
        for (var i = 0u; i < OWN; i++) {
            own = max(own, match_of(request, tile, i * THREADS + thread));
        }
    }
    let longest = largest(own, thread);
    var windows = 0u;
    for (var note = 0u; note < tiles && longest > 0u && windows < params.max_windows; note++) {
        windows += list_tile(request, row, tile_of(note), longest, windows, thread);
    }
    windows = min(windows, params.max_windows);
    if thread == 0u {
        store(row, PATTERN, request.pattern);
    }
    store_windows(row, longest, windows, thread);
}

// ---- pass 6 ---------------------------------------------------------------------

// By window: its token at the depth that is looked at, and how many windows have that token, where
// no more recent window has it.
var<workgroup> low_of: array<u32, MAX_WINDOWS>;
var<workgroup> high_of: array<u32, MAX_WINDOWS>;
var<workgroup> followers: array<atomic<u32>, MAX_WINDOWS>;

// What a thread keeps of its windows (every THREADS-th) while nodes grow: where each ends, and the
// offer that it belongs to. The workspace has the same words between dispatches.
var<private> ends: array<u32, OWN_WINDOWS>;
var<private> offers_of_windows: array<u32, OWN_WINDOWS>;
// What a thread keeps of its offers: what each is worth, its node and its depth.
var<private> worths: array<u32, OWN_OFFERS>;
var<private> origins: array<u32, OWN_OFFERS>;

fn read_windows_and_offers(row: u32, windows: u32, offered: u32, thread: u32) {
    for (var i = 0u; i < OWN_WINDOWS; i++) {
        let window = i * THREADS + thread;
        if window < windows {
            ends[i] = load(row, ends_at() + window);
            offers_of_windows[i] = load(row, offers_of_windows_at() + window);
        }
    }
    for (var i = 0u; i < OWN_OFFERS; i++) {
        let offer = i * THREADS + thread;
        if offer < offered {
            worths[i] = load(row, worths_at() + offer);
            origins[i] = load(row, origins_at() + offer);
        }
    }
}

fn write_windows_and_offers(row: u32, windows: u32, offered: u32, thread: u32) {
    for (var i = 0u; i < OWN_WINDOWS; i++) {
        let window = i * THREADS + thread;
        if window < windows {
            store(row, offers_of_windows_at() + window, offers_of_windows[i]);
        }
    }
    for (var i = 0u; i < OWN_OFFERS; i++) {
        let offer = i * THREADS + thread;
        if offer < offered {
            store(row, worths_at() + offer, worths[i]);
            store(row, origins_at() + offer, origins[i]);
        }
    }
}

// The token `depth` places behind the one that follows the match that ends at `end`; negative for
// none.
fn token_behind(request: Request, end: u32, depth: u32) -> vec2<u32> {
    let in_corpus = (end & IN_CORPUS) != 0u;
    let place = (end & ~IN_CORPUS) + depth;
    if place >= select(request.length, request.corpus, in_corpus) {
        return vec2(NONE);
    }
    return token_at(request, in_corpus, place);
}

// Offers the children of a node: of the windows that belong to offer `of_offer`, the tokens at
// `depth`, no more than make `max_nodes` nodes of the `node` that there are. Returns how many offers
// there are then; `offered` is how many there were.
fn offer_children(
    request: Request,
    of_offer: u32,
    node: u32,
    max_nodes: u32,
    depth: u32,
    windows: u32,
    offered: u32,
    thread: u32,
) -> u32 {
    for (var i = 0u; i < OWN_WINDOWS; i++) {
        let window = i * THREADS + thread;
        if window < windows {
            var token = vec2(NONE);
            if offers_of_windows[i] == of_offer {
                token = token_behind(request, ends[i], depth);
            }
            low_of[window] = token.x;
            high_of[window] = token.y;
            atomicStore(&followers[window], 0u);
        }
    }
    workgroupBarrier();
    // The most recent window that has the same token; NONE for a window without a token.
    var firsts: array<u32, OWN_WINDOWS>;
    for (var i = 0u; i < OWN_WINDOWS; i++) {
        firsts[i] = NONE;
        let window = i * THREADS + thread;
        if window < windows && bitcast<i32>(high_of[window]) >= 0 {
            var first = 0u;
            while low_of[first] != low_of[window] || high_of[first] != high_of[window] {
                first += 1u;
            }
            firsts[i] = first;
            atomicAdd(&followers[first], 1u);
        }
    }
    workgroupBarrier();
    var now = offered;
    let wanted = min(params.width, max_nodes - node);
    for (var child = 0u; child < wanted; child++) {
        // More windows first, then the more recent window.
        var own = 0u;
        for (var window = thread; window < windows; window += THREADS) {
            let count = atomicLoad(&followers[window]);
            if count > 0u {
                own = max(own, count << 10u | (MAX_WINDOWS - 1u - window));
            }
        }
        let best = largest(own, thread);
        let count = best >> 10u;
        // Worse children have no larger share.
        if count == 0u || count * 65536u < params.share_floor * windows {
            break;
        }
        let first = MAX_WINDOWS - 1u - (best & (MAX_WINDOWS - 1u));
        for (var i = 0u; i < OWN_WINDOWS; i++) {
            if firsts[i] == first {
                offers_of_windows[i] = now + 1u;
            }
        }
        if thread == now % THREADS {
            let worth = count << 17u | (127u - (depth + 1u)) << 10u | (MAX_WINDOWS - 1u - first);
            worths[now / THREADS] = worth;
            origins[now / THREADS] = node << 8u | (depth + 1u);
        }
        if thread == 0u {
            atomicStore(&followers[first], 0u);
        }
        now += 1u;
        workgroupBarrier();
    }
    return now;
}

// The best offer, counted from 1, and its origin.
var<workgroup> best_offer: vec2<u32>;

@compute @workgroup_size(THREADS)
fn grow(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = group_index(group, groups);
    if row >= params.at.groups {
        return;
    }
    let windows = broadcast(load(row, WINDOWS), thread);
    var nodes = broadcast(load(row, NODES), thread);
    var offered = broadcast(load(row, OFFERED), thread);
    var offer = broadcast(load(row, OFFER), thread);
    var depth = broadcast(load(row, DEPTH), thread);
    if windows == 0u || broadcast(load(row, DONE), thread) == 1u {
        return;
    }
    let request = request_of(row);
    let depths = u32(params.drafts_per_match * f32(load(row, LONGEST)));
    let max_nodes = broadcast(load(row, LIMIT), thread);
    let limit = broadcast(min(max_nodes, depths), thread);
    read_windows_and_offers(row, windows, offered, thread);
    var is_done = false;
    for (var step = 0u; step < params.steps && nodes < max_nodes; step++) {
        if depth < limit {
            offered = offer_children(
                request, offer, nodes, max_nodes, depth, windows, offered, thread,
            );
        }
        var own = 0u;
        for (var i = 0u; i < OWN_OFFERS; i++) {
            if i * THREADS + thread < offered {
                own = max(own, worths[i]);
            }
        }
        let worth = largest(own, thread);
        if worth == 0u {
            is_done = true;
            break;
        }
        // No two offers are worth the same: windows of one depth belong to one offer each.
        for (var i = 0u; i < OWN_OFFERS; i++) {
            if i * THREADS + thread < offered && worths[i] == worth {
                best_offer = vec2(i * THREADS + thread + 1u, origins[i]);
                worths[i] = 0u;
            }
        }
        let best = workgroupUniformLoad(&best_offer);
        offer = best.x;
        depth = best.y & 0xffu;
        let first = MAX_WINDOWS - 1u - (worth & (MAX_WINDOWS - 1u));
        if thread == first % THREADS {
            let token = token_behind(request, ends[first / THREADS], depth - 1u);
            let at = nodes_at() + nodes * NODE;
            store(row, at, token.x);
            store(row, at + 1u, token.y);
            store(row, at + 2u, best.y >> 8u);
            store(row, at + 3u, worth >> 17u);
        }
        nodes += 1u;
    }
    write_windows_and_offers(row, windows, offered, thread);
    if thread == 0u {
        store(row, NODES, nodes);
        store(row, OFFERED, offered);
        store(row, OFFER, offer);
        store(row, DEPTH, depth);
        store(row, DONE, select(0u, 1u, is_done));
    }
}

// ---- passes 7 and 8 -------------------------------------------------------------

@compute @workgroup_size(ROW_THREADS)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * 64u + thread;
    // A thread more than there are drafts, for what a request has without drafts.
    let row = index / (params.n + 1u);
    let column = index % (params.n + 1u);
    if row >= params.row1 - params.row0 || load(row, HERE) == 0u {
        return;
    }
    let request = params.row0 + row;
    let nodes = load(row, NODES);
    if column == params.n {
        counts[params.at.b3 + request] = nodes;
        if has(HAS_MATCH_LENGTHS) {
            match_lengths[params.at.b6 + request] = load(row, LONGEST);
        }
        let bits = load(row, FLAGS);
        if has(HAS_FLAGS) && bits != 0u {
            atomicOr(&flags[params.at.b7], bits);
        }
        return;
    }
    let node = nodes_at() + column * NODE;
    // -1 where the text has no tokens.
    var token = vec2(NONE);
    if has(PAD_WITH_LAST) {
        token = vec2(load(row, LAST_LOW), load(row, LAST_HIGH));
    }
    var parent = NONE;
    var share = 0.0;
    if column < nodes {
        token = vec2(load(row, node), load(row, node + 1u));
        parent = load(row, node + 2u);
        share = f32((load(row, node + 3u) << 20u) / load(row, WINDOWS)) * (1.0 / 1048576.0);
    }
    let draft = (params.at.b2 + request * params.drafts_stride + column) * DRAFT_WORDS;
    drafts[draft] = token.x;
    if DRAFT_WORDS == 2u {
        drafts[draft + 1u] = token.y;
    }
    if has(HAS_PARENTS) {
        parents[params.at.b4 + request * params.parents_stride + column] = parent;
    }
    if has(HAS_SHARES) {
        shares[params.at.b5 + request * params.shares_stride + column] = share;
    }
}

// The first node from `first` on, counted from 1, whose parent is `parent`; NONE for none.
fn child_of(row: u32, first: u32, parent: u32) -> u32 {
    let nodes = load(row, NODES);
    for (var node = first; node <= nodes; node++) {
        if load(row, nodes_at() + (node - 1u) * NODE + 2u) == parent {
            return node;
        }
    }
    return NONE;
}

@compute @workgroup_size(ROW_THREADS)
fn link(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let index = group_index(group, groups) * 64u + thread;
    let row = index / (params.n + 1u);
    let node = index % (params.n + 1u);
    if row >= params.row1 - params.row0 || load(row, HERE) == 0u {
        return;
    }
    let request = params.row0 + row;
    if has(HAS_FIRST_CHILD) {
        let at = params.at.b2 + request * params.first_child_stride + node;
        first_child[at] = child_of(row, node + 1u, node);
    }
    if has(HAS_NEXT_SIBLING) {
        var sibling = NONE;
        if node > 0u && node <= load(row, NODES) {
            let parent = load(row, nodes_at() + (node - 1u) * NODE + 2u);
            sibling = child_of(row, node + 1u, parent);
        }
        next_sibling[params.at.b3 + request * params.next_sibling_stride + node] = sibling;
    }
}
