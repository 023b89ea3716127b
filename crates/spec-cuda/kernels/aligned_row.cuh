// A row that is read 16 bytes at a time, wherever it begins:
//
//     boundaries  |               |               |               |
//     row               [ entries ...................... ]
//     vectors     |  0            |  1            |  2            |
//                  lead                                   edge
//
// Vectors are counted from the boundary at or before the row's start. The first and the last may
// have entries that are not in the row; all others are whole.
#pragma once

#include "common.cuh"

// Entries from the 16-byte boundary at or before an address to that address.
template <typename T>
INLINE u32 lead_of(const T* from) {
    return static_cast<u32>(reinterpret_cast<u64>(from) % 16 / sizeof(T));
}

template <typename T>
struct AlignedRow {
    static constexpr u32 N = Pack<T>::N;

    const T* row;
    // Entries.
    u32 length;
    u32 lead;

    INLINE AlignedRow(const T* from, u32 count) : row(from), length(count), lead(lead_of(from)) {}

    // One past the last entry, counted from the boundary.
    INLINE u64 through() const { return static_cast<u64>(lead) + length; }
    INLINE u32 vectors() const { return static_cast<u32>((through() + N - 1) / N); }

    // The index of a vector's first entry; that of one before the row wraps.
    INLINE u32 index(u32 vector) const { return vector * N - lead; }

    // Whether all N entries from this index on are in the row.
    INLINE bool has_all(u32 first) const { return first < length && length - first >= N; }
};
