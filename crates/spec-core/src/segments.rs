//! How distinct ascending keys are cut for lookups: the inverse of `unique`, on every backend.
//!
//! ```text
//! keys       2 3 5 6 | 7 20 21 39 | 40 41 50      segments of 4 keys; splitters 2, 7, 40
//! buckets              of the second segment, 7 ..= 39, by the highest 2 of 6 bits of key - 7:
//!                      7 20 21 | 39 | . | .       table 0 3 4 4: keys below each bucket
//! ```
//!
//! A lookup finds its segment among the splitters, which fit a fast memory, and then reads two
//! entries of the segment's table. The key lies between them. Segments have equal numbers of keys
//! and buckets have equal widths, so that the buckets follow the density of the keys from segment
//! to segment, and no search is longer than a segment, whatever the keys are.

/// Bits of a segment's number where the splitters lie in the caches of a CPU or in the shared
/// memory of CUDA.
pub const SPLITTER_BITS: u32 = 12;
/// Segments of at most `2^NO_TABLE` keys are searched without a table.
pub const NO_TABLE: u32 = 2;
/// An entry of a table has 16 bits and is at most `2^ENTRY_BITS`. Tables have at most as many
/// entries.
pub const ENTRY_BITS: u32 = 15;

/// How some number of keys are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// A segment has `2^shift` keys, the last one fewer.
    pub shift: u32,
    /// The number of segments.
    pub count: usize,
    /// Bits of a bucket's number; 0 where there are no tables.
    pub bits: u32,
    /// The number of lowest bits that an entry leaves out.
    pub coarse: u32,
}

impl Segments {
    /// The segments of so many keys: at most `2^SPLITTER_BITS`, and one where there is no key.
    pub fn of(keys: usize) -> Self {
        let last = keys.saturating_sub(1);
        let length = usize::BITS - last.leading_zeros();
        let shift = length.saturating_sub(SPLITTER_BITS);
        Segments {
            shift,
            count: (last >> shift) + 1,
            bits: if shift > NO_TABLE { (shift - 1).min(ENTRY_BITS) } else { 0 },
            coarse: shift.saturating_sub(ENTRY_BITS),
        }
    }

    /// Entries of all tables.
    pub fn entries(&self) -> usize {
        if self.bits == 0 { 0 } else { self.count << self.bits }
    }

    /// The largest number of entries that any number of keys up to `keys` needs.
    pub fn max_entries(keys: usize) -> usize {
        let own = Segments::of(keys);
        // The largest number of keys whose segments are shorter.
        let shorter = if own.shift == 0 { 0 } else { 1 << (own.shift - 1 + SPLITTER_BITS) };
        own.entries().max(Segments::of(shorter).entries())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_have_room_for_any_number_of_keys() {
        for shift in 0..36 {
            for keys in [1usize << shift, (1 << shift) + 1, (3 << shift) / 2, (2 << shift) - 1] {
                let own = Segments::of(keys);
                assert!(own.count <= 1 << SPLITTER_BITS && own.count << own.shift >= keys);
                assert!((1 << own.shift) >> own.coarse <= 1 << ENTRY_BITS);
                // 32 bits number the entries, and two bytes an entry are not much beside the keys.
                assert!(Segments::max_entries(keys) <= 1 << 27, "{keys}");
                assert!(Segments::max_entries(keys) * 2 <= keys + (1 << own.shift), "{keys}");
                let mut fewer = keys;
                while fewer > 0 {
                    assert!(Segments::of(fewer).entries() <= Segments::max_entries(keys));
                    fewer -= fewer / 97 + 1;
                }
            }
        }
        let max = 1 << (SPLITTER_BITS + NO_TABLE);
        assert_eq!([Segments::max_entries(0), Segments::max_entries(max)], [0, 0]);
        assert_ne!(Segments::max_entries(max + 1), 0);
    }
}
