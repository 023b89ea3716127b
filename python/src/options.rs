//! Options: an operator's parameters from Python's values, under their fields' names.

use pyo3::prelude::*;
use spec::ops::prompt_lookup::Occurrence;
use spec::ops::rejection_sample::{Acceptance, Recovery};
use spec::ops::topk_router::{GroupScore, Masked, Scoring, Select};
use spec::ops::{
    DeduplicateTopk, HybridMtpNgram, IndexerTopk, MoeAlign, NgramMatch, PromptLookup,
    RejectionSample, SampleLogits, TopkRouter, TreeVerify, Unique,
};
use spec::{Result, Signature, Status};

use crate::call::Create;
use crate::error;

/// A field of an operator's parameters.
trait Field: Sized {
    /// What it may be, in words.
    fn expected() -> String;

    /// Its value, `None` where it is of another kind.
    fn read(value: &Bound<'_, PyAny>) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty: $words:literal),+) => {$(
        impl Field for $number {
            fn expected() -> String {
                $words.to_owned()
            }

            fn read(value: &Bound<'_, PyAny>) -> Option<Self> {
                value.extract().ok()
            }
        }
    )+};
}

numbers! {
    usize: "a whole number that is not negative",
    i32: "a whole number of 32 bits",
    f32: "a number",
    bool: "True or False"
}

impl<T: Field> Field for Option<T> {
    fn expected() -> String {
        format!("{} or None", T::expected())
    }

    fn read(value: &Bound<'_, PyAny>) -> Option<Self> {
        if value.is_none() { Some(None) } else { T::read(value).map(Some) }
    }
}

macro_rules! choices {
    ($($choice:ident { $($name:literal: $variant:ident),+ $(,)? })+) => {$(
        impl Field for $choice {
            fn expected() -> String {
                [$(concat!("\"", $name, "\"")),+].join(" or ")
            }

            fn read(value: &Bound<'_, PyAny>) -> Option<Self> {
                match value.extract::<String>().ok()?.as_str() {
                    $($name => Some($choice::$variant),)+
                    _ => None,
                }
            }
        }
    )+};
}

choices! {
    Scoring { "sigmoid": Sigmoid, "softmax": Softmax, "sqrt_softplus": SqrtSoftplus }
    Select { "score": Score, "logit": Logit }
    GroupScore { "top2_sum": Top2Sum, "max": Max }
    Masked { "zero": Zero, "excluded": Excluded }
    Acceptance { "probabilistic": Probabilistic, "greedy": Greedy }
    Recovery { "sample": Sample, "argmax": Argmax }
    Occurrence { "first": First, "last": Last }
}

/// Values in the order of the fields.
struct Values<'a, 'py> {
    operator: &'static str,
    values: std::slice::Iter<'a, Bound<'py, PyAny>>,
}

impl Values<'_, '_> {
    fn next<T: Field>(&mut self, field: &'static str) -> Result<T> {
        let value = self.values.next();
        value.and_then(T::read).ok_or_else(|| {
            let given = value.map_or_else(|| "absent".to_owned(), ToString::to_string);
            error::argument(Status::BadParam, self.operator, field, given, T::expected())
        })
    }

    /// The operator, after its last field.
    fn end<O>(&self, operator: O) -> O {
        debug_assert_eq!(self.values.len(), 0, "{} has fewer fields", self.operator);
        operator
    }
}

/// Makes an operator of the values of its fields.
pub type Make = fn(&[Bound<'_, PyAny>]) -> Result<Box<dyn Create>>;

/// What is known of an operator before it has parameters.
pub struct Listed {
    /// Its name.
    pub name: &'static str,
    /// Its parameters, in the order in which they are passed here.
    pub options: &'static [&'static str],
    /// What it takes.
    pub arguments: &'static [spec::Argument],
    /// It, with parameters.
    pub make: Make,
}

/// The operators with their parameters' fields: the one list of them.
macro_rules! operators {
    ($($operator:ident { $($field:ident),* })+) => {
        /// Every operator.
        pub static OPERATORS: &[Listed] = &[$(
            Listed {
                name: <$operator as Signature>::NAME,
                options: &[$(stringify!($field)),*],
                arguments: <$operator as Signature>::ARGUMENTS,
                make: |values| {
                    #[allow(unused_mut, reason = "an operator without options")]
                    let mut values = Values { operator: <$operator as Signature>::NAME, values: values.iter() };
                    let operator = $operator { $($field: values.next(stringify!($field))?,)* };
                    Ok(Box::new(values.end(operator)))
                },
            },
        )+];
    };
}

operators! {
    TopkRouter {
        scoring, select, groups, topk_groups, group_score, masked, topk, renormalize, scale,
        shared_experts, shared_weight, physical_experts
    }
    DeduplicateTopk { mtp_step }
    RejectionSample { max_spec_len, acceptance, recovery }
    NgramMatch { max_ngram_size, token_threshold }
    HybridMtpNgram { max_ngram_size, min_ngram_size, max_draft_tokens, token_threshold }
    PromptLookup { min_ngram, max_ngram, max_draft, occurrence }
    SampleLogits { min_p_first }
    TreeVerify { max_depth }
    MoeAlign { experts, local_experts, block_size }
    IndexerTopk { k }
    Unique {}
}
