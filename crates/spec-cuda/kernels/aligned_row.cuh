// A row that is read in vectors of 16 bytes, whatever the alignment of its first entry:
//
//     boundaries  |               |               |               |
//     row               [ entries ...................... ]
//     vectors     |  0            |  1            |  2            |
//                  lead                                   edge
//
// Vectors are counted from the 16-byte boundary at or before the row's first entry. The first
// vector (its first `lead` entries) and the last vector (the edge) may have entries that are not in
// the row; all other vectors are whole.
#pragma once

#include "common.cuh"

// The number of entries between the last 16-byte boundary at or before `from` and `from`.
template <typename T>
INLINE u32 lead_of(const T* from) {
    return static_cast<u32>(reinterpret_cast<u64>(from) % 16 / sizeof(T));
}

template <typename T>
struct AlignedRow {
    static constexpr u32 N = Pack<T>::N;

    const T* row;
    // The number of entries of the row, and of entries between the boundary and the first entry.
    u32 length;
    u32 lead;

    INLINE AlignedRow(const T* from, u32 count) : row(from), length(count), lead(lead_of(from)) {}

    // The end of the row, in entries from the boundary.
    INLINE u64 through() const { return static_cast<u64>(lead) + length; }
    INLINE u32 vectors() const { return static_cast<u32>((through() + N - 1) / N); }

    // The index in the row of a vector's first entry. The index of an entry before the row wraps to
    // a large number, so that a comparison with `length` rejects it.
    INLINE u32 index(u32 vector) const { return vector * N - lead; }

    // Whether all N entries from this index on are in the row.
    INLINE bool has_all(u32 first) const { return first < length && length - first >= N; }
};
