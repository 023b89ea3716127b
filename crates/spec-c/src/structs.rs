//! The structs of C. Each struct begins with its own size, so that later versions can append
//! fields.
//!
//! The operators' structs have no Rust definitions. Each is read as a size and a number of fields
//! of one type: 8 bytes for a parameter, a pointer for a buffer, a [`spec_tensor`] for a tensor.
//! [`Layout`] says to which option or argument of the contract each field belongs.
//!
//! [`spec_tensor`]: crate::tensor::spec_tensor

use std::sync::LazyLock;

use spec::ops::{ALL, Description};
use spec::options::{Kind, OptionInfo, Value};
use spec::{Error, Result, Signature, Status};

use crate::abi::{self, Line};
use crate::status::refuse;

/// Larger than any struct. A larger size means that the caller did not set `size`.
const MAX_SIZE: usize = 1 << 16;

const ABI: &str = include_str!("../abi.txt");

/// The first field of every struct that a caller passes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct spec_struct {
    size: usize,
}

/// The fields of an operator's structs, and the option or argument to which each field belongs.
#[derive(Debug)]
pub(crate) struct Layout {
    operator: &'static str,
    /// The option of each field in the struct of parameters.
    options: Vec<&'static OptionInfo>,
    /// For each argument, in the contract's order, the number of its field in the structs of
    /// tensors and of buffers.
    fields: Vec<usize>,
}

static LAYOUTS: LazyLock<Vec<Layout>> = LazyLock::new(|| ALL.iter().map(Layout::new).collect());

impl Layout {
    /// The layout of an operator's structs.
    pub(crate) fn of<O: Signature>() -> &'static Layout {
        let found = LAYOUTS.iter().find(|layout| layout.operator == O::NAME);
        found.expect("every operator is in the list")
    }

    fn new(operator: &Description) -> Layout {
        let name = operator.name;
        let order = |kind, contract: Vec<&str>| {
            // The test `the_file_has_every_field_of_the_contract_once` makes sure of this.
            abi::order(ABI, kind, name, &contract).unwrap_or_else(|words| panic!("{words}"))
        };
        let options = order(Line::Option, operator.options.iter().map(|o| o.name).collect());
        let arguments = order(Line::Argument, operator.arguments.iter().map(|a| a.name).collect());
        let mut fields = vec![0; arguments.len()];
        for (field, argument) in arguments.into_iter().enumerate() {
            fields[argument] = field;
        }
        let options = options.into_iter().map(|place| &operator.options[place]).collect();
        Layout { operator: name, options, fields }
    }

    /// How many arguments the operator has.
    pub(crate) fn arguments(&self) -> usize {
        self.fields.len()
    }

    /// The number of an argument's field, given the argument's place in the contract.
    #[inline]
    pub(crate) fn field(&self, argument: usize) -> usize {
        self.fields[argument]
    }

    /// The operator that a struct of parameters describes. If the caller's struct is too short to
    /// have an option, the option has its default.
    ///
    /// # Errors
    /// Status 3 for a number that is no value of its option.
    pub(crate) fn operator<O: Signature>(&self, params: Fields<u64>) -> Result<O> {
        O::options_from(&mut |option| {
            let field = self.options.iter().position(|known| known.name == option.name);
            let bits = field.and_then(|field| params.get(field));
            bits.map(|bits| value::<O>(option, bits)).transpose()
        })
    }

    /// The fields of the struct of parameters that describes `operator`.
    pub(crate) fn params<O: Signature>(&self, operator: &O) -> Result<Vec<u64>> {
        let bits = |option: &&OptionInfo| Ok(bits(option, operator.option(option.name)?));
        self.options.iter().map(bits).collect()
    }
}

/// Converts the 8 bytes of a parameter in C to the option's value.
fn value<O: Signature>(option: &'static OptionInfo, bits: u64) -> Result<Value> {
    let found = match option.kind {
        Kind::Bool => (bits <= 1).then_some(Value::Bool(bits == 1)),
        Kind::OptionalSize if bits == 0 => Some(Value::Absent),
        Kind::Size | Kind::OptionalSize => usize::try_from(bits).ok().map(Value::Size),
        Kind::I32 => i32::try_from(bits as i64).ok().map(Value::I32),
        Kind::F32 => Some(Value::F32(f64::from_bits(bits) as f32)),
        Kind::Choice(choice) => {
            let value = usize::try_from(bits).ok().and_then(|number| choice.values.get(number));
            value.map(|value| Value::Choice(value.name))
        }
        // `Kind` is non-exhaustive; no option has any other kind.
        _ => None,
    };
    found.ok_or_else(|| {
        let expected = match option.kind {
            Kind::Bool => "0 or 1".to_owned(),
            Kind::Choice(choice) => {
                let names =
                    choice.values.iter().map(|value| abi::constant(choice.name, value.name));
                format!("one of {}", names.collect::<Vec<_>>().join(", "))
            }
            kind => kind.expected(),
        };
        Error::Argument {
            status: Status::BadParam,
            operator: O::NAME,
            argument: option.name,
            value: match option.kind {
                Kind::I32 => (bits as i64).to_string(),
                _ => bits.to_string(),
            },
            expected: expected.into(),
        }
    })
}

