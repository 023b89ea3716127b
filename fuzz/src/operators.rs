//! Operators on the CPU, whatever they are asked and given: parameters, types,
//! shapes, strides, buffers that do not fit and what is in them. A call is refused
//! with a status, or done; then done again it gives the same bits, and the plain
//! sequential loop has written the same, and nothing else; nothing panics.

use arbitrary::{Result as Taken, Unstructured};
use spec_conformance::Subject;
use spec_conformance::plain::Plain;
use spec_core::options::{Kind, OptionInfo, Value};
use spec_core::shape::{Operation, Shapes, Size};
use spec_core::{
    Argument, DType, Descriptor, Error, ErrorKind, Signature, Source, Status, Supports, TensorDesc,
    View, ViewMut, bf16, f16,
};
use spec_cpu::Cpu;

/// The largest number of bytes of a buffer or a workspace with which a call is tried.
const MAX_BYTES: usize = 1 << 20;

/// Makes a call of these bytes. Bytes that end too early make no call.
pub fn run(data: &[u8]) {
    _ = any_operator(&mut Unstructured::new(data));
}

fn any_operator(bytes: &mut Unstructured<'_>) -> Taken<()> {
    macro_rules! calls {
        ($($module:ident: $operator:ident,)+) => {
            &[$( call::<spec_core::ops::$operator> ),+]
        };
    }
    const CALLS: &[fn(&Cpu, &mut Unstructured<'_>) -> Taken<()>] =
        spec_core::for_each_operator!(calls);
    let cpu = Cpu::open(0).unwrap();
    bytes.choose(CALLS)?(&cpu, bytes)
}

fn call<O: Subject>(cpu: &Cpu, bytes: &mut Unstructured<'_>) -> Taken<()>
where
    Cpu: Supports<O>,
{
    let operator: O = make(bytes)?;
    let names = names(&operator, bytes)?;
    let preferred = [*bytes.choose(&INTEGERS)?, *bytes.choose(&FLOATS)?];
    let (arguments, shapes) = (O::ARGUMENTS, O::shapes());
    let mut describer = Describer { arguments, shapes, names, preferred, bytes, made: Vec::new() };
    let Ok(tensors) = O::tensors_from(&mut describer).inspect_err(refused) else { return Ok(()) };
    let made = describer.made;
    let created = Descriptor::create(cpu, &operator, &tensors).inspect_err(refused);
    let Ok(created) = created else { return Ok(()) };
    let size = created.workspace_size();
    if size > MAX_BYTES {
        return Ok(());
    }
    // Too small now and then, and anywhere.
    let size = if unlikely(bytes)? { size / 2 } else { size };
    let offset = usize::from(unlikely(bytes)?);
    let held = made.iter().map(|(name, desc)| Held::fill(name, desc, bytes));
    let held = held.collect::<Taken<Vec<_>>>()?;
    let run = |created: &Descriptor<O>, dirt: u8| {
        let mut held = held.clone();
        let mut workspace = vec![dirt; size + offset];
        let mut lender = Lender { held: held.iter_mut() };
        let done = O::buffers_from(&mut lender)
            .and_then(|buffers| created.call(&mut workspace[offset..], buffers));
        (done.inspect_err(refused).is_ok(), held)
    };
    let (done, results) = run(&created, 0);
    assert!((done, results.clone()) == run(&created, 0xA5), "{} is not the same twice", O::NAME);
    if done {
        let plain = Descriptor::create(&Plain::default(), &operator, &tensors);
        let (done, expected) = run(&plain.expect("one backend takes what another does"), 0);
        assert!(done, "the plain loop of {} refuses what it can do", O::NAME);
        let count = expected.iter().find(|held| held.name == "count").map(Held::bytes);
        let count = count.and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
        for (result, expected) in results.iter().zip(&expected) {
            let is_counted = counted(O::NAME).contains(&result.name);
            let known = count.filter(|_| is_counted).map_or(usize::MAX, |count| count as usize);
            result.compare(expected, known, O::NAME);
        }
    }
    Ok(())
}

/// What is refused has a status and words, and is nobody's failure.
fn refused(error: &Error) {
    assert_ne!(error.kind(), ErrorKind::Failed, "{error}");
    assert_ne!(error.status(), Status::Success, "{error}");
}

fn unlikely(bytes: &mut Unstructured<'_>) -> Taken<bool> {
    bytes.ratio(1, 16)
}

/// A small number as a rule, else one that is hard on arithmetic.
fn number(bytes: &mut Unstructured<'_>) -> Taken<usize> {
    const HARD: [usize; 8] =
        [0, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 60, usize::MAX - 1, usize::MAX];
    if bytes.ratio(1, 32)? { Ok(*bytes.choose(&HARD)?) } else { bytes.int_in_range(0..=40) }
}

const INTEGERS: [DType; 3] = [DType::I64, DType::I32, DType::U32];
const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
const ALL: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I64,
    DType::U32,
    DType::U64,
    DType::U8,
    DType::I8,
    DType::Bool,
];

/// Describes arguments as their contract has them, but for one now and then.
struct Describer<'a, 'b> {
    arguments: &'static [Argument],
    shapes: &'static Shapes,
    /// What dimensions are called: the same number wherever one occurs.
    names: Vec<(&'static str, usize)>,
    /// Types that arguments have in common, where they may.
    preferred: [DType; 2],
    bytes: &'a mut Unstructured<'b>,
    made: Vec<(&'static str, TensorDesc)>,
}

impl Describer<'_, '_> {
    fn describe(&mut self, argument: &'static Argument) -> Option<TensorDesc> {
        if argument.optional && self.bytes.arbitrary().unwrap_or(false) || self.odd() {
            return None;
        }
        let desc = self.desc(argument).ok()?;
        self.made.push((argument.name, desc));
        Some(desc)
    }

    fn odd(&mut self) -> bool {
        self.bytes.ratio(1, 64).unwrap_or(false)
    }

    fn desc(&mut self, argument: &'static Argument) -> Taken<TensorDesc> {
        let usual = self.preferred.into_iter().find(|dtype| argument.dtypes.contains(dtype));
        let dtype = match usual {
            _ if self.odd() => *self.bytes.choose(&ALL)?,
            Some(dtype) if !unlikely(self.bytes)? => dtype,
            _ => *self.bytes.choose(argument.dtypes)?,
        };
        let place = self.arguments.iter().position(|known| known.name == argument.name);
        let forms = &self.shapes.arguments()[place.expect("an argument of the contract")].forms;
        let mut shape = Vec::new();
        for size in &self.bytes.choose(forms)?.sizes {
            let extent = self.extent(size)?;
            shape.push(if self.odd() { number(self.bytes)? } else { extent });
        }
        if self.odd() {
            shape.push(1);
        }
        let strides = match self.bytes.int_in_range(0..=15)? {
            0 => Some(self.bytes.int_in_range(0..=1000)?),
            1 => Some(self.bytes.arbitrary()?),
            _ => None,
        };
        Ok(match (&*shape, strides) {
            (&[a], None) => TensorDesc::new(dtype, [a]),
            (&[a], Some(stride)) => TensorDesc::with_strides(dtype, [a], [stride]),
            (&[a, b], None) => TensorDesc::new(dtype, [a, b]),
            (&[a, b], Some(stride)) => TensorDesc::with_strides(dtype, [a, b], [stride, 1]),
            (&[a, b, c], None) => TensorDesc::new(dtype, [a, b, c]),
            (&[a, b, c], Some(stride)) => {
                let strides = [stride.saturating_mul(b.min(9) as isize), stride, 1];
                TensorDesc::with_strides(dtype, [a, b, c], strides)
            }
            _ => TensorDesc::new(dtype, []),
        })
    }

    /// A size as a number. A name that no option, argument or definition has a number for gets one.
    fn extent(&mut self, size: &'static Size) -> Taken<usize> {
        Ok(match size {
            Size::Number(number) => *number,
            Size::Name(place) => self.named(*place)?,
            Size::Binary(operation, sides) => {
                let (a, b) = (self.extent(&sides[0])?, self.extent(&sides[1])?);
                match operation {
                    Operation::Add => a.saturating_add(b),
                    Operation::Subtract => a.saturating_sub(b),
                    Operation::Multiply => a.saturating_mul(b),
                    Operation::Divide => a / b.max(1),
                    Operation::DivideUp => a.div_ceil(b.max(1)),
                }
            }
            other => unreachable!("{other:?}"),
        })
    }

    fn named(&mut self, place: usize) -> Taken<usize> {
        let word = self.shapes.names()[place];
        if let Some((_, value)) = self.names.iter().find(|(name, _)| *name == word) {
            return Ok(*value);
        }
        let mut rules = self.shapes.rules().iter().filter(|rule| rule.place == place);
        let value = match rules.find_map(|rule| rule.value.as_ref()) {
            Some(size) => self.extent(size)?,
            None => number(self.bytes)?,
        };
        self.names.push((word, value));
        Ok(value)
    }
}

impl Source<TensorDesc, TensorDesc> for Describer<'_, '_> {
    fn input(&mut self, argument: &'static Argument) -> Option<TensorDesc> {
        self.describe(argument)
    }

    fn output(&mut self, argument: &'static Argument) -> Option<TensorDesc> {
        self.describe(argument)
    }
}

/// An argument's memory.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    name: &'static str,
    dtype: DType,
    memory: Vec<u64>,
    /// Where it begins, in bytes: at an address that is no multiple of anything
    /// now and then.
    start: usize,
    bytes: usize,
}

impl Held {
    fn fill(name: &'static str, desc: &TensorDesc, bytes: &mut Unstructured<'_>) -> Taken<Held> {
        let dtype = if bytes.ratio(1, 128)? { *bytes.choose(&ALL)? } else { desc.dtype() };
        // As many as are described, or too few.
        let needed = desc.span().saturating_mul(dtype.size());
        let len = if needed > MAX_BYTES || bytes.ratio(1, 128)? {
            needed.min(MAX_BYTES) / 2
        } else {
            needed
        };
        let start = usize::from(bytes.ratio(1, 128)?);
        let mut memory = vec![0u64; (len + start).div_ceil(8) + 1];
        let kind = bytes.int_in_range(0..=3)?;
        let mut state: u64 = bytes.arbitrary()?;
        let elements = spec_core::dtype::as_bytes_mut(&mut memory);
        for element in elements[start..].chunks_exact_mut(dtype.size()) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = state ^ state >> 29;
            let small = (random >> 20) as i64 % 48;
            let value = match kind {
                // Anything, NaN and minus one among them.
                0 => random,
                // All the same.
                1 => bytes.peek_bytes(1).map_or(0, |byte| u64::from(byte[0])),
                // What is hard on arithmetic, here and there.
                3 if state >> 61 == 0 => hard(dtype, (random >> 40) as usize),
                _ => match dtype {
                    DType::F32 => u64::from((small as f32 / 8.0).to_bits()),
                    DType::F16 => u64::from(f16::from_f32(small as f32 / 8.0).to_bits()),
                    DType::BF16 => u64::from(bf16::from_f32(small as f32 / 8.0).to_bits()),
                    // With a few that are negative.
                    _ => (small - i64::from(kind == 3) * 4) as u64,
                },
            };
            element.copy_from_slice(&value.to_le_bytes()[..dtype.size()]);
        }
        Ok(Held { name, dtype, memory, start, bytes: len })
    }
}

/// Bits of a number that has broken kernels, or stands where types and ranges end.
fn hard(dtype: DType, which: usize) -> u64 {
    const FLOATS: [f32; 10] = [
        f32::NAN,
        -f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        f32::MIN,
        f32::MIN_POSITIVE,
        1e-40,
        -0.0,
        -1.0,
    ];
    const INTEGERS: [i64; 10] = [
        -1,
        -2,
        i64::MIN,
        i64::MAX,
        i32::MIN as i64,
        i32::MAX as i64,
        1 << 31,
        1 << 32,
        1 << 20,
        0x80,
    ];
    let float = FLOATS[which % FLOATS.len()];
    match dtype {
        DType::F32 => float.to_bits().into(),
        DType::F16 => f16::from_f32(float).to_bits().into(),
        DType::BF16 => bf16::from_f32(float).to_bits().into(),
        _ => INTEGERS[which % INTEGERS.len()] as u64,
    }
}

impl Held {
    fn bytes(&self) -> &[u8] {
        &spec_core::dtype::as_bytes(&self.memory)[self.start..][..self.bytes]
    }

    /// Holds the first `count` elements against those of the plain loop, what is only
    /// read and what lies between rows included: integers bit for bit, floats to the
    /// contract's 2e-5.
    fn compare(&self, expected: &Held, count: usize, operator: &str) {
        let size = self.dtype.size();
        let known = count.saturating_mul(size).min(self.bytes);
        let (result, expected) = (&self.bytes()[..known], &expected.bytes()[..known]);
        if result == expected {
            return;
        }
        for (at, (result, expected)) in result.chunks(size).zip(expected.chunks(size)).enumerate() {
            let same = result == expected
                || self.dtype == DType::F32 && close(float(result), float(expected));
            let name = self.name;
            assert!(
                same,
                "{operator}: {name}[{at}] is {result:x?}, by the plain loop {expected:x?}"
            );
        }
    }
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().unwrap_or_default())
}

fn close(result: f32, expected: f32) -> bool {
    if result.is_nan() && expected.is_nan() {
        return true;
    }
    let (result, expected) = (f64::from(result), f64::from(expected));
    (result - expected).abs() <= 2e-5 * expected.abs() + 1e-6
}

/// Hands the memory out as a call asks for it, each piece once.
struct Lender<'a> {
    held: std::slice::IterMut<'a, Held>,
}

