"""Drafts, penalties and sampling of this library for llama.cpp, by its package llama-cpp-python.

Three ways, from the whole to the parts:

* :class:`Decoder` writes texts with a ``Llama``: drafts that pay, and rows of logits only where a
  token is decided.
* :class:`DraftModel` is a ``draft_model`` for ``Llama(draft_model=..)``, whose own loop stays.
* :class:`Sampler` is a ``llama_sampler`` for a chain of llama.cpp's samplers.

>>> decoder = Decoder(Llama("model.gguf"), draft="suffix")  # doctest: +SKIP
>>> tokens = list(decoder.generate(prompt, 128))  # doctest: +SKIP
"""

from __future__ import annotations

import ctypes
import dataclasses
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import _functions as functions
from ._decoding import Counted, Drafter, Loop, Sampling
from ._lengths import Costs

__all__ = ["Decoder", "DraftModel", "Sampler"]


#: The tokens whose keys and values are in the cache of each model that a `Decoder` ran.
_CACHED: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()


class DraftModel:
    """Drafts for ``Llama(draft_model=..)``: ``"suffix"`` or ``"lookup"``, at most `max_draft`.

    llama-cpp-python then computes the logits of every row of a prompt, and runs every draft that
    it is given. :class:`Decoder` does neither.
    """

    def __init__(self, draft: str = "suffix", max_draft: int = 10) -> None:
        self._drafter = Drafter(draft, max_draft)

    def __call__(self, input_ids: np.ndarray, /, **_kwargs: Any) -> np.ndarray:
        text = np.ascontiguousarray(input_ids, np.int32)[None]
        drafts, _ = self._drafter(text, text.shape[1])
        return np.array(drafts, np.intc)


