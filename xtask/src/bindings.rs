//! `cargo xtask bindings`: what C has for each operator, from the contract's lists of
//! arguments, and the header of all of it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use spec_core::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique,
};
use spec_core::{Argument, Role, Signature};

use crate::{Result, read, root, write};

const CRATE: &str = "crates/spec-c";
const CODE: &str = "crates/spec-c/src/generated.rs";
const HEADER: &str = "crates/spec-c/include/spec.h";
const CONTRACT: &str = "crates/spec-core/src/ops";

/// An operator, as the contract has it.
struct Operator {
    /// Its struct in Rust.
    rust: &'static str,
    /// Its name.
    name: &'static str,
    arguments: &'static [Argument],
}

/// The operators that C has.
macro_rules! operators {
    ($($operator:ident),+ $(,)?) => {
        const OPERATORS: &[Operator] = &[$( Operator {
            rust: stringify!($operator),
            name: <$operator as Signature>::NAME,
            arguments: <$operator as Signature>::ARGUMENTS,
        } ),+];
    };
}

operators! {
    TopkRouter,
    DeduplicateTopk,
    RejectionSample,
    SampleLogits,
    NgramMatch,
    HybridMtpNgram,
    PromptLookup,
    TreeVerify,
    MoeAlign,
    IndexerTopk,
    Unique,
}

/// Runs the task with the words after its name.
pub fn run(arguments: &[&str]) -> Result<()> {
    let check = match arguments {
        [] => false,
        ["--check"] => true,
        other => return Err(format!("expected nothing or --check, not {other:?}")),
    };
    all_are_listed()?;
    let code = code()?;
    if check {
        same(CODE, &code)?;
    } else {
        write(&root().join(CODE), code.as_bytes())?;
    }
    let header = header()?;
    if check {
        same(HEADER, &header)?;
        println!("{CODE} and {HEADER} are what the contract gives");
        return Ok(());
    }
    write(&root().join(HEADER), header.as_bytes())?;
    println!("{CODE} and {HEADER}: {} operators", OPERATORS.len());
    Ok(())
}

/// Proves that a committed file is what it should be.
fn same(name: &str, wanted: &str) -> Result<()> {
    if read(&root().join(name))? == wanted.as_bytes() {
        return Ok(());
    }
    Err(format!("{name} is not what the contract gives; run cargo xtask bindings"))
}

/// An operator that the contract has and the list above has not is a mistake.
fn all_are_listed() -> Result<()> {
    let folder = root().join(CONTRACT);
    let entries = std::fs::read_dir(&folder).map_err(|e| format!("{CONTRACT}: {e}"))?;
    for entry in entries {
        let path = entry.map_err(|e| format!("{CONTRACT}: {e}"))?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let is_operator = path.extension().is_some_and(|e| e == "rs") && name != "mod";
        if is_operator && OPERATORS.iter().all(|operator| operator.name != name) {
            return Err(format!("{CONTRACT}/{name}.rs is not in xtask/src/bindings.rs"));
        }
    }
    Ok(())
}

/// The code of all operators.
fn code() -> Result<String> {
    let committed = std::fs::read_to_string(root().join(CODE)).unwrap_or_default();
    let mut code = String::from(
        "//! Written by `cargo xtask bindings` from the contract's lists: do not edit.\n\n\
         use std::ffi::c_void;\n\n",
    );
    let names: Vec<_> = OPERATORS.iter().map(|operator| operator.rust).collect();
    _ = writeln!(code, "use spec::ops::{{{}}};\n", names.join(", "));
    code += "use crate::device::spec_handle;\n\
             use crate::operator::{Bound, calculate, create, defaults, spec_descriptor};\n";
    let params: Vec<_> =
        OPERATORS.iter().map(|operator| format!("spec_{}_params", operator.name)).collect();
    _ = writeln!(code, "use crate::params::{{{}}};", params.join(", "));
    code += "use crate::status::spec_status;\n\
             use crate::tensor::{Slots, spec_tensor};\n\
             use crate::versioned::Versioned;\n\n";
    for operator in OPERATORS {
        operator.write(&mut code, &committed)?;
    }
    formatted(&code)
}

impl Operator {
    fn write(&self, code: &mut String, committed: &str) -> Result<()> {
        let Operator { rust, name, .. } = self;
        let fields = self.fields(committed)?;
        self.write_struct(
            code,
            &fields,
            "tensors",
            "Descriptors of the arguments",
            |_| "spec_tensor",
        );
        self.write_struct(code, &fields, "buffers", "The arguments", |argument| {
            if argument.is_written() { "*mut c_void" } else { "*const c_void" }
        });
        _ = writeln!(
            code,
            "impl Bound for {rust} {{\n\
                 type CParams = spec_{name}_params;\n\
                 type CTensors = spec_{name}_tensors;\n\
                 type CBuffers = spec_{name}_buffers;\n\
                 const ABSENT: (Self::CTensors, Self::CBuffers) = \
                     (spec_{name}_tensors::ABSENT, spec_{name}_buffers::ABSENT);\n\
             }}\n"
        );
        self.write_functions(code)
    }

