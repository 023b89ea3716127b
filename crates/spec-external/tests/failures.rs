//! Sources and sinks of a caller that fail in the middle of a run, on one thread: the run
//! ends with their error, and no other thread waits forever.

#![cfg(unix)]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use spec::Handle;
use spec_external::{Distinct, Error, Part, Place, Result, Sink, Source};

/// The keys of a source, and the number of its parts.
const KEYS: u64 = 300_000;
const PARTS: u64 = 40;
/// A run that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kind of failure, at one call of many.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    None,
    Open,
    Read,
    Encode,
    Append,
    PanicInRead,
    PanicInEncode,
}

/// A source that fails at the fourth call of the kind `failure`.
struct Faulty {
    failure: Failure,
    calls: AtomicU64,
}

impl Faulty {
    fn new(failure: Failure) -> Self {
        Faulty { failure, calls: AtomicU64::new(0) }
    }

    fn at(&self, now: &[Failure]) -> Result<()> {
        if !now.contains(&self.failure) || self.calls.fetch_add(1, Ordering::Relaxed) != 3 {
            return Ok(());
        }
        // Meanwhile the other threads get as far as they can.
        std::thread::sleep(Duration::from_millis(20));
        match self.failure {
            Failure::PanicInRead | Failure::PanicInEncode => panic!("as the test wants it"),
            failure => Err(Error::data("here", Place::Whole, format!("{failure:?}"))),
        }
    }
}

impl Source<u64> for Faulty {
    fn keys(&self) -> Option<u64> {
        Some(KEYS)
    }

    fn bytes(&self) -> Option<u64> {
        Some(KEYS * 8)
    }

    fn parts(&self) -> usize {
        PARTS as usize
    }

    fn open(&self, part: usize) -> Result<Box<dyn Part<u64> + Send + '_>> {
        self.at(&[Failure::Open])?;
        let start = part as u64 * KEYS / PARTS;
        Ok(Box::new(Stretch { of: self, start, at: start, end: start + KEYS / PARTS }))
    }
}

struct Stretch<'a> {
    of: &'a Faulty,
    start: u64,
    at: u64,
    end: u64,
}

impl Part<u64> for Stretch<'_> {
    fn read(&mut self, keys: &mut [u64]) -> Result<usize> {
        self.of.at(&[Failure::Read, Failure::PanicInRead])?;
        let count = keys.len().min((self.end - self.at) as usize).min(1000);
        for key in &mut keys[..count] {
            *key = self.at.wrapping_mul(0xD6E8_FEB8_6659_FD93);
            self.at += 1;
        }
        Ok(count)
    }

    fn bytes(&self) -> u64 {
        (self.at - self.start) * 8
    }
}

/// A sink that fails in the same way.
struct Into<'a>(&'a Faulty, &'a Mutex<u64>);

impl Sink<u64> for Into<'_> {
    type Encoded = u64;

    fn counts(&self) -> bool {
        false
    }

    /// A large value, so that there are many small blocks.
    fn key_memory(&self) -> usize {
        200
    }

    fn encode(&self, _rank: u64, keys: &[u64], _counts: &[u64]) -> Result<u64> {
        self.0.at(&[Failure::Encode, Failure::PanicInEncode])?;
        Ok(keys.len() as u64)
    }

    fn append(&self, keys: u64) -> Result<()> {
        self.0.at(&[Failure::Append])?;
        *self.1.lock().unwrap() += keys;
        Ok(())
    }

    fn finish(self, distinct: u64) -> Result<u64> {
        assert_eq!(*self.1.lock().unwrap(), distinct);
        Ok(0)
    }
}

/// Runs in a thread of its own. Returns the result, or `None` if the run panicked.
fn run(device: &str, temp: &Path, spills: bool, failure: Failure) -> Option<Result<u64>> {
    let mut options = Distinct::default();
    options.temp = temp.to_owned();
    options.threads = std::num::NonZeroUsize::new(4);
    // `memory` is for the CPU, `device_memory` for GPUs.
    (options.memory, options.device_memory) =
        if spills { (6 << 20, Some(2 << 20)) } else { (64 << 20, Some(64 << 20)) };
    let handle: Handle = device.parse().unwrap();
    let (send, receive) = channel();
    let thread = std::thread::spawn(move || {
        let (faulty, appended) = (Faulty::new(failure), Mutex::new(0));
        let result = options.run(&handle, &faulty, Into(&faulty, &appended), &());
        send.send(()).unwrap();
        let result = result.map(|summary| (summary.distinct, summary.runs));
        result.inspect(|(_, runs)| assert_eq!(*runs > 0, spills)).map(|(distinct, _)| distinct)
    });
    let waited = receive.recv_timeout(PATIENCE);
    assert_ne!(
        waited,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout),
        "{device}, {failure:?}, spills: {spills}: it hangs"
    );
    thread.join().ok()
}

#[test]
fn one_failure_ends_all_threads() {
    let temp = tempfile::tempdir().unwrap();
    let devices =
        spec::devices().into_iter().flat_map(|listing| listing.devices.into_iter().flatten());
    for info in devices {
        let device = info.device.to_string();
        for spills in [false, true] {
            let run = |failure| run(&device, temp.path(), spills, failure);
            assert_eq!(run(Failure::None).unwrap().unwrap(), KEYS, "{device}");
            for failure in [Failure::Open, Failure::Read, Failure::Encode, Failure::Append] {
                let error = run(failure).unwrap().unwrap_err().to_string();
                assert_eq!(error, format!("here: {failure:?}"), "{device}");
            }
            for failure in [Failure::PanicInRead, Failure::PanicInEncode] {
                assert!(run(failure).is_none(), "{device}: {failure:?} was no panic");
            }
            assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "temporary files");
        }
    }
}
