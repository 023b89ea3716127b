//! Good calls of every operator with one thing spoiled: an argument of another element type, rank,
//! size or strides, a size or an option beyond its range, arguments that need or exclude each other.
//! What is expected follows from the declarations.

use std::collections::BTreeSet;

use spec::options::{Bound, DefaultValue, Kind, OptionInfo, Value};
use spec::presence::{Name, Verb};
use spec::shape::{Form, Size};
use spec::{DType, InOrder, Role, Status, TensorDesc, for_each_operator};
use spec_conformance::{Case, Layout, Rng, Subject};

/// Random calls of each operator. So many reach every optional argument.
const CASES: u64 = 300;

/// Element types, of which every argument refuses one.
const DTYPES: [DType; 3] = [DType::F32, DType::I64, DType::Bool];

/// A call: the options, and the descriptors in the order of the contract.
#[derive(Clone)]
struct Call<O> {
    operator: O,
    descs: Vec<Option<TensorDesc>>,
}

impl<O: Subject> Call<O> {
    fn random(seed: u64) -> Self {
        let case = Case::<O>::random(&mut Rng::new(seed, O::NAME));
        let mut descs = vec![None; O::ARGUMENTS.len()];
        O::each(&case.tensors(Layout::PACKED), &mut |at, desc| descs[at] = desc.copied());
        Call { operator: case.operator, descs }
    }

    fn with(&self, at: usize, desc: Option<TensorDesc>) -> Self {
        let mut call = self.clone();
        call.descs[at] = desc;
        call
    }

    fn option(&self, option: &OptionInfo, value: Value) -> Self {
        let mut call = self.clone();
        call.operator.set_option(option.name, value).unwrap();
        call
    }

    /// The call with or without an argument, or with another value or the default of an option.
    fn given(&self, name: &Name, is_given: bool) -> Self {
        let some = |at: usize| TensorDesc::new(O::ARGUMENTS[at].dtypes[0], [1]);
        match name.argument {
            Some(at) => self.with(at, is_given.then(|| some(at))),
            None => {
                let option = O::OPTIONS.iter().find(|option| option.name == name.name).unwrap();
                let default = usual(option, &self.operator);
                let other = || value(option, default.number().unwrap() + 1.0).unwrap();
                self.option(option, if is_given { other() } else { default })
            }
        }
    }

    fn has(&self, name: &Name) -> bool {
        match name.argument {
            Some(at) => self.descs[at].is_some(),
            None => {
                let option = O::OPTIONS.iter().find(|option| option.name == name.name).unwrap();
                self.operator.option(name.name).unwrap() != usual(option, &self.operator)
            }
        }
    }

    fn error(&self) -> Option<(Status, String)> {
        let tensors = O::tensors_from(&mut InOrder::new(|at| self.descs[at])).unwrap();
        let error = self.operator.plan(&tensors).err()?;
        let text = error.to_string();
        assert!(text.contains("expected"), "`{text}` does not say what was expected");
        Some((error.status(), text))
    }

    /// Checks that the call is refused because of `name`, and returns the sentence.
    fn refused(&self, name: &str, status: Status, what: impl std::fmt::Display) -> String {
        let (found, text) =
            self.error().unwrap_or_else(|| panic!("{}: `{name}`: {what} passed", O::NAME));
        assert_eq!(found, status, "{text}");
        let start = format!("{}: `{name}` is ", O::NAME);
        assert!(text.starts_with(&start), "`{text}` does not start with `{start}`");
        text
    }

    /// The form that a given argument has.
    fn form(&self, at: usize) -> Option<&'static Form> {
        let rank = self.descs[at]?.shape().len();
        O::shapes().arguments()[at].forms.iter().find(|form| form.sizes.len() == rank)
    }

    /// The first given argument with the size in its shape, and the size's place there, if it stands
    /// there alone.
    fn first(&self, name: usize) -> Option<(usize, usize)> {
        let has = |at: &usize| {
            self.form(*at)
                .is_some_and(|form| form.sizes.iter().any(|size| size.names().contains(&name)))
        };
        let at = (0..self.descs.len()).find(has)?;
        let place = self.form(at)?.sizes.iter().position(|size| *size == Size::Name(name))?;
        Some((at, place))
    }

    fn extent(&self, name: usize) -> Option<usize> {
        let (at, place) = self.first(name)?;
        Some(self.descs[at]?.shape()[place])
    }
}

