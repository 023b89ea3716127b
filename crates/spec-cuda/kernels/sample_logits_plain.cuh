// Draws tokens of a row of sample_logits from all tokens except those that min-p drops.
//
// Kernels differ in what they write of a row: one token, or several and what is reported of them. A
// sink has this difference, and `draw_row` has the rest.
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
template <typename T, typename Row, typename Noise, typename Visit, typename Visitor, typename Pick,
          typename Begin>
INLINE void survey_plain(const Params<T>& p, u32 index, const Request& request,
                         const LeaderRace& leader, const Row& row, const WarpRange& range,
                         Noise& noise, Visit&& visit, Visitor&& visitor, Pick&& pick,
                         Begin&& begin) {
    const auto meanwhile = [&](u32 group) {
        if (group == range.begin) begin();
        if (group >= noise.next && request.draws()) {
            noise.advance(request.draw(p), request.inverse());
        }
    };
    // If `survey` does not read ahead, it does not call `meanwhile`.
    if (row.streamed(range.begin, range.end) == range.begin) begin();
    const float raw = row.survey(range.begin, range.end, leader.lane, visit,
                                 static_cast<Visitor&&>(visitor), meanwhile, pick);
    if (__any_sync(ALL_LANES, !(raw <= LARGEST)) && leader.lane == 0) {
        raise_of(p, index, NON_FINITE);
    }
    leader.fill_up(range);
}

// Reads a warp's range of a row; the range is the `piece`-th of the row. Stores for the race the
// largest logit of each group, the groups' noise, and the warp's early token. The warp computes
// noise while logits are in flight. Calls `begin` while the first logits are in flight; `begin`
// must wait for the warp's request. `visitor` receives every logit (LogitGroups::survey); then
// `end` is called.
template <typename T, typename Row, typename Visitor, typename Begin, typename End>
INLINE Drawing read_plain(const Params<T>& p, u32 index, const Request& request,
                          const LeaderRace& leader, const Row& row, const WarpRange& range,
                          u32 piece, PicksOfWarp& picked, Visitor&& visitor, Begin&& begin,
                          End&& end) {
    const NoFilter filter;
    const Picks<Row> picks(picked, row, range.begin, range.end);
    LeaderRace::Noise<Picks<Row>, NoFilter> noise(leader, picks, range, filter);
    const auto visit = [&](u32 group, float its) { leader.tops[group] = its; };
    survey_plain(p, index, request, leader, row, range, noise, visit,
                 static_cast<Visitor&&>(visitor), picks, begin);
    end();
    const Drawing drawing = {Options(request), request.draw(p)};
    if (!drawing.options.greedy) noise.finish(drawing.draw, drawing.options.inverse, piece);
    return drawing;
}

// Shared memory of a block that draws from a row.
struct DrawMemory {
    LeaderRace::Shared race;
    // The largest logit of each group; the leading block also receives those of other blocks here.
    alignas(16) float tops[LeaderRace::MAX_GROUPS];
    Arrivals arrivals;
    // A copy for each warp, because warps draw noise before the first barrier of the block.
    Request requests[SELECT_WARPS];
};

// What the leading block knows of a row when it ends the row.
template <typename T, typename Row>
struct RowEnd {
    const Params<T>& p;
    u32 index;
    const LeaderRace& leader;
    const Row& row;
    const Drawing& drawing;
    const LeaderRace::Front& front;
    // The warps of the cluster.
    u32 pieces;

    INLINE bool is_empty() const { return front.largest_key <= LOWEST_KEY; }
    INLINE float largest() const { return exact::value_of_key(front.largest_key); }
    // What the row's tokens race by. The row must not be empty.
    INLINE Racers<Row, NoFilter> racers() const {
        const Options& options = drawing.options;
        return {drawing.draw,  row,         {largest(), options.inverse},
                options.floor, negative_infinity(), NoFilter{}};
    }
};

// Draws from a row, by a cluster of blocks. A sink has:
//
//     Row                    how a row is read, a LogitGroups
//     picks(warp)            shared memory for what a warp picks while it reads
//     visitor()              what receives every logit (LogitGroups::survey)
//     clear()                empties its shared memory, in one thread
//     begin(request)         in each warp, while the first logits are in flight
//     end(piece, lane)       in each warp, when it has read its range
//     sent()                 bytes that each warp of the other blocks sends
//     send(blocks, arrivals, piece, lane)
//                            sends them to the leading block
//     finish(end)            by the leading block: writes the outputs
template <typename T, typename Sink>
INLINE void draw_row(const Params<T>& p, u32 index, const Senders& blocks, const u32* mask,
                     DrawMemory& memory, Sink& sink) {
    const LeaderRace leader(memory.race, memory.tops, p.vocab);
    Request& request = memory.requests[leader.warp];
    if (leader.lane == 0) request.fetch_plain(p, index);
    // While the first logits are in flight.
    const auto begin = [&] {
        if (blocks.size > 1) LeaderRace::open(blocks, memory.arrivals);
        if (threadIdx.x == 0) {
            memory.race.begin();
            sink.clear();
        }
        Request::arrive();
        __syncwarp();
        sink.begin(request);
    };
    const typename Sink::Row row = {p.logits[index], mask, p.vocab};
    const u32 piece = blocks.rank * SELECT_WARPS + leader.warp;
    const u32 pieces = blocks.size * SELECT_WARPS;
    const WarpRange range(p.vocab, piece, pieces);
    const auto end = [&] { sink.end(piece, leader.lane); };
    const Drawing drawing = read_plain(p, index, request, leader, row, range, piece,
                                       sink.picks(leader.warp), sink.visitor(), begin, end);
    if (blocks.size > 1) blocks.wait_started();
    if (blocks.rank != 0) {
        sink.send(blocks, memory.arrivals, piece, leader.lane);
        return leader.send(blocks, memory.arrivals, range, piece);
    }
    leader.await(blocks, memory.arrivals, sink.sent());
    const LeaderRace::Front front = leader.front(drawing.options.inverse, pieces);
    sink.finish(RowEnd<T, typename Sink::Row>{p, index, leader, row, drawing, front, pieces});
}
