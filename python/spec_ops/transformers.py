"""Drafts, penalties and sampling of this library in transformers' ``generate``.

>>> model.generate(ids, custom_generate=Decoder(draft="suffix"))  # doctest: +SKIP

Settings stay those of ``generate``: ``do_sample``, ``temperature``, ``top_k``, ``top_p``,
``min_p``, ``repetition_penalty``, ``no_repeat_ngram_size``, ``min_length``, ``min_new_tokens``,
``bad_words_ids``, stop tokens, lengths and stopping criteria. A sampled token is drawn by a seed,
which torch's generator gives, and its position, so a text is the same with drafts as without.
"""

from __future__ import annotations

import inspect
import sys
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

#: Settings of `generate` that ask for another way to decode, or for other results, and the values
#: at which they ask for nothing.
_SETTINGS: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1),
    "return_dict_in_generate": (None, False),
    "penalty_alpha": (None, 0),
    "use_mtp": (None, False),
}
_SETTINGS |= dict.fromkeys(
    ("dola_layers", "constraints", "force_words_ids", "prompt_lookup_num_tokens"), (None,)
)
_SETTINGS |= dict.fromkeys(("assistant_early_exit", "prefill_chunk_size"), (None,))

#: Arguments of the model that this module makes itself.
_OWN_ARGUMENTS = (
    *("attention_mask", "position_ids", "cache_position", "cache", "past_key_values"),
    *("use_cache", "logits_to_keep"),
)


def _refuse(what: str) -> None:
    raise NotImplementedError(f"spec_ops.transformers {what}")


def _arguments_of_generate() -> dict[str, Any]:
    """The arguments of the `generate` around this call; none if there is no such call.

    transformers passes some of them to its own ways to decode only: a streamer, into which it has
    put the prompt and whose reader waits for its end, among them.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code, module = frame.f_code, frame.f_globals.get("__name__", "")
        if code.co_name == "generate" and module == "transformers.generation.utils":
            return dict(frame.f_locals)
        frame = frame.f_back
    return {}


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
        around = _arguments_of_generate()
        streamer = around.get("streamer") if streamer is None else streamer
        try:
            if around.get("assistant_model") is not None:
                _refuse("has no assistant_model")
            if synced_gpus or around.get("synced_gpus"):
                _refuse("has no synced_gpus")
            self._check(model, input_ids, generation_config, model_kwargs)
            sampling = self._sampling(logits_processor, input_ids.shape[1])
            cache = "cache" if "cache" in model_kwargs else "past_key_values"
            forward = _Forward(model, cache, model_kwargs.get(cache))
            put = None if streamer is None else streamer.put
            return self._decode(
                forward, input_ids, sampling, stopping_criteria, generation_config, put
            )
        finally:
            if streamer is not None:
                streamer.end()

    @staticmethod
    def _check(model: Any, input_ids: Any, config: Any, given: dict[str, Any]) -> None:
        """Refuses what is not done, by its name."""
        import torch

        for name, off in _SETTINGS.items():
            if (value := getattr(config, name, None)) not in off:
                _refuse(f"has no {name} ({value!r}): it returns one text, as token ids")
        if getattr(model.config, "is_encoder_decoder", False):
            _refuse("takes no model with an encoder")
        for name, value in given.items():
            if value is not None and value is not False and name not in _OWN_ARGUMENTS:
                _refuse(f"does not pass {name} to the model")
        if len(input_ids) != 1:
            _refuse("decodes one request at a time")
        mask, places = given.get("attention_mask"), given.get("position_ids")
        if mask is not None and not bool(mask.all()):
            _refuse("takes no padded prompt (attention_mask)")
        plain = torch.arange(input_ids.shape[1])
        if places is not None and not torch.equal(places.reshape(-1).cpu(), plain):
            _refuse("takes no position_ids but those of the text")

    def _decode(
        self,
        forward: _Forward,
        input_ids: torch.Tensor,
        sampling: Sampling,
        stopping_criteria: Any,
        config: Any,
        put: Callable[[torch.Tensor], Any] | None,
    ) -> torch.Tensor:
        """The text, each of whose tokens is put where that is asked for."""
        import torch

        if config.do_sample:
            # The generator of torch, so that `torch.manual_seed` repeats a text.
            sampling.seed = int(torch.randint(2**62, ()))
        else:
            sampling.temperature = 0.0
        loop = Loop(
            forward,
            lambda values, kind: torch.as_tensor(
                values, dtype=getattr(torch, kind), device=input_ids.device
            ),
            sampling,
            self.drafter,
            self.costs,
            config.max_length,
            self.clock,
        )
        text = input_ids
        for token in loop.run(input_ids[0].tolist()):
            text = torch.cat([text, text.new_tensor([[token]])], dim=1)
            if put is not None:
                put(text[:, -1].cpu())
            if bool(stopping_criteria(text, None).all()):
                break
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
                _refuse(f"does not know {kind}")
            if getattr(processor, "min_tokens_to_keep", 1) != 1:
                _refuse("keeps at least one token")
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
            _refuse("needs a dynamic cache")
        if cache.get_seq_length() > 0:
            _refuse("takes no cache that is in use")
        self.model, self.name, self.cache = model, name, cache
        self.cached = 0
        # Only the logits of rows that decide a token are computed, where the model can tell.
        self.keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(self, tokens: list[int], place: int, keep: int) -> Any:
        import torch

        if place < self.cached:
            for layer in self.cache.layers:
                # Sliding windows forgot what lies before, and quantized layers are not sliced.
                if type(layer).__name__ != "DynamicLayer":
                    _refuse(f"cannot forget drafts in a {type(layer).__name__}")
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