class Decoder:
    """Writes texts with a ``Llama`` of llama-cpp-python.

    `draft` is ``"suffix"``, ``"lookup"`` or ``"none"``; `max_draft` limits the drafts of a run,
    of which so many are run as pay for their rows. Keep the object: it learns what rows cost, by
    `clock` (on a busy machine and with one thread, `time.process_time` is steadier). The part of
    a prompt that the model has computed already is found again. `counted` says what the last text
    took.
    """

    def __init__(
        self,
        llama: Any,
        draft: str = "suffix",
        max_draft: int = 10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        import llama_cpp

        self._lib, self._llama, self._clock = llama_cpp, llama, clock
        self._drafter, self._costs = Drafter(draft, max_draft), Costs()
        if max_draft >= llama.n_batch:
            raise ValueError(f"max_draft is {max_draft}, expected below n_batch, {llama.n_batch}")
        self._batch = llama_cpp.llama_batch_init(llama.n_batch, 0, 1)
        self.counted = Counted()

    def __del__(self) -> None:
        if hasattr(self, "_batch"):
            self._lib.llama_batch_free(self._batch)

    def generate(self, prompt: Sequence[int], max_tokens: int, **sampling: Any) -> Iterator[int]:
        """The tokens behind `prompt`, one by one, up to a stop token or `max_tokens`.

        By name: `temperature` (0 takes the likeliest token), `top_k`, `top_p`, `min_p`, `seed`,
        the penalties `repetition`, `frequency` and `presence` over the whole text, `min_tokens`,
        `no_repeat_ngram`, `stop_tokens` (the model's own end of text by default), `bad_words`.
        """
        known = {field.name for field in dataclasses.fields(Sampling)}
        if unknown := sampling.keys() - known:
            raise TypeError(f"unknown: {', '.join(sorted(unknown))}; there are {sorted(known)}")
        sampling.setdefault("stop_tokens", (self._llama.token_eos(),))
        max_len = min(len(prompt) + max_tokens, self._llama.n_ctx())
        if self._llama.n_tokens:
            # Its own methods ran since, and changed the cache.
            _CACHED.pop(self._llama, None)
            self._llama.reset()
        loop = Loop(
            self._forward,
            lambda values, kind: np.asarray(values, kind),
            Sampling(**sampling),
            self._drafter,
            self._costs,
            max_len,
            self._clock,
        )
        self.counted = loop.counted
        return loop.run(list(map(int, prompt)))

    def _forward(self, tokens: list[int], place: int, keep: int) -> np.ndarray:
        """Logits after the last `keep` of `tokens`, in llama.cpp's own memory."""
        lib, context = self._lib, self._llama.ctx
        cached = _CACHED.setdefault(self._llama, [])
        if place == 0:
            # A prompt: what the cache holds of its beginning stays, but for its last token.
            pairs = enumerate(zip(tokens[:-keep], cached))
            same = min(len(tokens) - keep, len(cached))
            place = next((n for n, (a, b) in pairs if a != b), same)
            tokens = tokens[place:]
        lib.llama_memory_seq_rm(lib.llama_get_memory(context), 0, place, -1)
        cached[place:] = tokens
        size, decides = self._llama.n_batch, len(tokens) - keep
        for start in range(0, len(tokens), size):
            self._decode(tokens[start : start + size], place + start, decides - start)
        # The rows of logits of the last batch: all that decide a token, see `max_draft`.
        return np.ctypeslib.as_array(lib.llama_get_logits(context), (keep, self._llama.n_vocab()))

    def _decode(self, tokens: list[int], place: int, decides: int) -> None:
        """Runs one batch; rows from `decides` on get logits."""
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, token in enumerate(tokens):
            batch.token[row] = token
            batch.pos[row] = place + row
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = 0
            batch.logits[row] = row >= decides
        if status := self._lib.llama_decode(self._llama.ctx, batch):
            raise RuntimeError(f"llama_decode returned {status}")


class Sampler:
    """A ``llama_sampler`` that chooses the token as `sample_logits` does, for the end of a chain.

    ``llama_sampler_chain_add(chain, sampler.pointer)`` gives it to a chain, which frees it; keep
    this object as long as the chain. The first token that it accepts stands at position
    `position` of the text: a prompt that the chain does not accept has that many tokens. A token
    is drawn by `seed` and its position alone, whatever was drawn before.
    """

    def __init__(
        self,
        temperature: float = 0.8,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        position: int = 0,
    ) -> None:
        import llama_cpp

        self._lib = llama_cpp
        self._options = {"temperature": temperature, "seeds": seed}
        for name, value, off in (("top_k", top_k, 0), ("top_p", top_p, 1.0), ("min_p", min_p, 0.0)):
            if value != off:
                self._options[name] = value
        self._start = self.position = position
        self._logits = np.empty(0, np.float32)
        # llama.cpp calls these as long as the chain lives, so this object keeps them.
        members = {name: kind for name, kind, *_ in llama_cpp.llama_sampler_i._fields_}
        self._interface = llama_cpp.llama_sampler_i(
            name=members["name"](lambda _: b"spec_ops"),
            accept=members["accept"](self._accept),
            apply=members["apply"](self._apply),
            reset=members["reset"](self._reset),
        )
        self.pointer = llama_cpp.llama_sampler_init(ctypes.pointer(self._interface), None)

    def _accept(self, _sampler: Any, _token: int) -> None:
        self.position += 1

    def _reset(self, _sampler: Any) -> None:
        self.position = self._start

    def _apply(self, _sampler: Any, candidates: Any) -> None:
        """Chooses among the candidates that samplers before this one left, in any order."""
        array = candidates.contents
        raw = np.ctypeslib.as_array(
            ctypes.cast(array.data, ctypes.POINTER(ctypes.c_int32)), (array.size, 3)
        )
        # By token id: the noise of a token depends on its id, and the others do not compete.
        ids = raw[:, 0]
        if len(self._logits) <= ids.max():
            self._logits = np.empty(ids.max() + 1, np.float32)
        self._logits.fill(-np.inf)
        self._logits[ids] = raw[:, 1].view(np.float32)
        position = np.array([self.position], np.int64)
        chosen = functions.sample_logits(self._logits[None], position, **self._options)
        # Where no candidate has a weight, the operator's token need not be one of them.
        found = np.flatnonzero(ids == chosen.tokens.item())
        array.selected = int(found[0]) if len(found) else int(ids.argmin())
