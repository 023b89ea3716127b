//! A corpus that lives: what it holds after appends, that calls read it, on every device, and that
//! its file is whole or refused.

use std::sync::atomic::{AtomicBool, Ordering};

use spec::corpus::CorpusToken;
use spec::ops::SuffixLookup;
use spec::ops::suffix_lookup::Buffers;
use spec::{Buffer, Corpus, Descriptor, Handle, Status, TensorDesc};

const NONE: i32 = i32::MIN;

/// `suffix_lookup` of one text with a corpus.
struct Lookup<T: CorpusToken> {
    operator: Descriptor<SuffixLookup>,
    workspace: Buffer<u8>,
    tokens: Buffer<T>,
    lengths: Buffer<i32>,
    drafts: Buffer<T>,
    counts: Buffer<i32>,
    flags: Buffer<u32>,
}

impl<T: CorpusToken> Lookup<T> {
    fn new(handle: &Handle, corpus: &Corpus<T>) -> Self {
        let params = SuffixLookup::new().min_match(2);
        let tensors = params.tensors(T::DTYPE, 1, 8, 4);
        let tensors = tensors.corpus(corpus.tokens_desc()).corpus_length(corpus.length_desc());
        let tensors = tensors.flags(TensorDesc::new(spec::DType::U32, [1]));
        let operator = handle.create(&params, &tensors).unwrap();
        Lookup {
            workspace: operator.workspace(handle).unwrap(),
            operator,
            tokens: handle.upload(&[T::default(); 8]).unwrap(),
            lengths: handle.upload(&[0]).unwrap(),
            drafts: handle.upload(&[T::default(); 4]).unwrap(),
            counts: handle.upload(&[0]).unwrap(),
            flags: handle.upload(&[0]).unwrap(),
        }
    }

    fn drafts(&mut self, corpus: &Corpus<T>, text: &[T]) -> Vec<T> {
        self.tokens.write(text).unwrap();
        self.lengths.write(&[text.len() as i32]).unwrap();
        {
            let reading = corpus.read();
            let buffers =
                Buffers::new(&self.tokens, &self.lengths, &mut self.drafts, &mut self.counts)
                    .corpus(reading.tokens())
                    .corpus_length(reading.length())
                    .flags(&mut self.flags);
            self.operator.call(&mut self.workspace, buffers).unwrap();
        }
        let count = self.counts.to_vec().unwrap()[0] as usize;
        assert_eq!(self.flags.to_vec().unwrap(), [0]);
        self.drafts.to_vec().unwrap()[..count].to_vec()
    }
}

fn drafts_follow_appends<T: CorpusToken + From<i8> + std::fmt::Debug>() {
    let text = |numbers: &[i8]| numbers.iter().map(|&number| T::from(number)).collect::<Vec<T>>();
    for handle in crate::common::handles() {
        let corpus = Corpus::<T>::new(&handle, 16).unwrap();
        let mut lookup = Lookup::new(&handle, &corpus);
        let question = text(&[9, 1, 2]);
        assert_eq!(lookup.drafts(&corpus, &question), text(&[]));
        corpus.append(&text(&[1, 2, 3, 4, 5])).unwrap();
        assert_eq!(lookup.drafts(&corpus, &question), text(&[3, 4, 5]), "{handle:?}");
        // Texts do not reach into each other: 5 and 6 are neighbours of two texts.
        corpus.append(&text(&[6, 7, 1, 2])).unwrap();
        assert_eq!(lookup.drafts(&corpus, &text(&[5, 6])), text(&[]), "{handle:?}");
        // The later text is the more recent one.
        corpus.append(&text(&[1, 2, 8])).unwrap();
        assert_eq!(corpus.len(), 15);
        assert_eq!(lookup.drafts(&corpus, &question), text(&[8]), "{handle:?}");
        // Half of it is dropped, and the rest of the text that this cuts: two of three texts.
        corpus.append(&text(&[7, 7])).unwrap();
        assert_eq!(corpus.len(), 7);
        assert_eq!(lookup.drafts(&corpus, &text(&[9, 6, 7])), text(&[]), "{handle:?}");
        assert_eq!(lookup.drafts(&corpus, &question), text(&[8]), "{handle:?}");
        corpus.clear().unwrap();
        assert_eq!(lookup.drafts(&corpus, &question), text(&[]));
        assert!(corpus.is_empty());
        corpus.append(&text(&[1, 2, 3])).unwrap();
        assert_eq!(lookup.drafts(&corpus, &question), text(&[3]), "{handle:?}");
    }
}

