//! A column of CSV files.

use std::io::Cursor;

use spec_external::csv::{self, Options};
use spec_external::{Input, Result, Source};

use super::{read, sorted};

fn source(text: &str, options: Options) -> Result<Box<dyn Source<i64>>> {
    let input = Input::stream("x.csv", Cursor::new(text.as_bytes().to_vec()))?;
    csv::read(input, "id", options)
}

/// Opens a source for the text in a file, whose parts can be read independently.
fn in_file(text: &str, options: Options) -> (tempfile::TempDir, Result<Box<dyn Source<i64>>>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    std::fs::write(&path, text).unwrap();
    let source = Input::open(&path).and_then(|input| csv::read(input, "id", options));
    (folder, source)
}

#[track_caller]
fn finds(text: &str, options: Options, keys: &[i64]) -> Box<dyn Source<i64>> {
    let source = source(text, options).unwrap_or_else(|error| panic!("{error}"));
    let found = sorted(read(&*source).unwrap_or_else(|error| panic!("{error}")).0);
    assert!(found == sorted(keys.to_vec()), "{} keys, not {}", found.len(), keys.len());
    let (_folder, file) = in_file(text, options);
    let file = file.unwrap();
    let found = sorted(read(&*file).unwrap_or_else(|error| panic!("{error}")).0);
    assert!(found == sorted(keys.to_vec()), "{} keys, not {}", found.len(), keys.len());
    let (one, other) = (source.skipped().unwrap(), file.skipped().unwrap());
    assert_eq!((one.lines, one.nulls, one.blanks), (other.lines, other.nulls, other.blanks));
    assert_eq!(
        one.first.is_some(),
        other
            .first
            .is_some_and(|first| { first.ends_with(one.first.as_deref().unwrap_or("nothing")) })
    );
    source
}

#[track_caller]
fn fails(text: &str, options: Options, words: &str) {
    let error = match source(text, options) {
        Ok(source) => read(&*source).unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), format!("x.csv{words}"));
    let (_folder, file) = in_file(text, options);
    let error = file.and_then(|source| read(&*source).map(drop)).unwrap_err().to_string();
    assert!(error.ends_with(&format!("/x.csv{words}")), "{error}");
}

#[test]
fn a_column_is_found_by_its_name() {
    let plain = Options::default();
    finds("id\n1\n2\n", plain, &[1, 2]);
    finds("\u{feff}id,b\r\n1,x\r\n\r\n-2,y", plain, &[1, -2]);
    finds("a,\"id\",b\n\"x,\n\"\"y\",\"007\",\n,8,z\n", plain, &[7, 8]);
    finds("a,id\n", plain, &[]);
    let mut tab = plain;
    tab.delimiter = b'\t';
    finds("a\tid\n1,1\t5\n", tab, &[5]);
    // More than any buffer holds, and fields that cross its ends.
    let keys: Vec<i64> = (0..200_000).collect();
    let text: String = keys.iter().map(|key| format!("\"a, {key}\",{key}\r\n")).collect();
    finds(&format!("a,id\r\n{text}"), plain, &keys);
}

