"""The plugins of vLLM and SGLang, and the table of what is replaced in which version.

`SPEC_SGLANG_DIR` is the folder of the package `sglang` (an unpacked wheel, or `python` of a
checkout), and `SPEC_VLLM_VERSIONS` a folder with `vllm-0.32.0` and `vllm-0.33.0`, each with the
package `vllm`. What they import beside the files that are tested are stand-ins.
"""

import ast
import os
import subprocess
import sys
import textwrap
from importlib.metadata import distribution
from pathlib import Path

import pytest
from conftest import need

import spec_ops
from spec_ops import engines

SHIMS = Path(__file__).parent / "shims"
PACKAGE = Path(spec_ops.__file__).parents[1]


def folder(variable):
    """The folder that an environment variable names."""
    if not os.environ.get(variable):
        pytest.skip(f"{variable} is not set")
    return Path(os.environ[variable])


def python(code, **environment):
    """Runs a program beside the stand-ins; what it says."""
    found = [str(SHIMS), str(SHIMS / "vllm_like"), str(PACKAGE), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(found)} | environment
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_engines_find_the_plugins():
    """What the wheel says, and that each name is there."""
    points = {(one.group, one.name): one.value for one in distribution("spec-ops").entry_points}
    assert points == {
        ("sglang.srt.plugins", "spec_ops"): "spec_ops.sglang_plugin:register",
        ("vllm.general_plugins", "spec_ops"): "spec_ops.vllm_plugin:register",
        ("vllm.logits_processors", "spec_ops"): "spec_ops.vllm_logits:AdjustLogits",
    }
    for value in points.values():
        module, name = value.split(":")
        tree = ast.parse((PACKAGE / module.replace(".", "/")).with_suffix(".py").read_text())
        assert name in {getattr(node, "name", "") for node in tree.body}


def test_check():
    """`python -m spec_ops.engines --check`."""
    said = []
    assert engines.check("vllm==0.33", say=said.append) == 0
    text = "\n".join(said)
    assert "init_speculator -> spec_ops.vllm_runner.init_speculator" in text
    assert "filters: (not in all: a mask" in text
    for wrong, words in (
        ("vllm==0.34", "vllm 0.34 is not known to spec_ops: its functions are those of 0.32 to 0.33"),
        ("vllm==0.31", "not known"),
        ("vllm==soon", "no version"),
        ("vllm", "is not installed: name a version, such as vllm==0.33"),
        ("llama==1", "no engine of sglang, vllm"),
    ):
        said.clear()
        assert engines.check(wrong, say=said.append) == 1 and words in said[0], said
    assert "sglang 0.5.23: sampling, tree" in python("import spec_ops.engines as e; e.main([])")
    with pytest.raises(spec_ops.ArgumentError, match="no part 'rejector', expected all or some of"):
        engines.replacements("vllm", "0.33.0", ["rejector"])
    assert {one.part for one in engines.replacements("vllm", "0.33.0", ["align"])} == {"align"}
    parts = {one.part for one in engines.replacements("vllm", "0.33.0", ["sharded"])}
    assert parts == {"sharded", "sampler"}
    everything = {one.part for one in engines.replacements("vllm", "0.33.0", ["all"])}
    assert {"sampler", "suffix-drafter"} <= everything and not everything & {"drafter", "filters"}


