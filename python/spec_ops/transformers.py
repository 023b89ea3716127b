"""Drafts, penalties and sampling of this library in transformers' ``generate``.

>>> model.generate(ids, custom_generate=Decoder(draft="suffix"))  # doctest: +SKIP

Settings stay those of ``generate``: ``do_sample``, ``temperature``, ``top_k``, ``top_p``,
``min_p``, ``repetition_penalty``, ``no_repeat_ngram_size``, ``min_length``, ``min_new_tokens``,
``bad_words_ids``, stop tokens, lengths and stopping criteria. A sampled token is drawn by a seed,
which torch's generator gives, and its position, so a text is the same with drafts as without.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._decoding import Counted, Drafter, Loop, Sampling
from ._lengths import Costs

if TYPE_CHECKING:
    import torch

__all__ = ["Decoder"]

#: What a processor of transformers asks of `Sampling`: its attribute, and the option.
_PROCESSORS = {
    "TemperatureLogitsWarper": {"temperature": "temperature"},
    "TopKLogitsWarper": {"top_k": "top_k"},
    "TopPLogitsWarper": {"top_p": "top_p"},
    "MinPLogitsWarper": {"min_p": "min_p"},
    "RepetitionPenaltyLogitsProcessor": {"penalty": "repetition"},
    "NoRepeatNGramLogitsProcessor": {"ngram_size": "no_repeat_ngram"},
}


class Decoder:
    """A ``custom_generate`` of transformers, for one request at a time.

    `draft` is ``"suffix"``, ``"lookup"`` or ``"none"``; `max_draft` limits the drafts of a run,
    of which so many are run as pay for their rows. Keep the object: it learns what rows cost, by
    `clock`. `counted` says what the last text took.
    """

    def __init__(
        self,
        draft: str = "suffix",
        max_draft: int = 10,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.drafter, self.clock = Drafter(draft, max_draft), clock
        self.costs = Costs()
        self.counted = Counted()

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        import torch

        if len(input_ids) != 1:
            raise NotImplementedError("spec_ops.transformers decodes one request at a time")
        if generation_config.return_dict_in_generate or generation_config.num_return_sequences > 1:
            raise NotImplementedError("spec_ops.transformers returns one text, as token ids")
        mask = model_kwargs.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise NotImplementedError("spec_ops.transformers takes no padded prompt")
        sampling = self._sampling(logits_processor, input_ids.shape[1])
        if generation_config.do_sample:
            # The generator of torch, so that `torch.manual_seed` repeats a text.
            sampling.seed = int(torch.randint(2**62, ()))
        else:
            sampling.temperature = 0.0
        name = "cache" if "cache" in model_kwargs else "past_key_values"
        forward = _Forward(model, name, model_kwargs.get(name))
        loop = Loop(
            forward,
            lambda values, kind: torch.as_tensor(
                values, dtype=getattr(torch, kind), device=input_ids.device
            ),
            sampling,
            self.drafter,
            self.costs,
            generation_config.max_length,
            self.clock,
        )
        text = input_ids
        for token in loop.run(input_ids[0].tolist()):
            text = torch.cat([text, text.new_tensor([[token]])], dim=1)
            if streamer is not None:
                streamer.put(text[:, -1].cpu())
            if bool(stopping_criteria(text, None).all()):
                break
        if streamer is not None:
            streamer.end()
        self.counted = loop.counted
        return text

    def _sampling(self, processors: Any, prompt: int) -> Sampling:
        """What the processors that ``generate`` prepared ask for."""
        asked = Sampling(temperature=1.0)
        for processor in processors or ():
            kind = type(processor).__name__
            if kind in _PROCESSORS:
                for attribute, option in _PROCESSORS[kind].items():
                    setattr(asked, option, getattr(processor, attribute))
            elif kind == "MinLengthLogitsProcessor":
                asked.min_tokens = max(asked.min_tokens, processor.min_length - prompt)
                asked.stop_tokens = _tokens(processor.eos_token_id)
            elif kind == "MinNewTokensLengthLogitsProcessor":
                asked.min_tokens = max(asked.min_tokens, processor.min_new_tokens)
                asked.stop_tokens = _tokens(processor.eos_token_id)
            elif kind == "NoBadWordsLogitsProcessor":
                asked.bad_words = tuple(map(tuple, processor.sequence_bias))
                asked.bad_words_in_prompt = True
            else:
                raise NotImplementedError(f"spec_ops.transformers does not know {kind}")
            if getattr(processor, "min_tokens_to_keep", 1) != 1:
                raise NotImplementedError("spec_ops.transformers keeps at least one token")
        return asked


def _tokens(ids: Any) -> tuple[int, ...]:
    """Token ids that transformers keeps in a tensor, a list or alone."""
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    return tuple(ids) if isinstance(ids, (list, tuple)) else (ids,)


class _Forward:
    """Runs a model over tokens at a place of the text, with a cache that can forget."""

    def __init__(self, model: Any, name: str, cache: Any) -> None:
        from transformers import DynamicCache

        if not isinstance(cache, DynamicCache):
            raise NotImplementedError("spec_ops.transformers needs a dynamic cache")
        self.model, self.name, self.cache = model, name, cache
        self.cached = 0
        # Only the logits of rows that decide a token are computed, where the model can tell.
        self.keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, tokens: list[int], place: int, keep: int) -> Any:
        import torch

        if place < self.cached:
            for layer in self.cache.layers:
                if getattr(layer, "is_sliding", False):
                    raise NotImplementedError("spec_ops.transformers: a cache of sliding windows")
                layer.keys = layer.keys[..., :place, :]
                layer.values = layer.values[..., :place, :]
        device = self.model.device
        keeps = {"logits_to_keep": keep} if self.keeps else {}
        with torch.inference_mode():
            output = self.model(
                input_ids=torch.tensor([tokens], device=device),
                position_ids=torch.arange(place, place + len(tokens), device=device)[None],
                use_cache=True,
                **keeps,
                **{self.name: self.cache},
            )
        self.cached = place + len(tokens)
        return output.logits[0, -keep:]
