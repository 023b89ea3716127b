//! Data of any dtype on the host and on a device, packed or with gaps between rows.

use std::borrow::Cow;
use std::ops::Range;

use half::{bf16, f16};
use spec_core::{Backend, DType, Element, Memory, Result, TensorDesc, View, ViewMut, dtype};

/// Defines [`Data`] from one list of dtypes, each with its Rust type and its poison.
macro_rules! dtypes {
    ($( $variant:ident: $ty:ty = $poison:expr ),+ $(,)?) => {
        /// A vector of any dtype.
        #[derive(Clone, Debug)]
        #[allow(missing_docs, reason = "named as the dtypes are")]
        pub enum Data {
            $( $variant(Vec<$ty>), )+
        }

        $(
            impl From<Vec<$ty>> for Data {
                fn from(data: Vec<$ty>) -> Self {
                    Data::$variant(data)
                }
            }

            impl<const N: usize> From<[$ty; N]> for Tensor {
                fn from(elements: [$ty; N]) -> Self {
                    Tensor::vector(elements.to_vec())
                }
            }

            impl<const ROWS: usize, const COLS: usize> From<[[$ty; COLS]; ROWS]> for Tensor {
                fn from(rows: [[$ty; COLS]; ROWS]) -> Self {
                    Tensor::matrix(rows.as_flattened().to_vec(), ROWS, COLS)
                }
            }
        )+

        impl Data {
            /// The elements' type.
            pub fn dtype(&self) -> DType {
                match self {
                    $( Data::$variant(_) => <$ty as Element>::DTYPE, )+
                }
            }

            /// The number of elements.
            pub fn len(&self) -> usize {
                match self {
                    $( Data::$variant(data) => data.len(), )+
                }
            }

            /// Whether there are no elements.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// The elements' bytes.
            pub fn bytes(&self) -> &[u8] {
                match self {
                    $( Data::$variant(data) => dtype::as_bytes(data), )+
                }
            }

            pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
                match self {
                    $( Data::$variant(data) => dtype::as_bytes_mut(data), )+
                }
            }

            /// `len` elements of poison of the same dtype.
            pub(crate) fn poison(&self, len: usize) -> Data {
                poison(self.dtype(), len)
            }

            /// The first `len` elements.
            fn head(&self, len: usize) -> Data {
                match self {
                    $( Data::$variant(data) => Data::$variant(data[..len].to_vec()), )+
                }
            }

            /// Overwrites the elements from `at` on by a range of `from`, which has the same dtype.
            pub(crate) fn splice(&mut self, at: usize, from: &Data, range: Range<usize>) {
                match (self, from) {
                    $( (Data::$variant(to), Data::$variant(from)) => {
                        to[at..at + range.len()].copy_from_slice(&from[range]);
                    } )+
                    _ => unreachable!("both are of the dtype of one tensor"),
                }
            }
        }

        /// `len` elements of a dtype's poison, a value that no result should have. Outputs and
        /// gaps hold it before a call.
        pub(crate) fn poison(dtype: DType, len: usize) -> Data {
            $( if dtype == <$ty as Element>::DTYPE {
                return Data::$variant(vec![$poison; len]);
            } )+
            unreachable!("{dtype} is no dtype that an operator takes")
        }
    };
}

dtypes! {
    F32: f32 = f32::NAN,
    F16: f16 = f16::NAN,
    BF16: bf16 = bf16::NAN,
    I32: i32 = 0x5A5A_5A5A,
    I64: i64 = 0x5A5A_5A5A_5A5A_5A5A,
    U32: u32 = 0x5A5A_5A5A,
    U64: u64 = 0x5A5A_5A5A_5A5A_5A5A,
    U8: u8 = 0x5A,
    I8: i8 = 0x5A,
}

/// The contents of a workspace before a call.
static POISON: [u8; 64 << 10] = [0xA5; 64 << 10];

/// Elements in a device's memory.
pub struct Held {
    memory: Box<dyn Memory>,
    dtype: DType,
    len: usize,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({} x {})", self.len, self.dtype)
    }
}

impl Held {
    /// Copies host bytes to memory of a backend.
    ///
    /// # Errors
    /// Status 1 where there is not enough memory or the device fails.
    pub fn upload<B: Backend + ?Sized>(backend: &B, dtype: DType, bytes: &[u8]) -> Result<Held> {
        let mut memory = backend.allocate_bytes(bytes.len())?;
        memory.write(bytes)?;
        Ok(Held { memory, dtype, len: bytes.len() / dtype.size() })
    }

    /// `bytes` bytes of poison.
    pub(crate) fn poisoned<B: Backend + ?Sized>(backend: &B, bytes: usize) -> Result<Held> {
        let mut memory = backend.allocate_bytes(bytes)?;
        for start in (0..bytes).step_by(POISON.len()) {
            memory.write_at(start, &POISON[..POISON.len().min(bytes - start)])?;
        }
        Ok(Held { memory, dtype: DType::U8, len: bytes })
    }

