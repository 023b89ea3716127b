"""A plugin of pytest: `torch.topk` with the lower index first among equals, which torch leaves open.
References that choose by it have ties in numbers of 16 bits."""

import torch


def topk(x, k, dim=-1, **_):
    """As `torch.topk`, sorted."""
    values, indices = x.sort(dim=dim, descending=True, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), indices.narrow(dim, 0, k)))


torch.topk = topk