impl<'a> Lender<'a> {
    fn lend(&mut self, argument: &'static Argument) -> Option<(DType, &'a mut [u8])> {
        // Arguments are asked for in the order in which they were described.
        if self.held.as_slice().first()?.name != argument.name {
            return None;
        }
        let Held { dtype, memory, start, bytes, .. } = self.held.next()?;
        Some((*dtype, &mut spec_core::dtype::as_bytes_mut(memory)[*start..*start + *bytes]))
    }
}

impl<'a> Source<View<'a>, ViewMut<'a>> for Lender<'a> {
    fn input(&mut self, argument: &'static Argument) -> Option<View<'a>> {
        self.lend(argument).map(|(dtype, bytes)| View::from_bytes(dtype, bytes))
    }

    fn output(&mut self, argument: &'static Argument) -> Option<ViewMut<'a>> {
        self.lend(argument).map(|(dtype, bytes)| ViewMut::from_bytes(dtype, bytes))
    }
}

/// An operator with options out of bytes: an optional one has its default half of the time.
fn make<O: Signature>(bytes: &mut Unstructured<'_>) -> Taken<O> {
    let made = O::options_from(&mut |option| {
        let drawn = value(option, bytes).map_err(|_| option.refuse(O::NAME, "out of bytes"))?;
        Ok(drawn)
    });
    // What runs out of bytes ends the case.
    made.map_err(|_| arbitrary::Error::NotEnoughData)
}

fn value(option: &OptionInfo, bytes: &mut Unstructured<'_>) -> Taken<Option<Value>> {
    if !option.is_required() && bytes.arbitrary()? {
        return Ok(None);
    }
    Ok(Some(match option.kind {
        Kind::Bool => Value::Bool(bytes.arbitrary()?),
        Kind::Size => Value::Size(number(bytes)?),
        Kind::OptionalSize if bytes.arbitrary()? => Value::Absent,
        Kind::OptionalSize => Value::Size(number(bytes)?),
        Kind::I32 => Value::I32(bytes.arbitrary()?),
        Kind::F32 => Value::F32(bytes.arbitrary()?),
        Kind::Choice(choice) => Value::Choice(bytes.choose(choice.values)?.name),
        other => panic!("no values of {other:?} are made here"),
    }))
}

/// What the numbers among an operator's options are called in shapes, and, where numbers in
/// shapes follow from each other, those.
fn names<O: Signature>(
    operator: &O,
    bytes: &mut Unstructured<'_>,
) -> Taken<Vec<(&'static str, usize)>> {
    let size = |name| match operator.option(name) {
        Ok(Value::Size(size)) => Some(size),
        _ => None,
    };
    let named = |option: &OptionInfo| Some((option.name, size(option.name)?));
    let mut names: Vec<_> = O::OPTIONS.iter().filter_map(named).collect();
    match O::NAME {
        "topk_router" if !unlikely(bytes)? => {
            let groups = size("groups").unwrap_or(1);
            names.push(("experts", groups.saturating_mul(bytes.int_in_range(1..=16)?)));
        }
        // Often one request or table for each row, as where no argument names those of rows.
        "sample_logits" | "indexer_topk" => {
            let rows = number(bytes)?;
            let others = if bytes.arbitrary()? { rows } else { number(bytes)? };
            names.extend([("rows", rows), ("requests", others), ("tables", others)]);
            // Candidates say how many columns there are.
            if let Some(block) = size("candidate_block")
                && bytes.arbitrary()?
            {
                let c = number(bytes)?;
                names.extend([("c", c), ("cols", c.saturating_mul(block))]);
            }
        }
        _ => {}
    }
    Ok(names)
}

/// Outputs of which no more is specified than there are distinct keys.
fn counted(operator: &str) -> &'static [&'static str] {
    if operator == "unique" { &["unique", "counts"] } else { &[] }
}
