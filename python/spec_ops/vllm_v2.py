"""What vLLM's second model runner, its default, calls where drafts come with probabilities.

:class:`spec_ops.vllm_runner.Sampler` and :class:`~spec_ops.vllm_runner.RejectionSampler` serve all
other steps. Positions are vLLM's: of the token before the one that is drawn.
"""

from __future__ import annotations

import torch

from . import _functions as functions

__all__ = ["gumbel_sample", "rejection_sample"]


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
        pos,
        temperature.to(torch.float32),
        seed,
        requests=expanded_idx_mapping,
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
    first = pos[cu_num_logits[:-1].long()]
    bonus = functions.sample_logits(
        target_logits[ends - 1][:, :vocab],
        pos[ends - 1],
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
