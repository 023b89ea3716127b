"""Sampling, verification and drafting of vLLM's second model runner, its default, in few calls.

:class:`Sampler` and :class:`RejectionSampler` take the place of vLLM's classes, :class:`Drafter` and
:class:`SuffixDrafter` that of its n-gram speculator. A step of the engine is one call into the
compiled half for the tokens of all rows and the drafts that are kept, and one for the next drafts.
No operator of torch stands between vLLM's tensors and these calls, because on a small model a step
waits for the host, which launches such operators.

A request's token at a position depends on its seed, the position and its logits alone, and no draft
changes the text: verification emits the target's own tokens, with or without drafts.

Needs vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.sample import sampler as vllm_sampler
from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsContext
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode import init_speculator as vllm_init_speculator
from vllm.v1.worker.gpu.spec_decode import rejection_sampler as vllm_rejection
from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

from . import Pipeline, PromptLookup, SampleLogits, SuffixLookup, TreeVerify

__all__ = [
    "Drafter",
    "RejectionSampler",
    "Sampler",
    "SuffixDrafter",
    "init_speculator",
    "init_suffix_speculator",
]

# What a request asks for, as bits.
_TOP_K, _TOP_P, _MIN_P, _LOGPROBS, _PROCESSORS, _UNUSUAL = (1 << bit for bit in range(6))
#: The most likely tokens that sample_logits reports.
_MAX_TOP = 256
#: Speculators whose drafts are drawn by kernels of their own, on other noise than the target's.
_OTHER_NOISE = ("dflash2", "dspark", "xpress", "lilicorr")


#: What `sample_logits` reads, in the order in which the calls below pass it.
_DRAWN_FROM = ("logits", "positions", "temperature", "seeds", "requests", "top_k", "top_p", "min_p")


def _scores(top: int | None) -> dict[str, None]:
    """The results that log-probabilities are made of, with those of the `top` likeliest tokens; None
    where nobody asks for log-probabilities."""
    if top is None:
        return {}
    names = ("logprobs", "ranks") + ("top_tokens", "top_logprobs") * bool(top)
    return dict.fromkeys(names)


class _Firsts(dict):
    """The first elements of a tensor, by their number: a view costs as much as a small operator."""

    def __init__(self, whole: torch.Tensor) -> None:
        super().__init__()
        self.whole = whole

    def __missing__(self, count: int) -> torch.Tensor:
        view = self[count] = self.whole[:count]
        return view


def logprobs(
    tokens: torch.Tensor,
    scores: torch.Tensor,
    ranks: torch.Tensor,
    likeliest: torch.Tensor | None = None,
    of_likeliest: torch.Tensor | None = None,
) -> LogprobsTensors:
    """Of tokens `[rows, 1]`: each row's own log-probability comes first, then those of the
    likeliest."""
    if likeliest is not None:
        tokens = torch.cat((tokens, likeliest), dim=1)
        scores = torch.cat((scores, of_likeliest), dim=1)
    return LogprobsTensors(tokens, scores, ranks.view(-1))


class Sampler(vllm_sampler.Sampler):
    """vLLM's `Sampler`, whose steps from the logits to tokens and their log-probabilities are one
    call of `sample_logits`.

    Temperatures, filters and seeds are read where vLLM keeps them, by slot. Penalties, biases, bad
    words and custom processors stay vLLM's; they run in the batches that ask for them. Positions
    are vLLM's: of the token before the one that is drawn.
    """

    def __init__(self, vllm_config: Any, max_num_reqs: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, max_num_reqs, *args, **kwargs)
        #: What the request in each slot asks for.
        self.asked = np.zeros(max_num_reqs, dtype=np.int64)
        device = self.req_states.device
        self.one_each = _Firsts(torch.ones(max_num_reqs, dtype=torch.int32, device=device))
        self.none_each = _Firsts(torch.zeros(max_num_reqs, dtype=torch.int32, device=device))
        #: By the number of likeliest tokens that log-probabilities are asked of.
        self.pipelines: dict[int | None, Pipeline] = {}
        #: Whether each step of the engine asks for more than tokens and log-probabilities.
        self.unusual = bool(
            self.compute_nans or self.return_sampling_mask or self.trace_replay_state is not None
        )
        #: What all slots ask for, together.
        self.asked_by_any = _UNUSUAL if self.unusual else 0

    def add_request(self, req_idx: int, sampling_params: Any) -> None:
        """A request enters a slot."""
        of_sampling = self.sampling_states.add_request(req_idx, sampling_params)
        of_processors = self.thinking_budget_state.add_request(req_idx, sampling_params)
        for processor in self.logits_processors:
            of_processors |= bool(processor.add_request(req_idx, sampling_params))
        self.needs_logits_processing[req_idx] = of_sampling or of_processors
        self.logprob_token_ids_state.add_request(req_idx, sampling_params)
        if self.trace_replay_state is not None:
            self.trace_replay_state.add_request(req_idx, sampling_params)
        self.asked[req_idx] = self._asked_by(req_idx, of_processors)
        asked = int(np.bitwise_or.reduce(self.asked))
        self.asked_by_any = asked | _UNUSUAL if self.unusual else asked

    def _asked_by(self, slot: int, processed: bool) -> int:
        states = self.sampling_states
        asked = _PROCESSORS if processed else 0
        if states.temperature.np[slot] != 0:
            asked |= _TOP_K if states.top_k.np[slot] != states.vocab_size else 0
            asked |= _TOP_P if states.top_p.np[slot] != 1 else 0
            asked |= _MIN_P if states.min_p.np[slot] != 0 else 0
        count = states.num_logprobs[slot]
        if count != vllm_sampler.NO_LOGPROBS:
            asked |= _LOGPROBS if count <= _MAX_TOP else _UNUSUAL
            # Log-probabilities of what the filters left, and logits: vLLM's own.
            asked |= 0 if self.logprobs_mode == "raw_logprobs" else _UNUSUAL
        if self.logprob_token_ids_state.num_token_ids.np[slot]:
            asked |= _UNUSUAL
        return asked

    def asked_by(self, slots: np.ndarray) -> int:
        """What the requests of a batch ask for, together."""
        if not self.asked_by_any:
            return 0
        asked = int(np.bitwise_or.reduce(self.asked[slots]))
        return asked | _UNUSUAL if self.unusual else asked

    def drawn_from(
        self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, asked: int
    ) -> tuple[torch.Tensor | None, ...]:
        """The arrays of `_DRAWN_FROM`. There may be more positions than rows of logits."""
        states = self.sampling_states
        return (
            logits,
            positions,
            states.temperature.gpu,
            states.seeds.gpu,
            slots,
            states.top_k.gpu if asked & _TOP_K else None,
            states.top_p.gpu if asked & _TOP_P else None,
            states.min_p.gpu if asked & _MIN_P else None,
        )

    def top(self, slots: np.ndarray, asked: int) -> int | None:
        """How many likeliest tokens log-probabilities are asked of; None: no log-probabilities."""
        return self.sampling_states.max_num_logprobs(slots) if asked & _LOGPROBS else None

    def draw(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        asked: int,
        top: int | None = None,
    ) -> tuple[torch.Tensor, LogprobsTensors | None]:
        """A token for each row of logits, `[rows, 1]` of i64, and with `top` its log-probability and
        rank, and the log-probabilities of the `top` likeliest tokens."""
        pipeline = self.pipelines.get(top)
        if pipeline is None:
            pipeline = self.pipelines[top] = Pipeline(
                _DRAWN_FROM,
                [SampleLogits(min_p_first=True, n=1, top=top or None)],
                results={"tokens": "i64"} | _scores(top),
                first={"positions": "logits"},
            )
        made = pipeline(*self.drawn_from(logits, slots, positions, asked))
        if top is None:
            return made, None
        return made[0], logprobs(*made)

    @staticmethod
    def is_theirs(asked: int) -> bool:
        """Whether vLLM's own step serves what is asked: also log-probabilities of logits that
        processors change, which are those of the logits before."""
        both = _PROCESSORS | _LOGPROBS
        return bool(asked & _UNUSUAL) or asked & both == both

    @staticmethod
    def context(batch: Any, input_ids: torch.Tensor, pos: torch.Tensor) -> LogitsContext:
        """What processors read of a step, of whose rows these are the tokens and positions."""
        return LogitsContext(
            expanded_idx_mapping=batch.expanded_idx_mapping,
            idx_mapping=batch.idx_mapping,
            idx_mapping_np=batch.idx_mapping_np,
            expanded_local_pos=batch.expanded_local_pos,
            input_ids=input_ids,
            pos=pos,
            seq_lens_upper_bound_np=batch.seq_lens_cpu_upper_bound.numpy(),
        )

    def adjusted(self, logits: torch.Tensor, context: LogitsContext) -> torch.Tensor:
        """Logits in f32 as vLLM's processors leave them, before temperatures and filters."""
        logits = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
        for processor in self.logits_processors:
            logits = processor.apply(logits, context)
        self.thinking_budget_state.apply(logits, context)
        return logits

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> SamplerOutput:
        """A token for each request of a step without drafts."""
        batch = input_batch
        asked = self.asked_by(batch.idx_mapping_np)
        if self.is_theirs(asked):
            return super().__call__(logits, batch)
        requests = batch.num_reqs
        positions = self.positions(batch)
        if asked & _PROCESSORS:
            input_ids = batch.input_ids
            if positions is not batch.positions:
                input_ids = input_ids[batch.logits_indices]
            context = self.context(batch, input_ids[:requests], positions[:requests])
            logits = self.adjusted(logits, context)
        top = self.top(batch.idx_mapping_np, asked)
        tokens, scores = self.draw(logits, batch.idx_mapping, positions, asked, top)
        return self.output(batch, tokens, scores)

    @staticmethod
    def positions(batch: Any) -> torch.Tensor:
        """The position of each row of a step without drafts. There may be more of them than rows."""
        if batch.has_prefill or batch.num_tokens != batch.num_reqs:
            return batch.positions[batch.logits_indices]
        return batch.positions

    def output(
        self, batch: Any, tokens: torch.Tensor, scores: LogprobsTensors | None = None
    ) -> SamplerOutput:
        """What vLLM goes on with, of the tokens `[requests, 1]` of a step without drafts."""
        requests = batch.num_reqs
        num_sampled, num_rejected = self.one_each[requests], self.none_each[requests]
        if batch.has_prefill:
            # A request that is still reading its prompt takes no token.
            num_sampled, num_rejected = get_num_sampled_and_rejected(
                num_sampled.clone(),
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                self.req_states.prefill_len.gpu,
            )
        return SamplerOutput(
            sampled_token_ids=tokens,
            logprobs_tensors=scores,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )

    def sample(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray,
        pos: torch.Tensor,
        input_ids: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        return_logprobs: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As vLLM's: tokens, and the logits that they were drawn from. Where nobody asks for the
        latter, they are the logits before temperatures and filters."""
        asked = self.asked_by(idx_mapping_np)
        context = LogitsContext(
            expanded_idx_mapping=expanded_idx_mapping,
            idx_mapping=idx_mapping,
            idx_mapping_np=idx_mapping_np,
            expanded_local_pos=expanded_local_pos,
            input_ids=input_ids,
            pos=pos,
            seq_lens_upper_bound_np=seq_lens_upper_bound_np,
        )
        if asked & _PROCESSORS:
            logits = self.adjusted(logits, context)
        tokens, _ = self.draw(logits, expanded_idx_mapping, pos, asked)
        if self.return_sampling_mask or return_logprobs and self.logprobs_mode.startswith("processed"):
            logits = self.filtered(logits, context)
        return tokens.view(-1), logits

    def filtered(self, logits: torch.Tensor, context: LogitsContext) -> torch.Tensor:
        """Logits that processors have changed, as vLLM's temperatures and filters leave them."""
        states, slots = self.sampling_states, context.expanded_idx_mapping
        logits = logits.to(torch.float32, copy=True)
        states.apply_temperature(logits, slots, context.idx_mapping_np)
        states.apply_min_p(logits, slots, context.idx_mapping_np)
        return states.apply_top_k_top_p(logits, slots, context.idx_mapping_np)


class RejectionSampler(vllm_rejection.RejectionSampler):
    """vLLM's `RejectionSampler`, which follows the target's own tokens down the drafts.

    `sample_logits` draws a token in each row, as it would without drafts, and `tree_verify` goes on
    while the drafts are those tokens. Drafts that a model draws on the same noise are accepted about
    as often as rejection sampling would accept them. Drafts drawn on other noise, with their
    probabilities, go through :func:`spec_ops.vllm_v2.rejection_sample`.
    """

    #: The tokens of each request `[requests, columns]`, -1 behind, and their numbers.
    _followed = {"tokens": "i64", "num_tokens": None}

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device, **named: Any) -> None:
        super().__init__(sampler, spec_config, device, **named)
        self.columns = self.num_speculative_steps + 1
        # torch subtracts from a tensor in a third of the time that a number takes.
        slots = sampler.sampling_states.max_num_reqs
        every = torch.full((slots,), self.columns, dtype=torch.int32, device=device)
        self.all_columns = _Firsts(every)
        self.pipelines: dict[int | None, Pipeline] = {}
        self.follow = Pipeline(
            ("drafts", "target", "offsets"), [self._following()], results=self._followed
        )
        self.other_noise = spec_config.method in _OTHER_NOISE
        #: Whether vLLM's config accepts drafts by a rule other than equality with the sampled token.
        self.other_rule = (
            self.synthetic_conditional_rates is not None
            or self.use_block_verification
            or bool(getattr(self, "fly_window_size", 0))
            or self.watermark_key is not None
            or not isinstance(sampler, Sampler)
        )

    def _following(self) -> tuple[TreeVerify, dict[str, str]]:
        """The stage that goes down each request's drafts."""
        arrays = {"draft_tokens": "drafts", "target_tokens": "target", "row_offsets": "offsets"}
        return TreeVerify(max_depth=self.num_speculative_steps), arrays

    def verify(self, top: int | None) -> Pipeline:
        """Draws the target's token in each row and follows the drafts; with `top`, reports the
        target's tokens and their log-probabilities too."""
        pipeline = self.pipelines.get(top)
        if pipeline is None:
            # A column of one token, as log-probabilities are reported of, is no chain of drafts.
            drawing = SampleLogits(min_p_first=True, top=top or None), {"tokens": "target"}
            scores = _scores(top) if top is None else {"target": "i64"} | _scores(top)
            pipeline = self.pipelines[top] = Pipeline(
                (*_DRAWN_FROM, "drafts", "offsets"),
                [drawing, self._following()],
                results=self._followed | scores,
                first={"positions": "logits", "drafts": "logits"},
            )
        return pipeline

    def __call__(
        self,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> SamplerOutput:
        """The tokens of a step with drafts."""
        batch, sampler = input_batch, self.sampler
        if self.other_rule:
            return super().__call__(logits, batch, draft_logits, invalid_drafts)
        asked = sampler.asked_by(batch.idx_mapping_np)
        rows = len(logits)
        if (
            sampler.is_theirs(asked)
            or draft_logits is not None and self.other_noise
            # Logits in f32, for processors, take their memory in parts.
            or asked & _PROCESSORS and rows > vllm_rejection.get_max_chunk_logits(logits.shape[1])
        ):
            return super().__call__(logits, batch, draft_logits, invalid_drafts)
        drafts, positions = self.drafted(batch, rows)
        if asked & _PROCESSORS:
            logits = sampler.adjusted(logits, sampler.context(batch, drafts[:rows], positions[:rows]))
        if invalid_drafts is not None:
            drafts = drafts[:rows].masked_fill(invalid_drafts, -1)
        top = sampler.top(batch.idx_mapping_np, asked)
        drawn_from = sampler.drawn_from(logits, batch.expanded_idx_mapping, positions, asked)
        tokens, taken, *of_rows = self.verify(top)(*drawn_from, drafts, batch.cu_num_logits)
        scores = self._scored(batch, *of_rows) if of_rows else None
        return self.output(batch, rows, tokens, taken, scores)

    def drafted(self, batch: Any, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The draft and the position of each row. There may be more of them than rows, where the
        step replays a larger graph."""
        if batch.has_prefill or batch.num_tokens != rows:
            return vllm_rejection.gather_draft_sampled(
                batch.input_ids,
                batch.positions,
                batch.logits_indices,
                batch.expanded_idx_mapping,
                batch.expanded_local_pos,
                self.sampler.req_states.prefill_len.gpu,
            )
        return batch.input_ids, batch.positions

    def output(
        self,
        batch: Any,
        rows: int,
        tokens: torch.Tensor,
        taken: torch.Tensor,
        scores: LogprobsTensors | None = None,
    ) -> SamplerOutput:
        """What vLLM goes on with, of the tokens of each request and their numbers."""
        requests = batch.num_reqs
        if rows == requests * self.columns and not batch.has_prefill:
            rejected = self.all_columns[requests] - taken
        else:
            # Takes no token of a request that is still reading its prompt.
            taken, rejected = get_num_sampled_and_rejected(
                taken,
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                self.sampler.req_states.prefill_len.gpu,
            )
        return SamplerOutput(
            sampled_token_ids=tokens,
            logprobs_tensors=scores,
            num_nans=None,
            num_sampled=taken,
            num_rejected=rejected,
        )

    def _scored(
        self, batch: Any, target: torch.Tensor, scores: torch.Tensor, ranks: torch.Tensor, *top: Any
    ) -> LogprobsTensors:
        """The log-probabilities of all rows, and where each request's rows begin."""
        made = logprobs(target.unsqueeze(1), scores.unsqueeze(1), ranks, *top)
        if len(target) == batch.num_reqs:
            return made
        if self.enable_adaptive_verification:
            return made._replace(cu_num_generated_tokens_tensor=batch.cu_num_logits.clone())
        of_requests: Any = batch.cu_num_logits_np.tolist()
        return made._replace(cu_num_generated_tokens=of_requests)

    def _verify(
        self,
        logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        draft_sampled: torch.Tensor,
        pos: torch.Tensor,
        cu_num_logits: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: np.ndarray,
        expanded_idx_mapping: torch.Tensor,
        expanded_local_pos: torch.Tensor,
        seq_lens_upper_bound_np: np.ndarray,
        verify_draft_sampled: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As vLLM's, of some of the requests: logits, tokens and their numbers."""
        if self.other_rule or draft_logits is not None and self.other_noise:
            return super()._verify(
                logits,
                draft_logits,
                draft_sampled,
                pos,
                cu_num_logits,
                idx_mapping,
                idx_mapping_np,
                expanded_idx_mapping,
                expanded_local_pos,
                seq_lens_upper_bound_np,
                verify_draft_sampled,
            )
        sampler = self.sampler
        target, processed = sampler.sample(
            logits,
            expanded_idx_mapping,
            idx_mapping,
            idx_mapping_np,
            pos,
            draft_sampled,
            expanded_local_pos,
            seq_lens_upper_bound_np,
            return_logprobs=bool(sampler.asked_by(idx_mapping_np) & _UNUSUAL),
        )
        tokens, taken = self.follow(verify_draft_sampled, target, cu_num_logits)
        return processed, tokens, taken


class Drafter(BaseSpeculator):
    """Drafts from each request's own text: what followed the last occurrence of its last tokens.

    Takes the place of `NgramGPUSpeculator`. Texts are read where vLLM keeps them, in the rows of
    request slots. Behind the drafts stands the text's last token, since vLLM verifies the same
    number of drafts for each request.
    """

    supports_mm_inputs = False
    draft_logits = None

    def __init__(self, vllm_config: Any, device: torch.device, req_states: Any) -> None:
        config = vllm_config.speculative_config
        self.vllm_config, self.device, self.req_states = vllm_config, device, req_states
        self.speculative_config = config
        self.num_speculative_steps = config.num_speculative_tokens
        self.min_n = config.prompt_lookup_min or 2
        self.max_n = config.prompt_lookup_max or max(5, self.min_n)
        slots = vllm_config.scheduler_config.max_num_seqs
        shape = (slots, self.num_speculative_steps)
        self.drafts = _Firsts(torch.zeros(shape, dtype=torch.int64, device=device))
        # Nobody reads how many drafts there are: behind them stands the last token.
        self.pipeline = Pipeline(("tokens", "lengths", "requests", "drafts"), [self.operator()])

    def operator(self) -> Any:
        """The operator that looks for drafts."""
        return PromptLookup(
            min_ngram=self.min_n,
            max_ngram=self.max_n,
            max_draft=self.num_speculative_steps,
            occurrence="last",
            pad_with_last=True,
        )

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing to prepare."""

    def capture(self) -> None:
        """Nothing to capture."""

    def propose(
        self, input_batch: Any, *_args: Any, dummy_run: bool = False, **_named: Any
    ) -> torch.Tensor:
        """Drafts `[num_reqs, num_speculative_steps]` of i64."""
        drafts = self.drafts[input_batch.num_reqs]
        if not dummy_run:
            states = self.req_states
            tokens, lengths = states.all_token_ids.gpu, states.total_len.gpu
            self.pipeline(tokens, lengths, input_batch.idx_mapping, drafts)
        return drafts


class SuffixDrafter(Drafter):
    """Drafts from the longest suffix of each request's text that occurred before, weighed by how
    often each continuation followed."""

    def operator(self) -> Any:
        """The operator that looks for drafts."""
        return SuffixLookup(
            n=self.num_speculative_steps, min_match=self.min_n, pad_with_last=True
        )


def _speculator(kind: type[Drafter], vllm_config: Any, device: Any, req_states: Any) -> Any:
    """A drafter of ours for n-grams; vLLM's own speculator for other methods."""
    if vllm_config.speculative_config.method not in ("ngram", "ngram_gpu"):
        return vllm_init_speculator(vllm_config, device, req_states)
    return kind(vllm_config, device, req_states)


def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
    """As `vllm.v1.worker.gpu.spec_decode.init_speculator`, with :class:`Drafter` for n-grams."""
    return _speculator(Drafter, vllm_config, device, req_states)


def init_suffix_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
    """As `vllm.v1.worker.gpu.spec_decode.init_speculator`, with :class:`SuffixDrafter` for
    n-grams."""
    return _speculator(SuffixDrafter, vllm_config, device, req_states)
