//! The tables: one file an operator, under the operator's own name.

mod deduplicate_topk;
mod hybrid_mtp_ngram;
mod ngram;
mod ngram_match;
mod rejection_sample;
mod topk_router;
mod unique;
