// indexer_topk by groups, for rows in which more scores reach the bound than there is room for.
#pragma once

#include "indexer_topk_bound.cuh"

// How many scores `walk` has met above a key, and how many equal to it.
struct Met {
    u32 above;
    u32 ties;
};

// Visits the scores whose bits are set. Calls each(other) for the key of every such score above
// `key`. Calls put(i, larger, equal, before) in the thread that has word i of the bits, if the word
// is not 0: `larger` has the bits of its scores above `key`, `equal` of those that equal `key`, and
// `before` counts the scores of the words before. Returns the counts of the whole piece.
template <typename T, typename Each, typename Put>
INLINE Met walk(const Params& p, const GroupedPiece<T>& piece, u32 key, u32& turn, Each each,
                Put put) {
    constexpr u32 N = GroupedPiece<T>::N;
    constexpr u32 OF_WORD = GroupedPiece<T>::OF_WORD;
    Met met = {0, 0};
    const u32 all = (piece.size() + OF_WORD - 1) / OF_WORD;
#pragma unroll 1
    for (u32 base = 0; base < all; base += THREADS) {
        const u32 i = base + threadIdx.x;
        const u32 bits = i < all ? score_bits(p)[i] : 0;
        if (!__syncthreads_or(bits != 0)) continue;
        u32 larger = 0;
        u32 equal = 0;
        if (__any_sync(ALL_LANES, bits != 0)) {
            // Lanes read neighbouring vectors, so several lanes have vectors of one word. The lane
            // that has the word then gathers the results for its bits.
            const u32 lane = lane_id();
            const u32 first = piece.begin + (base + threadIdx.x - lane) * OF_WORD + lane;
            Pack<T> packs[OF_WORD];
#pragma unroll
            for (u32 a = 0; a < OF_WORD; a++) packs[a] = piece.load(first + a * WARP, 0);
#pragma unroll
            for (u32 a = 0; a < OF_WORD; a++) {
                const u32 v = first + a * WARP;
                const u32 low = lane % OF_WORD * N;
                const u32 of_word = __shfl_sync(ALL_LANES, bits, a * N + lane / OF_WORD);
                const u32 there = piece.whole(v) ? of_word >> low & GroupedPiece<T>::ALL : 0;
                u32 over = 0;
                u32 at = 0;
#pragma unroll
                for (u32 j = 0; j < N; j++) {
                    const u32 other = exact::sort_key(wide(packs[a].items[j], p.brain));
                    const u32 bit = there & 1u << j;
                    at |= other == key ? bit : 0;
                    if (other > key && bit != 0) {
                        over |= bit;
                        each(other);
                    }
                }
                over <<= low;
                at <<= low;
#pragma unroll
                for (u32 step = 1; step < OF_WORD; step *= 2) {
                    over |= __shfl_xor_sync(ALL_LANES, over, step);
                    at |= __shfl_xor_sync(ALL_LANES, at, step);
                }
                over = __shfl_sync(ALL_LANES, over, lane % N * OF_WORD);
                at = __shfl_sync(ALL_LANES, at, lane % N * OF_WORD);
                if (lane / N == a) {
                    larger = over;
                    equal = at;
                }
            }
            // Vectors at the ends of the row are read score by score.
            u32 edges = 0;
            if (bits != 0 && piece.has_edges()) {
                const u32 own = piece.begin + i * OF_WORD;
#pragma unroll 1
                for (u32 a = 0; a < OF_WORD; a++) {
                    if (!piece.whole(own + a)) edges |= bits & GroupedPiece<T>::ALL << a * N;
                }
            }
#pragma unroll 1
            for (; edges != 0; edges &= edges - 1) {
                const u32 bit = __ffs(edges) - 1;
                const u32 index = piece.index(piece.begin + i * OF_WORD) + bit;
                const u32 other = exact::sort_key(wide(piece.row[index], p.brain));
                equal |= other == key ? 1u << bit : 0;
                if (other > key) {
                    larger |= 1u << bit;
                    each(other);
                }
            }
        }
        u32 total;
        const u32 before = thread_place(turn, __popc(larger) << 16 | __popc(equal), total);
        if (bits != 0) {
            put(i, larger, equal, Met{met.above + (before >> 16), met.ties + (before & 0xFFFF)});
        }
        met.above += total >> 16;
        met.ties += total & 0xFFFF;
    }
    return met;
}

