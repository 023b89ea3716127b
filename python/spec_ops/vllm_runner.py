"""Sampling, verification and drafting of vLLM's second model runner, its default, in few calls.

:class:`Sampler` and :class:`RejectionSampler` take the place of vLLM's classes, :class:`Drafter` and
:class:`SuffixDrafter` that of its n-gram speculator. Each step of the engine is one call of an
operator for the drafts, one for the tokens of all rows, and one that follows the drafts; no operator
of torch stands between vLLM's tensors and these calls, because on a small model the host's time for
launching such operators is what a step waits for.

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

from . import PromptLookup, SampleLogits, SuffixLookup, TreeVerify

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


class _Plans:
    """The plans of an operator, by what tells calls of one engine apart."""

    #: vLLM has a bounded number of batch sizes; a server that meets more starts again.
    most = 1024

    def __init__(self, operator: Any) -> None:
        self.operator = operator
        self.known: dict[Any, Any] = {}

    def __call__(self, key: Any, *inputs: Any, out: Any, **named: Any) -> None:
        plan = self.known.get(key)
        if plan is None:
            if len(self.known) >= self.most:
                self.known.clear()
            plan = self.known[key] = self.operator.plan(*inputs, out=out, **named)
        plan(*inputs, out=out, **named)


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
        self.one_each = torch.ones(max_num_reqs, dtype=torch.int32, device=device)
        self.none_each = torch.zeros(max_num_reqs, dtype=torch.int32, device=device)
        self.plans = _Plans(SampleLogits(min_p_first=True))
        #: Whether each step of the engine asks for more than tokens and log-probabilities.
        self.unusual = bool(
            self.compute_nans or self.return_sampling_mask or self.trace_replay_state is not None
        )

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
        asked = int(np.bitwise_or.reduce(self.asked[slots]))
        return asked | _UNUSUAL if self.unusual else asked

    def draw(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        asked: int,
        top: int = 0,
    ) -> tuple[torch.Tensor, LogprobsTensors | None]:
        """A token for each row of logits, `[rows]` of i64, and where `asked` has `_LOGPROBS` its
        log-probability, its rank, and those of the `top` likeliest tokens."""
        rows = len(logits)
        states, device = self.sampling_states, logits.device
        named = {"requests": slots}
        if asked & _TOP_K:
            named["top_k"] = states.top_k.gpu
        if asked & _TOP_P:
            named["top_p"] = states.top_p.gpu
        if asked & _MIN_P:
            named["min_p"] = states.min_p.gpu
        tokens = torch.empty(rows, dtype=torch.int64, device=device)
        inputs = (logits, positions, states.temperature.gpu, states.seeds.gpu)
        like = (rows, logits.stride(0), logits.dtype, slots.dtype, positions.dtype)
        key = (*like, asked & (_TOP_K | _TOP_P | _MIN_P))
        if not asked & _LOGPROBS:
            self.plans(key, *inputs, out=(tokens,), **named)
            return tokens, None
        # The token's own log-probability comes first, then those of the likeliest.
        scores = torch.empty(rows, dtype=torch.float32, device=device)
        ranks = torch.empty(rows, dtype=torch.int32, device=device)
        likeliest, of_likeliest = None, None
        if top:
            likeliest = torch.empty((rows, top), dtype=torch.int32, device=device)
            of_likeliest = torch.empty((rows, top), dtype=torch.float32, device=device)
        out = (tokens, None, scores, None, ranks, likeliest, of_likeliest)
        self.plans((*key, top), *inputs, out=out, **named)
        ids, scores = tokens.unsqueeze(1), scores.unsqueeze(1)
        if top:
            ids = torch.cat((ids, likeliest), dim=1)
            scores = torch.cat((scores, of_likeliest), dim=1)
        return tokens, LogprobsTensors(ids, scores, ranks)

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
        if asked & (_PROCESSORS | _UNUSUAL):
            return super().__call__(logits, batch)
        requests = batch.num_reqs
        if batch.has_prefill or batch.num_tokens != requests:
            positions = batch.positions[batch.logits_indices]
        else:
            positions = batch.positions[:requests]
        top = self.sampling_states.max_num_logprobs(batch.idx_mapping_np) if asked & _LOGPROBS else 0
        tokens, logprobs = self.draw(logits, batch.idx_mapping, positions, asked, top)
        num_sampled, num_rejected = self.one_each[:requests], self.none_each[:requests]
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
            sampled_token_ids=tokens.view(requests, 1),
            logprobs_tensors=logprobs,
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
        tokens, _ = self.draw(logits, expanded_idx_mapping, pos, asked & ~_LOGPROBS)
        if self.return_sampling_mask or return_logprobs and self.logprobs_mode.startswith("processed"):
            logits = self.filtered(logits, context)
        return tokens, logits

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

    def __init__(self, sampler: Any, spec_config: Any, device: torch.device, **named: Any) -> None:
        super().__init__(sampler, spec_config, device, **named)
        self.columns = self.num_speculative_steps + 1
        self.plans = _Plans(TreeVerify(max_depth=self.num_speculative_steps))
        # Where each request's path of nodes goes, which no one reads: a chain's is 0, 1, 2, ..
        slots = sampler.sampling_states.max_num_reqs
        self.nodes = torch.empty((slots, self.columns), dtype=torch.int32, device=device)
        self.other_noise = spec_config.method in _OTHER_NOISE
        #: Whether vLLM's config accepts drafts by a rule other than equality with the sampled token.
        self.other_rule = (
            self.synthetic_conditional_rates is not None
            or self.use_block_verification
            or bool(getattr(self, "fly_window_size", 0))
            or self.watermark_key is not None
            or not isinstance(sampler, Sampler)
        )

    def follow(
        self, drafts: torch.Tensor, target: torch.Tensor, offsets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens of each request `[requests, columns]`, -1 behind, and their numbers."""
        requests, device = len(offsets) - 1, target.device
        tokens = torch.empty((requests, self.columns), dtype=torch.int64, device=device)
        counts = torch.empty(requests, dtype=torch.int32, device=device)
        key = (len(target), requests, drafts.dtype)
        out = (tokens, self.nodes[:requests], counts)
        self.plans(key, drafts, target, row_offsets=offsets, out=out)
        return tokens, counts

    def __call__(
        self,
        logits: torch.Tensor,
        input_batch: Any,
        draft_logits: torch.Tensor | None = None,
        invalid_drafts: torch.Tensor | None = None,
    ) -> SamplerOutput:
        """The tokens of a step with drafts."""
        batch, sampler = input_batch, self.sampler
        asked = _UNUSUAL if self.other_rule else sampler.asked_by(batch.idx_mapping_np)
        if asked & (_PROCESSORS | _UNUSUAL) or draft_logits is not None and self.other_noise:
            return super().__call__(logits, batch, draft_logits, invalid_drafts)
        rows, requests = len(logits), batch.num_reqs
        if batch.has_prefill or batch.num_tokens != rows:
            drafts, positions = vllm_rejection.gather_draft_sampled(
                batch.input_ids,
                batch.positions,
                batch.logits_indices,
                batch.expanded_idx_mapping,
                batch.expanded_local_pos,
                sampler.req_states.prefill_len.gpu,
            )
        else:
            drafts, positions = batch.input_ids[:rows], batch.positions[:rows]
        if invalid_drafts is not None:
            drafts = drafts.masked_fill(invalid_drafts, -1)
        top = sampler.sampling_states.max_num_logprobs(batch.idx_mapping_np) if asked & _LOGPROBS else 0
        target, logprobs = sampler.draw(logits, batch.expanded_idx_mapping, positions, asked, top)
        tokens, taken = self.follow(drafts, target, batch.cu_num_logits)
        if logprobs is not None and rows != requests:
            of_requests: Any = batch.cu_num_logits_np.tolist()
            if self.enable_adaptive_verification:
                logprobs = logprobs._replace(
                    cu_num_generated_tokens_tensor=batch.cu_num_logits.clone()
                )
            else:
                logprobs = logprobs._replace(cu_num_generated_tokens=of_requests)
        if rows == requests * self.columns and not batch.has_prefill:
            rejected = self.columns - taken
        else:
            # Takes no token of a request that is still reading its prompt.
            taken, rejected = get_num_sampled_and_rejected(
                taken,
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                sampler.req_states.prefill_len.gpu,
            )
        return SamplerOutput(
            sampled_token_ids=tokens,
            logprobs_tensors=logprobs,
            num_nans=None,
            num_sampled=taken,
            num_rejected=rejected,
        )

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
        self.drafts = torch.zeros(shape, dtype=torch.int64, device=device)
        self.counts = torch.zeros(slots, dtype=torch.int32, device=device)
        self.plans = _Plans(self.operator())

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
        requests = input_batch.num_reqs
        drafts = self.drafts[:requests]
        if dummy_run:
            return drafts
        states, slots = self.req_states, input_batch.idx_mapping
        tokens, lengths = states.all_token_ids.gpu, states.total_len.gpu
        self.plans(requests, tokens, lengths, requests=slots, out=(drafts, self.counts[:requests]))
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
