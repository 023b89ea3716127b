//! A launch's parameters, and the constants that host and device both need, written once.
//!
//! [`launch_params!`](crate::launch_params!) defines the struct that a backend fills for a kernel,
//! and with it a [`Description`]: the name, type, meaning and offset of each field. Constants may
//! follow the struct: sizes of blocks, layouts of a workspace, bits of a field. From the description
//! come the structs and constants of the kernels (CUDA C++) and shaders (WGSL), as files in the
//! repository: `cargo xtask params` writes the files, and a test of each backend compares them with
//! the descriptions. So if two fields are swapped or a constant is changed on one side alone, a test
//! fails, also on a machine without a GPU.

use crate::DType;

/// The parameter struct of a kernel and its constants, as the device must declare them.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// The constants, which the device declares before the struct.
    pub constants: &'static [ConstantDescription],
    /// Name of the struct, the same on host and device; empty if there are only constants.
    pub name: &'static str,
    /// The type parameter of the device's struct, if it is a template. The host's struct has none.
    pub template: Option<&'static str>,
    /// The struct's doc comment.
    pub doc: &'static [&'static str],
    /// Size of the struct in bytes; 0 if there are only constants.
    pub size: usize,
    /// The fields, in the order of their offsets. Empty if there are only constants: then the device
    /// declares no struct.
    pub fields: &'static [FieldDescription],
}

/// A constant that host and device both need.
#[derive(Clone, Copy, Debug)]
pub struct ConstantDescription {
    /// Name of the constant, the same on host and device.
    pub name: &'static str,
    /// The constant's doc comment, a line each.
    pub doc: &'static [&'static str],
    /// The value, and with it the type on the device.
    pub value: Value,
}

/// The value of a constant, in the type that the device gives it.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A `u32`; also a `usize` of the host.
    U32(u32),
    /// A `u64`. WGSL has no such type: the value must fit 32 bits, and becomes a `u32`.
    U64(u64),
    /// An `i32`.
    I32(i32),
    /// An `f32`.
    F32(f32),
}

impl Value {
    /// The value of a `usize`, which is a `u32` on the device.
    ///
    /// # Panics
    /// If the value does not fit 32 bits. In the value of a constant, the panic is a compile error.
    pub const fn of_usize(value: usize) -> Self {
        assert!(value <= u32::MAX as usize, "a constant of a device has 32 bits");
        Value::U32(value as u32)
    }
}

/// The code of a float type, for kernels and shaders that take several types.
pub const fn float_code(dtype: DType) -> u32 {
    match dtype {
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 0,
    }
}

/// A field of a parameter struct.
#[derive(Clone, Copy, Debug)]
pub struct FieldDescription {
    /// Name of the field, the same on host and device.
    pub name: &'static str,
    /// The field's doc comment, a line each.
    pub doc: &'static [&'static str],
    /// The device's type of the field, or of the elements of an array.
    pub device: &'static str,
    /// The number of elements of an array; `None` for a field that is not an array.
    pub elements: Option<usize>,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// The parts of a field that is itself a struct.
    pub parts: &'static [Part],
}

/// A part of a field that is itself a struct.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Name of the part, the same on host and device.
    pub name: &'static str,
    /// Bytes from the start of the field.
    pub offset: usize,
}

/// A type that a field of a parameter struct may have.
pub trait Field: Copy {
    /// The device's name of the type, or of the type of an array's elements.
    const DEVICE: &'static str;
    /// The number of elements of an array; `None` for a type that is not an array.
    const ELEMENTS: Option<usize> = None;
    /// The parts of a struct; empty for other types.
    const PARTS: &'static [Part] = &[];
}

impl Field for u32 {
    const DEVICE: &'static str = "u32";
}

impl Field for i32 {
    const DEVICE: &'static str = "i32";
}

impl Field for u64 {
    const DEVICE: &'static str = "u64";
}

impl Field for f32 {
    const DEVICE: &'static str = "f32";
}

impl<F: Field, const N: usize> Field for [F; N] {
    const DEVICE: &'static str = F::DEVICE;
    const ELEMENTS: Option<usize> = Some(N);
    const PARTS: &'static [Part] = F::PARTS;
}