def test_check_of_sources(tmp_path):
    """A name that moved is said with the old and the new module, and fails the check."""
    modules = {}
    for one in engines.replacements("vllm", "0.33.0"):
        module, inside = engines.split(one.target)
        kind, _, name = inside.rpartition(".")
        text = f"{'class' if name[0].isupper() else 'def'} {name}():\n    pass\n"
        if kind:
            text = f"class {kind}:\n{textwrap.indent(text, '    ')}"
        modules.setdefault(module, []).append(text)
    for module, text in modules.items():
        file = tmp_path.joinpath(*module.split("."))
        is_package = any(other.startswith(f"{module}.") for other in modules)
        file = file / "__init__.py" if is_package else file.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(text))
    # A name may depend on the platform.
    file = tmp_path / "vllm/v1/worker/gpu/sample/gumbel.py"
    branches = textwrap.indent(file.read_text(), "        ")
    file.write_text(f"if a:\n    pass\nelse:\n    try:\n{branches}    except ImportError:\n        b = 1\n")
    said = []
    assert engines.check("vllm==0.33", tmp_path, said.append) == 0
    old = tmp_path / "vllm/v1/worker/gpu/sample/gumbel.py"
    old.rename(old.with_name("noise.py"))
    assert engines.check("vllm==0.33", tmp_path, said.append) == 1
    assert said[-1] == (
        "moved: vllm.v1.worker.gpu.sample.gumbel.gumbel_sample, "
        "now vllm.v1.worker.gpu.sample.noise.gumbel_sample"
    )
    old.with_name("noise.py").unlink()
    assert engines.check("vllm==0.33", tmp_path, said.append) == 1
    assert said[-1] == "gone: vllm.v1.worker.gpu.sample.gumbel.gumbel_sample"
    # A method is looked for in its class.
    file = tmp_path / "vllm/v1/worker/gpu/model_runner.py"
    file.write_text(file.read_text().replace("GPUModelRunner", "Runner"))
    assert engines.check("vllm==0.33", tmp_path, said.append) == 1
    assert said[-1] == "gone: vllm.v1.worker.gpu.model_runner.GPUModelRunner.sample"


def signature(file, name):
    """The parameters of a function of a file: their names, and which a call may leave out; of a
    name that the file imports, those where it is defined are not looked for."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            if any("overload" in ast.unparse(one) for one in node.decorator_list):
                continue
            return [one.arg for one in node.args.args + node.args.kwonlyargs]
    return None


def source(root, target):
    """The file of an engine's function, by its full name, through one import of it."""
    module, _, name = target.rpartition(".")
    file = root.joinpath(*module.split("."))
    file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
    if signature(file, name) is not None:
        return file, name
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names):
            if (root / node.module.partition(".")[0]).exists() and "npu" not in node.module:
                return source(root, f"{node.module}.{name}")
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return None
    raise AssertionError(f"{target} is not in {file}")


def accepts(ours, names):
    """Whether a function takes an engine's parameters, by position and by name."""
    import inspect

    parameters = inspect.signature(ours).parameters
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        taken = [name for name, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
        taken = [name for name in taken if parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL]
        return taken[: len(names)] == names[: len(taken)]
    by_name = [name for name, one in parameters.items() if one.kind is one.KEYWORD_ONLY]
    by_position = [name for name in parameters if name not in by_name]
    if by_name and len(names) > len(by_position):
        names, last = names[: len(by_position)], names[len(by_position) :]
        if not set(last) <= set(by_name):
            return False
    left = [one for name, one in parameters.items() if name not in names]
    return by_position[: len(names)] == names and all(one.default is not one.empty for one in left)


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
def test_versions_of_vllm(version):
    """Each function that is replaced in a version is there, with parameters that ours takes; the
    methods of a class that ours overrides have the same parameters."""
    need("torch")
    root = folder("SPEC_VLLM_VERSIONS") / f"vllm-{version}"
    assert engines.check(f"vllm=={version}", root) == 0
    for one in engines.replacements("vllm", version):
        name = one.target.rpartition(".")[2]
        if name == "init_speculator":
            continue
        module, inside = engines.split(one.target)
        if "." in inside:
            kind, method = inside.split(".")
            theirs = methods(root.joinpath(*module.split(".")).with_suffix(".py"), kind)[method]
            file = PACKAGE.joinpath(*one.by.split(".")[:-1]).with_suffix(".py")
            assert signature(file, method) == theirs, (version, one.target)
            continue
        if not name[0].isupper():
            file, name = source(root, one.target)
            names = signature(file, name)
            assert accepts(engines.resolved(one.by), names), (version, one.target, names)
            continue
        theirs = methods(root.joinpath(*one.target.split(".")[:-1]).with_suffix(".py"), name)
        ours = methods(PACKAGE.joinpath(*one.by.split(".")[:-1]).with_suffix(".py"), name)
        both = (ours.keys() & theirs.keys()) - {"__init__"}
        assert both & {"__call__", "apply", "forward"}
        for method in both:
            assert ours[method] == theirs[method], (version, one.target, method)


def methods(file, name):
    """The parameters of the methods of a class of a file."""
    kinds = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ClassDef)]
    (kind,) = (node for node in kinds if node.name == name)
    functions = [node for node in kind.body if isinstance(node, ast.FunctionDef)]
    return {node.name: [one.arg for one in node.args.args] for node in functions}


