"""The functions in FastDeploy's signatures, and operators in the place of TensorRT-LLM's, against
what these engines say that theirs do. The engines' own tests run in `test_engines.py`."""

import numpy as np
import pytest
from conftest import need

import spec_ops

torch = need("torch", whole_file=True)

from plain_engines import device, plain_router  # noqa: E402, F401

from spec_ops import fastdeploy  # noqa: E402


def test_scores_of_fastdeploy():
    torch.manual_seed(10)
    logits, bias = torch.randn(20, 256), torch.rand(1, 256)
    scores, weights, ids = fastdeploy.get_moe_scores(logits, 8, 4, 8, 2.5, bias, True)
    right, best = plain_router(logits, bias[0], 8, "sigmoid", 8, 4, scale=2.5)
    assert torch.equal(ids.long(), best)
    torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)
    torch.testing.assert_close(scores, logits.sigmoid())
    same, _, again = fastdeploy.get_moe_scores(logits.cpu().numpy(), 8, 4, 8, 2.5, bias.cpu().numpy(), True)
    assert np.array_equal(again, ids.cpu().numpy()) and np.allclose(same, scores.cpu())
    for norm, one in ((True, bias / 10), (False, None)):
        ids, weights = fastdeploy.moe_topk_select(logits, one, 6, norm, True)
        right, best = plain_router(logits, None if one is None else one[0], 6, "softmax", renormalize=norm)
        assert torch.equal(ids, best)
        torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)


def test_verified_chains_of_fastdeploy():
    """`verify_draft_tokens` with the strategies GREEDY and TARGET_MATCH, by its loop: drafts are
    kept while they are the target's tokens, which then adds one."""
    random = np.random.default_rng(11)
    drafts = random.integers(0, 3, (50, 5))
    target = random.integers(0, 3, (50, 5)).astype(np.int32)
    path = spec_ops.tree_verify(drafts, target, max_depth=4)
    for row in range(50):
        kept = 0
        while kept < 4 and drafts[row, kept + 1] == target[row, kept]:
            kept += 1
        assert path.num_tokens[row] == kept + 1
        assert path.tokens[row, : kept + 1].tolist() == target[row, : kept + 1].tolist()


def ngram(form):
    """FastDeploy's arguments in one of its versions, and what they are to draft."""
    i64 = lambda *numbers: np.array([numbers])
    given = {
        "input_ids": i64(10, 20, 30, 40, 50, 60),
        "input_ids_len": i64(6),
        "token_ids_all": i64(9, 9, 10, 20, 30, 40, 0, 0),
        "prompt_lens": i64(2),
        "pre_ids": i64(10, 20, 30, 40, 0, 0),
        "step_idx": i64(3),
        "draft_token_num": np.array([3], np.int32),
        "draft_tokens": i64(40, 0, 0, 0, 0, 0),
        "draft_tokens_copy": i64(0, 0, 0, 0, 0, 0),
        "seq_lens_this_time": np.array([1], np.int32),
        "seq_lens_this_time_copy": np.array([0], np.int32),
        "seq_lens_encoder": np.array([0], np.int32),
        "seq_lens_decoder": np.array([1], np.int32),
        "max_dec_len": i64(10),
        "max_ngram_size": 3,
        "min_ngram_size": 1,
        "max_draft_tokens": 4,
    }
    return given, [given[name] for name in form]


@pytest.mark.parametrize("function", ["ngram_match", "hybrid_mtp_ngram"])
def test_versions_of_fastdeploy(function):
    """12 to 15 arguments: with texts without their prompts, and with copies that are not used."""
    copies = {"draft_tokens_copy", "seq_lens_this_time_copy"}
    names = fastdeploy._NGRAM if function == "ngram_match" else fastdeploy._HYBRID
    older = ["pre_ids" if name == "token_ids_all" else name for name in names if name != "prompt_lens"]
    forms = [form for full in (names, older) for form in (full, [n for n in full if n not in copies])]
    counts = {len(form) for form in forms}
    assert counts == ({12, 13, 14, 15} if function == "ngram_match" else {12, 14})
    for form in forms:
        given, arguments = ngram(form)
        getattr(fastdeploy, function)(*arguments)
        assert given["draft_tokens"].tolist() == [[40, 50, 60, 0, 0, 0]], form
        assert given["seq_lens_this_time"].tolist() == [3]
        given, _ = ngram(form)
        getattr(fastdeploy, function)(**{name: given[name] for name in form})
        assert given["draft_tokens"].tolist() == [[40, 50, 60, 0, 0, 0]]
    with pytest.raises(spec_ops.SignatureError, match="11 arguments"):
        getattr(fastdeploy, function)(*range(11))


def test_pools_of_tensorrt_llm():
    """`NGramPoolManager` of one request whose pool keeps what followed a pattern first, by its
    rule: the longest pattern that ends the text, and what followed it."""
    random = np.random.default_rng(12)
    for _ in range(200):
        text = random.integers(0, 3, random.integers(2, 20)).tolist()
        longest, drafts = int(random.integers(1, 4)), 3
        right = []
        for size in range(min(longest, len(text) - 1), 0, -1):
            starts = [
                at for at in range(len(text) - size) if text[at : at + size] == text[-size:]
            ]
            if starts:
                right = text[starts[0] + size :][:drafts]
                break
        made = spec_ops.prompt_lookup(
            np.array([text]), np.array([len(text)]),
            min_ngram=1, max_ngram=longest, max_draft=drafts, occurrence="first",
        )
        assert made.drafts[0, : made.counts[0]].tolist() == right
