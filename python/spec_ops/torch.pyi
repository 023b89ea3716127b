"""The operators as operators of torch. Made by `tools/stubs.py`."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _results as results
from ._native import Plan
from ._results import Array
from ._torch_finishers import sample_once as sample_once
from ._torch_shards import sample_sharded as sample_sharded

__all__ = [
    "topk_router",
    "deduplicate_topk",
    "rejection_sample",
    "adjust_logits",
    "sample_logits",
    "ngram_match",
    "hybrid_mtp_ngram",
    "prompt_lookup",
    "suffix_lookup",
    "draft_tree",
    "tree_verify",
    "append_tokens",
    "moe_align",
    "indexer_topk",
    "hot_slots",
    "unique",
    "sample_once",
    "sample_sharded",
]

def topk_router(
    x: Array, *, topk: int, scoring: Literal['sigmoid', 'softmax', 'sqrt_softplus'] = 'softmax',
    select: Literal['score', 'logit'] = 'score', groups: int = 1, topk_groups: int = 1,
    group_score: Literal['top2_sum', 'max'] = 'top2_sum',
    masked: Literal['zero', 'excluded'] = 'excluded', renormalize: bool = True,
    scale: float = 1.0, shared_experts: int = 0, shared_weight: float = 1.0,
    physical_experts: int | None = None, bias: Array | None = None,
    num_tokens: Array | None = None, chosen: Array | None = None, replicas: Array | None = None,
    replica_counts: Array | None = None, logical: bool = False, load: Array | None = None,
    flags: Array | None = None
) -> results.TopkRouterResult:
    """As :func:`spec_ops.topk_router`, under `torch.compile` too."""

def deduplicate_topk(
    indices: Array, *, mtp_step: int = 1, counts: bool = False, inverse: bool = False
) -> results.DeduplicateTopkResult:
    """As :func:`spec_ops.deduplicate_topk`, under `torch.compile` too."""

def rejection_sample(
    target_probs: Array, draft_token_ids: Array, bonus_token_ids: Array, cu_num_draft: Array, *,
    max_spec_len: int, acceptance: Literal['probabilistic', 'greedy'] = 'probabilistic',
    recovery: Literal['argmax', 'sample'] = 'sample', draft_probs: Array | None = None,
    uniform_samples: Array | None = None, seeds: Array | None = None,
    positions: Array | None = None, greedy: Array | None = None, flags: Array | None = None
) -> results.RejectionSampleResult:
    """As :func:`spec_ops.rejection_sample`, under `torch.compile` too."""

def adjust_logits(
    logits: Array, tokens: Array, prompt_lengths: Array, lengths: Array, *,
    bad_words_in_prompt: bool = False, first_token: int = 0, vocab: int = 0,
    requests: Array | None = None, draft_tokens: Array | None = None,
    parents: Array | None = None, bias_offsets: Array | None = None,
    bias_tokens: Array | None = None, bias_values: Array | None = None,
    repetition: Array | None = None, frequency: Array | None = None,
    presence: Array | None = None, dry_multiplier: Array | None = None,
    dry_base: Array | None = None, dry_allowed_length: Array | None = None,
    dry_range: Array | None = None, dry_breakers: Array | None = None,
    min_tokens: Array | None = None, stop_tokens: Array | None = None,
    bad_offsets: Array | None = None, word_offsets: Array | None = None,
    word_tokens: Array | None = None, no_repeat_ngram: Array | None = None,
    think_budget: Array | None = None, think_start: Array | None = None,
    think_end: Array | None = None, think_forced: Array | None = None, forced: bool = False,
    flags: Array | None = None
) -> Array | None:
    """As :func:`spec_ops.adjust_logits`, under `torch.compile` too."""

def sample_logits(
    logits: Array, positions: Array, temperature: Array, seeds: Array, *,
    min_p_first: bool = False, first_token: int = 0, n: int | None = None,
    top: int | None = None, kept: int | None = None, top_k: Array | None = None,
    top_p: Array | None = None, min_p: Array | None = None, requests: Array | None = None,
    mask: Array | None = None, token_ids: Array | None = None, maxima: Array | None = None,
    forced: Array | None = None, probs: bool = False, logprobs: bool = False,
    processed_logprobs: bool = False, ranks: bool = False, top_tokens: bool = False,
    top_logprobs: bool = False, row_flags: bool = False, winners: bool = False,
    kept_tokens: bool = False, kept_counts: bool = False, largest: bool = False,
    flags: Array | None = None
) -> results.SampleLogitsResult:
    """As :func:`spec_ops.sample_logits`, under `torch.compile` too."""

def ngram_match(
    input_ids: Array, input_ids_len: Array, token_ids_all: Array, prompt_lens: Array,
    step_idx: Array, draft_token_num: Array, draft_tokens: Array, seq_lens_this_time: Array,
    seq_lens_encoder: Array, seq_lens_decoder: Array, max_dec_len: Array, *,
    max_ngram_size: int = 3, token_threshold: int = 128, flags: Array | None = None
) -> None:
    """As :func:`spec_ops.ngram_match`, under `torch.compile` too."""

def hybrid_mtp_ngram(
    input_ids: Array, input_ids_len: Array, pre_ids: Array, step_idx: Array,
    draft_tokens: Array, seq_lens_this_time: Array, seq_lens_decoder: Array, max_dec_len: Array,
    *, max_draft_tokens: int, max_ngram_size: int = 3, min_ngram_size: int = 1,
    token_threshold: int = 128, flags: Array | None = None
) -> None:
    """As :func:`spec_ops.hybrid_mtp_ngram`, under `torch.compile` too."""

def prompt_lookup(
    tokens: Array, lengths: Array, *, min_ngram: int = 2, max_ngram: int = 5,
    max_draft: int = 5, occurrence: Literal['first', 'last'] = 'last',
    pad_with_last: bool = False, requests: Array | None = None, max_drafts: Array | None = None,
    flags: Array | None = None
) -> results.PromptLookupResult:
    """As :func:`spec_ops.prompt_lookup`, under `torch.compile` too."""

def suffix_lookup(
    tokens: Array, lengths: Array, *, min_match: int = 1, max_match: int = 16,
    max_windows: int = 64, width: int = 1, min_share: float = 0.0,
    drafts_per_match: float = 64.0, pad_with_last: bool = False, n: int,
    requests: Array | None = None, max_drafts: Array | None = None, corpus: Array | None = None,
    corpus_length: Array | None = None, parents: bool = False, first_child: bool = False,
    next_sibling: bool = False, shares: bool = False, match_lengths: bool = False,
    flags: Array | None = None
) -> results.SuffixLookupResult:
    """As :func:`spec_ops.suffix_lookup`, under `torch.compile` too."""

def draft_tree(
    candidates: Array, *, min_survival: float = 0.0, min_drafts: int = 0,
    cumulative: bool = False, n: int, cap: int | None = None, parents: Array | None = None,
    shares: Array | None = None, counts: Array | None = None, trust: Array | None = None,
    finished: Array | None = None, budget: Array | None = None, roots: Array | None = None,
    starts: Array | None = None, picked: bool = False, draft_parents: bool = False,
    first_child: bool = False, next_sibling: bool = False, depths: bool = False,
    masks: bool = False, survivals: bool = False, row_offsets: bool = False, rows: bool = False,
    row_requests: bool = False, row_parents: bool = False, row_tokens: bool = False,
    row_positions: bool = False, flags: Array | None = None
) -> results.DraftTreeResult:
    """As :func:`spec_ops.draft_tree`, under `torch.compile` too."""

def tree_verify(
    draft_tokens: Array, target_tokens: Array, *, max_depth: int,
    first_child: Array | None = None, next_sibling: Array | None = None,
    row_offsets: Array | None = None, flags: Array | None = None
) -> results.TreeVerifyResult:
    """As :func:`spec_ops.tree_verify`, under `torch.compile` too."""

def append_tokens(
    tokens: Array, lengths: Array, new_tokens: Array, new_counts: Array, *,
    stop_tokens: Array | None = None, max_lengths: Array | None = None,
    finished: Array | None = None, last_tokens: bool = False, flags: Array | None = None
) -> results.AppendTokensResult:
    """As :func:`spec_ops.append_tokens`, under `torch.compile` too."""

def moe_align(
    topk_ids: Array, *, experts: int, block_size: int, local_experts: int | None = None,
    expert_map: Array | None = None, inverse: bool = False, sorted_tokens: bool = False,
    block_limits: bool = False, num_blocks: bool = False, flags: Array | None = None
) -> results.MoeAlignResult:
    """As :func:`spec_ops.moe_align`, under `torch.compile` too."""

def indexer_topk(
    scores: Array, *, k: int, block_size: int = 1, pool: int = 1, forced_first: int = 0,
    forced_last: int = 0, candidate_block: int = 1, lengths: Array | None = None,
    starts: Array | None = None, candidates: Array | None = None, values: bool = False,
    block_table: Array | None = None, requests: Array | None = None, slots: bool = False,
    flags: Array | None = None
) -> results.IndexerTopkResult:
    """As :func:`spec_ops.indexer_topk`, under `torch.compile` too."""

def hot_slots(
    wanted: Array, resident: Array, used: Array, step: Array, *, block_size: int = 1,
    page_size: int = 1, null_page: int = -1, tail: int = 0, requests: Array | None = None,
    reset: Array | None = None, tail_starts: Array | None = None,
    block_table: Array | None = None, pages: Array | None = None, flags: Array | None = None
) -> results.HotSlotsResult:
    """As :func:`spec_ops.hot_slots`, under `torch.compile` too."""

def unique(
    keys: Array, *, counts: bool = False, inverse: bool = False
) -> results.UniqueResult:
    """As :func:`spec_ops.unique`, under `torch.compile` too."""
