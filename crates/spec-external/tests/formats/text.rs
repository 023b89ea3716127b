//! Text with one number per line.

use std::fs;
use std::io::{self, Read};

use spec_external::text::{self, Options, TextSink};
use spec_external::{Chain, Error, Input, Key, Place, Skipped, Source};

use super::{about, output, random_keys, read, sorted, write};

fn stream<K: Key>(name: &str, reader: impl Read + Send + 'static) -> Box<dyn Source<K>> {
    text::read(Input::stream(name, reader).unwrap(), Options::default()).unwrap()
}

fn lines<K: Key>(keys: &[K], end: &str) -> String {
    keys.iter().map(|key| format!("{key}{end}")).collect()
}

#[test]
fn several_files_of_different_line_ends_are_one_source() {
    let folder = tempfile::tempdir().unwrap();
    let keys = random_keys(1, 50_000);
    let (first, second) = keys.split_at(20_000);
    let (unix, dos) = (folder.path().join("unix.txt"), folder.path().join("dos.txt"));
    fs::write(&unix, lines(first, "\n").trim_end()).unwrap();
    fs::write(&dos, lines(second, "\r\n")).unwrap();
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "").unwrap();

    let source = Chain::new(vec![
        text::open::<u64>(&unix).unwrap(),
        text::open(&empty).unwrap(),
        text::open(&dos).unwrap(),
    ]);
    let (found, bytes) = read(&source).unwrap();
    assert_eq!(sorted(found), sorted(keys));
    assert_eq!(Some(bytes), source.bytes());
    assert_eq!(bytes, fs::metadata(unix).unwrap().len() + fs::metadata(dos).unwrap().len());
}

#[test]
fn a_file_of_many_parts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.txt");
    let keys = random_keys(2, 7_000_000);
    let mut lines = lines(&keys, "\n");
    fs::write(&path, &lines).unwrap();
    let source = text::open::<u64>(&path).unwrap();
    assert!(source.parts() > 2, "{} parts of {} bytes", source.parts(), lines.len());
    assert_eq!(sorted(read(&*source).unwrap().0), sorted(keys));

    // A bad line in the last part: its line number counts all lines before.
    lines.push_str("12\n7,5\n1\n");
    fs::write(&path, &lines).unwrap();
    let source = text::open::<u64>(&path).unwrap();
    let (place, message) = about(&path, read(&*source));
    assert_eq!(place.to_string(), ": line 7000002, column 2");
    assert!(message.starts_with("',' is no digit"), "{message}");
}

#[test]
fn each_type_has_its_range() {
    let folder = tempfile::tempdir().unwrap();
    fn range<K: Key>(folder: &std::path::Path, outside: &[&str]) {
        let path = folder.join(K::NAME);
        fs::write(&path, format!("{}\n+0\n-0\n007\n{}\n", K::MIN, K::MAX)).unwrap();
        let (keys, _) = read(&*text::open::<K>(&path).unwrap()).unwrap();
        let texts: Vec<String> = keys.iter().map(K::to_string).collect();
        assert_eq!(texts, [&K::MIN.to_string(), "0", "0", "7", &K::MAX.to_string()]);
        for &number in outside {
            fs::write(&path, format!("1\n{number}\r\n")).unwrap();
            let (place, message) = about(&path, read(&*text::open::<K>(&path).unwrap()));
            assert_eq!(place.to_string(), ": line 2, column 1");
            let expected = format!("{number} is out of range");
            assert!(message.starts_with(&expected), "{message}");
            assert!(message.ends_with(&format!("from {} to {}", K::MIN, K::MAX)), "{message}");
        }
    }
    range::<u64>(folder.path(), &["18446744073709551616", "-1", "100000000000000000000000"]);
    range::<i64>(folder.path(), &["9223372036854775808", "-9223372036854775809"]);
    range::<u32>(folder.path(), &["4294967296", "-7"]);
    range::<i32>(folder.path(), &["2147483648", "-2147483649"]);
}

