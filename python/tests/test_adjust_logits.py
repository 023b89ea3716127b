"""DRY and thinking budgets on the inputs that engines test their own with: llama.cpp's
`tests/test-sampling.cpp` and vLLM's `tests/v1/worker/test_gpu_thinking_budget.py`; and DRY against
a plain definition, where text-generation-webui and llama.cpp have no input of their own."""

import numpy as np
import pytest

import spec_ops


def dry(tokens, vocab, multiplier, base, allowed, range=0, breakers=()):
    """The penalty of each token of the vocabulary."""
    logits = np.zeros((1, vocab), np.float32)
    text, length = np.array([tokens], np.int32), np.array([len(tokens)], np.int32)
    spec_ops.adjust_logits(
        logits, text, length, length, dry_multiplier=multiplier, dry_base=base,
        dry_allowed_length=allowed, dry_range=range, dry_breakers=np.array(breakers, np.int32),
    )
    return -logits[0]


@pytest.mark.parametrize(
    ("tokens", "vocab", "multiplier", "allowed", "breakers", "penalties"),
    [
        ([0, 1], 4, 1.0, 2, [], {}),
        # The last two tokens were followed by 2, and two tokens are allowed.
        ([0, 1, 2, 0, 1], 4, 1.0, 2, [], {2: 1.0}),
        # They were followed by a breaker.
        ([0, 1, 3, 4, 0, 1], 5, 1.0, 2, [3], {}),
        ([0, 1, 2, 0, 1], 5, 2.0, 2, [], {2: 2.0}),
        # The sequence is shorter than what is allowed.
        ([0, 1, 2, 3, 4, 0, 1], 5, 1.0, 4, [], {}),
    ],
)
def test_dry_as_llama_cpp_tests_it(tokens, vocab, multiplier, allowed, breakers, penalties):
    right = np.zeros(vocab, np.float32)
    for token, penalty in penalties.items():
        right[token] = penalty
    made = dry(tokens, vocab, multiplier, 1.1, allowed, range=len(tokens), breakers=breakers)
    np.testing.assert_array_equal(made, right)


def longest(text, breakers):
    """For each token that is no breaker, how long a sequence it would repeat."""
    found = {}
    for end, token in enumerate(text):
        count = 0
        while count < end and text[end - 1 - count] == text[-1 - count] not in breakers:
            count += 1
        if token not in breakers:
            found[token] = max(found.get(token, 0), count)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_dry_on_random_texts(seed):
    """text-generation-webui's rule, on texts whose sequences have at most 64 tokens."""
    rng = np.random.default_rng(seed)
    vocab = 12
    text = rng.integers(0, [2, 3, vocab][seed % 3], int(rng.integers(1, 60))).tolist()
    breakers = rng.integers(0, vocab, seed % 4).tolist()
    reach, allowed = int(rng.integers(0, 70)), int(rng.integers(0, 5))
    right = np.zeros(vocab, np.float32)
    for token, count in longest(text[-reach:], breakers).items():
        if count >= max(allowed, 1):
            right[token] = 0.5 * 2.0 ** (count - allowed)
    np.testing.assert_array_equal(dry(text, vocab, 0.5, 2.0, allowed, reach, breakers), right)


def test_where_dry_differs():
    """A sequence counts as 64 tokens at most, and a penalty beyond f32 forbids the token."""
    assert dry([5] * 100, 8, 1.0, 1.0625, 60)[5] == np.float32(1.0625) ** 4
    assert dry([5] * 100, 8, 1.0, 1e10, 2)[5] == np.inf


START, END, END_A, END_B = 90, 91, 92, 93
VOCAB = 128


@pytest.mark.parametrize(
    ("text", "drafts", "budget", "end", "forced", "right"),
    [
        ([1, START, 10, 11, 12], [], 3, [END], [END], [END]),
        ([1, START, 10, 11], [], 3, [END], [END], [-1]),
        # Each row of a draft goes on in the list.
        ([1, START, 10, 11, 12], [END_A], 3, [END_A, END_B], [END_A, END_B], [END_A, END_B]),
        ([1, START, 10, 11, 12], [END_A], 3, [END], [END_A, END_B], [END_A, END_B]),
        # The model has ended its thinking.
        ([1, START, 10, END, 20, 21, 22], [], 3, [END], [END_A, END_B], [-1]),
        ([1, START, 10, 11, 12], [], -1, [END], [END], [-1]),
        ([1, START, 10, 11, 12, END, 13], [], 3, [END], [END], [-1]),
        # A second thinking begins.
        ([1, START, 10, 11, 12, END, 13, START, 14, 15, 16], [], 3, [END], [END], [END]),
        ([1, START, *[10] * 16382], [], 32768, [END], [END], [-1]),
    ],
)
def test_thinking_budgets_as_vllm_tests_them(text, drafts, budget, end, forced, right):
    logits = np.random.default_rng(0).normal(size=(len(drafts) + 1, VOCAB)).astype(np.float32)
    logits[:, END] = -np.inf
    before = logits.copy()
    rows = np.arange(len(drafts) + 1, dtype=np.int32)
    made = spec_ops.adjust_logits(
        logits, np.array([text], np.int32), np.array([1], np.int32),
        np.array([len(text)], np.int32), requests=rows * 0, parents=rows - 1,
        draft_tokens=np.array([text[-1], *drafts], np.int32), think_budget=budget,
        think_start=np.array([START], np.int32), think_end=np.array(end, np.int32),
        think_forced=np.array(forced, np.int32), forced=True,
    )
    assert made.tolist() == right
    # vLLM writes 1e9 to the logit, which its log-probabilities then show.
    np.testing.assert_array_equal(logits, before)


def test_a_whole_thinking_with_drafts_gets_the_forced_tokens_once():
    """The text grows by one token at a time, and by drafts that the budget may not pass."""
    forced, end, budget = [7, END, 8], [END], 4
    text = [1, START]
    while len(text) < 14:
        rows = np.arange(3, dtype=np.int32)
        made = spec_ops.adjust_logits(
            np.zeros((3, VOCAB), np.float32), np.array([text], np.int32), np.array([1], np.int32),
            np.array([len(text)], np.int32), requests=rows * 0, parents=rows - 1,
            draft_tokens=np.array([0, 20, 21], np.int32), think_budget=budget,
            think_start=np.array([START], np.int32), think_end=np.array(end, np.int32),
            think_forced=np.array(forced, np.int32), forced=True,
        ).tolist()
        # Drafts are taken as long as no row before them must take another token.
        for due, draft in zip(made, [20, 21, 22]):
            text.append(draft if due == -1 else due)
            if due not in (-1, draft):
                break
    assert text[2:9] == [20, 21, 22, 20, *forced]
    assert not set(text[9:]) & {7, 8, END}
