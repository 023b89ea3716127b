//! `cargo xtask bindings`: writes `spec.h` from the declarations of the operators.
//!
//! cbindgen writes the part of the header that concerns no single operator, from the Rust code
//! of libspec. This module writes the structs, constants and functions of the operators, from
//! [`spec_core::ops::ALL`]. Fields stand in the order of `abi.txt`; new fields are appended to
//! `abi.txt` first.

use std::fmt::Write as _;

use spec_core::ops::{ALL, Description};
use spec_core::options::{ChoiceInfo, DefaultValue, Kind, OptionInfo};
use spec_core::{Argument, Role};

use crate::{Result, read, root, write};
use abi::Line;

/// The module of libspec that reads the order of fields.
#[path = "../../crates/spec-c/src/abi.rs"]
mod abi;

const CRATE: &str = "crates/spec-c";
const ABI: &str = "crates/spec-c/abi.txt";
const HEADER: &str = "crates/spec-c/include/spec.h";

/// The end of a header by cbindgen. The part of the operators goes before this text.
const END: &str = "#ifdef __cplusplus\n}  // extern \"C\"";

const ABI_HEAD: &str = "\
# The order of the fields of C's structs, and of the values that C has numbers for. `cargo xtask
# bindings` appends what is new; nothing is ever moved or removed, so that a program that was
# compiled with an older header finds each field where that header had it.
";

const PRESET: &str = r#"
/**
 * Sets the parameters of topk_router to those of a published model: "DeepSeek-V3",
 * "Kimi K2", "Mixtral" and so on. `experts` becomes its number of experts and
 * `has_bias` 1 where it has a correction bias, else 0; both may be NULL.
 *
 * # Errors
 * Status 3 for a model that is not known, with the names of those that are, or a
 * `size` that is none; 4 for a null pointer.
 *
 * # Safety
 * `model` is text that ends with a zero; `params` has its `size` set.
 */
spec_status spec_topk_router_preset(const char *model,
                                    spec_topk_router_params *params,
                                    size_t *experts,
                                    uint32_t *has_bias);
"#;

/// Runs the task with the words after its name.
pub fn run(arguments: &[&str]) -> Result<()> {
    let check = match arguments {
        [] => false,
        ["--check"] => true,
        other => return Err(format!("expected nothing or --check, not {other:?}")),
    };
    let known = std::fs::read_to_string(root().join(ABI)).unwrap_or_else(|_| ABI_HEAD.to_owned());
    let abi = grown(&known);
    let header = header(&abi)?;
    for (name, text) in [(ABI, &abi), (HEADER, &header)] {
        if !check {
            write(&root().join(name), text.as_bytes())?;
        } else if read(&root().join(name))? != text.as_bytes() {
            return Err(format!("{name} is not what the contract gives; run cargo xtask bindings"));
        }
    }
    let what = if check { "are what the contract gives" } else { "are written" };
    println!("{HEADER} and {ABI} {what}: {} operators", ALL.len());
    Ok(())
}

/// The text of `abi.txt` with missing fields and values appended.
fn grown(known: &str) -> String {
    let mut text = known.to_owned();
    let mut add = |kind: Line, of: &str, name: &str| {
        if abi::names(&text, kind, of).all(|known| known != name) {
            text += &kind.write(of, name);
        }
    };
    for operator in ALL {
        operator.options.iter().for_each(|option| add(Line::Option, operator.name, option.name));
        for argument in operator.arguments {
            add(Line::Argument, operator.name, argument.name);
        }
    }
    for choice in choices() {
        choice.values.iter().for_each(|value| add(Line::Choice, choice.name, value.name));
    }
    text
}

/// The lists of values of all options, each list once.
fn choices() -> Vec<&'static ChoiceInfo> {
    let mut choices: Vec<&ChoiceInfo> = Vec::new();
    for option in ALL.iter().flat_map(|operator| operator.options) {
        if let Kind::Choice(choice) = option.kind
            && choices.iter().all(|known| known.name != choice.name)
        {
            choices.push(choice);
        }
    }
    choices
}

