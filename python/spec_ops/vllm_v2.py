"""Drafts, rejection sampling and sampling for vLLM's second model runner, its default.

The plugin of vLLM's group `vllm.general_plugins` that the wheel brings does nothing unless
``SPEC_OPS_VLLM`` names what to replace, with commas between the names::

    SPEC_OPS_VLLM=drafter,rejection,sampler vllm serve MODEL \\
        --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 5, \\
                               "prompt_lookup_min": 2, "prompt_lookup_max": 5}'

``python -m spec_ops.engines --check vllm==0.33`` lists the names, and what each replaces in a
version. A version that is not known is refused with a sentence. Requests' own penalties and masks
are those of :mod:`spec_ops.vllm_logits`.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from . import _functions as functions

__all__ = [
    "Drafter",
    "SuffixDrafter",
    "gumbel_sample",
    "init_speculator",
    "init_suffix_speculator",
    "register",
    "rejection_sample",
]


class Drafter:
    """Drafts from each request's own text: what followed the last occurrence of its last tokens.

    Takes the place of `NgramGPUSpeculator`. Texts are read where vLLM keeps them, the rows of all
    request slots; slots without a request in the batch have length 0, and cost nothing.
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

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing to prepare."""

    def capture(self) -> None:
        """Nothing to capture."""

    def lookup(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Drafts ``[slots, num_speculative_steps]``, -1 behind them."""
        return functions.prompt_lookup(
            tokens,
            lengths,
            min_ngram=self.min_n,
            max_ngram=self.max_n,
            max_draft=self.num_speculative_steps,
            occurrence="last",
        ).drafts

    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: torch.Tensor,
        num_rejected: Any,
        last_sampled: torch.Tensor,
        next_prefill_tokens: Any = None,
        temperature: Any = None,
        seeds: Any = None,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        """Drafts ``[num_reqs, num_speculative_steps]`` of i64. Where there is no draft stands the
        last sampled token, which is verified as any draft is."""
        requests = input_batch.num_reqs
        drafts = self.drafts[:requests]
        if dummy_run:
            return drafts
        states, slots = self.req_states, input_batch.idx_mapping[:requests].long()
        total = states.total_len.gpu
        lengths = torch.zeros_like(total)
        lengths[slots] = torch.where(num_sampled[:requests] > 0, total[slots], 0)
        found = self.lookup(states.all_token_ids.gpu, lengths)[slots]
        last = last_sampled.view(-1)[slots].unsqueeze(1)
        return drafts.copy_(torch.where(found >= 0, found, last))


