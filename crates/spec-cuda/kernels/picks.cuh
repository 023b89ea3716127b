// Picks entries from what a warp reads of a row.
//
// A warp that reads a whole row in order wants one entry of each group, at a place in the group that it
// knows before the entries come. To read these few entries once more, at random, would take as long as a
// sixth of the row. So the lane that holds the 16 bytes with such an entry stores them in shared memory, for
// the lane that wants the entry.
//
// The warp has the groups in order, 32 at a time: a lane wants an entry of each 32nd group. Rows say how
// lanes hold what they read: a lane has N entries of a group, which it shares with LANES - 1 others; READ
// times it has such entries, of each AT_ONCE-th group. Of N entries, as many are picked at once as Picked
// are 16 bytes.
#pragma once

#include "common.cuh"

// What the lanes of a warp share.
struct alignas(16) PicksOfWarp {
    // For each lane, what holds the entry that the lane wants.
    uint4 packs[WARP];
    // For each lane, which part of its group it wants; in the order in which four parts of one lane's are
    // neighbours.
    u8 parts[WARP];
};

template <typename Row>
struct Picks {
    // Entries that are picked at once, and how many parts a group and the entries of a lane have.
    static constexpr u32 PICKED = 16 / sizeof(typename Row::Picked);
    static constexpr u32 OF_LANE = Row::N / PICKED;
    // Groups of which a lane reads four.
    static constexpr u32 FOUR = 4 * Row::AT_ONCE;
    static_assert(Row::READ % 4 == 0 && WARP % (Row::READ * Row::AT_ONCE) == 0);

    PicksOfWarp& shared;
    const Row& row;
    u32 lane;
    // The warp's first group, and the first that is not picked from.
    u32 begin;
    u32 end;

    // For groups first .. last, which the row surveys.
    INLINE Picks(PicksOfWarp& of_warp, const Row& of_row, u32 first, u32 last)
        : shared(of_warp), row(of_row), lane(lane_id()), begin(first), end(of_row.streamed(first, last)) {}

    // The lane wants this token of its next group. `entry` has returned what the lane wanted before.
    INLINE void want(u32 token) const {
        const u32 four = lane / FOUR * Row::AT_ONCE + lane % Row::AT_ONCE;
        const u32 of_four = lane % FOUR / Row::AT_ONCE;
        shared.parts[four * 4 + of_four] = static_cast<u8>(token % Row::SIZE / PICKED);
    }

    // What lanes want of what the warp reads READ times, from group `first` on.
    struct Wanted {
        uint4* packs;
        // Of each time, a byte: the part that is wanted of the group, less the lane's first part.
        u32 parts[Row::READ / 4];

        // Stores what is wanted of N entries, the i-th that this lane has read; pack(p) are those of
        // their part p.
        template <typename Pack>
        INLINE void operator()(u32 i, Pack&& pack) const {
#pragma unroll
            for (u32 p = 0; p < OF_LANE; ++p) {
                const u32 differ = parts[i / 4] ^ p * 0x01010101u;
                if ((differ & 0xFFu << i % 4 * 8) == 0) packs[i * Row::AT_ONCE] = pack(p);
            }
        }
    };

    INLINE Wanted operator()(u32 first) const {
        const u32 own = lane % Row::LANES * OF_LANE;
        const u32 place = (first - begin) % WARP;
        const u32* const fours = reinterpret_cast<const u32*>(shared.parts) + place / 4 + lane / Row::LANES;
        Wanted wanted;
        wanted.packs = &shared.packs[place + lane / Row::LANES];
        // What other lanes want.
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < Row::READ / 4; ++i) wanted.parts[i] = fours[i * Row::AT_ONCE] ^ own * 0x01010101u;
        return wanted;
    }

    // The entry that the lane wanted. By all lanes that want an entry, once the warp has read their groups.
    INLINE float entry(u32 token) const {
        if (token / Row::SIZE >= end) return row.entry(token);
        const auto* const picked = reinterpret_cast<const typename Row::Picked*>(&shared.packs[lane]);
        return row.counted(token, to_f32(picked[token % PICKED]));
    }
};

// Picks nothing.
struct Unpicked {
    struct Wanted {
        template <typename Pack>
        INLINE void operator()(u32, Pack&&) const {}
    };

    INLINE Wanted operator()(u32) const { return {}; }
};