/// The default of an option.
fn usual<O: Subject>(option: &OptionInfo, operator: &O) -> Value {
    match option.default {
        DefaultValue::Required => panic!("`{}` has no default", option.name),
        DefaultValue::Is(value) => value(),
        DefaultValue::As(other) => operator.option(other).unwrap(),
    }
}

/// The value of an option that is this number; `None` where the option's type does not have it.
fn value(option: &OptionInfo, number: f64) -> Option<Value> {
    match option.kind {
        Kind::Size | Kind::OptionalSize if number >= 0.0 => Some(Value::Size(number as usize)),
        Kind::I32 if number >= i32::MIN.into() && number <= i32::MAX.into() => {
            Some(Value::I32(number as i32))
        }
        Kind::F32 => Some(Value::F32(number as f32)),
        _ => None,
    }
}

/// Options beyond their ranges, and at their ends.
fn ranges<O: Subject>(call: &Call<O>) {
    for option in O::OPTIONS {
        let refused = |number: f64| {
            let Some(value) = value(option, number) else { return };
            let bad = call.option(option, value);
            bad.refused(option.name, Status::BadParam, value);
        };
        if option.kind == Kind::F32 {
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].into_iter().for_each(refused);
        }
        let Some(range) = option.range else { continue };
        let words = range.words(|end| call.operator.option(end).ok());
        let max = match range.max.map(|max| max()) {
            None => None,
            Some(Bound::Number(max)) => Some(max),
            Some(Bound::Option(end)) => call.operator.option(end.name).unwrap().number(),
        };
        refused(range.min - 1.0);
        if let Some(max) = max {
            refused(max + 1.0);
        }
        for number in [Some(range.min), max].into_iter().flatten() {
            let end = call.option(option, value(option, number).unwrap());
            // Another rule may refuse the call, since sizes depend on the option.
            let text = end.error().map_or(String::new(), |(_, text)| text);
            let is_refused =
                text.contains(&format!("`{}` is {number}, expected {words}", option.name));
            assert!(!is_refused, "{text}");
        }
    }
}

/// Calls without what an argument needs, or with what it excludes. Adds to `reached` the rules that
/// the call tests.
fn presence<O: Subject>(call: &Call<O>, reached: &mut BTreeSet<String>) {
    let needs = |name: &Name, other: &Name| {
        O::PRESENCE.iter().any(|rule| {
            rule.verb != Verb::Excludes
                && rule.subjects.contains(name)
                && rule.objects().contains(other)
        })
    };
    let all: Vec<&Name> =
        O::PRESENCE.iter().flat_map(|rule| rule.subjects.iter().chain(rule.objects())).collect();
    for rule in O::PRESENCE {
        for subject in rule.subjects.iter().filter(|subject| call.has(subject)) {
            for object in rule.objects().iter().filter(|object| *object != subject) {
                reached.insert(format!("{} {:?} {}", subject.name, rule.verb, object.name));
                let mut gone = vec![object];
                let (found, text) = if rule.verb == Verb::Excludes {
                    call.given(object, true).error()
                } else {
                    // Without the object, nothing that needs the object is left but the subject.
                    while let Some(name) = all.iter().find(|name| {
                        **name != subject
                            && !gone.contains(*name)
                            && gone.iter().any(|gone| needs(name, gone))
                    }) {
                        gone.push(name);
                    }
                    gone.iter().fold(call.clone(), |call, name| call.given(name, false)).error()
                }
                .unwrap_or_else(|| panic!("{}: {} with {rule:?}", O::NAME, object.name));
                let named = gone
                    .iter()
                    .find(|name| text.starts_with(&format!("{}: `{}` is ", O::NAME, name.name)));
                let named = named.unwrap_or_else(|| panic!("`{text}` is not about {gone:?}"));
                let is_missing = rule.verb != Verb::Excludes && named.argument.is_some();
                let status = if is_missing { Status::NullPointer } else { Status::BadParam };
                assert_eq!(found, status, "{text}");
                assert!(text.contains(&format!(", since `{}` is ", subject.name)), "{text}");
            }
        }
    }
}

