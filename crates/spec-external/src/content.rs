//! Tells the form of a file by its first bytes.

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
    /// A gzip file.
    Gzip,
    /// A zstd file.
    Zstd,
    /// A file of another compressor: bzip2, xz, lz4 or zip.
    Packed(&'static str),
    /// A NumPy array.
    Numpy,
    /// Lines of digits.
    Numbers,
    /// Lines of text.
    Text,
}

/// Inputs with fewer bytes do not count as text.
const LEAST: usize = 4;

impl Content {
    /// Tells the form by the first bytes of an input: some thousand bytes, or all if it has fewer.
    pub fn of(head: &[u8]) -> Content {
        match head {
            [b'P', b'A', b'R', b'1', ..] => Content::Parquet,
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Content::Arrow,
            // RFC 1952, 2.3: method 8, no reserved flags. The extra flags and the system must
            // be among those that exist, because a raw key may begin with the same three bytes.
            [0x1F, 0x8B, 8, flags, _, _, _, _, 0 | 2 | 4, 0..=13 | 255, ..]
                if flags & 0xE0 == 0 =>
            {
                Content::Gzip
            }
            // RFC 8878, 3.1.1: bit 3 of the descriptor must be 0.
            [0x28, 0xB5, 0x2F, 0xFD, descriptor, ..] if descriptor & 8 == 0 => Content::Zstd,
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, ..] => Content::Packed("bzip2"),
            [0xFD, b'7', b'z', b'X', b'Z', 0, ..] => Content::Packed("xz"),
            [0x04, 0x22, 0x4D, 0x18, ..] => Content::Packed("lz4"),
            [b'P', b'K', 3, 4, ..] => Content::Packed("zip"),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Content::Numpy,
            _ => Content::of_text(head),
        }
    }

    fn of_text(head: &[u8]) -> Content {
        let digits = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'\r' | b'\n');
        let printed = |byte: &u8| matches!(byte, b'\t' | b'\r' | b'\n' | b' '..=b'~' | 0x80..);
        let has_word = head.len() >= LEAST && head.iter().any(|byte| !byte.is_ascii_whitespace());
        if has_word && head.iter().all(digits) {
            return Content::Numbers;
        }
        let has_line = has_word && head.contains(&b'\n');
        // The head may end in the middle of a character.
        let is_utf8 = match std::str::from_utf8(head) {
            Ok(_) => true,
            Err(error) => error.error_len().is_none(),
        };
        if has_line && is_utf8 && head.iter().all(printed) {
            Content::Text
        } else {
            Content::Unknown
        }
    }

    /// The form in words, with an article: `a Parquet file`.
    pub fn name(self) -> &'static str {
        match self {
            Content::Unknown => "of no known form",
            Content::Parquet => "a Parquet file",
            Content::Arrow => "an Arrow file",
            Content::Gzip => "a gzip file",
            Content::Zstd => "a zstd file",
            Content::Packed("bzip2") => "a bzip2 file",
            Content::Packed("xz") => "an xz file",
            Content::Packed("lz4") => "an lz4 file",
            Content::Packed(_) => "a zip file",
            Content::Numpy => "a NumPy file",
            Content::Numbers => "text, one number a line",
            Content::Text => "text",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_taken_for_something_else() {
        // Ascending keys around every magic number, and random keys.
        let magic: [u64; 6] = [0x0008_8B1F, 0x3152_4150, 0xFD2F_B528, 0x184D_2204, 0x0403_4B50, 7];
        for start in magic {
            for first in start - 3..start + 3 {
                let head: Vec<u8> = (first..first + 500).flat_map(u64::to_le_bytes).collect();
                let found = Content::of(&head);
                // A first key that equals a magic number of four bytes cannot be told from it.
                let same = first == start && first > 0xFF_FFFF;
                assert!(found == Content::Unknown || same, "{first:x}: {found:?}");
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
        assert_eq!(Content::of(b""), Content::Unknown);
        assert_eq!(Content::of(b"\n\n"), Content::Unknown);
        assert_eq!(Content::of(b"1\0\0\0\0\0\0\0"), Content::Unknown);
    }
}
