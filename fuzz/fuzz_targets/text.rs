//! Text and CSV, packed or not. A file and a stream of the same bytes have the
//! same keys, or fail at the same place; what is left out is counted the same.

#![no_main]

use std::io::{Cursor, Write};
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use spec_external::{Input, Key, Result, Source, csv, text};

fuzz_target!(|data: &[u8]| {
    let Some((&choice, data)) = data.split_first() else { return };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(data).unwrap();
    match choice & 3 {
        0 => both::<u64>(file.path(), data, choice),
        1 => both::<i64>(file.path(), data, choice),
        2 => both::<u32>(file.path(), data, choice),
        _ => both::<i32>(file.path(), data, choice),
    }
});

fn both<K: Key>(path: &Path, data: &[u8], choice: u8) {
    let stream = || Input::stream(path, Cursor::new(data.to_vec()));
    let mut options = text::Options::default();
    options.lenient = choice & 4 != 0;
    options.skip_lines = u64::from(choice >> 3 & 3);
    let file = Input::open(path).and_then(|input| all(&*text::read::<K>(input, options)?));
    let piped = stream().and_then(|input| all(&*text::read::<K>(input, options)?));
    same(file, piped);
    let mut options = csv::Options::default();
    (options.lenient, options.skip_nulls) = (choice & 4 != 0, choice & 8 != 0);
    options.delimiter = b",;\t|"[usize::from(choice >> 4 & 3)];
    let file = Input::open(path).and_then(|input| all(&*csv::read::<K>(input, "id", options)?));
    let piped = stream().and_then(|input| all(&*csv::read::<K>(input, "id", options)?));
    same(file, piped);
    _ = stream().and_then(Input::unpacked);
}

fn same<K: Key>(file: Result<(Vec<K>, String)>, piped: Result<(Vec<K>, String)>) {
    match (file, piped) {
        (Ok(file), Ok(piped)) => assert_eq!(file, piped),
        (Err(file), Err(piped)) => assert_eq!(file.to_string(), piped.to_string()),
        (file, piped) => panic!("{:?} but {:?}", file.map(|_| ()), piped.map(|_| ())),
    }
}

/// All keys, in order, and what was left out.
fn all<K: Key>(source: &dyn Source<K>) -> Result<(Vec<K>, String)> {
    let (mut all, mut some) = (Vec::new(), [K::MIN; 7]);
    for part in 0..source.parts() {
        let mut part = source.open(part)?;
        loop {
            let count = part.read(&mut some)?;
            if count == 0 {
                break;
            }
            all.extend_from_slice(&some[..count]);
        }
    }
    Ok((all, format!("{:?}", source.skipped()?)))
}
