"""Sampling of vLLM's second model runner under tensor parallelism, without gathering logits.

Each rank computes the logits of its own columns. vLLM gathers the whole rows on every rank
(`LogitsProcessor._gather_logits`) and samples there. :func:`sample` takes the place of the runner's
method of that name: it draws by :func:`spec_ops.torch.sample_sharded`, for which the ranks exchange a
few numbers per row, and every rank gets the token of the whole row, to the bit.

What needs whole rows is left to vLLM's method: log-probabilities, penalties and other processors,
grammars, top-p without top-k, a top-k above 64, min-p with top-k. The log names each such reason once.
Steps of fewer than 16 rows without top-k are left to vLLM's method as well, because there gathering
logits takes less time than two collectives.

Needs vLLM.
"""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.logger import init_logger

from . import engines
from ._torch_shards import CANDIDATES, ROWS, sample_sharded
from .vllm_runner import _LOGPROBS, _MIN_P, _PROCESSORS, _TOP_K, _TOP_P, RejectionSampler, Sampler

__all__ = ["Shards", "local_logits", "sample"]

_TARGET = "vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample"
#: Prefixes of the names of Python instructions that compute with a tensor or write into it without
#: calling a function. Such code may change logits.
_CHANGES = ("BINARY", "INPLACE", "UNARY", "STORE_SUBSCR", "STORE_SLICE")

_logger = init_logger("vllm.spec_ops")


