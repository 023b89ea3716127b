//! The device's side of [`spec_core::launch_params`]: writes each parameter struct and constant in
//! CUDA C++ or WGSL, and checks that the files of a backend have this text.

use std::fmt::Write as _;
use std::path::Path;

use spec_core::launch_params::{ConstantDescription, Description, Value};

/// If this environment variable is set, [`check`] writes the files before it compares them.
const WRITE: &str = "SPEC_WRITE_PARAMS";

/// The first line of each file.
const FIRST_LINE: &str =
    "// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.\n";

/// The largest width of a comment, in characters.
const WIDTH: usize = 100;

/// A file of parameter structs and constants.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// Name of the file.
    pub name: &'static str,
    /// Names of files to include, which define the types of fields that are neither numbers nor
    /// pointers.
    pub includes: &'static [&'static str],
    /// The structs with their constants, in the order in which the device needs them.
    pub structs: &'static [Description],
}

/// A language of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// CUDA C++: a header.
    Cuda,
    /// WGSL: a file for `//!include`, each of whose structs begins with `at: At`.
    Wgsl,
}

/// Checks that `folder` has exactly the files of `headers`, byte by byte, and no other files.
///
/// # Errors
/// A sentence that names the files which differ.
pub fn check(folder: &str, language: Language, headers: &[Header]) -> Result<(), String> {
    let folder = Path::new(folder);
    let mut expected: Vec<(String, String)> =
        headers.iter().map(|header| (language.file(header.name), language.text(header))).collect();
    expected.sort();
    if std::env::var_os(WRITE).is_some() {
        let failed = |e| format!("{}: {e}", folder.display());
        std::fs::create_dir_all(folder).map_err(failed)?;
        for (name, text) in &expected {
            std::fs::write(folder.join(name), text).map_err(failed)?;
        }
    }
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut found: Vec<(String, String)> = entries
        .filter_map(Result::ok)
        .map(|entry| {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            // Git may have checked the files out with other line endings.
            (entry.file_name().to_string_lossy().into_owned(), text.replace("\r\n", "\n"))
        })
        .collect();
    found.sort();
    let lacks = |these: &[(String, String)], file| !these.contains(file);
    let mut names: Vec<&str> = Vec::new();
    names.extend(expected.iter().filter(|f| lacks(&found, f)).map(|f| f.0.as_str()));
    names.extend(found.iter().filter(|f| lacks(&expected, f)).map(|f| f.0.as_str()));
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} in {} differ from the structs and constants in Rust; run `cargo xtask params`, then \
         compare the diff with the kernels",
        names.join(", "),
        folder.display()
    ))
}

impl Language {
    fn file(self, name: &str) -> String {
        format!("{name}.{}", if self == Language::Cuda { "cuh" } else { "wgsl" })
    }

    /// The text of a file.
    ///
    /// # Panics
    /// Where a struct or a constant cannot be written in WGSL, which has numbers of 32 bits only.
    pub fn text(self, header: &Header) -> String {
        let mut text = FIRST_LINE.to_owned();
        let w = &mut text;
        if self == Language::Cuda {
            line(w, "#pragma once\n");
            for include in header.includes {
                line(w, &format!("#include \"{include}\""));
            }
        } else {
            for include in header.includes {
                line(w, &format!("//!include {include}"));
            }
        }
        for description in header.structs {
            if !description.constants.is_empty() {
                line(w, "");
            }
            for constant in description.constants {
                comment(w, "", constant.doc);
                line(w, &self.constant(constant));
            }
            if description.fields.is_empty() {
                continue;
            }
            line(w, "");
            match self {
                Language::Cuda => cuda_struct(w, description),
                Language::Wgsl => wgsl_struct(w, description),
            }
        }
        text
    }

    /// The declaration of a constant. In CUDA C++ an integer is an enumerator, because NVRTC writes a
    /// `constexpr` variable into each image, where its symbol takes about 60 bytes of the archive.
    fn constant(self, constant: &ConstantDescription) -> String {
        let name = constant.name;
        // `{:?}` of an f32 is the shortest decimal number that reads as the same f32.
        match (self, constant.value) {
            (Language::Cuda, Value::U32(value)) => format!("enum : u32 {{ {name} = {value}u }};"),
            (Language::Cuda, Value::U64(value)) => format!("enum : u64 {{ {name} = {value}ull }};"),
            (Language::Cuda, Value::I32(value)) => format!("enum : i32 {{ {name} = {value} }};"),
            (Language::Cuda, Value::F32(value)) => format!("constexpr float {name} = {value:?}f;"),
            (Language::Wgsl, Value::U32(value)) => format!("const {name} = {value}u;"),
            (Language::Wgsl, Value::U64(value)) => {
                assert!(u32::try_from(value).is_ok(), "{name} has more than 32 bits");
                format!("const {name} = {value}u;")
            }
            (Language::Wgsl, Value::I32(value)) => format!("const {name} = {value}i;"),
            (Language::Wgsl, Value::F32(value)) => format!("const {name} = {value:?}f;"),
        }
    }
}

