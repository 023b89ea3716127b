// append_tokens: appends the tokens of a decode step to the texts of its requests.
//
// One warp handles one request. Its 32 lanes read 32 new tokens at once, and each lane compares its
// token with the stop tokens of the request. A ballot then finds the first lane whose token ends
// the text. A request waits three times for memory: for its lengths and counts, for its new tokens,
// and for its stop tokens. Its writes follow. Here lane 1 has a stop token:
//
//     lane            0    1    2    3  ...
//     new token       9    2    7    .
//     stop token 2?   -    x    -    .      -> two tokens are taken, finished = 1
//
// Bytes: 70 KB for 1024 requests with 8 new tokens each. Latency decides, not bandwidth: an empty
// kernel takes 0.8 us.
#include "params/append_tokens.cuh"

constexpr u32 LANES = 32;
constexpr u32 ALL = 0xFFFFFFFFu;

INLINE bool is_stop(const Params& p, u64 request, i64 token) {
    bool found = false;
    for (u32 i = 0; i < p.stops; i++) found |= p.stop_tokens.at(request, i) == token;
    return found;
}

// The tokens that a request takes of its new tokens.
struct Taken {
    // The number of taken tokens, and the last of them; -1 if there is none.
    u32 count;
    i32 last;
    i32 finished;
};

// Appends new tokens to the text of a request that has not finished. `length` is the length of the
// text before this step, `count` the number of new tokens. Invalid tokens set bits of `bits`.
INLINE Taken take(const Params& p, u64 request, u32 length, i64 max_length, u32 count, u32& bits) {
    const u32 lane = threadIdx.x % LANES;
    const u32 limit = clamped(max_length, p.max_len);
    const u32 room = min(count, limit > length ? limit - length : 0);
    Taken taken = {0, -1, RUNNING};
    for (u32 base = 0; base < room; base += LANES) {
        const bool active = base + lane < room;
        const i64 token = active ? p.new_tokens.at(request, base + lane) : 0;
        const bool bad = active && (token < 0 || token > 0x7FFFFFFF);
        const bool stop = active && !bad && is_stop(p, request, token);
        const u32 bads = __ballot_sync(ALL, bad);
        const u32 stops = __ballot_sync(ALL, stop);
        // The first lane with a bad token, and the first lane with a stop token; 32 if there is
        // none.
        const u32 first_bad = bads == 0 ? LANES : __ffs(bads) - 1;
        const u32 first_stop = stops == 0 ? LANES : __ffs(stops) - 1;
        const bool stopped = first_stop < first_bad;
        const u32 here = stopped ? first_stop + 1 : min(first_bad, min(room - base, LANES));
        if (lane < here) p.tokens.set(request, length + base + lane, static_cast<i32>(token));
        taken.count = base + here;
        const i32 last = __shfl_sync(ALL, static_cast<i32>(token), here == 0 ? 0 : here - 1);
        if (here != 0) taken.last = last;
        if (stopped) taken.finished = STOPPED;
        if (!stopped && bads != 0) bits |= OUT_OF_RANGE;
        if (stopped || bads != 0) break;
    }
    if (taken.finished == RUNNING && length + taken.count >= limit) taken.finished = AT_LENGTH;
    return taken;
}

INLINE void append(const Params& p) {
    const u32 warps = THREADS / LANES;
    const u64 step = static_cast<u64>(gridDim.x) * warps;
    for (u64 request = static_cast<u64>(blockIdx.x) * warps + threadIdx.x / LANES;
         request < p.batch; request += step) {
        // All lanes read the same address, so the warp makes one read.
        const i64 given_length = p.lengths.at(request, 0);
        const i64 given_count = p.new_counts[request];
        const i64 max_length = p.max_lengths.data == nullptr ? p.max_len : p.max_lengths[request];
        const i32 before = p.finished == nullptr ? RUNNING : p.finished[request];
        const u32 length = clamped(given_length, p.max_len);
        u32 bits = given_length == length ? 0 : BAD_LENGTHS;
        Taken taken = {0, -1, before};
        if (before == RUNNING) {
            const u32 count = clamped(given_count, p.n);
            if (given_count != count) bits |= BAD_LENGTHS;
            taken = take(p, request, length, max_length, count, bits);
        }
        // All lanes must have read `lengths` and `finished` before lane 0 overwrites them.
        __syncwarp();
        if (threadIdx.x % LANES == 0) {
            const u32 after = length + taken.count;
            p.lengths.set(request, 0, static_cast<i32>(after));
            p.appended[request] = static_cast<i32>(taken.count);
            if (p.finished != nullptr) p.finished[request] = taken.finished;
            if (p.last_tokens != nullptr) {
                i64 last = taken.last;
                if (taken.count == 0 && after != 0) last = p.tokens.at(request, after - 1);
                if (p.tokens.wide) {
                    static_cast<i64*>(p.last_tokens)[request] = last;
                } else {
                    static_cast<i32*>(p.last_tokens)[request] = static_cast<i32>(last);
                }
            }
            raise(p.flags, bits);
        }
    }
}

SPEC_KERNEL(append_tokens, append, Params, THREADS)
