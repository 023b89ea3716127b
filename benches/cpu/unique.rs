//! u64 keys; beside the plain loop (the standard library's sort, then one pass)
//! the well-kept parallel sorts that could have stood in: `cargo bench --bench
//! cpu -- unique` prints them as rows of their own.

use rayon::prelude::*;
use spec::ops::Unique;
use spec::ops::unique::Buffers;
use spec::{DType, Stream};

use spec_baselines::plain;

use crate::{Bench, Random, median};

pub fn run(bench: &Bench) -> spec::Result<()> {
    let large = if bench.full { vec![(500_000_000, 64), (500_000_000, 30)] } else { vec![] };
    let sizes = [(1 << 20, 64), (1 << 20, 30), (1 << 24, 64), (1 << 24, 30), (1 << 27, 64)];
    for (n, bits) in sizes.into_iter().chain(large) {
        let shape = format!("{n} keys, {bits} bits");
        if !bench.wants("unique", &shape) {
            continue;
        }
        let mut random = Random(n as u64);
        let keys: Vec<u64> = (0..n).map(|_| random.next() >> (64 - bits)).collect();
        let unique = bench.handle.create(&Unique, &Unique.tensors(DType::U64, n))?;
        let mut workspace = bench.handle.workspace(unique.workspace_size())?;
        let (mut distinct, mut count) = (vec![0u64; n], [0u64]);
        let mut call = || {
            let buffers = Buffers {
                keys: (&keys).into(),
                unique: (&mut distinct).into(),
                count: (&mut count).into(),
                counts: None,
            };
            unique.calculate(&mut workspace, buffers, Stream::default())
        };
        call()?;
        bench.row(
            "unique",
            &shape,
            n * 8,
            || {
                std::hint::black_box(sorted(&keys, |keys| keys.sort_unstable()));
            },
            call,
        );
        let expected = plain::unique(&keys).0;
        assert_eq!(distinct[..count[0] as usize], expected);
        others(&keys);
    }
    Ok(())
}

fn sorted(keys: &[u64], sort: impl Fn(&mut [u64])) -> Vec<u64> {
    let mut keys = keys.to_vec();
    sort(&mut keys);
    keys.dedup();
    keys
}

fn others(keys: &[u64]) {
    use rdst::RadixSort;
    use voracious_radix_sort::RadixSort as _;

    type Sort = fn(&mut [u64]);
    let sorts: [(&str, Sort); 3] = [
        ("rayon par_sort_unstable", |keys| keys.par_sort_unstable()),
        ("rdst", |keys| keys.radix_sort_unstable()),
        ("voracious_mt_sort", |keys| keys.voracious_mt_sort(rayon::current_num_threads())),
    ];
    for (name, sort) in sorts {
        let time = median(|| {
            std::hint::black_box(sorted(keys, sort));
        });
        println!(
            "{:<18} {:<34} {:>11} {:>11.1}",
            "",
            format!("  {name} + dedup"),
            "",
            time.as_secs_f64() * 1e6
        );
    }
}