#[test]
fn what_is_no_key_is_named_or_left_out() {
    let plain = Options::default();
    fails("", plain, ": is empty: it has no column id");
    fails("a,b\n1,2\n", plain, ": has no column id; it has a, b");
    fails("id,b,id\n1,2,3\n", plain, ": has two columns id");
    let range = "which is no number from -9223372036854775808 to 9223372036854775807";
    // Line numbers count quoted line ends and blank lines too.
    let text = "id,b\r\n1,\"\n\"\r\n\r\n5x,\r\n";
    fails(text, plain, &format!(": line 5, column 1: the field `id` is \"5x\", {range}"));
    let quoted = format!(": line 2, column 1: the field `id` is \"1\\n\", {range}");
    fails("id\n\"1\n\"\n", plain, &quoted);
    let long = "1".repeat(5000);
    let shown = format!(": line 2, column 1: the field `id` is \"{}..\", {range}", &long[..40]);
    fails(&format!("id\n{long}\n"), plain, &shown);
    fails("id,b\n1\n", plain, ": line 2: has 1 fields where the header has 2");
    let nothing =
        ": line 3, column 1: the field `id` is empty, and nothing is no key (--skip-nulls)";
    fails("id,b\n1,\n,2\n", plain, nothing);
    let mut nulls = plain;
    nulls.skip_nulls = true;
    let source = finds("id,b\n1,\n,2\n\"\",3\n", nulls, &[1]);
    assert_eq!(source.skipped().unwrap().nulls, 2);
    let mut lenient = plain;
    lenient.lenient = true;
    let source = finds("id,b\n1,\n2\nx,2\n,2\n7,7\n", lenient, &[1, 7]);
    let skipped = source.skipped().unwrap();
    let first = "x.csv: line 3: has 1 fields where the header has 2".to_owned();
    assert_eq!((skipped.lines, skipped.first, skipped.nulls), (3, Some(first), 0));
}

/// Programs write a null in a table of one column as a blank line; between records of several
/// fields it is nothing, but is counted.
#[test]
fn blank_lines_are_counted_or_are_nulls() {
    let plain = Options::default();
    for (text, blanks) in [
        ("id,b\n1,x\n\n2,y\n", 1),
        ("\n\r\nid,b\n1,x\n2,y\n\n\r\n\n", 5),
        ("b,id\r\n\r\nx,1\r\n\"\n\",2\r\n", 1),
        ("id,b\n1,x\n2,y\n\r", 1),
        ("id,b\n1,x\n2,y\n", 0),
    ] {
        let skipped = finds(text, plain, &[1, 2]).skipped().unwrap();
        assert_eq!((skipped.blanks, skipped.nulls, skipped.lines), (blanks, 0, 0), "{text:?}");
    }
    let empty = "the field `id` is empty, and nothing is no key (--skip-nulls)";
    let (mut nulls, mut lenient) = (plain, plain);
    (nulls.skip_nulls, lenient.lenient) = (true, true);
    for (text, line, count) in
        [("id\n1\n\n2\n", 3, 1), ("id\r\n1\r\n2\r\n\r\n", 4, 1), ("id\n\"\"\n\n1\n2\n\r", 2, 3)]
    {
        fails(text, plain, &format!(": line {line}, column 1: {empty}"));
        let skipped = finds(text, nulls, &[1, 2]).skipped().unwrap();
        assert_eq!((skipped.blanks, skipped.nulls, skipped.lines), (0, count, 0), "{text:?}");
        let skipped = finds(text, lenient, &[1, 2]).skipped().unwrap();
        assert_eq!((skipped.blanks, skipped.nulls, skipped.lines), (0, 0, count), "{text:?}");
    }
    // Before the header of one column, a blank line is no record either.
    let skipped = finds("\nid\n1\n", plain, &[1]).skipped().unwrap();
    assert_eq!(skipped.blanks, 1);
}

