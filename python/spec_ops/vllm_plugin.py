"""The plugin of vLLM's group `vllm.general_plugins`, which the wheel brings.

It does nothing unless ``SPEC_OPS_VLLM`` names what to replace, with commas between the names, or
``all`` for what is faster than vLLM's own in the version that is installed::

    SPEC_OPS_VLLM=all vllm serve MODEL \\
        --speculative-config '{"method": "ngram_gpu", "num_speculative_tokens": 5, \\
                               "prompt_lookup_min": 2, "prompt_lookup_max": 5}'

One line of vLLM's log says what was replaced, what was left, and why. A version that is not known is
refused with a sentence; ``python -m spec_ops.engines --check vllm==0.33`` lists the names, and what
each replaces. What requests ask for by ``extra_args`` is in :mod:`spec_ops.vllm_logits`.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["register"]


def register() -> None:
    """vLLM's plugin: replaces what ``SPEC_OPS_VLLM`` names."""
    wanted = os.environ.get("SPEC_OPS_VLLM", "").replace(" ", "")
    words = ""
    if wanted:
        from . import engines

        parts = wanted.split(",")
        done = {one.part for one in engines.install("vllm", parts)}
        words = f"spec_ops replaces {', '.join(sorted(done))}"
        if "all" in parts:
            left = engines.LEFT["vllm"].items()
            words += "".join(f"; leaves {part} ({why})" for part, why in left if part not in done)
    _at_start(words)


def _at_start(words: str) -> None:
    """Once the engine starts, says in its log what was replaced, and has the validator of requests
    know where they go: vLLM's first runner drops all custom processors where drafts are verified.

    vLLM loads plugins before it sets up its log and before there is a configuration.
    """
    from vllm.v1.engine import input_processor

    from . import vllm_logits

    original = input_processor.InputProcessor.__init__
    if getattr(original, "spec_ops", False):
        return

    def __init__(self: Any, vllm_config: Any, *args: Any, **named: Any) -> None:
        from vllm.logger import init_logger

        if words:
            init_logger("vllm.spec_ops").info("%s", words)
        drafts = vllm_config.speculative_config is not None
        vllm_logits.AdjustLogits.dropped = drafts and not vllm_config.use_v2_model_runner
        original(self, vllm_config, *args, **named)

    __init__.spec_ops = True  # type: ignore[attr-defined]
    input_processor.InputProcessor.__init__ = __init__
