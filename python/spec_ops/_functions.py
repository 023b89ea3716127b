"""The operators as functions.

Each takes arrays of any library that knows DLPack, where they lie, and enqueues on the
library's current stream; nothing is copied, and on a GPU nothing waits. Results are new
arrays of the same library, or those of ``out``: a tuple in the order of the result, with
None for what is to be made.

``flags``, where it is taken, is an array ``[1]`` of u32 (or i32), into which bits are OR-ed:
1 a number that is not finite, 2 a token or index out of range, 4 offsets or lengths out of
order. It is never cleared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from . import _results as results
from ._native import Operator, operator
from ._results import Array
from ._shapes import of_outputs

Out = Sequence[Array | None] | None

_RESULTS: dict[str, Any] = {
    "topk_router": results.RoutedExperts,
    "deduplicate_topk": results.DistinctPositions,
    "rejection_sample": results.RejectionResult,
    "prompt_lookup": results.Drafts,
    "sample_logits": results.SampledTokens,
    "tree_verify": results.VerifiedPath,
    "moe_align": results.AlignedExperts,
    "unique": results.DistinctKeys,
}


def make(name: str, *options: Any) -> Operator:
    """A new operator with options in the contract's order. `operator` remembers what it made."""
    first = globals()[name].__code__.co_varnames[0]
    return Operator(name, options, of_outputs, _RESULTS.get(name), first)


def topk_router(
    logits: Array,
    bias: Array | None = None,
    *,
    topk: int,
    scoring: Literal["sigmoid", "softmax", "sqrt_softplus"] = "sigmoid",
    select: Literal["score", "logit"] = "score",
    groups: int = 1,
    topk_groups: int = 1,
    group_score: Literal["top2_sum", "max"] = "top2_sum",
    masked: Literal["zero", "excluded"] = "excluded",
    renormalize: bool = True,
    scale: float = 1.0,
    shared_experts: int = 0,
    shared_weight: float = 1.0,
    physical_experts: int | None = None,
    num_tokens: Array | None = None,
    replicas: Array | None = None,
    replica_counts: Array | None = None,
    load: Array | None = None,
    flags: Array | None = None,
    out: Out = None,
) -> results.RoutedExperts:
    """The `topk` experts of each token, and their weights.

    ``logits`` is ``[tokens, experts]`` of f32, f16 or bf16, ``bias`` ``[experts]`` is added to
    what experts are chosen by and to nothing else. All ties go to the lower index. Weights
    are f32 and indices i32, ``[tokens, topk + shared_experts]``; ``out`` may bring u32 or i64
    indices.

    >>> import numpy as np
    >>> logits = np.array([[0.1, 2.0, 0.3, 1.5], [3.0, 0.0, 0.0, 3.5]], np.float32)
    >>> weights, indices = topk_router(logits, topk=2, scoring="softmax")
    >>> indices
    array([[1, 3],
           [3, 0]], dtype=int32)
    >>> weights.sum(axis=1).round(6)
    array([1., 1.], dtype=float32)
    """
    call = operator(
        "topk_router",
        scoring,
        select,
        groups,
        topk_groups,
        group_score,
        masked,
        topk,
        renormalize,
        scale,
        shared_experts,
        shared_weight,
        physical_experts,
    )
    return call(logits, bias, num_tokens, replicas, replica_counts, load, flags, out=out)


def deduplicate_topk(
    indices: Array, mtp_step: int = 1, *, out: Out = None
) -> results.DistinctPositions:
    """The distinct values of each request's ``mtp_step`` rows, ascending, then -1.

    ``indices`` is ``[batch * mtp_step, k]`` of i32, whose negative values are padding; the
    result is ``[batch, mtp_step * k]`` and how many there are, ``[batch]``.

    >>> import numpy as np
    >>> unique, counts = deduplicate_topk(np.array([[7, 3], [3, -1]], np.int32), mtp_step=2)
    >>> unique, counts
    (array([[ 3,  7, -1, -1]], dtype=int32), array([2], dtype=int32))
    """
    call = operator("deduplicate_topk", mtp_step)
    return call(indices, out=(None, True) if out is None else out)


