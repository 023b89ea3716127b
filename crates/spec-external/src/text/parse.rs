//! Parses lines as numbers, and writes numbers as text.

use crate::Key;

/// The longest line that is parsed, in bytes. A number with many leading
/// zeros still fits, and input that is not text is noticed early.
pub(crate) const LONGEST: usize = 4096;

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    pub(super) keys: usize,
    /// The number of bytes of the lines with these keys.
    pub(super) bytes: usize,
    /// Whether the next line is not a key.
    pub(super) bad: bool,
}

/// Parses lines from the start of `text` until `keys` is full, `text` ends, or a
/// line is not a key.
pub(super) fn parse<K: Key>(text: &[u8], keys: &mut [K]) -> Parsed {
    let mut at = 0;
    for (done, key) in keys.iter_mut().enumerate() {
        if at == text.len() {
            return Parsed { keys: done, bytes: at, bad: false };
        }
        let Some((number, length)) = line(&text[at..]) else {
            return Parsed { keys: done, bytes: at, bad: true };
        };
        *key = number;
        at += length;
    }
    Parsed { keys: keys.len(), bytes: at, bad: false }
}

/// The number in the first line of `text`, and the length of the line including its end.
#[inline(always)]
fn line<K: Key>(text: &[u8]) -> Option<(K, usize)> {
    plain_line(text).or_else(|| padded_line(text))
}

/// As [`line`], for a line with blanks before or behind the number.
#[cold]
fn padded_line<K: Key>(text: &[u8]) -> Option<(K, usize)> {
    let newline = memchr::memchr(b'\n', text);
    let line = &text[..newline.unwrap_or(text.len())];
    let length = newline.map_or(text.len(), |newline| newline + 1);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let trimmed = without_blanks(line);
    if line.len() > LONGEST || trimmed.len() == line.len() {
        return None;
    }
    number(trimmed).map(|number| (number, length))
}

/// A line without the spaces and tabs at its start and end.
fn without_blanks(mut line: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = line {
        line = rest;
    }
    line
}

#[inline(always)]
fn plain_line<K: Key>(text: &[u8]) -> Option<(K, usize)> {
    if text.is_empty() {
        return None;
    }
    let signed = usize::from(matches!(text[0], b'-' | b'+'));
    let digits = &text[signed..];
    let (magnitude, length) = atoi_simd::parse_prefix::<u64, true, false>(digits).ok()?;
    let key = K::from_sign_magnitude(text[0] == b'-', magnitude)?;
    if signed + length > LONGEST {
        return None;
    }
    let end = match digits[length..] {
        [b'\n', ..] => length + 1,
        [] => length,
        [b'\r'] => length + 1,
        [b'\r', b'\n', ..] => length + 2,
        _ => return None,
    };
    Some((key, signed + end))
}

/// The number in `text`, which may have blanks around it but no line's end.
pub(crate) fn number<K: Key>(text: &[u8]) -> Option<K> {
    let text = without_blanks(text);
    let (key, length) = plain_line(text)?;
    (length == text.len() && text[length - 1].is_ascii_digit()).then_some(key)
}

/// The error in a line that [`parse`] did not accept: the column, from 1,
/// and a sentence.
pub(crate) fn diagnose<K: Key>(text: &[u8]) -> (u64, String) {
    let end = memchr::memchr(b'\n', text).unwrap_or(text.len());
    let line = &text[..end];
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.len() > LONGEST {
        return (LONGEST as u64 + 1, too_long());
    }
    let before = line.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let line = without_blanks(line);
    let signed = usize::from(matches!(line.first(), Some(b'-' | b'+')));
    let bad = line[signed..].iter().position(|byte| !byte.is_ascii_digit());
    let column = |index: usize| (before + index) as u64 + 1;
    match bad {
        _ if line.is_empty() => {
            (1, format!("a line without a number; it should be {}", kind::<K>()))
        }
        _ if line.len() == signed => {
            (column(signed), format!("a sign without a number; it should be {}", kind::<K>()))
        }
        Some(bad) => {
            let rest = String::from_utf8_lossy(&line[signed + bad..]);
            let what = rest.chars().next().unwrap_or_default();
            (
                column(signed + bad),
                format!("{what:?} is no digit; a line should be {}", kind::<K>()),
            )
        }
        None => {
            let shown = String::from_utf8_lossy(&line[..line.len().min(40)]);
            let more = if line.len() > 40 { ".." } else { "" };
            (column(0), format!("{shown}{more} is out of range; a line should be {}", kind::<K>()))
        }
    }
}