#[test]
fn a_descriptor_sees_what_is_appended_later() {
    drafts_follow_appends::<i32>();
    drafts_follow_appends::<i64>();
}

/// The device has what the host's copy has, for any order of appends; and what is kept is the end
/// of all texts, from the start of a text on, at least a quarter of the limit where texts are short.
#[test]
fn a_corpus_is_the_end_of_all_texts() {
    for handle in crate::common::handles() {
        let limit = 200;
        let corpus = Corpus::<i32>::new(&handle, limit).unwrap();
        let mut all: Vec<i32> = Vec::new();
        let mut state = 1u32;
        for _ in 0..120 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = 1 + (state >> 16) as usize % 25;
            let text: Vec<i32> = (0..len as i32).map(|i| (state >> 20) as i32 + i).collect();
            corpus.append(&text).unwrap();
            all.extend(text);
            all.push(NONE);
            let known = corpus.to_vec();
            assert!(all.ends_with(&known) && known.len() <= limit);
            let start = all.len() - known.len();
            assert!(start == 0 || all[start - 1] == NONE, "it starts in the middle of a text");
            assert!(known.len() >= limit / 4 || start == 0, "{} tokens", known.len());
            let reading = corpus.read();
            if let (Some(tokens), Some(length)) =
                (reading.tokens().host::<i32>(), reading.length().host::<i32>())
            {
                assert_eq!(
                    (&tokens[..known.len()], length),
                    (&known[..], &[known.len() as i32][..])
                );
            }
        }
        // Of a text that is too long, the end.
        let long: Vec<i32> = (0..500).collect();
        corpus.append(&long).unwrap();
        assert_eq!(corpus.to_vec(), [&long[301..], &[NONE]].concat());
        corpus.append(&[]).unwrap();
        assert_eq!(corpus.len(), limit);
    }
}

/// Threads call and append at the same time. Each draft is what followed in some text.
#[test]
fn threads_append_while_others_call() {
    for handle in crate::common::handles() {
        let corpus = Corpus::<i64>::new(&handle, 300).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                let (corpus, stop) = (&corpus, &stop);
                scope.spawn(move || {
                    for round in 0..200i64 {
                        let start = 1000 + round % 7;
                        let text: Vec<i64> = (start..start + 20).collect();
                        corpus.append(&text).unwrap();
                    }
                    stop.store(true, Ordering::Release);
                });
            }
            let mut lookup = Lookup::new(&handle, &corpus);
            let mut drafted = 0;
            while !stop.load(Ordering::Acquire) || drafted == 0 {
                let drafts = lookup.drafts(&corpus, &[1, 1008, 1009]);
                drafted += drafts.len();
                for (draft, expected) in drafts.iter().zip(1010..) {
                    assert_eq!(*draft, expected, "{handle:?}: {drafts:?}");
                }
            }
        });
    }
}

#[test]
fn limits_are_checked() {
    let cpu = Handle::cpu().unwrap();
    for limit in [0, 1, 1 << 31] {
        let error = Corpus::<i32>::new(&cpu, limit).unwrap_err();
        assert_eq!(error.status(), Status::BadParam, "{error}");
    }
    let smallest = Corpus::<i32>::new(&cpu, 2).unwrap();
    smallest.append(&[1, 2, 3]).unwrap();
    assert_eq!(smallest.to_vec(), [3, NONE]);
}