/// The whole header of libspec.
fn header(abi: &str) -> Result<String> {
    let folder = root().join(CRATE);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"))?;
    let mut builder = cbindgen::Builder::new().with_config(config);
    // The files are given one by one, because cbindgen would sort the modules of lib.rs by
    // name.
    for source in ["status", "tensor", "device", "memory", "corpus", "operator"] {
        builder = builder.with_src(folder.join("src").join(source).with_extension("rs"));
    }
    let bindings = builder.generate().map_err(|e| e.to_string())?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    let header = String::from_utf8(header).map_err(|e| e.to_string())?;
    let at = header.rfind(END).ok_or("cbindgen ends a header in another way than before")?;
    let mut operators = String::new();
    choices().into_iter().for_each(|choice| constants(&mut operators, choice));
    for operator in ALL {
        structs(&mut operators, operator, abi)?;
        functions(&mut operators, operator.name);
        if operator.name == "topk_router" {
            operators += PRESET;
        }
    }
    Ok(format!("{}{}\n{}", &header[..at], operators.trim_start(), &header[at..]))
}

/// Appends a C comment, each line after `indent` spaces.
fn comment(text: &mut String, indent: usize, lines: &str) {
    let indent = " ".repeat(indent);
    _ = writeln!(text, "{indent}/**");
    for line in lines.trim_end().lines() {
        // A `*/` within the text would end the C comment.
        let line = line.strip_prefix(' ').unwrap_or(line).replace("*/", "* /");
        _ = writeln!(text, "{}", format!("{indent} * {line}").trim_end());
    }
    _ = writeln!(text, "{indent} */");
}

/// Appends the C constants of a list of values.
fn constants(text: &mut String, choice: &ChoiceInfo) {
    for (number, value) in choice.values.iter().enumerate() {
        let list = choice.doc.trim_end().trim_start();
        text.push('\n');
        comment(text, 0, &format!("{list}\n{}", value.doc.trim_end()));
        _ = writeln!(text, "#define {} {number}", abi::constant(choice.name, value.name));
    }
}

/// Appends the operator's structs of parameters, tensors and buffers.
fn structs(text: &mut String, operator: &Description, abi: &str) -> Result<()> {
    let name = operator.name;
    let places = |kind, contract: Vec<&str>| abi::order(abi, kind, name, &contract);
    let options = places(Line::Option, operator.options.iter().map(|o| o.name).collect())?;
    let arguments = places(Line::Argument, operator.arguments.iter().map(|a| a.name).collect())?;

    open(text, name, "params", &format!("The parameters of {name}."));
    for option in options.into_iter().map(|place| &operator.options[place]) {
        comment(text, 4, &meaning(option));
        _ = writeln!(text, "    {} {};", c_type(option.kind), option.name);
    }
    close(text, name, "params");
    open(text, name, "tensors", &format!("Descriptors of the arguments of {name}."));
    for argument in arguments.iter().map(|&place| &operator.arguments[place]) {
        comment(text, 4, &format!("{}\n{}", facts(argument), argument.doc));
        _ = writeln!(text, "    spec_tensor {};", argument.name);
    }
    close(text, name, "tensors");
    let memory = format!("The memory of the tensors that spec_{name}_tensors describes.");
    open(text, name, "buffers", &memory);
    for argument in arguments.iter().map(|&place| &operator.arguments[place]) {
        let constant = if argument.is_written() { "" } else { "const " };
        _ = writeln!(text, "    {constant}void *{};", argument.name);
    }
    close(text, name, "buffers");

    text.push('\n');
    let arguments: Vec<_> =
        operator.arguments.iter().map(|a| format!("- `{}` {}", a.name, facts(a))).collect();
    let summary = operator.doc.split("\n\n").next().unwrap_or_default().trim();
    let summary = summary.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    comment(
        text,
        0,
        &format!(
            "{summary}\n\n\
             Creates the operator for these tensors on the handle's device: checks everything\n\
             that they and the parameters can show. `descriptor` becomes yours, to be given to\n\
             `spec_destroy`, or NULL where the call fails.\n\n{}\n\n\
             # Errors\n\
             Status 3, 4, 10, 11 or 12 for what is not as it should be, 2 where the backend\n\
             lacks it, 1 or 8 where the device cannot run it.\n\n\
             # Safety\n\
             `handle` is from `spec_open`, the structs have their `size` set, `descriptor` is a\n\
             place.",
            arguments.join("\n")
        ),
    );
    Ok(())
}

