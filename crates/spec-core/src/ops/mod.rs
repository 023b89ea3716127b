//! The operators: one file each, under the operator's own name.

pub mod deduplicate_topk;
pub mod hybrid_mtp_ngram;
pub mod indexer_topk;
pub mod moe_align;
pub mod ngram_match;
pub mod prompt_lookup;
pub mod rejection_sample;
pub mod sample_logits;
pub mod topk_router;
pub mod tree_verify;
pub mod unique;

pub use deduplicate_topk::DeduplicateTopk;
pub use hybrid_mtp_ngram::HybridMtpNgram;
pub use indexer_topk::IndexerTopk;
pub use moe_align::MoeAlign;
pub use ngram_match::NgramMatch;
pub use prompt_lookup::PromptLookup;
pub use rejection_sample::RejectionSample;
pub use sample_logits::SampleLogits;
pub use topk_router::TopkRouter;
pub use tree_verify::TreeVerify;
pub use unique::Unique;
