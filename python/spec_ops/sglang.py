"""Trees of drafts, routers, alignment, top-k and sampling in SGLang's own signatures.

    from spec_ops.sglang import verify_tree_greedy

Each function has the name and the arguments of SGLang's, and its docstring says of which. Arguments
that SGLang spells ``retrive_*`` in one place and ``retrieve_*`` in another are taken in both
spellings. :mod:`spec_ops.sglang_plugin` puts these functions in the place of SGLang's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _engines as engines
from . import _functions as functions
from .flashinfer import (
    min_p_sampling_from_probs,
    top_k_renorm_probs,
    top_k_top_p_sampling_from_logits,
    top_k_top_p_sampling_from_probs,
    top_p_renorm_probs,
)

__all__ = [
    "apply_token_bitmask_inplace_cuda",
    "fast_topk_transform_fused",
    "fast_topk_transform_ragged_fused",
    "fast_topk_v2",
    "kimi_k2_moe_fused_gate",
    "min_p_sampling_from_probs",
    "moe_align_block_size",
    "moe_fused_gate",
    "top_k_renorm_prob",
    "top_k_renorm_probs",
    "top_k_top_p_min_p_sampling_from_probs_torch",
    "top_k_top_p_sampling_from_logits",
    "top_k_top_p_sampling_from_probs",
    "top_p_renorm_prob",
    "top_p_renorm_probs",
    "topk_sigmoid",
    "topk_softmax",
    "tree_speculative_sampling_target_only",
    "verify_tree_greedy",
    "verify_tree_greedy_func",
]

top_k_renorm_prob = top_k_renorm_probs
top_p_renorm_prob = top_p_renorm_probs


def _both_spellings(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of `retrieve_*` that takes `retrive_*` too."""

    @functools.wraps(function)
    def spelled(*args: Any, **kwargs: Any) -> Any:
        return function(
            *args, **{name.replace("retrive_", "retrieve_"): kwargs[name] for name in kwargs}
        )

    return spelled


@_both_spellings
def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """As `sgl_kernel.verify_tree_greedy`: the first three are written, what is not accepted stays
    as it was.

    SGLang's outputs follow from `tree_verify`'s: the nodes of the path are looked up in
    ``retrieve_index``, and the target's tokens are put where they say.
    """
    path = functions.tree_verify(
        candidates,
        target_predict,
        first_child=retrieve_next_token,
        next_sibling=retrieve_next_sibling,
        max_depth=accept_index.shape[1] - 1,
    )
    on_path = path.nodes >= 0
    index = retrieve_index.gather(1, path.nodes.clamp(min=0).long())
    accept_index.copy_(torch.where(on_path, index, accept_index))
    accept_token_num.copy_(path.num_tokens - 1)
    # Beyond the path every place is that of the root, whose token is the same again.
    root = index[:, :1].expand_as(index)
    tokens = torch.where(on_path, path.tokens, path.tokens[:, :1])
    predicts.view(-1).scatter_(
        0, torch.where(on_path, index, root).flatten().long(), tokens.flatten().to(predicts.dtype)
    )


