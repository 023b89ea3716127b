"""The functions in FlashInfer's signatures, against what FlashInfer says that they do. The engines' own
tests run in `test_engines.py`."""

import math

import pytest
from conftest import need

torch = need("torch", whole_file=True)

from plain_engines import close_to, device, plain_filters  # noqa: E402, F401

from spec_ops import _engines, flashinfer, vllm  # noqa: E402


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


def test_softmax_keeps_what_is_unlikely(device):
    far = torch.tensor([[0.0, -50.0, -60.0], [3.0, 3.0, 1.0]], device=device)
    assert torch.equal(flashinfer.softmax(far), far.softmax(-1))
    temperature = torch.tensor([2.0, 0.5], device=device)
    right = (far / temperature.unsqueeze(1)).softmax(-1)
    assert torch.equal(flashinfer.softmax(far, temperature), right)
    greedy = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], device=device)
    assert torch.equal(flashinfer.softmax(far, 0.0), greedy)
    assert flashinfer.softmax(torch.full((1, 3), float("-inf"), device=device)).isnan().all()


@pytest.mark.parametrize("name", ["sampling", "top_k", "top_p", "min_p"])
def test_samplers_draw_what_is_likely(name, device):
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
    generator = torch.Generator(device).manual_seed(1)
    drawn = getattr(flashinfer, function)(
        probs, *argument, generator=generator, return_valid=True, check_nan=True
    )
    assert drawn[1].all() and kept[0, drawn[0].long()].all()
    with pytest.raises(ValueError, match="NaN"):
        getattr(flashinfer, function)(probs * float("nan"), *argument, check_nan=True)


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


#: Rows in which weights say less than values: of one exponent they differ by less than it shows,
#: or by more than it has.
ROWS = [
    [0.0, -1e32, 1e32, -3e38, 3e38],
    [math.inf, 5.0, -math.inf, 7.0, math.inf],
    [0.0, -0.0, 1e-45, -1e-45, 1e-40],
    [1.0, math.nan, 1.0, 1.0 - 2**-24, 2.0],
    [-math.inf] * 5,
    [-1e32, -2e32, -1e32, -3e32, -4e32],
]


def by_rank(row, k):
    """Which `k` values come first, of equal ones the lower index; NaN counts as -infinity."""
    key = [-math.inf if math.isnan(one) else one for one in row]
    order = sorted(range(len(row)), key=lambda i: (-key[i], i))
    return set(order[:k]) if 0 < k < len(row) else set(order)


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 9])
def test_ranks_decide_and_values_stay(k):
    """`top_k_mask_logits` and `apply_top_k_top_p` keep values by their order alone."""
    logits, every = torch.tensor(ROWS), torch.full((len(ROWS),), k)
    own = logits.clone()
    made = [
        flashinfer.top_k_mask_logits(logits, k),
        flashinfer.top_k_mask_logits(logits, every),
        vllm.apply_top_k_top_p(own, every, None),
        vllm.apply_top_k_top_p(logits.clone(), every, torch.ones(len(ROWS))),
    ]
    for row, *results in zip(ROWS, *made):
        kept = by_rank(row, k)
        right = torch.tensor([one if i in kept else -math.inf for i, one in enumerate(row)])
        for result in results:
            assert ((result == right) | result.isnan() & right.isnan()).all(), (row, result)
            assert torch.equal(result.signbit() | result.isnan(), right.signbit() | right.isnan())


def test_probabilities_keep_their_ratios():
    """What is renormalized is divided by the sum of what is kept, and by nothing else."""
    # Neighbours among numbers of f32.
    close = (torch.tensor(1e-5).view(torch.int32) + torch.arange(8, dtype=torch.int32)).view(torch.float32)
    tiny = torch.tensor([1.0, 2**-41, 2**-60, 2**-100, 0.0, 2**-45, 0.5, 2**-120])
    probs = torch.stack([close, tiny, torch.zeros(8), torch.tensor([1e-42] + [0.0] * 7)])
    for k in (1, 3, 8):
        right = torch.zeros(4, 8, dtype=torch.float64)
        for row in range(4):
            kept = sorted(by_rank(probs[row].tolist(), k))
            right[row, kept] = probs[row, kept].double()
        total = right.sum(1, keepdim=True)
        right = torch.where(total > 0, right / total, 0.0).float()
        assert torch.equal(flashinfer.top_k_renorm_probs(probs, k), right)
        assert torch.equal(flashinfer.top_k_renorm_probs(probs, torch.full((4,), k)), right)
    assert torch.equal(flashinfer.top_k_renorm_probs(probs.half(), 3)[2], torch.zeros(8).half())
    # The largest comes first, though its logarithm is that of others.
    made = flashinfer.top_p_renorm_probs(probs, torch.tensor([0.12, 1.0, 0.5, 0.5]))
    assert made[0].tolist() == [0.0] * 7 + [1.0]
    right = probs[1].double() / probs[1].double().sum()
    assert torch.equal(made[1], right.float())
    assert not made[2].any() and made[3].tolist() == [1.0] + [0.0] * 7


def test_shares_are_counted_exactly():
    """`top_p` keeps while the probability before is below its share of the row; the first always."""
    probs = torch.tensor([[0.25, 0.25, 0.25, 0.25]] * 6)
    shares = torch.tensor([0.25, 0.5, 0.5 + 2**-20, 0.0, math.nan, -1.0])
    made = flashinfer.top_p_renorm_probs(probs, shares)
    assert (made > 0).sum(1).tolist() == [1, 2, 3, 1, 1, 1]
    assert made[1].tolist() == [0.5, 0.5, 0.0, 0.0]
    # A row that does not sum to 1 has a share of its own sum.
    assert torch.equal(flashinfer.top_p_renorm_probs(probs * 2**-30, shares), made)
    assert torch.equal(flashinfer.top_p_renorm_probs(probs, 0.5), made[1].expand(6, -1))


def test_a_mask_and_ranks_together():
    """`top_k` counts the tokens that the mask allows; the bits beyond the vocabulary allow nothing."""
    logits = torch.tensor([[9.0, -3e38, 3e38, math.inf, 1.0]] * 3)
    bits = torch.tensor([[0b10011], [0b11111], [0b1100000]], dtype=torch.int32)
    kept = _engines.kept_tokens(logits, torch.tensor([2, 2, 2]), None, mask=bits)
    assert kept.tolist() == [
        [True, False, False, False, True],
        [False, False, True, True, False],
        [False] * 5,
    ]
    kept = _engines.kept_tokens(logits, None, torch.ones(3), mask=bits)
    assert kept.sum(1).tolist() == [3, 5, 0]
