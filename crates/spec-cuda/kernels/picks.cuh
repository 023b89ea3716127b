// Picks single entries of a row while a warp reads the whole row.
//
// A warp that reads a row in order wants one entry of each group of the row. The index of the entry
// within its group is known before the group is read. Reading these entries again later, from
// random addresses, would take as long as a sixth of the row. So when a lane reads 16 bytes that
// contain a wanted entry, the lane stores the 16 bytes in shared memory, where the lane that wants
// the entry finds them.
//
// The warp reads groups in order. Lane i wants one entry of each group whose number is i modulo 32.
// The type `Row` says how a warp reads: a group is read by LANES lanes, N entries each; AT_ONCE
// groups are read by one load instruction of the warp, and READ such loads are in flight. A part is
// as many entries of a group as fit 16 bytes in the type `Row::Picked`. Parts are picked whole.
#pragma once

#include "common.cuh"

// Shared memory of a warp.
struct alignas(16) PicksOfWarp {
    // For each lane, the part that contains the entry that the lane wants.
    uint4 packs[WARP];
    // For each lane, the number of that part within its group. The order of lanes is such that four
    // groups that one lane reads in a row have neighbouring bytes.
    u8 parts[WARP];
};

template <typename Row>
struct Picks {
    // Entries of a part, and parts in the N entries that a lane reads of a group.
    static constexpr u32 PICKED = 16 / sizeof(typename Row::Picked);
    static constexpr u32 OF_LANE = Row::N / PICKED;
    // The number of groups in four consecutive loads of the warp.
    static constexpr u32 FOUR = 4 * Row::AT_ONCE;
    static_assert(Row::READ % 4 == 0 && WARP % (Row::READ * Row::AT_ONCE) == 0);

    PicksOfWarp& shared;
    const Row& row;
    u32 lane;
    // The first group of the warp, and the first group from which nothing is picked.
    u32 begin;
    u32 end;

    // For the groups first .. last, which the warp reads with `Row::survey`.
    INLINE Picks(PicksOfWarp& of_warp, const Row& of_row, u32 first, u32 last)
        : shared(of_warp),
          row(of_row),
          lane(lane_id()),
          begin(first),
          end(of_row.streamed(first, last)) {}

    // Says that this lane wants the entry of token `token`, which is in the next group of the lane.
    // The lane must have fetched its previous entry with `entry`.
    INLINE void want(u32 token) const {
        const u32 four = lane / FOUR * Row::AT_ONCE + lane % Row::AT_ONCE;
        const u32 of_four = lane % FOUR / Row::AT_ONCE;
        shared.parts[four * 4 + of_four] = static_cast<u8>(token % Row::SIZE / PICKED);
    }

    // The parts that lanes want of the READ loads that begin with group `first`.
    struct Wanted {
        uint4* packs;
        // A byte for each load: the number of the wanted part, minus the number of the first part
        // that this lane reads. Only a byte that is 0 .. OF_LANE - 1 is a part of this lane.
        u32 parts[Row::READ / 4];

        // Stores the wanted part of N entries, if this lane has it. The entries are of the i-th
        // load; pack(p) returns part p of them.
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
        const u32* const fours =
            reinterpret_cast<const u32*>(shared.parts) + place / 4 + lane / Row::LANES;
        Wanted wanted;
        wanted.packs = &shared.packs[place + lane / Row::LANES];
        // Makes the stores of `want` in other lanes visible.
        __syncwarp();
#pragma unroll
        for (u32 i = 0; i < Row::READ / 4; ++i) {
            wanted.parts[i] = fours[i * Row::AT_ONCE] ^ own * 0x01010101u;
        }
        return wanted;
    }

    // The entry that this lane asked for with `want`. All lanes that asked call this together,
    // after the warp has read their groups.
    INLINE float entry(u32 token) const {
        if (token / Row::SIZE >= end) return row.entry(token);
        const auto* const picked =
            reinterpret_cast<const typename Row::Picked*>(&shared.packs[lane]);
        return row.counted(token, to_f32(picked[token % PICKED]));
    }
};

// Picks nothing.
struct NoPicks {
    struct Wanted {
        template <typename Pack>
        INLINE void operator()(u32, Pack&&) const {}
    };

    INLINE Wanted operator()(u32) const { return {}; }
};
