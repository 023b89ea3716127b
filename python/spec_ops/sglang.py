"""Verification of drafted trees in SGLang's own signature.

from spec_ops.sglang import verify_tree_greedy
"""

from __future__ import annotations

import torch

from . import _functions as functions

__all__ = ["verify_tree_greedy"]


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
    """As SGLang's: the first three are written, what is not accepted stays as it was.

    SGLang's outputs follow from `tree_verify`'s: the nodes of the path are looked up in
    ``retrieve_index``, and the target's tokens are put where they say.
    """
    path = functions.tree_verify(
        candidates,
        target_predict,
        retrieve_next_token,
        retrieve_next_sibling,
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
