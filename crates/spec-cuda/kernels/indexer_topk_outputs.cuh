// indexer_topk: what is written of a chosen position beside the position: its score, and its slot
// in a paged cache. `P` is the struct of a kernel's parameters.
#pragma once

#include "ids.cuh"

// The slot of a position; -1, with a flag, if the table has no block for the position.
template <typename P>
INLINE i32 slot_of(const P& p, const i32* blocks, u32 position, u32& bits) {
    const u32 at = position / p.block_size;
    const i64 block = at < p.blocks ? blocks[at] : -1;
    const i64 slot = block * p.block_size + position % p.block_size;
    if (block >= 0 && slot < 1ll << 31) return static_cast<i32>(slot);
    bits |= OUT_OF_RANGE;
    return -1;
}

template <typename P>
INLINE void put_value(const P& p, u32 row, u32 i, float x) {
    p.values[row][i] = x == x ? x : negative_infinity();
}

// Writes the slot of a position. An output after the last position has none.
template <typename P>
INLINE void put_slot(const P& p, u32 row, u32 i, u32 position, bool is_position, u32& bits) {
    const i64 request = p.requests == nullptr ? row : p.requests[row];
    i32 slot = -1;
    if (request < 0 || request >= p.tables) {
        bits |= BAD_LENGTHS;
    } else if (is_position) {
        slot = slot_of(p, p.block_table[request], position, bits);
    }
    p.slots[row][i] = slot;
}
