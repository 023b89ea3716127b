//! The implementation of [`Subject`](crate::Subject) for each operator: its plain loop, its golden
//! vectors, and its random cases.

mod adjust_logits;
mod append_tokens;
mod deduplicate_topk;
mod draft_tree;
mod hot_slots;
mod hybrid_mtp_ngram;
mod indexer_topk;
mod moe_align;
mod ngram;
mod ngram_match;
mod prompt_lookup;
mod rejection_sample;
mod sample_logits;
mod suffix_lookup;
mod texts;
mod topk_router;
mod tree_verify;
mod unique;