def local_logits(model: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The function that computes the logits of this rank's columns from hidden states; None if
    `compute_logits` of the model may do more than project and gather.

    vLLM's own is `compute_logits_local`, which few models have. For another model the code of
    `compute_logits` must show that no logit is changed after the gather, since such a change could
    count columns from the start of the whole row. So the code may only call the model's
    `LogitsProcessor` on its head, or `compute_logits` of a model inside.
    """
    own = getattr(model, "compute_logits_local", None)
    if own is not None:
        return own
    code = getattr(getattr(type(model), "compute_logits", None), "__code__", None)
    if code is None or any(one.opname.startswith(_CHANGES) for one in dis.get_instructions(code)):
        return None
    names = set(code.co_names)
    if names == {"logits_processor", "lm_head"}:
        return lambda hidden: model.logits_processor(model.lm_head, hidden, skip_gather=True)
    if len(names) == 2 and "compute_logits" in names:
        (inner,) = names - {"compute_logits"}
        return local_logits(getattr(model, inner, None))
    return None


class Shards:
    """The columns of this rank, and which steps are drawn from them."""

    def __init__(self, runner: Any) -> None:
        group = get_tp_group()
        self.group, self.rank, self.size = group.device_group, group.rank_in_group, group.world_size
        self.vocab = runner.vocab_size
        self.local = local_logits(runner.model)
        #: Why no step is drawn from columns; empty if steps are.
        self.never = self._never(runner)
        self.said: set[str] = set()
        #: How many steps were drawn in each way.
        self.drawn: Counter[str] = Counter()

    def _never(self, runner: Any) -> str:
        verifier = runner.rejection_sampler
        if self.local is None:
            return f"{type(runner.model).__name__}.compute_logits does more than project"
        if runner.lora_config is not None:
            return "LoRA adds to whole rows"
        if not isinstance(runner.sampler, Sampler):
            return f"the sampler is {type(runner.sampler).__name__}"
        if verifier is not None and (not isinstance(verifier, RejectionSampler) or verifier.other_rule):
            return "drafts are accepted by another rule than equality"
        return ""

    def way(self, runner: Any, batch: Any, grammar: Any) -> str | None:
        """How a step is drawn: a way of `sample_sharded`, or None for vLLM's own method. All ranks
        find the same, since each knows every request."""
        if self.size == 1:
            return None
        way, reason = None, self.never
        if not reason:
            way, reason = self._of_step(runner, batch, grammar)
        if reason and reason not in self.said:
            self.said.add(reason)
            if self.rank == 0:
                _logger.info("spec_ops gathers the logits of steps where %s", reason)
        return way

    def _of_step(self, runner: Any, batch: Any, grammar: Any) -> tuple[str | None, str]:
        """A way, if there is one, and why it needs whole rows, if it does."""
        sampler, slots = runner.sampler, batch.idx_mapping_np
        asked = sampler.asked_by(slots)
        if grammar is not None:
            return None, "a request has a grammar"
        if asked & _LOGPROBS:
            return None, "a request asks for log-probabilities"
        if asked & _PROCESSORS:
            return None, "a request has penalties or other processors"
        if sampler.is_theirs(asked):
            return None, "vLLM's own sampler serves a request"
        if batch.num_draft_tokens and runner.speculator.draft_logits is not None:
            if runner.rejection_sampler.other_noise:
                return None, "drafts are drawn on other noise"
        if asked & _TOP_K:
            states = sampler.sampling_states
            cut = states.top_k.np[slots] <= CANDIDATES
            if not (cut | (states.temperature.np[slots] == 0)).all():
                return None, f"a sampled request has a top_k above {CANDIDATES}, or none beside one that has"
            if asked & _MIN_P:
                return None, "a request has min_p, and one has top_k"
            return "candidates", ""
        if asked & _TOP_P:
            return None, "a request has top_p without top_k"
        return ("winners" if len(batch.logits_indices) >= ROWS else None), ""

    def draw(
        self, logits: torch.Tensor, way: str, sampler: Sampler, batch: Any, positions: torch.Tensor
    ) -> torch.Tensor:
        """The token of each row, `[rows]` of i32, from the logits of this rank's columns."""
        rows, columns = logits.shape
        asked, slots = sampler.asked_by(batch.idx_mapping_np), batch.expanded_idx_mapping
        _, _, temperature, seeds, _, *filters = sampler.drawn_from(logits, slots, positions, asked)
        first = self.rank * columns
        top_k, top_p, min_p = filters
        self.drawn[way] += 1
        return sample_sharded(
            # Behind the vocabulary, vLLM pads the head.
            logits[:, : self.vocab - first],
            self.group,
            positions[:rows],
            temperature,
            seeds,
            first_token=first,
            vocab=self.vocab,
            way=way,
            requests=slots,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
        )


def sample(
    self: Any, hidden_states: torch.Tensor, input_batch: Any, grammar_output: Any
) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """As `vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample`: the tokens of a step, and how many
    of each request were sampled and rejected."""
    batch, shards = input_batch, getattr(self, "spec_ops_shards", None)
    if shards is None:
        shards = self.spec_ops_shards = Shards(self)
    way = shards.way(self, batch, grammar_output)
    theirs = engines.ORIGINALS[_TARGET]
    if way is None:
        return theirs(self, hidden_states, batch, grammar_output)
    logits = shards.local(hidden_states[batch.logits_indices])
    rows, columns = logits.shape
    if not 0 < shards.vocab - (shards.size - 1) * columns <= columns < shards.vocab:
        # Every rank has the whole head, or the last rank has no column of the vocabulary.
        shards.never = f"ranks have {columns} columns of {shards.vocab}"
        return theirs(self, hidden_states, batch, grammar_output)
    if batch.num_draft_tokens == 0 or self.rejection_sampler is None:
        positions = self.sampler.positions(batch)
        tokens = shards.draw(logits, way, self.sampler, batch, positions)
        made = self.sampler.output(batch, tokens.unsqueeze(1).to(torch.int64))
    else:
        verifier = self.rejection_sampler
        drafts, positions = verifier.drafted(batch, rows)
        target = shards.draw(logits, way, self.sampler, batch, positions)
        tokens, taken = verifier.follow(drafts[:rows], target, batch.cu_num_logits)
        made = verifier.output(batch, rows, tokens, taken)
    return made, made.num_sampled, made.num_rejected
