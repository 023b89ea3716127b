// The design of InfiniOp's topkrouter: a block for each token and a thread for each expert, for 256
// experts in 8 groups of which 4 are kept.
//
//   1  sigmoid and bias                            a thread for each expert
//   2  WarpMergeSort of each group, descending     a warp for each group
//   3  the sum of the two largest of each group;   the first warp
//      WarpMergeSort of the 8 sums; the first
//      4 groups are kept
//   4  experts of the other groups become 0;       the block
//      BlockRadixSort of all 256, descending
//   5  weights divided by their sum                the first warp
//
// Where the published design uses __expf, this kernel uses the contract's exact sigmoid, and its
// sort keys are integers with the contract's order of floats, so indices agree to the bit. Both
// sorts are stable, so the lower index comes first among equal keys.
//
// Bytes: each logit read once, topk weights and indices written.
#include "blocks.cuh"

template <typename T>
struct Params {
    Rows<const T> x;
    const float* bias;
    Rows<float> weights;
    Rows<i32> indices;
    u32* flags;
    u32 topk;
    float scale;
};
static_assert(sizeof(Params<float>) == 72);

constexpr u32 THREADS = 256;
constexpr u32 GROUPS = THREADS / WARP;
constexpr u32 KEPT = 4;

struct Descending {
    template <typename K>
    INLINE bool operator()(const K& a, const K& b) const {
        return a > b;
    }
};

INLINE float minus_infinity() { return __uint_as_float(0xFF800000u); }
INLINE float number(float value) { return value != value ? minus_infinity() : value; }

template <typename T>
INLINE void route(const Params<T>& p) {
    using GroupSort = cub::WarpMergeSort<float, 1, WARP>;
    using SumSort = cub::WarpMergeSort<float, 1, WARP, u32>;
    using ExpertSort = cub::BlockRadixSort<u32, THREADS, 1, u32>;
    __shared__ union {
        typename GroupSort::TempStorage groups[GROUPS];
        typename SumSort::TempStorage sums;
        typename ExpertSort::TempStorage experts;
    } memory;
    __shared__ float scores[THREADS];
    __shared__ float group_scores[GROUPS];
    __shared__ u32 group_kept[GROUPS];
    const u32 expert = threadIdx.x;
    const u32 group = expert / WARP;
    const u32 lane = expert % WARP;
    const u64 token = blockIdx.x;

    const float x = to_f32(p.x[token][expert]);
    const float score = exact::sigmoid(x);
    const float bias = p.bias != nullptr ? p.bias[expert] : 0.0f;
    if (!exact::finite(x) || !exact::finite(bias)) raise(p.flags, NON_FINITE);
    const float choice = x != x ? minus_infinity() : number(exact::add(score, bias));
    scores[expert] = score;

    float sorted[1] = {choice};
    GroupSort(memory.groups[group]).Sort(sorted, Descending());
    const float second = __shfl_down_sync(ALL_LANES, sorted[0], 1);
    if (lane == 0) {
        group_scores[group] = number(exact::add(sorted[0], second));
        group_kept[group] = 0;
    }
    __syncthreads();
    if (group == 0) {
        float sums[1] = {lane < GROUPS ? group_scores[lane] : minus_infinity()};
        u32 from[1] = {lane};
        SumSort(memory.sums).StableSort(sums, from, Descending());
        if (lane < KEPT) group_kept[from[0]] = 1;
    }
    __syncthreads();
    u32 key[1] = {exact::sort_key(group_kept[group] ? choice : 0.0f)};
    u32 index[1] = {expert};
    ExpertSort(memory.experts).SortDescending(key, index);
    if (group == 0) {
        const float chosen = lane < p.topk ? scores[index[0]] : 0.0f;
        float sum = chosen;
#pragma unroll
        for (u32 step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (lane < p.topk) {
            // Multiplies by the scale first: the scale divided by a tiny sum could overflow.
            p.weights[token][lane] = p.scale * chosen / (sum + 1e-20f);
            p.indices[token][lane] = static_cast<i32>(index[0]);
        }
    }
}
SPEC_KERNEL(topk_router_f32, route, Params<float>, THREADS)
SPEC_KERNEL(topk_router_f16, route, Params<f16>, THREADS)
SPEC_KERNEL(topk_router_bf16, route, Params<bf16>, THREADS)
