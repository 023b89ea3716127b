// A row of logits as a team of blocks (select_team.cuh) reads it, as often as it has to.
//
// A row is cut into contiguous pieces, one a warp:
//
//     row      | edge | 16-byte vectors ...................... | edge |
//     warps    |  0         |  1         |  2         |   ...   last  |
//
// Every pass reads the row again, from L2.
#pragma once

#include "aligned_row.cuh"
#include "select_team.cuh"
#include "vocab_row.cuh"

// The entries of a vector of which not each element is its entry: kept out of the way of the others.
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

// A row as f32. `make(values, entries, index of the first)` turns elements into entries, in which NaN
// means nothing; `make(value, index)` turns one. Where make.as_is() an element is its entry, but for NaN,
// which is negative infinity.
//
// An AlignedRow (aligned_row.cuh), all of whose members are of one struct: of a base class the
// compiler makes other code, which was not timed.
template <typename T, typename Make>
struct EnteredRow {
    static constexpr u32 N = Pack<T>::N;

    const T* row;
    u32 length;
    // Entries between the 16-byte boundary before the row and its start.
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

    // One entry; nothing beyond the row.
    INLINE float entry(u32 index) const {
        return index < length ? make(to_f32(row[index]), index) : nothing();
    }

    // What a race reads of a token (race_lead.cuh).
    using Raw = float;
    static constexpr u32 RACE_AT_ONCE = 2;
    INLINE float raw(u32 index) const { return entry(index); }
    INLINE float entry_of(u32, float raw) const { return raw; }

    INLINE static u32 start_of(u32 vectors, u32 piece, u32 pieces) {
        return static_cast<u32>(static_cast<u64>(vectors) * piece >> (31 - __clz(pieces)));
    }

    INLINE bool whole(u32 first) const { return first < length && length - first >= N; }

    // A vector that is wholly in the row, and its elements.
    INLINE Pack<T> load(u32 vector) const { return load_pack(row + (vector * N - lead)); }

    INLINE void read_whole(u32 vector, float (&values)[N]) const {
        const Pack<T> pack = load(vector);
#pragma unroll
        for (u32 j = 0; j < N; ++j) values[j] = to_f32(pack.items[j]);
    }

    // The elements of a vector; `first` is the index of the first of them, which
    // wraps in the edge before the row.
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

    // visit(entries, index of the first) for this warp's piece, a vector a lane.
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

    // Whether elements are the entries, but for what is not a number.
    INLINE bool is_read_as_is() const { return make.as_is(); }

    // As `each`, for a row that is read as it is, AT_ONCE vectors a lane at a time: what was
    // read last comes first, since the caches still have it. MEANWHILE as many more are in
    // flight, which takes registers.
    template <u32 AT_ONCE, bool MEANWHILE, typename Visit>
    INLINE void each_as_is(u32 lane, Visit&& visit) const {
        if (begin == end) return;
        // Only the row's first and last vector may be in parts.
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
        // A lane for each of the two.
        const u32 part = lane == 0 ? begin : end - 1;
        const bool cut = lane == 0 ? from != begin : to != end && end - 1 != begin;
        if (lane < 2 && cut) {
            const Entries<float, N> made = make_again(*this, part);
            visit(made.items, part * N - lead);
        }
    }

    // As `each`, eight entries at once.
    template <bool MEANWHILE = true, typename Visit>
    INLINE void each_ahead(u32 lane, Visit&& visit) const {
        if (is_read_as_is()) {
            each_as_is<8 / N, MEANWHILE>(lane, visit);
        } else {
            each<2>(lane, visit);
        }
    }

    // The index of the entry of a piece at which the running sum of weigh(x, index),
    // in ascending index, first exceeds `rest`, which the sum of all does. By the
    // whole block that has the piece, some neighbouring vectors a thread.
    template <typename Weigh>
    INLINE u32 find(const Team& team, u32 piece, u64 rest, Weigh&& weigh) const {
        const u32 vectors = (lead + length + N - 1) / N;
        const u32 from = start_of(vectors, piece, team.pieces());
        const u32 last = start_of(vectors, piece + 1, team.pieces());
        const u32 each = (last - from + SELECT_THREADS - 1) / SELECT_THREADS;
        const u32 own_from = min(from + threadIdx.x * each, last);
        const u32 own_last = min(own_from + each, last);
        // Where the logits change during the call, no entry may be found: then this one.
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
        // Of one thread.
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
