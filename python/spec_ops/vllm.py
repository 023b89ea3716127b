"""vLLM's drafts, samplers, penalties, routers and top-k, in vLLM's own signatures.

Each function has the name and the arguments of vLLM's, and its docstring says of which. Routers
choose a logit of positive infinity first. The functions take the place of vLLM's where
``SPEC_OPS_VLLM`` names them: see :mod:`spec_ops.vllm_plugin`, and :mod:`spec_ops.vllm_runner` for
the second model runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _functions as functions

if TYPE_CHECKING:
    import torch

__all__ = [
    "NgramGPUKernel",
    "NgramProposer",
    "apply_all_penalties",
    "apply_bad_words",
    "apply_bad_words_with_drafts",
    "apply_penalties",
    "apply_top_k_top_p",
    "grouped_topk",
    "moe_align_block_size",
    "rejection_sample",
    "top_k_per_row_decode",
    "top_k_per_row_prefill",
    "topk_hash_softplus_sqrt",
    "topk_sigmoid",
    "topk_softmax",
]


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


class NgramGPUKernel:
    """As `vllm.v1.spec_decode.ngram_proposer_gpu.NgramGPUKernel`, which is called with the lengths
    ``[batch]`` and texts ``[batch, max_model_len]`` of a batch, and which of its rows draft."""

    def __init__(self, vllm_config: Any, prefix: str = "", device: Any = "cuda") -> None:
        del prefix, device
        config = vllm_config.speculative_config
        self.min_n, self.max_n = config.prompt_lookup_min, config.prompt_lookup_max
        self.k = config.num_speculative_tokens

    def __call__(
        self,
        num_tokens_no_spec: torch.Tensor,
        token_ids_gpu: torch.Tensor,
        combined_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Drafts ``[batch, k]``, -1 behind them, and their numbers."""
        import torch

        found = functions.prompt_lookup(
            token_ids_gpu,
            torch.where(combined_mask, num_tokens_no_spec, 0).to(torch.int32),
            min_ngram=self.min_n,
            max_ngram=self.max_n,
            max_draft=self.k,
            occurrence="first",
        )
        return found.drafts.to(torch.int32), found.counts

    forward = __call__

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