class SuffixDrafter(Drafter):
    """Drafts from the longest suffix of each request's text that occurred before, weighed by how
    often each continuation followed."""

    def lookup(self, tokens: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Drafts ``[slots, num_speculative_steps]``, -1 behind them."""
        steps = self.num_speculative_steps
        return functions.suffix_lookup(tokens, lengths, n=steps, min_match=self.min_n).drafts


def _speculator(kind: type[Drafter], vllm_config: Any, device: Any, req_states: Any) -> Any:
    """A drafter that is vLLM's speculator too; vLLM's own for methods other than n-grams."""
    if not vllm_config.speculative_config.use_ngram():
        from . import engines

        target = "vllm.v1.worker.gpu.spec_decode.init_speculator"
        original = engines.ORIGINALS.get(target) or engines.resolved(target)
        return original(vllm_config, device, req_states)
    from vllm.v1.worker.gpu.spec_decode.speculator import BaseSpeculator

    return type(kind.__name__, (kind, BaseSpeculator), {})(vllm_config, device, req_states)


def init_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
    """As `vllm.v1.worker.gpu.spec_decode.init_speculator`, with :class:`Drafter` for n-grams."""
    return _speculator(Drafter, vllm_config, device, req_states)


def init_suffix_speculator(vllm_config: Any, device: torch.device, req_states: Any) -> Any:
    """As `vllm.v1.worker.gpu.spec_decode.init_speculator`, with :class:`SuffixDrafter` for
    n-grams."""
    return _speculator(SuffixDrafter, vllm_config, device, req_states)


def gumbel_sample(
    logits: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    pos: torch.Tensor,
    apply_temperature: bool,
    is_drafting: bool,
    logits_cache: torch.Tensor | None = None,
    logits_cache_col: torch.Tensor | None = None,
    use_fp64: bool = False,
    logits_cache_source: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `vllm.v1.worker.gpu.sample.gumbel.gumbel_sample`: a token for each row, of i64.

    Temperatures and seeds are those of request slots. Noise comes from a request's seed and the
    position of the token that is drawn, and is exact whatever `use_fp64` says.
    """
    del is_drafting, use_fp64
    if logits_cache is not None:
        source = logits if logits_cache_source is None else logits_cache_source
        column = 0 if logits_cache_col is None else logits_cache_col
        vocab = logits.shape[1]
        logits_cache[expanded_idx_mapping.long(), column, :vocab] = source.to(logits_cache.dtype)
    if not apply_temperature:  # the logits are divided already
        temperature = (temperature != 0).to(torch.float32)
    tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    functions.sample_logits(
        logits,
        pos.to(torch.int64) + 1,
        temperature.to(torch.float32),
        seed,
        requests=expanded_idx_mapping.to(torch.int32),
        out=(tokens,),
    )
    return tokens


def rejection_sample(
    target_logits: torch.Tensor,
    draft_logits: torch.Tensor | None,
    draft_sampled: torch.Tensor,
    cu_num_logits: torch.Tensor,
    pos: torch.Tensor,
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    temperature: torch.Tensor,
    seed: torch.Tensor,
    num_speculative_steps: int,
    synthetic_conditional_rates: torch.Tensor | None = None,
    use_fp64: bool = False,
    use_block_verification: bool = False,
    *,
    contexts: torch.Tensor | None = None,
    watermarking: torch.Tensor | None = None,
    watermarking_skip_mask: torch.Tensor | None = None,
    watermark_key: int | None = None,
    fly_window_size: int = 0,
    fly_entropy_threshold: float = 0.3,
    fly_entropy_top_k: int = 3,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils.rejection_sample`: tokens
    ``[num_reqs, num_speculative_steps + 1]`` of i64, -1 behind, and their numbers.

    A request has a row of logits for each draft and one more. Nothing waits for the GPU: how many
    drafts there are in all follows from shapes.
    """
    del use_fp64, watermarking, watermarking_skip_mask, watermark_key
    del fly_entropy_threshold, fly_entropy_top_k
    synthetic = synthetic_conditional_rates is not None
    if synthetic or use_block_verification or contexts is not None or fly_window_size > 0:
        raise NotImplementedError(
            "spec_ops has no synthetic acceptance, block verification, watermarks or FLy"
        )
    requests, rows = len(cu_num_logits) - 1, len(target_logits)
    slots, device = idx_mapping[:requests].long(), target_logits.device
    vocab = target_logits.shape[1]
    if draft_logits is not None:
        vocab = min(vocab, draft_logits.shape[-1])
    ends = cu_num_logits[1:].long()
    # Before request r there are r rows that have no draft.
    cu_num_draft = ends - torch.arange(1, requests + 1, device=device)
    draft = torch.arange(rows - requests, device=device)
    row = draft + torch.searchsorted(cu_num_draft, draft, right=True)
    temperatures, request_seeds = temperature[slots].to(torch.float32), seed[slots]
    greedy = temperatures == 0
    first = pos[cu_num_logits[:-1].long()].to(torch.int64) + 1
    bonus = functions.sample_logits(
        target_logits[ends - 1][:, :vocab],
        pos[ends - 1].to(torch.int64) + 1,
        (~greedy).to(torch.float32),
        request_seeds,
    ).tokens
    draft_probs = None
    if draft_logits is not None:
        of_row = expanded_idx_mapping[row].long()
        drafted = draft_logits[of_row, expanded_local_pos[row].long(), :vocab].float()
        # Draft logits are stored before the temperature.
        scale = temperature[of_row].float().unsqueeze(1)
        draft_probs = (drafted / torch.where(scale == 0, 1.0, scale)).softmax(dim=-1)
    made = functions.rejection_sample(
        target_logits[row][:, :vocab].softmax(dim=-1, dtype=torch.float32),
        draft_sampled[row + 1].to(torch.int64),
        bonus,
        cu_num_draft,
        max_spec_len=num_speculative_steps,
        draft_probs=draft_probs,
        seeds=request_seeds,
        positions=first,
        greedy=greedy,
    )
    return made.output_token_ids.to(torch.int64), made.num_accepted


def register() -> None:
    """vLLM's plugin: replaces what ``SPEC_OPS_VLLM`` names."""
    parts = os.environ.get("SPEC_OPS_VLLM", "")
    if parts:
        from . import engines

        engines.install("vllm", parts.replace(" ", "").split(","))
