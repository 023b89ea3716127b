use spec_core::ops::Unique;
use spec_core::ops::unique::Buffers;
use spec_core::{DType, Element, Result, TensorDesc};

use crate::random::Random;
use crate::{Case, On, Outcome, agree, cases};

#[derive(Debug)]
struct Call {
    n: usize,
    dtype: DType,
    /// Significant bits of a key.
    bits: u32,
    counts: bool,
    seed: u64,
}

impl Call {
    fn random(seed: u64) -> Self {
        let mut r = Random(seed);
        let few = r.below(100);
        let more = r.below(60_000);
        let n = [few, more, 2047, 2048, 2049, 4095, 4096, 4097, 8192, 8193, 12_289][r.below(11)];
        let wide = DType::U64;
        let dtype = [wide, wide, wide, DType::I64, DType::U32, DType::I32][r.below(6)];
        let bits = [64, 64, 30, 12, 3, 1][r.below(6)];
        Call { n, dtype, bits, counts: r.one_in(4), seed }
    }

    fn run_as<T: Element>(
        &self,
        on: &On<'_, Unique>,
        key: impl Fn(u64) -> T,
        int: impl Fn(T) -> i64,
    ) -> Result<Outcome> {
        let n = self.n;
        let mut r = Random(self.seed);
        // Some are the largest there are, which a sort may take for padding.
        let keys: Vec<T> =
            r.many(n, |r| key(if r.one_in(50) { u64::MAX } else { r.next() >> (64 - self.bits) }));
        let mut tensors = Unique.tensors(T::DTYPE, n);
        tensors.counts = self.counts.then(|| TensorDesc::new(DType::U64, [n]));
        let keys = on.upload(&keys)?;
        let mut unique = on.upload(&vec![T::default(); n])?;
        let (mut count, mut counts) = (on.upload(&[99u64])?, on.upload(&vec![0u64; n])?);
        let buffers = Buffers {
            keys: keys.view(),
            unique: unique.view_mut(),
            count: count.view_mut(),
            counts: self.counts.then(|| counts.view_mut()),
        };
        on.calculate(&Unique, &tensors, buffers)?;
        let distinct = count.get()?[0] as usize;
        let unique = unique.get()?.into_iter().take(distinct).map(int).collect();
        let counts = counts.get()?.into_iter().take(distinct).map(|c| c as i64).collect();
        let exact = vec![unique, if self.counts { counts } else { vec![] }, vec![distinct as i64]];
        Ok(Outcome { exact, close: vec![] })
    }
}

impl Case for Call {
    type Operator = Unique;

    fn run(&self, on: &On<'_, Unique>) -> Result<Outcome> {
        match self.dtype {
            DType::I32 => self.run_as(on, |key| key as i32, i64::from),
            DType::U32 => self.run_as(on, |key| key as u32, i64::from),
            DType::I64 => self.run_as(on, |key| key as i64, |key| key),
            _ => self.run_as(on, |key| key, |key| key as i64),
        }
    }
}

#[test]
fn random_cases() {
    agree((0..cases()).map(Call::random));
}

#[test]
fn measured_shapes() {
    let large = [(1 << 20, 64), (1 << 20, 30), (1 << 22, 64), (5_000_000, 64), (4_200_000, 30)];
    agree(large.map(|(n, bits)| Call { n, dtype: DType::U64, bits, counts: false, seed: 7 }));
}