def test_functions_of_sglang():
    """As for vLLM; what SGLang imports lazily has no parameters to compare."""
    need("torch")
    root = folder("SPEC_SGLANG_DIR")
    compared = 0
    for one in engines.replacements("sglang", "0.5.23"):
        found = source(root, one.target)
        if found is None:
            continue
        names = signature(*found)
        ours = getattr(engines.resolved(one.by), "__wrapped__", engines.resolved(one.by))
        if one.by.endswith("moe_fused_gate"):
            ours = spec_ops.sglang._fused_gate
        renamed = [name.replace("retrive_", "retrieve_") for name in names]
        assert accepts(ours, renamed), (one.target, names)
        compared += 1
    assert compared == 7


SGLANG = """
    import ast, importlib, os, sys
    from types import ModuleType, SimpleNamespace
    import stand_ins, torch
    import importlib.metadata as metadata
    metadata.version = lambda name: "0.5.23"
    real = {
        "sglang.srt.plugins.hook_registry",
        "sglang.srt.speculative.spec_info",
        "sglang.srt.speculative.spec_registry",
        "sglang.srt.speculative.ngram_worker",
    }
    view = lambda args: args
    known = {
        "sglang.srt.arg_groups.overrides": {"resolving_view": view},
        "sglang.srt.speculative.base_spec_worker": {"BaseSpecWorker": object},
        "sglang.srt.utils": {"is_cpu": lambda: True},
    }
    with open(os.path.join(os.environ["SPEC_SGLANG_DIR"], "sglang", "utils.py")) as file:
        text = file.read()
    lazy = next(one for one in ast.parse(text).body if getattr(one, "name", "") == "LazyImport")
    names = {"importlib": importlib}
    exec(ast.get_source_segment(text, lazy), names)
    LazyImport = names["LazyImport"]
    known["sglang.utils"] = {"LazyImport": LazyImport}
    stand_ins.install({"sglang"}, os.environ["SPEC_SGLANG_DIR"], real, known)
"""