fn line(text: &mut String, words: &str) {
    let _ = writeln!(text, "{words}");
}

/// Writes a doc comment as `//` lines of at most `WIDTH` characters. An empty line separates
/// paragraphs.
fn comment(text: &mut String, indent: &str, doc: &[&str]) {
    for paragraph in doc.split(|words| words.trim().is_empty()).filter(|p| !p.is_empty()) {
        let mut written = format!("{indent}//");
        for word in paragraph.iter().flat_map(|words| words.split_whitespace()) {
            if written.chars().count() + 1 + word.chars().count() > WIDTH {
                line(text, &written);
                written = format!("{indent}//");
            }
            written.push(' ');
            written.push_str(word);
        }
        line(text, &written);
    }
}

fn cuda_struct(text: &mut String, s: &Description) {
    comment(text, "", s.doc);
    if let Some(name) = s.template {
        line(text, &format!("template <typename {name}>"));
    }
    line(text, &format!("struct {} {{", s.name));
    for field in s.fields {
        comment(text, "    ", field.doc);
        let device = if field.device == "f32" { "float" } else { field.device };
        let elements = field.elements.map_or(String::new(), |count| format!("[{count}]"));
        line(text, &format!("    {device} {}{elements};", field.name));
    }
    line(text, "};");
    let whole = format!("{}{}", s.name, if s.template.is_some() { "<float>" } else { "" });
    line(text, "// In bytes, as the host has them.");
    line(text, &format!("static_assert(sizeof({whole}) == {});", s.size));
    for field in s.fields {
        let mut at = |name: &str, offset: usize| {
            line(text, &format!("static_assert(SPEC_OFFSET({whole}, {name}) == {offset});"));
        };
        if field.parts.is_empty() {
            at(field.name, field.offset);
        }
        for part in field.parts {
            at(&format!("{}.{}", field.name, part.name), field.offset + part.offset);
        }
    }
}

fn wgsl_struct(text: &mut String, s: &Description) {
    comment(text, "", s.doc);
    line(text, &format!("struct {} {{", s.name));
    line(text, "    // Where the first element of each region is: see `bound`.");
    line(text, "    at: At,");
    let mut words = 0;
    let mut put = |text: &mut String, name: &str, device: &str, offset: usize| {
        assert_eq!(offset, 4 * words, "{}.{name} follows numbers of 32 bits", s.name);
        words += 1;
        line(text, &format!("    {name}: {device},"));
    };
    for field in s.fields {
        assert!(field.elements.is_none(), "{}.{} is an array", s.name, field.name);
        comment(text, "    ", field.doc);
        if field.parts.is_empty() {
            put(text, field.name, field.device, field.offset);
        }
        // The parts of a struct become fields, one behind the other.
        for part in field.parts {
            let name = format!("{}_{}", field.name, part.name);
            put(text, &name, field.device, field.offset + part.offset);
        }
    }
    assert_eq!(s.size, 4 * words, "{} ends with a number of 32 bits", s.name);
    line(text, "}");
}

#[cfg(test)]
mod tests {
    use super::*;

    spec_core::launch_params! {
        /// What `double` takes. The words of this comment are more than one line of a hundred
        /// characters has.
        ///
        /// A second paragraph.
        struct Params<T> {
            /// Numbers, [count].
            numbers: u64 as "const T*",
            sums: [u64; 2] as "u32*",
            /// From 0 to 1.
            share: f32,
            count: u32,
        }

        /// Threads of a block.
        const THREADS: usize = 1 << 9;
        const LAST: u64 = u64::MAX;
        const NOT_THERE: i32 = -1;
        const SMALLEST: f32 = f32::MIN_POSITIVE;
    }

    spec_core::launch_params! {
        /// What a shader takes.
        struct Words {
            /// Rows.
            rows: u32,
            share: f32,
        }
    }