/// Sizes beyond their ranges, and sizes that differ once the argument is absent that sets them free.
fn sizes<O: Subject>(call: &Call<O>, reached: &mut BTreeSet<String>) {
    for rule in O::shapes().rules() {
        let Some((at, place)) = call.first(rule.place) else { continue };
        let name = O::ARGUMENTS[at].name;
        let Some(value) = &rule.value else {
            reached.insert(format!("{} in range", rule.rule.name));
            for extent in [rule.rule.min.checked_sub(1), rule.rule.max.checked_add(1)] {
                let mut shape = call.descs[at].unwrap().shape().to_vec();
                let Some(extent) = extent else { continue };
                shape[place] = extent;
                let spoiled = TensorDesc::from_shape(call.descs[at].unwrap().dtype(), &shape);
                let bad = call.with(at, Some(spoiled.unwrap()));
                bad.refused(name, Status::BadTensorShape, spoiled.unwrap());
            }
            continue;
        };
        if let ([(freeing, false)], Size::Name(meant)) = (&*rule.conditions, value)
            && call.descs[*freeing].is_some()
            && call.extent(*meant) != call.extent(rule.place)
        {
            reached.insert(format!("{} defined", rule.rule.name));
            let status = call.with(*freeing, None).error().map(|(status, _)| status);
            assert_eq!(status, Some(Status::BadTensorShape), "{}: {}", O::NAME, rule.rule.name);
        }
    }
}

/// Whether any size will do: each name in the size stands in the shape of no other argument, and in
/// the definition that an argument brings of no size that does.
fn is_free<O: Subject>(call: &Call<O>, size: &Size, at: usize) -> bool {
    let shapes = O::shapes();
    let others = || {
        let others = shapes.arguments().iter().enumerate();
        let others = others.filter(|&(other, _)| other != at && call.descs[other].is_some());
        others.flat_map(|(_, shapes)| shapes.sizes())
    };
    let defines = |name: &usize| {
        shapes.rules().iter().any(|rule| {
            let holds = |&(at, is_given): &(usize, bool)| call.descs[at].is_some() == is_given;
            rule.value.as_ref().is_some_and(|value| value.names().contains(name))
                // `tokens * k` may be the same for another `k`.
                && !rule.conditions.is_empty()
                && rule.conditions.iter().all(holds)
                && others().any(|other| other.names().contains(&rule.place))
        })
    };
    match size {
        Size::Number(_) => false,
        // `ceil(vocab / 32)` may be the same for another `vocab`.
        Size::Name(name) => !others().any(|other| other == size) && !defines(name),
        _ => !others().any(|other| other.names().iter().any(|name| size.names().contains(name))),
    }
}

