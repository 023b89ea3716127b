//! The operators: one file each, under the operator's own name.

use crate::options::OptionInfo;
use crate::presence::Presence;
use crate::shape::{Shapes, Size};
use crate::{Argument, Role, Signature};

/// Calls a macro with the list of operators, each as `module: Type`. Further tokens that the
/// caller gives come before the list. This is the only list of operators: all code that has
/// a part for each operator is made by a macro that is called in this way.
///
/// ```
/// macro_rules! names {
///     ($($module:ident: $operator:ident,)+) => {
///         [$( <spec::ops::$operator as spec::Signature>::NAME ),+]
///     };
/// }
/// let names = spec::for_each_operator!(names);
/// assert!(names.contains(&"topk_router"));
/// ```
#[macro_export]
macro_rules! for_each_operator {
    ($then:ident $($before:tt)*) => {
        $then! {
            $($before)*
            topk_router: TopkRouter,
            deduplicate_topk: DeduplicateTopk,
            rejection_sample: RejectionSample,
            adjust_logits: AdjustLogits,
            sample_logits: SampleLogits,
            ngram_match: NgramMatch,
            hybrid_mtp_ngram: HybridMtpNgram,
            prompt_lookup: PromptLookup,
            suffix_lookup: SuffixLookup,
            draft_tree: DraftTree,
            tree_verify: TreeVerify,
            append_tokens: AppendTokens,
            moe_align: MoeAlign,
            indexer_topk: IndexerTopk,
            hot_slots: HotSlots,
            unique: Unique,
        }
    };
}

/// The description of an operator, for programs that do not name the operator's type.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Description {
    /// The operator's name: `topk_router`.
    pub name: &'static str,
    /// The name of the operator's type in Rust: `TopkRouter`.
    pub type_name: &'static str,
    /// What the operator does; the first paragraph is a summary.
    pub doc: &'static str,
    /// The operator's options.
    pub options: &'static [OptionInfo],
    /// The operator's arguments.
    pub arguments: &'static [Argument],
    /// Which arguments and options need or exclude each other.
    pub presence: &'static [Presence],
    /// The shapes of the arguments, parsed.
    pub shapes: fn() -> &'static Shapes,
}

impl Description {
    /// The sizes of outputs that neither an option nor another argument has, such as the number of
    /// draws of a row: a caller who does not make the outputs says them ([`outputs`](crate::sizes::outputs)).
    pub fn extents(&self) -> Vec<&'static str> {
        let shapes = (self.shapes)();
        let is_read = |argument: &Argument| argument.role != Role::Output;
        let inputs = || shapes.arguments().iter().zip(self.arguments).filter(|(_, of)| is_read(of));
        let is_extent = |place: usize| {
            let name = shapes.names()[place];
            !self.options.iter().any(|option| option.name == name)
                && !shapes.rules().iter().any(|rule| rule.place == place && rule.value.is_some())
                && !inputs().any(|(all, _)| all.sizes().any(|size| size.names().contains(&place)))
        };
        let outputs = shapes.arguments().iter().zip(self.arguments).filter(|(_, of)| !is_read(of));
        let mut found = Vec::new();
        let places = outputs.flat_map(|(all, _)| all.sizes()).flat_map(Size::names);
        for place in places.filter(|&place| is_extent(place)) {
            if !found.contains(&shapes.names()[place]) {
                found.push(shapes.names()[place]);
            }
        }
        found
    }
}

macro_rules! list {
    ($($module:ident: $operator:ident,)+) => {
        $(
            pub mod $module;
            pub use $module::$operator;
        )+

        /// The descriptions of all operators.
        pub const ALL: &[Description] = &[$(
            Description {
                name: <$operator as Signature>::NAME,
                type_name: stringify!($operator),
                doc: <$operator as Signature>::DOC,
                options: <$operator as Signature>::OPTIONS,
                arguments: <$operator as Signature>::ARGUMENTS,
                presence: <$operator as Signature>::PRESENCE,
                shapes: <$operator as Signature>::shapes,
            }
        ),+];
    };
}

for_each_operator!(list);

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a call that passes `one` in the place of `other` is accepted: element type, rank
    /// and size do not tell the two apart.
    fn change_places(shapes: &Shapes, one: usize, other: usize, of: &[Argument]) -> bool {
        let first = |at: usize| &shapes.arguments()[at].forms[0].sizes;
        let is_one = |at: usize| *first(at) == [Size::Number(1)];
        (of[one].role == Role::Input) == (of[other].role == Role::Input)
            && of[one].dtypes.iter().any(|dtype| of[other].dtypes.contains(dtype))
            && first(one).len() == first(other).len()
            && is_one(one) == is_one(other)
    }

    #[test]
    fn required_arguments_that_could_change_places_are_passed_by_name() {
        macro_rules! check {
            ($($module:ident: $operator:ident,)+) => {$(
                let (all, shapes) = ($operator::ARGUMENTS, $operator::shapes());
                let required: Vec<usize> = (0..all.len()).filter(|at| !all[*at].optional).collect();
                let confused = required.iter().enumerate().any(|(at, one)| {
                    required[at + 1..].iter().any(|other| change_places(shapes, *one, *other, all))
                });
                assert_eq!($operator::BY_NAME, confused, "{}", $operator::NAME);
            )+};
        }
        for_each_operator!(check);
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let listed = ALL.iter().any(|operator| operator.name == name);
            assert!(listed || name == "mod", "{name} is not in `for_each_operator!`");
        }
    }

    #[test]
    fn an_option_is_read_as_it_was_set() {
        macro_rules! check {
            ($($module:ident: $operator:ident,)+) => {$(
                let usual = $operator::usual();
                for option in $operator::OPTIONS {
                    let value = usual.option(option.name).unwrap();
                    assert_eq!(option.kind.parse(&value.to_string()), Some(value));
                    let mut other = usual;
                    other.set_text(option.name, &value.to_string()).unwrap();
                    assert_eq!(other, usual);
                    assert!(other.set_text(option.name, "?").is_err());
                }
                let error = usual.option("nosuch").unwrap_err().to_string();
                assert!($operator::OPTIONS.iter().all(|option| error.contains(option.name)));
            )+};
        }
        for_each_operator!(check);
    }
}
