"""The functions in SGLang's signatures, against what SGLang says that they do. The engines' own
tests run in `test_engines.py`."""

import math

import pytest
from conftest import need

torch = need("torch", whole_file=True)

from plain_engines import close_to, device, plain_router  # noqa: E402, F401

from spec_ops import sglang, vllm  # noqa: E402


def test_softcapped_gates():
    logits = torch.randn(6, 32) * 20
    weights, ids = torch.empty(6, 2), torch.empty(6, 2, dtype=torch.int32)
    sglang.topk_softmax(weights, ids, logits, moe_softcapping=30.0)
    right, best = plain_router((logits / 30).tanh() * 30, None, 2, "softmax", renormalize=False)
    assert torch.equal(ids.long(), best)
    torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)


@pytest.mark.parametrize("renormalize", [False, True])
def test_sigmoid_gate_with_a_shared_expert(renormalize):
    """The shared expert's weight is the routed sum over the factor, before all are divided."""
    logits, bias = torch.randn(7, 16), torch.rand(16)
    weights, ids = torch.empty(7, 4), torch.empty(7, 4, dtype=torch.int32)
    sglang.topk_sigmoid(weights, ids, logits, renormalize, bias, 2.5, 1)
    right, best = plain_router(logits, bias, 3, "sigmoid", renormalize=False)
    total = right.sum(1, keepdim=True)
    right = torch.cat([right, total / 2.5], dim=1) * (2.5 / total if renormalize else 1)
    assert torch.equal(ids[:, :3].long(), best) and (ids[:, 3] == 16).all()
    torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)


@pytest.mark.parametrize("on_output", [False, True])
@pytest.mark.parametrize("shared", [0, 1])
def test_fused_gates(on_output, shared):
    """SGLang's gate in both of its signatures, Kimi's, and vLLM's grouped one."""
    torch.manual_seed(2)
    logits, bias = torch.randn(17, 256), torch.rand(256)
    how = {"routed_scaling_factor": 2.5, "apply_routed_scaling_factor_on_output": on_output}
    scale = 2.5 if on_output else 1.0
    right, best = plain_router(logits, bias, 8, "sigmoid", 8, 4, scale=scale)
    older = sglang.moe_fused_gate(logits, bias, 8, 4, 8 + shared, shared, **how)
    named = sglang.moe_fused_gate(
        logits, bias, num_expert_group=8, topk_group=4, topk=8 + shared,
        num_fused_shared_experts=shared, **how,
    )
    packed = torch.empty(17, 8 + shared, dtype=torch.int32)
    newer = sglang.moe_fused_gate(
        logits, bias, 8 + shared, "sigmoid", shared, True, 2.5, on_output, 0.0, 8, 4,
        packed_out=packed,
    )
    for weights, ids in (older, named, newer):
        assert torch.equal(ids[:, :8].long(), best)
        torch.testing.assert_close(weights[:, :8], right, atol=2e-5, rtol=0)
        if shared:
            assert (ids[:, 8] == 256).all()
            torch.testing.assert_close(weights[:, 8], torch.full((17,), scale / 2.5))
    assert torch.equal(packed >> 16, newer[1])
    low = (packed & 0xFFFF).to(torch.int16).view(torch.bfloat16)
    assert torch.equal(low, newer[0].bfloat16())
    right, best = plain_router(logits, bias, 6, "sigmoid", scale=scale)
    weights, ids = sglang.kimi_k2_moe_fused_gate(logits, bias, 6, True, 2.5, on_output)
    assert torch.equal(ids.long(), best)
    torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)
    right, best = plain_router(logits, bias, 8, "sigmoid", 8, 4, scale=2.5)
    for scores, function in ((logits, 1), (logits.sigmoid(), 0)):
        weights, ids = vllm.grouped_topk(scores, 8, 4, 8, True, 2.5, bias, function)
        assert torch.equal(ids.long(), best) and ids.dtype == torch.int32
        torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)
    scores = logits.softmax(-1)
    weights, ids = vllm.grouped_topk(scores, 8, 4, 8, False, 1.0, bias, 0)
    assert torch.equal(weights, scores.gather(1, ids.long()))


def test_sglangs_sampler_in_torch():
    """Top-p is a share of all probability there, whatever top-k leaves."""
    torch.manual_seed(6)
    probs = (torch.randn(1, 20) * 2).softmax(-1).expand(5000, -1).contiguous()
    ones = lambda value, kind=torch.float32: torch.full((5000,), value, dtype=kind)
    tokens = sglang.top_k_top_p_min_p_sampling_from_probs_torch(
        probs, ones(4, torch.int32), ones(0.8), ones(0.05), True, None, ones(3, torch.int64)
    )
    ranked, order = probs[0].sort(descending=True)
    ranked[4:] = 0
    ranked[probs[0].sort(descending=True).values.cumsum(0) - probs[0].sort(descending=True).values > 0.8] = 0
    ranked[ranked < 0.05 * ranked[0]] = 0
    kept = torch.zeros(20).scatter_(0, order, ranked / ranked.sum())
    close_to(tokens.long().bincount(minlength=20), kept, 5000)
    seeds, how = torch.arange(5000), (ones(4, torch.int32), ones(0.8), ones(0.0), False)
    function = sglang.top_k_top_p_min_p_sampling_from_probs_torch
    one, other = (function(probs, *how, seeds, ones(at, torch.int64)) for at in (3, 4))
    assert torch.equal(one, function(probs, *how, seeds, ones(3, torch.int64)))
    assert not torch.equal(one, other)


def tree(batch):
    """A root with two children, and a child of the first: links and places."""
    links = [[1, 3, -1, -1], [-1, 2, -1, -1]]
    child, sibling = (torch.tensor([row] * batch) for row in links)
    index = torch.arange(batch * 4).view(batch, 4)
    return index, child, sibling


