"""A decode loop on the host, with drafts from the text, for engines that give logits of rows.

:mod:`spec_ops.transformers` and :mod:`spec_ops.llama_cpp` bring the model. What is here drafts,
adjusts and samples with this library's operators. A token is drawn by the request's seed and its
position alone, so a text is the same with drafts as without, as far as the model's logits are.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _functions as functions
from ._lengths import Costs, Lengths

#: Tokens of the longest pattern that `lookup` looks for.
PATTERN = 4
#: The longest match that `suffix` tells from longer ones.
MATCH = 32


@dataclasses.dataclass
class Sampling:
    """How tokens are chosen: the options of `sample_logits` and `adjust_logits` for one request."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    min_tokens: int = 0
    no_repeat_ngram: int = 0
    stop_tokens: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    bad_words_in_prompt: bool = False


@dataclasses.dataclass
class Counted:
    """What a text took: runs of the model, that of the prompt included, and drafts."""

    tokens: int = 0
    runs: int = 0
    drafted: int = 0
    accepted: int = 0


class Drafter:
    """Drafts from a text, at most `max_draft`: `lookup` by its last one to four tokens, `suffix` by
    the longest match, weighed by how often each continuation followed."""

    def __init__(self, name: str, max_draft: int) -> None:
        if name not in ("none", "lookup", "suffix"):
            raise ValueError(f"draft is {name!r}, expected 'none', 'lookup' or 'suffix'")
        if not 1 <= max_draft <= 64:
            raise ValueError(f"max_draft is {max_draft}, expected 1 to 64")
        self.name, self.max_draft = name, max_draft
        #: How many kinds of drafts there are, by the length of the match.
        self.kinds = PATTERN + 1 if name == "lookup" else MATCH.bit_length() + 1

    def __call__(self, text: np.ndarray, length: int) -> tuple[list[int], int]:
        """Drafts behind the first `length` tokens of `text`, i32 `[1, max_draft]`, and their kind."""
        if self.name == "none" or length < 2:
            return [], 0
        lengths = np.array([length], np.int32)
        if self.name == "suffix":
            found = functions.suffix_lookup(
                text, lengths, n=self.max_draft, max_match=MATCH, match_lengths=True
            )
            match = int(found.match_lengths[0])
            return found.drafts[0, : found.counts[0]].tolist(), match.bit_length()
        for pattern in range(min(PATTERN, length - 1), 0, -1):
            drafts, counts = functions.prompt_lookup(
                text, lengths, min_ngram=pattern, max_ngram=pattern, max_draft=self.max_draft
            )
            if counts[0]:
                return drafts[0, : counts[0]].tolist(), pattern
        return [], 0


class Loop:
    """Decodes one request.

    `forward(tokens, place, keep)` runs the model over `tokens`, the first of which stands at
    `place` of the text, and returns logits `[keep, vocab]` after the last `keep` of them, which
    may be changed. It forgets what earlier runs computed for `place` and for what follows. The
    first run is that of the prompt, with `keep` 1. `array(values, dtype)` makes an array beside
    the logits.
    """

    def __init__(
        self,
        forward: Callable[[list[int], int, int], Any],
        array: Callable[[Any, str], Any],
        sampling: Sampling,
        drafter: Drafter,
        costs: Costs,
        max_len: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.forward, self.array, self.sampling = forward, array, sampling
        self.drafter, self.costs, self.clock = drafter, costs, clock
        self.lengths = Lengths(drafter.kinds, drafter.max_draft, costs)
        self.max_len = max_len
        self.counted = Counted()
        self.text = np.zeros((1, max_len), np.int32)
        self.adjusts = self._adjustments()

    def _adjustments(self) -> dict[str, Any]:
        """The arguments of `adjust_logits` that are not off; the stop tokens belong to
        `min_tokens`."""
        off = Sampling()
        asked: dict[str, Any] = {}
        for name in ("repetition", "frequency", "presence", "min_tokens", "no_repeat_ngram"):
            value = getattr(self.sampling, name)
            if value != getattr(off, name):
                kind = "int32" if isinstance(getattr(off, name), int) else "float32"
                asked[name] = self.array([value], kind)
        if "min_tokens" in asked:
            stops = list(self.sampling.stop_tokens) or [-1]
            asked["stop_tokens"] = self.array([stops], "int32")
        if words := self.sampling.bad_words:
            ends = np.cumsum([0, *map(len, words)])
            asked["bad_offsets"] = self.array([0, len(words)], "int32")
            asked["word_offsets"] = self.array(ends.tolist(), "int32")
            asked["word_tokens"] = self.array([t for word in words for t in word], "int32")
        return asked

    def choose(self, logits: Any, prompt: int, length: int, drafts: list[int]) -> list[int]:
        """The target's token after the text and after each draft."""
        rows = len(drafts) + 1
        requests = self.array([0] * rows, "int32")
        if self.adjusts:
            functions.adjust_logits(
                logits,
                self.array(self.text[:, :length], "int32"),
                self.array([prompt], "int32"),
                self.array([length], "int32"),
                requests=requests,
                draft_tokens=self.array([0, *drafts], "int32"),
                parents=self.array(list(range(-1, rows - 1)), "int32"),
                bad_words_in_prompt=self.sampling.bad_words_in_prompt,
                **self.adjusts,
            )
        asked = self.sampling
        filters: dict[str, Any] = {}
        if asked.temperature > 0:
            filters |= {"top_k": self.array([asked.top_k], "int32")} if asked.top_k > 0 else {}
            filters |= {"top_p": self.array([asked.top_p], "float32")} if asked.top_p < 1 else {}
            filters |= {"min_p": self.array([asked.min_p], "float32")} if asked.min_p > 0 else {}
        chosen = functions.sample_logits(
            logits,
            self.array(list(range(length, length + rows)), "int64"),
            self.array([asked.temperature], "float32"),
            self.array([asked.seed], "int64"),
            requests=requests,
            **filters,
        )
        tokens: list[int] = chosen.tokens.reshape(-1).tolist()
        return tokens

    def run(self, prompt: list[int]) -> Iterator[int]:
        """The tokens behind the prompt, one by one, up to a stop token or `max_len`."""
        length = len(prompt)
        if not 0 < length <= self.max_len:
            raise ValueError(f"a prompt of {length} tokens, expected 1 to {self.max_len}")
        self.text[0, :length] = prompt
        text, stops = self.text[0], self.sampling.stop_tokens
        if length == self.max_len:
            return
        # The prompt runs as engines run it, whole, so that its last token's logits are the same.
        first = True
        drafts: list[int] = []
        while length < self.max_len:
            start = self.clock()
            if first:
                logits = self.forward(prompt, 0, 1)
            else:
                offered, kind = self.drafter(self.text, length)
                offered = offered[: self.max_len - length - 1]
                self.lengths.drafted(length, kind, offered)
                drafts = offered[: self.lengths.choose(kind, len(offered))]
                tokens = [int(text[length - 1]), *drafts]
                logits = self.forward(tokens, length - 1, len(tokens))
            chosen = self.choose(logits, len(prompt), length, drafts)
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == chosen[accepted]:
                accepted += 1
            emitted = chosen[: accepted + 1]
            if not first:
                self.costs.record(len(drafts) + 1, self.clock() - start)
            first = False
            self.lengths.settle(len(drafts), accepted)
            self.counted.runs += 1
            self.counted.drafted += len(drafts)
            self.counted.accepted += accepted
            text[length : length + len(emitted)] = emitted
            length += len(emitted)
            self.lengths.observe(text, length)
            for token in emitted:
                self.counted.tokens += 1
                yield token
                if token in stops:
                    return
