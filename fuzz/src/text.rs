//! Text, CSV and raw keys, packed or not. A file, a stream of the same bytes, and what
//! gzip or zstd made of them, have the same keys, or fail at the same place with the
//! same words; what is left out is counted the same.

use std::io::{Cursor, Write};
use std::path::Path;

use spec_external::{Content, Input, Key, Result, Source, csv, raw, text};

/// Bytes that are unpacked as they come: what they unpack to is 32,768 times as much at
/// most.
const PACKED: usize = 2048;

/// The bit of the first byte that chooses zstd in the place of gzip.
const ZSTD: u8 = 0x80;

/// Reads the bytes in every way; the first byte chooses the keys' type and how they are packed: by
/// zstd only if `zstd`, since not every build decompresses it.
pub fn run(data: &[u8], zstd: bool) {
    let Some((&choice, data)) = data.split_first() else { return };
    let choice = if zstd { choice } else { choice & !ZSTD };
    let file = tempfile::NamedTempFile::new().unwrap();
    match choice & 3 {
        0 => all_ways::<u64>(file.path(), data, choice),
        1 => all_ways::<i64>(file.path(), data, choice),
        2 => all_ways::<u32>(file.path(), data, choice),
        _ => all_ways::<i32>(file.path(), data, choice),
    }
}

/// The keys of a file, in order, and what was left out.
type Keys<K> = Result<(Vec<K>, String)>;

fn all_ways<K: Key>(path: &Path, data: &[u8], choice: u8) {
    for read in [in_text::<K>, in_csv, in_raw] {
        let read = |input: Result<Input>| read(input?, choice);
        std::fs::write(path, data).unwrap();
        let keys = read(Input::open(path));
        same(&keys, &read(stream(path, data)));
        if choice & 0x40 != 0 {
            let packed = pack(data, choice);
            std::fs::write(path, &packed).unwrap();
            same(&keys, &read(Input::open(path).and_then(Input::decompressed)));
            same(&keys, &read(stream(path, &packed).and_then(Input::decompressed)));
            // Cut off, it is an error, whichever way it is read.
            let cut = &packed[..packed.len() - packed.len().min(1 + data.len() % 9)];
            std::fs::write(path, cut).unwrap();
            let keys = read(Input::open(path).and_then(Input::decompressed));
            same(&keys, &read(stream(path, cut).and_then(Input::decompressed)));
        }
        let content = Content::of(&data[..data.len().min(4096)]);
        if matches!(content, Content::Gzip | Content::Zstd) && data.len() <= PACKED {
            std::fs::write(path, data).unwrap();
            let keys = read(Input::open(path).and_then(Input::decompressed));
            same(&keys, &read(stream(path, data).and_then(Input::decompressed)));
        }
    }
}

fn stream(path: &Path, data: &[u8]) -> Result<Input> {
    Input::stream(path, Cursor::new(data.to_vec()))
}

fn in_text<K: Key>(input: Input, choice: u8) -> Keys<K> {
    let mut options = text::Options::default();
    options.lenient = choice & 4 != 0;
    options.skip_lines = u64::from(choice >> 3 & 3);
    all(&*text::read::<K>(input, options)?)
}

fn in_csv<K: Key>(input: Input, choice: u8) -> Keys<K> {
    let mut options = csv::Options::default();
    (options.lenient, options.skip_nulls) = (choice & 4 != 0, choice & 8 != 0);
    options.delimiter = b",;\t|"[usize::from(choice >> 4 & 3)];
    all(&*csv::read::<K>(input, "id", options)?)
}

fn in_raw<K: Key>(input: Input, _choice: u8) -> Keys<K> {
    all(&*raw::read::<K>(input)?)
}

/// As a packer makes it, in two pieces one behind the other.
fn pack(data: &[u8], choice: u8) -> Vec<u8> {
    let (first, second) = data.split_at(data.len() / 3);
    let pack = |data: &[u8]| {
        if choice & ZSTD != 0 {
            return zstd::encode_all(data, 1).unwrap();
        }
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(data).unwrap();
        packer.finish().unwrap()
    };
    [pack(first), pack(second)].concat()
}

fn same<K: Key>(one: &Keys<K>, other: &Keys<K>) {
    match (one, other) {
        (Ok(one), Ok(other)) => assert_eq!(one, other),
        (Err(one), Err(other)) => assert_eq!(one.to_string(), other.to_string()),
        (Ok(_), Err(error)) | (Err(error), Ok(_)) => panic!("only one way it is {error}"),
    }
}

fn all<K: Key>(source: &dyn Source<K>) -> Keys<K> {
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
