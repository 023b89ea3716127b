"""The program examples/generate.py: drafts leave the text as it is, and save runs of the model."""

import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from conftest import need, need_cuda

EXAMPLE = Path(__file__).parents[1] / "examples/generate.py"
TOKENS = 60
PROMPTS = [[5, 9, 5, 9, 5], [7] * 17, [3], list(range(40, 70)) * 2]


@cache
def example():
    need("torch")
    need("transformers")
    return runpy.run_path(str(EXAMPLE))


@cache
def models(device="cpu"):
    return [model.to(device) for model in example()["tiny"]()]


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """On a GPU the whole step is a CUDA graph."""
    example()
    if request.param == "cuda":
        import torch

        need_cuda(torch)
    return request.param


#: Random logits are nearly alike, so a low temperature keeps texts that repeat themselves.
SETTINGS = {
    "greedy": {},
    "sampled": {"temperature": 0.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 7},
    "penalties": {
        "temperature": 0.3,
        "repetition_penalty": 1.05,
        "frequency_penalty": 0.02,
        "presence_penalty": 0.02,
        "min_tokens": 20,
        "no_repeat_ngram": 12,
    },
}


def decoder(device, settings, draft, max_draft, batch=len(PROMPTS)):
    model, smaller = models(device)
    settings = example()["Settings"](**settings)
    longest = max(map(len, PROMPTS)) + TOKENS
    made = example()["Decoder"](model, settings, batch, longest, draft, max_draft, smaller)
    made.prepare()
    assert (made.graph is not None) == (device == "cuda")
    return made


@cache
def plain(device, kind):
    return decoder(device, SETTINGS[kind], "none", 0).decode(PROMPTS, TOKENS)


@pytest.mark.parametrize("draft", ["lookup", "suffix", "model"])
@pytest.mark.parametrize("kind", SETTINGS)
def test_drafts_leave_the_text(device, kind, draft):
    texts, runs = plain(device, kind)
    assert runs == [TOKENS] * len(PROMPTS)
    assert [len(text) for text in texts] == [len(prompt) + TOKENS for prompt in PROMPTS]
    drafted, fewer = decoder(device, SETTINGS[kind], draft, 5).decode(PROMPTS, TOKENS)
    assert drafted == texts
    assert sum(fewer) < 0.95 * sum(runs), "drafts are too bad to test anything"


@pytest.mark.parametrize("draft", ["none", "lookup"])
def test_stop_tokens_end_a_request_and_others_go_on(device, draft):
    """A request that has finished takes no part in runs, and its text stays as it is."""
    texts, _ = plain(device, "greedy")
    # The token in the middle of the first answer ends texts.
    stop = texts[0][len(PROMPTS[0]) + TOKENS // 2]
    expected = []
    for text, prompt in zip(texts, PROMPTS):
        answer = text[len(prompt) :]
        expected.append(prompt + answer[: answer.index(stop) + 1] if stop in answer else text)
    made = decoder(device, {"stop_tokens": (stop,)}, draft, 4 if draft == "lookup" else 0)
    stopped, runs = made.decode(PROMPTS, TOKENS, look_every=1000)
    assert stopped == expected
    assert len(set(map(len, stopped))) > 1 and stopped[0] != texts[0]
    if draft == "none":
        assert runs == [len(text) - len(prompt) for text, prompt in zip(stopped, PROMPTS)]
    answers = [text[len(prompt) :] for text, prompt in zip(stopped, PROMPTS)]
    assert made.finished.tolist() == [1 if stop in answer else 2 for answer in answers]


def test_batches_follow_each_other(device):
    """Nothing of an earlier batch is left: neither of its texts nor of its cache."""
    made = decoder(device, SETTINGS["sampled"], "suffix", 4)
    first = made.decode(PROMPTS, TOKENS)
    made.decode([[11] * 50, [12, 13] * 20, [14] * 9, [15]], TOKENS)
    assert made.decode(PROMPTS, TOKENS) == first


def test_a_request_does_not_know_of_others(device):
    """Its text is that of a batch of its own: the same seed, another row."""
    texts, _ = plain(device, "sampled")
    settings = SETTINGS["sampled"]
    for row, prompt in enumerate(PROMPTS):
        own = settings | {"seed": settings["seed"] + row}
        alone = decoder(device, own, "lookup", 4, batch=1)
        assert alone.decode([prompt], TOKENS)[0] == [texts[row]]


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.3, "no_repeat_ngram": 3}])
def test_greedy_texts_are_those_of_generate(device, settings):
    model, _ = models(device)
    asked = example()["Settings"](**settings)
    texts, _ = decoder(device, settings, "lookup", 4).decode(PROMPTS, TOKENS)
    for text, prompt in zip(texts, PROMPTS):
        assert example()["generated"](model, [prompt], TOKENS, asked) == [text]


def test_program(device):
    """What it prints of itself: texts that are alike, and fewer runs."""
    command = [sys.executable, EXAMPLE, "--tiny", "--tokens", "32", "--turns", "1"]
    command += ["--device", device, "--dtype", "float32"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "differs from no drafts at: nowhere" in said and "generate differs at: nowhere" in said
    runs = [int(line[48:55]) for line in said.splitlines() if line.startswith("spec_ops")]
    assert runs[0] == 32 and runs[1] < 32