@pytest.mark.parametrize("spelling", ["retrieve", "retrive"])
def test_trees_in_both_spellings(spelling):
    index, child, sibling = tree(2)
    drafts = torch.tensor([[0, 5, 6, 7], [0, 5, 6, 7]])
    target = torch.tensor([[5, 7, 1, 9], [6, 7, 8, 9]])
    written = {
        "predicts": torch.full((8,), -1, dtype=torch.int32),
        "accept_index": torch.full((2, 3), -1, dtype=torch.int32),
        "accept_token_num": torch.zeros(2, dtype=torch.int32),
    }
    links = {
        f"{spelling}_index": index,
        f"{spelling}_next_token": child,
        f"{spelling}_next_sibling": sibling,
    }
    sglang.verify_tree_greedy(**written, candidates=drafts, **links, target_predict=target)
    assert written["accept_index"].tolist() == [[0, 1, 3], [4, 6, -1]]
    assert written["accept_token_num"].tolist() == [2, 1]
    assert written["predicts"].tolist() == [5, 7, -1, 9, 6, -1, 8, -1]
    made = sglang.verify_tree_greedy_func(**written, candidates=drafts, **links, target_predict=target, topk=2)
    assert made[0] is written["predicts"]
    coins = {"uniform_samples": torch.rand(2, 4), "uniform_samples_for_final_sampling": torch.rand(2)}
    probs = torch.nn.functional.one_hot(target, 10).float()
    before = {name: one.clone() for name, one in written.items()}
    sglang.tree_speculative_sampling_target_only(
        **written, candidates=drafts, **links, **coins, target_probs=probs, draft_probs=probs * 0
    )
    assert all(torch.equal(before[name], one) for name, one in written.items())
    with pytest.raises(NotImplementedError, match="threshold"):
        sglang.tree_speculative_sampling_target_only(
            **written, candidates=drafts, **links, **coins, target_probs=probs,
            draft_probs=probs, threshold_single=0.5,
        )


def test_sampled_trees_follow_the_target():
    """A child is accepted as often as the target would have chosen its token."""
    torch.manual_seed(7)
    batch = 20_000
    index, child, sibling = tree(batch)
    drafts = torch.tensor([[0, 1, 2, 3]]).expand(batch, -1).contiguous()
    probs = torch.randn(4, 6).softmax(-1)
    accept = torch.full((batch, 3), -1, dtype=torch.int32)
    counts = torch.zeros(batch, dtype=torch.int32)
    predicts = torch.full((batch * 4,), -1, dtype=torch.int32)
    coins, final = torch.rand(batch, 4), torch.rand(batch)
    sglang.tree_speculative_sampling_target_only(
        predicts, accept, counts, drafts, index, child, sibling, coins, final,
        probs.expand(batch, -1, -1).contiguous(), torch.zeros(batch, 4, 6),
    )
    first = predicts.view(batch, 4)[:, 0].long()
    close_to(first.bincount(minlength=6), probs[0], batch)
    assert torch.equal(counts > 0, (first == 1) | (first == 2))
    second = predicts.view(batch, 4)[first == 1, 1].long()
    close_to(second.bincount(minlength=6), probs[1], len(second))


INF, NAN = math.inf, math.nan


def bitmask(allowed, words):
    """A row of words whose bits are these tokens."""
    bits = [sum(1 << token % 32 for token in allowed if token // 32 == word) for word in range(words)]
    return [bits - (bits >> 31 << 32) for bits in bits]


def masked(row, allowed, words):
    """What the function promises: bits decide, allowed values stay, so does what has no bit."""
    return [one if i in allowed or i >= 32 * words else -INF for i, one in enumerate(row)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_bits_decide_and_values_stay(dtype):
    """Whatever the logits are: their size says nothing about which are allowed."""
    vocab, largest = 70, torch.finfo(dtype).max
    rows = [
        ([0.0] * vocab, {71, 95}, 3),  # bits beyond the vocabulary allow nothing in it
        ([INF, 1.0, -2.0] + [3.0] * (vocab - 3), {0, 1, 2, 69}, 3),
        ([0.0, -largest, largest, -0.0] + [NAN] * (vocab - 4), {0, 1, 3, 4, 31, 32}, 3),
        ([-INF] * vocab, {5}, 3),
        ([1.0] * vocab, set(), 3),
        ([2.0] * vocab, set(range(vocab)), 3),
        ([1.0] * vocab, {0, 63, 64}, 2),  # a mask of 64 tokens says nothing about the others
    ]
    for row, allowed, words in rows:
        bits = torch.tensor([bitmask(allowed, words)], dtype=torch.int64).to(torch.int32)
        right = torch.tensor([masked(row, allowed, words)], dtype=dtype)
        logits = torch.tensor([row], dtype=dtype)
        sglang.apply_token_bitmask_inplace_cuda(logits, bits)
        same = (logits == right) | logits.isnan() & right.isnan()
        assert same.all(), (allowed, logits, right)
        assert torch.equal(logits.signbit(), right.signbit())
        # Of several rows those that are named, in the order in which they are.
        three = torch.tensor([row, row, row], dtype=dtype)
        kept = three[1].clone()
        sglang.apply_token_bitmask_inplace_cuda(three, bits.expand(3, -1).contiguous(), [2, 0])
        for at in (0, 2):
            assert ((three[at] == right[0]) | three[at].isnan() & right[0].isnan()).all()
        assert ((three[1] == kept) | kept.isnan()).all()
        # One row without a batch.
        alone = torch.tensor(row, dtype=dtype)
        sglang.apply_token_bitmask_inplace_cuda(alone, bits[0])
        assert ((alone == right[0]) | alone.isnan() & right[0].isnan()).all()