def rejection_sample(
    target_probs: Array,
    draft_probs: Array | None,
    draft_token_ids: Array,
    bonus_token_ids: Array,
    cu_num_draft: Array,
    *,
    seeds: Array | int | None = None,
    positions: Array | None = None,
    uniform_samples: Array | None = None,
    greedy: Array | None = None,
    max_spec_len: int | None = None,
    acceptance: Literal["probabilistic", "greedy"] = "probabilistic",
    recovery: Literal["sample", "argmax"] = "sample",
    flags: Array | None = None,
    out: Out = None,
) -> results.RejectionResult:
    """Verifies draft tokens against the target model; the text keeps its distribution.

    Request b owns the drafts ``cu_num_draft[b] .. cu_num_draft[b + 1]`` (``[batch + 1]``, or
    ``[batch]`` without the leading 0). ``target_probs`` is ``[tokens, vocab]``, and so is
    ``draft_probs``, or None where drafts are deterministic, as n-grams are.
    ``draft_token_ids`` is ``[tokens]``, ``bonus_token_ids`` ``[batch]``: what follows if all
    drafts stand. ``seeds`` and ``positions`` ``[batch]`` say which numbers are drawn: those of
    a request and of the position of its first draft in its own text, so that they are the
    same in any batch; a number for ``seeds`` is that of all requests. ``greedy`` ``[batch]``
    names requests that follow the target's argmax. ``recovery="argmax"`` is faster and does not
    keep the distribution.

    The result's ``output_token_ids`` is ``[batch, max_spec_len + 1]``, padded with -1. Without
    ``max_spec_len`` it is wide enough for a request that owns all drafts: pass it.

    >>> import numpy as np
    >>> target = np.array([[0, 1, 0], [0, 0, 1]], np.float32)
    >>> drafts, bonus = np.array([1, 0], np.int32), np.array([2], np.int32)
    >>> cu, seeds, positions = np.array([0, 2]), np.array([7], np.uint64), np.array([10])
    >>> rejection_sample(target, None, drafts, bonus, cu, seeds=seeds, positions=positions,
    ...                  max_spec_len=2).output_token_ids
    array([[ 1,  2, -1]], dtype=int32)
    """
    if max_spec_len is None:
        # What is no array is refused by the call.
        max_spec_len = next(iter(getattr(draft_token_ids, "shape", ())), 0)
    call = operator("rejection_sample", max_spec_len, acceptance, recovery)
    return call(
        target_probs,
        draft_probs,
        draft_token_ids,
        bonus_token_ids,
        cu_num_draft,
        uniform_samples,
        seeds,
        positions,
        greedy,
        flags,
        out=out,
    )


def ngram_match(
    input_ids: Array,
    input_ids_len: Array,
    token_ids_all: Array,
    prompt_lens: Array,
    step_idx: Array,
    draft_token_num: Array,
    draft_tokens: Array,
    seq_lens_this_time: Array,
    seq_lens_encoder: Array,
    seq_lens_decoder: Array,
    max_dec_len: Array,
    max_ngram_size: int = 3,
    *,
    token_threshold: int = 128,
    flags: Array | None = None,
) -> None:
    """Drafts what followed the last tokens' earlier occurrence, within a budget of a batch.

    Arguments in FastDeploy's order; ``draft_tokens`` ``[batch, max_draft_len]`` and
    ``seq_lens_this_time`` ``[batch]`` are changed in place. Lengths, steps and counts are
    ``[batch]`` or ``[batch, 1]``.

    >>> import numpy as np
    >>> i64, i32 = lambda *n: np.array([n]), lambda n: np.array([n], np.int32)
    >>> drafts, this_time = i64(6, 0, 0), i32(1)
    >>> ngram_match(i64(5, 6, 7, 8), i64(4), i64(5, 6, 7, 8, 5, 6, 0, 0), i64(3), i64(2), i32(2),
    ...             drafts, this_time, i32(0), i32(5), i64(20))
    >>> drafts, this_time
    (array([[6, 7, 8]]), array([3], dtype=int32))
    """
    operator("ngram_match", max_ngram_size, token_threshold)(
        input_ids,
        input_ids_len,
        token_ids_all,
        prompt_lens,
        step_idx,
        draft_token_num,
        draft_tokens,
        seq_lens_this_time,
        seq_lens_encoder,
        seq_lens_decoder,
        max_dec_len,
        flags,
    )