/// Arguments of another element type, rank, size, or with other strides.
fn arguments<O: Subject>(call: &Call<O>, reached: &mut BTreeSet<String>) {
    let shapes = O::shapes();
    for (at, argument) in O::ARGUMENTS.iter().enumerate() {
        let Some(desc) = call.descs[at] else { continue };
        reached.insert(argument.name.to_owned());
        let refused = |spoiled: TensorDesc, status| {
            call.with(at, Some(spoiled)).refused(argument.name, status, spoiled);
        };
        let shape = desc.shape().to_vec();
        let reshaped = |shape: &[usize]| TensorDesc::from_shape(desc.dtype(), shape).unwrap();
        let other = DTYPES.iter().find(|dtype| !argument.dtypes.contains(dtype));
        refused(TensorDesc::from_shape(*other.unwrap(), &shape).unwrap(), Status::BadTensorDtype);
        let of_rank =
            |rank| -> Vec<usize> { shape.iter().copied().chain([1, 1]).take(rank).collect() };
        // `[batch, 1]` may be a vector, so a vector gets two dimensions more.
        let more = of_rank(3.max(shape.len() + 1));
        refused(reshaped(&more), Status::BadTensorShape);
        let all = &shapes.arguments()[at];
        if all.like.is_some_and(|like| call.descs[like].is_some()) {
            for form in all.forms.iter().filter(|form| form.sizes.len() != shape.len()) {
                refused(reshaped(&of_rank(form.sizes.len())), Status::BadTensorShape);
            }
        }
        for (place, size) in call.form(at).unwrap().sizes.iter().enumerate() {
            let mut longer = shape.clone();
            longer[place] += 1;
            let spoiled = reshaped(&longer);
            match call.with(at, Some(spoiled)).error() {
                // The first argument with a size says how large it is: another one differs then.
                Some((found, text)) => {
                    let known = [Status::BadTensorShape, Status::BadParam].contains(&found);
                    assert!(known, "{text}");
                }
                None => {
                    let free = is_free(call, size, at);
                    let by_rule = all.forms.len() > 1;
                    let name = argument.name;
                    assert!(free || by_rule, "{}: {spoiled} passed as `{name}`", O::NAME);
                }
            }
        }
        match *shape {
            [len] if len > 1 => {
                let apart = TensorDesc::with_strides(desc.dtype(), [len], [2]);
                refused(apart, Status::BadTensorStrides);
            }
            [rows, cols] if cols > 1 => {
                let strided = |strides| {
                    let spoiled = TensorDesc::with_strides(desc.dtype(), [rows, cols], strides);
                    refused(spoiled, Status::BadTensorStrides);
                };
                strided([2 * cols as isize, 2]);
                if rows > 1 {
                    strided([-8192, 1]);
                    if argument.role != Role::Input {
                        strided([cols as isize - 1, 1]);
                    }
                }
            }
            _ => {}
        }
    }
}

/// Everything that a declaration says, each as `reached` names it.
fn declared<O: Subject>() -> BTreeSet<String> {
    let mut all: BTreeSet<_> =
        O::ARGUMENTS.iter().map(|argument| argument.name.to_owned()).collect();
    for rule in O::PRESENCE {
        let pairs =
            rule.subjects.iter().flat_map(|name| rule.objects().iter().map(move |of| (name, of)));
        let apart = pairs.filter(|(subject, object)| subject != object);
        all.extend(apart.map(|(s, o)| format!("{} {:?} {}", s.name, rule.verb, o.name)));
    }
    let shapes = O::shapes();
    for rule in shapes.rules() {
        let has = |size: &&Size| size.names().contains(&rule.place);
        let first = shapes.arguments().iter().find_map(|shapes| shapes.sizes().find(has));
        match rule.value {
            None if first == Some(&Size::Name(rule.place)) => {
                all.insert(format!("{} in range", rule.rule.name));
            }
            Some(Size::Name(_)) if rule.rule.without.is_some() => {
                all.insert(format!("{} defined", rule.rule.name));
            }
            _ => {}
        }
    }
    all
}

fn spoil<O: Subject>() {
    let mut reached = BTreeSet::new();
    for seed in 0..CASES {
        let call = Call::<O>::random(seed);
        assert_eq!(call.error(), None, "{}", O::NAME);
        ranges(&call);
        presence(&call, &mut reached);
        sizes(&call, &mut reached);
        arguments(&call, &mut reached);
    }
    let missed: Vec<_> = declared::<O>().difference(&reached).cloned().collect();
    assert!(missed.is_empty(), "{}: no call of {CASES} reaches {missed:?}", O::NAME);
}

#[test]
fn what_a_declaration_forbids_is_refused() {
    macro_rules! each {
        ($($module:ident: $operator:ident,)+) => { $( spoil::<spec::ops::$operator>(); )+ };
    }
    for_each_operator!(each);
}