/// Converts an option's value to the 8 bytes of the parameter in C.
fn bits(option: &OptionInfo, value: Value) -> u64 {
    match value {
        Value::Bool(value) => u64::from(value),
        Value::Size(value) => value as u64,
        Value::I32(value) => i64::from(value) as u64,
        Value::F32(value) => f64::from(value).to_bits(),
        Value::Choice(name) => match option.kind {
            Kind::Choice(choice) => choice.number(name).unwrap_or_default() as u64,
            _ => 0,
        },
        // An absent value is 0 in C.
        _ => 0,
    }
}

/// The fields of a caller's struct.
#[derive(Clone, Copy)]
pub(crate) struct Fields<T> {
    first: *const T,
    given: usize,
}

impl<T: Copy> Fields<T> {
    /// The fields of a caller's struct, of which this library knows the first `known`.
    ///
    /// # Errors
    /// Status 4 for a null pointer; 3 for an address that is not aligned, for a size that is no
    /// struct's size, and for a longer struct whose unknown fields are not all zero.
    ///
    /// # Safety
    /// `at` is null or points to a struct of as many bytes as its first field says. The struct
    /// does not change while the result is used. Every bit pattern is a value of `T`.
    #[inline]
    pub(crate) unsafe fn read(
        call: &'static str,
        argument: &'static str,
        at: *const spec_struct,
        known: usize,
    ) -> Result<Self> {
        // SAFETY: the caller promises that `at` is null or points to a struct that begins with its
        // size.
        let given = unsafe { count::<T>(call, argument, at)? };
        if given > known {
            // SAFETY: the caller promises a struct of as many bytes as its size says, and by that
            // size it has more than `known` fields.
            unsafe { zeros_from(call, argument, at, size_of::<usize>() + known * size_of::<T>())? };
        }
        // SAFETY: the struct begins with its size, so the address behind the size is within the
        // struct or at its end.
        let first = unsafe { at.cast::<usize>().add(1).cast::<T>() };
        Ok(Fields { first, given: given.min(known) })
    }

    /// The value of a field; `None` if the caller's struct is too short to have the field.
    #[inline]
    pub(crate) fn get(&self, field: usize) -> Option<T> {
        // SAFETY: `read` found `given` fields behind `first`. They are aligned, since `count`
        // asserts that `T` needs no more alignment than the struct, and every bit pattern is a
        // value.
        (field < self.given).then(|| unsafe { self.first.add(field).read() })
    }
}

/// Writes as many fields as the caller's struct has, and leaves its size unchanged. Fields that
/// only the caller's newer header knows become zero.
///
/// # Errors
/// As [`Fields::read`].
///
/// # Safety
/// `to` is null or points to a struct of as many bytes as its first field says. Nobody else uses
/// the struct.
pub(crate) unsafe fn write(
    call: &'static str,
    argument: &'static str,
    to: *mut spec_struct,
    fields: &[u64],
) -> Result<()> {
    // SAFETY: the caller promises that `to` is null or points to a struct that begins with its
    // size.
    let given = unsafe { count::<u64>(call, argument, to)? };
    for place in 0..given {
        let value = fields.get(place).copied().unwrap_or(0);
        // SAFETY: the struct has `given` fields behind its size, and is aligned, as `count`
        // checked.
        unsafe { to.cast::<usize>().add(1).cast::<u64>().add(place).write(value) };
    }
    Ok(())
}

/// The number of fields that a struct has by its own size.
///
/// # Safety
/// `at` is null or points to a struct that begins with its size.
#[inline]
unsafe fn count<T>(
    call: &'static str,
    argument: &'static str,
    at: *const spec_struct,
) -> Result<usize> {
    const { assert!(align_of::<T>() <= align_of::<spec_struct>()) };
    if at.is_null() {
        return Err(refuse(Status::NullPointer, call, argument, "a null pointer", "a struct"));
    }
    if !at.is_aligned() {
        let value = format!("at {at:p}");
        return Err(refuse(Status::BadParam, call, argument, value, "an aligned address"));
    }
    // SAFETY: `at` is not null and aligned, as checked above, and the caller promises a struct that
    // begins with its size.
    let size = unsafe { (*at).size };
    let fields = size.checked_sub(size_of::<usize>()).filter(|_| size <= MAX_SIZE);
    match fields.filter(|bytes| bytes.is_multiple_of(size_of::<T>())) {
        Some(bytes) => Ok(bytes / size_of::<T>()),
        None => {
            let value = format!("a struct of size {size}");
            let expected = "its sizeof in the field `size`";
            Err(refuse(Status::BadParam, call, argument, value, expected))
        }
    }
}