def hybrid_mtp_ngram(
    input_ids: Array,
    input_ids_len: Array,
    pre_ids: Array,
    step_idx: Array,
    draft_tokens: Array,
    seq_lens_this_time: Array,
    seq_lens_decoder: Array,
    max_dec_len: Array,
    max_ngram_size: int = 3,
    min_ngram_size: int = 1,
    max_draft_tokens: int = 5,
    *,
    token_threshold: int = 1024,
    flags: Array | None = None,
) -> None:
    """As :func:`ngram_match`, behind the drafts of a multi-token-prediction head.

    Arguments in FastDeploy's order, without its ``draft_token_num``, which no result depends
    on; ``draft_tokens`` and ``seq_lens_this_time`` are changed in place.

    >>> import numpy as np
    >>> i64, i32 = lambda *n: np.array([n]), lambda n: np.array([n], np.int32)
    >>> drafts, this_time = i64(5, 6, 0, 0), i32(2)
    >>> hybrid_mtp_ngram(i64(4, 5, 6, 7, 8), i64(5), i64(4, 5, 6, 0), i64(2), drafts, this_time,
    ...                  i32(5), i64(20), max_draft_tokens=3)
    >>> drafts, this_time
    (array([[5, 6, 7, 8]]), array([4], dtype=int32))
    """
    operator("hybrid_mtp_ngram", max_ngram_size, min_ngram_size, max_draft_tokens, token_threshold)(
        input_ids,
        input_ids_len,
        pre_ids,
        step_idx,
        draft_tokens,
        seq_lens_this_time,
        seq_lens_decoder,
        max_dec_len,
        flags,
    )


def prompt_lookup(
    tokens: Array,
    lengths: Array,
    *,
    min_ngram: int,
    max_ngram: int,
    max_draft: int,
    occurrence: Literal["first", "last"] = "first",
    flags: Array | None = None,
    out: Out = None,
) -> results.Drafts:
    """Drafts from each request's own text: what followed its last tokens before.

    ``tokens`` is ``[batch, most]`` of i64, i32 or u32, ``lengths`` ``[batch]`` says how much of
    each row is text. ``drafts`` is ``[batch, max_draft]`` of the tokens' type, padded with -1,
    ``counts`` ``[batch]``. The ``first`` occurrence is what vLLM takes on the CPU; the
    ``last`` is the better guess in code and conversation.

    >>> import numpy as np
    >>> text = np.array([[791, 4062, 14198, 39935, 13, 578, 4062, 14198]])
    >>> prompt_lookup(text, np.array([8]), min_ngram=2, max_ngram=4, max_draft=3)
    Drafts(drafts=array([[39935,    13,   578]]), counts=array([3], dtype=int32))
    """
    call = operator("prompt_lookup", min_ngram, max_ngram, max_draft, occurrence)
    return call(tokens, lengths, flags, out=out)


def sample_logits(
    logits: Array,
    positions: Array,
    temperature: Array | float,
    seeds: Array | int,
    *,
    top_k: Array | int | None = None,
    top_p: Array | float | None = None,
    min_p: Array | float | None = None,
    requests: Array | None = None,
    mask: Array | None = None,
    min_p_first: bool = False,
    probs: bool = False,
    logprobs: bool = False,
    flags: Array | None = None,
    out: Out = None,
) -> results.SampledTokens:
    """The next token of each row from its logits.

    ``logits`` is ``[rows, vocab]`` of f32, f16 or bf16, ``positions`` ``[rows]`` where in its
    text each token is. ``temperature``, ``seeds``, ``top_k`` (i32), ``top_p`` and ``min_p``
    are ``[requests]``, and ``requests`` ``[rows]`` says whose each row is, if row r is not
    request r. A number in the place of any of these five is that of all requests, of which there
    are as many as rows where no array says how many. Requests with the same seed and position
    draw the same numbers, so requests that shall differ need seeds of their own. ``top_k`` may be
    of i64, and saturates. ``mask`` ``[rows, ceil(vocab / 32)]`` has a bit for each token that is
    allowed.
    ``tokens`` is ``[rows]``; ``probs=True`` adds what they were drawn from, ``[rows, vocab]``,
    exact to the bit, ``logprobs=True`` their logarithm by the logits alone.

    >>> import numpy as np
    >>> logits = np.array([[0.0, 4.0, 1.0], [2.0, 0.0, 0.0]], np.float32)
    >>> greedy, seeds = np.zeros(2, np.float32), np.zeros(2, np.uint64)
    >>> sample_logits(logits, np.array([5, 9]), greedy, seeds).tokens
    array([1, 0], dtype=int32)
    """
    call = operator("sample_logits", min_p_first)
    if out is None and (probs or logprobs):
        out = (None, probs or None, logprobs or None)
    return call(
        logits,
        positions,
        temperature,
        seeds,
        top_k,
        top_p,
        min_p,
        requests,
        mask,
        flags,
        out=out,
    )


