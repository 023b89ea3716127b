//! The forms of files, and how a text is told by its first bytes.

/// The form of an input, according to its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Content {
    /// No known form, such as raw keys.
    Unknown,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC file.
    Arrow,
    /// An Arrow IPC stream.
    ArrowStream,
    /// A gzip file.
    Gzip,
    /// A zstd file.
    Zstd,
    /// A file of another compressor or archiver, in words: `an xz file`.
    Packed(&'static str),
    /// A NumPy array.
    Numpy,
    /// A file of another program, in words: `an ORC file`.
    Foreign(&'static str),
    /// Lines of digits.
    Numbers,
    /// Lines of text.
    Text,
    /// Text in UTF-16.
    Utf16,
}

/// Inputs with fewer bytes do not count as text.
const LEAST: usize = 4;
/// The byte order mark of UTF-8, which may precede a text.
pub(crate) const MARK: &[u8] = b"\xEF\xBB\xBF";

impl Content {
    pub(crate) fn of_text(head: &[u8]) -> Content {
        if is_utf16(head) {
            return Content::Utf16;
        }
        let head = head.strip_prefix(MARK).unwrap_or(head);
        let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'\r' | b'\n');
        let has_word = head.len() >= LEAST && head.iter().any(|byte| !byte.is_ascii_whitespace());
        if has_word && head.iter().all(digits) {
            return Content::Numbers;
        }
        let has_line = has_word && head.contains(&b'\n');
        if has_line && is_text(head) { Content::Text } else { Content::Unknown }
    }

    /// The form in words, with an article: `a Parquet file`.
    pub fn name(self) -> &'static str {
        match self {
            Content::Unknown => "of no known form",
            Content::Parquet => "a Parquet file",
            Content::Arrow => "an Arrow file",
            Content::ArrowStream => "an Arrow stream",
            Content::Gzip => "a gzip file",
            Content::Zstd => "a zstd file",
            Content::Packed(name) | Content::Foreign(name) => name,
            Content::Numpy => "a NumPy file",
            Content::Numbers => "text, one number per line",
            Content::Text => "text",
            Content::Utf16 => "text in UTF-16",
        }
    }
}

/// Whether all bytes are of text in UTF-8. The head may end in the middle of a character.
pub(crate) fn is_text(head: &[u8]) -> bool {
    head.iter().all(is_printed)
        && std::str::from_utf8(head).map_or_else(|error| error.error_len().is_none(), |_| true)
}

/// Whether a byte is of text in UTF-8.
fn is_printed(byte: &u8) -> bool {
    matches!(byte, b'\t' | b'\r' | b'\n' | b' '..=b'~' | 0x80..)
}

/// Whether a head is a byte order mark of UTF-16 and text with a line's end. The characters must be
/// ASCII, as any two bytes are a character.
fn is_utf16(head: &[u8]) -> bool {
    let (low, high) = match head {
        [0xFF, 0xFE, ..] => (0, 1),
        [0xFE, 0xFF, ..] => (1, 0),
        _ => return false,
    };
    let mut characters = head[2..].chunks_exact(2);
    head.len() > 2 + LEAST
        && characters.clone().any(|pair| pair[low] == b'\n')
        && characters.all(|pair| pair[high] == 0 && pair[low] < 0x80 && is_printed(&pair[low]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_taken_for_something_else() {
        // Ascending keys around every magic number of up to four bytes, and random keys.
        #[rustfmt::skip]
        let magic: [u64; 21] = [
            7, 0x100, 0x08_8B1F, 0x43_524F, 0x5D_0280, 0x63_0380, 0x90_9D1F, 0x95_0480, 0x016A_624F,
            0x0403_4B50, 0x0807_4B50, 0x184C_2102, 0x184D_2204, 0x184D_2A50, 0x2800_715D,
            0x2800_7180, 0x3152_4150, 0x4552_4150, 0x4655_4747, 0xFD2F_B527, 0xFD2F_B528,
        ];
        for start in magic {
            for first in start - 3..start + 20 {
                for step in [1, 2, 0x1_0000, 0x1_0000_0001] {
                    let keys = (0..500).map(|index| first + index * step);
                    let head: Vec<u8> = keys.flat_map(u64::to_le_bytes).collect();
                    for head in [&head[..], &head[..8], &head[..40]] {
                        assert_eq!(Content::of(head), Content::Unknown, "{first:x} {step:x}");
                    }
                }
            }
        }
        let mut state = 1u64;
        for len in 0..600 {
            let mut head = Vec::new();
            for _ in 0..len {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                head.extend_from_slice(&(state >> 20).to_le_bytes());
            }
            assert_eq!(Content::of(&head), Content::Unknown);
            assert_eq!(Content::of(&vec![0; len]), Content::Unknown);
        }
    }

    #[test]
    fn text_is_told_from_numbers() {
        assert_eq!(Content::of(b"12\n-5\r\n+7"), Content::Numbers);
        assert_eq!(Content::of(b"20240101"), Content::Numbers);
        assert_eq!(Content::of(b"id\n1\n2\n"), Content::Text);
        assert_eq!(Content::of("größe,\u{20AC}\n1,2\n".as_bytes()), Content::Text);
        assert_eq!(Content::of(&"größe\n".as_bytes()[..4]), Content::Unknown);
        assert_eq!(Content::of(b"1,2\n3,4\n"), Content::Text);
        assert_eq!(Content::of(b"count\nid\np0\n5\n"), Content::Text);
        for word in ["PARENT", "PAR1", "ORC", "GGUF", "ARROW1", "LZIP", "FEA1", "BZh91AY&SY"] {
            assert_eq!(Content::of(format!("{word},id\n1,2\n").as_bytes()), Content::Text);
            let long = format!("{word},{}", "x".repeat(5000));
            assert_eq!(Content::of(&long.as_bytes()[..4096]), Content::Unknown, "{word}");
        }
        assert_eq!(Content::of(b""), Content::Unknown);
        assert_eq!(Content::of(b"\n\n"), Content::Unknown);
        assert_eq!(Content::of(b"1\0\0\0\0\0\0\0"), Content::Unknown);
        assert_eq!(Content::of("\u{feff}12\n".as_bytes()), Content::Unknown);
        assert_eq!(Content::of("\u{feff}123\n".as_bytes()), Content::Numbers);
        assert_eq!(Content::of("\u{feff}id\n1\n".as_bytes()), Content::Text);
        assert_eq!(Content::of(b"\xFF\xFE1\0\r\0\n\x002\0"), Content::Utf16);
        assert_eq!(Content::of(b"\xFE\xFF\x001\0\n\x002"), Content::Utf16);
        assert_eq!(Content::of(b"\xFF\xFE1\0\r\0\n\x012\0"), Content::Unknown);
    }
}
