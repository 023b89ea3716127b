// Where a row of logits is cut: how its first entries come to the block that leads, and what top-k and
// top-p leave where they are many.
#pragma once

#include "sample_logits_few.cuh"

// What a selection weighs: 1 an entry, or its weight.
struct Weigher {
    Kept kept;
    bool counts;

    INLINE u64 operator()(float x, u32 key, u32 index) const {
        if (counts) return 1;
        return kept.cut.keeps(key, index) ? kept.scale.fixed(x) : 0;
    }

    INLINE bool keeps(u32 key, u32 index) const { return kept.cut.keeps(key, index); }

    INLINE u64 of(u32 key) const { return counts ? 1 : kept.scale.fixed(exact::value_of_key(key)); }

    template <typename Row>
    INLINE void add(Selection& s, u32 lane, const Row& row, const Linear& linear) const {
        constexpr u32 N = Row::N;
        if (counts) {
            const auto ones = [](const float(&entries)[N], u32, u64(&weights)[N]) {
                bool any = false;
#pragma unroll
                for (u32 j = 0; j < N; ++j) {
                    weights[j] = entries[j] == entries[j] ? 1 : 0;
                    any = any || weights[j] != 0;
                }
                return any;
            };
            add_row(s, lane, row, linear, ones);
        } else {
            const FloatCut by(kept.cut);
            const auto shares = [&](const float(&entries)[N], u32 first, u64(&weights)[N]) {
                return kept.vector(by, entries, first, weights);
            };
            add_row(s, lane, row, linear, shares);
        }
    }
};

// How a row with filters is cut: by what was sent to the block that leads, or lies in its
// list already; among what equals the largest; or by selecting in the row itself.
enum class How { SENT, LISTED, TIES, SELECTED };

// What top-k, then top-p leave of a row, whatever of them is asked for.
template <typename Row>
INLINE Kept filter(Selection& selection, Team& team, const Row& row, const Options& options,
                       const Scale& scale) {
    // What was in the selection's place has been read.
    __syncthreads();
    Kept kept = {scale, Cut{0, 0}, 0};
    // Beyond 28 temperatures below the largest, nothing weighs anything.
    const Linear linear = {scale.largest, exact::mul(scale.inverse, (SELECT_BINS - 1) / 28.0f)};
    const bool by_share = options.top_p < 1ull << 32;
    // One loop, so that there is one copy of the code.
#pragma unroll 1
    for (u32 step = options.top_k > 0 ? 0 : 1; step < 2; ++step) {
        if (step == 1 && !by_share) break;
        const bool counts = step == 0;
        kept.cut = select(selection, team, row, kept.cut, linear, Weigher{kept, counts},
                          [&](u64 sum) {
                              if (counts) return static_cast<u64>(options.top_k);
                              const u64 share = __umul64hi(sum, options.top_p << 32);
                              return max(share, static_cast<u64>(1));
                          });
    }
    kept.floor = options.floor;
    return kept;
}

// What is called apart keeps its registers out of the way of the rows that go without:
// what came of it, and the meetings of the team until then.
template <typename Result>
struct Apart {
    Result result;
    u32 meetings;
};

template <typename Row>
__device__ __noinline__ Apart<Kept> filter_apart(Selection& selection, Team team, Row row,
                                                 Options options, Scale scale) {
    const Kept kept = filter(selection, team, row, options, scale);
    return {kept, team.meetings};
}

template <typename Row>
__device__ __noinline__ Apart<bool> send_tied_apart(Few& few, Team team, Row row, u32 k,
                                                    u32 own_group, u32 largest_key) {
    const bool sent = send_tied(few, team, row, k, own_group, largest_key);
    return {sent, team.meetings};
}

template <typename Row>
__device__ __noinline__ Apart<Shares> sum_and_send_apart(Few& few, Team team, Row row, u32 bound,
                                                         u32 largest_key, Scale scale, u64 top_p) {
    const Shares shares = sum_and_send(few, team, row, bound, largest_key, scale, top_p);
    return {shares, team.meetings};
}

// Lists the first `wanted` of a row's order, of which many are alike, in the block that leads: LISTED, or
// SELECTED as below.
template <typename Row>
INLINE How send_tied_first(Few& few, Team& team, const Row& row, u32 wanted, u32 own_segment,
                           u32 largest_key) {
    const Apart<bool> tied = send_tied_apart(few, team, row, wanted, own_segment, largest_key);
    team.meetings = tied.meetings;
    return tied.result ? How::LISTED : How::SELECTED;
}

// Sends the first `wanted` of a row's order to the block that leads, if they are few and not too many
// entries are as large: SENT, with some more of them, or LISTED. Else SELECTED: they are to be found in
// the row. `bound` is an entry that as many segments of the row reach; no entry below `heavy` is kept.
template <typename Row>
INLINE How send_first(Few& few, Team& team, const Row& row, const float* tops, const Share& share,
                      u32 wanted, float bound, float heavy, u32 own_segment, u32 largest_key) {
    const u32 sent = send_few(few, team, row, tops, share, fmaxf(bound, heavy));
    if (sent >= wanted || (sent > 0 && heavy >= bound)) return How::SENT;
    if (sent > 0) return How::SELECTED;
    return send_tied_first(few, team, row, wanted, own_segment, largest_key);
}