@_both_spellings
def verify_tree_greedy_func(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
    topk: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `sglang.kernels.ops.speculative.spec_tree.verify_tree_greedy_func`: returns the three
    that are written."""
    del topk
    written = (predicts, accept_index, accept_token_num)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    verify_tree_greedy(*written, candidates, *links, target_predict)
    return written


@_both_spellings
def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """As `sgl_kernel.tree_speculative_sampling_target_only` with thresholds of 1: the first three
    are written.

    A token is drawn from the target's probabilities at each node, and the draws are followed down
    the tree: the same distribution. Two calls with the same uniform samples draw the same.
    """
    del draft_probs, deterministic
    if threshold_single < 1 or threshold_acc < 1:
        raise NotImplementedError("spec_ops follows the target: thresholds below 1 have no equal")
    batch, nodes = candidates.shape
    bits = uniform_samples.float().contiguous().view(torch.int32).long()
    final = uniform_samples_for_final_sampling.float().contiguous().view(torch.int32).long()
    seeds = (bits * 2**31 + final.reshape(batch, 1)).flatten()
    logits = engines.logits_of(target_probs.reshape(batch * nodes, -1))
    drawn = engines.sample(logits, seed=seeds).tokens.view(batch, nodes)
    written = (predicts, accept_index, accept_token_num)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    verify_tree_greedy(*written, candidates, *links, drawn)


def moe_align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    experts_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
    cumsum_buffer: torch.Tensor | None = None,
    pad_sorted_token_ids: bool = False,
    ignore_invalid_expert: bool = False,
    **_of_versions: Any,
) -> None:
    """As `sgl_kernel.moe_align_block_size`: writes the three tensors behind `block_size`.

    Of the `num_experts` buckets the first is for picks of -1, whose blocks have the expert -1;
    with `ignore_invalid_expert` such picks are dropped.
    """
    del cumsum_buffer, pad_sorted_token_ids
    buckets = topk_ids if ignore_invalid_expert else topk_ids + 1
    written = (sorted_token_ids, experts_ids, num_tokens_post_pad)
    engines.align(buckets, num_experts, block_size, *written)
    if not ignore_invalid_expert:
        experts_ids.sub_(1).clamp_(min=-1)


def _capped(logits: torch.Tensor, softcapping: float) -> torch.Tensor:
    return logits if not softcapping else (logits.float() / softcapping).tanh() * softcapping


def topk_softmax(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    moe_softcapping: float = 0.0,
    correction_bias: torch.Tensor | None = None,
) -> None:
    """As `sgl_kernel.topk_softmax`: writes the first two."""
    options = {"renormalize": renormalize, "bias": correction_bias, "scoring": "softmax"}
    engines.route(_capped(gating_output, moe_softcapping), topk_weights, topk_ids, **options)


def topk_sigmoid(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    correction_bias: torch.Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    num_fused_shared_experts: int = 0,
) -> None:
    """As `sgl_kernel.topk_sigmoid` and `sglang.kernels.ops.moe.moe_topk_sigmoid.topk_sigmoid`:
    writes the first two. The factor is used where weights are renormalized."""
    shared = num_fused_shared_experts
    functions.topk_router(
        gating_output,
        topk=topk_weights.shape[1] - shared,
        scoring="sigmoid",
        renormalize=renormalize,
        scale=routed_scaling_factor if renormalize else 1.0,
        shared_experts=shared,
        bias=correction_bias,
        out=(topk_weights, topk_ids),
    )
    if shared and not renormalize:
        routed = topk_weights[:, :-shared].sum(dim=1, keepdim=True)
        topk_weights[:, -shared:] = routed / routed_scaling_factor


def moe_fused_gate(scores: torch.Tensor, bias: torch.Tensor | None, *args: Any, **kwargs: Any) -> Any:
    """As `sglang.kernels.ops.moe.moe_fused_gate.moe_fused_gate`, ``(scores, bias, topk,
    scoring_func, ..)``, and as `sgl_kernel.moe_fused_gate` up to 0.3, ``(input_tensor, bias,
    num_expert_group, topk_group, topk, ..)``: weights of f32 and experts of i32."""
    if "scoring_func" in kwargs or (len(args) > 1 and isinstance(args[1], str)):
        return _fused_gate(scores, bias, *args, **kwargs)
    if len(args) + len({"num_expert_group", "topk_group", "topk"} & kwargs.keys()) >= 3:
        return _grouped_gate(scores, bias, *args, **kwargs)
    return _fused_gate(scores, bias, *args, **kwargs)


def _grouped_gate(
    scores: torch.Tensor,
    bias: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    num_fused_shared_experts: int = 0,
    routed_scaling_factor: float = 0,
    apply_routed_scaling_factor_on_output: bool = False,
) -> Any:
    return _fused_gate(
        scores,
        bias,
        topk,
        num_fused_shared_experts=num_fused_shared_experts,
        routed_scaling_factor=routed_scaling_factor or 1.0,
        apply_routed_scaling_factor_on_output=apply_routed_scaling_factor_on_output,
        num_expert_group=num_expert_group,
        topk_group=topk_group,
    )


def kimi_k2_moe_fused_gate(
    input_tensor: torch.Tensor,
    bias: torch.Tensor,
    topk: int,
    renormalize: bool = True,
    routed_scaling_factor: float = 1.0,
    apply_routed_scaling_factor_on_output: bool = False,
) -> Any:
    """As `sgl_kernel.kimi_k2_moe_fused_gate`."""
    scale = {"routed_scaling_factor": routed_scaling_factor}
    scale["apply_routed_scaling_factor_on_output"] = apply_routed_scaling_factor_on_output
    return _fused_gate(input_tensor, bias, topk, renormalize=renormalize, **scale)


def _fused_gate(
    scores: torch.Tensor,
    bias: torch.Tensor | None,
    topk: int,
    scoring_func: str = "sigmoid",
    num_fused_shared_experts: int = 0,
    renormalize: bool = True,
    routed_scaling_factor: float | None = 1.0,
    apply_routed_scaling_factor_on_output: bool = False,
    moe_softcapping: float = 0.0,
    num_expert_group: int = 1,
    topk_group: int = 1,
    *,
    bias_alt: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    bias_alt_token_id: int | None = None,
    num_token_non_padded: torch.Tensor | None = None,
    renormalize_epsilon: float = 0.0,
    packed_out: torch.Tensor | None = None,
    sqrtsoftplus_log1p: bool = False,
) -> Any:
    del bias_alt_token_id, sqrtsoftplus_log1p
    if bias_alt is not None or input_ids is not None or renormalize_epsilon > 1e-12:
        raise NotImplementedError("spec_ops has neither a second bias nor a larger epsilon")
    scale = routed_scaling_factor or 1.0
    on_output = apply_routed_scaling_factor_on_output
    padded = num_token_non_padded
    weights, indices, _ = functions.topk_router(
        _capped(scores, moe_softcapping),
        topk=topk - num_fused_shared_experts,
        scoring={"sqrtsoftplus": "sqrt_softplus"}.get(scoring_func.lower(), scoring_func.lower()),
        groups=max(num_expert_group, 1),
        topk_groups=max(topk_group, 1),
        masked="excluded",
        renormalize=renormalize,
        scale=scale if on_output else 1.0,
        shared_experts=num_fused_shared_experts,
        # What the sum of the weights is divided by elsewhere, here the weight is divided by.
        shared_weight=1.0 if on_output else 1.0 / scale,
        bias=bias,
        num_tokens=None if padded is None else padded.reshape(1).to(torch.int32),
    )
    if packed_out is not None:
        bits = weights.bfloat16().view(torch.int16).to(torch.int32) & 0xFFFF
        packed_out.copy_(indices << 16 | bits)
    return weights, indices


def apply_token_bitmask_inplace_cuda(
    logits: torch.Tensor, bitmask: torch.Tensor, indices: Any = None
) -> None:
    """As `sgl_kernel.apply_token_bitmask_inplace_cuda`: in logits ``[rows, vocab]`` or ``[vocab]``
    what a row's bits do not allow becomes negative infinity; with `indices`, in these rows alone.
    Tokens behind the last word stay as they are."""
    rows, bits = (logits, bitmask) if logits.dim() == 2 else (logits[None], bitmask.view(1, -1))
    if indices is not None:
        index = torch.as_tensor(indices, device=logits.device).long()
        rows, bits = rows[index], bits[index]
    forbidden = ~engines.allowed_tokens(bits, rows.shape[1])
    rows[:, : forbidden.shape[1]].masked_fill_(forbidden, float("-inf"))
    if indices is not None:
        logits[index] = rows


def fast_topk_v2(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `sgl_kernel.fast_topk_v2`, for any `topk` up to 4096: positions relative to each row's
    start, ascending, then -1."""
    return functions.indexer_topk(score, k=topk, lengths=lengths, starts=row_starts).indices


def fast_topk_transform_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    page_table_size_1: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `sgl_kernel.fast_topk_transform_fused`: places in a cache of pages of 1, then -1."""
    rows = torch.arange(len(score), dtype=cu_seqlens_q.dtype, device=score.device)
    requests = torch.searchsorted(cu_seqlens_q[1:].contiguous(), rows, right=True)
    return functions.indexer_topk(
        score,
        k=topk,
        lengths=lengths,
        starts=row_starts,
        block_table=page_table_size_1,
        requests=requests.to(torch.int32),
        slots=True,
    ).slots


def fast_topk_transform_ragged_fused(
    score: torch.Tensor,
    lengths: torch.Tensor,
    topk_indices_offset: torch.Tensor,
    topk: int,
    row_starts: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `sgl_kernel.fast_topk_transform_ragged_fused`: positions behind each row's offset, then
    -1."""
    found = fast_topk_v2(score, lengths, topk, row_starts)
    return torch.where(found >= 0, found + topk_indices_offset.unsqueeze(1), found)


def top_k_top_p_min_p_sampling_from_probs_torch(
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    sampling_seed: torch.Tensor | None,
    positions: torch.Tensor,
    **hints: Any,
) -> torch.Tensor:
    """As `sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch`: `top_ps` is a
    share of all probability, as there. It does not return the probabilities after the filters."""
    if hints.get("return_filtered_probs"):
        raise NotImplementedError("spec_ops does not return the probabilities after the filters")
    rows = len(probs)
    if sampling_seed is None:
        seeds, positions = engines.seeds(rows, probs), torch.zeros_like(top_ks, dtype=torch.int64)
    else:
        seeds = engines.vector(sampling_seed, probs, rows, torch.int64)
        positions = engines.vector(positions, probs, rows, torch.int64)
    logits = engines.logits_of(probs)
    kept = engines.sample(logits, top_p=top_ps, seed=0, probs=True).probs.count_nonzero(dim=1)
    return functions.sample_logits(
        logits,
        positions,
        torch.ones(rows, device=probs.device),
        seeds,
        top_k=torch.minimum(top_ks.to(torch.int32), kept.to(torch.int32)),
        min_p=min_ps.to(torch.float32) if need_min_p_sampling else None,
    ).tokens
