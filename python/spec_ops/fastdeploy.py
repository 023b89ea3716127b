"""The n-gram drafts, routers and alignment in FastDeploy's own signatures,
for a kernel to be replaced by a line.

    from spec_ops.fastdeploy import hybrid_mtp_ngram, ngram_match

The budgets of tokens come from the environment variables that FastDeploy reads. Arrays are
paddle's, or of any other library of arrays.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from . import _functions as functions
from ._arrays import library
from ._errors import SignatureError
from ._results import Array

__all__ = [
    "get_moe_scores",
    "hybrid_mtp_ngram",
    "moe_topk_select",
    "ngram_match",
    "tritonmoe_preprocess",
]

_COPIES = ("draft_tokens_copy", "seq_lens_this_time_copy")
_NGRAM = (
    *("input_ids", "input_ids_len", "token_ids_all", "prompt_lens", "step_idx"),
    *("draft_token_num", "draft_tokens", "draft_tokens_copy"),
    *("seq_lens_this_time", "seq_lens_this_time_copy"),
    *("seq_lens_encoder", "seq_lens_decoder", "max_dec_len"),
    *("max_ngram_size", "max_draft_tokens"),
)
_HYBRID = (
    *("input_ids", "input_ids_len", "pre_ids", "step_idx", "draft_token_num"),
    *("draft_tokens", "draft_tokens_copy", "seq_lens_this_time", "seq_lens_this_time_copy"),
    *("seq_lens_decoder", "max_dec_len", "max_ngram_size", "min_ngram_size", "max_draft_tokens"),
)


def _without(names: Sequence[str], *absent: str) -> tuple[str, ...]:
    return tuple(name for name in names if name not in absent)


def _bound(
    function: str, forms: Sequence[Sequence[str]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name, in the form of the version of FastDeploy that calls: the one
    with as many arguments."""
    count = len(args) + len(kwargs)
    for names in forms:
        by_position = dict(zip(names, args))
        known = len(args) <= len(names) and kwargs.keys() <= set(names) - by_position.keys()
        if known and count == len(names):
            return by_position | kwargs
    counts = " or ".join(str(len(names)) for names in forms)
    raise SignatureError(f"{function}: {count} arguments, expected {counts}", 3)


def ngram_match(*args: Any, **kwargs: Any) -> None:
    """As FastDeploy's `ngram_match`: ``(input_ids, input_ids_len, token_ids_all, prompt_lens,
    step_idx, draft_token_num, draft_tokens, seq_lens_this_time, seq_lens_encoder,
    seq_lens_decoder, max_dec_len, max_ngram_size, max_draft_tokens)``.

    Versions with ``pre_ids`` in the place of ``token_ids_all`` and ``prompt_lens`` are taken, and
    those with ``draft_tokens_copy`` and ``seq_lens_this_time_copy``, which are not looked at.
    `max_draft_tokens` bounds `draft_token_num` there, and no result here.
    """
    older = _without([{"token_ids_all": "pre_ids"}.get(name, name) for name in _NGRAM], "prompt_lens")
    forms = (_without(_NGRAM, *_COPIES), _without(older, *_COPIES), _NGRAM, older)
    given = _bound("ngram_match", forms, args, kwargs)
    if "pre_ids" in given:
        # Texts without their prompts, as if each prompt had no token.
        given["token_ids_all"] = given["pre_ids"]
        given["prompt_lens"] = given["input_ids_len"] * 0
    functions.ngram_match(
        *(given[name] for name in _NGRAM[:-2] if name not in _COPIES),
        max_ngram_size=given["max_ngram_size"],
        token_threshold=int(os.environ.get("INFER_WITH_REFERENCE_TOKENUM_THRESHOLD", 128)),
    )


