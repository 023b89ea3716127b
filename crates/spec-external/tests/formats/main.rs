//! Tests of each format alone: written files can be read, and errors name what cannot be
//! read.

#[cfg(feature = "parquet")]
mod arrow;
#[cfg(feature = "csv")]
mod csv;
#[cfg(feature = "parquet")]
mod parquet;
mod text;
#[cfg(feature = "parquet")]
mod written;

use std::path::{Path, PathBuf};

use spec_conformance::Rng;
use spec_external::{Error, Key, Output, Place, Result, Sink, Source};

/// All keys of a source, whose parts are read by two threads; and the number of bytes
/// that the parts report.
fn read<K: Key>(source: &dyn Source<K>) -> Result<(Vec<K>, u64)> {
    let parts = |first: usize| {
        move || {
            let (mut keys, mut bytes) = (Vec::new(), 0);
            for part in (first..source.parts()).step_by(2) {
                let mut part = source.open(part)?;
                let mut some = vec![K::MIN; 10_007];
                loop {
                    let count = part.read(&mut some)?;
                    if count == 0 {
                        break;
                    }
                    keys.extend_from_slice(&some[..count]);
                }
                bytes += part.bytes();
            }
            Ok((keys, bytes))
        }
    };
    let (even, odd): (Result<_>, Result<_>) = std::thread::scope(|scope| {
        let (even, odd) = (scope.spawn(parts(0)), scope.spawn(parts(1)));
        (even.join().unwrap(), odd.join().unwrap())
    });
    let ((mut keys, bytes), (more, further)) = (even?, odd?);
    keys.extend(more);
    Ok((keys, bytes + further))
}

fn sorted<K: Key>(mut keys: Vec<K>) -> Vec<K> {
    keys.sort_unstable();
    keys
}

/// Writes ascending keys through a sink in blocks of different lengths, encoded
/// out of order.
fn write<K: Key, S: Sink<K>>(sink: S, keys: &[K], counts: &[u64]) -> Result<u64> {
    let (mut blocks, mut at) = (Vec::new(), 0);
    for length in [1, 5000, 77, 20_000].into_iter().cycle() {
        let end = keys.len().min(at + length);
        if at == end {
            break;
        }
        blocks.push(at..end);
        at = end;
    }
    let of = |range: std::ops::Range<usize>| {
        let counts = if sink.counts() { &counts[range.clone()] } else { &[] };
        sink.encode(range.start as u64, &keys[range], counts)
    };
    let mut encoded: Vec<_> = blocks.into_iter().rev().map(of).collect::<Result<_>>()?;
    while let Some(block) = encoded.pop() {
        sink.append(block)?;
    }
    sink.finish(keys.len() as u64)
}

fn output(path: &Path) -> Output {
    Output::create::<PathBuf>(path, false, &[]).unwrap()
}

/// The place and message of an error about content, which must name `path`.
#[track_caller]
fn about<T>(path: &Path, result: Result<T>) -> (Place, String) {
    match result.err().expect("an error") {
        Error::Data { path: named, place, message } => {
            assert_eq!(named, path);
            (place, message)
        }
        other => panic!("{other}"),
    }
}

/// Keys of every size.
fn random_keys(seed: u64, count: usize) -> Vec<u64> {
    Rng::new(seed, "keys").vec(count, |rng| rng.next() >> rng.below(64))
}
