//! The operators: one file each, under the operator's own name.

pub mod deduplicate_topk;
pub mod hybrid_mtp_ngram;
pub mod ngram_match;
pub mod rejection_sample;
pub mod topk_router;
pub mod unique;

pub use deduplicate_topk::DeduplicateTopk;
pub use hybrid_mtp_ngram::HybridMtpNgram;
pub use ngram_match::NgramMatch;
pub use rejection_sample::RejectionSample;
pub use topk_router::TopkRouter;
pub use unique::Unique;