/// Refuses a struct, longer than this library's own, that has a byte other than zero after the
/// first `known` bytes.
///
/// # Safety
/// `at` points to a struct of as many bytes as its first field says.
#[cold]
unsafe fn zeros_from(
    call: &'static str,
    argument: &'static str,
    at: *const spec_struct,
    known: usize,
) -> Result<()> {
    // SAFETY: the caller promises as many bytes as the struct's size says.
    let bytes = unsafe { std::slice::from_raw_parts(at.cast::<u8>(), (*at).size) };
    match bytes.iter().skip(known).position(|&byte| byte != 0) {
        None => Ok(()),
        Some(place) => {
            let value = format!(
                "a struct of size {} with something at byte {}",
                bytes.len(),
                known + place
            );
            let expected = "zeros there: this library is older than the header";
            Err(refuse(Status::BadParam, call, argument, value, expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORD: usize = size_of::<usize>();

    /// Reads a struct of these words with a library that knows two fields.
    fn read_words(words: &[usize]) -> Result<[Option<u64>; 2]> {
        // SAFETY: the struct is as large as its first word says, or `read` refuses the size.
        let fields = unsafe { Fields::read("spec_test", "params", words.as_ptr().cast(), 2) }?;
        Ok([fields.get(0), fields.get(1)])
    }

    #[test]
    fn the_file_has_every_field_of_the_contract_once() {
        for operator in ALL {
            Layout::new(operator);
            for option in operator.options {
                let Kind::Choice(choice) = option.kind else { continue };
                let values: Vec<_> = choice.values.iter().map(|value| value.name).collect();
                let order = abi::order(ABI, Line::Choice, choice.name, &values);
                // A value's number is its place in the contract's list.
                assert_eq!(order, Ok((0..values.len()).collect()), "{}", choice.name);
            }
        }
    }

    #[test]
    fn older_callers_leave_fields_out() {
        assert_eq!(read_words(&[WORD]).unwrap(), [None, None]);
        assert_eq!(read_words(&[2 * WORD, 1]).unwrap(), [Some(1), None]);
        assert_eq!(read_words(&[3 * WORD, 1, 2]).unwrap(), [Some(1), Some(2)]);
    }

    #[test]
    fn newer_callers_may_leave_zeros() {
        assert_eq!(read_words(&[4 * WORD, 1, 2, 0]).unwrap(), [Some(1), Some(2)]);
        let error = read_words(&[4 * WORD, 1, 2, 3]).unwrap_err();
        assert_eq!(error.status(), Status::BadParam);
        assert!(error.to_string().contains("older than the header"));
    }

    #[test]
    fn garbage_is_refused() {
        for size in [0, 1, WORD - 1, WORD + 1, 2 * WORD + 4, MAX_SIZE + WORD, usize::MAX] {
            assert_eq!(read_words(&[size, 0, 0]).unwrap_err().status(), Status::BadParam);
        }
        // SAFETY: null, and an address that is not aligned, are refused unread.
        unsafe {
            let null = Fields::<u64>::read("spec_test", "params", std::ptr::null(), 2);
            assert_eq!(null.err().map(|error| error.status()), Some(Status::NullPointer));
            let odd = std::ptr::without_provenance(17);
            let odd = Fields::<u64>::read("spec_test", "params", odd, 2);
            assert_eq!(odd.err().map(|error| error.status()), Some(Status::BadParam));
        }
    }

    #[test]
    fn writing_stays_within_the_callers_struct() {
        let mut words = [2 * WORD, 9, 9, 9];
        // SAFETY: the size is that of two words, and `words` has four.
        unsafe { write("spec_test", "params", words.as_mut_ptr().cast(), &[1, 2]).unwrap() };
        assert_eq!(words, [2 * WORD, 1, 9, 9]);
        words = [4 * WORD, 9, 9, 9];
        // SAFETY: the size is that of four words, and `words` has four.
        unsafe { write("spec_test", "params", words.as_mut_ptr().cast(), &[1, 2]).unwrap() };
        assert_eq!(words, [4 * WORD, 1, 2, 0]);
    }

    #[test]
    fn usual_parameters_come_back() {
        macro_rules! check {
            ($($module:ident: $operator:ident,)+) => {$(
                let layout = Layout::of::<spec::ops::$operator>();
                let usual = spec::ops::$operator::usual();
                let mut words = vec![0; 1 + layout.options.len()];
                words[0] = words.len() * WORD;
                let params = layout.params(&usual).unwrap();
                // SAFETY: the struct has the size that it says.
                let back: spec::ops::$operator = unsafe {
                    let at = words.as_mut_ptr().cast::<spec_struct>();
                    write("spec_test", "params", at, &params).unwrap();
                    let fields = Fields::read("spec_test", "params", at, params.len()).unwrap();
                    layout.operator(fields).unwrap()
                };
                assert_eq!(back, usual);
            )+};
        }
        spec::for_each_operator!(check);
    }
}
