"""Sampling of logits whose columns lie on several ranks of a process group of torch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ._functions import indexer_topk, sample_logits
from ._torch_finishers import all_gather, sample_once

#: Rows from which two small all-reduces take less time than gathering the logits.
ROWS = 16
#: Columns that each rank sends where rows have a top-k.
CANDIDATES = 64


def sample_sharded(
    logits: torch.Tensor,
    group: Any,
    positions: torch.Tensor,
    temperature: Any,
    seeds: Any,
    *,
    first_token: int | None = None,
    vocab: int | None = None,
    way: str | None = None,
    min_p: Any = None,
    top_k: Any = None,
    top_p: Any = None,
    requests: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    forced: torch.Tensor | None = None,
    flags: torch.Tensor | None = None,
) -> torch.Tensor:
    """The token of each row, `[rows]` of i32, the same on every rank of ``group``, and the same as
    that of `sample_logits` of the whole rows on one device.

    ``logits`` `[rows, columns]` are this rank's columns; ranks have them in the order of their
    numbers. All ranks call with the same number of rows and the same options. Other arguments are
    those of :func:`spec_ops.sample_logits` for the whole vocabulary: ``mask`` has bits for all
    tokens, and each rank passes the same. Nothing waits, so a call can be captured in a CUDA graph,
    except where a way says otherwise.

    ``first_token`` is the token of this rank's first column, and ``vocab`` the number of columns of
    all ranks; by default every rank has as many columns as this one. ``way`` says how:

    * ``"winners"``: each rank finds the largest logit of its columns, an all-reduce takes the
      maximum of these, each rank draws with it, and an all-reduce takes the minimum of `winners`: 12
      bytes per row. For all rows without ``top_k`` and ``top_p``.
    * ``"candidates"``: each rank sends its 64 largest logits, and every rank draws among them.
      ``top_k`` must be an `int` of 1 to 64. If ``way`` names this way, ``top_k`` may also be a tensor,
      whose values are not looked at: the caller knows that each is from 1 to 64, or its temperature 0.
    * ``"gather"``: every rank gathers the logits.
    * ``"finishers"``: :func:`sample_once`, one all-gather of 40 bytes per row, then ``"winners"`` if a
      token is not certain. Waits for the GPU to know, so it cannot be captured. For rows without
      ``mask``, ``forced`` and filters, and only if ``way`` names it.

    By default ``"candidates"`` if ``top_k`` allows it; ``"winners"`` for other rows without filters,
    from 16 rows on; else ``"gather"``. With ``"candidates"``, rows of which the mask allows no logit
    above negative infinity may take another token than the whole row, and a forced token that is
    none sets no flag.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    rows, columns = logits.shape
    if first_token is None:
        first_token = rank * columns
    if vocab is None:
        vocab = size * columns
    if way is None:
        way = _way(rows, top_k, top_p)
    given = {"requests": requests, "mask": mask, "forced": forced, "flags": flags, "min_p": min_p}
    drawn = (positions, temperature, seeds)
    if way == "winners":
        if top_k is not None or top_p is not None:
            raise ValueError("sample_sharded: `winners` knows neither top_k nor top_p")
        return _winners(logits, group, drawn, first_token, given)
    if way == "candidates":
        if not isinstance(top_k, torch.Tensor) and not _is_small(top_k):
            raise ValueError(f"sample_sharded: `candidates` takes a top_k of 1 to {CANDIDATES}")
        filters = {"top_k": top_k, "top_p": top_p}
        tokens = _candidates(logits, group, drawn, first_token, given | filters)
        return tokens if forced is None else _with_forced(tokens, forced, requests, vocab)
    if way == "finishers":
        if any(one is not None for one in (mask, forced, min_p, top_k, top_p)):
            raise ValueError("sample_sharded: `finishers` knows no mask, forced tokens or filters")
        options = {"first_token": first_token, "requests": requests, "flags": flags}
        tokens, certain = sample_once(logits, group, *drawn, **options)
        if not certain.all():
            tokens = tokens.where(certain, _winners(logits, group, drawn, first_token, given))
        return tokens
    if way != "gather":
        raise ValueError(f"sample_sharded: there is no way {way!r}")
    whole = _gathered(logits, group, size, vocab)
    filters = {"top_k": top_k, "top_p": top_p}
    return sample_logits(whole, *drawn, **given, **filters).tokens


