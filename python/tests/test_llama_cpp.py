"""`spec_ops.llama_cpp` with a small model of random numbers, and with a real one.

`SPEC_LLAMA_MODEL=FILE.gguf` names the real one. llama.cpp rounds runs of several rows otherwise
than those of one, so only without drafts its text must be the same token for token.
"""

import ctypes
import os
import sys
import types
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from conftest import need

import spec_ops

TOKENS = 60
PROMPTS = [[5, 9, 5, 9, 5], [4], list(range(3, 40)) * 2]
VOCAB, WIDTH, LAYERS, HEADS, KV_HEADS = 64, 32, 2, 4, 2


def write(path):
    """A Llama model of random numbers in f32."""
    gguf = need("gguf")
    random = np.random.default_rng(1)
    out = gguf.GGUFWriter(path, "llama")
    out.add_context_length(512)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(2 * WIDTH)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_vocab_size(VOCAB)
    out.add_tokenizer_model("llama")
    out.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(3, VOCAB))])
    out.add_token_scores([0.0] * VOCAB)
    out.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)

    def add(name, *shape, scale=0.3):
        values = random.standard_normal(shape) * scale
        out.add_tensor(f"{name}.weight", values.astype(np.float32))

    def ones(name):
        out.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    add("token_embd", VOCAB, WIDTH, scale=1)
    add("output", VOCAB, WIDTH, scale=1)
    ones("output_norm")
    small = WIDTH // HEADS * KV_HEADS
    for block in (f"blk.{layer}." for layer in range(LAYERS)):
        ones(block + "attn_norm")
        ones(block + "ffn_norm")
        add(block + "attn_q", WIDTH, WIDTH)
        add(block + "attn_k", small, WIDTH)
        add(block + "attn_v", small, WIDTH)
        add(block + "attn_output", WIDTH, WIDTH)
        add(block + "ffn_gate", 2 * WIDTH, WIDTH)
        add(block + "ffn_up", 2 * WIDTH, WIDTH)
        add(block + "ffn_down", WIDTH, 2 * WIDTH)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    need("llama_cpp")
    path = tmp_path_factory.mktemp("model") / "random.gguf"
    write(path)
    return str(path)


def opened(file, **options):
    from llama_cpp import Llama

    return Llama(file, n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, **options)


@pytest.fixture(scope="module")
def llama(file):
    return opened(file)


def greedy(llama, prompt, tokens=TOKENS):
    """What llama.cpp's own sampler makes of llama-cpp-python's own loop."""
    llama.reset()
    found = []
    for token in llama.generate(prompt, temp=0.0, repeat_penalty=1.0):
        found.append(token)
        if len(found) == tokens:
            return found


def decoder(llama, draft):
    from spec_ops.llama_cpp import Decoder

    made = Decoder(llama, draft)
    # Rows are cheap here, whatever a busy machine says of runs of microseconds.
    made._costs.of = lambda rows: 1 + 0.05 * (rows - 1)
    return made


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("draft", ["none", "lookup", "suffix"])
def test_greedy_texts_are_those_of_llama_cpp(llama, draft, prompt):
    made = decoder(llama, draft)
    want = greedy(llama, prompt)
    assert list(made.generate(prompt, TOKENS, stop_tokens=())) == want
    assert made.counted.tokens == TOKENS == made.counted.runs + made.counted.accepted
    assert draft == "none" or made.counted.accepted > 0
    # From the cache of the same prompt, and after another text.
    assert list(made.generate(prompt, TOKENS, stop_tokens=())) == want
    list(made.generate([7, 8, 9], 9))
    assert list(made.generate(prompt, TOKENS, stop_tokens=())) == want


def test_stop_tokens_and_the_context_end_a_text(llama):
    made = decoder(llama, "lookup")
    want = greedy(llama, PROMPTS[0])
    stop = want[20]
    found = list(made.generate(PROMPTS[0], TOKENS, stop_tokens=(stop,)))
    assert found == want[: want.index(stop) + 1]
    prompt = PROMPTS[2] * 6
    assert len(list(made.generate(prompt, 1000, stop_tokens=()))) == 512 - len(prompt)
    with pytest.raises(TypeError, match="unknown: heat"):
        made.generate(prompt, 9, heat=1.0)


def test_sampled_texts_are_the_same_with_drafts(llama):
    asked = {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition": 1.02,
        "frequency": 0.02,
        "presence": 0.02,
        "min_tokens": 30,
        "no_repeat_ngram": 9,
        "bad_words": ((5,), (9, 7)),
        "stop_tokens": (2, 11),
    }
    plain, drafts, accepted = decoder(llama, "none"), decoder(llama, "suffix"), 0
    texts = set()
    for seed in range(5):
        want = list(plain.generate(PROMPTS[0], TOKENS, seed=seed, **asked))
        assert list(drafts.generate(PROMPTS[0], TOKENS, seed=seed, **asked)) == want
        assert 5 not in want and len(want) > 30
        accepted += drafts.counted.accepted
        texts.add(tuple(want))
    assert accepted > 0 and len(texts) == 5


