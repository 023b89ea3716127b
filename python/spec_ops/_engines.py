"""What the engines' functions have in common: this package's operators on torch's tensors, with
arguments and results as engines have them."""

from __future__ import annotations

from typing import Any

import torch

from . import _functions as functions

__all__: list[str] = []

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


def allowed_tokens(mask: torch.Tensor, vocab: int) -> torch.Tensor:
    """The bits of a mask ``[rows, words]`` of i32 as bools, one for each token: `vocab` of them, or
    those that the words have."""
    bit = torch.ones((), dtype=torch.int32, device=mask.device) << torch.arange(
        32, dtype=torch.int32, device=mask.device
    )
    bits = (mask.unsqueeze(-1) & bit) != 0
    return bits.flatten(1)[:, :vocab]


def places(values: torch.Tensor) -> torch.Tensor:
    """The place of each value in its row's descending order, the lower index first among equals;
    -0 equals 0, and NaN counts as negative infinity.

    Values are compared as integers, so that neither subnormal nor infinite ones are special.
    """
    bits = values.float().contiguous().view(torch.int32)
    magnitude, infinity = bits & 0x7FFFFFFF, 0x7F800000
    keys = torch.where(bits < 0, -magnitude, bits)
    keys = torch.where(magnitude > infinity, -infinity, keys)
    order = keys.argsort(dim=1, descending=True, stable=True)
    every = torch.arange(values.shape[1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, every)


def highest(values: torch.Tensor, top_k: Any) -> torch.Tensor:
    """Which values are the `top_k` highest of their row, as bools; all where it is not above 0."""
    count = vector(top_k, values, len(values), torch.int64).unsqueeze(1)
    return (places(values) < count) | (count <= 0)


def likeliest(probs: torch.Tensor, top_p: Any) -> torch.Tensor:
    """Which probabilities `top_p` keeps, as bools: in descending order, those before which there is
    less than this share of the row; the first always.

    Shares are counted in whole units, whose sum does not depend on the order of summation.
    """
    share = vector(top_p, probs, len(probs), torch.float32).double().unsqueeze(1)
    largest = probs.amax(dim=1, keepdim=True).double()
    # The sum of a row's units is below 2^62.
    units = 2.0 ** (62 - probs.shape[1].bit_length())
    weights = (probs / largest.clamp(min=1e-300) * units).long()
    place = places(probs)
    ranked = torch.empty_like(weights).scatter_(1, place, weights)
    before = (ranked.cumsum(1) - ranked).gather(1, place)
    kept = before.double() < share * weights.sum(1, keepdim=True).double()
    return kept | (place == 0) | (share >= 1)


def probabilities(probs: torch.Tensor) -> torch.Tensor:
    """Probabilities in f32: what is NaN or negative counts as 0."""
    return probs.float().nan_to_num(0.0, posinf=torch.finfo(torch.float32).max).clamp(min=0)


def renormalized(probs: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """What is kept of probabilities, divided by its sum; zeros where that is 0."""
    left = torch.where(kept, probs, 0).double()
    total = left.sum(dim=1, keepdim=True)
    return torch.where(total > 0, left / total, 0).float()


def kept_tokens(
    logits: torch.Tensor, top_k: Any, top_p: Any, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Which tokens a mask allows and `top_k` and then `top_p` keep, as bools in the shape of the
    logits.

    A mask decides by its bits and `top_k` by the order of the logits. Weights are looked at in rows
    with a `top_p` below 1 alone: elsewhere a token is kept however unlikely it is.
    """
    rows, vocab = logits.shape
    kept = torch.ones((), dtype=torch.bool, device=logits.device).expand(rows, vocab)
    if mask is not None:
        kept = allowed_tokens(mask, vocab)
        logits = logits.masked_fill(~kept, float("-inf"))
    if top_k is not None:
        kept = kept & highest(logits, top_k)
    if top_p is not None:
        top_p = vector(top_p, logits, rows, torch.float32)
        probs = sample(logits, top_k=top_k, top_p=top_p, seed=0, probs=True).probs
        kept = kept & ((probs > 0) | (top_p >= 1).unsqueeze(1))
    return kept


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
