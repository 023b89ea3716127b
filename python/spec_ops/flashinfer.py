"""Sampling and top-k in FlashInfer's own signatures.

    from spec_ops.flashinfer import top_k_top_p_sampling_from_probs

Results are always deterministic. Random numbers come from a seed of each row: spread from `seed`
and taken at position `offset`, or else drawn by `generator` at each call. Ties go to the lower
index: exactly `top_k` tokens are kept.

Functions that return logits or renormalized probabilities compare values as they are. Samplers
weigh tokens by `sample_logits`: a token below 2^-40 of the likeliest is never drawn, and of
probabilities, which the operator takes as logarithms in f32, those that differ by less than a
millionth may count as equal.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _engines as engines
from . import _functions as functions

__all__ = [
    "chain_speculative_sampling",
    "min_p_sampling_from_probs",
    "sampling_from_logits",
    "sampling_from_probs",
    "softmax",
    "top_k_mask_logits",
    "top_k_page_table_transform",
    "top_k_renorm_probs",
    "top_k_sampling_from_probs",
    "top_k_top_p_sampling_from_logits",
    "top_k_top_p_sampling_from_probs",
    "top_p_renorm_probs",
    "top_p_sampling_from_probs",
]


def _sampled(logits: torch.Tensor, check_nan: bool, return_valid: bool, **how: Any) -> Any:
    """Tokens, and whether each row has one where that is asked for."""
    if check_nan and logits.isnan().any():
        raise ValueError("Input logits contains NaN.")
    seed, offset = how.pop("seed"), how.pop("offset")
    how["positions"] = 0 if offset is None else offset
    tokens = engines.sample(logits, seed=seed, **how).tokens
    if not return_valid:
        return tokens
    largest = logits.max(dim=1).values
    return tokens, largest.isfinite()


def softmax(
    logits: torch.Tensor,
    temperature: torch.Tensor | float | None = None,
    enable_pdl: bool | None = None,
) -> torch.Tensor:
    """As `flashinfer.sampling.softmax`: probabilities in f32, of all tokens, however unlikely.

    A row whose temperature is 0 has all of its probability at its largest logit, and at the first
    one of equal logits.
    """
    del enable_pdl
    logits = logits.float()
    if temperature is None:
        return logits.softmax(-1)
    temperature = torch.as_tensor(temperature, dtype=torch.float32, device=logits.device)
    temperature = temperature.reshape(-1, 1)
    greedy = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    scaled = (logits / torch.where(temperature == 0, 1.0, temperature)).softmax(-1)
    return torch.where(temperature == 0, greedy, scaled)


def sampling_from_logits(
    logits: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """As `flashinfer.sampling.sampling_from_logits`."""
    del deterministic
    logits = logits if indices is None else logits[indices.long()]
    return _sampled(logits, check_nan, False, generator=generator, seed=seed, offset=offset)


def sampling_from_probs(
    probs: torch.Tensor,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> Any:
    """As `flashinfer.sampling.sampling_from_probs`."""
    del deterministic
    how = {"generator": generator, "seed": seed, "offset": offset}
    return _sampled(engines.logits_of(probs, indices), check_nan, return_valid, **how)


def top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> Any:
    """As `flashinfer.sampling.top_p_sampling_from_probs`."""
    del deterministic
    how = {"generator": generator, "seed": seed, "offset": offset, "top_p": top_p}
    return _sampled(engines.logits_of(probs, indices), check_nan, return_valid, **how)


def top_k_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> Any:
    """As `flashinfer.sampling.top_k_sampling_from_probs`."""
    del deterministic
    how = {"generator": generator, "seed": seed, "offset": offset, "top_k": top_k}
    return _sampled(engines.logits_of(probs, indices), check_nan, return_valid, **how)


def min_p_sampling_from_probs(
    probs: torch.Tensor,
    min_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> Any:
    """As `flashinfer.sampling.min_p_sampling_from_probs`."""
    del deterministic
    how = {"generator": generator, "seed": seed, "offset": offset, "min_p": min_p}
    return _sampled(engines.logits_of(probs, indices), check_nan, return_valid, **how)


def top_k_top_p_sampling_from_logits(
    logits: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> torch.Tensor:
    """As `flashinfer.sampling.top_k_top_p_sampling_from_logits`, in both orders of the filters."""
    del deterministic
    logits = logits if indices is None else logits[indices.long()]
    how = {"generator": generator, "seed": seed, "offset": offset, "top_k": top_k, "top_p": top_p}
    return _sampled(logits, check_nan, False, joint=_joint(filter_apply_order), **how)


def top_k_top_p_sampling_from_probs(
    probs: torch.Tensor,
    top_k: torch.Tensor | int,
    top_p: torch.Tensor | float,
    indices: torch.Tensor | None = None,
    filter_apply_order: str = "top_k_first",
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    check_nan: bool = False,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
    return_valid: bool = False,
) -> Any:
    """As `flashinfer.sampling.top_k_top_p_sampling_from_probs`, in both orders of the filters."""
    del deterministic
    logits = engines.logits_of(probs, indices)
    how = {"generator": generator, "seed": seed, "offset": offset, "top_k": top_k, "top_p": top_p}
    return _sampled(logits, check_nan, return_valid, joint=_joint(filter_apply_order), **how)


def _joint(order: str) -> bool:
    if order not in ("top_k_first", "joint"):
        raise ValueError(f"Invalid filter_apply_order: {order}")
    return order == "joint"


def top_p_renorm_probs(
    probs: torch.Tensor, top_p: torch.Tensor | float, is_deterministic: bool = False
) -> torch.Tensor:
    """As `flashinfer.sampling.top_p_renorm_probs`. A row of zeros stays one."""
    del is_deterministic
    probs = engines.probabilities(probs)
    return engines.renormalized(probs, engines.likeliest(probs, top_p))


def top_k_renorm_probs(
    probs: torch.Tensor, top_k: torch.Tensor | int, is_deterministic: bool = False
) -> torch.Tensor:
    """As `flashinfer.sampling.top_k_renorm_probs`: in the type of `probs`. A row of zeros stays
    one."""
    del is_deterministic
    own = engines.probabilities(probs)
    return engines.renormalized(own, engines.highest(own, top_k)).to(probs.dtype)


def top_k_mask_logits(logits: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    """As `flashinfer.sampling.top_k_mask_logits`: logits that are kept stay as they are."""
    return logits.masked_fill(~engines.highest(logits, top_k), float("-inf"))


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: torch.Tensor | None = None,
    maybe_output_emitted_draft_token_num: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> Any:
    """As `flashinfer.sampling.chain_speculative_sampling`: tokens ``[batch, drafts + 1]``, -1
    behind those that are emitted, and the two counts, to which this call's are added.

    Drafts behind the first that is rejected are not looked at, so the first count, of drafts that
    would be accepted on their own, is the second.
    """
    del deterministic
    batch, drafts, vocab = draft_probs.shape
    device = target_probs.device
    seeds = engines.seeds(batch, target_probs, seed, generator)
    positions = engines.vector(0 if offset is None else offset, seeds, batch, torch.int64)
    last = engines.logits_of(target_probs[:, drafts])
    how = {"seed": seed, "generator": generator, "positions": positions + drafts}
    bonus = engines.sample(last, **how).tokens
    made = functions.rejection_sample(
        target_probs[:, :drafts].reshape(batch * drafts, vocab),
        draft_token_ids.reshape(-1),
        bonus,
        torch.arange(1, batch + 1, device=device) * drafts,
        max_spec_len=drafts,
        draft_probs=draft_probs.reshape(batch * drafts, vocab),
        seeds=seeds,
        positions=positions,
    )
    counts = []
    for given in (maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num):
        given = torch.zeros(batch, dtype=torch.int32, device=device) if given is None else given
        counts.append(given.add_(made.accepted_counts))
    return made.output_token_ids, *counts


def top_k_page_table_transform(
    input: torch.Tensor,
    src_page_table: torch.Tensor,
    lengths: torch.Tensor,
    k: int,
    row_to_batch: torch.Tensor | None = None,
    deterministic: bool = False,
    tie_break: int = 0,
    dsa_graph_safe: bool = False,
    row_starts: torch.Tensor | None = None,
    page_table_row_starts: torch.Tensor | None = None,
    *,
    page_size: int = 1,
    out: torch.Tensor | None = None,
    out_raw_indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `flashinfer.topk.top_k_page_table_transform`: places in the cache, -1 behind them.

    Rows whose part of the table does not begin at its first entry are looked up by torch.
    """
    del deterministic, tie_break, dsa_graph_safe
    starts = row_starts if page_table_row_starts is None else page_table_row_starts
    paged = {"block_table": src_page_table, "requests": row_to_batch, "slots": True}
    found = functions.indexer_topk(
        input,
        k=k,
        block_size=page_size,
        lengths=lengths,
        starts=row_starts,
        out=(out_raw_indices, None, out if starts is None else None),
        **(paged if starts is None else {}),
    )
    if starts is None:
        return found.slots
    tables = src_page_table if row_to_batch is None else src_page_table[row_to_batch.long()]
    position = found.indices.clamp(min=0).long()
    pages = tables.gather(1, starts.long().unsqueeze(1) + position // page_size)
    slots = torch.where(found.indices >= 0, pages * page_size + position % page_size, -1)
    slots = slots.to(torch.int32)
    return slots if out is None else out.copy_(slots)
