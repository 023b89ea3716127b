//! Packs PTX in the form of `crates/spec-cuda/src/archive/ptx.rs`.

use super::archive::ptx::{
    DISTANT, FIRST_NAME, FUNCTION, Function, LARGEST, Numbers, PREFIXES, USED, begins_function,
    unpack,
};
use crate::Result;

/// The packed form of a text.
pub(super) fn pack(text: &[u8]) -> Result<Vec<u8>> {
    let reserved = FUNCTION..FIRST_NAME + PREFIXES.len() as u8;
    if text.iter().any(|byte| reserved.contains(byte)) {
        return Err("PTX with bytes that stand for names".to_owned());
    }
    let (mut packed, mut codes) = (Vec::new(), Vec::new());
    let mut numbers = Function::default();
    let mut function: &[u8] = &[];
    let mut at = 0;
    while at < text.len() {
        let Some(name) = Name::at_start(&text[at..]) else {
            packed.push(text[at]);
            at += 1;
            if begins_function(&text[..at]) {
                numbers = Function::default();
            }
            continue;
        };
        if let Some(of_label) = name.function
            && of_label != function
        {
            function = of_label;
            packed.push(FUNCTION);
            packed.extend(function);
        }
        packed.push(FIRST_NAME + name.kind as u8);
        let numbers = &mut numbers[name.kind];
        write_code(numbers, name.number, &mut codes);
        numbers.note(name.number);
        at += name.length;
    }
    let length = u32::try_from(packed.len()).map_err(|_| "PTX of 4 GiB".to_owned())?;
    let all = [&length.to_le_bytes()[..], &packed, &codes].concat();
    if unpack(&all).is_none_or(|unpacked| unpacked != text) {
        return Err("packed PTX does not unpack to the same text".to_owned());
    }
    Ok(all)
}

/// A name that ends in a number.
struct Name<'t> {
    /// The index of its prefix.
    kind: usize,
    /// The digits of the function, for a label.
    function: Option<&'t [u8]>,
    number: u32,
    /// The bytes of the name.
    length: usize,
}

impl<'t> Name<'t> {
    /// The name at the start of a text.
    fn at_start(text: &'t [u8]) -> Option<Self> {
        PREFIXES.iter().enumerate().find_map(|(kind, prefix)| {
            let mut rest = text.strip_prefix(prefix.as_bytes())?;
            let mut function = None;
            if !prefix.starts_with('%') {
                let (digits, behind) = digits(rest);
                rest = behind.strip_prefix(b"_")?;
                function = Some(digits);
            }
            let (digits, behind) = digits(rest);
            // The unpacked number has no zeros in front.
            if digits.first().is_none_or(|&digit| digit == b'0') {
                return None;
            }
            let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
            let length = text.len() - behind.len();
            (number <= LARGEST).then_some(Name { kind, function, number, length })
        })
    }
}

/// The digits at the start of a text, and the rest.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Writes the code of a number, and the distance where the code needs one.
fn write_code(numbers: &Numbers, number: u32, codes: &mut Vec<u8>) {
    if let Some(others) = numbers.others_since(number) {
        leb128(USED + others as u32, codes);
    } else if let Some(code) = numbers.successors().position(|next| next == number) {
        leb128(code as u32, codes);
    } else {
        // Both numbers are at most LARGEST.
        let distance = number as i32 - numbers.last_known() as i32;
        leb128(DISTANT, codes);
        leb128((distance << 1 ^ distance >> 31) as u32, codes);
    }
}

/// Appends a number as unsigned LEB128.
fn leb128(mut number: u32, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b".func f(.param .b32 f_param_0)\n{\n\t.reg .b32 %r<9>;\n\
        \tadd.s32 \t%r1, %r8, %r300;\n\tadd.s32 \t%r2, %r1, %r65536;\n\tmov.u32 \t%r3, %tid.x;\n\
        $L__BB0_1:\n\t@%p1 bra \t$L__BB0_70000;\n\tbra \t$L__BB0_2;\n}\n\
        .entry g()\n{\n$L__BB12_7:\n\tmov.f64 \t%fd12, %rx1;\n\tadd.s32 \t%r1, %r01, %r0;\n}\n";

    #[test]
    fn names_unpack_to_the_same_text() {
        let packed = pack(TEXT).unwrap();
        assert_eq!(unpack(&packed).as_deref(), Some(TEXT));
        assert_eq!(pack(b"").map(|packed| unpack(&packed)), Ok(Some(Vec::new())));
    }

    #[test]
    fn code_with_other_registers_has_the_same_form() {
        let of = |registers: [u32; 4]| {
            let [a, b, c, d] = registers;
            let text =
                format!("\n{{\n\tadd \t%r{a}, %r{b}, %r{a};\n\tadd \t%r{c}, %r{d}, %r{b};\n");
            pack(text.as_bytes()).unwrap()
        };
        // Only the distance to the first number of the function differs.
        let differing = |one: Vec<u8>, other: Vec<u8>| {
            assert_eq!(one.len(), other.len());
            one.iter().zip(&other).filter(|(one, other)| one != other).count()
        };
        assert_eq!(differing(of([20, 22, 24, 21]), of([30, 32, 34, 31])), 1);
        assert_eq!(differing(of([20, 22, 24, 21]), of([20, 22, 24, 23])), 1);
    }

    #[test]
    fn bytes_that_stand_for_names_are_refused() {
        for byte in [FUNCTION, FIRST_NAME, FIRST_NAME + 6] {
            assert!(pack(&[b'a', byte]).is_err_and(|words| words.contains("stand for names")));
        }
        assert!(pack(&[FIRST_NAME + 7, FUNCTION - 1]).is_ok());
    }

    /// A cut form, or one with a code too many, unpacks to nothing. A flipped bit gives nothing or
    /// another text, and never a panic.
    #[test]
    fn damaged_bytes_are_refused_or_give_another_text() {
        let packed = pack(TEXT).unwrap();
        for length in 0..packed.len() {
            assert_eq!(unpack(&packed[..length]), None, "cut to {length} bytes");
        }
        assert_eq!(unpack(&[&packed[..], b"\x05"].concat()), None, "a code without a name");
        for bit in 0..8 * packed.len() {
            let mut damaged = packed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(unpack(&damaged).as_deref(), Some(TEXT), "bit {bit}");
        }
    }
}
