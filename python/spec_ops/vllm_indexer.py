"""The top-k of vLLM's sparse attention.

Needs vLLM.
"""

from __future__ import annotations

import torch
from vllm.model_executor.layers import indexer_topk as vllm_indexer

from . import _functions as functions

__all__ = ["SparseIndexerTopk"]


class SparseIndexerTopk(vllm_indexer.SparseIndexerTopk):
    """vLLM's `SparseIndexerTopk`, which chooses the positions that a decoding row attends to, by
    `indexer_topk` whatever backend is configured. Positions are ascending, and of equal scores the
    lower position is chosen."""

    def forward(
        self,
        logits: torch.Tensor,
        seq_lens: torch.Tensor,
        next_n: int,
        topk_indices: torch.Tensor,
        topk_tokens: int,
        max_seq_len: int,
    ) -> None:
        """Writes `topk_indices`, -1 behind the positions of a row that has fewer."""
        del max_seq_len
        rows = len(logits)
        if seq_lens.numel() == rows:
            lengths = seq_lens.view(-1)
        else:
            # The last of a request's rows sees its whole text.
            before = torch.arange(1 - next_n, 1, dtype=torch.int32, device=seq_lens.device)
            lengths = (seq_lens.view(-1, 1) + before).clamp_(min=0).view(-1)
        out = topk_indices[:rows, :topk_tokens]
        functions.indexer_topk(logits, k=topk_tokens, lengths=lengths, out=(out,))