def _texts(rows: list[list[int]], like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of tokens as a matrix of padded rows and the rows' lengths."""
    import torch

    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    tokens = torch.zeros((len(rows), max([1, *map(len, rows)])), dtype=torch.int64)
    for row, padded in zip(rows, tokens):
        padded[: len(row)] = torch.tensor(row, dtype=torch.int64)
    return tokens.to(like.device), lengths.to(like.device)


def apply_penalties(
    logits: torch.Tensor,
    prompt_tokens_tensor: torch.Tensor,
    output_tokens_tensor: torch.Tensor,
    presence_penalties: torch.Tensor,
    frequency_penalties: torch.Tensor,
    repetition_penalties: torch.Tensor,
) -> torch.Tensor:
    """As `vllm.model_executor.layers.utils.apply_penalties`: on logits ``[num_seqs, vocab]`` in
    place. An id outside of the vocabulary, padding or a placeholder, is passed over wherever it
    stands."""
    import torch

    # A text is in one piece, the whole prompt and then the whole output. `adjust_logits` skips ids
    # outside of the vocabulary, so padding between the two changes nothing.
    texts = (prompt_tokens_tensor.to(torch.int64), output_tokens_tensor.to(torch.int64))
    tokens = torch.cat(texts, dim=1)

    def lengths(columns: int) -> torch.Tensor:
        return torch.full((len(tokens),), columns, dtype=torch.int32, device=tokens.device)

    functions.adjust_logits(
        logits,
        tokens,
        lengths(prompt_tokens_tensor.shape[1]),
        lengths(tokens.shape[1]),
        presence=presence_penalties.to(torch.float32),
        frequency=frequency_penalties.to(torch.float32),
        repetition=repetition_penalties.to(torch.float32),
    )
    return logits


def apply_all_penalties(
    logits: torch.Tensor,
    prompt_token_ids: torch.Tensor,
    presence_penalties: torch.Tensor,
    frequency_penalties: torch.Tensor,
    repetition_penalties: torch.Tensor,
    output_token_ids: list[list[int]],
) -> torch.Tensor:
    """As `vllm.v1.sample.ops.penalties.apply_all_penalties`: outputs are lists, where -1 is no
    token."""
    output, lengths = _texts(output_token_ids, logits)
    output[_columns(output) >= lengths.unsqueeze(1)] = logits.shape[1]
    penalties = (presence_penalties, frequency_penalties, repetition_penalties)
    return apply_penalties(logits, prompt_token_ids, output, *penalties)


def _columns(matrix: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.arange(matrix.shape[1], device=matrix.device)


def apply_bad_words(
    logits: torch.Tensor,
    bad_words_token_ids: dict[int, list[list[int]]],
    past_tokens_ids: list[list[int]],
) -> None:
    """As `vllm.v1.sample.ops.bad_words.apply_bad_words`: on logits ``[batch, vocab]`` in place."""
    import torch

    words = [word for i in range(len(logits)) for word in bad_words_token_ids.get(i, [])]
    if not words:
        return
    # Bad words are looked for in what was generated: texts without prompts.
    tokens, lengths = _texts([past_tokens_ids[i] for i in range(len(logits))], logits)
    counts = [len(bad_words_token_ids.get(i, [])) for i in range(len(logits))]

    def offsets(sizes: list[int]) -> torch.Tensor:
        sums = torch.tensor([0, *sizes]).cumsum(0)
        return sums.to(logits.device, torch.int32)

    functions.adjust_logits(
        logits,
        tokens,
        torch.zeros_like(lengths),
        lengths,
        bad_offsets=offsets(counts),
        word_offsets=offsets([len(word) for word in words]),
        word_tokens=torch.tensor(sum(words, []), dtype=torch.int32).to(logits.device),
    )


def apply_bad_words_with_drafts(
    logits: torch.Tensor,
    bad_words_token_ids: dict[int, list[list[int]]],
    past_tokens_ids: list[list[int]],
    num_draft_tokens: list[int],
) -> None:
    """As `vllm.v1.sample.ops.bad_words.apply_bad_words_with_drafts`: a row for each draft, with
    the text before it."""
    of_row = [i for i, count in enumerate(num_draft_tokens) for _ in range(count)]
    words = {
        row: bad_words_token_ids[i] for row, i in enumerate(of_row) if i in bad_words_token_ids
    }
    rows = len(of_row)
    apply_bad_words(logits[:rows], words, past_tokens_ids[:rows])


def apply_top_k_top_p(
    logits: torch.Tensor,
    k: torch.Tensor | None,
    p: torch.Tensor | None,
    **_hints: Any,
) -> torch.Tensor:
    """As `vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p`: what is not kept becomes
    negative infinity, in place. Exactly `k` tokens are kept, the lower index of equals."""
    from . import _engines as engines

    if k is None and p is None:
        return logits
    return logits.masked_fill_(~engines.kept_tokens(logits, k, p), float("-inf"))


def _routed(
    weights: torch.Tensor,
    indices: torch.Tensor,
    token_expert_indices: torch.Tensor | None,
    gating_output: torch.Tensor,
    is_padding: torch.Tensor | None,
    **options: Any,
) -> None:
    from . import _engines as engines

    engines.route(gating_output, weights, indices, is_padding=is_padding, **options)
    if token_expert_indices is not None:
        tokens = len(token_expert_indices)
        places = _columns(token_expert_indices.T).unsqueeze(1) + _columns(indices) * tokens
        token_expert_indices.copy_(places)


def topk_softmax(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    token_expert_indices: torch.Tensor | None,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    e_score_correction_bias: torch.Tensor | None = None,
    is_padding: torch.Tensor | None = None,
) -> None:
    """As `vllm._custom_ops.topk_softmax`: writes the first three."""
    outputs = (topk_weights, topk_ids, token_expert_indices)
    options = {"renormalize": renormalize, "bias": e_score_correction_bias}
    _routed(*outputs, gating_output, is_padding, scoring="softmax", **options)


def topk_sigmoid(
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    token_expert_indices: torch.Tensor | None,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    e_score_correction_bias: torch.Tensor | None = None,
    routed_scaling_factor: float = 1.0,
    is_padding: torch.Tensor | None = None,
) -> None:
    """As `vllm._custom_ops.topk_sigmoid`: writes the first three."""
    outputs = (topk_weights, topk_ids, token_expert_indices)
    options = {"renormalize": renormalize, "bias": e_score_correction_bias}
    options |= {"scoring": "sigmoid", "scale": routed_scaling_factor}
    _routed(*outputs, gating_output, is_padding, **options)


def topk_hash_softplus_sqrt(
    topk_weights: torch.Tensor,
    topk_indices: torch.Tensor,
    token_expert_indices: torch.Tensor | None,
    gating_output: torch.Tensor,
    renormalize: bool = False,
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: torch.Tensor | None = None,
    input_tokens: torch.Tensor | None = None,
    hash_indices_table: torch.Tensor | None = None,
    is_padding: torch.Tensor | None = None,
    bias_vl: torch.Tensor | None = None,
    image_sentinel_lo: int = 0,
) -> None:
    """As `vllm._custom_ops.topk_hash_softplus_sqrt`: writes the first three. With a table, the
    experts of each token are those of its row. No bias of its own for tokens of images."""
    import torch

    if bias_vl is not None and image_sentinel_lo != 0:
        raise NotImplementedError("spec_ops has no bias of its own for tokens of images")
    outputs = (topk_weights, topk_indices, token_expert_indices)
    options: dict[str, Any] = {"renormalize": renormalize, "scoring": "sqrt_softplus"}
    options["scale"] = routed_scaling_factor
    if hash_indices_table is None or input_tokens is None:
        options["bias"] = e_score_correction_bias
    else:
        options["chosen"] = hash_indices_table[input_tokens.long()].to(torch.int32)
    _routed(*outputs, gating_output, is_padding, **options)


def grouped_topk(
    scores: torch.Tensor,
    num_expert_group: int,
    topk_group: int,
    topk: int,
    renormalize: bool,
    routed_scaling_factor: float,
    bias: torch.Tensor,
    scoring_func: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `vllm._custom_ops.grouped_topk`: weights of f32 and experts of i32, ``[tokens, topk]``.

    `scores` are logits where `scoring_func` is 1 (sigmoid), else scores of any other function. Such
    scores reach the weights as they are: experts are chosen by score + bias, and no score passes
    through an exponential.
    """
    is_score = scoring_func != 1
    weights, indices, _ = functions.topk_router(
        scores,
        topk=topk,
        scoring="sigmoid",
        # The choice is x + bias, whatever the scores are.
        select="logit" if is_score else "score",
        groups=max(num_expert_group, 1),
        topk_groups=max(topk_group, 1),
        masked="excluded",
        renormalize=renormalize,
        scale=routed_scaling_factor,
        bias=bias,
    )
    if is_score:
        weights = scores.float().gather(1, indices.long())
        if renormalize:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        weights = weights * routed_scaling_factor
    return weights, indices


def moe_align_block_size(
    topk_ids: torch.Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: torch.Tensor,
    experts_ids: torch.Tensor,
    num_tokens_post_pad: torch.Tensor,
    expert_map: torch.Tensor | None = None,
    scatter_idx: torch.Tensor | None = None,
) -> None:
    """As `vllm._custom_ops.moe_align_block_size`: writes the three tensors behind `block_size`,
    and `scatter_idx`. Experts follow each other in the order of `expert_map`'s own numbers."""
    import torch

    from . import _engines as engines

    outputs = (sorted_token_ids, experts_ids, num_tokens_post_pad)
    wanted = scatter_idx is not None
    made = engines.align(topk_ids, num_experts, block_size, *outputs, expert_map, inverse=wanted)
    if scatter_idx is not None:
        routes = torch.arange(topk_ids.numel(), dtype=torch.int32, device=topk_ids.device)
        scatter_idx.copy_(torch.where(made.inverse >= 0, routes, -1).view_as(scatter_idx))


def top_k_per_row_decode(
    logits: torch.Tensor,
    next_n: int,
    seq_lens: torch.Tensor,
    raw_topk_indices: torch.Tensor,
    num_rows: int,
    stride0: int,
    stride1: int,
    topk_tokens: int,
) -> None:
    """As `vllm._custom_ops.top_k_per_row_decode`: writes `raw_topk_indices`, ascending.

    A request has `next_n` rows, of which the last sees its whole length.
    """
    import torch

    del stride0, stride1
    rows = torch.arange(num_rows, device=logits.device)
    lengths = seq_lens.reshape(-1).repeat_interleave(next_n)[:num_rows] - next_n + 1
    lengths = (lengths + rows % next_n).clamp(min=0).to(torch.int32)
    _top_k(logits, raw_topk_indices, num_rows, topk_tokens, lengths=lengths)


def top_k_per_row_prefill(
    logits: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
    raw_topk_indices: torch.Tensor,
    num_rows: int,
    stride0: int,
    stride1: int,
    topk_tokens: int,
) -> None:
    """As `vllm._custom_ops.top_k_per_row_prefill`: writes `raw_topk_indices`, relative to each
    row's start, ascending."""
    del stride0, stride1
    starts, ends = cu_seqlen_ks[:num_rows], cu_seqlen_ke[:num_rows]
    lengths = (ends - starts).clamp(min=0)
    _top_k(logits, raw_topk_indices, num_rows, topk_tokens, starts=starts, lengths=lengths)


def _top_k(
    logits: torch.Tensor, indices: torch.Tensor, rows: int, k: int, **ranges: torch.Tensor
) -> None:
    found = functions.indexer_topk(logits[:rows], k=k, **ranges).indices
    indices[:rows, :k].copy_(found)
