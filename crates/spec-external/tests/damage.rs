//! Spilled files are damaged between spilling and merging: the run ends with one
//! sentence that names the file, and leaves no output and no temporary file.

#![cfg(unix)]

use std::fs::{self, File};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use spec::cpu::Cpu;
use spec::dtype::as_bytes;
use spec_conformance::Rng;
use spec_external::raw::{self, RawSink};
use spec_external::{Distinct, Error, Key, Output, Phase, Result, Summary};

/// The least limit of memory that a run accepts, and a number of keys that does not fit in it.
const LITTLE: u64 = 6 << 20;
const KEYS: usize = 500_000;
/// A run that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(60);
/// The message for a block that is not what was written.
const CHANGED: &str = "is not what was written there: the disk or the memory is faulty";

struct Case {
    folder: tempfile::TempDir,
    options: Distinct,
    counts: bool,
}

impl Case {
    fn new<K: Key>(keys: &[K], counts: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("input"), as_bytes(keys)).unwrap();
        let mut options = Distinct::default();
        options.memory = LITTLE;
        options.temp = folder.path().join("temp");
        options.threads = std::num::NonZeroUsize::new(2);
        fs::create_dir(&options.temp).unwrap();
        Case { folder, options, counts }
    }

    /// Runs, and calls `damage` with the folder of spilled runs when the merge number
    /// `merge` begins.
    fn run<K: Key>(&self, merge: usize, damage: impl FnOnce(&Path) + Send) -> Result<Summary> {
        let damage = Mutex::new((0, Some(damage)));
        let progress = |phase: Phase, done: u64, _: Option<u64>| {
            let mut damage = damage.lock().unwrap();
            if phase == Phase::Merge && done == 0 {
                let begun = damage.0;
                damage.0 += 1;
                if begun == merge {
                    let folder = fs::read_dir(&self.options.temp).unwrap().next().unwrap();
                    damage.1.take().unwrap()(&folder.unwrap().path());
                }
            }
            ControlFlow::Continue(())
        };
        let source = raw::open::<K>(&self.folder.path().join("input")).unwrap();
        let output = self.folder.path().join("output");
        let output = Output::create::<&Path>(&output, false, &[]).unwrap();
        let sink = RawSink::new(output, self.counts);
        let (send, receive) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let device = Cpu::open(0).unwrap();
                _ = send.send(self.options.run(&device, &*source, sink, &progress));
            });
            receive.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                // A thread that hangs could not be waited for.
                eprintln!("it hangs");
                std::process::abort()
            })
        })
    }

    /// Checks that the run fails with a sentence that names the file that `damage` returns
    /// and contains `words`, and that the run leaves no files.
    #[track_caller]
    fn fails<K: Key>(&self, words: &str, damage: impl FnOnce(&Path) -> PathBuf + Send) {
        let mut damaged = PathBuf::new();
        let result = self.run::<K>(0, |folder: &Path| damaged = damage(folder));
        let error = result.expect_err("damage went unnoticed").to_string();
        assert!(error.starts_with(damaged.to_str().unwrap()), "{damaged:?}: {error}");
        assert!(error.contains(words) && error.lines().count() == 1, "{error}");
        self.is_clean();
    }

    #[track_caller]
    fn is_clean(&self) {
        let names = fs::read_dir(self.folder.path()).unwrap().flatten();
        let mut names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        names.sort();
        assert_eq!(names, ["input", "temp"]);
        assert_eq!(fs::read_dir(&self.options.temp).unwrap().count(), 0, "temporary files");
    }
}

/// The files of keys or of counts in a folder.
fn files(folder: &Path, kind: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == kind)).collect();
    files.sort();
    assert!(files.len() > 1, "{files:?}");
    files
}

/// A random one of these files, and its length.
fn some(folder: &Path, kind: &str, random: &mut Rng) -> (PathBuf, File, u64) {
    let mut files = files(folder, kind);
    let path = files.swap_remove(random.below(files.len()));
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    (path, file, len)
}

/// Without damage the same runs succeed, so damage is what makes the runs of the other tests
/// fail.
#[test]
fn without_damage_the_runs_succeed() {
    let mut random = Rng::new(1, "damage");
    let keys: Vec<u64> = (0..KEYS).map(|_| random.next()).collect();
    for counts in [false, true] {
        let case = Case::new(&keys, counts);
        let summary = case.run::<u64>(0, |folder: &Path| drop(files(folder, "keys"))).unwrap();
        assert_eq!(summary.keys, KEYS as u64);
    }
}

