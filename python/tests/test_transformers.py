"""`spec_ops.transformers`: the texts of transformers' own generate, in fewer runs of the model."""

import ast
from functools import cache
from pathlib import Path

import pytest
from conftest import need

TOKENS = 60


@cache
def model():
    need("torch")
    need("transformers")
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    made = LlamaForCausalLM(config).eval().requires_grad_(False)
    # Logits that differ as those of a trained model do: texts then repeat themselves.
    made.lm_head.weight.mul_(4)
    made.generation_config.pad_token_id = 0
    return made


def decoder(draft="suffix", **options):
    from spec_ops.transformers import Decoder

    made = Decoder(draft, **options)
    # Rows are cheap here, whatever a busy machine says of runs of microseconds.
    made.costs.of = lambda rows: 1 + 0.05 * (rows - 1)
    return made


def generate(prompt=(5, 9, 5, 9, 5), **options):
    import torch

    ids = torch.tensor([prompt])
    return model().generate(ids, max_new_tokens=TOKENS, **options)[0].tolist()


GREEDY = {
    "plain": {},
    "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 4},
    "lengths and words": {
        "min_new_tokens": 30,
        "eos_token_id": [7, 11],
        "bad_words_ids": [[3], [5, 9]],
    },
}


@pytest.mark.parametrize("prompt", [[5, 9, 5, 9, 5], [4], list(range(1, 41)) * 2])
@pytest.mark.parametrize("kind", GREEDY)
@pytest.mark.parametrize("draft", ["none", "lookup", "suffix"])
def test_greedy_texts_are_those_of_generate(draft, kind, prompt):
    model()
    options = GREEDY[kind] | {"do_sample": False}
    want = generate(prompt, **options)
    assert generate(prompt, **options, custom_generate=decoder(draft)) == want


@pytest.mark.parametrize("draft", ["lookup", "suffix"])
def test_drafts_save_runs(draft):
    model()
    made = decoder(draft)
    generate(do_sample=False, custom_generate=made)
    assert made.counted.tokens == TOKENS and made.counted.runs < 0.8 * TOKENS
    assert 0 < made.counted.accepted <= made.counted.drafted
    assert made.counted.accepted + made.counted.runs == TOKENS


def test_sampled_texts_are_the_same_with_drafts():
    """And those of another seed are not."""
    model()
    import torch

    asked = {"do_sample": True, "temperature": 0.3, "top_k": 30, "top_p": 0.9, "min_p": 0.05}

    def text(seed, draft):
        torch.manual_seed(seed)
        return generate(**asked, custom_generate=draft)

    drafts = decoder("suffix")
    for seed in range(3):
        assert text(seed, drafts) == text(seed, decoder("none"))
    assert drafts.counted.accepted > 0
    assert text(1, drafts) != text(2, drafts)


def test_filters_reach_the_operator():
    """The one token that is kept is the likeliest, at any temperature."""
    model()
    for only in ({"top_k": 1}, {"top_p": 1e-6, "top_k": 0}, {"min_p": 1.0, "top_k": 0}):
        text = generate(do_sample=True, temperature=5.0, **only, custom_generate=decoder())
        assert text == generate(do_sample=False)


def test_a_stopping_criterion_ends_the_text():
    model()
    from transformers import StoppingCriteriaList

    def enough(ids, _scores, **_):
        import torch

        return torch.tensor([ids.shape[1] >= 23])

    text = generate(stopping_criteria=StoppingCriteriaList([enough]), custom_generate=decoder())
    assert text == generate()[:23]


class Streamer:
    """What a streamer of transformers is told."""

    def __init__(self):
        self.told, self.ended = [], 0

    def put(self, value):
        self.told += value.reshape(-1).tolist()

    def end(self):
        self.ended += 1


@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_a_streamer_gets_the_text_and_its_end(draft):
    """`generate` gives a callable `custom_generate` no streamer."""
    model()
    streamer, other = Streamer(), Streamer()
    text = generate(streamer=streamer, custom_generate=decoder(draft))
    assert streamer.told == text == generate(streamer=other) and streamer.ended == 1
    assert other.told == text
    # Around the decoder there may be a function.
    streamer, made = Streamer(), decoder(draft)
    generate(streamer=streamer, custom_generate=lambda *args, **kwargs: made(*args, **kwargs))
    assert streamer.told == text and streamer.ended == 1
    # A reader ends with a text that is refused, too.
    streamer = Streamer()
    with pytest.raises(NotImplementedError, match="TypicalLogitsWarper"):
        generate(do_sample=True, typical_p=0.5, streamer=streamer, custom_generate=decoder())
    assert streamer.ended == 1


