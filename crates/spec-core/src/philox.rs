//! Philox4x32-10, the counter-based random number generator of Salmon et al. (2011).
//!
//! Every backend draws the same numbers from the same counter, in any order
//! and on any grid, because a draw depends on nothing but its counter.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Ten rounds of Philox4x32.
#[inline(always)]
pub const fn philox4x32_10(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    let mut round = 0;
    while round < 10 {
        let a = counter[0] as u64 * MULTIPLIERS[0] as u64;
        let b = counter[2] as u64 * MULTIPLIERS[1] as u64;
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        round += 1;
    }
    counter
}

/// The decision that a random number is for. Numbers of different purposes are independent, so
/// sampling a token, accepting a draft token and recovering a rejected one at the same position
/// of a request never share a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Purpose {
    /// Samples a token from logits.
    Sample = 0,
    /// Accepts or rejects a draft token.
    Accept = 1,
    /// Recovers the token that replaces a rejected one.
    Recover = 2,
}

/// The random numbers of one decision about the token at one position of a request's text. They
/// depend on the request's seed, the position and the purpose alone, so a request gets the same
/// numbers in every batch, slot or step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    counter: [u32; 3],
    key: [u32; 2],
}

impl Draw {
    /// The random numbers for a seed, a position and a purpose. The key of Philox is the seed's
    /// halves, low half first. The counter is the position's halves (in two's complement), low half
    /// first, then the purpose, then the index of a block.
    pub const fn at(seed: u64, position: i64, purpose: Purpose) -> Self {
        let position = position as u64;
        Draw {
            counter: [position as u32, (position >> 32) as u32, purpose as u32],
            key: [seed as u32, (seed >> 32) as u32],
        }
    }

    /// The four words of the block at an index.
    #[inline(always)]
    pub const fn block(self, index: u32) -> [u32; 4] {
        let [low, high, purpose] = self.counter;
        philox4x32_10([low, high, purpose, index], self.key)
    }

    /// The words of `N` blocks from index `first` on: `[w][i]` is word `w` of block `first + i`.
    /// With this order, loops over many blocks vectorise.
    #[inline(always)]
    pub fn blocks<const N: usize>(self, first: u32) -> [[u32; N]; 4] {
        let [low, high, purpose] = self.counter;
        let indices = std::array::from_fn(|i| first.wrapping_add(i as u32));
        let mut words = [[low; N], [high; N], [purpose; N], indices];
        let mut key = self.key;
        for _ in 0..10 {
            let [c0, c1, c2, c3] = &mut words;
            for i in 0..N {
                let a = u64::from(c0[i]) * u64::from(MULTIPLIERS[0]);
                let b = u64::from(c2[i]) * u64::from(MULTIPLIERS[1]);
                c0[i] = (b >> 32) as u32 ^ c1[i] ^ key[0];
                c1[i] = b as u32;
                c2[i] = (a >> 32) as u32 ^ c3[i] ^ key[1];
                c3[i] = a as u32;
            }
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        words
    }

    /// A uniform number in [0, 1), a multiple of 2^-24.
    pub const fn uniform(self) -> f32 {
        (self.block(0)[0] >> 8) as f32 * (1.0 / 16_777_216.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers of Random123's `kat_vectors` for philox4x32 with 10 rounds.
    #[test]
    fn known_answers() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32_10(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn many_blocks_are_those_one_by_one() {
        let draw = Draw::at(0x0123_4567_89AB_CDEF, -5, Purpose::Recover);
        for first in [0, 1 << 30, u32::MAX - 2] {
            let [a, b, c, d] = draw.blocks::<7>(first);
            let words = a.into_iter().zip(b).zip(c).zip(d);
            for (i, (((a, b), c), d)) in (0..).zip(words) {
                assert_eq!([a, b, c, d], draw.block(first.wrapping_add(i)), "{first} + {i}");
            }
        }
    }

    #[test]
    fn uniform_is_below_one() {
        let draw = |position| Draw::at(7, position, Purpose::Accept).uniform();
        let largest = (-2048..2048).map(draw).fold(0.0, f32::max);
        assert!(largest < 1.0 && largest > 0.99, "{largest}");
    }
}
