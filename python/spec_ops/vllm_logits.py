"""A logits processor for vLLM: what requests ask of `adjust_logits` and of masks beyond vLLM's own
sampling parameters.

vLLM loads it by its group `vllm.logits_processors`, in both model runners. A request that asks for
nothing costs nothing. Requests ask by ``SamplingParams(extra_args={..})``:

* ``no_repeat_ngram_size``: no n-gram of that many tokens occurs twice in the text.
* ``allowed_tokens``: a list of tokens; no others are chosen.

Needs vLLM.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _functions as functions
from .vllm import _texts

try:
    from vllm.v1.sample.logits_processor import LogitsProcessor as _First
except ImportError:
    _First = object
try:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as _Second
except ImportError:
    _Second = object

__all__ = ["AdjustLogits", "rows_of"]

_BASES = tuple(dict.fromkeys(base for base in (_First, _Second) if base is not object))


def _asked(params: Any) -> tuple[int, list[int] | None]:
    """What a request's parameters ask for."""
    extra = getattr(params, "extra_args", None) or {}
    return extra.get("no_repeat_ngram_size") or 0, extra.get("allowed_tokens")


def rows_of(states: Any, ctx: Any) -> dict[str, torch.Tensor]:
    """What `adjust_logits` reads besides logits, of a step of the second runner: the texts of all
    slots, each row's slot, and where rows are drafts, the drafts before each row."""
    slots = ctx.expanded_idx_mapping
    found = {
        "tokens": states.all_token_ids.gpu,
        "prompt_lengths": states.prompt_len.gpu,
        "lengths": states.total_len.gpu,
        "requests": slots.to(torch.int32),
    }
    if len(slots) != len(ctx.idx_mapping_np):
        before = torch.arange(-1, len(slots) - 1, dtype=torch.int32, device=slots.device)
        found["draft_tokens"] = ctx.input_ids
        found["parents"] = torch.where(ctx.expanded_local_pos > 0, before, -1)
    return found


class AdjustLogits(*_BASES):  # type: ignore[misc]
    """The processor, of either model runner: the first says where it pins memory, the second what
    its request slots hold."""

    #: Whether the engine that requests go to drops custom processors: vLLM's first model runner
    #: does where drafts are verified. :mod:`spec_ops.vllm_plugin` says so.
    dropped = False

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuses values that no request may have, and requests that the engine would not heed."""
        size, allowed = _asked(sampling_params)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError(f"no_repeat_ngram_size is {size!r}, expected a whole number from 0 on")
        if allowed is not None and (
            not isinstance(allowed, (list, tuple))
            or not allowed
            or not all(isinstance(token, int) and token >= 0 for token in allowed)
        ):
            raise ValueError(f"allowed_tokens is {allowed!r}, expected tokens")
        if cls.dropped and (size or allowed is not None):
            raise ValueError(
                "no_repeat_ngram_size and allowed_tokens are not heeded by vLLM's first model "
                "runner with a speculative config: use its second, or no drafts"
            )

    def __init__(self, vllm_config: Any, *where: Any) -> None:
        self.vocab = vllm_config.model_config.get_vocab_size()
        if len(where) == 1:
            self.states = where[0]
            slots, device = self.states.max_num_reqs, self.states.device
        else:
            self.states = None
            slots, device = vllm_config.scheduler_config.max_num_seqs, where[0]
        self.sizes = torch.zeros(slots, dtype=torch.int32)
        #: Which tokens each slot may choose, as bools; absent where any may be chosen.
        self.masks: dict[int, torch.Tensor] = {}
        self.requests: dict[int, tuple[Any, list[int], list[int]]] = {}
        self.device, self.on_device, self.changed = device, self.sizes.to(device), False

    def _take(self, slot: int, params: Any) -> bool:
        size, allowed = _asked(params)
        self.changed |= int(self.sizes[slot]) != size
        self.sizes[slot] = size
        self.masks.pop(slot, None)
        if allowed is not None:
            mask = torch.zeros(self.vocab, dtype=torch.bool)
            mask[[token for token in allowed if token < self.vocab]] = True
            self.masks[slot] = mask.to(self.device)
        return bool(size) or allowed is not None

    def _masked(self, logits: torch.Tensor, slot_of_row: torch.Tensor) -> None:
        """Leaves each row the tokens of its slot's mask. Their logits keep their bits."""
        any_token = torch.ones(self.vocab, dtype=torch.bool, device=self.device)
        table = torch.stack([any_token, *self.masks.values()])
        place = torch.zeros(len(self.sizes), dtype=torch.int64)
        place[list(self.masks)] = torch.arange(1, len(table))
        allowed = table[place.to(self.device)[slot_of_row.long()], : logits.shape[1]]
        logits.masked_fill_(~allowed, float("-inf"))

    # The second model runner.

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """A request enters a slot; whether it asks for anything."""
        return self._take(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Brings what changed to the device."""
        if self.changed:
            self.on_device.copy_(self.sizes, non_blocking=True)
            self.changed = False

    # The first model runner.

    def is_argmax_invariant(self) -> bool:
        """It forbids tokens, also the likeliest."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Requests enter, leave and move."""
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.requests.pop(index, None)
        for index, params, prompt, output in batch_update.added:
            self.requests.pop(index, None)
            if any(_asked(params)):
                self.requests[index] = (params, list(prompt or []), output)
        for a, b, direction in batch_update.moved:
            first, second = self.requests.pop(a, None), self.requests.pop(b, None)
            if first is not None:
                self.requests[b] = first
            if second is not None and getattr(direction, "name", "") == "SWAP":
                self.requests[a] = second

    # Both.

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Changes logits ``[rows, vocab]`` in place."""
        return self._apply_first(logits) if ctx is None else self._apply_second(logits, ctx)

    def _apply_second(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        slots = ctx.idx_mapping_np
        if self.sizes[slots].any():
            functions.adjust_logits(
                logits, **rows_of(self.states, ctx), no_repeat_ngram=self.on_device
            )
        if not self.masks.keys().isdisjoint(slots.tolist()):
            self._masked(logits, ctx.expanded_idx_mapping)
        return logits

    def _apply_first(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.requests:
            return logits
        rows = sorted(self.requests)
        for row in rows:
            self._take(row, self.requests[row][0])
        self.apply_staged_writes()
        texts = [self.requests[row][1] + list(self.requests[row][2]) for row in rows]
        tokens, lengths = _texts(texts, logits)
        index = torch.tensor(rows, device=logits.device)
        part = logits[index]
        sizes = self.on_device[index]
        functions.adjust_logits(
            part, tokens, torch.zeros_like(lengths), lengths, no_repeat_ngram=sizes
        )
        if not self.masks.keys().isdisjoint(rows):
            self._masked(part, index)
        logits[index] = part
        return logits
