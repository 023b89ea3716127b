"""Inputs as `spec bench` makes them: same shapes, ranges and answers, other random
numbers; the sets of `unique` are the same keys."""

from common import Skip, number

try:
    import numpy as np
except ImportError:
    np = None  # which the scripts ask for, and say

PATTERN = (200_001, 200_002, 200_003)
STEPS, DRAFTS, EARLY, LATE = 64, 5, 10, 30
FACTOR = 0x9E3779B97F4A7C15
MASK64 = (1 << 64) - 1


def random(row):
    return np.random.default_rng(sum(row.numbers))


def needs_text(row):
    if row.kind.startswith("text"):
        raise Skip("the tokens of that text are the library's to make")


def router(row):
    """Logits and bias, f32; rows of bf16 round the logits themselves."""
    rng = random(row)
    tokens = row.numbers[0]
    x = (rng.random((tokens, 256), dtype=np.float32) * 8 - 4).astype(np.float32)
    bias = (rng.random(256, dtype=np.float32) * 0.2 - 0.1).astype(np.float32)
    return x, bias


def router_answer(x, bias):
    """Experts and weights of DeepSeek-V3's routing, in f64."""
    scores = 1 / (1 + np.exp(-x.astype(np.float64)))
    choice = scores + bias.astype(np.float64)
    groups = choice.reshape(len(x), 8, 32)
    best = np.sort(np.partition(groups, 30, axis=2)[:, :, 30:].sum(axis=2), axis=1)
    group_scores = np.partition(groups, 30, axis=2)[:, :, 30:].sum(axis=2)
    kept = group_scores >= best[:, 4:5]
    choice = np.where(np.repeat(kept, 32, axis=1), choice, 0.0)
    experts = np.argsort(-choice, axis=1, kind="stable")[:, :8]
    chosen = np.take_along_axis(scores, experts, axis=1)
    return experts, 2.5 * chosen / (chosen.sum(axis=1, keepdims=True) + 1e-20)


def check_router(x, bias, weights, experts):
    """Every expert and weight; where two experts are equal but for f32's
    rounding, either may come first."""
    want_experts, want_weights = router_answer(x, bias)
    same = (np.asarray(experts) == want_experts).all(axis=1)
    assert same.mean() > 0.9995, f"{(~same).sum()} of {len(x)} tokens have other experts"
    close = np.isclose(np.asarray(weights)[same], want_weights[same], rtol=1e-4, atol=1e-6)
    assert close.all(), "weights differ"
    return "numpy in f64, every element"


def deduplicate(row):
    """Candidates `[batch, steps * k]`, i32."""
    needs_text(row)
    rng = random(row)
    batch, steps, k = row.numbers
    if row.kind.startswith("below "):
        return rng.integers(0, number(row.kind[6:]), (batch, steps * k), dtype=np.int32)
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    return rng.integers(low, high, (batch, steps * k), dtype=np.int32, endpoint=True)


def check_deduplicate(values, unique):
    for got, given in zip(np.asarray(unique), values):
        want = np.unique(given[given >= 0])
        assert (got[: len(want)] == want).all() and (got[len(want) :] == -1).all()
    return "numpy.unique of each request, every element"