@pytest.mark.parametrize("draft", ["lookup", "suffix"])
def test_a_draft_model_leaves_the_text(file, llama, draft):
    from spec_ops.llama_cpp import DraftModel

    runs = []

    class Counted(DraftModel):
        def __call__(self, ids, **more):
            runs.append(len(ids))
            return super().__call__(ids, **more)

    drafted = opened(file, draft_model=Counted(draft, max_draft=4))
    assert greedy(drafted, PROMPTS[0]) == greedy(llama, PROMPTS[0])
    assert len(runs) < TOKENS - 5


def test_a_sampler_stands_in_a_chain(llama):
    """It draws what `sample_logits` draws from the same logits, also behind another sampler."""
    import llama_cpp
    from spec_ops.llama_cpp import Sampler

    prompt = PROMPTS[0]
    llama.reset()
    llama.eval(prompt)
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (VOCAB,)).copy()
    asked = {"temperature": 1.5, "min_p": 0.001}
    drawn = set()
    for seed in range(20):
        for kept in (VOCAB, 3):
            sampler = Sampler(seed=seed, position=len(prompt), **asked)
            chain = llama_cpp.llama_sampler_chain_init(
                llama_cpp.llama_sampler_chain_default_params()
            )
            if kept < VOCAB:
                top_k = llama_cpp.llama_sampler_init_top_k(kept)
                llama_cpp.llama_sampler_chain_add(chain, top_k)
            llama_cpp.llama_sampler_chain_add(chain, sampler.pointer)
            # Two in a row, since `llama_sampler_sample` has the token accepted too.
            found = [llama_cpp.llama_sampler_sample(chain, llama.ctx, -1) for _ in range(2)]
            llama_cpp.llama_sampler_free(chain)
            want = [
                spec_ops.sample_logits(
                    logits[None], np.array([place]), seeds=seed, top_k=kept, **asked
                ).tokens.item()
                for place in (len(prompt), len(prompt) + 1)
            ]
            assert found == want and sampler.position == len(prompt) + 2
            drawn.add((kept, found[0]))
    assert len({token for kept, token in drawn if kept == VOCAB}) >= 4
    assert 2 <= len({token for kept, token in drawn if kept == 3}) <= 3


class Candidates(ctypes.Structure):
    """llama.cpp's `llama_token_data_array`."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


def stand_in():
    """The part of llama_cpp that a `Sampler` uses."""
    made = types.ModuleType("llama_cpp")
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    fields = [(name, function) for name in ("accept", "apply", "reset")]
    fields.append(("name", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)))
    made.llama_sampler_i = type("llama_sampler_i", (ctypes.Structure,), {"_fields_": fields})
    made.llama_sampler_init = lambda interface, context: interface
    return made


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logit", [-np.inf, np.nan, -1e32, 0.0, np.inf])
def test_a_sampler_selects_a_candidate(monkeypatch, temperature, logit):
    """Whatever the candidates weigh: the token that it chooses is one of them."""
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in())
    from spec_ops.llama_cpp import Sampler

    sampler = Sampler(temperature=temperature)
    data = np.zeros((3, 3), np.int32)
    data[:, 0], data[:, 1:] = [9, 5, 7], np.full((3, 2), logit, np.float32).view(np.int32)
    candidates = Candidates(data.ctypes.data, 3, -1, False)
    sampler._apply(None, ctypes.pointer(candidates))
    assert candidates.selected in (0, 1, 2)
    if temperature == 0 or logit in (-np.inf, np.nan):
        assert data[candidates.selected, 0] == 5


@cache
def prompts():
    folder = Path(__file__).parents[2] / "examples/llm/prompts"
    return [(folder / f"{name}.txt").read_text() for name in ("rename", "story")]


def test_a_real_model():
    need("llama_cpp")
    if "SPEC_LLAMA_MODEL" not in os.environ:
        pytest.skip("SPEC_LLAMA_MODEL names no file")
    llama, accepted = opened(os.environ["SPEC_LLAMA_MODEL"]), []
    for text in prompts():
        said = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        prompt = llama.tokenize(said.encode(), add_bos=False, special=True)
        want = greedy(llama, prompt, 48)
        assert list(decoder(llama, "none").generate(prompt, 48, stop_tokens=())) == want
        made = decoder(llama, "suffix")
        assert len(list(made.generate(prompt, 48, stop_tokens=()))) == 48
        accepted.append(made.counted.accepted)
    # The first prompt is copied, the second is not.
    assert accepted[0] > 16 and accepted[0] > accepted[1]
