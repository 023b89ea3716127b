"""The functions in engines' signatures, against what the engines say that they do: plain loops and
torch's own operators. The engines' own tests run in `test_engines.py`."""

import math

import numpy as np
import pytest
from conftest import need

import spec_ops

torch = need("torch", whole_file=True)

from spec_ops import fastdeploy, flashinfer, sglang, vllm, vllm_v2  # noqa: E402


def plain_router(logits, bias, topk, scoring, groups=1, kept=1, renormalize=True, scale=1.0):
    """As the engines' Python references have it."""
    score = {
        "softmax": lambda x: x.softmax(-1),
        "sigmoid": torch.sigmoid,
        "sqrtsoftplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
    }[scoring](logits.float())
    choice = score if bias is None else score + bias.float()
    if groups > 1:
        grouped = choice.view(len(choice), groups, -1)
        of_group = grouped.topk(2, dim=-1).values.sum(-1)
        best = of_group.topk(kept, dim=-1).indices
        mask = torch.zeros_like(of_group).scatter_(1, best, 1).bool()
        choice = grouped.masked_fill(~mask.unsqueeze(-1), float("-inf")).view(len(choice), -1)
    indices = choice.argsort(dim=-1, descending=True, stable=True)[:, :topk]
    weights = score.gather(1, indices)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, indices


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid", "sqrtsoftplus"])
@pytest.mark.parametrize("renormalize", [False, True])
def test_routers(scoring, renormalize):
    """vLLM's and SGLang's, with and without a bias, padding, and places of picks."""
    torch.manual_seed(1)
    logits, bias = torch.randn(9, 40), torch.randn(40)
    weights, ids = torch.empty(9, 4), torch.empty(9, 4, dtype=torch.int64)
    places = torch.empty(9, 4, dtype=torch.int32)
    right, best = plain_router(logits, bias, 4, scoring, renormalize=renormalize)
    padding = torch.arange(9) % 3 == 2
    if scoring == "sqrtsoftplus":
        vllm.topk_hash_softplus_sqrt(
            weights, ids, places, logits, renormalize, 1.0, bias, is_padding=padding
        )
    else:
        function = getattr(vllm, f"topk_{scoring}")
        function(weights, ids, places, logits, renormalize, bias, is_padding=padding)
    assert torch.equal(ids[~padding], best[~padding]) and (ids[padding] == -1).all()
    torch.testing.assert_close(weights[~padding], right[~padding], atol=2e-5, rtol=0)
    assert (weights[padding] == 0).all()
    assert torch.equal(places, torch.arange(4).int() * 9 + torch.arange(9).int().unsqueeze(1))
    if scoring != "sqrtsoftplus":
        getattr(sglang, f"topk_{scoring}")(
            weights, ids, logits, renormalize=renormalize, correction_bias=bias
        )
        assert torch.equal(ids, best)


def test_experts_of_a_table():
    """DeepSeek-V4's first layers: experts by the token's id."""
    logits, table = torch.randn(5, 16), torch.randint(0, 16, (100, 3), dtype=torch.int32)
    tokens = torch.tensor([7, 99, 0, 7, 42])
    weights, ids = torch.empty(5, 3), torch.empty(5, 3, dtype=torch.int32)
    vllm.topk_hash_softplus_sqrt(
        weights, ids, None, logits, True, 2.5, None, tokens, table
    )
    assert torch.equal(ids, table[tokens])
    score = torch.nn.functional.softplus(logits).sqrt().gather(1, ids.long())
    torch.testing.assert_close(weights, 2.5 * score / score.sum(-1, keepdim=True), atol=2e-5, rtol=0)
    with pytest.raises(NotImplementedError):
        vllm.topk_hash_softplus_sqrt(
            weights, ids, None, logits, bias_vl=torch.zeros(16), image_sentinel_lo=5
        )


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