#[test]
fn a_quote_that_may_not_be_there_is_an_error() {
    let plain = Options::default();
    let mut lenient = plain;
    lenient.lenient = true;
    let behind = |byte: &str| {
        format!(
            "'{byte}' stands behind the closing quote of a field; within quotes, a quote is \
             written twice"
        )
    };
    // The field `"5"6` is an error and not 56, in every column.
    fails("id,b\n1,2\n\"5\"6,3\n", plain, &format!(": line 3, column 4: {}", behind("6")));
    fails("b,id\n\"x\" ,3\n", plain, &format!(": line 2, column 4: {}", behind(" ")));
    fails("id\n\"5\"\r6\n", plain, &format!(": line 2, column 5: {}", behind("6")));
    fails("id,\"b\"c\n", plain, &format!(": line 1, column 7: {}", behind("c")));
    let source = finds("id,b\n1,2\n\"5\"6,3\n4,5\n", lenient, &[1, 4]);
    let first = format!("x.csv: line 3, column 4: {}", behind("6"));
    assert_eq!(source.skipped().unwrap().first, Some(first));
    // An unclosed quote, which would swallow rows, is an error.
    let never = "a quote that is never closed";
    let rows = "7,8\n".repeat(1000);
    let text = format!("id,b\n1,2\n3,\"4\n{rows}");
    fails(&text, plain, &format!(": line 3, column 3: {never}"));
    // The same if the quote is further from the end than the length of a block.
    let long = format!("id,b\n1,2\n3,\"4\n{}", "7,8\n".repeat(1_000_000));
    fails(&long, plain, &format!(": line 3, column 3: {never}"));
    fails("id\n\"", plain, &format!(": line 2, column 1: {never}"));
    fails("\"id\n", plain, &format!(": line 1, column 1: {never}"));
    let source = finds(&long, lenient, &[1]);
    let skipped = source.skipped().unwrap();
    let first = format!("x.csv: line 3, column 3: {never}");
    assert_eq!((skipped.lines, skipped.first), (1, Some(first)));
    // In a field that does not begin with a quote, a quote is an ordinary character.
    finds("id,b\n1,5\" pipe\n2,\"\"\n3,x\"y\"\n", plain, &[1, 2, 3]);
}

/// A record that is longer than a block, and the lines after it.
#[test]
fn a_field_may_be_longer_than_memory() {
    let plain = Options::default();
    let field = "line, \"\"\n".repeat(400_000);
    let text = format!("id,b\n1,\"{field}\"\n2,x\n");
    finds(&text, plain, &[1, 2]);
    let words = ": line 400004, column 1: the field `id` is \"x\", which is no number from \
                 -9223372036854775808 to 9223372036854775807";
    fails(&format!("{text}x,y\n"), plain, words);
    let key = format!("b,id\n\"{field}\",\"7\"\r\n\"{field}\",8");
    finds(&key, plain, &[7, 8]);
}

/// In all files that this reader and csv_core accept, both find the same keys.
#[test]
fn valid_files_are_as_csv_core_reads_them() {
    let mut state = 7u64;
    let mut random = move |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % end
    };
    for _ in 0..300 {
        let mut text = "b,id,c\n".to_owned();
        for _ in 0..random(40) {
            let other = ["", "x", "\"\"", "\"a,\n\"\"b\"", "5\" pipe", "\"\r\n\"", "1 2"];
            let number = random(1000);
            let id = match random(3) {
                0 => format!("\"{number}\""),
                _ => number.to_string(),
            };
            let (b, c) = (other[random(7) as usize], other[random(7) as usize]);
            text += &format!("{b},{id},{c}{}", ["\n", "\r\n", "\n\n"][random(3) as usize]);
        }
        finds(&text, Options::default(), &by_csv_core(&text));
    }
}

/// The second column of all records but the first, read by csv_core.
fn by_csv_core(text: &str) -> Vec<i64> {
    use csv_core::ReadRecordResult::{End, Record};
    let (mut reader, mut rest) = (csv_core::Reader::new(), text.as_bytes());
    let (mut keys, mut output, mut ends) = (Vec::new(), [0; 1000], [0; 10]);
    loop {
        let (mut filled, mut fields) = (0, 0);
        let end = loop {
            let (result, taken, given, ended) =
                reader.read_record(rest, &mut output[filled..], &mut ends[fields..]);
            rest = &rest[taken..];
            (filled, fields) = (filled + given, fields + ended);
            if matches!(result, Record | End) {
                break result;
            }
        };
        if end == End {
            keys.remove(0);
            return keys;
        }
        let id = std::str::from_utf8(&output[ends[0]..ends[1]]).unwrap();
        keys.push(id.parse().unwrap_or(0));
    }
}
