"""What this package puts in the place of engines' functions, by engine and version.

    python -m spec_ops.engines                          # engines and their parts
    python -m spec_ops.engines --check vllm==0.33       # what would be replaced in that version
    python -m spec_ops.engines --check vllm             # in the version that is installed

Nothing is replaced by installing this package: see :func:`install`.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from typing import Any, NamedTuple

from ._errors import ArgumentError

__all__ = ["REPLACEMENTS", "Replacement", "VERSIONS", "check", "install", "replacements"]

#: The versions of each engine whose sources were read: the first and the last.
VERSIONS = {"vllm": ("0.24", "0.33"), "sglang": ("0.5.23", "0.5.23")}

#: The functions that were replaced in this process, by their names.
ORIGINALS: dict[str, Any] = {}


class Replacement(NamedTuple):
    """A function of an engine, and what takes its place."""

    engine: str
    #: The name by which several functions are asked for together.
    part: str
    #: The function that engines call, by its full name.
    target: str
    #: What takes its place, by its full name.
    by: str
    #: The first version that has the function in this form.
    since: str
    #: What is not replaced, or differs.
    note: str = ""


_SAMPLER = "vllm.v1.worker.gpu"
REPLACEMENTS = (
    Replacement(
        "vllm", "drafter", f"{_SAMPLER}.spec_decode.init_speculator",
        "spec_ops.vllm_v2.init_speculator", "0.32", "method ngram_gpu",
    ),
    Replacement(
        "vllm", "suffix-drafter", f"{_SAMPLER}.spec_decode.init_speculator",
        "spec_ops.vllm_v2.init_suffix_speculator", "0.32", "method ngram_gpu",
    ),
    Replacement(
        "vllm", "rejection", f"{_SAMPLER}.spec_decode.rejection_sampler.rejection_sample",
        "spec_ops.vllm_v2.rejection_sample", "0.24",
        "no synthetic acceptance, block verification, watermarks or FLy",
    ),
    Replacement(
        "vllm", "rejection", "vllm.v1.sample.rejection_sampler.rejection_sample",
        "spec_ops.vllm.rejection_sample", "0.24", "no synthetic acceptance or FLy",
    ),
    Replacement(
        "vllm", "sampler", f"{_SAMPLER}.sample.sampler.gumbel_sample",
        "spec_ops.vllm_v2.gumbel_sample", "0.29",
    ),
    Replacement(
        "vllm", "sampler", f"{_SAMPLER}.sample.sampler.apply_top_k_top_p",
        "spec_ops.vllm.apply_top_k_top_p", "0.24", "of equal logits the lower index is kept",
    ),
    Replacement(
        "vllm", "sampler", "vllm.v1.sample.ops.topk_topp_sampler.apply_top_k_top_p",
        "spec_ops.vllm.apply_top_k_top_p", "0.24", "of equal logits the lower index is kept",
    ),
    Replacement(
        "vllm", "penalties", "vllm.v1.sample.ops.penalties.apply_penalties",
        "spec_ops.vllm.apply_penalties", "0.24",
    ),
    Replacement(
        "vllm", "penalties", "vllm.v1.sample.sampler.apply_bad_words",
        "spec_ops.vllm.apply_bad_words", "0.24",
    ),
    *(
        Replacement("vllm", part, f"vllm._custom_ops.{name}", f"spec_ops.vllm.{name}", since)
        for part, name, since in (
            ("routers", "topk_softmax", "0.24"),
            ("routers", "topk_sigmoid", "0.24"),
            ("routers", "topk_hash_softplus_sqrt", "0.24"),
            ("routers", "grouped_topk", "0.24"),
            ("align", "moe_align_block_size", "0.24"),
            ("indexer", "top_k_per_row_prefill", "0.24"),
            ("indexer", "top_k_per_row_decode", "0.24"),
        )
    ),
    *(
        Replacement("sglang", part, f"sglang.{target}", f"spec_ops.sglang.{name}", "0.5.23", note)
        for part, target, name, note in (
            (
                "sampling", "srt.layers.sampler.top_k_top_p_sampling_from_probs",
                "top_k_top_p_sampling_from_probs", "the backend flashinfer",
            ),
            (
                "sampling", "srt.layers.sampler.min_p_sampling_from_probs",
                "min_p_sampling_from_probs", "the backend flashinfer",
            ),
            (
                "sampling", "srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch",
                "top_k_top_p_min_p_sampling_from_probs_torch",
                "the backend pytorch; sampling masks stay SGLang's",
            ),
            (
                "tree", "kernels.ops.speculative.spec_tree.verify_tree_greedy_func",
                "verify_tree_greedy_func", "",
            ),
            (
                "tree",
                "kernels.ops.speculative.verify_sampling.tree_speculative_sampling_target_only",
                "tree_speculative_sampling_target_only", "thresholds of 1",
            ),
            ("align", "kernels.ops.moe.moe_align_block_size", "moe_align_block_size", ""),
            ("gates", "kernels.ops.moe.topk_softmax", "topk_softmax", ""),
            ("gates", "kernels.ops.moe.moe_topk_sigmoid.topk_sigmoid", "topk_sigmoid", ""),
            ("gates", "kernels.ops.moe.moe_fused_gate.moe_fused_gate", "moe_fused_gate", ""),
        )
    ),
)


def _number(version: str) -> tuple[int, ...]:
    """The numbers of a version: of ``0.33.0rc1+cu128``, 0, 33 and 0."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ArgumentError(f"{version!r} is no version", 3)
    return tuple(int(part) for part in found.group().split("."))


