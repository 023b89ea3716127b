//! The peak of memory, as the operating system counts it, on inputs of a hundred times
//! the limit, for several distributions of keys. The test has a process of its own, so that
//! nothing else takes memory.

#![cfg(target_os = "linux")]

use std::sync::Mutex;

use spec::cpu::Cpu;
use spec_external::{Distinct, Part, Result, Sink, Source, Summary};
use tempfile::TempDir;

/// The memory that a run may take, in bytes.
const LIMIT: u64 = 8 << 20;
/// The number of keys, whose bytes are a hundred times the limit.
const KEYS: u64 = 100 * LIMIT / 8;
/// Keys per part of the source.
const PART: u64 = 1 << 20;

/// The function from a position to its key.
type Rule = fn(u64) -> u64;

/// Keys that are computed from their position, so that no file holds them.
struct Made {
    key: Rule,
}

impl Source<u64> for Made {
    fn keys(&self) -> Option<u64> {
        Some(KEYS)
    }

    fn bytes(&self) -> Option<u64> {
        Some(KEYS * 8)
    }

    fn parts(&self) -> usize {
        KEYS.div_ceil(PART) as usize
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<u64> + Send + '_>> {
        let start = part as u64 * PART;
        Ok(Box::new(Stretch { key: self.key, start, at: start, end: (start + PART).min(KEYS) }))
    }
}

struct Stretch {
    key: Rule,
    start: u64,
    at: u64,
    end: u64,
}

impl Part<u64> for Stretch {
    fn read(&mut self, keys: &mut [u64]) -> Result<usize> {
        let count = keys.len().min((self.end - self.at) as usize);
        for (key, at) in keys[..count].iter_mut().zip(self.at..) {
            *key = (self.key)(at);
        }
        self.at += count as u64;
        Ok(count)
    }

    fn bytes(&self) -> u64 {
        (self.at - self.start) * 8
    }
}

/// A sink that checks that keys ascend, and adds up keys and counts.
struct Checked<'a> {
    counts: bool,
    seen: &'a Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    keys: u64,
    last: Option<u64>,
    sum: u64,
    counted: u64,
}

impl Sink<u64> for Checked<'_> {
    type Encoded = (u64, u64, Seen);

    fn counts(&self) -> bool {
        self.counts
    }

    fn encode(&self, rank: u64, keys: &[u64], counts: &[u64]) -> Result<Self::Encoded> {
        assert!(keys.is_sorted_by(|a, b| a < b), "not ascending");
        let seen = Seen {
            keys: keys.len() as u64,
            last: keys.last().copied(),
            sum: keys.iter().fold(0, |sum, key| sum.wrapping_add(*key)),
            counted: counts.iter().sum(),
        };
        Ok((rank, keys[0], seen))
    }

    fn append(&self, (rank, first, block): Self::Encoded) -> Result<()> {
        let mut seen = self.seen.lock().unwrap();
        assert_eq!(seen.keys, rank);
        assert!(seen.last.is_none_or(|last| last < first), "blocks do not ascend");
        seen.keys += block.keys;
        seen.last = block.last;
        seen.sum = seen.sum.wrapping_add(block.sum);
        seen.counted += block.counted;
        Ok(())
    }

    fn finish(self, distinct: u64) -> Result<u64> {
        assert_eq!(self.seen.lock().unwrap().keys, distinct);
        Ok(0)
    }
}

/// A value of `/proc/self/status`, in bytes.
fn status(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// A permutation of all numbers.
fn mixed(i: u64) -> u64 {
    let mixed = (i ^ i >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// `held` is what the process had before its first run.
fn run(options: &Distinct, held: u64, (name, counts): (&str, bool), key: Rule) -> (Summary, Seen) {
    let device = Cpu::open(0).unwrap();
    // Resets the peak, if the system allows it; otherwise the peak is that of all runs so far.
    _ = std::fs::write("/proc/self/clear_refs", "5");
    let seen = Mutex::default();
    let summary = options.run(&device, &Made { key }, Checked { counts, seen: &seen }, &());
    let taken = status("VmHWM:").saturating_sub(held);
    let summary = summary.unwrap();
    println!(
        "{name}: {:.2} of the limit, {} runs, {:.2?}",
        taken as f64 / LIMIT as f64,
        summary.runs,
        summary.elapsed
    );
    assert!(taken <= LIMIT / 10 * 11, "{name}: {taken} bytes at a limit of {LIMIT}");
    assert_eq!(summary.keys, KEYS, "{name}");
    assert!(summary.runs > 1, "{name}");
    (summary, seen.into_inner().unwrap())
}

#[test]
fn a_hundred_times_the_limit_takes_no_more_than_the_limit() {
    let held = status("VmRSS:");
    let temp = TempDir::new().unwrap();
    let mut options = Distinct::default();
    options.memory = LIMIT;
    options.temp = temp.path().to_owned();
    options.threads = std::num::NonZeroUsize::new(2);
    let shapes: [(&str, Rule, u64); 6] = [
        ("one key", |_| 7, 1),
        ("one key but for three", |i| if i % (KEYS / 3) == 9 { mixed(i) } else { 7 }, 4),
        ("ascending", |i| i, KEYS),
        ("descending", |i| KEYS - i, KEYS),
        // All keys but the first and the last are in one narrow interval.
        ("narrow", |i| [i | 1 << 63, 0, u64::MAX][if i < 2 { 1 + i as usize } else { 0 }], KEYS),
        ("random, every other one twice", |i| mixed(i / 4 * 3 + (i % 4).min(2)), KEYS / 4 * 3),
    ];
    for (name, key, distinct) in shapes {
        let (summary, seen) = run(&options, held, (name, false), key);
        assert_eq!(summary.distinct, distinct, "{name}");
        if distinct == KEYS {
            let sum = (0..KEYS).fold(0, |sum: u64, i| sum.wrapping_add(key(i)));
            assert_eq!(seen.sum, sum, "{name}");
        }
    }
    let (_, seen) = run(&options, held, ("counted", true), |i| mixed(i % (KEYS / 8)));
    assert_eq!((seen.keys, seen.counted), (KEYS / 8, KEYS));
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "temporary files");
}
