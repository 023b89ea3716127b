"""Plain loops and torch's own operators that do what the engines say that their functions do, and
the devices that the functions are tested on."""

import math

import pytest
from conftest import need, need_cuda

torch = need("torch", whole_file=True)


@pytest.fixture(params=["cpu", "cuda"], autouse=True)
def device(request):
    """Where the tensors of a test lie, unless it says otherwise."""
    if request.param == "cuda":
        need_cuda(torch)
    with torch.device(request.param):
        yield request.param


def plain_router(logits, bias, topk, scoring, groups=1, kept=1, renormalize=True, scale=1.0):
    """As the engines' Python references have it."""
    score = {
        "softmax": lambda x: x.softmax(-1),
        "sigmoid": torch.sigmoid,
        "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    }[scoring](logits.float())
    choice = score if bias is None else score + bias.float()
    if groups > 1:
        grouped = choice.view(len(choice), groups, -1)
        of_group = grouped.topk(2, dim=-1).values.sum(-1)
        best = of_group.topk(kept, dim=-1).indices
        mask = torch.zeros_like(of_group).scatter_(1, best, 1).bool()
        choice = grouped.masked_fill(~mask.unsqueeze(-1), float("-inf")).view(len(choice), -1)
    indices = choice.argsort(dim=-1, descending=True, stable=True)[:, :topk]
    weights = score.gather(1, indices)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, indices


def plain_align(topk_ids, experts, block):
    """Blocks of picks by expert: the picks of each block, and the block's expert."""
    flat, blocks = topk_ids.flatten().tolist(), []
    for expert in range(experts):
        picks = [i for i, one in enumerate(flat) if one == expert]
        for at in range(0, len(picks), block):
            run = picks[at : at + block]
            blocks.append((expert, run + [len(flat)] * (block - len(run))))
    return blocks


def plain_filters(logits, k, p):
    """Temperature 1, top-k, then top-p of what is left, by sorting."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ranked = logits.gather(1, order)
    ranked = ranked.masked_fill(torch.arange(logits.shape[1]) >= k.unsqueeze(1), float("-inf"))
    probs = ranked.double().softmax(-1)
    ranked = ranked.masked_fill(probs.cumsum(-1) - probs >= p.unsqueeze(1), float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ranked)


def close_to(counts, probs, count):
    """A chi-squared test at six standard deviations, over what is expected at least 5 times."""
    expected = probs.double() * count
    seen = expected >= 5
    chi = ((counts.double() - expected)[seen] ** 2 / expected[seen]).sum().item()
    free = int(seen.sum()) - 1
    assert chi < free + 6 * math.sqrt(2 * free) + 1, (chi, free)
    assert counts[probs == 0].sum() == 0
