//! The library's pipeline with keys of every type, in memory and far beyond memory.

use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;

use spec::cpu::Cpu;
use spec::dtype::as_bytes;
use spec_external::raw::{self, RawSink};
use spec_external::{Discard, Distinct, Error, Input, Key, Output, Phase, Source, Summary};
use tempfile::TempDir;

/// The least limit of memory that the pipeline accepts.
const LITTLE: u64 = 6 << 20;

/// Pseudo-random keys: the top bits of a multiplication.
fn random(count: usize, distinct: u64) -> Vec<u64> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ mixed >> 31) % distinct
    };
    std::iter::repeat_with(next)
        .take(count)
        .map(|key| key.wrapping_mul(0xD6E8_FEB8_6659_FD93))
        .collect()
}

struct Case {
    folder: TempDir,
    options: Distinct,
}

impl Case {
    fn new(memory: u64) -> Self {
        let folder = TempDir::new().unwrap();
        let mut options = Distinct::default();
        options.memory = memory;
        options.temp = folder.path().join("temp");
        options.threads = std::num::NonZeroUsize::new(2);
        std::fs::create_dir(&options.temp).unwrap();
        Case { folder, options }
    }

    fn input<K: Key>(&self, name: &str, keys: &[K]) -> Box<dyn Source<K>> {
        let path = self.folder.path().join(name);
        std::fs::write(&path, as_bytes(keys)).unwrap();
        raw::open(&path).unwrap()
    }

    /// Writes the distinct keys of `source` to a file, compares the file with a sort of `keys`, and
    /// checks that no temporary files are left.
    fn check<K: Key>(&self, source: &dyn Source<K>, keys: &[K], counts: bool) -> Summary {
        let path = self.folder.path().join("output");
        let output = Output::create::<&Path>(&path, true, &[]).unwrap();
        let device = Cpu::open(0).unwrap();
        let sink = RawSink::new(output, counts);
        let summary = self.options.run(&device, source, sink, &()).unwrap();
        let written = std::fs::read(&path).unwrap();
        assert_eq!(summary.output_bytes, written.len() as u64);
        if counts {
            let mut expected = BTreeMap::new();
            for key in keys {
                *expected.entry(*key).or_insert(0u64) += 1;
            }
            let records: Vec<u8> = expected
                .iter()
                .flat_map(|(key, count)| [as_bytes(&[*key]), as_bytes(&[*count])].concat())
                .collect();
            assert!(written == records, "counts differ");
            assert_eq!(summary.distinct, expected.len() as u64);
        } else {
            let mut expected = keys.to_vec();
            expected.sort_unstable();
            expected.dedup();
            assert_eq!(summary.distinct, expected.len() as u64);
            assert!(written == as_bytes(&expected), "keys differ");
        }
        assert_eq!(summary.keys, keys.len() as u64);
        assert_eq!(summary.duplicates(), summary.keys - summary.distinct);
        assert_eq!(std::fs::read_dir(&self.options.temp).unwrap().count(), 0, "temporary files");
        summary
    }
}

fn phases(summary: &Summary) -> Vec<Phase> {
    summary.phases.iter().map(|phase| phase.phase).collect()
}

const AT_ONCE: [Phase; 4] = [Phase::Read, Phase::Unique, Phase::Write, Phase::Finish];

#[test]
fn what_fits_is_done_at_once() {
    let case = Case::new(1 << 30);
    for count in [0, 1, 2, 1000, 300_000] {
        for counts in [false, true] {
            let keys = random(count, 100_000);
            let summary = case.check(&*case.input("input", &keys), &keys, counts);
            assert_eq!(phases(&summary), AT_ONCE);
            assert_eq!(summary.runs, 0);
        }
    }
}

#[test]
fn what_does_not_fit_is_spilled_and_merged() {
    let case = Case::new(LITTLE);
    for (count, distinct) in [(700_000, u64::MAX), (2_000_000, 1_000_000), (2_000_000, 1000)] {
        let keys = random(count, distinct);
        for counts in [false, true] {
            let summary = case.check(&*case.input("input", &keys), &keys, counts);
            assert!(summary.runs > 1, "{summary:?}");
            assert_eq!(phases(&summary), [Phase::Sort, Phase::Merge, Phase::Finish]);
        }
    }
}

#[test]
fn keys_order_as_their_type() {
    let bits = random(900_000, u64::MAX);
    fn all<K: Key>(bits: &[u64], convert: impl Fn(u64) -> K) {
        let mut keys: Vec<K> = bits.iter().map(|&bits| convert(bits)).collect();
        keys.extend([K::MIN, K::MAX, K::MIN, K::MAX]);
        for memory in [LITTLE, 1 << 30] {
            let case = Case::new(memory);
            for counts in [false, true] {
                let summary = case.check(&*case.input("input", &keys), &keys, counts);
                assert_eq!(summary.runs > 0, memory == LITTLE);
            }
        }
    }
    all(&bits, |bits| bits);
    all(&bits, |bits| bits as i64);
    all(&bits, |bits| bits as u32);
    all(&bits, |bits| bits as i32);
}