/// Defines the parameter struct of a kernel and constants, and describes them to the device.
///
/// A field is `name: type`, where the device's type has the same name, or `name: type as "device
/// type"`, such as a `u64` that the device reads as a pointer. `struct Params<T>` is a template on
/// the device. Traits to derive in addition to `Clone` and `Copy` follow the name.
///
/// Constants follow the struct. They are ordinary constants of the module, of type `u32`, `usize`,
/// `u64`, `i32` or `f32`; a `usize` is a `u32` on the device. A call without a struct describes its
/// constants as `CONSTANTS` instead of `Params::DESCRIPTION`.
///
/// ```
/// use spec_core::launch_params;
/// launch_params! {
///     /// What the kernels of `double` take.
///     pub struct Params: Debug {
///         /// Numbers, [count].
///         numbers: u64 as "float*",
///         /// How many numbers there are.
///         count: u32,
///         /// Bits of the arguments that the caller gave.
///         has: u32,
///     }
///
///     /// Threads of a block.
///     const THREADS: u32 = 256;
///     const HAS_LIMITS: u32 = 1;
/// }
/// let fields = Params::DESCRIPTION.fields;
/// assert_eq!((fields[0].device, fields[2].name, fields[2].offset), ("float*", "has", 12));
/// assert_eq!(Params::DESCRIPTION.constants[0].name, "THREADS");
/// assert_eq!((THREADS, HAS_LIMITS), (256, 1));
/// ```
#[macro_export]
macro_rules! launch_params {
    (
        $(#[doc = $doc:literal])*
        $vis:vis struct $name:ident $(<$template:ident>)? $(: $($derive:path),+)? {
            $(
                $(#[doc = $field_doc:literal])*
                $field_vis:vis $field:ident: $type:ty $(as $device:literal)?
            ),+ $(,)?
        }
        $(
            $(#[doc = $constant_doc:literal])*
            $constant_vis:vis const $constant:ident: $constant_type:ident = $value:expr;
        )*
    ) => {
        $(#[doc = $doc])*
        #[repr(C)]
        #[derive(Clone, Copy $($(, $derive)+)?)]
        $vis struct $name {
            $(
                $(#[doc = $field_doc])*
                $field_vis $field: $type
            ),+
        }

        impl $name {
            /// The constants and the struct that the device must declare.
            #[allow(dead_code)] // Only tests ask.
            pub const DESCRIPTION: $crate::launch_params::Description =
                $crate::launch_params::Description {
                    constants: &[$(
                        $crate::launch_params!(
                            @constant $constant: $constant_type, $($constant_doc),*
                        )
                    ),*],
                    name: stringify!($name),
                    template: $crate::launch_params!(@last None $(, Some(stringify!($template)))?),
                    doc: &[$($doc),*],
                    size: size_of::<$name>(),
                    fields: &[$(
                        $crate::launch_params::FieldDescription {
                            name: stringify!($field),
                            doc: &[$($field_doc),*],
                            device: $crate::launch_params!(
                                @last <$type as $crate::launch_params::Field>::DEVICE
                                $(, $device)?
                            ),
                            elements: <$type as $crate::launch_params::Field>::ELEMENTS,
                            offset: ::std::mem::offset_of!($name, $field),
                            parts: <$type as $crate::launch_params::Field>::PARTS,
                        }
                    ),+],
                };
        }

        $(
            $(#[doc = $constant_doc])*
            $constant_vis const $constant: $constant_type = $value;
        )*
    };
    (
        $(
            $(#[doc = $doc:literal])*
            $vis:vis const $constant:ident: $type:ident = $value:expr;
        )+
    ) => {
        $(
            $(#[doc = $doc])*
            $vis const $constant: $type = $value;
        )+

        /// The constants that the device must declare.
        #[allow(dead_code)] // Only tests ask.
        pub(crate) const CONSTANTS: $crate::launch_params::Description =
            $crate::launch_params::Description {
                constants: &[$(
                    $crate::launch_params!(@constant $constant: $type, $($doc),*)
                ),+],
                name: "",
                template: None,
                doc: &[],
                size: 0,
                fields: &[],
            };
    };
    (@constant $constant:ident: $type:ident, $($doc:literal),*) => {
        $crate::launch_params::ConstantDescription {
            name: stringify!($constant),
            doc: &[$($doc),*],
            value: $crate::launch_params!(@value $type $constant),
        }
    };
    (@value u32 $constant:ident) => { $crate::launch_params::Value::U32($constant) };
    (@value usize $constant:ident) => { $crate::launch_params::Value::of_usize($constant) };
    (@value u64 $constant:ident) => { $crate::launch_params::Value::U64($constant) };
    (@value i32 $constant:ident) => { $crate::launch_params::Value::I32($constant) };
    (@value f32 $constant:ident) => { $crate::launch_params::Value::F32($constant) };
    (@last $only:expr) => { $only };
    (@last $first:expr, $last:expr) => { $last };
}
