//! What is particular to an operator: its arguments, its golden vectors, and
//! how to make a random case of it.

mod deduplicate_topk;
mod hybrid_mtp_ngram;
mod ngram;
mod ngram_match;
mod rejection_sample;
mod topk_router;
mod unique;
