// Cuts of a row of logits by top-k and top-p: how the first entries of a row come to the leading
// block, and the cut in the row itself if many entries are kept.
#pragma once

#include "sample_logits_candidate_list.cuh"

// The weight of an entry in a selection: 1 for top-k, or the weight of its logit for top-p.
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
            const auto weights_of = [&](const float(&entries)[N], u32 first, u64(&weights)[N]) {
                return kept.vector(by, entries, first, weights);
            };
            add_row(s, lane, row, linear, weights_of);
        }
    }
};

// Where the cut of a row with filters is found: among candidates that were sent to the leading
// block (SENT) or are in its list (LISTED); among the entries equal to the largest (TIES); or by a
// selection in the row (SELECTED).
enum class CutRoute { SENT, LISTED, TIES, SELECTED };

// The entries that top-k, then top-p keep; each filter applies only if it is requested.
template <typename Row>
INLINE Kept filter(Selection& selection, Team& team, const Row& row, const Options& options,
                       const Scale& scale) {
    // All threads have read what was in the selection's memory before.
    __syncthreads();
    Kept kept = {scale, Cut{0, 0}, 0};
    // An entry more than 28 temperatures below the largest has the weight 0 in units of 2^-40.
    const Linear linear = {scale.largest, exact::mul(scale.inverse, (SELECT_BINS - 1) / 28.0f)};
    const bool by_top_p = options.top_p < 1ull << 32;
    // A loop, so that the code of `select` exists once.
#pragma unroll 1
    for (u32 step = options.top_k > 0 ? 0 : 1; step < 2; ++step) {
        if (step == 1 && !by_top_p) break;
        const bool counts = step == 0;
        kept.cut = select(selection, team, row, kept.cut, linear, Weigher{kept, counts},
                          [&](u64 sum) {
                              if (counts) return static_cast<u64>(options.top_k);
                              const u64 limit = __umul64hi(sum, options.top_p << 32);
                              return max(limit, static_cast<u64>(1));
                          });
    }
    kept.floor = options.floor;
    return kept;
}

// The result of a function that is not inlined, and the number of exchanges of its copy of the
// team. Such functions take no registers from rows that do not call them.
template <typename Result>
struct OutOfLine {
    Result result;
    u32 exchanges;
};

template <typename Row>
__device__ __noinline__ OutOfLine<Kept> filter_out_of_line(Selection& selection, Team team, Row row,
                                                 Options options, Scale scale) {
    const Kept kept = filter(selection, team, row, options, scale);
    return {kept, team.exchanges};
}

template <typename Row>
__device__ __noinline__ OutOfLine<bool> send_tied_out_of_line(CandidateList& candidates, Team team,
                                                              Row row, u32 k, u32 own_group,
                                                              u32 largest_key) {
    const bool sent = send_tied(candidates, team, row, k, own_group, largest_key);
    return {sent, team.exchanges};
}

template <typename Row>
__device__ __noinline__ OutOfLine<TopPSums> sum_and_send_out_of_line(CandidateList& candidates,
                                                                     Team team, Row row, u32 bound,
                                                                     u32 largest_key, Scale scale,
                                                                     u64 top_p) {
    const TopPSums sums = sum_and_send(candidates, team, row, bound, largest_key, scale, top_p);
    return {sums, team.exchanges};
}

// Lists the first `wanted` entries of a row's order in the leading block, for a row with many equal
// entries. Returns LISTED; SELECTED if they must be selected in the row.
template <typename Row>
INLINE CutRoute send_tied_first(CandidateList& candidates, Team& team, const Row& row, u32 wanted,
                                u32 own_segment, u32 largest_key) {
    const OutOfLine<bool> tied =
        send_tied_out_of_line(candidates, team, row, wanted, own_segment, largest_key);
    team.exchanges = tied.exchanges;
    return tied.result ? CutRoute::LISTED : CutRoute::SELECTED;
}

// Sends the first `wanted` entries of a row's order to the leading block. Returns SENT (with some
// more entries), LISTED, or SELECTED if there are too many entries as large, so that they must be
// selected in the row. At least `wanted` segments of the row reach `bound`; entries below `heavy`
// are not kept.
template <typename Row>
INLINE CutRoute send_first(CandidateList& candidates, Team& team, const Row& row, const float* tops,
                           const WarpRange& range, u32 wanted, float bound, float heavy,
                           u32 own_segment, u32 largest_key) {
    const u32 sent = send_candidates(candidates, team, row, tops, range, fmaxf(bound, heavy));
    if (sent >= wanted || (sent > 0 && heavy >= bound)) return CutRoute::SENT;
    if (sent > 0) return CutRoute::SELECTED;
    return send_tied_first(candidates, team, row, wanted, own_segment, largest_key);
}
