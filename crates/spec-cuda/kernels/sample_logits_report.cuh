// Reports the tokens that a row drew, and the row's most likely tokens, by the block that has the
// largest logit of each group of tokens.
#pragma once

#include "exp_sum.cuh"
#include "sample_logits_order.cuh"

// The drawn tokens: their logits, NaN if there is no token, and the number of logits at least as
// large. If some logits are infinite, infinity is one more threshold.
struct Drawn {
    float logits[MAX_DRAWS + 1];
    u32 reached[MAX_DRAWS + 1];
};

template <typename T>
INLINE void write_drawn(const Report<T>& p, u32 index, const Drawn& drawn,
                        const LogSoftmax& softmax) {
    if (threadIdx.x >= p.draws) return;
    const float x = drawn.logits[threadIdx.x];
    if (p.logprobs.data != nullptr) p.logprobs[index][threadIdx.x] = softmax(x);
    if (p.ranks.data == nullptr) return;
    // Every logit, even NaN, counts as at least as large as negative infinity.
    const u32 rank = x > negative_infinity() ? drawn.reached[threadIdx.x] : p.vocab;
    p.ranks[index][threadIdx.x] = x == x ? static_cast<i32>(rank) : 0;
}

// Writes the report of a row that is padding. By one block.
template <typename T>
__device__ __noinline__ void write_padded_report(const Report<T>& p, u32 row) {
    if (threadIdx.x < p.draws) {
        if (p.logprobs.data != nullptr) p.logprobs[row][threadIdx.x] = negative_infinity();
        if (p.ranks.data != nullptr) p.ranks[row][threadIdx.x] = 0;
    }
    for (u32 i = threadIdx.x; i < p.top; i += blockDim.x) {
        if (p.top_tokens.data != nullptr) p.top_tokens[row][i] = -1;
        if (p.top_logprobs.data != nullptr) p.top_logprobs[row][i] = negative_infinity();
    }
}

template <typename T>
INLINE void write_likeliest(const Report<T>& p, u32 index, const u64* sorted, u32 count,
                            const LogSoftmax& softmax) {
    for (u32 i = threadIdx.x; i < p.top; i += SELECT_THREADS) {
        const u64 entry = i < count ? sorted[i] : 0;
        const float x = i < count ? exact::value_of_key(static_cast<u32>(entry >> 32)) : nothing();
        const i32 token = i < count ? static_cast<i32>(NONE - static_cast<u32>(entry)) : -1;
        if (p.top_tokens.data != nullptr) p.top_tokens[index][i] = token;
        if (p.top_logprobs.data != nullptr) p.top_logprobs[index][i] = softmax(x);
    }
}

// Writes the wanted outputs. By the whole block, after a barrier that made the logits of the drawn
// tokens visible. The first `likeliest` elements of order.shared.sorted are the most likely tokens.
template <typename T, typename Row>
INLINE void write_report(const Report<T>& p, u32 index, const Row& row, const RowOrder& order,
                         Drawn& drawn, LogSoftmax softmax, u32 likeliest) {
    const float largest = softmax.largest;
    if (threadIdx.x == 0) drawn.logits[p.draws] = largest == infinity() ? largest : nothing();
    __syncthreads();
    if (p.ranks.data != nullptr || largest == infinity()) {
        order.count_reaching(row, drawn.logits, drawn.reached, p.draws + 1);
        // If some logits are infinite, they share all of the probability.
        if (largest == infinity()) {
            softmax.logarithm = logf(static_cast<float>(drawn.reached[p.draws]));
        }
    }
    write_drawn(p, index, drawn, softmax);
    write_likeliest(p, index, order.shared.sorted, likeliest, softmax);
}
