"""The token of rows whose columns lie on several ranks, by one all-gather of 40 bytes per row."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from ._functions import sample_logits

#: How many tokens of its race each rank sends, the first to finish.
FINISHERS = 4
#: What a rank sends for each row: its finishers, and the token of its largest logit.
SENT = FINISHERS + 1
#: The high word of `winners` of `sample_logits` for a token that does not race.
NOTHING = 2**31 - 1
#: If one time is below another one times MARGIN, the two tokens finish in the same order in the race of
#: a rank and in the race of the whole row.
#:
#: A time is E * exp(-a), with a = (x - m) / T and m the largest logit. With the largest logit of the
#: rank in place of that of the row, all times of a rank change by the same factor, except for
#: rounding. Where a token races, a is above -28. Two roundings of a change it by less than
#: 28 * 2^-23, `exp` is right to 2.6e-7 and the product to 2^-24: together less than 3.7e-6 for each
#: time. Two times of two tokens are compared in two races, so four such errors add up: 1.5e-5.
#:
#: A token whose weight is below 2^-40 does not race. In the race of the whole row weights are not larger
#: than in that of the rank, since near 2^-40 any change of a changes `exp` by more than its error. So
#: a token that does not race in its rank does not race in the row.
MARGIN = 1 - 2.0**-15


def sample_once(
    logits: torch.Tensor,
    group: Any,
    positions: torch.Tensor,
    temperature: Any,
    seeds: Any,
    *,
    first_token: int | None = None,
    requests: torch.Tensor | None = None,
    flags: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The token of each row, `[rows]` of i32, and whether it is certain, `[rows]` of bool; both the
    same on every rank of ``group``.

    One all-gather takes the place of the two all-reduces of :func:`sample_sharded`: each rank races
    its own columns, and sends its first four tokens to finish and the token of its largest logit, with
    their logits. Every rank then knows the largest logit of the row, and computes the times of these
    tokens as `sample_logits` does for the whole row. A certain token is that of the whole row, to the
    bit. A token is certain if no token that a rank did not send can finish first. In the race of its
    rank, a token that was not sent finished behind the rank's fourth. In the race of the whole row
    these two tokens can only change places if their times are nearly equal. Nearly all tokens are
    certain. For the other rows call :func:`sample_sharded` with ``way="winners"``.

    Arguments are those of :func:`sample_sharded`. Filters, masks and forced tokens are not known here.
    Nothing waits, so a call can be captured in a CUDA graph.
    """
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    rows, columns = logits.shape
    if first_token is None:
        first_token = rank * columns
    own = sample_logits(
        logits,
        positions,
        temperature,
        seeds,
        first_token=first_token,
        n=FINISHERS,
        top=1,
        top_tokens=True,
        requests=requests,
        flags=flags,
    )
    tokens = torch.cat([own.tokens, own.top_tokens], dim=1)
    # A token is -1 if the rank has fewer than four finishers.
    column = (tokens - first_token).clamp_min(0).long()
    values = logits.gather(1, column).float()
    packed = torch.stack([values.view(torch.int32), tokens])
    gathered = packed.new_empty((size, 2, rows, SENT))
    all_gather(gathered, packed, group)
    values, tokens = gathered.permute(1, 2, 0, 3).reshape(2, rows * size * SENT).contiguous()
    return _settled(values.view(torch.float32), tokens, positions, temperature, seeds, requests, size)


def _settled(
    values: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    temperature: Any,
    seeds: Any,
    requests: torch.Tensor | None,
    size: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first token of each row, and whether it is certain, from what all ranks have sent: logits
    and tokens `[rows * size * SENT]`."""
    rows, of_row = len(positions), size * SENT
    values = torch.where((tokens < 0) | values.isnan(), -torch.inf, values)
    if requests is None and any(isinstance(one, torch.Tensor) for one in (temperature, seeds)):
        requests = torch.arange(rows, dtype=torch.int32, device=values.device)
    if requests is not None:
        requests = requests.repeat_interleave(of_row)
    # A row of one column for each token, so that `winners` has the time of each.
    made = sample_logits(
        values.unsqueeze(1),
        positions.repeat_interleave(of_row),
        temperature,
        seeds,
        token_ids=tokens.unsqueeze(1),
        requests=requests,
        maxima=values.view(rows, of_row).amax(1).repeat_interleave(of_row),
        winners=True,
    )
    winners, tokens = made.winners.view(rows, size, SENT), tokens.view(rows, size, SENT)
    first = winners.amin((1, 2))
    races = winners >> 32 != NOTHING
    times = _time(winners)[:, :, :FINISHERS].where(races[:, :, :FINISHERS], 0.0)
    # A token that its rank kept for itself finishes behind all of the rank's finishers.
    behind = times.amax(2) * MARGIN > _time(first).unsqueeze(1)
    # A rank with fewer finishers has sent all tokens that race, and none of a rank races if that of
    # the largest logit does not.
    none = (tokens[:, :, FINISHERS - 1] < 0) | ~races[:, :, FINISHERS]
    # Place 1: the likeliest token was asked for.
    certain = (behind | none).all(1) | (first >> 32 == 1)
    return first.to(torch.int32), certain


def _time(winners: torch.Tensor) -> torch.Tensor:
    """The times in the high words of `winners`."""
    return (winners >> 32).to(torch.int32).view(torch.float32)


def all_gather(made: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    """Gathers the tensors of all ranks."""
    # As bytes, since Gloo does not know every type.
    to, of = made.view(-1).view(torch.uint8), own.view(-1).view(torch.uint8)
    # Later versions of torch have another name for it.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(to, of, group)