    /// The elements as an argument that is read.
    pub fn view(&self) -> View<'_> {
        self.memory.view(self.dtype, self.len)
    }

    /// The elements as an argument that is written.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        self.memory.view_mut(self.dtype, self.len)
    }

    /// Overwrites the memory from its start.
    ///
    /// # Errors
    /// Status 11 where `bytes` are more than the memory has, 1 when the device fails.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.memory.write(bytes)
    }

    /// The contents of the memory, in the type of `like`.
    ///
    /// # Errors
    /// Status 1 when the device fails.
    pub fn read(&self, like: &Data) -> Result<Data> {
        let mut data = like.poison(self.len);
        self.memory.read(data.bytes_mut())?;
        Ok(data)
    }
}

impl Data {
    /// The rows of `cols` elements with these numbers.
    pub(crate) fn gather(&self, cols: usize, rows: &[usize]) -> Data {
        let mut gathered = self.poison(rows.len() * cols);
        for (to, &from) in rows.iter().enumerate() {
            gathered.splice(to * cols, self, from * cols..(from + 1) * cols);
        }
        gathered
    }

    /// The element as text.
    pub fn show(&self, index: usize) -> String {
        match self {
            Data::F32(data) => format!("{:?}", data[index]),
            Data::F16(data) => format!("{:?}", data[index]),
            Data::BF16(data) => format!("{:?}", data[index]),
            Data::I32(data) => data[index].to_string(),
            Data::I64(data) => data[index].to_string(),
            Data::U32(data) => data[index].to_string(),
            Data::U64(data) => data[index].to_string(),
            Data::U8(data) => data[index].to_string(),
            Data::I8(data) => data[index].to_string(),
        }
    }

    /// The first element that differs from `expected`, which has the same
    /// dtype and length.
    ///
    /// Floats must be the same number (all NaNs are equal), or differ by at most
    /// the relative `tolerance`, plus 1e-6.
    pub(crate) fn first_difference(
        &self,
        expected: &Data,
        tolerance: Option<f64>,
    ) -> Option<usize> {
        // Nearly all comparisons end here, at the speed of memory.
        if self.dtype() == expected.dtype() && self.bytes() == expected.bytes() {
            return None;
        }
        match (self, expected) {
            (Data::F32(a), Data::F32(b)) => difference(a, b, |a, b| close(a, b, tolerance)),
            (Data::F16(a), Data::F16(b)) => {
                difference(a, b, |a, b| close(a.to_f32(), b.to_f32(), tolerance))
            }
            (Data::BF16(a), Data::BF16(b)) => {
                difference(a, b, |a, b| close(a.to_f32(), b.to_f32(), tolerance))
            }
            (Data::I32(a), Data::I32(b)) => difference(a, b, |a, b| a == b),
            (Data::I64(a), Data::I64(b)) => difference(a, b, |a, b| a == b),
            (Data::U32(a), Data::U32(b)) => difference(a, b, |a, b| a == b),
            (Data::U64(a), Data::U64(b)) => difference(a, b, |a, b| a == b),
            (Data::U8(a), Data::U8(b)) => difference(a, b, |a, b| a == b),
            (Data::I8(a), Data::I8(b)) => difference(a, b, |a, b| a == b),
            _ => Some(0),
        }
    }
}

fn difference<T: Copy>(a: &[T], b: &[T], same: impl Fn(T, T) -> bool) -> Option<usize> {
    a.iter().zip(b).position(|(&a, &b)| !same(a, b))
}

fn close(got: f32, expected: f32, tolerance: Option<f64>) -> bool {
    if got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan() {
        return true;
    }
    let (got, expected) = (f64::from(got), f64::from(expected));
    tolerance.is_some_and(|relative| (got - expected).abs() <= relative * expected.abs() + 1e-6)
}

/// A tensor of one to three dimensions, packed.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The elements, row by row.
    pub data: Data,
    /// The extents of the dimensions.
    pub shape: Vec<usize>,
}

/// How the rows of tensors lie in a buffer.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The number of elements between the end of a row and the start of the next row, and behind
    /// the last row.
    gap: usize,
}

impl Layout {
    /// Rows one behind the other, without gaps.
    pub const PACKED: Layout = Layout { gap: 0 };

    /// Rows with `gap` elements between them.
    pub fn gaps(gap: usize) -> Layout {
        Layout { gap }
    }

    /// The number of elements by which a tensor starts behind an address that is aligned for all
    /// types.
    pub(crate) fn shift(self) -> usize {
        self.gap
    }

    /// Elements from the start of a row of `cols` elements to the start of the next. A matrix of
    /// one column has no gaps, because operators take it in the place of a packed vector.
    fn stride(self, cols: usize) -> usize {
        if cols == 1 { 1 } else { cols + self.gap }
    }
}

