//! The examples of every operator, with results that every backend must reproduce as text. An
//! operator's options and examples are data of [`Subject`], so a new operator needs no code here.
//!
//! A snapshot has a block for each example: the options, then each argument with its dtype and its
//! rows. `-> x` is a result, and `x -> y` an argument before and after the call. A block leaves out
//! the options and inputs that are equal in the block before it.

use insta::assert_snapshot;
use spec::ops::*;
use spec::options::OptionInfo;
use spec::{Role, Stream, Supports};
use spec_conformance::plain::Plain;
use spec_conformance::{Case, Data, Failure, Layout, Ready, Subject, Tensor, find};

macro_rules! snapshots {
    ($($module:ident: $operator:ident,)+) => {$(
        #[test]
        fn $module() {
            compare::<$operator>();
        }
    )+};
}
spec::for_each_operator!(snapshots);

/// Compares the plain loop and every device with the operator's snapshot, and names the first
/// device that differs.
fn compare<O: Subject>()
where
    spec::Handle: Supports<O>,
{
    let compare = |device: &str, text: Result<String, Failure>| {
        let text = text.unwrap_or_else(|failure| panic!("on {device}: {failure}"));
        insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false }, {
            assert_snapshot!(O::NAME, text, device);
        });
    };
    compare("the plain loop", examples::<O, _>(&Plain::default()));
    for handle in crate::common::handles() {
        compare(&handle.device().to_string(), examples::<O, _>(&handle));
    }
}

/// The operator's examples, with their results on a backend.
fn examples<O: Subject, B: Supports<O>>(backend: &B) -> Result<String, Failure> {
    let mut text = String::new();
    let mut before: Vec<_> = O::ARGUMENTS.iter().map(|argument| absent(argument.name)).collect();
    for case in O::examples() {
        let entries = example(backend, &case)?;
        let has_changed = |entry: &&String| entry.contains("->") || !before.contains(entry);
        let block: String = entries.iter().filter(has_changed).map(String::as_str).collect();
        let separator = if text.is_empty() { "" } else { "\n" };
        text += &format!("{separator}{block}");
        before = entries;
    }
    Ok(text)
}

fn absent(argument: &str) -> String {
    format!("{argument}: absent\n")
}

/// The options and arguments of one example, each as one or more lines.
fn example<O: Subject, B: Supports<O>>(
    backend: &B,
    case: &Case<O>,
) -> Result<Vec<String>, Failure> {
    let mut ready = Ready::new(backend, case, Layout::PACKED)?;
    ready.enqueue(Stream::default())?;
    let results = ready.results(case)?;
    let option = |option: &OptionInfo| {
        let value = case.operator.option(option.name).expect("the operator declares the option");
        format!("{} = {value}\n", option.name)
    };
    let mut entries: Vec<_> = O::OPTIONS.iter().map(option).collect();
    // Arguments stand in the order of the declaration, whatever the example's order is.
    for name in O::ARGUMENTS.iter().map(|declared| declared.name) {
        let Some(given) = case.arguments.iter().find(|given| given.name == name) else {
            entries.push(absent(name));
            continue;
        };
        let inputs = if given.role == Role::Output { Vec::new() } else { rows(&given.tensor) };
        let outputs = match find(&results, name) {
            Some(result) if given.role != Role::Input => rows(result),
            _ => Vec::new(),
        };
        let mut entry = format!("{name}: {}", given.tensor.data.dtype());
        let count = inputs.len().max(outputs.len());
        for row in 0..count {
            entry += if count == 1 { "" } else { "\n   " };
            entry.extend(inputs.get(row).map(|text| format!(" {text}")));
            entry.extend(outputs.get(row).map(|text| format!(" -> {text}")));
        }
        entries.push(entry + "\n");
    }
    Ok(entries)
}

/// The rows of a tensor as text; a vector is one row.
fn rows(tensor: &Tensor) -> Vec<String> {
    let cols = if tensor.shape.len() == 1 { tensor.rows() } else { tensor.cols() };
    let row = |start: usize| {
        let elements: Vec<_> = (start..start + cols).map(|i| element(&tensor.data, i)).collect();
        elements.join(" ")
    };
    (0..tensor.data.len()).step_by(cols.max(1)).map(row).collect()
}

/// An element as text. An f32 has four decimals, since backends may differ by a relative 2e-5.
fn element(data: &Data, index: usize) -> String {
    match data {
        Data::F32(data) => format!("{:?}", (f64::from(data[index]) * 1e4).round() / 1e4),
        data => data.show(index),
    }
}
