//! Parses Thrift's compact protocol, to check lengths before memory is allocated for them.
//!
//! The parser keeps no values: it walks over a structure, and compares every length in
//! it with the number of bytes that follow.

/// The largest depth of structures and lists inside one another.
const DEEPEST: usize = 40;

/// An event of a walk. Its path has the numbers of the fields that lead to it;
/// the elements of a list have the path of the list.
pub(super) enum Event {
    /// A whole number.
    Number(i64),
    /// The end of a structure.
    End,
}

/// The reason why a walk ends early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// The structure goes on behind the end of the bytes.
    Short,
    /// The bytes are not valid, whatever follows.
    Broken,
}

/// Walks over the structure at the start of `bytes`, and returns its length. `see` is called with
/// each event and its path.
pub(super) fn walk(bytes: &[u8], see: &mut dyn FnMut(&[i16], Event)) -> Result<usize, Bad> {
    let mut walk = Walk { bytes, at: 0, depth: 0, path: Vec::new(), see };
    walk.structure()?;
    Ok(walk.at)
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The number of structures and lists that are open.
    depth: usize,
    path: Vec<i16>,
    see: &'a mut dyn FnMut(&[i16], Event),
}

impl Walk<'_> {
    fn byte(&mut self) -> Result<u8, Bad> {
        let byte = *self.bytes.get(self.at).ok_or(Bad::Short)?;
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, count: u64) -> Result<(), Bad> {
        let left = (self.bytes.len() - self.at) as u64;
        if count > left {
            return Err(Bad::Short);
        }
        self.at += count as usize;
        Ok(())
    }

    fn unsigned(&mut self) -> Result<u64, Bad> {
        let mut number = 0u64;
        for shift in (0..70).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7F).checked_shl(shift).unwrap_or(0);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Bad::Broken)
    }

    fn signed(&mut self) -> Result<i64, Bad> {
        let number = self.unsigned()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn enter(&mut self) -> Result<(), Bad> {
        self.depth += 1;
        if self.depth > DEEPEST { Err(Bad::Broken) } else { Ok(()) }
    }

    fn structure(&mut self) -> Result<(), Bad> {
        self.enter()?;
        let mut field = 0i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                (self.see)(&self.path, Event::End);
                self.depth -= 1;
                return Ok(());
            }
            field = match head >> 4 {
                0 => i16::try_from(self.signed()?).map_err(|_| Bad::Broken)?,
                delta => field.checked_add(delta.into()).ok_or(Bad::Broken)?,
            };
            // The value of a boolean field is in its type, and takes no bytes.
            if !matches!(head & 15, 1 | 2) {
                self.path.push(field);
                self.value(head & 15)?;
                self.path.pop();
            }
        }
    }

    fn value(&mut self, kind: u8) -> Result<(), Bad> {
        match kind {
            1..=3 => self.skip(1),
            4..=6 => {
                let number = self.signed()?;
                (self.see)(&self.path, Event::Number(number));
                Ok(())
            }
            7 => self.skip(8),
            8 => {
                let length = self.unsigned()?;
                self.skip(length)
            }
            9 | 10 => {
                let head = self.byte()?;
                let count = if head >> 4 == 15 { self.unsigned()? } else { u64::from(head >> 4) };
                self.elements(count, &[head & 15])
            }
            11 => {
                let count = self.unsigned()?;
                if count == 0 {
                    return Ok(());
                }
                let kinds = self.byte()?;
                self.elements(count, &[kinds >> 4, kinds & 15])
            }
            12 => self.structure(),
            13 => self.skip(16),
            _ => Err(Bad::Broken),
        }
    }

    /// Walks over `count` values of each of `kinds`. A value has at least one byte.
    fn elements(&mut self, count: u64, kinds: &[u8]) -> Result<(), Bad> {
        if count > (self.bytes.len() - self.at) as u64 {
            return Err(Bad::Short);
        }
        self.enter()?;
        for _ in 0..count {
            for &kind in kinds {
                self.value(kind)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_walked_over() {
        // 1: i32 -3; 2: binary "ab"; 3: list of 2 structs, each 1: i64 300; 5: true.
        let bytes = [
            0x15, 5, 0x18, 2, b'a', b'b', 0x19, 0x2C, 0x16, 0xD8, 4, 0, 0x16, 0xD8, 4, 0, 0x21, 0,
            99,
        ];
        let mut seen = Vec::new();
        let length = walk(&bytes, &mut |path, event| {
            seen.push((path.to_vec(), if let Event::Number(n) = event { Some(n) } else { None }));
        });
        assert_eq!(length, Ok(18));
        let element = [(vec![3, 1], Some(300)), (vec![3], None)];
        let mut expected = vec![(vec![1], Some(-3))];
        expected.extend(element.clone().into_iter().chain(element));
        expected.push((vec![], None));
        assert_eq!(seen, expected);
        for end in 0..18 {
            assert_eq!(walk(&bytes[..end], &mut |_, _| ()), Err(Bad::Short), "{end} bytes");
        }
    }

    #[test]
    fn lengths_that_are_not_there_are_not_believed() {
        let huge = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x5A];
        for head in [&[0x18][..], &[0x19, 0xF3], &[0x19, 0xFC], &[0x1B]] {
            let bytes = [head, &huge, &[0x88; 100]].concat();
            assert_eq!(walk(&bytes, &mut |_, _| ()), Err(Bad::Short), "{head:x?}");
        }
        // Lists in lists and structures in structures without end.
        assert_eq!(walk(&[&[0x19][..], &[0x19; 1000]].concat(), &mut |_, _| ()), Err(Bad::Broken));
        assert_eq!(walk(&[0x1C; 1000], &mut |_, _| ()), Err(Bad::Broken));
    }
}
