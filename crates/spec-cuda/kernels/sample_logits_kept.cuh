// Writes which tokens of a row of sample_logits race: those that filters keep and whose weight is
// at least one unit.
#pragma once

#include "sample_logits_cut.cuh"

template <typename T>
INLINE bool lists_kept(const Params<T>& p) {
    return p.kept_tokens.data != nullptr || p.kept_counts != nullptr;
}

// Writes the kept token of a row of which one is certain, or of a row of which none is kept. By all
// blocks of the row.
template <typename T>
INLINE void write_one_kept(const Params<T>& p, u32 index, const Cluster& blocks, i32 token,
                           bool is_there) {
    if (p.kept_tokens.data != nullptr) {
        for (u32 i = blocks.rank * blockDim.x + threadIdx.x; i < p.kept;
             i += blocks.size * blockDim.x) {
            p.kept_tokens[index][i] = i == 0 && is_there ? token : -1;
        }
    }
    if (p.kept_counts != nullptr && blocks.rank == 0 && threadIdx.x == 0) {
        p.kept_counts[index] = is_there ? 1 : 0;
    }
}

// The columns of a vector that race, a bit for each. Not inlined, since weights take many
// instructions and this is not the race.
template <u32 N>
__device__ __noinline__ u32 racing_of(Kept kept, Entries<float, N> entries, u32 first) {
    const FloatCut by(kept.cut);
    const u64 floor = max(kept.floor, 1ull);
    u32 those = 0;
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        const bool races =
            by.keeps(entries.items[j], first + j) && kept.scale.fixed(entries.items[j]) >= floor;
        those |= races ? 1u << j : 0u;
    }
    return those;
}

template <u32 N>
INLINE u32 racing(const Kept& kept, float least, const float (&entries)[N], u32 first) {
    Entries<float, N> own;
    bool any = false;
#pragma unroll
    for (u32 j = 0; j < N; ++j) {
        own.items[j] = entries[j];
        any = any || entries[j] >= least;
    }
    return any ? racing_of<N>(kept, own, first) : 0;
}

// Writes the tokens of a row that race, in the order of columns, and their number; of too many, the
// first in the order of logits. token_of(column) is the token of a column. By the whole team.
template <typename T, typename Row, typename TokenOf>
INLINE void list_kept_tokens(const Params<T>& p, u32 index, Selection& selection, Team& team,
                             const Row& row, const Kept& kept, TokenOf&& token_of) {
    constexpr u32 N = Row::N;
    const u64 floor = max(kept.floor, 1ull);
    // Smaller entries surely do not race.
    const float cut_entry =
        kept.cut.all() ? negative_infinity() : exact::value_of_key(kept.cut.key);
    const float least = fmaxf(cut_entry, kept.scale.least_entry(floor));
    u32 own = 0;
    row.each(team.lane, [&](const float (&entries)[N], u32 first) {
        own += __popc(racing(kept, least, entries, first));
    });
    team.publish(warp_sum(own));
    const u32 all = static_cast<u32>(team.reduce_sum());
    if (p.kept_counts != nullptr && team.blocks.rank == 0 && threadIdx.x == 0) {
        p.kept_counts[index] = static_cast<i32>(all);
    }
    if (p.kept_tokens.data == nullptr) return;
    // Of more columns, the first in the order of logits are listed.
    Cut first_cut = {0, 0};
    if (all > p.kept) {
        Row heavy = row;
        heavy.make.floor = floor;
        heavy.make.scale = kept.scale;
        Options options;
        options.inverse = kept.scale.inverse;
        options.top_k = p.kept;
        options.top_p = 1ull << 32;
        options.floor = 0;
        const OutOfLine<Kept> cut = filter_out_of_line(selection, team, heavy, options, kept.scale);
        team.exchanges = cut.exchanges;
        first_cut = cut.result.cut;
    }
    const FloatCut within(first_cut);
    const auto listed_of = [&](const float(&entries)[N], u32 first) {
        u32 those = racing(kept, least, entries, first);
#pragma unroll
        for (u32 j = 0; j < N; ++j) {
            if (!within.keeps(entries[j], first + j)) those &= ~(1u << j);
        }
        return those;
    };
    own = 0;
    row.each(team.lane, [&](const float (&entries)[N], u32 first) {
        own += __popc(listed_of(entries, first));
    });
    team.publish(warp_sum(own));
    u32 before = 0;
    for (u32 i = team.lane; i < team.piece(); i += WARP) {
        before += static_cast<u32>(team.published(i));
    }
    before = warp_sum(before);
    i32* const to = p.kept_tokens[index];
    // All lanes go through the loop together, because they add up the counts of neighbours.
    for (u32 base = row.begin; base < row.end; base += WARP) {
        float entries[N];
        u32 first = 0;
        u32 those = 0;
        if (base + team.lane < row.end) {
            row.fetch(base + team.lane, entries, first);
            those = listed_of(entries, first);
        }
        __syncwarp();
        const u32 count = __popc(those);
        const u32 through = warp_inclusive_sum(count, team.lane);
        u32 place = before + through - count;
        for (; those != 0; those &= those - 1) {
            if (place < p.kept) to[place] = token_of(first + __ffs(those) - 1);
            place += 1;
        }
        __syncwarp();
        before += __shfl_sync(ALL_LANES, through, WARP - 1);
    }
    const u32 rank = team.blocks.rank * SELECT_THREADS + threadIdx.x;
    for (u32 i = min(all, p.kept) + rank; i < p.kept; i += team.blocks.size * SELECT_THREADS) {
        to[i] = -1;
    }
}
