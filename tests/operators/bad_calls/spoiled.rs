//! Good calls of every operator with one argument spoiled: another element type, another rank,
//! another size, other strides. What is expected follows from the declarations.

use std::collections::BTreeSet;

use spec::shape::{Alternatives, Size};
use spec::{DType, InOrder, Operator, Role, Status, TensorDesc, for_each_operator};
use spec_conformance::{Case, Layout, Rng, Subject};

/// Random calls of each operator. So many reach every optional argument.
const CASES: u64 = 300;

/// Element types, of which every argument refuses one.
const DTYPES: [DType; 3] = [DType::F32, DType::I64, DType::Bool];

/// The error of a call with `spoiled` in the place of an argument's descriptor.
fn error<O: Operator>(
    operator: &O,
    descs: &[Option<TensorDesc>],
    at: usize,
    spoiled: TensorDesc,
) -> Option<(Status, String)> {
    let mut descs = descs.to_vec();
    descs[at] = Some(spoiled);
    let tensors = O::tensors_from(&mut InOrder::new(|at| descs[at])).unwrap();
    let error = operator.plan(&tensors).err()?;
    let text = error.to_string();
    assert!(text.contains("expected"), "`{text}` does not say what was expected");
    Some((error.status(), text))
}

/// Whether any size will do: each name in the size stands in the shape of no other argument.
fn is_free(size: &Size, at: usize, all: &[Alternatives], given: &[Option<TensorDesc>]) -> bool {
    let others = all.iter().enumerate().filter(|&(other, _)| other != at && given[other].is_some());
    let mut others = others.flat_map(|(_, shapes)| shapes.iter().flatten());
    match size {
        Size::Number(_) => false,
        // `ceil(vocab / 32)` may be the same for another `vocab`.
        Size::Name(_) => !others.any(|other| other == size),
        _ => !others.any(|other| other.names().iter().any(|name| size.names().contains(name))),
    }
}

fn spoil<O: Subject>() {
    let (mut reached, shapes) = (BTreeSet::new(), O::shapes());
    for seed in 0..CASES {
        let case = Case::<O>::random(&mut Rng::new(seed, O::NAME));
        let mut good = vec![None; O::ARGUMENTS.len()];
        O::each(&case.tensors(Layout::PACKED), &mut |at, desc| good[at] = desc.copied());
        for (at, argument) in O::ARGUMENTS.iter().enumerate() {
            let Some(desc) = good[at] else { continue };
            reached.insert(argument.name);
            let refused = |spoiled: TensorDesc, status| {
                let (found, text) =
                    error(&case.operator, &good, at, spoiled).unwrap_or_else(|| {
                        panic!("{}: `{}`: {spoiled} passed", O::NAME, argument.name)
                    });
                assert_eq!(found, status, "{text}");
                let start = format!("{}: `{}` is ", O::NAME, argument.name);
                assert!(text.starts_with(&start), "`{text}` does not start with `{start}`");
            };
            let shape = desc.shape().to_vec();
            let other = DTYPES.iter().find(|dtype| !argument.dtypes.contains(dtype));
            refused(
                TensorDesc::from_shape(*other.unwrap(), &shape).unwrap(),
                Status::BadTensorDtype,
            );
            // `[batch, 1]` may be a vector, so a vector gets two dimensions more.
            let rank = 3.max(shape.len() + 1);
            let more: Vec<usize> = shape.iter().copied().chain([1, 1]).take(rank).collect();
            refused(TensorDesc::from_shape(desc.dtype(), &more).unwrap(), Status::BadTensorShape);
            let form =
                shapes.arguments()[at].iter().find(|form| form.len() == shape.len()).unwrap();
            for (place, size) in form.iter().enumerate() {
                let mut longer = shape.clone();
                longer[place] += 1;
                let spoiled = TensorDesc::from_shape(desc.dtype(), &longer).unwrap();
                match error(&case.operator, &good, at, spoiled) {
                    // The first argument with a size says how large it is: another one differs then.
                    Some((found, text)) => {
                        let known = [Status::BadTensorShape, Status::BadParam].contains(&found);
                        assert!(known, "{text}");
                    }
                    None => {
                        let free = is_free(size, at, shapes.arguments(), &good);
                        let by_rule = shapes.arguments()[at].len() > 1;
                        assert!(
                            free || by_rule,
                            "{}: {spoiled} passed as `{}`",
                            O::NAME,
                            argument.name
                        );
                    }
                }
            }
            match *shape {
                [len] if len > 1 => {
                    let apart = TensorDesc::with_strides(desc.dtype(), [len], [2]);
                    refused(apart, Status::BadTensorStrides);
                }
                [rows, cols] if cols > 1 => {
                    let pairs = [2 * cols as isize, 2];
                    let apart = TensorDesc::with_strides(desc.dtype(), [rows, cols], pairs);
                    refused(apart, Status::BadTensorStrides);
                    let overlap = [cols as isize - 1, 1];
                    if rows > 1 && argument.role != Role::Input {
                        let spoiled = TensorDesc::with_strides(desc.dtype(), [rows, cols], overlap);
                        refused(spoiled, Status::BadTensorStrides);
                    }
                    let back = TensorDesc::with_strides(desc.dtype(), [rows, cols], [-8192, 1]);
                    if rows > 1 {
                        refused(back, Status::BadTensorStrides);
                    }
                }
                _ => {}
            }
        }
    }
    let all: BTreeSet<_> = O::ARGUMENTS.iter().map(|argument| argument.name).collect();
    assert_eq!(reached, all, "arguments of {} that {CASES} calls reach", O::NAME);
}

#[test]
fn spoiled_arguments_are_refused() {
    macro_rules! each {
        ($($module:ident: $operator:ident,)+) => { $( spoil::<spec::ops::$operator>(); )+ };
    }
    for_each_operator!(each);
}
