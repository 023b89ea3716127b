use spec_core::ops::DeduplicateTopk;
use spec_core::ops::deduplicate_topk::{Buffers, Tensors};
use spec_core::{DType, Result, TensorDesc};

use crate::random::Random;
use crate::{Case, On, Outcome, agree, cases, grid};

#[derive(Debug)]
struct Call {
    batch: usize,
    mtp_step: usize,
    k: usize,
    /// Values are below this; one in `padding` is negative.
    range: usize,
    padding: usize,
    /// Elements between rows: of the input and of the output.
    gaps: [usize; 2],
    counts: bool,
    seed: u64,
}

impl Call {
    fn random(seed: u64) -> Self {
        let mut r = Random(seed);
        let small = r.below(70);
        Call {
            batch: r.below(7),
            mtp_step: 1 + r.below(4),
            k: [small, small * 4, 2048, 2047, 1000][r.below(5)],
            range: [1, 1 + r.below(200), 1 << 17, 1 << 31][r.below(4)],
            padding: [1, 2, 20, 1 << 40][r.below(4)],
            gaps: [if r.one_in(5) { 3 } else { 0 }, r.below(3) * 2],
            counts: r.one_in(2),
            seed,
        }
    }
}

impl Case for Call {
    type Operator = DeduplicateTopk;

    fn run(&self, on: &On<'_, DeduplicateTopk>) -> Result<Outcome> {
        let Call { batch, mtp_step, k, .. } = *self;
        let mut random = Random(self.seed);
        let values: Vec<i32> =
            random.many(batch * mtp_step * k, |r| match r.one_in(self.padding) {
                true => -1 - r.below(i32::MAX as usize) as i32,
                false => r.below(self.range) as i32,
            });
        let (indices_desc, indices) = grid(batch * mtp_step, k, self.gaps[0], &values);
        let row = mtp_step * k;
        let (unique_desc, unique) = grid(batch, row, self.gaps[1], &vec![-9i32; batch * row]);
        let tensors = Tensors {
            indices: indices_desc,
            unique: unique_desc,
            counts: self.counts.then(|| TensorDesc::new(DType::I32, [batch])),
        };
        let indices = on.upload(&indices)?;
        let mut unique = on.upload(&unique)?;
        let mut counts = on.upload(&vec![-9i32; batch])?;
        let buffers = Buffers {
            indices: indices.view(),
            unique: unique.view_mut(),
            counts: self.counts.then(|| counts.view_mut()),
        };
        on.calculate(&DeduplicateTopk { mtp_step }, &tensors, buffers)?;
        Ok(Outcome { exact: vec![unique.ints()?, counts.ints()?], close: vec![] })
    }
}

#[test]
fn random_cases() {
    agree((0..cases()).map(Call::random));
}

#[test]
fn measured_shapes() {
    let shapes = (1..=4).flat_map(|step| [(step, 1 << 31), (step, 1 << 17)]);
    agree(shapes.map(|(mtp_step, range)| Call {
        batch: 115,
        mtp_step,
        k: 2048,
        range,
        padding: 1 << 40,
        gaps: [0; 2],
        counts: true,
        seed: 5,
    }));
}
