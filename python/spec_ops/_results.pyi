"""What operators return. Made by `tools/stubs.py`."""

from typing import Any, NamedTuple

Array = Any
RESULTS: dict[str, Any]

__all__ = [
    "TopkRouterResult",
    "DeduplicateTopkResult",
    "RejectionSampleResult",
    "SampleLogitsResult",
    "PromptLookupResult",
    "SuffixLookupResult",
    "DraftTreeResult",
    "TreeVerifyResult",
    "AppendTokensResult",
    "MoeAlignResult",
    "IndexerTopkResult",
    "HotSlotsResult",
    "UniqueResult",
]

class TopkRouterResult(NamedTuple):
    """Of :func:`topk_router`: ``weights`` [tokens, topk + shared_experts], ``indices`` [tokens,
    topk + shared_experts], ``logical`` [tokens, topk + shared_experts] or None."""

    weights: Array
    indices: Array
    logical: Array | None

class DeduplicateTopkResult(NamedTuple):
    """Of :func:`deduplicate_topk`: ``unique`` [batch, mtp_step * k], ``counts`` [batch] or
    None, ``inverse`` [batch * mtp_step, k] or None."""

    unique: Array
    counts: Array | None
    inverse: Array | None

class RejectionSampleResult(NamedTuple):
    """Of :func:`rejection_sample`: ``output_token_ids`` [batch, max_spec_len + 1],
    ``num_accepted`` [batch], ``accepted_counts`` [batch], ``recovered_counts`` [batch],
    ``bonus_counts`` [batch]."""

    output_token_ids: Array
    num_accepted: Array
    accepted_counts: Array
    recovered_counts: Array
    bonus_counts: Array

class SampleLogitsResult(NamedTuple):
    """Of :func:`sample_logits`: ``tokens`` [rows] or [rows, n], ``probs`` [rows, vocab] or
    None, ``logprobs`` [rows] or [rows, n] as tokens or None, ``processed_logprobs`` [rows] or
    [rows, n] as tokens or None, ``ranks`` [rows] or [rows, n] as tokens or None, ``top_tokens``
    [rows, top] or None, ``top_logprobs`` [rows, top] or None, ``row_flags`` [rows] or None,
    ``winners`` [rows] or None, ``kept_tokens`` [rows, kept] or None, ``kept_counts`` [rows] or
    None, ``largest`` [rows] or None."""

    tokens: Array
    probs: Array | None
    logprobs: Array | None
    processed_logprobs: Array | None
    ranks: Array | None
    top_tokens: Array | None
    top_logprobs: Array | None
    row_flags: Array | None
    winners: Array | None
    kept_tokens: Array | None
    kept_counts: Array | None
    largest: Array | None

class PromptLookupResult(NamedTuple):
    """Of :func:`prompt_lookup`: ``drafts`` [batch, max_draft], ``counts`` [batch] or [batch,
    1]."""

    drafts: Array
    counts: Array

class SuffixLookupResult(NamedTuple):
    """Of :func:`suffix_lookup`: ``drafts`` [batch, n], ``counts`` [batch] or [batch, 1],
    ``parents`` [batch, n] or None, ``first_child`` [batch, n + 1] or None, ``next_sibling``
    [batch, n + 1] or None, ``shares`` [batch, n] or None, ``match_lengths`` [batch] or None."""

    drafts: Array
    counts: Array
    parents: Array | None
    first_child: Array | None
    next_sibling: Array | None
    shares: Array | None
    match_lengths: Array | None

class DraftTreeResult(NamedTuple):
    """Of :func:`draft_tree`: ``drafts`` [batch, n], ``num_drafts`` [batch], ``picked`` [batch,
    n] or None, ``draft_parents`` [batch, n] or None, ``first_child`` [batch, n + 1] or None,
    ``next_sibling`` [batch, n + 1] or None, ``depths`` [batch, n + 1] or None, ``masks``
    [batch, n + 1, ceil((n + 1) / 32)] or None, ``survivals`` [batch, n] or None,
    ``row_offsets`` [batch + 1] or None, ``rows`` [cap] or None, ``row_requests`` [cap] or None,
    ``row_parents`` [cap] or None, ``row_tokens`` [cap] or None, ``row_positions`` [cap] or
    None."""

    drafts: Array
    num_drafts: Array
    picked: Array | None
    draft_parents: Array | None
    first_child: Array | None
    next_sibling: Array | None
    depths: Array | None
    masks: Array | None
    survivals: Array | None
    row_offsets: Array | None
    rows: Array | None
    row_requests: Array | None
    row_parents: Array | None
    row_tokens: Array | None
    row_positions: Array | None

class TreeVerifyResult(NamedTuple):
    """Of :func:`tree_verify`: ``tokens`` [batch, max_depth + 1], ``nodes`` [batch, max_depth +
    1], ``num_tokens`` [batch]."""

    tokens: Array
    nodes: Array
    num_tokens: Array

class AppendTokensResult(NamedTuple):
    """Of :func:`append_tokens`: ``appended`` [batch], ``last_tokens`` [batch] or None."""

    appended: Array
    last_tokens: Array | None

class MoeAlignResult(NamedTuple):
    """Of :func:`moe_align`: ``sorted_ids`` [capacity], ``block_experts`` [capacity /
    block_size], ``counts`` [local_experts], ``offsets`` [local_experts + 1], ``num_padded``
    [1], ``inverse`` [tokens * k] or None, ``sorted_tokens`` [capacity] or None,
    ``block_limits`` [capacity / block_size] or None, ``num_blocks`` [1] or None."""

    sorted_ids: Array
    block_experts: Array
    counts: Array
    offsets: Array
    num_padded: Array
    inverse: Array | None
    sorted_tokens: Array | None
    block_limits: Array | None
    num_blocks: Array | None

class IndexerTopkResult(NamedTuple):
    """Of :func:`indexer_topk`: ``indices`` [rows, k], ``values`` [rows, k] or None, ``slots``
    [rows, k] or None."""

    indices: Array
    values: Array | None
    slots: Array | None

class HotSlotsResult(NamedTuple):
    """Of :func:`hot_slots`: ``slots`` [batch, m], ``fetch_positions`` [batch, m],
    ``fetch_slots`` [batch, m], ``fetches`` [batch]."""

    slots: Array
    fetch_positions: Array
    fetch_slots: Array
    fetches: Array

class UniqueResult(NamedTuple):
    """Of :func:`unique`: ``unique`` [n], ``count`` [1], ``counts`` [n] or None, ``inverse`` [n]
    or None."""

    unique: Array
    count: Array
    counts: Array | None
    inverse: Array | None
