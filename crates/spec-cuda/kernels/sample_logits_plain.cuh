// How sample_logits reads a row from all of whose tokens it draws, but for what min-p drops.
#pragma once

#include "race_lead.cuh"
#include "sample_logits_race.cuh"

// What a row's tokens are drawn by.
struct Drawing {
    Options options;
    Draw draw;
};

// Reads a warp's share of the row `index` for `visit`, `see` and `pick` (LogitGroups::survey), and draws noise while logits
// are on their way. `begin` runs while the first of them are, and has the warp's request arrive.
template <typename T, typename Row, typename Noise, typename Visit, typename See, typename Pick, typename Begin>
INLINE void survey_plain(const Params<T>& p, u32 index, const Request& request, const RaceLead& lead,
                         const Row& row, const Share& share, Noise& noise, Visit&& visit, See&& see, Pick&& pick, Begin&& begin) {
    const auto meanwhile = [&](u32 group) {
        if (group == share.begin) begin();
        if (group >= noise.next && request.draws()) noise.advance(request.draw(p), request.inverse());
    };
    // Where `survey` reads nothing ahead.
    if (row.streamed(share.begin, share.end) == share.begin) begin();
    const float raw = row.survey(share.begin, share.end, lead.lane, visit, static_cast<See&&>(see), meanwhile, pick);
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && lead.lane == 0) raise_of(p, index, NON_FINITE);
    lead.fill_up(share);
}

// Reads a warp's share of a row, which is the `piece`-th of the row's shares. Leaves for the race the largest
// logit of each group, the groups' noise and the warp's early token. The warp draws noise while logits are on
// their way. `begin` runs while the first of them are, and has the warp's request arrive; `see` has every logit
// (LogitGroups::survey), and then `end` runs.
template <typename T, typename Row, typename See, typename Begin, typename End>
INLINE Drawing read_plain(const Params<T>& p, u32 index, const Request& request, const RaceLead& lead,
                          const Row& row, const Share& share, u32 piece, PicksOfWarp& picked, See&& see, Begin&& begin,
                          End&& end) {
    const KeepsAll keeps;
    const Picks<Row> picks(picked, row, share.begin, share.end);
    RaceLead::Noise<Picks<Row>, KeepsAll> noise(lead, picks, share, keeps);
    const auto visit = [&](u32 group, float its) { lead.tops[group] = its; };
    survey_plain(p, index, request, lead, row, share, noise, visit, static_cast<See&&>(see), picks, begin);
    end();
    const Drawing drawing = {Options(request), request.draw(p)};
    if (!drawing.options.greedy) noise.finish(drawing.draw, drawing.options.inverse, piece);
    return drawing;
}