fn one_flipped_bit<K: Key>(keys: &[K], rounds: u64, mut random: Rng) {
    for kind in ["keys", "counts"] {
        let case = Case::new(keys, kind == "counts");
        for round in 0..rounds {
            case.fails::<K>(CHANGED, |folder: &Path| {
                let (path, file, len) = some(folder, kind, &mut random);
                // The first and the last byte are among the damaged ones.
                let at = match round {
                    0 => 0,
                    1 => len - 1,
                    _ => random.below(len as usize) as u64,
                };
                let mut byte = [0];
                file.read_exact_at(&mut byte, at).unwrap();
                byte[0] ^= 1 << random.below(8);
                file.write_all_at(&byte, at).unwrap();
                path
            });
        }
    }
}

#[test]
fn one_flipped_bit_anywhere() {
    let mut random = Rng::new(2, "damage");
    let keys: Vec<u64> = (0..KEYS).map(|_| random.next()).collect();
    one_flipped_bit(&keys, 40, random);
    // If all neighbouring numbers are keys too, a flipped bit need not break the order.
    let dense: Vec<i32> = (0..2 * KEYS as i32).map(|key| key ^ 0x5555).collect();
    one_flipped_bit(&dense, 10, Rng::new(3, "damage"));
}

#[test]
fn bytes_that_are_lost_or_others() {
    let mut random = Rng::new(4, "damage");
    let keys: Vec<u64> = (0..KEYS).map(|_| random.next()).collect();
    for kind in ["keys", "counts"] {
        let case = Case::new(&keys, kind == "counts");
        for size in [512, 4096, 1 << 16, u64::MAX] {
            for garbage in [false, true] {
                case.fails::<u64>(CHANGED, |folder: &Path| {
                    let (path, file, len) = some(folder, kind, &mut random);
                    let size = size.min(len);
                    let at = random.below((len / size) as usize) as u64 * size;
                    let bytes = if garbage {
                        random.vec(size as usize, |random| random.next() as u8)
                    } else {
                        vec![0; size as usize]
                    };
                    file.write_all_at(&bytes, at).unwrap();
                    path
                });
            }
        }
        for round in 0..6 {
            case.fails::<u64>("cannot read: it is shorter than it was written", |folder: &Path| {
                let (path, file, len) = some(folder, kind, &mut random);
                let left = match round {
                    0 => 0,
                    1 => len - 1,
                    _ => random.below(len as usize) as u64,
                };
                file.set_len(left).unwrap();
                path
            });
        }
    }
}

#[test]
fn blocks_in_the_place_of_others() {
    let mut random = Rng::new(5, "damage");
    let keys: Vec<u64> = (0..KEYS).map(|_| random.next()).collect();
    let case = Case::new(&keys, false);
    // Ascending keys with a correct checksum, but of another block or another run.
    case.fails::<u64>(CHANGED, |folder: &Path| {
        let (path, file, len) = some(folder, "keys", &mut random);
        let block = 16 << 10;
        let mut bytes = vec![0; block];
        file.read_exact_at(&mut bytes, (len / 2).next_multiple_of(block as u64)).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        path
    });
    case.fails::<u64>("", |folder: &Path| {
        let files = files(folder, "keys");
        let other = folder.join("other");
        fs::rename(&files[0], &other).unwrap();
        fs::rename(&files[1], &files[0]).unwrap();
        fs::rename(&other, &files[1]).unwrap();
        // Either of the two files may be read first, so the message names the folder.
        folder.to_owned()
    });
}

#[test]
fn files_that_cannot_be_read() {
    let mut random = Rng::new(6, "damage");
    let keys: Vec<u64> = (0..KEYS).map(|_| random.next()).collect();
    for kind in ["keys", "counts"] {
        let case = Case::new(&keys, kind == "counts");
        case.fails::<u64>("cannot read: there is no such file or folder", |folder: &Path| {
            let path = some(folder, kind, &mut random).0;
            fs::remove_file(&path).unwrap();
            path
        });
        case.fails::<u64>("cannot read: it is a directory", |folder: &Path| {
            let path = some(folder, kind, &mut random).0;
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            path
        });
    }
}

/// A run that was made by merging other runs is checked too.
#[test]
fn damage_to_what_was_merged_once() {
    let mut random = Rng::new(7, "damage");
    let keys: Vec<u64> = (0..18_000_000).map(|_| random.next()).collect();
    let case = Case::new(&keys, false);
    let result = case.run::<u64>(1, |folder: &Path| {
        // The longest.
        let files = files(folder, "keys").into_iter();
        let merged = files.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
        let file = File::options().write(true).open(merged).unwrap();
        file.write_all_at(&[0x5A; 9], 123_456).unwrap();
    });
    let Err(Error::Data { message, .. }) = result else { panic!("{result:?}") };
    assert!(message.contains(CHANGED), "{message}");
    case.is_clean();
}