#[test]
fn a_file_has_the_texts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corpus.bin");
    for handle in crate::common::handles() {
        let corpus = Corpus::<i32>::new(&handle, 100).unwrap();
        corpus.save(&path).unwrap();
        assert!(Corpus::<i32>::load(&handle, &path, 50).unwrap().is_empty());
        corpus.append(&[1, 2, 3, 4]).unwrap();
        corpus.append(&[5, 6, 7]).unwrap();
        corpus.save(&path).unwrap();
        let same = Corpus::<i32>::load(&handle, &path, 100).unwrap();
        assert_eq!(same.to_vec(), [1, 2, 3, 4, NONE, 5, 6, 7, NONE]);
        assert_eq!(Lookup::new(&handle, &same).drafts(&same, &[0, 5, 6]), [7]);
        // Of more tokens than there is room for, the newest texts.
        let less = Corpus::<i32>::load(&handle, &path, 8).unwrap();
        assert_eq!((less.to_vec(), less.limit()), (vec![5, 6, 7, NONE], 8));
    }
    // Nothing is left beside it, and nobody else can read it.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

/// The bytes of a file are those that `docs/suffix.md` and Python have.
#[test]
fn a_file_has_known_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corpus.bin");
    let corpus = Corpus::<i32>::new(&Handle::cpu().unwrap(), 100).unwrap();
    corpus.append(&[1, 2]).unwrap();
    corpus.save(&path).unwrap();
    let bytes = [
        b"SPECCORP".as_slice(),
        &[1, 0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0],
        &[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x80],
        &[0xCB, 0xB3, 0x45, 0x22],
    ];
    assert_eq!(std::fs::read(&path).unwrap(), bytes.concat());
}

/// A file with any byte changed, cut or added is refused with a sentence that names it.
#[test]
fn a_damaged_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corpus.bin");
    let cpu = Handle::cpu().unwrap();
    let corpus = Corpus::<i64>::new(&cpu, 100).unwrap();
    corpus.append(&[1, 2, 3, 1 << 40]).unwrap();
    corpus.save(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let refused = |bytes: &[u8], why: &str| {
        std::fs::write(&path, bytes).unwrap();
        let error = Corpus::<i64>::load(&cpu, &path, 100).expect_err(why);
        assert_eq!(error.status(), Status::BadParam, "{why}: {error}");
        assert!(error.to_string().contains("corpus.bin"), "{why}: {error}");
        error.to_string()
    };
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            refused(&bytes, &format!("bit {bit} of byte {at}"));
        }
        refused(&whole[..at], &format!("{at} bytes"));
    }
    refused(&[&whole[..], &[0]].concat(), "a byte more");
    assert!(refused(b"nonsense that is long enough to be one", "text").contains("SPECCORP"));
    std::fs::write(&path, &whole).unwrap();
    let error = Corpus::<i32>::load(&cpu, &path, 100).unwrap_err();
    assert!(error.to_string().contains("tokens of 8 bytes"), "{error}");
    assert_eq!(Corpus::<i64>::load(&cpu, &path, 100).unwrap().len(), 5);
    let error = Corpus::<i64>::load(&cpu, folder.path().join("none"), 100).unwrap_err();
    assert_eq!(error.status(), Status::InternalError, "{error}");
}

