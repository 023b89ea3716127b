"""vLLM's drafts and its rejection sampler, in vLLM's own signatures.

n-gram drafts are a custom proposer: ``speculative_config={"method": "custom_class", "model":
"spec_ops.vllm.NgramProposer", "num_speculative_tokens": 5}``. The rejection sampler takes the
place of the function that vLLM's calls::

    import spec_ops.vllm
    spec_ops.vllm.install()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _functions as functions

if TYPE_CHECKING:
    import torch

__all__ = ["NgramProposer", "install", "rejection_sample"]


class NgramProposer:
    """Drafts from each request's own text, the first occurrence of its last tokens.

    Lengths of patterns are ``prompt_lookup_min`` and ``prompt_lookup_max`` of the speculative
    config, where they are set, else 2 and 5.
    """

    def __init__(self, vllm_config: Any) -> None:
        config = vllm_config.speculative_config
        longest = getattr(config, "prompt_lookup_max", None)
        shortest = getattr(config, "prompt_lookup_min", None)
        self.max_n = longest or max(5, shortest or 0)
        self.min_n = shortest or min(2, self.max_n)
        self.k = config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len

    def propose(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        """Drafts for each request: ``propose(sampled_token_ids, num_tokens_no_spec,
        token_ids_cpu, slot_mappings=None)``, and before them ``num_speculative_tokens`` in
        versions of vLLM that say it.

        ``token_ids_cpu`` is ``[requests, max_model_len]``, of which ``num_tokens_no_spec``
        ``[requests]`` are text. A request that sampled nothing, or is as long as the model
        allows, has no draft.
        """
        if args and isinstance(args[0], int):
            kwargs["num_speculative_tokens"], args = args[0], args[1:]
        return self._propose(*args, **kwargs)

    def _propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: Any,
        token_ids_cpu: Any,
        slot_mappings: Any = None,
        num_speculative_tokens: int | None = None,
        **_later: Any,
    ) -> list[list[int]]:
        k = self.k if num_speculative_tokens is None else num_speculative_tokens
        requests = len(sampled_token_ids)
        if not requests:
            return []
        drafts, counts = functions.prompt_lookup(
            token_ids_cpu[:requests],
            num_tokens_no_spec[:requests],
            min_ngram=self.min_n,
            max_ngram=self.max_n,
            max_draft=k,
            occurrence="first",
        )
        found = []
        for sampled, length, draft, count in zip(
            sampled_token_ids, num_tokens_no_spec, drafts.tolist(), counts.tolist()
        ):
            room = self.max_model_len - int(length)
            found.append(draft[: max(0, min(count, room))] if len(sampled) else [])
        return found

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to load."""


def rejection_sample(
    draft_token_ids: torch.Tensor,
    num_draft_tokens: list[int],
    max_spec_len: int,
    cu_num_draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    target_logits: torch.Tensor,
    bonus_token_ids: torch.Tensor,
    sampling_metadata: Any,
    synthetic_mode: bool = False,
    synthetic_conditional_rates: torch.Tensor | None = None,
    use_fp64_gumbel: bool = False,
    fly_window_size: int | None = None,
    **_of_modes: Any,
) -> torch.Tensor:
    """As `vllm.v1.sample.rejection_sampler.rejection_sample`: ``[batch, max_spec_len + 1]``.

    Random numbers are drawn from a seed of each request, which its generator draws, so that
    seeded requests repeat; they are exact whatever `use_fp64_gumbel` says.
    """
    import torch

    if synthetic_mode or synthetic_conditional_rates is not None or fly_window_size is not None:
        raise NotImplementedError("spec_ops has no synthetic acceptance and no FLy")
    batch, device = len(num_draft_tokens), target_logits.device
    bonus = bonus_token_ids.reshape(batch)
    if sampling_metadata.all_greedy:
        # Of logits the largest is that of probabilities.
        return functions.rejection_sample(
            target_logits,
            draft_token_ids,
            bonus,
            cu_num_draft_tokens,
            max_spec_len=max_spec_len,
            acceptance="greedy",
        ).output_token_ids
    seeds = torch.empty(batch, dtype=torch.int64, device=device).random_()
    for request, generator in sampling_metadata.generators.items():
        if num_draft_tokens[request] > 0:
            seeds[request : request + 1].random_(generator=generator)
    # vLLM's mark for temperature 0 was -1 once.
    greedy = None if sampling_metadata.all_random else sampling_metadata.temperature <= 0
    return functions.rejection_sample(
        target_logits.softmax(dim=-1, dtype=torch.float32),
        draft_token_ids,
        bonus,
        cu_num_draft_tokens,
        max_spec_len=max_spec_len,
        draft_probs=draft_probs,
        seeds=seeds,
        positions=torch.zeros_like(seeds),
        greedy=greedy,
    ).output_token_ids


def install() -> None:
    """Makes vLLM's rejection sampler call :func:`rejection_sample`. Needs a version whose
    function takes `target_logits` (those before it took probabilities)."""
    import inspect

    from vllm.v1.sample import rejection_sampler

    if "target_logits" not in inspect.signature(rejection_sampler.rejection_sample).parameters:
        raise NotImplementedError("this vLLM samples from probabilities, not from logits")
    rejection_sampler.rejection_sample = rejection_sample