    mod shared {
        spec_core::launch_params! {
            /// Bytes of a row.
            pub(super) const BYTES: u64 = 1 << 31;
            const LEAST: i32 = i32::MIN;
            const HALF: f32 = 0.5;
            const HAS_ROWS: u32 = 1;
        }
    }

    const HEADER: Header =
        Header { name: "double", includes: &["common.cuh"], structs: &[Params::DESCRIPTION] };

    #[test]
    fn a_struct_becomes_a_header() {
        assert_eq!(
            Language::Cuda.text(&HEADER),
            r#"// Written by `cargo xtask params` from calls of `launch_params!`. A test compares both.
#pragma once

#include "common.cuh"

// Threads of a block.
enum : u32 { THREADS = 512u };
enum : u64 { LAST = 18446744073709551615ull };
enum : i32 { NOT_THERE = -1 };
constexpr float SMALLEST = 1.1754944e-38f;

// What `double` takes. The words of this comment are more than one line of a hundred characters
// has.
// A second paragraph.
template <typename T>
struct Params {
    // Numbers, [count].
    const T* numbers;
    u32* sums[2];
    // From 0 to 1.
    float share;
    u32 count;
};
// In bytes, as the host has them.
static_assert(sizeof(Params<float>) == 32);
static_assert(SPEC_OFFSET(Params<float>, numbers) == 0);
static_assert(SPEC_OFFSET(Params<float>, sums) == 8);
static_assert(SPEC_OFFSET(Params<float>, share) == 24);
static_assert(SPEC_OFFSET(Params<float>, count) == 28);
"#
        );
    }

    #[test]
    fn a_struct_becomes_wgsl() {
        let header = Header { includes: &[], structs: &[Words::DESCRIPTION], ..HEADER };
        let text = Language::Wgsl.text(&header);
        let (_, text) = text.split_once("\n\n").unwrap();
        let expected = "// What a shader takes.\nstruct Params {\n    // Where the first element of \
                        each region is: see `bound`.\n    at: At,\n    // Rows.\n    rows: u32,\n    \
                        share: f32,\n}\n";
        assert_eq!(text.replace("Words", "Params"), expected);
    }

    #[test]
    fn constants_need_no_struct() {
        assert_eq!((THREADS, LAST, NOT_THERE, SMALLEST), (512, u64::MAX, -1, f32::MIN_POSITIVE));
        assert_eq!(shared::BYTES, 1 << 31);
        let header = Header { includes: &[], structs: &[shared::CONSTANTS], ..HEADER };
        let text = Language::Wgsl.text(&header);
        let (_, text) = text.split_once("\n\n").unwrap();
        let expected = "// Bytes of a row.\nconst BYTES = 2147483648u;\nconst LEAST = -2147483648i;\n\
                        const HALF = 0.5f;\nconst HAS_ROWS = 1u;\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn constants_that_change_are_seen() {
        let constants = |value| -> Header {
            let mut constants = Params::DESCRIPTION.constants.to_vec();
            constants[0].value = Value::of_usize(value);
            let constants = Box::leak(constants.into_boxed_slice());
            let description = Description { constants, ..Params::DESCRIPTION };
            Header { structs: Box::leak(Box::new([description])), ..HEADER }
        };
        assert_eq!(Language::Cuda.text(&constants(512)), Language::Cuda.text(&HEADER));
        assert_ne!(Language::Cuda.text(&constants(513)), Language::Cuda.text(&HEADER));
    }

    #[test]
    fn fields_that_change_places_are_seen() {
        let folder = std::env::temp_dir().join(format!("spec-params-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.to_str().unwrap();
        std::fs::write(folder.join("double.cuh"), Language::Cuda.text(&HEADER)).unwrap();
        assert_eq!(check(path, Language::Cuda, &[HEADER]), Ok(()));
        let [numbers, sums, share, count] = Params::DESCRIPTION.fields else { unreachable!() };
        let fields: &'static [_] = Box::leak(Box::new([*numbers, *sums, *count, *share]));
        let swapped: &'static [_] =
            Box::leak(Box::new([Description { fields, ..Params::DESCRIPTION }]));
        let found = check(path, Language::Cuda, &[Header { structs: swapped, ..HEADER }]);
        assert!(found.unwrap_err().starts_with("double.cuh in "));
        // A file whose struct no longer exists.
        let none = check(path, Language::Cuda, &[]);
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(none.is_err());
    }
}