/// Where the new file cannot be written, the old one stays.
#[test]
fn a_save_that_fails_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = Handle::cpu().unwrap();
    let corpus = Corpus::<i32>::new(&cpu, 100).unwrap();
    for place in [folder.path().join("none").join("corpus.bin"), folder.path().to_owned()] {
        let error = corpus.save(&place).unwrap_err();
        assert_eq!(error.status(), Status::InternalError, "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Names that begin as those of other saves to the same path: of other processes with the same
/// number, of saves that were killed, and of saves that go on.
#[test]
fn a_save_removes_what_killed_ones_left_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: String| folder.path().join(name);
    let path = at("corpus.bin".to_owned());
    let corpus = Corpus::<i32>::new(&Handle::cpu().unwrap(), 100).unwrap();
    corpus.append(&[1, 2]).unwrap();
    let process = std::process::id();
    let numbered: Vec<_> =
        (0..300).map(|n| at(format!(".corpus.bin.{process}-{n}.partial"))).collect();
    let random = |n: u64| at(format!(".corpus.bin.{n:016x}.partial"));
    let (left, running, other) = (random(1), random(2), at(format!(".other.{:016x}.partial", 3)));
    for path in numbered.iter().chain([&left, &running, &other]) {
        std::fs::write(path, b"half").unwrap();
    }
    let lock = std::fs::File::open(&running).unwrap();
    lock.lock().unwrap();
    corpus.save(&path).unwrap();
    assert_eq!(Corpus::<i32>::load(&Handle::cpu().unwrap(), &path, 100).unwrap().len(), 3);
    assert!(numbered.iter().chain([&running, &other]).all(|path| path.exists()));
    assert!(!left.exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), numbered.len() + 3);
    drop(lock);
    // A name as long as a file's may be.
    let long = at("n".repeat(250));
    corpus.save(&long).unwrap();
    corpus.save(&path).unwrap();
    assert!(!running.exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), numbered.len() + 3);
}

/// Threads that save to one path at the same time all succeed, and one of their files stays.
#[test]
fn saves_to_one_path_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("corpus.bin");
    let cpu = Handle::cpu().unwrap();
    let corpora: Vec<_> = (1..5)
        .map(|first| {
            let corpus = Corpus::<i32>::new(&cpu, 100).unwrap();
            corpus.append(&vec![first; 5 * first as usize]).unwrap();
            corpus
        })
        .collect();
    std::thread::scope(|scope| {
        for corpus in &corpora {
            let path = &path;
            scope.spawn(move || (0..20).for_each(|_| corpus.save(path).unwrap()));
        }
    });
    let last = Corpus::<i32>::load(&cpu, &path, 100).unwrap().to_vec();
    assert!(corpora.iter().any(|corpus| corpus.to_vec() == last));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// What is no regular file is neither replaced nor read: a pipe, a socket, and links to them.
#[test]
#[cfg(unix)]
fn other_files_are_neither_replaced_nor_read() {
    use std::os::unix::fs::{FileTypeExt, symlink};

    let folder = tempfile::tempdir().unwrap();
    let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let links = [folder.path().join("to pipe"), folder.path().join("to socket")];
    symlink(&pipe, &links[0]).unwrap();
    symlink(&socket, &links[1]).unwrap();
    let cpu = Handle::cpu().unwrap();
    let corpus = Corpus::<i32>::new(&cpu, 100).unwrap();
    for path in [&pipe, &socket, &links[0], &links[1]] {
        let error = corpus.save(path).unwrap_err();
        assert_eq!(error.status(), Status::InternalError, "{error}");
        assert!(error.to_string().contains("not a regular file"), "{error}");
        let error = Corpus::<i32>::load(&cpu, path, 100).unwrap_err();
        assert_eq!(error.status(), Status::BadParam, "{error}");
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
    assert!(std::fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(std::fs::symlink_metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
    for device in ["/dev/null", "/dev/zero"] {
        let error = Corpus::<i32>::load(&cpu, device, 100).unwrap_err();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
    // A link to a file stays one, and a link to nothing is replaced.
    let (file, link) = (folder.path().join("file"), folder.path().join("to file"));
    corpus.save(&file).unwrap();
    symlink("file", &link).unwrap();
    corpus.append(&[1]).unwrap();
    corpus.save(&link).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(Corpus::<i32>::load(&cpu, &file, 100).unwrap().len(), 2);
    let link = folder.path().join("to nothing");
    symlink("nothing", &link).unwrap();
    corpus.save(&link).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_file());
}
