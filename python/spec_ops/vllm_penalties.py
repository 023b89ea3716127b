"""Penalties and bad words of vLLM's second model runner, its default.

Both classes take the place of vLLM's of the same names. `adjust_logits` reads a request's text where
vLLM keeps it, and touches the logits of the text's tokens only, where vLLM's kernel of penalties reads
and writes all logits and a count for each. A row of a draft has the drafts before it in its text.

Needs vLLM.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import torch
from vllm.v1.worker.gpu.sample import bad_words as vllm_bad_words
from vllm.v1.worker.gpu.sample import penalties as vllm_penalties

from . import _functions as functions
from .vllm_logits import rows_of

__all__ = ["BadWordsState", "PenaltiesState"]


class PenaltiesState(vllm_penalties.PenaltiesState):
    """vLLM's `PenaltiesState`. Its counts stay, since vLLM updates them in each step, and so does its
    kernel where texts are in host memory: vLLM has them on the GPU for n-gram drafts alone."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)
        self.far = hasattr(req_states.all_token_ids, "_uva_buf")

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Changes logits ``[rows, vocab]`` in place."""
        if self.far:
            return super().apply(logits, ctx)
        if self.use_penalty[ctx.idx_mapping_np].any():
            functions.adjust_logits(
                logits,
                **rows_of(self.req_states, ctx),
                repetition=self.repetition_penalty.gpu,
                frequency=self.frequency_penalty.gpu,
                presence=self.presence_penalty.gpu,
            )
        return logits


class BadWordsState(vllm_bad_words.BadWordsState):
    """vLLM's `BadWordsState`, with the words of all slots in one list."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        super().__init__(vllm_config, req_states)
        self.words: list[list[list[int]]] = [[] for _ in range(req_states.max_num_reqs)]
        self.changed = False
        #: Where each slot's words begin, where each word's tokens begin, and the tokens.
        self.lists: tuple[torch.Tensor, ...] = ()

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request enters a slot; whether it has bad words."""
        has_words = super().add_request(req_idx, sampling_params)
        words = [list(word) for word in sampling_params.bad_words_token_ids or ()]
        self.changed |= words != self.words[req_idx]
        self.words[req_idx] = words
        return has_words

    def apply_staged_writes(self) -> None:
        """Brings what changed to the device."""
        super().apply_staged_writes()
        if self.changed:
            words = list(chain.from_iterable(self.words))
            lists = (
                [0, *accumulate(map(len, self.words))],
                [0, *accumulate(map(len, words))],
                list(chain.from_iterable(words)),
            )
            device = self.req_states.device
            self.lists = tuple(torch.tensor(one, dtype=torch.int32).to(device) for one in lists)
            self.changed = False

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Changes logits ``[rows, vocab]`` in place."""
        if self.num_bad_words.np[ctx.idx_mapping_np].any():
            slots, words, tokens = self.lists
            functions.adjust_logits(
                logits,
                **rows_of(self.req_states, ctx),
                bad_offsets=slots,
                word_offsets=words,
                word_tokens=tokens,
            )
        return logits
