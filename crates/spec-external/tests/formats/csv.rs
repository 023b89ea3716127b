//! A column of CSV files.

use std::io::Cursor;

use spec_external::csv::{self, Options};
use spec_external::{Input, Result, Source};

use super::read;

fn source(text: &str, options: Options) -> Result<Box<dyn Source<i64>>> {
    let input = Input::stream("x.csv", Cursor::new(text.as_bytes().to_vec()))?;
    csv::read(input, "id", options)
}

#[track_caller]
fn finds(text: &str, options: Options, keys: &[i64]) -> Box<dyn Source<i64>> {
    let source = source(text, options).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read(&*source).unwrap_or_else(|error| panic!("{error}")).0, keys);
    source
}

#[track_caller]
fn fails(text: &str, options: Options, words: &str) {
    let error = match source(text, options) {
        Ok(source) => read(&*source).unwrap_err(),
        Err(error) => error,
    };
    assert_eq!(error.to_string(), format!("x.csv{words}"));
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
    let range = "no number from -9223372036854775808 to 9223372036854775807";
    // Quoted ends of lines count too, and blank lines.
    let text = "id,b\r\n1,\"\n\"\r\n\r\n5x,\r\n";
    fails(text, plain, &format!(": line 5: column id is \"5x\", {range}"));
    fails("id\n\"1\n\"\n", plain, &format!(": line 2: column id is \"1\\n\", {range}"));
    let long = "1".repeat(5000);
    let shown = format!(": line 2: column id is \"{}..\", {range}", &long[..40]);
    fails(&format!("id\n{long}\n"), plain, &shown);
    fails("id,b\n1\n", plain, ": line 2: has 1 fields where the header has 2");
    let nothing = ": line 3: column id is empty, and nothing is no key (--skip-nulls)";
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