    /// The arguments in the order in which C has them: as committed, so that a program
    /// that was compiled before still finds them, then what is new.
    fn fields(&self, committed: &str) -> Result<Vec<&'static Argument>> {
        let start = format!("pub struct spec_{}_buffers {{", self.name);
        let body = committed.split(&start).nth(1).and_then(|rest| rest.split('}').next());
        let before: Vec<&str> = body
            .unwrap_or_default()
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub ")?.split(':').next())
            .filter(|&field| field != "size")
            .collect();
        let mut fields = Vec::new();
        for name in &before {
            let argument = self.arguments.iter().find(|argument| argument.name == *name);
            fields.push(argument.ok_or(format!(
                "{}: the contract has no `{name}` any more: remove it from {CODE} by hand \
                 and raise SPEC_ABI_VERSION",
                self.name
            ))?);
        }
        let is_new = |argument: &&Argument| !before.contains(&argument.name);
        fields.extend(self.arguments.iter().filter(is_new));
        Ok(fields)
    }

    /// A struct with a field an argument.
    fn write_struct(
        &self,
        code: &mut String,
        fields: &[&'static Argument],
        suffix: &str,
        what: &str,
        of: impl Fn(&Argument) -> &'static str,
    ) {
        let name = format!("spec_{}_{suffix}", self.name);
        _ = writeln!(code, "/// {what} of {}.", self.name);
        _ = writeln!(code, "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct {name} {{");
        _ = writeln!(code, "/// sizeof({name}).\npub size: usize,");
        for argument in fields {
            _ = writeln!(code, "/// {}", facts(argument));
            if suffix == "tensors" {
                argument.doc.lines().for_each(|line| _ = writeln!(code, "///{line}"));
            }
            _ = writeln!(code, "pub {}: {},", argument.name, of(argument));
        }
        code.push_str("}\n\n");
        _ = writeln!(
            code,
            "// SAFETY: integers and pointers, the first of them the size.\n\
             unsafe impl Versioned for {name} {{}}\n\n\
             impl Default for {name} {{\n/// Nothing is there.\nfn default() -> Self {{\nSelf::ABSENT\n}}\n}}\n\n\
             impl {name} {{\nconst ABSENT: Self = {name} {{ size: size_of::<Self>(),"
        );
        for argument in fields {
            let absent = match of(argument) {
                "spec_tensor" => "spec_tensor::ABSENT",
                "*mut c_void" => "std::ptr::null_mut()",
                _ => "std::ptr::null()",
            };
            _ = writeln!(code, "{}: {absent},", argument.name);
        }
        let item = if suffix == "tensors" { "spec_tensor" } else { "*mut c_void" };
        _ = writeln!(
            code,
            "}};\n}}\n\nimpl Slots<{item}> for {name} {{\n\
             #[inline]\nfn slot(&self, argument: usize) -> {item} {{\nmatch argument {{"
        );
        for (at, argument) in self.arguments.iter().enumerate() {
            let cast = if of(argument).starts_with("*const") { ".cast_mut()" } else { "" };
            _ = writeln!(code, "{at} => self.{}{cast},", argument.name);
        }
        let absent =
            if suffix == "tensors" { "spec_tensor::ABSENT" } else { "std::ptr::null_mut()" };
        _ = writeln!(code, "_ => {absent},\n}}\n}}\n}}\n");
    }

    fn write_functions(&self, code: &mut String) -> Result<()> {
        let Operator { rust, name, .. } = self;
        _ = writeln!(
            code,
            "/// Sets the parameters of {name} to what is usual, and those that have to be\n\
             /// given to 0.\n\
             ///\n\
             /// # Errors\n\
             /// Status 4 for a null pointer, 3 for a `size` that is none.\n\
             ///\n\
             /// # Safety\n\
             /// `params` has its `size` set.\n\
             #[unsafe(no_mangle)]\n\
             pub unsafe extern \"C\" fn spec_{name}_defaults(params: *mut spec_{name}_params) \
                 -> spec_status {{\n\
                 // SAFETY: the caller's.\n\
                 unsafe {{ defaults::<{rust}>(\"spec_{name}_defaults\", params) }}\n\
             }}\n"
        );
        let about = self.about()?;
        about.lines().for_each(|line| _ = writeln!(code, "/// {line}"));
        code.push_str(
            "///\n/// Creates the operator for these tensors on the handle's device:\n\
             /// checks everything that they and the parameters can show. `descriptor` becomes\n\
             /// yours, to be given to `spec_destroy`, or NULL where the call fails.\n///\n",
        );
        for argument in self.arguments {
            _ = writeln!(code, "/// - `{}` {}", argument.name, facts(argument));
        }
        _ = writeln!(
            code,
            "///\n\
             /// # Errors\n\
             /// Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the\n\
             /// backend lacks it, 1 or 8 where the device cannot run it.\n\
             ///\n\
             /// # Safety\n\
             /// `handle` is from `spec_open`, the structs have their `size` set, `descriptor`\n\
             /// is a place.\n\
             #[unsafe(no_mangle)]\n\
             pub unsafe extern \"C\" fn spec_{name}_create(\n\
                 handle: *const spec_handle,\n\
                 params: *const spec_{name}_params,\n\
                 tensors: *const spec_{name}_tensors,\n\
                 descriptor: *mut *mut spec_descriptor,\n\
             ) -> spec_status {{\n\
                 let call = \"spec_{name}_create\";\n\
                 // SAFETY: the caller's.\n\
                 unsafe {{ create::<{rust}>(call, handle, params, tensors, descriptor) }}\n\
             }}\n"
        );
        _ = writeln!(
            code,
            "/// Enqueues {name} on `stream`, and does nothing else.\n\
             ///\n\
             /// # Errors\n\
             /// Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not\n\
             /// aligned, 13 for a workspace that is too small, 1 where the device refuses.\n\
             /// Bad values in the data are no errors: they set `flags`.\n\
             ///\n\
             /// # Safety\n\
             /// `descriptor` is from `spec_{name}_create`, `workspace` has `workspace_size`\n\
             /// bytes, and each buffer as many elements as its tensor spans, until the work\n\
             /// is done.\n\
             #[unsafe(no_mangle)]\n\
             pub unsafe extern \"C\" fn spec_{name}_calculate(\n\
                 descriptor: *const spec_descriptor,\n\
                 workspace: *mut c_void,\n\
                 workspace_size: usize,\n\
                 buffers: *const spec_{name}_buffers,\n\
                 stream: *mut c_void,\n\
             ) -> spec_status {{\n\
                 let call = \"spec_{name}_calculate\";\n\
                 // SAFETY: the caller's.\n\
                 unsafe {{ calculate::<{rust}>(call, descriptor, workspace, workspace_size, \
                     buffers, stream) }}\n\
             }}\n"
        );
        Ok(())
    }

    /// What the operator is, as the first paragraph of its contract says.
    fn about(&self) -> Result<String> {
        let path = Path::new(CONTRACT).join(self.name).with_extension("rs");
        let text = String::from_utf8(read(&root().join(path))?).map_err(|e| e.to_string())?;
        let lines = text.lines().map_while(|line| line.strip_prefix("//! "));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }
}

