"""The operators as functions. Made by `tools/stubs.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _results as results
from ._native import Plan
from ._results import Array

__all__ = [
    "topk_router",
    "deduplicate_topk",
    "rejection_sample",
    "adjust_logits",
    "sample_logits",
    "ngram_match",
    "hybrid_mtp_ngram",
    "prompt_lookup",
    "suffix_lookup",
    "tree_verify",
    "append_tokens",
    "moe_align",
    "indexer_topk",
    "unique",
]

FUNCTIONS: dict[str, Callable[..., Any]]

def topk_router(
    x: Array, *, topk: int, scoring: Literal['sigmoid', 'softmax', 'sqrt_softplus'] = 'softmax',
    select: Literal['score', 'logit'] = 'score', groups: int = 1, topk_groups: int = 1,
    group_score: Literal['top2_sum', 'max'] = 'top2_sum',
    masked: Literal['zero', 'excluded'] = 'excluded', renormalize: bool = True,
    scale: float = 1.0, shared_experts: int = 0, shared_weight: float = 1.0,
    physical_experts: int | None = None, bias: Array | None = None,
    num_tokens: Array | None = None, chosen: Array | None = None, replicas: Array | None = None,
    replica_counts: Array | None = None, logical: bool = False, load: Array | None = None,
    flags: Array | None = None, out: Sequence[Array | None] | None = None
) -> results.TopkRouterResult:
    """Mixture-of-experts routing: the `topk` experts of each token."""

def deduplicate_topk(
    indices: Array, *, mtp_step: int = 1, counts: bool = False, inverse: bool = False,
    out: Sequence[Array | None] | None = None
) -> results.DeduplicateTopkResult:
    """The distinct values of each request's top-k rows, ascending."""

def rejection_sample(
    target_probs: Array, draft_token_ids: Array, bonus_token_ids: Array, cu_num_draft: Array, *,
    max_spec_len: int, acceptance: Literal['probabilistic', 'greedy'] = 'probabilistic',
    recovery: Literal['argmax', 'sample'] = 'sample', draft_probs: Array | None = None,
    uniform_samples: Array | None = None, seeds: Array | int | None = None,
    positions: Array | None = None, greedy: Array | None = None, flags: Array | None = None,
    out: Sequence[Array | None] | None = None
) -> results.RejectionSampleResult:
    """Verifies draft tokens against the target model (Leviathan et al., 2023)."""

def adjust_logits(
    logits: Array, tokens: Array, prompt_lengths: Array, lengths: Array, *,
    bad_words_in_prompt: bool = False, requests: Array | None = None,
    draft_tokens: Array | None = None, parents: Array | None = None,
    bias_offsets: Array | None = None, bias_tokens: Array | None = None,
    bias_values: Array | None = None, repetition: Array | float | None = None,
    frequency: Array | float | None = None, presence: Array | float | None = None,
    min_tokens: Array | int | None = None, stop_tokens: Array | None = None,
    bad_offsets: Array | None = None, word_offsets: Array | None = None,
    word_tokens: Array | None = None, no_repeat_ngram: Array | int | None = None,
    flags: Array | None = None
) -> None:
    """Adjusts logits in place by bias, penalties and tokens that may not come next, also where rows are drafts."""

def sample_logits(
    logits: Array, positions: Array, temperature: Array | float, seeds: Array | int, *,
    min_p_first: bool = False, n: int | None = None, top: int | None = None,
    top_k: Array | int | None = None, top_p: Array | float | None = None,
    min_p: Array | float | None = None, requests: Array | None = None,
    mask: Array | None = None, probs: bool = False, logprobs: bool = False,
    processed_logprobs: bool = False, ranks: bool = False, top_tokens: bool = False,
    top_logprobs: bool = False, row_flags: bool = False, flags: Array | None = None,
    out: Sequence[Array | None] | None = None
) -> results.SampleLogitsResult:
    """Samples tokens from logits: temperature, top-k, top-p, min-p, an allowed-token mask and a seed for each request."""