def test_sglang_replaces_what_it_is_asked_to():
    """SGLang's own registries: hooks that replace, and an algorithm that overlaps."""
    need("torch")
    folder("SPEC_SGLANG_DIR")
    said = python(
        SGLANG
        + """
    import sglang.kernels.ops.moe as moe
    import sglang.srt.layers.sampler as sampler
    gate = sys.modules["sglang.kernels.ops.moe.moe_fused_gate"] = ModuleType("gate")
    moe.moe_fused_gate = gate
    in_torch = "top_k_top_p_min_p_sampling_from_probs_torch"
    for module, names in (
        (moe, ["moe_align_block_size", "topk_softmax"]),
        (sampler, ["top_k_top_p_sampling_from_probs", "min_p_sampling_from_probs", in_torch]),
    ):
        for name in names:
            setattr(module, name, lambda *_, **__: "sglang")
    gate.moe_fused_gate = lambda *_, **__: "sglang"
    from spec_ops import sglang_plugin
    sglang_plugin.register()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    targets = {target: hooks[0][0] for target, hooks in HookRegistry._hooks.items()}
    print(len(targets), [one for one in targets if targets[one] != HookType.REPLACE])
    HookRegistry.apply_hooks()
    scores = torch.eye(3, 8)
    print(moe.topk_softmax(torch.empty(3, 1), torch.empty(3, 1, dtype=torch.int32), scores))
    print(gate.moe_fused_gate(scores, torch.zeros(8), 1)[1].flatten().tolist())
    probs = torch.eye(3)
    print(sampler.top_k_top_p_sampling_from_probs(probs, 2, 0.9, filter_apply_order="joint").tolist())
    print(sampler.min_p_sampling_from_probs(probs, 0.1).tolist())
    given = (probs, torch.full((3,), 2), torch.full((3,), 0.9), torch.zeros(3), False, None, torch.arange(3))
    print(getattr(sampler, in_torch)(*given, max_top_k=2).tolist())
    print(getattr(sampler, in_torch)(*given, return_filtered_probs=True))
    known = SpeculativeAlgorithm.from_string("spec_suffix")
    args = SimpleNamespace(disable_overlap_schedule=False)
    print(known.name, known.supports_overlap, known.is_ngram(), known.has_draft_kv(), known.is_eagle())
    print(known.create_worker(args).__mro__[1].__name__)
    asks = {one for one, what in vars(SpeculativeAlgorithm).items() if one[0] != "_" and callable(what)}
    print(sorted(one for one in asks if not callable(getattr(known, one, None))))
    asks = {one for one in asks if one.startswith(("is_", "supports_", "has_", "carries_", "need_"))}
    print(len(asks) > 15, [one for one in asks if getattr(known, one)() != getattr(SpeculativeAlgorithm.NGRAM, one)()])
    """,
        SPEC_OPS_SGLANG="sampling, gates",
    )
    assert said.split("\n")[:-1] == [
        "6 ['sglang.srt.layers.sampler.top_k_top_p_min_p_sampling_from_probs_torch']",
        "None",
        "[0, 1, 2]",
        "[0, 1, 2]",
        "[0, 1, 2]",
        "[0, 1, 2]",
        "sglang",
        "SPEC_SUFFIX True True False False",
        "NGRAMWorker",
        "[]",
        "True []",
    ]


def test_sglang_without_flashinfer_or_without_a_function():
    """What SGLang imports lazily from a package that is not there is replaced wherever it is held; a
    name that is None on this platform is not, nor is any other None."""
    need("torch")
    folder("SPEC_SGLANG_DIR")
    said = python(
        SGLANG
        + """
    import sglang.kernels.ops.speculative.spec_tree as tree
    import sglang.kernels.ops.speculative.verify_sampling as verify
    import sglang.srt.layers.sampler as sampler
    import sglang.srt.holder as holder
    for name in ("top_k_top_p_sampling_from_probs", "min_p_sampling_from_probs"):
        setattr(sampler, name, LazyImport("flashinfer_that_is_absent.sampling", name))
    holder.held, holder.nothing = sampler.min_p_sampling_from_probs, None
    sampler.top_k_top_p_min_p_sampling_from_probs_torch = lambda *_, **__: "sglang"
    tree.verify_tree_greedy_func = lambda *_, **__: "sglang"
    verify.tree_speculative_sampling_target_only = None
    from spec_ops import sglang_plugin
    sglang_plugin.register()
    from sglang.srt.plugins.hook_registry import HookRegistry
    HookRegistry.apply_hooks()
    print(sampler.top_k_top_p_sampling_from_probs(torch.eye(3), 2, 0.9).tolist())
    print(holder.held(torch.eye(3), 0.1).tolist(), holder.held is sampler.min_p_sampling_from_probs)
    print(holder.nothing, verify.tree_speculative_sampling_target_only)
    print(sorted(one.rpartition(".")[2] for one in HookRegistry._patched))
    """,
        SPEC_OPS_SGLANG="sampling,tree",
    )
    assert said.split("\n")[:-1] == [
        "[0, 1, 2]",
        "[0, 1, 2] True",
        "None None",
        str(
            [
                "min_p_sampling_from_probs",
                "top_k_top_p_min_p_sampling_from_probs_torch",
                "top_k_top_p_sampling_from_probs",
                "verify_tree_greedy_func",
            ]
        ),
    ]


