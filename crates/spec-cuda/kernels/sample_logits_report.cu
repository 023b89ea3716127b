// sample_logits: what is reported of the tokens that a row drew, and of its likeliest ones, by the logits
// as they are. Runs after the kernel that draws, and only where something is asked for.
//
// A team of blocks owns a row and reads it once: the largest logit of each group of 64, a sum of
// exponentials that each thread keeps beside the largest logit it has met, and how many logits are at least
// as large as the tokens'. The likeliest tokens come as those of a top-k do (sample_logits_few.cuh).
//
// Bytes: the logits once more, mostly from L2.
#include "sample_logits_cut.cuh"

// Ranks that one reading counts.
constexpr u32 RANKS = 8;

// A sum of exponentials, in units of that of the largest logit met so far.
struct ExpSum {
    float largest;
    float sum;

    INLINE ExpSum() : largest(-LARGEST), sum(0.0f) {}

    // Logits that are no number weigh nothing. A sum that has met infinity is not used.
    template <u32 N>
    INLINE void add(const float (&values)[N]) {
        float top = values[0];
#pragma unroll
        for (u32 j = 1; j < N; ++j) top = fmaxf(top, values[j]);
        if (top > largest) {
            sum *= __expf(largest - top);
            largest = top;
        }
#pragma unroll
        for (u32 j = 0; j < N; ++j) sum += __expf(fmaxf(values[j], negative_infinity()) - largest);
    }

    INLINE void add(const ExpSum& other) {
        const float top = fmaxf(largest, other.largest);
        sum = sum * __expf(largest - top) + other.sum * __expf(other.largest - top);
        largest = top;
    }

    INLINE u64 bits() const {
        return static_cast<u64>(__float_as_uint(largest)) << 32 | __float_as_uint(sum);
    }

    INLINE static ExpSum of(u64 bits) {
        ExpSum sum;
        sum.largest = __uint_as_float(static_cast<u32>(bits >> 32));
        sum.sum = __uint_as_float(static_cast<u32>(bits));
        return sum;
    }

    // Over a warp.
    INLINE void fold() {
#pragma unroll
        for (u32 o = WARP / 2; o > 0; o /= 2) {
            ExpSum other;
            other.largest = __shfl_xor_sync(ALL_LANES, largest, o);
            other.sum = __shfl_xor_sync(ALL_LANES, sum, o);
            add(other);
        }
    }
};

// ln softmax of a row's logits.
struct LogSoftmax {
    float largest;
    // Of the sum, in units of the largest.
    float logarithm;

    INLINE float operator()(float x) const {
        // NaN and negative infinity.
        if (!(x > negative_infinity())) return negative_infinity();
        return (x == largest ? 0.0f : exact::sub(x, largest)) - logarithm;
    }
};

union Shared {
    Selection selection;
    Few few;

    INLINE Shared() {}
};

// What is made of each logit as a row is read: the sum, and COUNTED tokens' ranks.
template <u32 COUNTED>
struct Seen {
    ExpSum sum;
    float least[COUNTED];
    u32 counts[COUNTED];

    INLINE Seen(const float* entries, u32 count) {
#pragma unroll
        for (u32 i = 0; i < COUNTED; ++i) {
            least[i] = i < count ? entries[i] : nothing();
            counts[i] = 0;
        }
    }

    INLINE bool begin(float) const { return true; }

    template <u32 N>
    INLINE void operator()(const float (&values)[N], bool there) {
        if (!there) return;
        sum.add(values);
#pragma unroll
        for (u32 i = 0; i < COUNTED; ++i) {
#pragma unroll
            for (u32 j = 0; j < N; ++j) counts[i] += values[j] >= least[i];
        }
    }
};

// Reads the row: `ranks` of the first of `count` entries grow by how many logits are as large, and `tops`
// has the largest of each group where there is room. Returns the sum of the warp's share.
template <u32 COUNTED, typename T>
__device__ __noinline__ ExpSum read_row(const LogitGroups<T, false> row, const Share share, u32 lane,
                                        float* tops, const float* entries, u32* ranks, u32 count,
                                        float& top) {
    Seen<COUNTED> seen(entries, count);
    float largest = negative_infinity();
    const auto visit = [&](u32 group, float its) {
        largest = fmaxf(largest, its);
        if (tops != nullptr) tops[group - share.begin] = its;
    };
    row.survey(share.begin, share.end, lane, visit, seen);
    top = largest;
#pragma unroll
    for (u32 i = 0; i < COUNTED; ++i) {
        const u32 all = __reduce_add_sync(ALL_LANES, seen.counts[i]);
        if (lane == 0 && i < count) atomicAdd(&ranks[i], all);
    }
    seen.sum.fold();
    return seen.sum;
}