def tree_verify(
    draft_tokens: Array,
    target_tokens: Array,
    first_child: Array,
    next_sibling: Array,
    *,
    max_depth: int,
    flags: Array | None = None,
    out: Out = None,
) -> results.VerifiedPath:
    """Follows the target model down a tree, or a chain, of drafts.

    All four are ``[batch, nodes]``: the draft token of each node (node 0 is the last token
    that is verified), what the target chose after it, and pointers, -1 for none. ``tokens`` and
    ``nodes`` are ``[batch, max_depth + 1]``, padded with -1, ``num_tokens`` ``[batch]``.

    >>> import numpy as np
    >>> drafts, target = np.array([[0, 14, 25, 39]]), np.array([[14, 39, 8, 35]], np.int32)
    >>> child, sibling = np.array([[1, 3, -1, -1]]), np.array([[-1, 2, -1, -1]])
    >>> path = tree_verify(drafts, target, child, sibling, max_depth=2)
    >>> path.tokens, path.nodes, path.num_tokens
    (array([[14, 39, 35]], dtype=int32), array([[0, 1, 3]], dtype=int32), array([3], dtype=int32))
    """
    call = operator("tree_verify", max_depth)
    return call(draft_tokens, target_tokens, first_child, next_sibling, flags, out=out)


def moe_align(
    topk_ids: Array,
    expert_map: Array | None = None,
    *,
    experts: int,
    block_size: int,
    local_experts: int | None = None,
    inverse: bool = False,
    flags: Array | None = None,
    out: Out = None,
) -> results.AlignedExperts:
    """Groups a router's picks by expert, for grouped matrix products, in a stable order.

    ``topk_ids`` is ``[tokens, k]``, -1 for none; ``expert_map`` ``[experts]`` takes an expert to
    its number here, -1 where it is not. ``sorted_ids``, ``block_experts`` and ``num_padded``
    are vLLM's ``sorted_token_ids``, ``expert_ids`` and ``num_tokens_post_padded``;
    ``inverse=True`` adds where each pick went.

    >>> import numpy as np
    >>> picks = np.array([[1, 0], [1, 0]], np.int32)
    >>> aligned = moe_align(picks, experts=2, block_size=4)
    >>> aligned.sorted_ids, aligned.block_experts
    (array([1, 3, 4, 4, 0, 2, 4, 4, 4, 4, 4, 4], dtype=int32), array([ 0,  1, -1], dtype=int32))
    """
    call = operator(
        "moe_align", experts, experts if local_experts is None else local_experts, block_size
    )
    if out is None and inverse:
        out = (None, None, None, None, None, True)
    return call(topk_ids, expert_map, flags, out=out)


def indexer_topk(
    scores: Array,
    lengths: Array | None = None,
    starts: Array | None = None,
    *,
    k: int,
    flags: Array | None = None,
    out: Out | Array = None,
) -> Array:
    """Positions of the ``k`` best scores of each row, ascending; ties to the lower index.

    ``scores`` is ``[rows, cols]`` of f32, f16 or bf16; row r covers
    ``starts[r] .. starts[r] + lengths[r]``, and all of the row without them. The result is
    ``[rows, k]`` of i32, relative to the start, padded with -1.

    >>> import numpy as np
    >>> indexer_topk(np.array([[0.0, 3.0, 0.0, 9.0]], np.float32), k=3)
    array([[0, 1, 3]], dtype=int32)
    """
    return operator("indexer_topk", k)(scores, lengths, starts, flags, out=out)


def unique(keys: Array, *, counts: bool = False, out: Out = None) -> results.DistinctKeys:
    """The distinct keys of a set, ascending, and with ``counts=True`` how often each occurs.

    ``keys`` is ``[n]`` of u64, i64, u32 or i32. The first ``count`` of ``[n]`` are written;
    nothing waits for that number to be known.

    >>> import numpy as np
    >>> keys, count, counts = unique(np.array([7, 3, 7]), counts=True)
    >>> keys[: int(count[0])], counts[: int(count[0])]
    (array([3, 7]), array([1, 2], dtype=uint64))
    """
    if out is None and counts:
        out = (None, None, True)
    return operator("unique")(keys, out=out)
