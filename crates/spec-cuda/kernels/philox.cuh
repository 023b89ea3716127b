// The counter-based random number generator Philox4x32-10, as in crates/spec-core/src/philox.rs.
#pragma once

#include "params/race.cuh"

// The kind of decision that a random number makes. Each purpose has its own stream of numbers.
enum class Purpose : u32 {
    SAMPLE = PURPOSE_SAMPLE,
    ACCEPT = PURPOSE_ACCEPT,
    RECOVER = PURPOSE_RECOVER,
};

// The random numbers of one decision about one token. The stream is determined by the seed of the
// request, the position of the token in the text, and the purpose.
struct Draw {
    u64 seed;
    u64 position;
    u32 purpose;

    INLINE Draw(u64 of_request, u64 at, Purpose decides)
        : seed(of_request), position(at), purpose(static_cast<u32>(decides)) {}

    INLINE uint4 start(u32 index) const {
        return make_uint4(static_cast<u32>(position), static_cast<u32>(position >> 32), purpose,
                          index);
    }

    INLINE uint2 key() const {
        return make_uint2(static_cast<u32>(seed), static_cast<u32>(seed >> 32));
    }

    // One of the ten rounds.
    INLINE static uint4 round(uint4 c, uint2 key) {
        const u64 a = static_cast<u64>(c.x) * 0xD2511F53u;
        const u64 b = static_cast<u64>(c.z) * 0xCD9E8D57u;
        return make_uint4(static_cast<u32>(b >> 32) ^ c.y ^ key.x, static_cast<u32>(b),
                          static_cast<u32>(a >> 32) ^ c.w ^ key.y, static_cast<u32>(a));
    }

    INLINE static uint2 next(uint2 key) {
        return make_uint2(key.x + 0x9E3779B9u, key.y + 0xBB67AE85u);
    }

    // The four random words at an index of the stream.
    INLINE uint4 block(u32 index) const {
        uint4 c = start(index);
        uint2 k = key();
        // Rolled: code that runs once costs more to fetch than to run.
#pragma unroll 1
        for (u32 i = 0; i < 10; ++i) {
            c = round(c, k);
            k = next(k);
        }
        return c;
    }

    // A uniform random number: a multiple of 2^-24 in [0, 1).
    INLINE float uniform() const {
        return exact::mul(static_cast<float>(block(0).x >> 8), 1.0f / 16777216.0f);
    }
};