template <typename T>
INLINE void report(const Report<T>& p) {
    __shared__ Team::Shared told;
    __shared__ Shared shared;
    __shared__ alignas(16) float all_tops[SELECT_WARPS][RaceShared::KEPT];
    // Of the tokens drawn: their logits, and how many are as large.
    __shared__ float entries[FinishList::DRAWS];
    __shared__ u32 ranks[FinishList::DRAWS];
    Team team(told);
    shared.few.begin();
    const u32 index = blockIdx.x >> (31 - __clz(team.blocks.size));
    if (threadIdx.x < p.draws) {
        const i64 token = p.tokens.at(index, threadIdx.x);
        const bool there = token >= 0 && token < static_cast<i64>(p.vocab);
        const float x = there ? to_f32(p.logits[index][token]) : nothing();
        entries[threadIdx.x] = there ? fmaxf(x, negative_infinity()) : nothing();
        ranks[threadIdx.x] = 0;
    }
    team.blocks.sync();
    const LogitGroups<T, false> groups = {p.logits[index], nullptr, p.vocab};
    LogitRow<T> row(p.logits[index], p.vocab, team, Masked<T>{nullptr, p.vocab, 0, {0.0f, 0.0f}});
    const Share share(p.vocab, team.piece(), team.pieces());
    const bool fits = Share::most(p.vocab, team.pieces()) <= RaceShared::KEPT;
    float* const tops = fits ? all_tops[team.warp] : nullptr;
    u32* const counted = team.blocks.of(ranks, 0);
    float top = 0.0f;
    ExpSum sum;
    const u32 ranked = p.ranks.data == nullptr ? 0 : p.draws;
    if (ranked <= 1) {
        sum = read_row<1>(groups, share, team.lane, tops, entries, counted, ranked, top);
    } else {
        for (u32 first = 0; first < ranked; first += RANKS) {
            sum = read_row<RANKS>(groups, share, team.lane, tops, entries + first, counted + first,
                                  ranked - first, top);
        }
    }
    team.tell(sum.bits());
    // In the same order in every warp.
    ExpSum all;
    for (u32 i = team.lane; i < team.pieces(); i += WARP) all.add(ExpSum::of(team.told(i)));
    all.fold();
    team.pass_largest(key_of(top));
    const u32 largest_key = team.largest_told(MAX_PIECES);
    const float largest = exact::value_of_key(largest_key);
    const u32 own_segment =
        threadIdx.x < MAX_PIECES ? static_cast<u32>(team.told(threadIdx.x)) : 0;
    LogSoftmax softmax = {largest, logf(all.sum) + (all.largest - largest)};
    if (!exact::finite(largest)) {
        // The infinite ones share all of it.
        u32 those = 0;
        row.each(team.lane, [&](const float(&values)[LogitRow<T>::N], u32) {
#pragma unroll
            for (u32 j = 0; j < LogitRow<T>::N; ++j) those += values[j] == largest;
        });
        team.tell(__reduce_add_sync(ALL_LANES, those));
        softmax.logarithm = logf(static_cast<float>(team.sum_told().all));
    }
    if (team.blocks.rank == 0 && threadIdx.x < p.draws) {
        const float x = entries[threadIdx.x];
        const bool there = x == x;
        if (p.logprobs.data != nullptr) p.logprobs[index][threadIdx.x] = softmax(x);
        if (p.ranks.data != nullptr) {
            // Of negative infinity every logit is as large, NaN too.
            const u32 rank = x > negative_infinity() ? ranks[threadIdx.x] : p.vocab;
            p.ranks[index][threadIdx.x] = there ? static_cast<i32>(rank) : 0;
        }
    }
    if (p.top == 0) return;

    const u32 wanted = min(p.top, p.vocab);
    Few& few = shared.few;
    How how = How::SELECTED;
    if (Few::serves(wanted)) {
        const Bound reached(few, own_segment, wanted, largest_key, Bound::STEPS);
        how = send_first(few, team, row, tops, share, wanted, exact::value_of_key(reached.key),
                         negative_infinity(), own_segment, largest_key);
    }
    if (how == How::SELECTED) {
        const Scale scale = {largest, 1.0f};
        const Cut cut = largest_key > LOWEST_KEY
                            ? first_apart(shared.selection, team, row, wanted, scale)
                            : Cut{LOWEST_KEY, wanted};
        list_kept(few, team, row, cut);
        how = How::LISTED;
    }
    if (team.blocks.rank != 0) return;
    if (how == How::SENT) gather_few(few);
    sort_few(few, how == How::SENT ? few.listed : wanted, wanted);
    for (u32 i = threadIdx.x; i < p.top; i += SELECT_THREADS) {
        const u64 entry = i < wanted ? few.sorted[i] : 0;
        const float x = i < wanted ? exact::value_of_key(static_cast<u32>(entry >> 32)) : nothing();
        if (p.top_tokens.data != nullptr) {
            p.top_tokens[index][i] = i < wanted ? static_cast<i32>(NONE - static_cast<u32>(entry)) : -1;
        }
        if (p.top_logprobs.data != nullptr) p.top_logprobs[index][i] = softmax(x);
    }
}

#define REPORTER(dtype, T) \
    SPEC_KERNEL_BLOCKS(sample_logits_report_##dtype, report<T>, Report<T>, SELECT_THREADS, 2)

REPORTER(f32, float)
REPORTER(f16, f16)
REPORTER(bf16, bf16)