#[test]
fn a_line_that_is_no_number_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.txt");
    for (bad, column) in [
        ("", 1),
        (" x5", 2),
        ("5 6", 2),
        ("1234567890x", 11),
        ("-", 2),
        ("--5", 2),
        ("1.5", 2),
        ("0x10", 2),
        ("NaN", 1),
        ("5\r", 2),
        ("5\t3", 2),
        ("\u{feff}5", 1),
    ] {
        fs::write(&path, format!("10\n20\n{bad}\r\n40\n")).unwrap();
        let (place, message) = about(&path, read(&*text::open::<i64>(&path).unwrap()));
        let Place::Line { line, column: found } = place else { panic!("{place:?}") };
        assert_eq!((line, found), (3, column), "{bad:?}: {message}");

        let pipe = stream::<i64>("pipe", fs::File::open(&path).unwrap());
        let (place, again) = about("pipe".as_ref(), read(&*pipe));
        assert_eq!((place, again), (Place::Line { line: 3, column }, message));
    }
}

#[test]
fn a_file_without_lines_is_noticed_early() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.txt");
    for before in ["", "1\n2\n"] {
        fs::write(&path, before.to_owned() + &"7".repeat(3 << 20)).unwrap();
        let line = 1 + before.matches('\n').count() as u64;
        let expected = Place::Line { line, column: 4097 };
        let (place, message) = about(&path, read(&*text::open::<u64>(&path).unwrap()));
        assert_eq!(place, expected, "{message}");
        let pipe = stream::<u64>("pipe", fs::File::open(&path).unwrap());
        assert_eq!(about("pipe".as_ref(), read(&*pipe)).0, expected);
    }
}

/// A reader that returns one or a few bytes at a time, and is interrupted.
struct Dripping<R>(R, u32);

impl<R: Read> Read for Dripping<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 = (self.1 + 1) % 7;
        match self.1 {
            0 => Err(io::ErrorKind::Interrupted.into()),
            some => {
                let length = buffer.len().min(some as usize * 1000 + 1);
                self.0.read(&mut buffer[..length])
            }
        }
    }
}

#[test]
fn a_stream_is_parsed_block_by_block() {
    let keys: Vec<i64> = random_keys(3, 400_000).into_iter().map(|key| key as i64).collect();
    let text = lines(&keys, "\r\n");
    let dripping = |text: &str, calls| Dripping(io::Cursor::new(text.as_bytes().to_vec()), calls);
    let pipe = stream::<i64>("stdin", dripping(&text, 0));
    let (found, bytes) = read(&*pipe).unwrap();
    assert_eq!(sorted(found), sorted(keys));
    assert_eq!(bytes, text.len() as u64);

    let text = text + "1\n+\n";
    let pipe = stream::<i64>("stdin", dripping(&text, 3));
    let (place, _) = about("stdin".as_ref(), read(&*pipe));
    assert_eq!(place, Place::Line { line: 400_002, column: 2 });

    assert!(read(&*stream::<i64>("stdin", io::empty())).unwrap().0.is_empty());
}

/// A reader that returns this number of lines, and then an error.
struct Broken(usize);

impl Read for Broken {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("unplugged"));
        }
        self.0 -= 1;
        bytes[..2].copy_from_slice(b"7\n");
        Ok(2)
    }
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let Err(error) = Input::stream("stdin", Broken(0)) else { panic!("opened") };
    assert_eq!(error.to_string(), "stdin: cannot read: unplugged");
    let error = read(&*stream::<u64>("stdin", Broken(5000))).unwrap_err();
    assert_eq!(error.to_string(), "stdin: cannot read: unplugged");
    let nowhere = folder.path().join("nowhere.txt");
    let Err(error) = text::open::<u64>(&nowhere) else { panic!("opened") };
    assert!(matches!(&error, Error::Io { path, .. } if *path == nowhere), "{error}");
    assert!(text::open::<u64>(folder.path()).is_err());
}

#[test]
fn a_file_that_shrinks_meanwhile_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shrinks.txt");
    fs::write(&path, "1\n2\n3\n").unwrap();
    let source = text::open::<u64>(&path).unwrap();
    fs::write(&path, "1\n2\n").unwrap();
    let (place, message) = about(&path, read(&*source));
    assert_eq!(place, Place::Byte(4), "{message}");
}

