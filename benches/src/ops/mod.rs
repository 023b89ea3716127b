//! The tables of rows: one file per operator, named after the operator.

mod ngram;

macro_rules! modules {
    ($($module:ident: $operator:ident,)+) => { $( mod $module; )+ };
}

spec_core::for_each_operator!(modules);
