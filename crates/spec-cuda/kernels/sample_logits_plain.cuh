// Reads a row of sample_logits whose tokens are drawn from all tokens except those that min-p
// drops.
#pragma once

#include "race_leader_block.cuh"
#include "sample_logits_race.cuh"

// The options and the random numbers with which a row's tokens are drawn.
struct Drawing {
    Options options;
    Draw draw;
};

// Reads a warp's range of row `index` for `visit`, `visitor` and `pick` (LogitGroups::survey), and
// computes noise while logits are in flight. Calls `begin` while the first logits are in flight;
// `begin` must wait for the warp's request.
template <typename T, typename Row, typename Noise, typename Visit, typename Visitor, typename Pick, typename Begin>
INLINE void survey_plain(const Params<T>& p, u32 index, const Request& request, const LeaderRace& leader,
                         const Row& row, const WarpRange& range, Noise& noise, Visit&& visit, Visitor&& visitor, Pick&& pick, Begin&& begin) {
    const auto meanwhile = [&](u32 group) {
        if (group == range.begin) begin();
        if (group >= noise.next && request.draws()) noise.advance(request.draw(p), request.inverse());
    };
    // If `survey` does not read ahead, it does not call `meanwhile`.
    if (row.streamed(range.begin, range.end) == range.begin) begin();
    const float raw = row.survey(range.begin, range.end, leader.lane, visit, static_cast<Visitor&&>(visitor), meanwhile, pick);
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && leader.lane == 0) raise_of(p, index, NON_FINITE);
    leader.fill_up(range);
}

// Reads a warp's range of a row; the range is the `piece`-th of the row. Stores for the race the
// largest logit of each group, the groups' noise, and the warp's early token. The warp computes
// noise while logits are in flight. Calls `begin` while the first logits are in flight; `begin`
// must wait for the warp's request. `visitor` receives every logit (LogitGroups::survey); then
// `end` is called.
template <typename T, typename Row, typename Visitor, typename Begin, typename End>
INLINE Drawing read_plain(const Params<T>& p, u32 index, const Request& request, const LeaderRace& leader,
                          const Row& row, const WarpRange& range, u32 piece, PicksOfWarp& picked, Visitor&& visitor, Begin&& begin,
                          End&& end) {
    const NoFilter filter;
    const Picks<Row> picks(picked, row, range.begin, range.end);
    LeaderRace::Noise<Picks<Row>, NoFilter> noise(leader, picks, range, filter);
    const auto visit = [&](u32 group, float its) { leader.tops[group] = its; };
    survey_plain(p, index, request, leader, row, range, noise, visit, static_cast<Visitor&&>(visitor), picks, begin);
    end();
    const Drawing drawing = {Options(request), request.draw(p)};
    if (!drawing.options.greedy) noise.finish(drawing.draw, drawing.options.inverse, piece);
    return drawing;
}
