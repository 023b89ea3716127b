"""The operators as objects whose plans are called. Made by `tools/stubs.py`."""

from collections.abc import Sequence
from typing import Any, Literal

from ._native import Plan
from ._results import Array

class Planned:
    """An operator with its options."""

    options: dict[str, Any]
    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that are read or changed in place, in order."""

    def plan(
        self,
        *arrays: Array | None,
        like: Array | None = None,
        out: Sequence[Any] | None = None,
        **named: Array | None,
    ) -> Plan:
        """A plan for calls with arrays like these, whose contents are not looked at."""

class TopkRouter(Planned):
    """topk_router with its options: see :func:`spec_ops.topk_router`."""

    def __init__(
        self,
        *,
        scoring: Literal['sigmoid', 'softmax', 'sqrt_softplus'] = 'sigmoid',
        select: Literal['score', 'logit'] = 'score',
        groups: int = 1,
        topk_groups: int = 1,
        group_score: Literal['top2_sum', 'max'] = 'top2_sum',
        masked: Literal['zero', 'excluded'] = 'excluded',
        topk: int,
        renormalize: bool = True,
        scale: float = 1.0,
        shared_experts: int = 0,
        shared_weight: float = 1.0,
        physical_experts: int | None = None,
    ) -> None: ...

class DeduplicateTopk(Planned):
    """deduplicate_topk with its options: see :func:`spec_ops.deduplicate_topk`."""

    def __init__(
        self,
        *,
        mtp_step: int = 1,
    ) -> None: ...

class RejectionSample(Planned):
    """rejection_sample with its options: see :func:`spec_ops.rejection_sample`."""

    def __init__(
        self,
        *,
        max_spec_len: int | None = None,
        acceptance: Literal['probabilistic', 'greedy'] = 'probabilistic',
        recovery: Literal['sample', 'argmax'] = 'sample',
    ) -> None: ...

class NgramMatch(Planned):
    """ngram_match with its options: see :func:`spec_ops.ngram_match`."""

    def __init__(
        self,
        *,
        max_ngram_size: int = 3,
        token_threshold: int = 128,
    ) -> None: ...

class HybridMtpNgram(Planned):
    """hybrid_mtp_ngram with its options: see :func:`spec_ops.hybrid_mtp_ngram`."""

    def __init__(
        self,
        *,
        max_ngram_size: int = 3,
        min_ngram_size: int = 1,
        max_draft_tokens: int = 5,
        token_threshold: int = 1024,
    ) -> None: ...

class PromptLookup(Planned):
    """prompt_lookup with its options: see :func:`spec_ops.prompt_lookup`."""

    def __init__(
        self,
        *,
        min_ngram: int,
        max_ngram: int,
        max_draft: int,
        occurrence: Literal['first', 'last'] = 'first',
    ) -> None: ...

class SampleLogits(Planned):
    """sample_logits with its options: see :func:`spec_ops.sample_logits`."""

    def __init__(
        self,
        *,
        min_p_first: bool = False,
    ) -> None: ...

class TreeVerify(Planned):
    """tree_verify with its options: see :func:`spec_ops.tree_verify`."""

    def __init__(
        self,
        *,
        max_depth: int,
    ) -> None: ...

class MoeAlign(Planned):
    """moe_align with its options: see :func:`spec_ops.moe_align`."""

    def __init__(
        self,
        *,
        experts: int,
        local_experts: int | None = None,
        block_size: int,
    ) -> None: ...

class IndexerTopk(Planned):
    """indexer_topk with its options: see :func:`spec_ops.indexer_topk`."""

    def __init__(
        self,
        *,
        k: int,
    ) -> None: ...

class Unique(Planned):
    """unique with its options: see :func:`spec_ops.unique`."""

    def __init__(self) -> None: ...
