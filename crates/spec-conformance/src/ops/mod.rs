//! The implementation of [`Subject`](crate::Subject) for each operator: its plain loop, its golden
//! vectors, and its random cases.

mod ngram;
mod texts;

macro_rules! modules {
    ($($module:ident: $operator:ident,)+) => { $( mod $module; )+ };
}

spec_core::for_each_operator!(modules);
