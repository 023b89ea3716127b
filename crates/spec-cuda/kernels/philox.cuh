// Philox4x32-10: crates/spec-core/src/philox.rs.
#pragma once

#include "common.cuh"

// What a random number decides.
enum class Purpose : u32 {
    SAMPLE = 0,
    ACCEPT = 1,
    RECOVER = 2,
};

// The random numbers of one decision: about the token at a position of a text
// that has this seed.
struct Draw {
    u32 first;
    u32 second;

    INLINE Draw(u64 seed, u64 position, Purpose purpose) {
        uint4 c = make_uint4(static_cast<u32>(position), static_cast<u32>(position >> 32),
                             static_cast<u32>(purpose), 0);
        u32 k0 = static_cast<u32>(seed);
        u32 k1 = static_cast<u32>(seed >> 32);
#pragma unroll
        for (u32 round = 0; round < 10; ++round) {
            const u64 a = static_cast<u64>(c.x) * 0xD2511F53u;
            const u64 b = static_cast<u64>(c.z) * 0xCD9E8D57u;
            c = make_uint4(static_cast<u32>(b >> 32) ^ c.y ^ k0, static_cast<u32>(b),
                           static_cast<u32>(a >> 32) ^ c.w ^ k1, static_cast<u32>(a));
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        first = c.x;
        second = c.y;
    }

    // A multiple of 2^-24 in [0, 1).
    INLINE float uniform() const {
        return exact::mul(static_cast<float>(first >> 8), 1.0f / 16777216.0f);
    }

    // Read as a fraction of 2^64.
    INLINE u64 bits() const { return static_cast<u64>(second) << 32 | first; }
};