// FEW: there is room for the scores whose bits are set now. CHOSEN: the k best are written. OPEN:
// neither.
enum class Outcome : u32 { FEW, CHOSEN, OPEN };

// Raises the bound, and clears the bits of scores that do not reach it, until there is room for the
// others, or until at most k scores are above the bound; then writes the k best.
// Not inlined, because most rows never need it.
template <typename T>
__device__ __noinline__ Outcome narrow(const Params& p, const GroupedPiece<T> piece, u64 row,
                                       u32 turn) {
    Shared& s = shared();
    const Cluster team;
    const u32 spread = 31 - __clz(team.size);
    const u32 lane = lane_id();
    if (__any_sync(ALL_LANES, lane < team.size && s.counts[lane] >= UNKNOWN)) return Outcome::OPEN;
    const u32 largest = __reduce_max_sync(ALL_LANES, lane < team.size ? s.largest[lane] : 0);
    u32 bound = s.bound;
    u32 above;
    u32 of_lane;
#pragma unroll 1
    for (u32 raise = 0;; raise++) {
        const u32 shift = shift_of(largest - bound);
        const Met own = walk(
            p, piece, bound, turn,
            [&](u32 key) { atomicAdd(&s.bins[0][(key - bound) >> shift], 1u); },
            [&](u32 i, u32 larger, u32 equal, Met) { score_bits(p)[i] = larger | equal; });
        if (threadIdx.x == 0) atomicAdd(&s.bins[0][0], own.ties);
        __syncthreads();
        tell_reached(p, team, spread, bound, shift, own.above + own.ties, bound, turn);
        if (threadIdx.x < team.size) {
            tell(team, &s.above[team.rank], threadIdx.x, own.above);
            tell(team, &s.ties[team.rank], threadIdx.x, own.ties);
        }
        team.sync();
        of_lane = lane < team.size ? s.above[lane] : 0;
        above = __reduce_add_sync(ALL_LANES, of_lane);
        const u32 ties = __reduce_add_sync(ALL_LANES, lane < team.size ? s.ties[lane] : 0);
        if (above <= p.k) break;
        if (above + ties <= p.candidates) {
            clear(s.bins[0], BINS);
            __syncthreads();
            return Outcome::FEW;
        }
        const u32 next = common_bound(p, team, spread);
        if (raise == RAISES || next == bound) return Outcome::OPEN;
        bound = next;
        // The next round overwrites what the blocks told, so all of them must have read it.
        team.sync();
    }
    const u32 stay = p.k - above;
    const u32 above_before = __reduce_add_sync(ALL_LANES, lane < team.rank ? of_lane : 0);
    const u32 ties_before = __reduce_add_sync(ALL_LANES, lane < team.rank ? s.ties[lane] : 0);
    walk(
        p, piece, bound, turn, [](u32) {}, [&](u32 i, u32 larger, u32 equal, Met before) {
            u32 g = above_before + before.above;
            u32 e = ties_before + before.ties;
            const u32 index = piece.index(piece.begin + i * GroupedPiece<T>::OF_WORD);
            for (u32 word = e < stay ? larger | equal : larger; word != 0; word &= word - 1) {
                const u32 bit = __ffs(word) - 1;
                const bool is_larger = larger >> bit & 1;
                if (is_larger || e < stay) {
                    p.indices.set(row, g + min(e, stay), static_cast<i32>(index + bit));
                }
                g += is_larger ? 1 : 0;
                e += is_larger ? 0 : 1;
            }
        });
    return Outcome::CHOSEN;
}