def ngram_match(
    input_ids: Array, input_ids_len: Array, token_ids_all: Array, prompt_lens: Array,
    step_idx: Array, draft_token_num: Array, draft_tokens: Array, seq_lens_this_time: Array,
    seq_lens_encoder: Array, seq_lens_decoder: Array, max_dec_len: Array, *,
    max_ngram_size: int = 3, token_threshold: int = 128, flags: Array | None = None
) -> None:
    """Drafts tokens by copying those that followed an earlier occurrence of the last tokens."""

def hybrid_mtp_ngram(
    input_ids: Array, input_ids_len: Array, pre_ids: Array, step_idx: Array,
    draft_tokens: Array, seq_lens_this_time: Array, seq_lens_decoder: Array, max_dec_len: Array,
    *, max_draft_tokens: int, max_ngram_size: int = 3, min_ngram_size: int = 1,
    token_threshold: int = 128, flags: Array | None = None
) -> None:
    """Extends the drafts of a multi-token-prediction head by n-gram matching."""

def prompt_lookup(
    tokens: Array, lengths: Array, *, min_ngram: int = 2, max_ngram: int = 5,
    max_draft: int = 5, occurrence: Literal['first', 'last'] = 'last',
    pad_with_last: bool = False, requests: Array | None = None, max_drafts: Array | None = None,
    flags: Array | None = None, out: Sequence[Array | None] | None = None
) -> results.PromptLookupResult:
    """Drafts from a request's own text, by copying the tokens that followed an earlier occurrence of its last tokens."""

def suffix_lookup(
    tokens: Array, lengths: Array, *, min_match: int = 1, max_match: int = 16,
    max_windows: int = 64, width: int = 1, min_share: float = 0.0,
    drafts_per_match: float = 64.0, pad_with_last: bool = False, n: int,
    requests: Array | None = None, max_drafts: Array | None = None, corpus: Array | None = None,
    corpus_length: Array | None = None, parents: bool = False, first_child: bool = False,
    next_sibling: bool = False, shares: bool = False, match_lengths: bool = False,
    flags: Array | None = None, out: Sequence[Array | None] | None = None
) -> results.SuffixLookupResult:
    """Drafts from the longest suffix that occurred before, in a request's own text and in a shared corpus, weighted by how often each continuation followed."""

def tree_verify(
    draft_tokens: Array, target_tokens: Array, *, max_depth: int,
    first_child: Array | None = None, next_sibling: Array | None = None,
    row_offsets: Array | None = None, flags: Array | None = None,
    out: Sequence[Array | None] | None = None
) -> results.TreeVerifyResult:
    """Follows the target model down a tree, or a chain, of drafts."""

def append_tokens(
    tokens: Array, lengths: Array, new_tokens: Array, new_counts: Array, *,
    stop_tokens: Array | None = None, max_lengths: Array | None = None,
    finished: Array | None = None, last_tokens: bool = False, flags: Array | None = None,
    out: Sequence[Array | None] | None = None
) -> results.AppendTokensResult:
    """Appends the tokens of a decode step to the texts of its requests, up to stop tokens and length limits."""

def moe_align(
    topk_ids: Array, *, experts: int, block_size: int, local_experts: int | None = None,
    expert_map: Array | None = None, inverse: bool = False, sorted_tokens: bool = False,
    block_limits: bool = False, num_blocks: bool = False, flags: Array | None = None,
    out: Sequence[Array | None] | None = None
) -> results.MoeAlignResult:
    """Groups a router's picks by expert, for grouped matrix products."""

def indexer_topk(
    scores: Array, *, k: int, block_size: int = 1, pool: int = 1, forced_first: int = 0,
    forced_last: int = 0, candidate_block: int = 1, lengths: Array | None = None,
    starts: Array | None = None, candidates: Array | None = None, values: bool = False,
    block_table: Array | None = None, requests: Array | None = None, slots: bool = False,
    flags: Array | None = None, out: Sequence[Array | None] | None = None
) -> results.IndexerTopkResult:
    """The positions of the `k` best scores of each row, for sparse attention. `deduplicate_topk` takes these positions."""

def unique(
    keys: Array, *, counts: bool = False, inverse: bool = False,
    out: Sequence[Array | None] | None = None
) -> results.UniqueResult:
    """The distinct keys of a set, ascending, how often each occurs, and where each key went."""