#[test]
fn skew_changes_nothing() {
    let case = Case::new(LITTLE);
    let count = 1_500_000;
    let one = vec![7u64; count];
    let mut nearly_one = one.clone();
    nearly_one[count / 2] = 8;
    nearly_one[count - 1] = 0;
    let ascending: Vec<u64> = (0..count as u64).collect();
    let descending: Vec<u64> = ascending.iter().rev().copied().collect();
    // All keys are in one narrow interval, except one at each end.
    let mut narrow: Vec<u64> =
        random(count, 1 << 40).iter().map(|key| key >> 44 | 1 << 63).collect();
    narrow[0] = 0;
    narrow[count - 1] = u64::MAX;
    // The same values in every chunk, in the same order.
    let repeated: Vec<u64> = (0..count as u64).map(|i| i % 50_000).collect();
    for keys in [one, nearly_one, ascending, descending, narrow, repeated] {
        for counts in [false, true] {
            case.check(&*case.input("input", &keys), &keys, counts);
        }
    }
}

#[test]
fn more_runs_than_can_be_merged_at_once() {
    let case = Case::new(LITTLE);
    let keys = random(18_000_000, u64::MAX);
    let summary = case.check(&*case.input("input", &keys), &keys, false);
    let merges = phases(&summary).iter().filter(|phase| **phase == Phase::Merge).count();
    assert!(merges > 1, "{summary:?}");
}

#[test]
fn a_stream_of_unknown_length() {
    for (memory, count) in [(1 << 30, 0), (1 << 30, 200_000), (LITTLE, 1_000_000)] {
        let case = Case::new(memory);
        let keys = random(count, u64::MAX);
        let bytes = as_bytes(&keys).to_vec();
        // Like a pipe, the reader gives a few bytes at a time, not whole keys.
        let reader = Dribble { bytes, at: 0 };
        let source = raw::read(Input::stream("stdin", reader).unwrap()).unwrap();
        let summary = case.check(&*source, &keys, false);
        assert_eq!(summary.runs > 0, memory == LITTLE);
    }
}

struct Dribble {
    bytes: Vec<u8>,
    at: usize,
}

impl Read for Dribble {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = buffer.len().min(12_345).min(self.bytes.len() - self.at);
        buffer[..count].copy_from_slice(&self.bytes[self.at..][..count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
fn progress_is_told_and_can_stop() {
    let case = Case::new(LITTLE);
    let keys = random(2_000_000, u64::MAX);
    let source = case.input("input", &keys);
    let device = Cpu::open(0).unwrap();
    for stop_in in [Phase::Sort, Phase::Merge] {
        let seen = Mutex::new(Vec::new());
        let progress = |phase: Phase, done: u64, total: Option<u64>| {
            assert!(total.is_none_or(|total| done <= total), "{done} of {total:?}");
            seen.lock().unwrap().push(phase);
            if phase == stop_in { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let path = case.folder.path().join("stopped");
        let output = Output::create::<&Path>(&path, false, &[]).unwrap();
        let result = case.options.run(&device, &*source, RawSink::new(output, false), &progress);
        assert!(matches!(result, Err(Error::Stopped)), "{result:?}");
        assert_eq!(seen.lock().unwrap().last(), Some(&stop_in));
        let left = std::fs::read_dir(case.folder.path()).unwrap().flatten();
        let mut left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, ["input", "temp"]);
        assert_eq!(std::fs::read_dir(&case.options.temp).unwrap().count(), 0);
    }
}

#[test]
fn too_little_memory_is_refused() {
    let case = Case::new(1 << 20);
    let device = Cpu::open(0).unwrap();
    let source = case.input::<u64>("input", &[1, 2]);
    let result = case.options.run(&device, &*source, Discard, &());
    let Err(Error::Memory { least, .. }) = result else { panic!("{result:?}") };
    // The least limit that the error names is enough.
    let case = Case::new(least);
    let keys = random(800_000, u64::MAX);
    case.check(&*case.input("input", &keys), &keys, true);
}

#[test]
fn an_input_that_shrinks_is_noticed() {
    let case = Case::new(LITTLE);
    let keys = random(2_000_000, u64::MAX);
    let source = case.input("input", &keys);
    let file = std::fs::File::options().write(true).open(case.folder.path().join("input")).unwrap();
    file.set_len(1_000_004).unwrap();
    let device = Cpu::open(0).unwrap();
    let error = case.options.run(&device, &*source, Discard, &()).unwrap_err().to_string();
    assert!(error.contains("ends there now, but was 16000000 bytes long"), "{error}");
}
