"""A plugin of SGLang, of its group `sglang.srt.plugins`.

It registers the speculative algorithm ``SPEC_SUFFIX``, drafts by `suffix_lookup`, and puts this
package's functions in the place of those that ``SPEC_OPS_SGLANG`` names, with commas between the
names; unset, it replaces nothing::

    SPEC_OPS_SGLANG=sampling,tree,align,gates python -m sglang.launch_server --model-path MODEL \\
        --speculative-algorithm SPEC_SUFFIX --speculative-num-draft-tokens 8

``python -m spec_ops.engines --check sglang==0.5.23`` lists the names, and what each replaces.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from . import _functions as functions
from . import engines

__all__ = ["SuffixCorpus", "register", "tree_mask"]

_logger = logging.getLogger(__name__)


def tree_mask(parents: np.ndarray) -> np.ndarray:
    """Which nodes each node sees, ``[batch, n + 1, n + 1]`` of bools: itself and its ancestors.

    `parents` ``[batch, n]`` are those of the drafts, as `suffix_lookup` gives them: 0 for the
    text's last token, which is node 0, and i for draft i - 1. A draft that is not there, with a
    parent of -1, sees the last token and itself.
    """
    batch, drafts = parents.shape
    mask = np.zeros((batch, drafts + 1, drafts + 1), np.bool_)
    mask[:, 0, 0] = True
    rows = np.arange(batch)
    for node in range(1, drafts + 1):
        mask[:, node] = mask[rows, np.maximum(parents[:, node - 1], 0)]
        mask[:, node, node] = True
    return mask


class SuffixCorpus:
    """What SGLang's worker for n-grams asks its corpus, answered by `suffix_lookup`.

    It keeps the texts of the requests in the batch, to which each round adds what it was told of
    the end of a text, and drafts from the request's own text, and from `corpus`, texts that were
    loaded.
    """

    def __init__(self, draft_token_num: int, max_match: int = 16, width: int = 1) -> None:
        self.draft_token_num, self.max_match, self.width = draft_token_num, max_match, width
        self.texts: dict[str, list[int]] = {}
        self.corpora: dict[str, list[int]] = {}
        self.remaining_token_budget = 10_000_000

    def extend(self, request: str, tail: Sequence[int], length: int) -> list[int]:
        """A request's text, of which there are `length` tokens, and `tail` are the last."""
        text = self.texts.setdefault(request, [])
        start = length - len(tail)
        if start > len(text):  # what lies between was never seen
            text[:] = [-1] * start
        text[start:] = tail
        return text

    def batch_get(
        self, req_ids: list[str], batch_tokens: list[list[int]], total_lens: list[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Nodes of each request's tree, its last token first, and which nodes each sees: flat."""
        texts = [self.extend(*one) for one in zip(req_ids, batch_tokens, total_lens)]
        lengths = np.array([len(text) for text in texts], np.int32)
        tokens = np.zeros((len(texts), int(lengths.max(initial=1))), np.int64)
        for row, text in zip(tokens, texts):
            row[: len(text)] = text
        loaded = [token for text in self.corpora.values() for token in (*text, -1)]
        found = functions.suffix_lookup(
            tokens,
            lengths,
            n=self.draft_token_num - 1,
            max_match=self.max_match,
            width=self.width,
            parents=True,
            corpus=np.array(loaded, np.int64) if loaded else None,
        )
        last = tokens[np.arange(len(texts)), lengths - 1]
        drafts = np.where(found.drafts >= 0, found.drafts, 0)
        nodes = np.concatenate([last[:, None], drafts], axis=1)
        return nodes.reshape(-1), tree_mask(np.asarray(found.parents)).reshape(-1)

    def batch_put(self, batch_tokens: list[list[int]]) -> None:
        """Texts come with `batch_get`."""

    def synchronize(self) -> None:
        """Nothing runs beside."""

    def erase_match_state(self, req_ids: Iterable[str]) -> None:
        """Forgets requests that left the batch."""
        for request in req_ids:
            self.texts.pop(request, None)

    def reset(self) -> None:
        """Forgets all requests and what was loaded."""
        self.texts.clear()
        self.corpora.clear()

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Loads texts to draft from; their tokens."""
        if corpus_id in self.corpora:
            raise ValueError(f"External corpus '{corpus_id}' already exists")
        texts = list(chunks)
        self.corpora[corpus_id] = [token for text in texts for token in (*text, -1)]
        return sum(len(text) for text in texts)

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """It was there at once."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Forgets what was loaded under a name."""
        self.corpora.pop(corpus_id, None)

    def list_external_corpora(self) -> dict[str, int]:
        """The tokens of what was loaded, by name."""
        return {
            name: sum(token >= 0 for token in text) for name, text in self.corpora.items()
        }


def _algorithm() -> Any:
    """SGLang's description of an algorithm whose batches are those of n-grams."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo

    class SuffixAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
        """Overlap scheduling, results and graphs are those of the algorithm NGRAM."""

        def __getattr__(self, name: str) -> Any:
            """What SGLang asks its own algorithms, but forgot in those of plugins."""
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(SpeculativeAlgorithm.NGRAM, name)

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            SpeculativeAlgorithm.NGRAM.handle_server_args(server_args)

    return SuffixAlgorithm


def _worker(server_args: Any) -> type:
    """SGLang's worker for n-grams, with the corpus of this module."""
    del server_args
    from sglang.srt.speculative import ngram_worker

    class SuffixWorker(ngram_worker.NGRAMWorker):  # type: ignore[misc]
        """Drafts by `suffix_lookup`."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made = self.ngram_corpus
            width = max(int(self.topk or 1), 1)
            self.ngram_corpus = SuffixCorpus(self.draft_token_num, width=width)
            self.ngram_corpus.remaining_token_budget = made.remaining_token_budget
            # A round says at least as much of the end of a text as it added to the text.
            self.max_trie_depth = max(int(self.max_trie_depth), self.draft_token_num + 1)

        def _prepare_draft_tokens(self, batch: Any) -> Any:
            """A request's whole text, when the request is met for the first time."""
            for request in batch.reqs:
                if request.rid not in self.ngram_corpus.texts:
                    text = [*request.origin_input_ids_unpadded, *request.output_ids]
                    self.ngram_corpus.extend(request.rid, text, len(text))
            return super()._prepare_draft_tokens(batch)

    return SuffixWorker


def _can_replace(target: str, ours: Callable[..., Any]) -> bool:
    """Whether SGLang has the function on this platform, as something that its hooks can wrap.

    A name may be missing, or be None: SGLang would put what replaces None in the place of every None
    of every module. A hook asks the function for its names, and FlashInfer's are imported by asking:
    without FlashInfer that fails, so such a function is given names before.
    """
    from sglang.utils import LazyImport

    module, _, name = target.rpartition(".")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    if isinstance(function, LazyImport):
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(ours, name):
                vars(function).setdefault(name, getattr(ours, name))
    return function is not None


def _unless_masks_are_asked_for(ours: Callable[..., Any]) -> Callable[..., Any]:
    """A hook around SGLang's sampling in torch, which also returns the probabilities after filters."""

    def sample(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return (original if kwargs.get("return_filtered_probs") else ours)(*args, **kwargs)

    return sample


def register() -> None:
    """SGLang's plugin."""
    from importlib import metadata

    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    SpeculativeAlgorithm.register(
        "SPEC_SUFFIX", supports_overlap=True, spec_class=_algorithm()
    )(_worker)
    parts = os.environ.get("SPEC_OPS_SGLANG", "").replace(" ", "")
    if parts:
        version = metadata.version("sglang")
        for one in engines.replacements("sglang", version, parts.split(",")):
            ours = engines.resolved(one.by)
            if not _can_replace(one.target, ours):
                _logger.warning("spec_ops: SGLang has no %s here; not replaced", one.target)
            elif one.target.endswith("_from_probs_torch"):
                around = _unless_masks_are_asked_for(ours)
                HookRegistry.register(one.target, around, HookType.AROUND)
            else:
                HookRegistry.register(one.target, ours, HookType.REPLACE)
