// Builds the trees of some requests at a time, and writes them.
#pragma once

#include "draft_tree_outputs.cuh"

// Words of shared memory for the trees of a block.
constexpr u32 TREE_WORDS = 5120;

// The threads of a block in teams of whole warps. Each team has a request; its threads outnumber
// the drafts of a request. Barriers are those of the block, so that all teams work in step.
struct Teams {
    u32 size;
    u32 count;
    // The team of this thread, and the thread's number in it. A team whose number is not below
    // `count` has no request.
    u32 team;
    u32 rank;

    // As many teams as there is room for, but at most `limit`.
    INLINE static Teams of(const Params& p, u32 limit);

    INLINE bool is_idle() const { return team >= count; }
};

// The tree of one request, in shared memory.
struct Tree {
    // A bit for each candidate that is a draft.
    u32* picked;
    // The parent of each node.
    u32* parents;
    // A bit for each child of each node, `words` words a node.
    u32* children;
    u32 words;

    INLINE static u32 picked_words(const Params& p) { return (p.c + 127) / 128 * 4; }

    INLINE static u32 size(const Params& p) {
        return picked_words(p) + ((p.n + 1) * (p.n / 32 + 2) + 3) / 4 * 4;
    }

    INLINE Tree(const Params& p, u32* memory)
        : picked(memory),
          parents(memory + picked_words(p)),
          children(parents + p.n + 1),
          words(p.n / 32 + 1) {}

    INLINE void clear(const Params& p, const Teams& teams) const {
        const u32 candidates = picked_words(p);
        for (u32 i = teams.rank; i < candidates; i += teams.size) picked[i] = 0;
        const u32 nodes = (p.n + 1) * words;
        for (u32 i = teams.rank; i < nodes; i += teams.size) children[i] = 0;
    }

    // The first child of `parent` from `node` on; NONE if there is none.
    INLINE u32 child_from(u32 parent, u32 node) const {
        u32 word = node / 32;
        if (word >= words) return NONE;
        u32 bits = children[parent * words + word] & (ALL_LANES << node % 32);
        while (bits == 0) {
            word += 1;
            if (word >= words) return NONE;
            bits = children[parent * words + word];
        }
        return word * 32 + __ffs(bits) - 1;
    }
};

static_assert(TREE_WORDS >= MAX_CANDIDATES / 32 + (MAX_DRAFTS + 1) * (MAX_DRAFTS / 32 + 2) + 3);

INLINE Teams Teams::of(const Params& p, u32 limit) {
    const u32 size = (p.n + WARP) / WARP * WARP;
    const u32 count = min(limit, min(blockDim.x / size, TREE_WORDS / Tree::size(p)));
    return {size, count, threadIdx.x / size, threadIdx.x % size};
}

// The number of drafts before each group of 128 candidates, a lane for a group: the same in all
// warps of a team.
struct DraftCounts {
    u32 before;

    INLINE DraftCounts(const Params& p, const Tree& tree) {
        const u32 lane = threadIdx.x % WARP;
        const u32 groups = (p.c + 127) / 128;
        u32 own = 0;
        if (lane < groups) {
            const uint4 words = reinterpret_cast<const uint4*>(tree.picked)[lane];
            own = __popc(words.x) + __popc(words.y) + (__popc(words.z) + __popc(words.w));
        }
        u32 through = own;
        for (u32 step = 1; step < groups; step *= 2) {
            const u32 below = __shfl_up_sync(ALL_LANES, through, step);
            if (lane >= step) through += below;
        }
        before = through - own;
    }

    // The number of drafts before candidate `j`. All lanes of a warp must call this together.
    INLINE u32 before_candidate(const Tree& tree, u32 j) const {
        const uint4 words = reinterpret_cast<const uint4*>(tree.picked)[j / 128];
        const u32 word = j / 32 % 4;
        const u32 mask = (1u << j % 32) - 1;
        u32 sum = __shfl_sync(ALL_LANES, before, j / 128);
        sum += __popc(words.x & (word > 0 ? ALL_LANES : mask));
        sum += __popc(words.y & (word > 1 ? ALL_LANES : word == 1 ? mask : 0));
        sum += __popc(words.z & (word > 2 ? ALL_LANES : word == 2 ? mask : 0));
        return sum + __popc(words.w & (word == 3 ? mask : 0));
    }
};

// Writes the mask of a node; 0 for NONE. The nodes on the way to the root descend, and so do the
// words that have their bits.
INLINE void write_mask(const Params& p, const Tree& tree, u32* mask, u32 on_way) {
    for (u32 word = p.n / 32 + 1; word-- > 0;) {
        u32 bits = 0;
        while (on_way / 32 == word) {
            bits |= 1u << on_way % 32;
            on_way = on_way == 0 ? NONE : tree.parents[on_way];
        }
        mask[word] = bits;
    }
}

// Builds and writes the tree of a team's request. `record` is this thread's draft, 0 if it has
// none; a request has `num` drafts. All threads of a block call this function together; threads
// without a request have `is_idle`. The tree was cleared before the last barrier.
INLINE void write_tree(const Params& p, const Tree& tree, const Teams& teams,
                       const Request& request, u64 record, u32 num, bool is_idle) {
    const u32 index = record == 0 ? 0 : index_of(record);
    Halves token = Halves::none();
    if (record != 0) {
        token = token_at(p, request.number, index);
        atomicOr(&tree.picked[index / 32], 1u << index % 32);
    }
    __syncthreads();
    if (!is_idle) {
        const DraftCounts counts(p, tree);
        const u32 above = record == 0 ? 0 : parent_of(record);
        const u32 node = counts.before_candidate(tree, index) + 1;
        // A parent comes before its children in the request's order, so it is a draft too.
        const u32 parent = counts.before_candidate(tree, above == 0 ? 0 : above - 1) + 1;
        if (record != 0) {
            Draft draft;
            draft.node = node;
            // Even if the arguments change during the call, a way to the root descends.
            draft.parent = above == 0 ? 0 : min(parent, node - 1);
            draft.depth = depth_of(record);
            draft.index = index;
            draft.survival = survival_of(record);
            tree.parents[node] = draft.parent;
            atomicOr(&tree.children[draft.parent * tree.words + node / 32], 1u << node % 32);
            write_draft(p, request, draft, token);
        }
    }
    __syncthreads();
    if (is_idle) return;
    for (u32 node = teams.rank; node <= p.n; node += teams.size) {
        const bool there = node <= num;
        if (node == 0) {
            write_root(p, request, num);
        } else if (!there) {
            write_no_draft(p, request, node);
        }
        const u32 first_child = there ? tree.child_from(node, node + 1) : NONE;
        const bool is_draft = there && node != 0;
        const u32 sibling = is_draft ? tree.child_from(tree.parents[node], node + 1) : NONE;
        write_links(p, request.number, node, first_child, sibling);
        if (p.masks != nullptr) {
            write_mask(p, tree, mask_of(p, request.number, node), there ? node : NONE);
        }
    }
}
