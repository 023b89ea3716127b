// A row of logits that a team of blocks (select_team.cuh) reads one or several times.
//
// The row is cut into contiguous pieces, one for each warp. The first and the last vector, at the
// edges, may be partly outside the row:
//
//     row      | edge | 16-byte vectors ...................... | edge |
//     warps    |  0         |  1         |  2         |   ...   last  |
//
// Each pass over the row reads it again, from L2.
#pragma once

#include "aligned_row.cuh"
#include "select_team.cuh"
#include "vocab_row.cuh"

// The entries of a vector whose logits must be transformed or that is partly outside the row. Not
// inlined, so that it takes no registers from the loop for other vectors.
template <typename Row>
__device__ __noinline__ Entries<float, Row::N> make_again(Row row, u32 vector) {
    float values[Row::N];
    float entries[Row::N];
    u32 first;
    row.read(vector, values, first);
    row.make(values, entries, first);
    Entries<float, Row::N> made;
#pragma unroll
    for (u32 j = 0; j < Row::N; ++j) made.items[j] = entries[j];
    return made;
}

// A row as f32. Elements are the stored logits; entries are what `make` turns them into:
// make(values, entries, index of the first) for a vector, make(value, index) for one element. NaN
// as an entry means that there is no entry. If make.as_is(), an entry equals its element, except
// that NaN becomes negative infinity.
//
// This is an AlignedRow (aligned_row.cuh) with all members in one struct: with AlignedRow as a base
// class, the compiler generates other code, which was not timed.
template <typename T, typename Make>
struct EnteredRow {
    static constexpr u32 N = Pack<T>::N;

    const T* row;
    u32 length;
    // Elements between the 16-byte boundary at or before the row and the row's first element.
    u32 lead;
    // This warp's vectors, counted from that boundary.
    u32 begin;
    u32 end;
    Make make;

    INLINE EnteredRow(const T* from, u32 count, const Team& team, const Make& making)
        : row(from), length(count), make(making) {
        lead = lead_of(from);
        const u32 vectors = (lead + count + N - 1) / N;
        begin = start_of(vectors, team.piece(), team.pieces());
        end = start_of(vectors, team.piece() + 1, team.pieces());
    }

    // One entry; NaN beyond the row.
    INLINE float entry(u32 index) const {
        return index < length ? make(to_f32(row[index]), index) : nothing();
    }

    // Members that a race needs (race_leader_block.cuh).
    using Raw = float;
    static constexpr u32 RACE_AT_ONCE = 2;
    INLINE float raw(u32 index) const { return entry(index); }
    INLINE float entry_of(u32, float raw) const { return raw; }

    INLINE static u32 start_of(u32 vectors, u32 piece, u32 pieces) {
        return static_cast<u32>(static_cast<u64>(vectors) * piece >> (31 - __clz(pieces)));
    }

    INLINE bool whole(u32 first) const { return first < length && length - first >= N; }

    // Loads a vector that is completely in the row.
    INLINE Pack<T> load(u32 vector) const { return load_pack(row + (vector * N - lead)); }

    INLINE void read_whole(u32 vector, float (&values)[N]) const {
        const Pack<T> pack = load(vector);
#pragma unroll
        for (u32 j = 0; j < N; ++j) values[j] = to_f32(pack.items[j]);
    }

    // The elements of a vector. `first` is the index of its first element; at the edge before the
    // row, the index wraps to a large number.
    INLINE void read(u32 vector, float (&values)[N], u32& first) const {
        first = vector * N - lead;
        if (whole(first)) {
            read_whole(vector, values);
        } else {
#pragma unroll
            for (u32 j = 0; j < N; ++j) {
                values[j] = first + j < length ? to_f32(row[first + j]) : nothing();
            }
        }
    }

    INLINE void fetch(u32 vector, float (&entries)[N], u32& first) const {
        first = vector * N - lead;
        if (make.as_is() && whole(first)) {
            read_whole(vector, entries);
#pragma unroll
            for (u32 j = 0; j < N; ++j) entries[j] = fmaxf(entries[j], negative_infinity());
        } else {
            const Entries<float, N> made = make_again(*this, vector);
#pragma unroll
            for (u32 j = 0; j < N; ++j) entries[j] = made.items[j];
        }
    }

    // Calls visit(entries, index of the first) for each vector of this warp's piece, one vector a
    // lane.
    template <u32 UNROLL = 1, typename Visit>
    INLINE void each(u32 lane, Visit&& visit) const {
#pragma unroll UNROLL
        for (u32 v = begin + lane; v < end; v += WARP) {
            float entries[N];
            u32 first;
            fetch(v, entries, first);
            visit(entries, first);
        }
    }