def test_sglang_replaces_nothing_unasked():
    need("torch")
    folder("SPEC_SGLANG_DIR")
    said = python(
        SGLANG
        + """
    from spec_ops import sglang_plugin
    sglang_plugin.register()
    from sglang.srt.plugins.hook_registry import HookRegistry
    print(len(HookRegistry._hooks))
    """,
        SPEC_OPS_SGLANG="",
    )
    assert said == "0\n"


def test_sglang_worker_drafts():
    """SGLang's own worker around the corpus: with overlap, the tokens that the last round accepted
    are not in the requests yet, and are drafted from all the same."""
    need("torch")
    folder("SPEC_SGLANG_DIR")
    said = python(
        SGLANG
        + """
    import array
    from spec_ops import sglang_plugin
    worker = sglang_plugin._worker(None).__new__(sglang_plugin._worker(None))
    worker.enable_overlap, worker.draft_token_num, worker.max_trie_depth = True, 4, 5
    worker.ngram_corpus = sglang_plugin.SuffixCorpus(4)
    request = SimpleNamespace(
        rid="a", origin_input_ids_unpadded=array.array("q", [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        output_ids=array.array("q", [7]),
    )
    batch = SimpleNamespace(
        reqs=[request], grammar_needs_sync=lambda: False,
        spec_info=SimpleNamespace(
            accept_tokens=torch.tensor([1, 2, 0, 0]), accept_lens=torch.tensor([2])
        ),
    )
    nodes, mask = worker._prepare_draft_tokens(batch)
    print(nodes.tolist(), mask.reshape(4, 4).astype(int).tolist())
    # The next round: the two are in the request now, and three more were accepted.
    request.output_ids.extend([1, 2])
    batch.spec_info.accept_tokens = torch.tensor([3, 4, 99, 0])
    batch.spec_info.accept_lens = torch.tensor([3])
    nodes, mask = worker._prepare_draft_tokens(batch)
    print(worker.ngram_corpus.texts["a"])
    print(nodes.tolist(), mask.reshape(4, 4).astype(int).tolist())
    worker.ngram_corpus.erase_match_state(["a"])
    print(worker.ngram_corpus.texts)
    """
    )
    assert said.split("\n")[:-1] == [
        "[2, 3, 4, 5] [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]",
        "[1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 1, 2, 3, 4, 99]",
        "[99, 0, 0, 0] [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1]]",
        "{}",
    ]


