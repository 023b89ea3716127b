"""What the engines' functions have in common: this package's operators on torch's tensors, with
arguments and results as engines have them."""

from __future__ import annotations

from typing import Any

import torch

from . import _functions as functions

__all__: list[str] = []

#: A temperature at which all tokens weigh the same, so that only `top_k` decides which are kept.
_FLAT = 2.0**100
#: Spreads a seed over the rows of a batch: 2^64 over the golden ratio, as a signed number.
_SPREAD = -0x61C8864680B583EB


def vector(value: Any, like: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A number, or a tensor of one for each row, as a vector of `count` numbers beside `like`."""
    if isinstance(value, torch.Tensor):
        return value.to(like.device, dtype).reshape(-1).expand(count)
    return torch.full((count,), value, dtype=dtype, device=like.device)


def seeds(
    rows: int,
    like: torch.Tensor,
    seed: int | torch.Tensor | None = None,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """A seed for each row: drawn by a generator, or spread from one seed of the whole batch."""
    if seed is None:
        drawn = torch.empty(rows, dtype=torch.int64, device=like.device)
        return drawn.random_(generator=generator)
    of_row = torch.arange(rows, dtype=torch.int64, device=like.device)
    if not isinstance(seed, torch.Tensor):
        seed = (seed + 2**63) % 2**64 - 2**63
    return of_row * _SPREAD + vector(seed, like, rows, torch.int64)


def sample(
    logits: torch.Tensor,
    *,
    top_k: Any = None,
    top_p: Any = None,
    min_p: Any = None,
    temperature: Any = 1.0,
    seed: Any = None,
    positions: Any = 0,
    generator: torch.Generator | None = None,
    joint: bool = False,
    **outputs: Any,
) -> Any:
    """`sample_logits` of rows that are requests of their own.

    `joint` keeps the tokens that both `top_k` and `top_p` keep of the whole vocabulary, where
    `sample_logits` applies `top_p` to the tokens that `top_k` left.
    """
    rows = logits.shape[0]
    numbers = {"top_p": top_p, "min_p": min_p}
    filters = {
        name: vector(value, logits, rows, torch.float32)
        for name, value in numbers.items()
        if value is not None
    }
    if top_k is not None:
        filters["top_k"] = vector(top_k, logits, rows, torch.int32)
    if joint and top_k is not None and top_p is not None:
        kept = sample(logits, top_p=filters.pop("top_p"), seed=0, probs=True).probs
        kept = kept.count_nonzero(dim=1).to(torch.int32)
        wanted = filters["top_k"]
        filters["top_k"] = torch.where(wanted > 0, torch.minimum(wanted, kept), kept)
    return functions.sample_logits(
        logits,
        vector(positions, logits, rows, torch.int64),
        vector(temperature, logits, rows, torch.float32),
        seeds(rows, logits, seed, generator),
        **filters,
        **outputs,
    )


def kept_tokens(logits: torch.Tensor, top_k: Any, top_p: Any, **filters: Any) -> torch.Tensor:
    """Which tokens `top_k` and then `top_p` keep, as bools in the shape of the logits.

    Rows without a `top_p` below 1 are looked at where all tokens weigh the same: a token that is
    too unlikely to have a probability in f32 is kept all the same.
    """
    rows = logits.shape[0]
    temperature: Any = _FLAT
    if top_p is not None:
        top_p = vector(top_p, logits, rows, torch.float32)
        temperature = torch.where(top_p < 1, 1.0, _FLAT)
    probs = sample(
        logits, top_k=top_k, top_p=top_p, temperature=temperature, seed=0, probs=True, **filters
    ).probs
    return probs > 0


def logits_of(probs: torch.Tensor, indices: torch.Tensor | None = None) -> torch.Tensor:
    """Logits whose softmax is a row's probabilities, divided by their sum where it is not 1."""
    probs = probs if indices is None else probs[indices.long()]
    return probs.float().log()


def route(
    x: torch.Tensor,
    weights: torch.Tensor,
    indices: torch.Tensor,
    *,
    is_padding: torch.Tensor | None = None,
    **options: Any,
) -> None:
    """`topk_router` into given weights and indices; rows that are padding get -1 and weight 0."""
    functions.topk_router(x, out=(weights, indices), topk=weights.shape[1], **options)
    if is_padding is not None:
        padding = is_padding[: x.shape[0]].bool().unsqueeze(1)
        weights.masked_fill_(padding, 0)
        indices.masked_fill_(padding, -1)


def align(
    topk_ids: torch.Tensor,
    experts: int,
    block_size: int,
    sorted_ids: torch.Tensor,
    block_experts: torch.Tensor,
    num_padded: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    inverse: bool = False,
) -> Any:
    """`moe_align` into arrays of the caller's own lengths, which are often shorter or longer than
    the operator's capacity. What lies behind the runs is padding: the number of picks, and -1."""
    picks = topk_ids.reshape(1, -1) if topk_ids.dim() == 1 else topk_ids
    made = functions.moe_align(
        picks, experts=experts, block_size=block_size, expert_map=expert_map, inverse=inverse
    )
    for given, own, behind in (
        (sorted_ids, made.sorted_ids, topk_ids.numel()),
        (block_experts, made.block_experts, -1),
    ):
        count = min(len(given), len(own))
        given[:count].copy_(own[:count])
        given[count:].fill_(behind)
    num_padded[:1].copy_(made.num_padded)
    return made
