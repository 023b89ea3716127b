// Writes the outputs of nodes.
#pragma once

#include "draft_tree_records.cuh"

// A request while its nodes are written.
struct Request {
    u64 number;
    // The first packed row.
    u32 start;
    // Whether it has packed rows.
    bool alive;
};

// A node that is a draft.
struct Draft {
    u32 node;
    u32 parent;
    u32 depth;
    u32 index;
    u32 survival;
};

// Writes the packed row of a node.
INLINE void write_row(const Params& p, const Request& request, u32 node, i32 parent, u32 depth,
                      Halves token) {
    const u64 row = static_cast<u64>(request.start) + node;
    if (!request.alive || row >= p.cap) return;
    if (p.rows != nullptr) p.rows[row] = static_cast<i32>(request.number * (p.n + 1) + node);
    if (p.row_requests != nullptr) p.row_requests[row] = static_cast<i32>(request.number);
    if (p.row_parents != nullptr) p.row_parents[row] = parent;
    if (p.row_tokens != nullptr) token.store(p.row_tokens, p.candidates.wide, row);
    if (p.row_positions != nullptr) {
        const Halves given = Halves::load(p.starts.data, p.starts.wide, request.number);
        const u64 position = given.whole() + depth;
        const Halves halves = {static_cast<u32>(position), static_cast<u32>(position >> 32)};
        halves.store(p.row_positions, p.starts.wide, row);
    }
}

INLINE void write_draft(const Params& p, const Request& request, const Draft& draft, Halves token) {
    const u64 number = request.number;
    const u32 at = draft.node - 1;
    token.store(p.drafts.data, p.drafts.wide, number * p.drafts.stride + at);
    if (p.picked.data != nullptr) p.picked[number][at] = static_cast<i32>(draft.index);
    if (p.draft_parents.data != nullptr) {
        p.draft_parents[number][at] = static_cast<i32>(draft.parent);
    }
    if (p.survivals.data != nullptr) p.survivals[number][at] = __uint_as_float(draft.survival);
    if (p.depths.data != nullptr) p.depths[number][draft.node] = static_cast<i32>(draft.depth);
    const i32 parent = static_cast<i32>(request.start + draft.parent);
    write_row(p, request, draft.node, parent, draft.depth, token);
}

// Writes what stands behind the drafts, for a node that is none.
INLINE void write_no_draft(const Params& p, const Request& request, u32 node) {
    const u64 number = request.number;
    const u32 at = node - 1;
    Halves::none().store(p.drafts.data, p.drafts.wide, number * p.drafts.stride + at);
    if (p.picked.data != nullptr) p.picked[number][at] = -1;
    if (p.draft_parents.data != nullptr) p.draft_parents[number][at] = -1;
    if (p.survivals.data != nullptr) p.survivals[number][at] = 0.0f;
    if (p.depths.data != nullptr) p.depths[number][node] = -1;
}

// Writes what the root and the request as a whole have.
INLINE void write_root(const Params& p, const Request& request, u32 num) {
    p.num_drafts[request.number] = static_cast<i32>(num);
    if (p.row_offsets != nullptr) p.row_offsets[request.number] = static_cast<i32>(request.start);
    if (p.depths.data != nullptr) p.depths[request.number][0] = 0;
    Halves token = Halves::none();
    if (p.row_tokens != nullptr && p.roots.data != nullptr) {
        token = Halves::load(p.roots.data, p.roots.wide, request.number);
    }
    write_row(p, request, 0, -1, 0, token);
}

// Writes the links of a node; NONE for none.
INLINE void write_links(const Params& p, u64 request, u32 node, u32 first_child, u32 next_sibling) {
    if (p.first_child.data != nullptr) {
        p.first_child[request][node] = static_cast<i32>(first_child);
    }
    if (p.next_sibling.data != nullptr) {
        p.next_sibling[request][node] = static_cast<i32>(next_sibling);
    }
}

// The words of a node's mask.
INLINE u32* mask_of(const Params& p, u64 request, u32 node) {
    return p.masks + request * p.masks_stride + node * p.mask_stride;
}

// Writes what stands behind the rows of all requests.
INLINE void finish(const Params& p, u32 rows) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (p.row_offsets != nullptr) p.row_offsets[p.batch] = static_cast<i32>(rows);
        if (p.has_cap && rows > p.cap) raise(p.flags, BAD_LENGTHS);
    }
    const u64 step = static_cast<u64>(gridDim.x) * blockDim.x;
    u64 row = rows + static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (; p.has_cap && row < p.cap; row += step) {
        if (p.rows != nullptr) p.rows[row] = -1;
        if (p.row_requests != nullptr) p.row_requests[row] = -1;
        if (p.row_parents != nullptr) p.row_parents[row] = -1;
        if (p.row_tokens != nullptr) Halves::none().store(p.row_tokens, p.candidates.wide, row);
        if (p.row_positions != nullptr) {
            Halves::none().store(p.row_positions, p.starts.wide, row);
        }
    }
}