def hybrid_mtp_ngram(*args: Any, **kwargs: Any) -> None:
    """As FastDeploy's `hybrid_mtp_ngram`: ``(input_ids, input_ids_len, pre_ids, step_idx,
    draft_token_num, draft_tokens, seq_lens_this_time, seq_lens_decoder, max_dec_len,
    max_ngram_size, min_ngram_size, max_draft_tokens)``, and with ``draft_tokens_copy`` and
    ``seq_lens_this_time_copy`` behind the arrays that they copy: 14 arguments.

    No result depends on `draft_token_num`, there or here, and the copies are not looked at.
    """
    given = _bound("hybrid_mtp_ngram", (_without(_HYBRID, *_COPIES), _HYBRID), args, kwargs)
    functions.hybrid_mtp_ngram(
        *(given[name] for name in _without(_HYBRID[:-3], "draft_token_num", *_COPIES)),
        max_draft_tokens=given["max_draft_tokens"],
        max_ngram_size=given["max_ngram_size"],
        min_ngram_size=given["min_ngram_size"],
        token_threshold=int(os.environ.get("SPEC_TOKENUM_THRESHOLD", 1024)),
    )


def _sigmoid(x: Array) -> Array:
    if hasattr(x, "exp"):
        return 1 / (1 + (-x).exp())
    import numpy

    return 1 / (1 + numpy.exp(-x))


def get_moe_scores(
    gating_output: Array,
    n_group: int,
    topk_group: int,
    top_k: int,
    routed_scaling_factor: float,
    e_score_correction_bias: Array,
    renormalize: bool = False,
    **_of_versions: Any,
) -> tuple[Array, Array, Array]:
    """As FastDeploy's `get_moe_scores`, which calls its operator `noaux_tc`: the sigmoids of the
    logits, weights of f32 and experts of i32, ``[tokens, top_k]``."""
    weights, indices, _ = functions.topk_router(
        gating_output,
        topk=top_k,
        scoring="sigmoid",
        groups=max(n_group, 1),
        topk_groups=max(topk_group, 1),
        masked="excluded",
        renormalize=renormalize,
        scale=routed_scaling_factor,
        bias=e_score_correction_bias.reshape([-1]),
    )
    return _sigmoid(gating_output), weights, indices


def moe_topk_select(
    gating_logits: Array,
    bias: Array | None,
    moe_topk: int,
    apply_norm_weight: bool,
    enable_softmax_top_k_fused: bool = False,
) -> tuple[Array, Array]:
    """As FastDeploy's `moe_topk_select`: experts of i64 and weights of f32, ``[tokens, topk]``."""
    del enable_softmax_top_k_fused
    indices = _new(gating_logits, (gating_logits.shape[0], moe_topk), "i64")
    weights, indices, _ = functions.topk_router(
        gating_logits,
        topk=moe_topk,
        scoring="softmax",
        renormalize=apply_norm_weight,
        bias=None if bias is None else bias.reshape([-1]),
        out=(None, indices, None),
    )
    return indices, weights


def tritonmoe_preprocess(
    topk_ids: Array, num_experts: int, GEMM_BLOCK_SIZE_M: int
) -> tuple[Array, Array, Array]:
    """As FastDeploy's `tritonmoe_preprocess`: picks by expert, the expert of each block, and the
    number of places that belong to a run. Behind the runs come the number of picks, and -1."""
    picks = math.prod(topk_ids.shape)
    block = GEMM_BLOCK_SIZE_M
    rows = topk_ids if len(topk_ids.shape) == 2 else topk_ids.reshape([1, picks])
    made = functions.moe_align(rows, experts=num_experts, block_size=block)
    few = picks < num_experts + 1
    length = picks * block if few else picks + (num_experts + 1) * (block - 1)
    sorted_ids = _fitted(made.sorted_ids, length, picks)
    return sorted_ids, _fitted(made.block_experts, -(-length // block), -1), made.num_padded


def _new(like: Array, shape: tuple[int, ...], dtype: str) -> Array:
    known = library(type(like))
    assert known is not None
    return known.empty(like, shape, dtype)


def _fitted(array: Array, length: int, behind: int) -> Array:
    """An array of i32 with another length: cut, or with a number behind it."""
    own = array.shape[0]
    if length <= own:
        return array[:length]
    made = _new(array, (length,), "i32")
    made[:own], made[own:] = array, behind
    return made
