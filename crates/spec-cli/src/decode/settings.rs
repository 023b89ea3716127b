//! What a run of `spec decode` is asked for.

use std::time::Duration;

use clap::ValueEnum;

/// Where drafts come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DraftKind {
    /// Copy what followed the last tokens before (ngram_match)
    Ngram,
    /// Copy what followed the last tokens before (prompt_lookup)
    Lookup,
    /// Copy what most often followed the longest suffix that occurred before (suffix_lookup)
    Suffix,
    /// The same as a tree: the two continuations that followed most often (suffix_lookup)
    SuffixTree,
    /// Draw from the draft model
    Model,
    /// Draw from the draft model twice at each place, and try both
    Tree,
    /// Draw from the draft model, then copy on (hybrid_mtp_ngram)
    Hybrid,
    /// No drafts: plain decoding, one token per step
    None,
}

/// What to decode.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens to emit.
    pub tokens: usize,
    /// Where drafts come from.
    pub draft: DraftKind,
    /// The most drafts in a step.
    pub draft_tokens: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Of the request's random numbers.
    pub seed: u64,
    /// Of the draft model's.
    pub draft_seed: u64,
    /// The least time of a run of each model.
    pub model_time: ModelTime,
}

/// The least time that a run of each model takes. A stand-in made of counts is too fast
/// to show what drafts are for: an LLM's run is what a draft saves.
#[derive(Clone, Copy, Debug, Default)]
pub struct ModelTime {
    /// A run of the target model, however many drafts it checks.
    pub target: Duration,
    /// A run of the draft model: one draft.
    pub draft: Duration,
}

/// What a request asks of sampling.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// 0 takes the likeliest token.
    pub temperature: f32,
    /// 0 for off.
    pub top_k: i32,
    /// 1 for off.
    pub top_p: f32,
    /// 0 for off.
    pub min_p: f32,
}
