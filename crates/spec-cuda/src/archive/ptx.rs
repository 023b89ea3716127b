//! The packed form of PTX. Its LZMA stream has a quarter to a third of the bytes of an LZMA stream of
//! the PTX itself.
//!
//! In PTX nearly every instruction writes a register of its own: `%r118` stands in a few lines of one
//! function, and then never again. LZMA finds no repetition in such numbers, though the same code has
//! the same *pattern* of registers wherever it stands. So the packed form has one byte in place of each
//! numbered name. The numbers follow the text, each written as its relation to earlier numbers:
//!
//! ```text
//! length     u32, little endian: bytes of the next part, `text`
//! text       PTX in which the byte FIRST_NAME + i stands for a name that begins with PREFIXES[i].
//!            Where the function of a label changes, the byte FUNCTION and the function's digits
//!            stand before the byte of the label: "$L__BB12_" then begins labels
//! codes      of each name, in the order of the text, unsigned LEB128:
//!            0 to 3: a number that is new in the function, and follows one of the numbers that became
//!                    known last, see `Numbers::successors`
//!            4:      another new number; a second code has the distance from the number that became
//!                    known last, zigzag: 0, -1, 1, -2, ..
//!            5 + k:  the number whose last use lies k other numbers back
//! ```
//!
//! A line `{` begins a function, and forgets all numbers.
//!
//! `cargo xtask kernels` packs with this model, and makes sure that unpacking gives the same text.

/// The beginnings of the names whose numbers are coded. NVRTC writes no other names of registers and
/// labels for the kernels; names that are not listed stay in the text.
pub(crate) const PREFIXES: [&str; 7] = ["$L__BB", "%r", "%rd", "%f", "%p", "%rs", "%fd"];

/// The byte that stands for a name with the first of the prefixes. PTX has no such bytes.
pub(crate) const FIRST_NAME: u8 = 0x10;

/// The byte before the digits of a label's function.
pub(crate) const FUNCTION: u8 = 0x0f;

/// The code of a new number that is none of the successors.
pub(crate) const DISTANT: u32 = 4;

/// The code of the number that was used last.
pub(crate) const USED: u32 = DISTANT + 1;

/// The largest number that is coded. Names with larger numbers stay in the text as they are.
pub(crate) const LARGEST: u32 = u16::MAX as u32;

/// The line that begins the body of a function.
const BODY: &[u8] = b"\n{\n";

/// The numbers of one prefix in a function.
#[derive(Default)]
pub(crate) struct Numbers {
    /// All numbers so far, by their last uses: the latest is at the end.
    used: Vec<u32>,
    /// All numbers so far, as they became known.
    known: Vec<u32>,
    /// For each number whether it is known.
    is_known: Vec<bool>,
}

impl Numbers {
    /// The numbers that follow a known number and are not known themselves: of the number that
    /// became known last, of the one before, and so on; at most [`DISTANT`] numbers. Before the first
    /// number, 0 counts as known.
    pub(crate) fn successors(&self) -> impl Iterator<Item = u32> {
        let known = self.known.iter().rev().copied().chain([0]);
        let unknown = known.map(|number| number + 1).filter(|&next| !self.is_known(next));
        unknown.take(DISTANT as usize)
    }

    fn is_known(&self, number: u32) -> bool {
        self.is_known.get(number as usize).is_some_and(|&is_known| is_known)
    }

    /// The number that became known last.
    pub(crate) fn last_known(&self) -> u32 {
        self.known.last().copied().unwrap_or(0)
    }

    /// How many other numbers were used after the last use of `number`; `None` if `number` is new.
    pub(crate) fn others_since(&self, number: u32) -> Option<usize> {
        let used = || self.used.iter().rev().position(|&used| used == number);
        self.is_known(number).then(used).flatten()
    }

    /// Notes a use of a number.
    pub(crate) fn note(&mut self, number: u32) {
        if let Some(others) = self.others_since(number) {
            self.used.remove(self.used.len() - 1 - others);
        } else {
            self.known.push(number);
            let index = number as usize;
            self.is_known.resize(self.is_known.len().max(index + 1), false);
            self.is_known[index] = true;
        }
        self.used.push(number);
    }

    /// The number of a code; `distance` reads the code behind it.
    fn number(&self, code: u32, distance: impl FnOnce() -> Option<u32>) -> Option<u32> {
        let number = match code {
            0..DISTANT => self.successors().nth(code as usize)?,
            DISTANT => {
                let distance = distance()?;
                // Zigzag: the lowest bit is the sign.
                let signed = (distance >> 1) as i32 ^ -((distance & 1) as i32);
                self.last_known().checked_add_signed(signed)?
            }
            _ => {
                let others = (code - USED) as usize;
                *self.used.get(self.used.len().checked_sub(1 + others)?)?
            }
        };
        (number <= LARGEST).then_some(number)
    }
}

/// The numbers of all prefixes in a function.
pub(crate) type Function = [Numbers; PREFIXES.len()];

/// True if a function begins behind this text.
pub(crate) fn begins_function(text: &[u8]) -> bool {
    text.ends_with(BODY)
}

/// The text of packed PTX; `None` if the bytes are damaged.
pub(crate) fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let (length, rest) = packed.split_first_chunk()?;
    let (text, mut codes) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let mut code = || leb128(&mut codes);
    // Names are about a third of PTX, so PTX is about one and a half times as long as `text`.
    let mut unpacked = Vec::with_capacity(text.len() + text.len() / 2);
    let mut numbers = Function::default();
    let mut function = Vec::new();
    let mut bytes = text.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if byte == FUNCTION {
            function.clear();
            function.extend(std::iter::from_fn(|| bytes.next_if(u8::is_ascii_digit)));
            continue;
        }
        let name = byte.checked_sub(FIRST_NAME).map(usize::from);
        let Some((kind, prefix)) = name.and_then(|i| Some((i, PREFIXES.get(i)?))) else {
            unpacked.push(byte);
            if begins_function(&unpacked) {
                numbers = Function::default();
            }
            continue;
        };
        let numbers = &mut numbers[kind];
        let number = numbers.number(code()?, &mut code)?;
        numbers.note(number);
        unpacked.extend(prefix.bytes());
        if !prefix.starts_with('%') {
            unpacked.extend(&function);
            unpacked.push(b'_');
        }
        unpacked.extend(number.to_string().bytes());
    }
    codes.is_empty().then_some(unpacked)
}

/// Takes an unsigned LEB128 number of up to four bytes from the front.
fn leb128(bytes: &mut &[u8]) -> Option<u32> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
