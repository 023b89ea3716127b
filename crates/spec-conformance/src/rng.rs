//! A small and fast random number generator for test cases, with the same numbers on every machine.

use half::{bf16, f16};

use spec_core::DType;
use spec_core::options::{Kind, Setting, Value};

use crate::tensor::Data;

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The generator SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    /// The position of the seed in an order of all seeds, for [`rare`](Self::rare). Positions are
    /// multiples of the golden ratio modulo 2^64, so consecutive seeds are spread evenly, however
    /// many they are. Seed 1 has position 0.
    rank: u64,
}

impl Rng {
    /// A generator with different numbers for each `seed` and each `stream`.
    pub fn new(seed: u64, stream: &str) -> Rng {
        let mut rng = Rng { state: seed, rank: seed.wrapping_sub(1).wrapping_mul(GOLDEN) };
        for byte in stream.bytes() {
            rng.state = rng.next() ^ u64::from(byte);
        }
        rng
    }

    /// The next 64 bits.
    #[allow(
        clippy::should_implement_trait,
        reason = "a stream without an end is no iterator worth having"
    )]
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// A number from 0 to `high`. 0 comes sometimes; otherwise, every number of binary digits is
    /// equally frequent.
    pub fn size(&mut self, high: usize) -> usize {
        if high == 0 || self.chance(16) {
            return 0;
        }
        let low = 1 << self.below(high.ilog2() as usize + 1);
        self.between(low, high.min(2 * low - 1))
    }

    /// Whether this seed is among the one in `n` seeds whose cases may take long. The answer is
    /// the same at each call. Seed 1 is rare, and so is at least one of `2 * n` consecutive seeds.
    /// A seed that is rare for `n` is rare for every smaller `n`.
    pub fn rare(&self, n: u64) -> bool {
        self.rank < u64::MAX / n
    }

    /// True with a probability of 1 in `n`.
    pub fn chance(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A random value of an option that has a list of values.
    ///
    /// # Panics
    /// If the option has no list of values.
    pub fn choice<T: Setting>(&mut self) -> T {
        let Kind::Choice(choice) = T::KIND else { panic!("{:?} is no choice", T::KIND) };
        let value = self.pick(choice.values).name;
        T::from_value(Value::Choice(value)).expect("its own list has it")
    }

    /// A random element of `from`.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A number in [0, 1), a multiple of 2^-24.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 * (1.0 / 16_777_216.0)
    }

    /// A number with a roughly normal distribution: the sum of twelve uniform numbers, minus 6.
    pub fn normal(&mut self) -> f32 {
        let pair = |bits: u64| (bits >> 40) + (bits >> 8 & 0xFF_FFFF);
        let sum: u64 = (0..6).map(|_| pair(self.next())).sum();
        sum as f32 * (1.0 / 16_777_216.0) - 6.0
    }

    /// A number of a kind that has broken kernels.
    pub fn bad_float(&mut self) -> f32 {
        self.pick(&[
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1e-40,
            -1e-40,
            f32::MIN_POSITIVE,
            f32::MAX,
            f32::MIN,
            -0.0,
            -1.0,
        ])
    }

    /// Replaces some numbers n by n * (2^32 + 1), n + 2^32 or n - 2^32. Code that narrows
    /// 64 bits to 32, or that uses the high half only as the sign of the low half, takes these for
    /// n.
    pub fn beyond_32_bits(&mut self, values: &mut [i64]) {
        const HIGH: i64 = 1 << 32;
        if values.is_empty() {
            return;
        }
        for _ in 0..self.between(1, 1 + values.len() / 4) {
            let at = self.below(values.len());
            let n = values[at];
            values[at] =
                self.pick(&[n.wrapping_mul(HIGH + 1), n.wrapping_add(HIGH), n.wrapping_sub(HIGH)]);
        }
    }

    /// `len` elements, each made by `item`.
    pub fn vec<T>(&mut self, len: usize, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..len).map(|_| item(self)).collect()
    }

    /// A random permutation of 0 .. n.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }

    /// f32 values, rounded to a float dtype.
    pub fn floats(dtype: DType, values: Vec<f32>) -> Data {
        match dtype {
            DType::F16 => values.into_iter().map(f16::from_f32).collect::<Vec<_>>().into(),
            DType::BF16 => values.into_iter().map(bf16::from_f32).collect::<Vec<_>>().into(),
            _ => values.into(),
        }
    }

    /// Integers, truncated to an integer dtype.
    pub fn integers(dtype: DType, values: Vec<i64>) -> Data {
        match dtype {
            DType::I32 => values.into_iter().map(|v| v as i32).collect::<Vec<_>>().into(),
            DType::U32 => values.into_iter().map(|v| v as u32).collect::<Vec<_>>().into(),
            DType::U64 => values.into_iter().map(|v| v as u64).collect::<Vec<_>>().into(),
            DType::I8 => values.into_iter().map(|v| v as i8).collect::<Vec<_>>().into(),
            DType::U8 => values.into_iter().map(|v| v as u8).collect::<Vec<_>>().into(),
            _ => values.into(),
        }
    }

    /// A float type; f32 is twice as frequent as f16 or bf16.
    pub fn float_dtype(&mut self) -> DType {
        self.pick(&[DType::F32, DType::F32, DType::F16, DType::BF16])
    }

    /// A type of tokens or indices; i64 is twice as frequent as i32 or u32.
    pub fn token_dtype(&mut self) -> DType {
        self.pick(&[DType::I64, DType::I64, DType::I32, DType::U32])
    }

    /// i32 or i64.
    pub fn int_dtype(&mut self) -> DType {
        self.pick(&[DType::I32, DType::I64])
    }

    /// The type of a token id: i32, u32 or i64.
    pub fn id_dtype(&mut self) -> DType {
        self.pick(&[DType::I32, DType::I64, DType::U32])
    }

    /// A flags word in which other bits may be set, which a call must keep.
    pub fn flags(&mut self) -> Vec<u32> {
        vec![self.pick(&[0, 0, 0x8000_0000])]
    }
}