def test_a_reader_in_another_thread_ends():
    model()
    import threading

    from transformers import TextIteratorStreamer

    class Words:
        def decode(self, tokens, **_):
            return " ".join(map(str, tokens)) + " "

    streamer = TextIteratorStreamer(Words(), skip_prompt=True, timeout=60)
    thread = threading.Thread(
        target=generate, kwargs={"streamer": streamer, "custom_generate": decoder()}
    )
    thread.start()
    read = "".join(streamer)
    thread.join()
    assert [int(word) for word in read.split()] == generate()[5:]


@pytest.mark.parametrize(
    "setting",
    [
        {"penalty_alpha": 0.6, "top_k": 4},
        {"num_beams": 3},
        {"use_mtp": True},
        {"prompt_lookup_num_tokens": 3},
        {"dola_layers": "low"},
        {"force_words_ids": [[5]]},
        {"prefill_chunk_size": 2},
        {"assistant_early_exit": 1},
        {"synced_gpus": True},
    ],
)
def test_settings_without_an_operator_are_refused(setting):
    model()
    name = next(iter(setting))
    with pytest.raises(NotImplementedError, match=name):
        generate(**setting, custom_generate=decoder())
    with pytest.raises(NotImplementedError, match="assistant_model"):
        generate(assistant_model=model(), custom_generate=decoder())


def test_inputs_that_the_model_would_not_get_are_refused():
    model()
    import torch
    from transformers import DynamicCache

    ids = torch.tensor([[5, 9, 5]])
    embedded = model().get_input_embeddings()(ids)
    with pytest.raises(NotImplementedError, match="inputs_embeds"):
        model().generate(inputs_embeds=embedded, max_new_tokens=2, custom_generate=decoder())
    with pytest.raises(NotImplementedError, match="position_ids"):
        places = torch.tensor([[0, 1, 5]])
        model().generate(ids, position_ids=places, max_new_tokens=2, custom_generate=decoder())
    # Without a mask, the mask and the positions that are all there, and an empty cache, it goes.
    want = model().generate(ids, max_new_tokens=4).tolist()
    for given in (
        {"attention_mask": torch.ones_like(ids)},
        {"position_ids": torch.arange(3)[None]},
        {"cache" if takes_cache() else "past_key_values": DynamicCache(config=model().config)},
    ):
        found = model().generate(ids, max_new_tokens=4, **given, custom_generate=decoder())
        assert found.tolist() == want
    used = DynamicCache(config=model().config)
    model()(ids[:, :2], **{"cache" if takes_cache() else "past_key_values": used})
    with pytest.raises(NotImplementedError, match="cache that is in use"):
        name = "cache" if takes_cache() else "past_key_values"
        model().generate(ids, max_new_tokens=2, **{name: used}, custom_generate=decoder())


def takes_cache():
    """Newer versions of transformers have the cache by another name."""
    import inspect

    return "cache" in inspect.signature(type(model()).forward).parameters


def test_what_is_not_known_is_refused():
    model()
    import torch

    two = torch.tensor([[1, 2], [3, 4]])
    with pytest.raises(NotImplementedError, match="one request"):
        model().generate(two, max_new_tokens=2, custom_generate=decoder())
    with pytest.raises(NotImplementedError, match="TypicalLogitsWarper"):
        generate(do_sample=True, typical_p=0.5, custom_generate=decoder())
    with pytest.raises(NotImplementedError, match="dynamic cache"):
        generate(cache_implementation="static", custom_generate=decoder())
    with pytest.raises(ValueError, match="'none', 'lookup' or 'suffix'"):
        decoder("best")


@pytest.mark.parametrize("name", ["transformers", "llama_cpp"])
def test_public_names_are_written_out(name):
    tree = ast.parse((Path(__file__).parents[1] / f"spec_ops/{name}.py").read_text())
    found = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    ]
    defined = {getattr(node, "name", "_") for node in tree.body}
    assert found == [sorted(known for known in defined if not known.startswith("_"))]
