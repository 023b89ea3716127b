"""What operators return."""

from __future__ import annotations

from typing import Any, NamedTuple

#: An array of torch, numpy, cupy, jax or of another library that knows DLPack.
Array = Any


class RoutedExperts(NamedTuple):
    """Of :func:`topk_router`, each ``[tokens, topk + shared_experts]``."""

    weights: Array
    indices: Array


class DistinctPositions(NamedTuple):
    """Of :func:`deduplicate_topk`: ``[batch, mtp_step * k]`` and ``[batch]``."""

    unique: Array
    counts: Array


class RejectionResult(NamedTuple):
    """Of :func:`rejection_sample`: ``[batch, max_spec_len + 1]``, then ``[batch]`` each."""

    output_token_ids: Array
    num_accepted: Array
    accepted_counts: Array
    recovered_counts: Array
    bonus_counts: Array


class Drafts(NamedTuple):
    """Of :func:`prompt_lookup`: ``[batch, max_draft]`` and ``[batch]``."""

    drafts: Array
    counts: Array


class SampledTokens(NamedTuple):
    """Of :func:`sample_logits`: ``[rows]``, ``[rows, vocab]`` or None, ``[rows]`` or None."""

    tokens: Array
    probs: Array | None
    logprobs: Array | None


class VerifiedPath(NamedTuple):
    """Of :func:`tree_verify`: twice ``[batch, max_depth + 1]``, then ``[batch]``."""

    tokens: Array
    nodes: Array
    num_tokens: Array


class AlignedExperts(NamedTuple):
    """Of :func:`moe_align`: ``[capacity]``, ``[capacity / block_size]``,
    ``[local_experts]``, ``[local_experts + 1]``, ``[1]`` and ``[tokens * k]`` or None."""

    sorted_ids: Array
    block_experts: Array
    counts: Array
    offsets: Array
    num_padded: Array
    inverse: Array | None


class DistinctKeys(NamedTuple):
    """Of :func:`unique`: ``[n]`` of which the first ``count`` are written, ``[1]``, and
    ``[n]`` or None."""

    unique: Array
    count: Array
    counts: Array | None
