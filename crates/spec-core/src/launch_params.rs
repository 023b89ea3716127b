//! A launch's parameters, written once for the host and for the device.
//!
//! [`launch_params!`](crate::launch_params!) defines the struct that a backend fills for a kernel,
//! and with it a [`Description`]: the name, type, meaning and offset of each field. From the
//! description come the structs of the kernels (CUDA C++) and shaders (WGSL), as files in the
//! repository: `cargo xtask params` writes the files, and a test of each backend compares them with
//! the descriptions. So if two fields are swapped on one side alone, a test fails, also on a
//! machine without a GPU.

/// The parameter struct of a kernel, as the device must declare it.
#[derive(Clone, Copy, Debug)]
pub struct Description {
    /// Name of the struct, the same on host and device.
    pub name: &'static str,
    /// The type parameter of the device's struct, if it is a template. The host's struct has none.
    pub template: Option<&'static str>,
    /// The struct's doc comment.
    pub doc: &'static [&'static str],
    /// Size of the struct in bytes.
    pub size: usize,
    /// The fields, in the order of their offsets.
    pub fields: &'static [FieldDescription],
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

/// Defines the parameter struct of a kernel and describes it to the device.
///
/// A field is `name: type`, where the device's type has the same name, or `name: type as "device
/// type"`, such as a `u64` that the device reads as a pointer. `struct Params<T>` is a template on
/// the device. Traits to derive in addition to `Clone` and `Copy` follow the name.
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
///         /// 1 where a number may be negative, else 0.
///         is_signed: u32,
///     }
/// }
/// let fields = Params::DESCRIPTION.fields;
/// assert_eq!((fields[0].device, fields[2].name, fields[2].offset), ("float*", "is_signed", 12));
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
            /// The struct that the device must declare.
            #[allow(dead_code)] // Only tests ask.
            pub const DESCRIPTION: $crate::launch_params::Description =
                $crate::launch_params::Description {
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
    };
    (@last $only:expr) => { $only };
    (@last $first:expr, $last:expr) => { $last };
}
