// adjust_logits: DRY, which penalises a token the more, the longer the sequence that the token
// would repeat. Only the kernels whose names have `dry` have it.
//
// Sequences have at most 64 tokens, so the tail of the text in shared memory has the tokens that
// end it. As in the search for n-grams, most positions are excluded by the token before them.
#pragma once

#include "adjust_logits_row.cuh"

static_assert(MAX_MATCH <= TAIL);
// Bits of the filter of breakers.
constexpr u32 FILTER_BITS = 4096;

// The rule of a block's row, in shared memory.
struct Dry {
    // The largest number of tokens of a sequence of this row; 0 if the rule is off.
    u32 limit;
    u32 allowed;
    i32 range;
    float multiplier;
    float base;
    u32 flags;
    // A bit for the hash of each breaker. Most tokens are no breakers, which one bit shows.
    u32 filter[FILTER_BITS / 32];

    INLINE static u32 hash(u32 token) { return token * 0x9E3779B1u >> 20; }

    // A logit after the penalty for a sequence of `count` tokens; 0 means no penalty.
    INLINE float adjusted(u32 count, float x) const {
        if (count == 0) return x;
        float power = 1.0f;
#pragma unroll 1
        for (u32 n = allowed; n < count; n++) power = exact::mul(power, base);
        const float penalty = exact::mul(multiplier, power);
        return exact::finite(penalty) ? flushed_sum(x, -penalty) : negative_infinity();
    }
};
static_assert(FILTER_BITS == 1u << (32 - 20));

// The rule of the block's row.
INLINE Dry& shared_dry() {
    __shared__ Dry dry;
    return dry;
}

// Byte `at` of an array, which other threads may change.
INLINE u32 byte_at(const u32* words, u32 at) {
    return static_cast<const volatile u32*>(words)[at / 4] >> at % 4 * 8 & 0xFF;
}

// Raises byte `at` of an array to `value`, unless it is larger.
INLINE void raise_byte(u32* words, u32 at, u32 value) {
    const u32 shift = at % 4 * 8;
    u32 word = static_cast<volatile u32*>(words)[at / 4];
#pragma unroll 1
    while ((word >> shift & 0xFF) < value) {
        const u32 raised = (word & ~(0xFFu << shift)) | value << shift;
        const u32 found = atomicCAS(words + at / 4, word, raised);
        if (found == word) return;
        word = found;
    }
}

// Clears byte `at` of an array, and returns its value.
INLINE u32 take_byte(u32* words, u32 at) {
    const u32 shift = at % 4 * 8;
    return atomicAnd(words + at / 4, ~(0xFFu << shift)) >> shift & 0xFF;
}

// Fills in the rule of a request. By one thread.
INLINE void survey_dry(const Params& p, i64 request, Dry& d) {
    const u64 r = static_cast<u64>(request);
    d.limit = 0;
    d.flags = 0;
    if (r >= p.request_count) return;
    const float multiplier = flushed(p.dry_multiplier[r]);
    const float base = p.dry_base[r];
    const i32 allowed = p.dry_allowed_length[r];
    const i32 range = p.dry_range == nullptr ? 0 : p.dry_range[r];
    if (multiplier == 0.0f) return;
    // Comparisons with NaN are false.
    if (!(multiplier > 0.0f && exact::finite(multiplier) && base >= 1.0f && exact::finite(base))) {
        d.flags = BAD_LENGTHS;
        return;
    }
    d.limit = MAX_MATCH;
    d.multiplier = multiplier;
    d.base = base;
    d.allowed = static_cast<u32>(max(allowed, 0));
    d.range = range;
}

// Ends sequences at breakers: the text's last tokens are those of every sequence. `ahead` is the
// breaker with the thread's number, if there is one. By the whole block, between barriers.
INLINE void find_breakers(const Params& p, const Text& text, i32 ahead, Dry& d) {
    const u32 kept = min(text.len(), MAX_MATCH);
#pragma unroll 1
    for (u32 i = threadIdx.x; i < p.breakers; i += blockDim.x) {
        const i32 breaker = i == threadIdx.x ? ahead : p.dry_breakers[i];
        const u32 bit = Dry::hash(static_cast<u32>(breaker));
        atomicOr(d.filter + bit / 32, 1u << bit % 32);
#pragma unroll 1
        for (u32 j = 0; j < kept; j++) {
            if (text.s.tail[j] != breaker) continue;
            atomicMin(&d.limit, j);
            break;
        }
    }
}

INLINE bool is_breaker(const Params& p, const Dry& d, i64 token) {
    const u32 bit = Dry::hash(static_cast<u32>(token));
    if ((d.filter[bit / 32] >> bit % 32 & 1) == 0) return false;
#pragma unroll 1
    for (u32 i = 0; i < p.breakers; i++) {
        if (p.dry_breakers[i] == token) return true;
    }
    return false;
}

// How many tokens equal the tokens that end the text, up to `max`. token(j) returns the j-th of the
// tokens to compare, and is called for j = 0, 1, ... in this order.
template <typename Token>
INLINE u32 matched(const Text& text, u32 max, Token token) {
    u32 count = 0;
#pragma unroll 1
    while (count < max && text.s.tail[count] == token(count)) count += 1;
    return count;
}

// Calls found(token, count) for positions whose token DRY penalises after a sequence of `count`
// tokens, which may be several for one token. By the whole block, after a barrier.
template <typename Found>
INLINE void each_match(const Params& p, const Text& text, u64 row, Found found) {
    const Row& s = text.s;
    const Dry& d = shared_dry();
    const u32 limit = d.limit;
    const u32 least = max(d.allowed, 1u);
    if (limit < least) return;
    const u32 len = text.len();
    const u32 range = d.range > 0 ? min(static_cast<u32>(d.range), len) : len;
    const u32 start = len - range;
    // Tokens of the request's text.
#pragma unroll 1
    for (u32 base = start + 1; base < s.length; base += blockDim.x * AHEAD) {
        // Comparing the token before excludes most positions.
        u32 matches = 0;
#pragma unroll
        for (u32 j = 0; j < AHEAD; j++) {
            const u32 i = base + threadIdx.x + j * blockDim.x;
            const bool match = i < s.length && text.at(i - 1) == s.tail[0];
            matches |= static_cast<u32>(match) << j;
        }
#pragma unroll 1
        for (; matches != 0; matches &= matches - 1) {
            const u32 i = base + threadIdx.x + (__ffs(matches) - 1) * blockDim.x;
            const u32 count = matched(text, min(limit, i - start),
                                      [&](u32 k) { return text.at(i - 1 - k); });
            if (count < least) continue;
            const i64 token = text.at(i);
            if (!is_breaker(p, d, token)) found(token, count);
        }
    }
    // Drafts. Position `back` from the end is in the range, and not its first.
    const u32 drafts = min(s.depth, range == 0 ? 0 : range - 1);
    Cursor end = {static_cast<u32>(row), 0};
#pragma unroll 1
    for (u32 back = 0; back < drafts; back++, end.move(text)) {
        if (back % blockDim.x != threadIdx.x) continue;
        Cursor other = end;
        const u32 count = matched(text, min(limit, range - 1 - back), [&](u32) {
            other.move(text);
            return other.token(text);
        });
        if (count < least) continue;
        const i64 token = end.token(text);
        if (!is_breaker(p, d, token)) found(token, count);
    }
}
