// Argument types in addition to those of common.cuh: booleans, and matrices of integers. The same
// types on the host are in src/args.rs.
#pragma once

#include "common.cuh"

// An array of booleans of one byte, or of four bytes if `wide`. Every value except 0 is true.
struct Bools {
    const void* data;
    u64 wide;

    INLINE bool operator[](u64 i) const {
        return wide ? static_cast<const i32*>(data)[i] != 0 : static_cast<const u8*>(data)[i] != 0;
    }
};

// A matrix of 32-bit integers, or of 64-bit integers if `wide`. Rows begin `stride` elements apart.
struct IntegerRows {
    void* data;
    u64 stride;
    u64 wide;

    INLINE i64 at(u64 row, u64 column) const {
        const u64 i = row * stride + column;
        return wide ? static_cast<const i64*>(data)[i] : static_cast<const i32*>(data)[i];
    }

    INLINE void set(u64 row, u64 column, i32 value) const {
        const u64 i = row * stride + column;
        if (wide) {
            static_cast<i64*>(data)[i] = value;
        } else {
            static_cast<i32*>(data)[i] = value;
        }
    }
};