def test_sglang_penalties():
    """`BatchedPenalizerOrchestrator`'s own penalizers, token by token, against texts at once."""
    need("torch")
    folder("SPEC_SGLANG_DIR")
    said = python(
        """
    import os
    from types import SimpleNamespace
    import stand_ins, torch
    import spec_ops
    kinds = ("frequency", "presence", "repetition", "min_new_tokens")
    base = "sglang.srt.sampling.penaltylib"
    files = {
        name: f"{base}.{name}" + "_penalty" * (name != "min_new_tokens") for name in kinds
    }
    known = {"sglang.srt.utils.common": {"is_pin_memory_available": lambda _=None: False},
             "sglang.srt.utils": {"is_npu": bool, "is_cuda": bool, "get_compiler_backend": lambda *_: "eager"}}
    real = {*files.values(), f"{base}.orchestrator"}
    stand_ins.install({"sglang"}, os.environ["SPEC_SGLANG_DIR"], real, known)
    import importlib
    torch.manual_seed(1)
    vocab, requests = 16, 6
    draw = lambda low, high: (torch.rand(requests) * (high - low) + low)
    numbers = {"frequency": draw(-1, 2), "presence": draw(-1, 2), "repetition": draw(0.5, 2)}
    least = torch.tensor([0, 2, 5, 0, 9, 4], dtype=torch.int32)
    texts = torch.randint(0, vocab, (requests, 4))
    reqs = [
        SimpleNamespace(
            sampling_params=SimpleNamespace(
                frequency_penalty=float(numbers["frequency"][i]),
                presence_penalty=float(numbers["presence"][i]),
                repetition_penalty=float(numbers["repetition"][i]),
                min_new_tokens=int(least[i]), stop_token_ids={3, 7},
            ),
            origin_input_ids=[], eos_token_ids=None,
            tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=1),
        )
        for i in range(requests)
    ]
    batch = SimpleNamespace(reqs=reqs, device="cpu")
    logits = torch.randn(requests, vocab)
    for name in ("frequency", "presence", "min_new_tokens"):
        module = importlib.import_module(files[name])
        kind = next(v for k, v in vars(module).items() if k.startswith("Batched") and "Penalizer" in k
                    and getattr(v, "__module__", "") == module.__name__)
        class Orchestrator(SimpleNamespace):
            pass  # weak references are made to it
        orchestrator = Orchestrator(reqs=lambda: reqs, device="cpu", vocab_size=vocab)
        penalizer = kind(orchestrator)
        penalizer._prepare()
        penalizer._is_prepared = True
        for step in range(texts.shape[1]):
            penalizer._cumulate_output_tokens(texts[:, step])
        right, ours = logits.clone(), logits.clone()
        penalizer._apply(right)
        lengths = torch.full((requests,), texts.shape[1], dtype=torch.int32)
        if name == "min_new_tokens":
            stops = torch.tensor([[1, 3, 7]] * requests, dtype=torch.int32)
            extra = {"min_tokens": least, "stop_tokens": stops}
        else:
            extra = {name: numbers[name]}
        spec_ops.adjust_logits(ours, texts, lengths * 0, lengths, **extra)
        torch.testing.assert_close(ours, right)
        assert not torch.equal(ours, logits)
        print(name)
    """
    )
    assert said.split() == ["frequency", "presence", "min_new_tokens"]


VLLM = """
    import os
    from types import SimpleNamespace
    import numpy as np
    import stand_ins, torch
    V2 = "vllm.v1.worker.gpu"
    real = {f"{V2}.sample.logits_processor.interface", "vllm.v1.sample.logits_processor.interface"}
    interface = "vllm.v1.sample.logits_processor"
    stand_ins.install({"vllm"}, os.environ["SPEC_VLLM_DIR"], real, {})
    import vllm.v1.sample.logits_processor as package
    from vllm.v1.sample.logits_processor.interface import LogitsProcessor as First
    package.LogitsProcessor = First
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsContext, LogitsProcRequestState, LogitsProcessor as Second,
    )
    from spec_ops.vllm_logits import AdjustLogits
    params = lambda **extra: SimpleNamespace(extra_args=extra or None)
    vocab = 40
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: vocab),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
    )
    banned = lambda logits: [torch.isinf(row).nonzero().flatten().tolist() for row in logits]
"""