/// Shape, dtypes and role in a line.
fn facts(argument: &Argument) -> String {
    let dtypes: Vec<_> = argument.dtypes.iter().map(|dtype| dtype.name()).collect();
    let role = match argument.role {
        Role::Input => "read",
        Role::Output => "written",
        Role::InPlace => "changed in place",
    };
    let optional = if argument.optional { ", optional" } else { "" };
    format!("`{}`, {}: {role}{optional}.", argument.shape, dtypes.join(" or "))
}

/// As rustfmt has it.
fn formatted(code: &str) -> Result<String> {
    let words = |e: std::io::Error| format!("rustfmt: {e}");
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--config-path"])
        .arg(root().join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(words)?;
    // Taken, so that the pipe ends where the code does.
    rustfmt.stdin.take().map_or(Ok(()), |mut to| to.write_all(code.as_bytes())).map_err(words)?;
    let done = rustfmt.wait_with_output().map_err(words)?;
    if !done.status.success() {
        return Err("rustfmt does not take the code".to_owned());
    }
    String::from_utf8(done.stdout).map_err(|e| e.to_string())
}

/// The header of all that the crate exports.
fn header() -> Result<String> {
    let folder = root().join(CRATE);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    // Not lib.rs, which would bring them in the order of their names.
    let sources = ["status", "tensor", "device", "memory", "operator", "params", "generated"];
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in sources {
        builder = builder.with_src(folder.join("src").join(source).with_extension("rs"));
    }
    let bindings = builder.generate().map_err(|e| e.to_string())?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(committed: &str) -> Result<Vec<&'static str>> {
        let unique = OPERATORS.iter().find(|operator| operator.name == "unique").unwrap();
        Ok(unique.fields(committed)?.iter().map(|argument| argument.name).collect())
    }

    #[test]
    fn fields_stay_where_they_were_committed() {
        assert_eq!(order("").unwrap(), ["keys", "unique", "count", "counts"]);
        let committed = "pub struct spec_unique_buffers {\n    pub size: usize,\n    \
                         pub counts: *mut c_void,\n    pub keys: *const c_void,\n}";
        assert_eq!(order(committed).unwrap(), ["counts", "keys", "unique", "count"]);
    }

    #[test]
    fn a_field_that_the_contract_has_not_is_an_error() {
        let committed = "pub struct spec_unique_buffers {\n    pub gone: *mut c_void,\n}";
        assert!(order(committed).unwrap_err().contains("`gone`"));
    }
}
