"""What operators return: a named tuple of its outputs, under the contract's names, where an
operator has several."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from ._contract import OPERATORS

#: An array of torch, numpy, cupy, jax or of another library that knows DLPack.
Array = Any

_NAMES = {
    "topk_router": "RoutedExperts",
    "deduplicate_topk": "DistinctPositions",
    "rejection_sample": "RejectionResult",
    "prompt_lookup": "Drafts",
    "sample_logits": "SampledTokens",
    "suffix_lookup": "SuffixDrafts",
    "tree_verify": "VerifiedPath",
    "append_tokens": "AppendedTokens",
    "moe_align": "AlignedExperts",
    "indexer_topk": "BestPositions",
    "unique": "DistinctKeys",
}


def _result(operator: str) -> Any:
    outputs = OPERATORS[operator].outputs
    made: Any = namedtuple(_NAMES[operator], [output.name for output in outputs])
    shapes = ", ".join(
        f"``{output.name}`` {output.shape}" + " or None" * output.optional for output in outputs
    )
    made.__doc__, made.__module__ = f"Of :func:`{operator}`: {shapes}.", "spec_ops"
    return made


#: By operator.
RESULTS = {operator: _result(operator) for operator in _NAMES}
globals().update({made.__name__: made for made in RESULTS.values()})
