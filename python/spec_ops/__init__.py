"""The operators that decide an LLM server's next tokens and experts.

Speculative decoding (n-gram drafts, rejection sampling, trees of drafts), sampling, and
mixture-of-experts routing, on arrays of torch, cupy, numpy, jax or whatever knows DLPack:
where they lie, on the stream that their library works on, without a copy.

>>> import numpy as np, spec_ops
>>> logits = np.random.default_rng(0).standard_normal((4, 256), np.float32)
>>> weights, indices, _ = spec_ops.topk_router(
...     logits, topk=8, scoring="sigmoid", groups=8, topk_groups=4, scale=2.5
... )
>>> weights.shape, indices.dtype
((4, 8), dtype('int32'))

Each operator is a function, and a class (:class:`TopkRouter`) whose plans are called: the
least overhead, for CUDA graphs. :mod:`spec_ops.torch` has them as operators of torch, for
``torch.compile``. :mod:`spec_ops.vllm`, :mod:`spec_ops.sglang`, :mod:`spec_ops.flashinfer` and
:mod:`spec_ops.fastdeploy` have them in these engines' own signatures, and :mod:`spec_ops.engines`
says which functions of an engine's version they replace.
"""

import os as _os

from ._corpus import Corpus
from ._errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DtypeError,
    OutOfMemoryError,
    ShapeError,
    SignatureError,
    SpecError,
    StridesError,
)
from ._functions import (
    adjust_logits,
    append_tokens,
    deduplicate_topk,
    hybrid_mtp_ngram,
    indexer_topk,
    moe_align,
    ngram_match,
    prompt_lookup,
    rejection_sample,
    sample_logits,
    suffix_lookup,
    topk_router,
    tree_verify,
    unique,
)
from ._native import Plan, __version__, devices
from ._native import forked as _forked
from ._planned import (
    AdjustLogits,
    AppendTokens,
    DeduplicateTopk,
    HybridMtpNgram,
    IndexerTopk,
    MoeAlign,
    NgramMatch,
    PromptLookup,
    RejectionSample,
    SampleLogits,
    SuffixLookup,
    TopkRouter,
    TreeVerify,
    Unique,
)
from ._results import (
    AlignedExperts,
    AppendedTokens,
    BestPositions,
    DistinctKeys,
    DistinctPositions,
    Drafts,
    RejectionResult,
    RoutedExperts,
    SampledTokens,
    SuffixDrafts,
    VerifiedPath,
)
from ._torch_unique import torch_unique

__all__ = [
    "AdjustLogits",
    "AlignedExperts",
    "AppendTokens",
    "AppendedTokens",
    "ArgumentError",
    "BestPositions",
    "Corpus",
    "DeduplicateTopk",
    "DeviceError",
    "DeviceLostError",
    "DistinctKeys",
    "DistinctPositions",
    "Drafts",
    "DtypeError",
    "HybridMtpNgram",
    "IndexerTopk",
    "MoeAlign",
    "NgramMatch",
    "OutOfMemoryError",
    "Plan",
    "PromptLookup",
    "RejectionResult",
    "RejectionSample",
    "RoutedExperts",
    "SampleLogits",
    "SampledTokens",
    "ShapeError",
    "SignatureError",
    "SpecError",
    "StridesError",
    "SuffixDrafts",
    "SuffixLookup",
    "TopkRouter",
    "TreeVerify",
    "Unique",
    "VerifiedPath",
    "__version__",
    "adjust_logits",
    "append_tokens",
    "deduplicate_topk",
    "devices",
    "hybrid_mtp_ngram",
    "indexer_topk",
    "moe_align",
    "ngram_match",
    "prompt_lookup",
    "rejection_sample",
    "sample_logits",
    "suffix_lookup",
    "topk_router",
    "torch_unique",
    "tree_verify",
    "unique",
]

# Threads do not survive a fork; the operators on the CPU are told to start new ones.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_forked)