impl Tensor {
    /// A vector of these elements.
    pub fn vector(data: impl Into<Data>) -> Tensor {
        let data = data.into();
        Tensor { shape: vec![data.len()], data }
    }

    /// A matrix of these elements, row by row.
    pub fn matrix(data: impl Into<Data>, rows: usize, cols: usize) -> Tensor {
        let data = data.into();
        debug_assert_eq!(data.len(), rows * cols);
        Tensor { shape: vec![rows, cols], data }
    }

    /// A vector or matrix that an operator is to fill.
    pub fn to_fill(dtype: DType, shape: &[usize]) -> Tensor {
        Tensor { data: poison(dtype, shape.iter().product()), shape: shape.to_vec() }
    }

    /// The number of rows of a matrix, or of elements of a vector.
    pub fn rows(&self) -> usize {
        self.shape[0]
    }

    /// The number of elements of a row, which the dimensions after the first have; 1 for a vector.
    pub fn cols(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// The tensor's descriptor in a layout.
    pub fn desc(&self, layout: Layout) -> TensorDesc {
        let dtype = self.data.dtype();
        match self.shape[..] {
            [rows, cols] => {
                let stride = layout.stride(cols).max(1).cast_signed();
                TensorDesc::with_strides(dtype, [rows, cols], [stride, 1])
            }
            [matrices, rows, cols] => {
                let (_, _, stride) = self.runs(layout);
                // A run is a row, or a whole matrix where rows have one column.
                let strides = if cols == 1 { [stride, 1] } else { [rows * stride, stride] };
                let [outer, row] = strides.map(|stride| stride.max(1).cast_signed());
                TensorDesc::with_strides(dtype, [matrices, rows, cols], [outer, row, 1])
            }
            _ => TensorDesc::new(dtype, [self.rows()]),
        }
    }

    /// The number of runs without gaps in a layout, the number of elements in a run, and the
    /// number of elements from the start of a run to the start of the next.
    fn runs(&self, layout: Layout) -> (usize, usize, usize) {
        match self.shape[..] {
            [rows, cols] => (rows, cols, layout.stride(cols)),
            [matrices, rows, 1] => (matrices, rows, rows + layout.gap),
            [matrices, rows, cols] => (matrices * rows, cols, cols + layout.gap),
            _ => (1, self.rows(), self.rows() + layout.gap),
        }
    }

    /// The number of elements that the tensor takes in memory, gaps included.
    pub(crate) fn extent(&self, layout: Layout) -> usize {
        let (runs, _, stride) = self.runs(layout);
        runs * stride
    }

    /// The tensor's elements as they lie in memory, with poison in the gaps.
    pub(crate) fn spread(&self, layout: Layout) -> Cow<'_, Data> {
        let (runs, len, stride) = self.runs(layout);
        if len == stride {
            return Cow::Borrowed(&self.data);
        }
        let mut spread = self.data.poison(self.extent(layout));
        for run in 0..runs {
            spread.splice(run * stride, &self.data, run * len..(run + 1) * len);
        }
        Cow::Owned(spread)
    }

    /// The tensor from a buffer's elements, without the gaps. If an element of a gap was
    /// overwritten, its index is the error.
    pub(crate) fn gathered(&self, layout: Layout, spread: Data) -> Result<Tensor, usize> {
        let (runs, len, stride) = self.runs(layout);
        let shape = self.shape.clone();
        if len == stride {
            return Ok(Tensor { data: spread, shape });
        }
        let mut data = self.data.poison(runs * len);
        let mut gap = self.data.poison(stride - len);
        let poison = gap.clone();
        for run in 0..runs {
            let start = run * stride;
            data.splice(run * len, &spread, start..start + len);
            gap.splice(0, &spread, start + len..start + stride);
            if let Some(at) = gap.first_difference(&poison, None) {
                return Err(start + len + at);
            }
        }
        Ok(Tensor { data, shape })
    }

    /// The first `rows` rows.
    pub fn head(&self, rows: usize) -> Tensor {
        let mut shape = self.shape.clone();
        shape[0] = rows;
        Tensor { data: self.data.head(rows * self.cols()), shape }
    }

    /// The rows with these numbers.
    pub fn pick(&self, rows: &[usize]) -> Tensor {
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        Tensor { data: self.data.gather(self.cols(), rows), shape }
    }

    /// The index of the element at `flat`, in each dimension: `[3, 17]`.
    pub(crate) fn index(&self, flat: usize) -> Vec<usize> {
        match self.shape[..] {
            [_, cols] if cols > 0 => vec![flat / cols, flat % cols],
            [_, rows, cols] if rows * cols > 0 => {
                vec![flat / (rows * cols), flat / cols % rows, flat % cols]
            }
            _ => vec![flat],
        }
    }
}