def plain_align(topk_ids, experts, block):
    """Blocks of picks by expert: the picks of each block, and the block's expert."""
    flat, blocks = topk_ids.flatten().tolist(), []
    for expert in range(experts):
        picks = [i for i, one in enumerate(flat) if one == expert]
        for at in range(0, len(picks), block):
            run = picks[at : at + block]
            blocks.append((expert, run + [len(flat)] * (block - len(run))))
    return blocks


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_alignment(rows):
    """In vLLM's, SGLang's and FastDeploy's arrays, which have lengths of their own."""
    random = np.random.default_rng(rows)
    ids = torch.from_numpy(random.integers(-1, 12, (rows, 3)).astype(np.int64))
    blocks = plain_align(ids, 12, 4)
    for engine, length in (("vllm", 3 * rows + 12 * 3), ("sglang", 3 * rows + 60), ("short", 0)):
        length = length or 4 * (3 * rows)
        sorted_ids = torch.full((length,), 77, dtype=torch.int32)
        expert_ids = torch.full((-(-length // 4),), 77, dtype=torch.int32)
        padded = torch.zeros(1, dtype=torch.int32)
        if engine == "sglang":
            sglang.moe_align_block_size(
                ids, 13, 4, sorted_ids, expert_ids, padded, torch.empty(14, dtype=torch.int32), True
            )
            expected = [(-1, run) for _, run in plain_align(ids + 1, 1, 4)] + blocks
        else:
            vllm.moe_align_block_size(ids, 12, 4, sorted_ids, expert_ids, padded)
            expected = blocks
        used = int(padded)
        assert used == 4 * len(expected)
        assert sorted_ids[:used].tolist() == [pick for _, run in expected for pick in run]
        assert expert_ids[: used // 4].tolist() == [expert for expert, _ in expected]
        assert (sorted_ids[used:] == 3 * rows).all() and (expert_ids[used // 4 :] == -1).all()
    scatter = torch.empty(3 * rows, 1, dtype=torch.int32)
    vllm.moe_align_block_size(ids, 12, 4, sorted_ids, expert_ids, padded, None, scatter)
    flat = ids.flatten()
    assert torch.equal(scatter[:, 0], torch.where(flat >= 0, torch.arange(3 * rows), -1).int())
    made = fastdeploy.tritonmoe_preprocess(ids, 12, 4)
    length = 3 * rows * 4 if 3 * rows < 13 else 3 * rows + 13 * 3
    assert [len(one) for one in made] == [length, -(-length // 4), 1]
    assert made[0][: 4 * len(blocks)].tolist() == [pick for _, run in blocks for pick in run]
    assert (made[0][4 * len(blocks) :] == 3 * rows).all()
    assert made[1][: len(blocks)].tolist() == [expert for expert, _ in blocks]


def test_top_k_of_rows():
    """vLLM's decode and prefill, SGLang's three, and FlashInfer's."""
    torch.manual_seed(3)
    logits = torch.randn(6, 50)
    right = lambda row, start, length, k: sorted(
        logits[row, start : start + length].topk(min(k, length)).indices.tolist()
    )
    padded = lambda found, k: found + [-1] * (k - len(found))
    indices = torch.empty(6, 8, dtype=torch.int32)
    lengths = torch.tensor([3, 40, 50], dtype=torch.int32)
    vllm.top_k_per_row_decode(logits, 2, lengths, indices, 6, 50, 1, 8)
    for row in range(6):
        length = int(lengths[row // 2]) - 1 + row % 2
        assert indices[row].tolist() == padded(right(row, 0, length, 8), 8)
    starts = torch.tensor([0, 5, 10, 0, 49, 20], dtype=torch.int32)
    ends = torch.tensor([50, 9, 10, 30, 50, 45], dtype=torch.int32)
    vllm.top_k_per_row_prefill(logits, starts, ends, indices, 6, 50, 1, 8)
    expected = [padded(right(r, int(s), int(e - s), 8), 8) for r, (s, e) in enumerate(zip(starts, ends))]
    assert indices.tolist() == expected
    of_row = ends - starts
    assert sglang.fast_topk_v2(logits, of_row, 8, starts).tolist() == expected
    table = torch.randperm(150, dtype=torch.int32).view(3, 50)
    requests, cu = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 2, 3, 6], dtype=torch.int32)
    place = lambda row, one: -1 if one < 0 else int(table[requests[row], one])
    slots = [[place(r, one) for one in row] for r, row in enumerate(expected)]
    made = sglang.fast_topk_transform_fused(logits, of_row, table, cu, 8, starts)
    assert made.tolist() == slots
    offset = torch.arange(6, dtype=torch.int32) * 100
    made = sglang.fast_topk_transform_ragged_fused(logits, of_row, offset, 8, starts)
    assert made.tolist() == [
        [one if one < 0 else one + 100 * r for one in row] for r, row in enumerate(expected)
    ]
    # Pages of 4: position p lies in page p // 4 of the request.
    pages, rows = table[:, :13].contiguous(), requests.int()
    whole = torch.full((6,), 50, dtype=torch.int32)
    raw = torch.empty(6, 8, dtype=torch.int32)
    made = flashinfer.top_k_page_table_transform(
        logits, pages, whole, 8, rows, page_size=4, out_raw_indices=raw
    )
    assert raw.tolist() == [right(r, 0, 50, 8) for r in range(6)]
    assert made.tolist() == [
        [int(pages[requests[r], one // 4]) * 4 + one % 4 for one in row]
        for r, row in enumerate(raw.tolist())
    ]
    # FlashInfer's rows that start later start later in the table too.
    given = torch.empty(6, 8, dtype=torch.int32)
    made = flashinfer.top_k_page_table_transform(
        logits, table, of_row, 8, rows, row_starts=starts, out=given
    )
    assert made is given and made.tolist() == [
        [-1 if one < 0 else int(table[requests[r], one + starts[r]]) for one in row]
        for r, row in enumerate(expected)
    ]


def plain_filters(logits, k, p):
    """Temperature 1, top-k, then top-p of what is left, by sorting."""
    order = logits.argsort(dim=-1, descending=True, stable=True)
    ranked = logits.gather(1, order)
    ranked = ranked.masked_fill(torch.arange(logits.shape[1]) >= k.unsqueeze(1), float("-inf"))
    probs = ranked.double().softmax(-1)
    ranked = ranked.masked_fill(probs.cumsum(-1) - probs >= p.unsqueeze(1), float("-inf"))
    return torch.empty_like(logits).scatter_(1, order, ranked)


def test_filters():
    """vLLM's in place, FlashInfer's as probabilities, both orders, and TensorRT-LLM's softmax."""
    torch.manual_seed(4)
    logits = torch.randn(8, 300) * 3
    k = torch.tensor([1, 5, 300, 40, 300, 7, 100, 3])
    p = torch.tensor([1.0, 0.5, 0.9, 1.0, 1.0, 0.2, 0.7, 0.99])
    right = plain_filters(logits, k, p)
    own = logits.clone()
    assert vllm.apply_top_k_top_p(own, k, p) is own and torch.equal(own, right)
    only_k = plain_filters(logits, k, torch.ones(8))
    assert torch.equal(vllm.apply_top_k_top_p(logits.clone(), k, None), only_k)
    assert torch.equal(flashinfer.top_k_mask_logits(logits, k), only_k)
    assert vllm.apply_top_k_top_p(logits, None, None) is logits
    probs = logits.softmax(-1)
    torch.testing.assert_close(flashinfer.top_k_renorm_probs(probs, k), only_k.softmax(-1))
    only_p = plain_filters(logits, torch.full((8,), 300), p)
    torch.testing.assert_close(flashinfer.top_p_renorm_probs(probs, p), only_p.softmax(-1))
    torch.testing.assert_close(flashinfer.softmax(logits, 0.5), (logits / 0.5).softmax(-1))
    # What is very unlikely is kept where nothing says otherwise.
    far = torch.tensor([[0.0, -200.0, -100.0]])
    for share in (None, torch.tensor([1.0])):
        assert torch.equal(vllm.apply_top_k_top_p(far.clone(), torch.tensor([3]), share), far)
    both = (only_k > float("-inf")) & (only_p > float("-inf"))
    first = right > float("-inf")
    assert (both != first).any()
    for order, allowed in (("joint", both), ("top_k_first", first)):
        for function, given in (("logits", logits), ("probs", probs)):
            sample = getattr(flashinfer, f"top_k_top_p_sampling_from_{function}")
            for seed in range(50):
                tokens = sample(given, k, p, filter_apply_order=order, seed=seed)
                assert allowed.gather(1, tokens.long().unsqueeze(1)).all()
    with pytest.raises(ValueError, match="filter_apply_order"):
        flashinfer.top_k_top_p_sampling_from_probs(probs, k, p, filter_apply_order="later")


def close_to(counts, probs, count):
    """A chi-squared test at six standard deviations, over what is expected at least 5 times."""
    expected = probs.double() * count
    seen = expected >= 5
    chi = ((counts.double() - expected)[seen] ** 2 / expected[seen]).sum().item()
    free = int(seen.sum()) - 1
    assert chi < free + 6 * math.sqrt(2 * free) + 1, (chi, free)
    assert counts[probs == 0].sum() == 0


@pytest.mark.parametrize("name", ["sampling", "top_k", "top_p", "min_p"])
def test_samplers_draw_what_is_likely(name):
    torch.manual_seed(5)
    probs = (torch.randn(1, 24) * 2).softmax(-1)
    kept = probs.clone()
    argument = {"sampling": (), "top_k": (6,), "top_p": (0.7,), "min_p": (0.1,)}[name]
    if name == "min_p":
        kept[kept < 0.1 * probs.max()] = 0
    elif name != "sampling":
        k = torch.tensor([6 if name == "top_k" else 24])
        kept = plain_filters(probs.log(), k, torch.tensor([0.7 if name == "top_p" else 1.0])).softmax(-1)
    function = "sampling_from_probs" if name == "sampling" else f"{name}_sampling_from_probs"
    rows = torch.zeros(20_000, dtype=torch.int32)
    tokens = getattr(flashinfer, function)(probs, *argument, indices=rows, seed=9)
    close_to(tokens.long().bincount(minlength=24), (kept / kept.sum())[0], len(rows))
    again = getattr(flashinfer, function)(probs, *argument, indices=rows, seed=9)
    other = getattr(flashinfer, function)(probs, *argument, indices=rows, seed=9, offset=4)
    assert torch.equal(tokens, again) and not torch.equal(tokens, other)
    generator = torch.Generator().manual_seed(1)
    drawn = getattr(flashinfer, function)(
        probs, *argument, generator=generator, return_valid=True, check_nan=True
    )
    assert drawn[1].all() and kept[0, drawn[0].long()].all()
    with pytest.raises(ValueError, match="NaN"):
        getattr(flashinfer, function)(probs * float("nan"), *argument, check_nan=True)


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


def test_chains_of_drafts():
    """FlashInfer's: the first token follows the target, whatever the drafter says; counts add up.
    TensorRT-LLM's two functions do the same to one request."""
    torch.manual_seed(8)
    batch, vocab = 20_000, 8
    draft, target = torch.randn(2, vocab).softmax(-1), torch.randn(3, vocab).softmax(-1)
    tokens = torch.stack([row.multinomial(batch, replacement=True) for row in draft], dim=1).int()
    accepted = torch.full((batch,), 10, dtype=torch.int32)
    made, counts, emitted = flashinfer.chain_speculative_sampling(
        draft.expand(batch, -1, -1).contiguous(), tokens,
        target.expand(batch, -1, -1).contiguous(), accepted, seed=3,
    )
    assert counts is accepted and torch.equal(counts - 10, emitted)
    assert torch.equal((made >= 0).sum(1), emitted + 1)
    close_to(made[:, 0].long().bincount(minlength=vocab), target[0], batch)
    second = made[emitted > 0, 1].long()
    close_to(second.bincount(minlength=vocab), target[1], len(second))
    bonus = made[emitted == 2, 2].long()
    close_to(bonus.bincount(minlength=vocab), target[2], len(bonus))
    share = torch.minimum(draft[0], target[0]).sum().item()
    assert abs((emitted > 0).float().mean().item() - share) < 0.02


def penalised(logits, prompts, outputs, presence, frequency, repetition):
    right = logits.clone()
    for row, (prompt, output) in enumerate(zip(prompts, outputs)):
        for token in range(logits.shape[1]):
            value, count = right[row, token], output.count(token)
            if token in prompt or count:
                value = value / repetition[row] if value > 0 else value * repetition[row]
            right[row, token] = value - frequency[row] * count - presence[row] * (count > 0)
    return right


def test_penalties():
    """vLLM's, whose prompts and outputs are apart and padded by the vocabulary's size."""
    random, vocab = np.random.default_rng(9), 30
    text = lambda limit: random.integers(0, vocab, random.integers(0, limit)).tolist()
    prompts, outputs = [text(9) for _ in range(7)], [text(12) for _ in range(7)]
    numbers = lambda low, high: torch.from_numpy(random.uniform(low, high, 7).astype(np.float32))
    presence, frequency, repetition = numbers(-1, 2), numbers(-1, 2), numbers(0.5, 2)
    logits = torch.randn(7, vocab)
    width = max(map(len, prompts)) + 2
    padded = torch.tensor([prompt + [vocab] * (width - len(prompt)) for prompt in prompts])
    right = penalised(logits, prompts, outputs, presence, frequency, repetition)
    own = logits.clone()
    outputs[2] = [-1, *outputs[2], -1]  # places of tokens that are not known yet
    made = vllm.apply_all_penalties(own, padded, presence, frequency, repetition, outputs)
    assert made is own
    torch.testing.assert_close(made, right, atol=1e-5, rtol=1e-5)


def test_bad_words_and_stop_tokens():
    vocab = 12
    past = [[1, 2, 3], [3], [], [5, 6]]
    words = {0: [[2, 3, 4], [9], [3, 3]], 2: [[7], [1, 8]], 3: [[5, 6, 0], [6, 5], [4, 5, 6, 1]]}
    logits = torch.zeros(4, vocab)
    vllm.apply_bad_words(logits, words, past)
    banned = [torch.isinf(row).nonzero().flatten().tolist() for row in logits]
    assert banned == [[3, 4, 9], [], [7], [0, 5]]
    # Two drafts of request 0, none of request 1, one of request 2: a row for each draft.
    logits = torch.zeros(5, vocab)
    vllm.apply_bad_words_with_drafts(
        logits, {0: [[2, 4]], 2: [[2, 7]]}, [[1, 2], [2, 1], [0, 2], [2]], [2, 0, 1]
    )
    banned = [torch.isinf(row).nonzero().flatten().tolist() for row in logits]
    assert banned == [[4], [], [7], [], []]
    logits = torch.zeros(3, vocab)
    vllm.apply_min_tokens(logits, [(3, [1, 2], {4, 5}), None, (2, [1, 2], {6})])
    banned = [torch.isinf(row).nonzero().flatten().tolist() for row in logits]
    assert banned == [[4, 5], [], []]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_transformers_processors(size):
    """Its own classes, over random texts: the values that it computes."""
    processors = need("transformers.generation.logits_process")
    torch.manual_seed(size)
    ids = torch.randint(0, 3, (5, 12))
    logits = torch.randn(5, 20)
    right = processors.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone())
    right = processors.NoRepeatNGramLogitsProcessor(size)(ids, right)
    lengths = torch.full((5,), 12, dtype=torch.int32)
    own = logits.clone()
    spec_ops.adjust_logits(own, ids, lengths * 0 + 4, lengths, repetition=1.3, no_repeat_ngram=size)
    torch.testing.assert_close(own, right)
    assert torch.isinf(own).any()


def test_ngram_kernel_of_vllm():
    """`NgramGPUKernel`: the first occurrence; rows that are masked out have no draft."""
    config = type("Config", (), {})()
    config.speculative_config = type(
        "Spec", (), {"prompt_lookup_min": 2, "prompt_lookup_max": 3, "num_speculative_tokens": 3}
    )()
    kernel = vllm.NgramGPUKernel(config, device="cpu")
    text = torch.tensor([[1, 2, 3, 1, 2, 4, 1, 2], [1, 2, 3, 1, 2, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]])
    drafts, counts = kernel(
        torch.tensor([8, 5, 8]), text.int(), torch.tensor([True, False, True])
    )
    assert drafts.tolist() == [[3, 1, 2], [-1, -1, -1], [-1, -1, -1]]
    assert counts.tolist() == [3, 0, 0] and drafts.dtype == torch.int32


def test_scores_of_fastdeploy():
    torch.manual_seed(10)
    logits, bias = torch.randn(20, 256), torch.rand(1, 256)
    scores, weights, ids = fastdeploy.get_moe_scores(logits, 8, 4, 8, 2.5, bias, True)
    right, best = plain_router(logits, bias[0], 8, "sigmoid", 8, 4, scale=2.5)
    assert torch.equal(ids.long(), best)
    torch.testing.assert_close(weights, right, atol=2e-5, rtol=0)
    torch.testing.assert_close(scores, logits.sigmoid())
    same, _, again = fastdeploy.get_moe_scores(logits.numpy(), 8, 4, 8, 2.5, bias.numpy(), True)
    assert np.array_equal(again, ids.numpy()) and np.allclose(same, scores)
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
    child = np.broadcast_to([1, 2, 3, 4, -1], (50, 5)).copy()
    path = spec_ops.tree_verify(drafts, target, child, np.full((50, 5), -1), max_depth=4)
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


def test_sampler_of_the_second_runner():
    """vLLM's `gumbel_sample` keeps the logits that it is given, by slot and column."""
    torch.manual_seed(13)
    logits, slots = torch.randn(3, 10), torch.tensor([2, 0, 3], dtype=torch.int32)
    temperature, seed = torch.tensor([0.0, 1.0, 0.7, 1.0]), torch.arange(4)
    cache = torch.zeros(4, 2, 12)
    tokens = vllm_v2.gumbel_sample(
        logits, slots, temperature, seed, torch.tensor([5, 6, 7]), True, True,
        cache, torch.tensor(1),
    )
    assert tokens.dtype == torch.int64 and tokens[1] == logits[1].argmax()
    assert torch.equal(cache[slots.long(), 1, :10], logits)
    assert not cache[:, 0].any() and not cache[1].any() and not cache[:, :, 10:].any()


def test_rejection_of_the_second_runner_without_drafts():
    """Requests with and without drafts in one batch, and a batch in which nobody has any."""
    torch.manual_seed(14)
    slots, temperature = torch.tensor([2, 0, 3], dtype=torch.int32), torch.zeros(4)
    for counts in ([1, 1, 1], [1, 3, 2]):
        rows = sum(counts)
        logits = torch.randn(rows, 12)
        best = logits.argmax(1)
        cu = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
        # Each draft is what the target chose on the row before.
        fed = torch.cat([torch.zeros(1, dtype=torch.int64), best[:-1]])
        of_row = slots.repeat_interleave(torch.tensor(counts))
        local = torch.cat([torch.arange(count) for count in counts]).int()
        sampled, number = vllm_v2.rejection_sample(
            logits, None, fed, cu, torch.arange(rows), slots, of_row, local, temperature,
            torch.arange(4), 4,
        )
        assert sampled.shape == (3, 5) and number.tolist() == counts
        for request, (start, end) in enumerate(zip(cu, cu[1:])):
            right = best[start:end].tolist()
            assert sampled[request].tolist() == right + [-1] * (5 - len(right))
