//! The designs: one file per operator that has other designs, named after the operator.

mod deduplicate_topk;
mod ngram;
mod rejection_sample;
mod topk_router;
mod unique;