#[test]
fn what_is_written_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let mut keys: Vec<i64> = random_keys(4, 60_000).into_iter().map(|key| key as i64).collect();
    keys.extend([i64::MIN, -1, 0, i64::MAX]);
    let mut keys = sorted(keys);
    keys.dedup();
    let path = folder.path().join("keys.txt");
    let bytes = write(TextSink::new(output(&path), false), &keys, &[]).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), lines(&keys, "\n"));
    assert_eq!(bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(sorted(read(&*text::open::<i64>(&path).unwrap()).unwrap().0), keys);

    let counts: Vec<u64> = (0..keys.len() as u64).map(|index| index * index + 1).collect();
    let path = folder.path().join("counts.txt");
    write(TextSink::new(output(&path), true), &keys, &counts).unwrap();
    let expected: String =
        keys.iter().zip(&counts).map(|(key, count)| format!("{key}\t{count}\n")).collect();
    assert_eq!(fs::read_to_string(&path).unwrap(), expected);

    let path = folder.path().join("none.txt");
    write::<u32, _>(TextSink::new(output(&path), false), &[], &[]).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

/// For any text, a file and a stream give the same keys, and leave out the same
/// lines.
#[test]
fn lines_that_are_no_key_are_left_out_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.txt");
    let long = |len: usize| "1".repeat(len);
    let check = |text: &str, skip_lines: u64, keys: &[u64], bad: u64, first: &str| {
        fs::write(&path, text).unwrap();
        let mut options = Options::default();
        (options.skip_lines, options.lenient) = (skip_lines, true);
        let file = fs::File::open(&path).unwrap();
        let file_source = text::read::<u64>(Input::open(&path).unwrap(), options).unwrap();
        let stream = Input::stream(&path, Dripping(file, 0)).unwrap();
        let stream = text::read::<u64>(stream, options).unwrap();
        for source in [file_source, stream] {
            let (found, _) = read(&*source).unwrap();
            assert_eq!(sorted(found), sorted(keys.to_vec()));
            let Skipped { lines, first: found, .. } = source.skipped().unwrap();
            let found = found.unwrap_or_default();
            assert_eq!(lines, bad, "{found}");
            let expected = format!("{}{first}", path.display());
            assert!(bad == 0 || found.starts_with(&expected), "{found}; expected {expected}");
        }
    };
    check("1\nx\n\n3\n-4\n5", 0, &[1, 3, 5], 3, ": line 2, column 1: 'x' is no digit");
    check("id\n1\n2\n", 1, &[1, 2], 0, "");
    check("a\nb\n\nc\n7", 4, &[7], 0, "");
    check("a\nb", 7, &[], 0, "");
    check("1\n2\n", 0, &[1, 2], 0, "");
    check("id\n1\nno\n", 1, &[1], 1, ": line 3, column 1: 'n'");
    // Lines longer than any buffer, in the middle, at the start, at the end.
    for len in [4097, 100_000, 3 << 20] {
        let text = format!("5\n{}\n6\n", long(len));
        check(&text, 0, &[5, 6], 1, ": line 2, column 4097: a line of more than 4096 bytes");
        let text = format!("{}\r\n6", long(len));
        check(&text, 0, &[6], 1, ": line 1, column 4097");
        let text = format!("7\n8\n{}", long(len));
        check(&text, 0, &[7, 8], 1, ": line 3, column 4097");
    }
    // Many parts, most of them inside one line, and bad lines in all others.
    let good: Vec<u64> = random_keys(9, 400_000);
    let lines: String = good.iter().map(|key| format!("{key}\n{key}?\n")).collect();
    let text = format!("{lines}{}\n{lines}", long(70 << 20));
    check(&text, 0, &[&good[..], &good[..]].concat(), 800_001, ": line 2, column ");
}

#[test]
fn the_longest_line_is_the_same_in_a_file_and_a_stream() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zeros.txt");
    for (len, good) in [(4096, true), (4097, false)] {
        for end in ["", "\n", "\r\n"] {
            for (before, after) in [("", ""), ("1\n", "2\n"), ("", &*"3\n".repeat(1 << 20))] {
                let after = if end.is_empty() { "" } else { after };
                fs::write(&path, format!("{before}{:0>len$}{end}{after}", 9)).unwrap();
                let file = text::open::<u64>(&path).unwrap();
                let pipe = stream::<u64>("pipe", fs::File::open(&path).unwrap());
                for source in [file, pipe] {
                    let result = read(&*source);
                    assert_eq!(result.is_ok(), good, "{len} {end:?} {}", after.len());
                }
            }
        }
    }
}