fn open(text: &mut String, name: &str, suffix: &str, about: &str) {
    text.push('\n');
    comment(text, 0, about);
    text.push_str("typedef struct {\n");
    comment(text, 4, &format!("sizeof(spec_{name}_{suffix})."));
    text.push_str("    size_t size;\n");
}

fn close(text: &mut String, name: &str, suffix: &str) {
    _ = writeln!(text, "}} spec_{name}_{suffix};");
}

/// Appends the operator's functions. The comment of the first function was appended before.
fn functions(text: &mut String, name: &str) {
    _ = writeln!(
        text,
        "spec_status spec_{name}_create(const spec_handle *handle,\n\
         {0}const spec_{name}_params *params,\n\
         {0}const spec_{name}_tensors *tensors,\n\
         {0}spec_descriptor **descriptor);\n",
        " ".repeat(format!("spec_status spec_{name}_create(").len()),
    );
    comment(
        text,
        0,
        &format!(
            "Sets the parameters of {name} to their defaults, and those that a caller must give\n\
             to 0.\n\n\
             # Errors\n\
             Status 4 for a null pointer, 3 for a `size` that is none.\n\n\
             # Safety\n\
             `params` has its `size` set."
        ),
    );
    _ = writeln!(text, "spec_status spec_{name}_defaults(spec_{name}_params *params);\n");
    comment(
        text,
        0,
        &format!(
            "Enqueues {name} on `stream`, and does nothing else.\n\n\
             # Errors\n\
             Status 3, 4 or 5 for a descriptor, buffer or stream that is none or is not aligned,\n\
             13 for a workspace that is too small, 1 where the device refuses. Bad values in the\n\
             data are no errors: they set `flags`.\n\n\
             # Safety\n\
             `descriptor` is from `spec_{name}_create`, `workspace` has `workspace_size` bytes,\n\
             and each buffer as many elements as its tensor spans, until the work is done."
        ),
    );
    _ = writeln!(
        text,
        "spec_status spec_{name}_calculate(const spec_descriptor *descriptor,\n\
         {0}void *workspace,\n\
         {0}size_t workspace_size,\n\
         {0}const spec_{name}_buffers *buffers,\n\
         {0}void *stream);",
        " ".repeat(format!("spec_status spec_{name}_calculate(").len()),
    );
}

/// The C type of a parameter. Each type has 8 bytes, so that no struct has padding.
fn c_type(kind: Kind) -> &'static str {
    match kind {
        Kind::I32 => "int64_t",
        Kind::F32 => "double",
        Kind::Size | Kind::OptionalSize => "size_t",
        _ => "uint64_t",
    }
}

/// The description of a parameter, and its default.
fn meaning(option: &OptionInfo) -> String {
    let mut text = option.doc.trim_end().to_owned();
    match option.kind {
        Kind::Bool => text += "\n1 for yes, 0 for no.",
        Kind::OptionalSize => text += "\n0: none.",
        Kind::Choice(choice) => {
            let names = choice.values.iter().map(|value| abi::constant(choice.name, value.name));
            text += &format!("\n{}.", names.collect::<Vec<_>>().join(" or "));
        }
        _ => {}
    }
    text += &match option.default {
        DefaultValue::Is(value) => match (option.kind, value()) {
            (Kind::Choice(choice), value) => {
                format!("\nDefault: {}.", abi::constant(choice.name, &value.to_string()))
            }
            (_, value) => format!("\nDefault: {value}."),
        },
        _ => "\nIt has no default.".to_owned(),
    };
    text
}

/// The shape, the dtypes and the role of an argument, as one line.
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