def _is_small(top_k: Any) -> bool:
    """True if the 64 largest logits of each rank are enough."""
    return isinstance(top_k, int) and 1 <= top_k <= CANDIDATES


def _way(rows: int, top_k: Any, top_p: Any) -> str:
    if _is_small(top_k):
        return "candidates"
    return "winners" if top_k is None and top_p is None and rows >= ROWS else "gather"


def _winners(
    logits: torch.Tensor, group: Any, drawn: Any, first: int, given: dict[str, Any]
) -> torch.Tensor:
    of_rows = {name: given[name] for name in ("requests", "mask")}
    found = sample_logits(logits, *drawn, first_token=first, n=0, largest=True, **of_rows)
    maxima = found.largest
    dist.all_reduce(maxima, dist.ReduceOp.MAX, group)
    made = sample_logits(logits, *drawn, first_token=first, maxima=maxima, winners=True, **given)
    winners = made.winners
    dist.all_reduce(winners, dist.ReduceOp.MIN, group)
    # The low words are tokens.
    return winners.to(torch.int32)


def _candidates(
    logits: torch.Tensor, group: Any, drawn: Any, first: int, given: dict[str, Any]
) -> torch.Tensor:
    size, rows = dist.get_world_size(group), logits.shape[0]
    # A forced token need not be a candidate.
    given.pop("forced")
    allowed = _allowed(logits, given.pop("mask"), first)
    # The largest logits of this rank, of equal ones the lower columns, in the order of columns.
    best = indexer_topk(allowed, k=CANDIDATES, values=True, flags=given["flags"])
    tokens = torch.where(best.indices < 0, -1, best.indices + first)
    packed = torch.stack([best.values.view(torch.int32), tokens])
    gathered = packed.new_empty((size, 2, rows, CANDIDATES))
    all_gather(gathered, packed, group)
    values, tokens = gathered.permute(1, 2, 0, 3).reshape(2, rows, size * CANDIDATES)
    return sample_logits(values.view(torch.float32), *drawn, token_ids=tokens, **given).tokens


def _with_forced(
    tokens: torch.Tensor, forced: torch.Tensor, requests: torch.Tensor | None, vocab: int
) -> torch.Tensor:
    taken = (forced >= 0) & (forced < vocab)
    if requests is not None:
        # Padding has no token.
        taken &= requests != -1
    return torch.where(taken, forced, tokens)


def _allowed(logits: torch.Tensor, mask: torch.Tensor | None, first: int) -> torch.Tensor:
    """Logits with negative infinity for tokens that the mask does not allow."""
    if mask is None:
        return logits
    tokens = torch.arange(first, first + logits.shape[1], device=logits.device)
    bits = mask[:, tokens // 32] >> (tokens % 32).to(torch.int32)
    return logits.masked_fill((bits & 1) == 0, -torch.inf)


def _gathered(logits: torch.Tensor, group: Any, size: int, vocab: int) -> torch.Tensor:
    """The whole rows. Ranks may have different numbers of columns."""
    rows, columns = logits.shape
    if size * columns == vocab:
        made = logits.new_empty((size, rows, columns))
        all_gather(made, logits.contiguous(), group)
        return made.permute(1, 0, 2).reshape(rows, vocab)
    counts: list[Any] = [None] * size
    dist.all_gather_object(counts, columns, group)
    widest = max(counts)
    made = logits.new_empty((size, rows, widest))
    all_gather(made, torch.nn.functional.pad(logits, (0, widest - columns)), group)
    parts = [part[:, :count] for part, count in zip(made, counts, strict=True)]
    return torch.cat(parts, dim=1)