def test_vllm_logits_processor_of_the_second_runner():
    """vLLM's own interface: rows that are drafts see the drafts before them."""
    need("torch")
    folder("SPEC_VLLM_DIR")
    said = python(
        VLLM
        + """
    print(issubclass(AdjustLogits, First) and issubclass(AdjustLogits, Second))
    gpu = lambda rows: SimpleNamespace(gpu=torch.tensor(rows, dtype=torch.int32))
    texts = [[0] * 8, [5, 1, 2, 5, 1, 0, 0, 0], [0] * 8, [9, 9, 9, 0, 0, 0, 0, 0]]
    states = LogitsProcRequestState(
        device=torch.device("cpu"), max_num_reqs=4, vocab_size=vocab, all_token_ids=gpu(texts),
        prompt_len=gpu([0, 2, 0, 1]), prefill_len=gpu([0, 2, 0, 1]), total_len=gpu([0, 5, 0, 3]),
    )
    processor = AdjustLogits(config, states)
    print(processor.add_request(1, params(no_repeat_ngram_size=2)), processor.add_request(3, params()))
    processor.apply_staged_writes()
    # Slot 3 has one row; slot 1 one and two drafts, 7 and 5.
    context = LogitsContext(
        expanded_idx_mapping=torch.tensor([3, 1, 1, 1], dtype=torch.int32),
        idx_mapping=torch.tensor([3, 1], dtype=torch.int32), idx_mapping_np=np.array([3, 1]),
        expanded_local_pos=torch.tensor([0, 0, 1, 2], dtype=torch.int32),
        input_ids=torch.tensor([9, 1, 7, 5], dtype=torch.int32), pos=torch.tensor([2, 4, 5, 6]),
        seq_lens_upper_bound_np=np.array([3, 7]),
    )
    print(banned(processor.apply(torch.zeros(4, vocab), context)))
    # The slot is given to a request with a mask, and to one that asks for nothing.
    print(processor.add_request(1, params(allowed_tokens=[0, 33, 39])))
    processor.apply_staged_writes()
    allowed = (~torch.isinf(processor.apply(torch.zeros(4, vocab), context))).nonzero()
    print([allowed[allowed[:, 0] == row, 1].tolist() for row in range(1, 4)], (allowed[:, 0] == 0).sum().item())
    print(processor.add_request(1, params()))
    print(banned(processor.apply(torch.zeros(4, vocab), context)))
    for wrong in ({"no_repeat_ngram_size": -1}, {"allowed_tokens": []}, {"allowed_tokens": ["a"]}):
        try:
            AdjustLogits.validate_params(params(**wrong))
        except ValueError as error:
            print(str(error).split(",")[0])
    AdjustLogits.validate_params(params(no_repeat_ngram_size=3, other=1))
    """
    )
    assert said.split("\n")[:-1] == [
        "True",
        "True False",
        "[[], [2], [], [1]]",
        "True",
        "[[0, 33, 39], [0, 33, 39], [0, 33, 39]] 40",
        "False",
        "[[], [], [], []]",
        "no_repeat_ngram_size is -1",
        "allowed_tokens is []",
        "allowed_tokens is ['a']",
    ]


def test_vllm_logits_processor_of_the_first_runner():
    """Requests that enter, move and leave."""
    need("torch")
    folder("SPEC_VLLM_DIR")
    said = python(
        VLLM
        + """
    processor = AdjustLogits(config, torch.device("cpu"), False)
    output = [5]
    update = lambda added=(), removed=(), moved=(): processor.update_state(
        SimpleNamespace(added=added, removed=removed, moved=moved)
    )
    update([(0, params(), [1], []), (1, params(no_repeat_ngram_size=2), [5, 1, 2], output)])
    print(processor.is_argmax_invariant(), banned(processor.apply(torch.zeros(2, vocab))))
    output.append(1)
    processor.update_state(None)
    print(banned(processor.apply(torch.zeros(2, vocab))))
    update(moved=[(1, 0, SimpleNamespace(name="SWAP"))])
    print(banned(processor.apply(torch.zeros(2, vocab))))
    update([(1, params(allowed_tokens=[7]), [1], [])])
    print([(~torch.isinf(row)).sum().item() for row in processor.apply(torch.zeros(2, vocab))])
    update(removed=[0, 1])
    print(banned(processor.apply(torch.zeros(2, vocab))))
    """
    )
    assert said.split("\n")[:-1] == [
        "False [[], [1]]",
        "[[], [2]]",
        "[[2], []]",
        "[39, 1]",
        "[[], []]",
    ]
