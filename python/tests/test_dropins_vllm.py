"""The functions in vLLM's signatures, against what vLLM says that they do. The engines' own
tests run in `test_engines.py`."""

import numpy as np
import pytest
from conftest import need

import spec_ops

torch = need("torch", whole_file=True)

from plain_engines import device, plain_align, plain_router  # noqa: E402, F401

from spec_ops import fastdeploy, flashinfer, sglang, vllm, vllm_v2  # noqa: E402


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


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_alignment(rows):
    """In vLLM's, SGLang's and FastDeploy's arrays, which have lengths of their own."""
    random = np.random.default_rng(rows)
    ids = torch.tensor(random.integers(-1, 12, (rows, 3)))
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
    numbers = lambda low, high: torch.tensor(random.uniform(low, high, 7), dtype=torch.float32)
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


def test_ngram_kernel_of_vllm(device):
    """`NgramGPUKernel`: the first occurrence; rows that are masked out have no draft."""
    config = type("Config", (), {})()
    config.speculative_config = type(
        "Spec", (), {"prompt_lookup_min": 2, "prompt_lookup_max": 3, "num_speculative_tokens": 3}
    )()
    kernel = vllm.NgramGPUKernel(config, device=device)
    text = torch.tensor([[1, 2, 3, 1, 2, 4, 1, 2], [1, 2, 3, 1, 2, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8]])
    drafts, counts = kernel(
        torch.tensor([8, 5, 8]), text.int(), torch.tensor([True, False, True])
    )
    assert drafts.tolist() == [[3, 1, 2], [-1, -1, -1], [-1, -1, -1]]
    assert counts.tolist() == [3, 0, 0] and drafts.dtype == torch.int32


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