    // True if an entry equals its logit, except NaN, which is -inf.
    INLINE bool is_read_as_is() const { return make.as_is(); }

    // Like `each`, for a row with is_read_as_is(), AT_ONCE vectors a lane at a time, from the end
    // of the piece to its begin: the caches still have the vectors that were read last. With
    // MEANWHILE, the next AT_ONCE loads are in flight during the visits, which takes registers.
    template <u32 AT_ONCE, bool MEANWHILE, typename Visit>
    INLINE void each_as_is(u32 lane, Visit&& visit) const {
        if (begin == end) return;
        // Only the row's first and last vector can be partly outside the row.
        const u32 from = whole(begin * N - lead) ? begin : begin + 1;
        const u32 to = whole((end - 1) * N - lead) ? end : max(end - 1, from);
        const u32 count = to - from;
        Pack<T> next[AT_ONCE];
        const auto load_next = [&](u32 base) {
#pragma unroll
            for (u32 a = 0; a < AT_ONCE; ++a) {
                next[a] = load(to - 1 - min(base + a * WARP + lane, count - 1));
            }
        };
        if (MEANWHILE && count > 0) load_next(0);
        for (u32 base = 0; base < count; base += AT_ONCE * WARP) {
            if (!MEANWHILE) load_next(base);
            Pack<T> packs[AT_ONCE];
#pragma unroll
            for (u32 a = 0; a < AT_ONCE; ++a) packs[a] = next[a];
            if (MEANWHILE && base + AT_ONCE * WARP < count) load_next(base + AT_ONCE * WARP);
#pragma unroll
            for (u32 a = 0; a < AT_ONCE; ++a) {
                const u32 at = base + a * WARP + lane;
                if (at >= count) break;
                float entries[N];
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    entries[j] = fmaxf(to_f32(packs[a].items[j]), negative_infinity());
                }
                visit(entries, (to - 1 - at) * N - lead);
            }
        }
        // One lane for each of the two partial vectors.
        const u32 part = lane == 0 ? begin : end - 1;
        const bool cut = lane == 0 ? from != begin : to != end && end - 1 != begin;
        if (lane < 2 && cut) {
            const Entries<float, N> made = make_again(*this, part);
            visit(made.items, part * N - lead);
        }
    }

    // Like `each`, with eight entries a lane at a time.
    template <bool MEANWHILE = true, typename Visit>
    INLINE void each_ahead(u32 lane, Visit&& visit) const {
        if (is_read_as_is()) {
            each_as_is<8 / N, MEANWHILE>(lane, visit);
        } else {
            each<2>(lane, visit);
        }
    }

    // The index of the entry in piece `piece` at which the running sum of weigh(x, index), in
    // ascending order of index, first exceeds `rest`. The sum over the piece must exceed `rest`. By
    // the whole block that has the piece; each thread has some neighbouring vectors.
    template <typename Weigh>
    INLINE u32 find(const Team& team, u32 piece, u64 rest, Weigh&& weigh) const {
        const u32 vectors = (lead + length + N - 1) / N;
        const u32 from = start_of(vectors, piece, team.pieces());
        const u32 last = start_of(vectors, piece + 1, team.pieces());
        const u32 each = (last - from + SELECT_THREADS - 1) / SELECT_THREADS;
        const u32 own_from = min(from + threadIdx.x * each, last);
        const u32 own_last = min(own_from + each, last);
        // If logits change during the call, no entry may be found; the result is then this index.
        if (threadIdx.x == 0) team.shared->found = min(from * N, length - 1);
        u64 own = 0;
#pragma unroll 2
        for (u32 v = own_from; v < own_last; ++v) {
            float entries[N];
            u32 first;
            fetch(v, entries, first);
#pragma unroll
            for (u32 j = 0; j < N; ++j) own += weigh(entries[j], first + j);
        }
        const u64 before = BlockSums(team.shared->sums, team, own).through - own;
        // True in one thread.
        if (before <= rest && rest - before < own) {
            rest -= before;
            bool found = false;
#pragma unroll 1
            for (u32 v = own_from; v < own_last && !found; ++v) {
                float entries[N];
                u32 first;
                fetch(v, entries, first);
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    if (found) continue;
                    const u64 weight = weigh(entries[j], first + j);
                    found = weight > rest;
                    rest -= weight;
                    if (found) team.shared->found = first + j;
                }
            }
        }
        __syncthreads();
        return team.shared->found;
    }
};