/// The message for a line of more than [`LONGEST`] bytes.
pub(super) fn too_long() -> String {
    format!("a line of more than {LONGEST} bytes is no number")
}

fn kind<K: Key>() -> String {
    format!("one number from {} to {}", K::MIN, K::MAX)
}

/// The largest number of bytes in a number of any type.
pub(super) const DIGITS: usize = 20;

/// Appends the decimal form of a key.
#[inline]
pub(super) fn write<K: Key>(key: K, text: &mut Vec<u8>) {
    let (negative, magnitude) = key.sign_magnitude();
    if negative {
        text.push(b'-');
    }
    text.extend_from_slice(itoa::Buffer::new().format(magnitude).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one<K: Key>(text: &str) -> Option<K> {
        let mut keys = [K::MIN; 2];
        match parse(text.as_bytes(), &mut keys) {
            Parsed { keys: 1, bytes, bad: false } if bytes == text.len() => Some(keys[0]),
            Parsed { keys: 0, bytes: 0, bad: true } => None,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    /// Compares with the standard library's parser, which gets the number without signs and blanks
    /// that it does not accept.
    fn agrees<K: Key>(text: &str) {
        let number = text.parse::<i128>().unwrap();
        assert_eq!(one::<K>(text), number.to_string().parse().ok(), "{text:?} as {}", K::NAME);
    }

    #[test]
    fn every_length_and_the_ends_of_every_range() {
        let mut numbers: Vec<i128> = Vec::new();
        for digits in 1..=22 {
            let power = 10i128.pow(digits);
            numbers.extend([power - 1, power, power + 7, power / 3]);
        }
        for bits in [7, 8, 15, 16, 31, 32, 63, 64] {
            numbers.extend([(1i128 << bits) - 1, 1 << bits, (1 << bits) + 1]);
        }
        for number in numbers.into_iter().chain([0]) {
            for text in [format!("{number}"), format!("-{number}"), format!("+{number}")] {
                agrees::<u64>(&text);
                agrees::<i64>(&text);
                agrees::<u32>(&text);
                agrees::<i32>(&text);
            }
            for zeros in [1, 7, 8, 30, 200] {
                agrees::<u64>(&format!("{}{number}", "0".repeat(zeros)));
                agrees::<i32>(&format!("-{}{number}", "0".repeat(zeros)));
            }
        }
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in [
            "", "-", "+", "a", "1a", "1 2", " ", "\t\r", "- 1", "1\u{a0}", "1\u{b}", "1.0", "--1",
            "+-1", "0x1", "1e3", "१", "1\r\r", "\r",
        ] {
            if text.is_empty() {
                continue;
            }
            let mut keys = [0i64; 2];
            let bad = Parsed { keys: 0, bytes: 0, bad: true };
            assert_eq!(parse(text.as_bytes(), &mut keys), bad, "{text:?}");
            let (column, _) = diagnose::<i64>(text.as_bytes());
            assert!(column as usize <= text.len() + 1, "{text:?}");
        }
    }

    #[test]
    fn ends_of_lines() {
        let mut keys = [0u32; 8];
        let parsed = |keys, bytes, bad| Parsed { keys, bytes, bad };
        assert_eq!(parse(b"1\n22\r\n333\n+4", &mut keys), parsed(4, 12, false));
        assert_eq!(keys[..4], [1, 22, 333, 4]);
        assert_eq!(parse(b"5\r", &mut keys), parsed(1, 2, false));
        assert_eq!(parse(b"1\n2\n\n3\n", &mut keys), parsed(2, 4, true));
        // There is no room for a third key.
        assert_eq!(parse(b"1\n2\n3\n", &mut keys[..2]), parsed(2, 4, false));
    }

    #[test]
    fn blanks_around_a_number_are_no_part_of_it() {
        for text in ["5 ", " 5", "\t5 \t", "5 \n", "  5  \r\n", "5\t\r"] {
            assert_eq!(one::<i32>(text), Some(5), "{text:?}");
        }
        assert_eq!(one::<i64>(" -7 \n"), Some(-7));
        let mut keys = [0u32; 8];
        assert_eq!(
            parse(b"1 \n 2\r\n3\n\t4", &mut keys),
            Parsed { keys: 4, bytes: 11, bad: false }
        );
        assert_eq!(keys[..4], [1, 2, 3, 4]);
        assert_eq!(diagnose::<u32>(b"  4x\n").0, 4);
        assert_eq!(diagnose::<u32>(b" 4 5\n").0, 3);
        assert_eq!(diagnose::<u32>(b" -1").0, 2);
        assert!(diagnose::<u32>(b" \t\n").1.starts_with("a line without a number"));
        let long = format!("{}5", " ".repeat(LONGEST));
        assert!(parse(long.as_bytes(), &mut keys).bad);
    }

    #[test]
    fn a_number_is_all_of_a_field() {
        assert_eq!(number::<u64>(b" 12\t"), Some(12));
        for text in ["", " ", "1\n2", "1\n", "1\r", "1\r\n2", "\n1", "1 2", "x"] {
            assert_eq!(number::<u64>(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn the_longest_line_is_as_long_wherever_it_is() {
        let mut keys = [0u32; 2];
        for (len, bad) in [(LONGEST, false), (LONGEST + 1, true)] {
            for end in ["", "\n", "\r\n", "\n5\n"] {
                let text = format!("{:0>len$}{end}", 7);
                assert_eq!(parse(text.as_bytes(), &mut keys).bad, bad, "{len} {end:?}");
                let text = format!("-{:0>len$}{end}", 0);
                assert!(parse(&text.as_bytes()[bad as usize..], &mut keys).bad, "{len} {end:?}");
            }
        }
        let (column, words) = diagnose::<u32>("0".repeat(LONGEST + 1).as_bytes());
        assert_eq!((column, words), (LONGEST as u64 + 1, too_long()));
    }

    #[test]
    fn where_and_what() {
        let of = |text: &str| diagnose::<u32>(text.as_bytes());
        assert_eq!(of("12x4\n5").0, 3);
        assert!(of("12x4\n5").1.starts_with("'x' is no digit"), "{}", of("12x4\n5").1);
        assert_eq!(of("-ü\n").0, 2);
        assert!(of("-ü\n").1.starts_with("'ü' is no digit"));
        assert!(of("4294967296\r\n").1.starts_with("4294967296 is out of range"));
        assert!(of("4294967296").1.ends_with("one number from 0 to 4294967295"));
        assert!(of("-1").1.starts_with("-1 is out of range"));
        assert!(of("\n").1.starts_with("a line without a number"));
        assert_eq!(of("+\n"), (2, of("+").1));
    }

    #[test]
    fn what_is_written_can_be_read() {
        let mut text = Vec::new();
        for key in [i64::MIN, -1, 0, 1, i64::MAX] {
            text.clear();
            write(key, &mut text);
            assert_eq!(text, key.to_string().as_bytes());
            assert!(text.len() <= DIGITS);
        }
        text.clear();
        write(u64::MAX, &mut text);
        assert_eq!(text, b"18446744073709551615");
    }
}