class Rejection:
    """Distributions of which every request rejects one draft."""

    def __init__(self, row):
        self.batch, self.drafts = row.numbers
        vocab, self.recovery = row.kind.split(", ")[:2]
        self.vocab = int(vocab)
        rng = random(row)
        tokens = self.batch * self.drafts
        scale = np.float32(2 / self.vocab)
        self.target, self.draft = (
            rng.random((tokens, self.vocab), dtype=np.float32) * scale for _ in range(2)
        )
        rejected = rng.integers(0, self.drafts, self.batch)
        self.ids = np.empty(tokens, np.int32)
        for token in range(tokens):
            position, turn = token % self.drafts, rejected[token // self.drafts]
            while True:
                v = rng.integers(0, self.vocab)
                p, q = self.target[token, v], self.draft[token, v]
                if position > turn or (position < turn and p > q) or (position == turn and p < 0.8 * q):
                    break
            self.ids[token] = v
        self.bonus = rng.integers(0, self.vocab, self.batch, dtype=np.int32)
        self.uniform = (0.9 + 0.1 * rng.random(tokens)).astype(np.float32)
        self.rejected = rejected
        # Both distributions of the rejected token.
        self.bytes = 2 * self.batch * self.vocab * 4

    def check(self, output):
        output = np.asarray(output)
        for request in range(self.batch):
            turn, row = self.rejected[request], output[request]
            token = request * self.drafts + turn
            residual = self.target[token] - self.draft[token]
            assert (row[:turn] == self.ids[token - turn : token]).all()
            assert (row[turn + 1 :] == -1).all()
            if self.recovery == "argmax":
                assert row[turn] == residual.argmax(), (row[turn], residual.argmax())
            else:
                assert residual[row[turn]] > 0
        if self.recovery == "argmax":
            return "numpy, every element"
        return "numpy, every element; of recovered tokens, that they can be drawn"


class Ngram:
    """Requests that have generated tokens, and where their last three occurred."""

    def __init__(self, row):
        needs_text(row)
        self.batch, length = row.numbers
        self.cold = row.kind.endswith(", cold")
        found = row.kind.removesuffix(", cold")
        half = found == "high generated"
        self.prompt, self.steps = (length // 2, length // 2) if half else (length, STEPS)
        cols = self.prompt + self.steps + DRAFTS + 2
        rng = random(row)
        tokens = rng.integers(0, 100_000, (self.batch, self.prompt + self.steps + 1))
        generated = tokens[:, self.prompt :]
        generated[:, self.steps - 2 :] = PATTERN
        at = None
        if found == "low":
            tokens[:, EARLY : EARLY + 3], at = PATTERN, EARLY
        elif found == "high prompt":
            at = self.prompt - LATE
            tokens[:, at : at + 3] = PATTERN
        elif half:
            at = self.prompt + self.steps - LATE
            tokens[:, at : at + 3] = PATTERN
        self.all = np.zeros((self.batch, cols), np.int64)
        self.all[:, : tokens.shape[1]] = tokens
        self.input_ids = np.ascontiguousarray(tokens[:, : self.prompt])
        self.step = np.full(self.batch, self.steps, np.int64)
        self.expected = np.full((self.batch, DRAFTS), -1, np.int64)
        if at is not None:
            self.expected = tokens[:, at + 3 : at + 3 + DRAFTS]
        read = self.prompt + self.steps if at is None else at + 3
        self.bytes = self.batch * read * 8

    def check(self, drafts, counts):
        assert (np.asarray(drafts) == self.expected).all(), "other drafts"
        wanted = DRAFTS if self.expected[0, 0] >= 0 else 0
        assert (np.asarray(counts) == wanted).all(), "other counts"
        return "the pattern that was put there, every draft"


class Keys:
    """The sets of `unique`: ranks, scrambled. `xp` is numpy, or computes as it
    does (cupy)."""

    def __init__(self, row, xp=None):
        self.n = row.numbers[0]
        self.set = row.kind.split(",")[0]
        self.bits = int(self.set.split()[0]) if self.set.endswith("bits") else 64
        self.xp = xp or np
        self.mask = MASK64 >> (64 - self.bits)
        ranks = self.n if self.set == "zipf" else self.n - self.n // 8
        ranks = 1 if self.set == "constant" else ranks
        self.ranks = min(ranks, 1 << self.bits if self.bits < 64 else MASK64)

    def drawn(self):
        """The rank of each key, as u64."""
        xp = self.xp
        i = xp.arange(self.n, dtype=xp.uint64)
        if self.set == "zipf":
            uniform = xp.asarray(np.random.default_rng(self.n).random(self.n))
            ranks = xp.exp(uniform * np.log(self.ranks + 1.0))
            return ranks.astype(xp.uint64).clip(1, self.ranks) - xp.uint64(1)
        if self.set == "sorted":
            # i * ranks fits 64 bits for the rows that there are.
            return i * xp.uint64(self.ranks) // xp.uint64(self.n)
        return i % xp.uint64(self.ranks)

    def keys_of(self, ranks):
        xp = self.xp
        if self.set == "sorted":
            return ranks * xp.uint64(max(self.mask // self.ranks, 1))
        mask, shift = xp.uint64(self.mask), xp.uint64((self.bits + 1) // 2)
        x = (ranks + xp.uint64(1)) * xp.uint64(FACTOR) & mask
        x = (x ^ (x >> shift)) * xp.uint64(FACTOR) & mask
        return x ^ (x >> shift)

    def keys(self):
        return self.keys_of(self.drawn())

    def distinct(self):
        """The distinct keys, ascending."""
        xp = self.xp
        if self.set == "zipf":
            there = xp.zeros(self.ranks, bool)
            there[self.drawn().astype(xp.int64)] = True
            ranks = xp.nonzero(there)[0].astype(xp.uint64)
        else:
            ranks = xp.arange(self.ranks, dtype=xp.uint64)
        return xp.sort(self.keys_of(ranks))

    def check(self, unique):
        want = self.distinct()
        assert len(unique) == len(want), f"{len(unique)} keys, expected {len(want)}"
        assert bool((unique == want).all()), "other keys"
        return "the keys that were made, every element"