def _known(engine: str, version: str) -> tuple[int, ...]:
    """A version as numbers; refuses those whose sources were not read."""
    if engine not in VERSIONS:
        raise ArgumentError(f"{engine} is no engine of {', '.join(sorted(VERSIONS))}", 3)
    first, last = map(_number, VERSIONS[engine])
    number = _number(version)
    if not first <= number or number[: len(last)] > last:
        raise ArgumentError(
            f"{engine} {version} is not known to spec_ops: its functions are those of "
            f"{' to '.join(dict.fromkeys(VERSIONS[engine]))}, and nothing is replaced",
            3,
        )
    return number


def replacements(
    engine: str, version: str, parts: Iterable[str] | None = None
) -> list[Replacement]:
    """What is replaced in a version of an engine; with `parts`, only of these.

    Refuses a version that is not known, and a part that the version does not have.
    """
    number = _known(engine, version)
    there = [
        one for one in REPLACEMENTS if one.engine == engine and number >= _number(one.since)
    ]
    if parts is None:
        return there
    names = list(dict.fromkeys(one.part for one in there))
    for part in parts:
        if part not in names:
            words = f"expected some of {', '.join(names)}"
            raise ArgumentError(f"{engine} {version} has no part {part!r}, {words}", 3)
    return [one for one in there if one.part in set(parts)]


def resolved(name: str) -> Any:
    """What a full name stands for."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def install(engine: str, parts: Sequence[str]) -> list[Replacement]:
    """Replaces parts of an engine in this process, in the version that is installed; what was
    replaced.

    >>> spec_ops.engines.install("vllm", ["rejection", "routers"])    # doctest: +SKIP

    Modules that imported a function before by its name have it replaced too.
    """
    done = replacements(engine, metadata.version(engine), parts)
    for one in done:
        original = resolved(one.target)
        ours = resolved(one.by)
        if original is ours:
            continue
        ORIGINALS.setdefault(one.target, original)
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").partition(".")[0] != engine:
                continue
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, ours)
    return done


def check(requirement: str, say: Callable[[str], Any] = print) -> int:
    """Says what would be replaced in ``engine==version``, or in the engine that is installed; the
    status of the program."""
    engine, _, version = requirement.replace(" ", "").partition("==")
    try:
        there = replacements(engine, version or metadata.version(engine))
    except metadata.PackageNotFoundError:
        say(f"{engine} is not installed: name a version, such as {engine}=={_last(engine)}")
        return 1
    except ArgumentError as refused:
        say(str(refused).partition(": bad param")[0])
        return 1
    for part in dict.fromkeys(one.part for one in there):
        say(f"{part}:")
        for one in there:
            if one.part == part:
                say(f"  {one.target} -> {one.by}" + f" ({one.note})" * bool(one.note))
    later = [one for one in REPLACEMENTS if one.engine == engine and one not in there]
    for one in later:
        say(f"not replaced: {one.target}, which {engine} has from {one.since} on")
    return 0


def _last(engine: str) -> str:
    return VERSIONS.get(engine, ("", "1.0"))[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m spec_ops.engines",
        description="What spec_ops puts in the place of engines' functions.",
    )
    parser.add_argument("--check", metavar="ENGINE[==VERSION]", help="what would be replaced")
    asked = parser.parse_args(arguments)
    if asked.check:
        return check(asked.check)
    for engine, (first, last) in VERSIONS.items():
        parts = dict.fromkeys(one.part for one in REPLACEMENTS if one.engine == engine)
        versions = first if first == last else f"{first} to {last}"
        print(f"{engine} {versions}: {', '.join(parts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
