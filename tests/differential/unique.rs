use proptest::prelude::*;
use spec::ops::Unique;
use spec::ops::unique::{Buffers, Tensors};
use spec::{DType, Element, Handle, Stream, TensorDesc};

use spec_baselines::plain;

use crate::{Random, on_every_device};

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    n: usize,
    /// Bits that differ, from which bit on.
    bits: u32,
    from: u32,
    /// Most keys are one value.
    skewed: bool,
    counts: bool,
    seed: u64,
}

fn case() -> impl Strategy<Value = Case> + Clone {
    let n = prop_oneof![0usize..5, 0usize..300, 30_000usize..40_000, Just(300_000)];
    (0..4usize, n, 0u32..65, 0u32..64, any::<bool>(), any::<bool>(), any::<u64>()).prop_map(
        |(dtype, n, bits, from, skewed, counts, seed)| {
            let dtype = [DType::U64, DType::I64, DType::U32, DType::I32][dtype];
            Case { dtype, n, bits, from, skewed, counts, seed }
        },
    )
}

fn check<K: Element + Ord + std::fmt::Debug>(
    handle: &Handle,
    case: &Case,
    key: impl Fn(u64) -> K,
) -> spec::Result<()> {
    let mut random = Random(case.seed);
    let keep = if case.bits == 64 { u64::MAX } else { (1 << case.bits) - 1 };
    let keys: Vec<K> = random.many(case.n, |r| {
        let rare = !case.skewed || r.one_in(100);
        key(if rare { (r.next() & keep).rotate_left(case.from) } else { 77 })
    });
    let (expected, expected_counts) = plain::unique(&keys);

    let tensors = Tensors {
        counts: case.counts.then(|| TensorDesc::new(DType::U64, [case.n])),
        ..Unique.tensors(case.dtype, case.n)
    };
    let unique = handle.create(&Unique, &tensors)?;
    let mut workspace = handle.workspace(unique.workspace_size())?;
    let input = handle.upload(&keys)?;
    let mut output = handle.allocate::<K>(case.n)?;
    let mut count = handle.upload(&[u64::MAX])?;
    let mut counts = handle.upload(&vec![u64::MAX; case.n])?;
    let buffers = Buffers {
        keys: input.view(),
        unique: output.view_mut(),
        count: count.view_mut(),
        counts: case.counts.then(|| counts.view_mut()),
    };
    unique.calculate(&mut workspace, buffers, Stream::default())?;
    assert_eq!(count.to_vec()?, [expected.len() as u64], "count");
    let output = output.to_vec()?;
    if let Some(i) = (0..expected.len()).find(|&i| output[i] != expected[i]) {
        panic!("unique[{i}] is {:?}, expected {:?}", output[i], expected[i]);
    }
    let counts = counts.to_vec()?;
    if case.counts {
        assert!(counts[..expected.len()] == expected_counts, "counts");
    } else {
        assert!(counts.iter().all(|&c| c == u64::MAX), "counts were written");
    }
    assert!(input.to_vec()? == keys, "the keys were changed");
    Ok(())
}

#[test]
fn agrees_with_the_plain_loop() {
    on_every_device(&case(), |handle, case| match case.dtype {
        DType::I64 => check(handle, case, |k| k as i64),
        DType::U32 => check(handle, case, |k| k as u32),
        DType::I32 => check(handle, case, |k| k as i32),
        _ => check(handle, case, |k| k),
    });
}
