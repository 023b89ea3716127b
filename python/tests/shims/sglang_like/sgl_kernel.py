"""SGLang's kernels, the one that is replaced. Without a GPU, tensors for one lie on the CPU."""

import functools

import torch

from spec_ops.sglang import verify_tree_greedy

__all__ = ["verify_tree_greedy"]


def _on_cpu(make):
    @functools.wraps(make)
    def made(*args, device=None, **kwargs):
        return make(*args, **kwargs)

    return made


if not torch.cuda.is_available():
    torch.tensor, torch.full = _on_cpu(torch.tensor), _on_cpu(torch.full)
