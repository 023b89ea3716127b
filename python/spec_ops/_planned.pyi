"""The operators as objects whose plans are called. Made by `tools/stubs.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _results as results
from ._native import Plan
from ._results import Array

__all__ = [
    "TopkRouter",
    "DeduplicateTopk",
    "RejectionSample",
    "AdjustLogits",
    "SampleLogits",
    "NgramMatch",
    "HybridMtpNgram",
    "PromptLookup",
    "SuffixLookup",
    "TreeVerify",
    "AppendTokens",
    "MoeAlign",
    "IndexerTopk",
    "Unique",
]

class Planned:
    """An operator with its options."""

    options: dict[str, Any]

CLASSES: dict[str, type[Planned]]

class TopkRouter(Planned):
    def __init__(
        self, *, topk: int, scoring: Literal['sigmoid', 'softmax', 'sqrt_softplus'] = 'softmax',
        select: Literal['score', 'logit'] = 'score', groups: int = 1, topk_groups: int = 1,
        group_score: Literal['top2_sum', 'max'] = 'top2_sum',
        masked: Literal['zero', 'excluded'] = 'excluded', renormalize: bool = True,
        scale: float = 1.0, shared_experts: int = 0, shared_weight: float = 1.0,
        physical_experts: int | None = None
    ) -> None: ...
    def plan(
        self, x: Array, *, bias: Array | None = None, num_tokens: Array | None = None,
        chosen: Array | None = None, replicas: Array | None = None,
        replica_counts: Array | None = None, logical: bool = False, load: Array | None = None,
        flags: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class DeduplicateTopk(Planned):
    def __init__(
        self, *, mtp_step: int = 1
    ) -> None: ...
    def plan(
        self, indices: Array, *, counts: bool = False, inverse: bool = False,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class RejectionSample(Planned):
    def __init__(
        self, *, max_spec_len: int,
        acceptance: Literal['probabilistic', 'greedy'] = 'probabilistic',
        recovery: Literal['argmax', 'sample'] = 'sample'
    ) -> None: ...
    def plan(
        self, target_probs: Array, draft_token_ids: Array, bonus_token_ids: Array,
        cu_num_draft: Array, *, draft_probs: Array | None = None,
        uniform_samples: Array | None = None, seeds: Array | int | None = None,
        positions: Array | None = None, greedy: Array | None = None, flags: Array | None = None,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class AdjustLogits(Planned):
    def __init__(
        self, *, bad_words_in_prompt: bool = False
    ) -> None: ...
    def plan(
        self, logits: Array, tokens: Array, prompt_lengths: Array, lengths: Array, *,
        requests: Array | None = None, draft_tokens: Array | None = None,
        parents: Array | None = None, bias_offsets: Array | None = None,
        bias_tokens: Array | None = None, bias_values: Array | None = None,
        repetition: Array | float | None = None, frequency: Array | float | None = None,
        presence: Array | float | None = None, min_tokens: Array | int | None = None,
        stop_tokens: Array | None = None, bad_offsets: Array | None = None,
        word_offsets: Array | None = None, word_tokens: Array | None = None,
        no_repeat_ngram: Array | int | None = None, flags: Array | None = None
    ) -> Plan: ...

class SampleLogits(Planned):
    def __init__(
        self, *, min_p_first: bool = False, n: int | None = None, top: int | None = None
    ) -> None: ...
    def plan(
        self, logits: Array, positions: Array, temperature: Array | float, seeds: Array | int,
        *, top_k: Array | int | None = None, top_p: Array | float | None = None,
        min_p: Array | float | None = None, requests: Array | None = None,
        mask: Array | None = None, probs: bool = False, logprobs: bool = False,
        processed_logprobs: bool = False, ranks: bool = False, top_tokens: bool = False,
        top_logprobs: bool = False, row_flags: bool = False, flags: Array | None = None,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class NgramMatch(Planned):
    def __init__(
        self, *, max_ngram_size: int = 3, token_threshold: int = 128
    ) -> None: ...
    def plan(
        self, input_ids: Array, input_ids_len: Array, token_ids_all: Array, prompt_lens: Array,
        step_idx: Array, draft_token_num: Array, draft_tokens: Array, seq_lens_this_time: Array,
        seq_lens_encoder: Array, seq_lens_decoder: Array, max_dec_len: Array, *,
        flags: Array | None = None
    ) -> Plan: ...

class HybridMtpNgram(Planned):
    def __init__(
        self, *, max_draft_tokens: int, max_ngram_size: int = 3, min_ngram_size: int = 1,
        token_threshold: int = 128
    ) -> None: ...
    def plan(
        self, input_ids: Array, input_ids_len: Array, pre_ids: Array, step_idx: Array,
        draft_tokens: Array, seq_lens_this_time: Array, seq_lens_decoder: Array,
        max_dec_len: Array, *, flags: Array | None = None
    ) -> Plan: ...

class PromptLookup(Planned):
    def __init__(
        self, *, min_ngram: int = 2, max_ngram: int = 5, max_draft: int = 5,
        occurrence: Literal['first', 'last'] = 'last', pad_with_last: bool = False
    ) -> None: ...
    def plan(
        self, tokens: Array, lengths: Array, *, requests: Array | None = None,
        max_drafts: Array | None = None, flags: Array | None = None,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class SuffixLookup(Planned):
    def __init__(
        self, *, min_match: int = 1, max_match: int = 16, max_windows: int = 64, width: int = 1,
        min_share: float = 0.0, drafts_per_match: float = 64.0, pad_with_last: bool = False,
        n: int
    ) -> None: ...
    def plan(
        self, tokens: Array, lengths: Array, *, requests: Array | None = None,
        max_drafts: Array | None = None, corpus: Array | None = None,
        corpus_length: Array | None = None, parents: bool = False, first_child: bool = False,
        next_sibling: bool = False, shares: bool = False, match_lengths: bool = False,
        flags: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class TreeVerify(Planned):
    def __init__(
        self, *, max_depth: int
    ) -> None: ...
    def plan(
        self, draft_tokens: Array, target_tokens: Array, *, first_child: Array | None = None,
        next_sibling: Array | None = None, row_offsets: Array | None = None,
        flags: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class AppendTokens(Planned):
    def __init__(
        self
    ) -> None: ...
    def plan(
        self, tokens: Array, lengths: Array, new_tokens: Array, new_counts: Array, *,
        stop_tokens: Array | None = None, max_lengths: Array | None = None,
        finished: Array | None = None, last_tokens: bool = False, flags: Array | None = None,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class MoeAlign(Planned):
    def __init__(
        self, *, experts: int, block_size: int, local_experts: int | None = None
    ) -> None: ...
    def plan(
        self, topk_ids: Array, *, expert_map: Array | None = None, inverse: bool = False,
        sorted_tokens: bool = False, block_limits: bool = False, num_blocks: bool = False,
        flags: Array | None = None, out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class IndexerTopk(Planned):
    def __init__(
        self, *, k: int, block_size: int = 1, pool: int = 1, forced_first: int = 0,
        forced_last: int = 0, candidate_block: int = 1
    ) -> None: ...
    def plan(
        self, scores: Array, *, lengths: Array | None = None, starts: Array | None = None,
        candidates: Array | None = None, values: bool = False, block_table: Array | None = None,
        requests: Array | None = None, slots: bool = False, flags: Array | None = None,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...

class Unique(Planned):
    def __init__(
        self
    ) -> None: ...
    def plan(
        self, keys: Array, *, counts: bool = False, inverse: bool = False,
        out: Sequence[Array | None] | None = None
    ) -> Plan: ...
