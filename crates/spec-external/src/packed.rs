//! Decompresses gzip and zstd inputs.

use std::io::{self, Read};

/// The output of a decoder, with errors that distinguish damaged data from a failed read.
pub(crate) struct Decompressed<R> {
    reader: R,
    what: &'static str,
}

impl<R: Read> Decompressed<R> {
    /// The output of `reader`, which decompresses a file that is `what`: `a gzip file`.
    pub(crate) fn new(reader: R, what: &'static str) -> Self {
        Decompressed { reader, what }
    }
}

impl<R: Read> Read for Decompressed<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.reader.read(bytes).map_err(|error| {
            let of_the_system = error.raw_os_error().is_some();
            if of_the_system || error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            #[cfg(feature = "zstd")]
            if let Some(words) = zstd::limit(&error) {
                return io::Error::other(format!("it is {} {words}", self.what));
            }
            io::Error::other(format!("it is {} and damaged: {error}", self.what))
        })
    }
}

#[cfg(feature = "gzip")]
pub(crate) mod gzip {
    use std::io::{self, BufRead, ErrorKind, Read};

    use flate2::bufread::GzDecoder;

    /// Bytes of memory that a decoder holds.
    pub(crate) const MEMORY: usize = 64 << 10;

    /// All members of a gzip file, one after the other. Zeros may follow the last one, as in a file
    /// that a tape or a block device has padded.
    pub(crate) struct Members<R> {
        /// The member that is being read; `None` behind the last one.
        member: Option<GzDecoder<R>>,
    }

    impl<R: BufRead> Members<R> {
        pub(crate) fn new(packed: R) -> Self {
            Members { member: Some(GzDecoder::new(packed)) }
        }
    }

    impl<R: BufRead> Read for Members<R> {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            while let Some(member) = &mut self.member {
                let read = member.read(bytes)?;
                if read > 0 || bytes.is_empty() {
                    return Ok(read);
                }
                let Some(member) = self.member.take() else { break };
                let mut packed = member.into_inner();
                self.member = (!is_end(&mut packed)?).then(|| GzDecoder::new(packed));
            }
            Ok(0)
        }
    }

    /// Whether a file ends behind a member, after any number of zeros. Otherwise the next member
    /// must begin there.
    fn is_end(packed: &mut impl BufRead) -> io::Result<bool> {
        let mut has_zeros = false;
        loop {
            let next = match packed.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                next => next?,
            };
            let zeros = next.iter().take_while(|byte| **byte == 0).count();
            has_zeros |= zeros > 0;
            match next.len() {
                0 => return Ok(true),
                len if zeros < len && has_zeros => {
                    let words = "zeros and other bytes follow its end";
                    return Err(io::Error::new(ErrorKind::InvalidData, words));
                }
                len if zeros < len => return Ok(false),
                _ => packed.consume(zeros),
            }
        }
    }
}

#[cfg(feature = "zstd")]
pub(crate) mod zstd {
    use std::io::{self, BufRead};

    use ::zstd::stream::read::Decoder;
    use ::zstd::zstd_safe::get_error_name;
    use ::zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode as Code;

    use crate::magic;

    /// The base-two logarithm of the largest window: the largest for which zstd is made.
    const MAX_WINDOW: u32 = if cfg!(target_pointer_width = "64") { 31 } else { 30 };
    /// Bytes of memory that a decoder holds besides a window.
    const BLOCK: usize = 256 << 10;

    /// A decoder of all frames of a file.
    pub(crate) fn open<R: BufRead>(packed: R) -> io::Result<Decoder<'static, R>> {
        let mut decoder = Decoder::with_buffer(packed)?;
        decoder.window_log_max(MAX_WINDOW)?;
        Ok(decoder)
    }

    /// Bytes of memory that the decoder of the first frame holds: its window and a block.
    pub(crate) fn memory(head: &[u8]) -> usize {
        // RFC 8878, 3.1.1.1: a descriptor follows the magic number, and the window follows the
        // descriptor. A frame of a single segment has its size there instead.
        let frame = head.get(magic::skipped(head)..).unwrap_or_default();
        let Some((&descriptor, rest)) = frame.get(4..).and_then(<[u8]>::split_first) else {
            return BLOCK;
        };
        let single_segment = descriptor & 0x20 != 0;
        let window = if single_segment {
            let skip = [0, 1, 2, 4][usize::from(descriptor & 3)];
            let len = [1, 2, 4, 8][usize::from(descriptor >> 6)];
            let size = rest.get(skip..skip + len).unwrap_or_default();
            let size = size.iter().rev().fold(0u64, |size, byte| size << 8 | u64::from(*byte));
            if len == 2 { size + 256 } else { size }
        } else {
            let window = u64::from(rest.first().copied().unwrap_or(0));
            let base = 1 << (10 + (window >> 3));
            base + base / 8 * (window & 7)
        };
        // The decoder refuses larger windows.
        window.min(1 << MAX_WINDOW) as usize + BLOCK
    }

    /// What a frame needs and this decoder does not have; `None` for any other error.
    pub(super) fn limit(error: &io::Error) -> Option<String> {
        let name = error.to_string();
        let is = |code: Code| name == get_error_name(0usize.wrapping_sub(code as usize));
        if is(Code::ZSTD_error_frameParameter_windowTooLarge) {
            let max = 1 << (MAX_WINDOW - 30);
            return Some(format!("with a window of more than {max} GiB, which is not read"));
        }
        if is(Code::ZSTD_error_dictionary_wrong) {
            return Some("that needs a dictionary, and none can be given".to_owned());
        }
        is(Code::ZSTD_error_memory_allocation)
            .then(|| "for whose window there is not enough memory".to_owned())
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_window_of_a_frame_is_what_its_head_says() {
            for level in [1, 3, 9, 19] {
                for len in [10, 300, 100_000, 20_000_000usize] {
                    let packed = ::zstd::encode_all(&vec![7u8; len][..], level).unwrap();
                    let window = memory(&packed);
                    assert!(window < 10 << 20, "level {level}, {len} bytes: {window}");
                    let mut decoder = Decoder::new(&packed[..]).unwrap();
                    let log = window.next_power_of_two().ilog2().max(10);
                    decoder.window_log_max(log).unwrap();
                    assert_eq!(io::copy(&mut decoder, &mut io::sink()).unwrap(), len as u64);
                    let skipped = b"\x53\x2A\x4D\x18\x03\0\0\0abc";
                    assert_eq!(memory(&[&skipped[..], &packed].concat()), window);
                }
            }
            assert_eq!(memory(b"\x28\xB5\x2F\xFD"), 256 << 10);
            assert_eq!(memory(b"\x28\xB5\x2F\xFD\x20"), 256 << 10);
            assert_eq!(memory(b"\x28\xB5\x2F\xFD\x00\xA8"), (1 << 31) + (256 << 10));
            assert_eq!(memory(b"\x28\xB5\x2F\xFD\x00\xFF"), (1 << 31) + (256 << 10));
            assert_eq!(memory(b"\x50\x2A\x4D\x18\xFF\xFF\xFF\xFF"), 256 << 10);
        }
    }
}
