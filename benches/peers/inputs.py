"""Inputs as `spec-bench` makes them: same shapes, ranges and answers, other random
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


class Router:
    """A row of `topk_router`: DeepSeek-V3's routing but for what its name says. Logits and
    bias are f32; rows of bf16 round the logits themselves."""

    MAX = 3

    def __init__(self, row):
        rng = random(row)
        words = row.kind.split(", ")
        self.usual = len(words) == 1
        self.tokens, self.experts, self.groups, self.kept, self.topk = row.numbers[0], 256, 8, 4, 8
        for word in words:
            if word.endswith(" experts"):
                self.experts = int(word.split()[0])
            elif word.endswith(" groups"):
                self.kept, _, self.groups, _ = (int(w) if w.isdigit() else w for w in word.split())
            elif word.startswith("top "):
                self.topk = int(word.split()[1])
        self.root = "sqrt_softplus" in words
        shape = (self.tokens, self.experts)
        self.x = (rng.random(shape, dtype=np.float32) * 8 - 4).astype(np.float32)
        self.bias = (rng.random(self.experts, dtype=np.float32) * 0.2 - 0.1).astype(np.float32)
        self.replicas = None
        if "replicas" in words:
            self.places = self.experts + -(-self.experts // 8)
            self.replicas = rng.integers(0, self.places, (self.experts, self.MAX), dtype=np.int32)
            self.counts = rng.integers(1, self.MAX, self.experts, dtype=np.int32, endpoint=True)

    def scores(self, x):
        """In f64: scores, those that are chosen by, and those of groups."""
        x = x.astype(np.float64)
        scores = np.sqrt(np.log1p(np.exp(x))) if self.root else 1 / (1 + np.exp(-x))
        choice = scores + self.bias.astype(np.float64)
        size = self.experts // self.groups
        groups = choice.reshape(len(x), self.groups, size)
        return scores, choice, np.partition(groups, size - 2, axis=2)[:, :, size - 2 :].sum(axis=2)

    def answer(self, x):
        """Experts, or their places, and weights, in f64."""
        scores, choice, group_scores = self.scores(x)
        if self.groups > 1:
            size = self.experts // self.groups
            least = np.sort(group_scores, axis=1)[:, self.groups - self.kept, None]
            choice = np.where(np.repeat(group_scores >= least, size, axis=1), choice, 0.0)
        experts = np.argsort(-choice, axis=1, kind="stable")[:, : self.topk]
        chosen = np.take_along_axis(scores, experts, axis=1)
        if self.replicas is not None:
            turns = np.arange(len(x), dtype=np.int64)[:, None] * 2654435769 % 2**32
            experts = self.replicas[experts, turns % self.counts[experts]]
        return experts, 2.5 * chosen / (chosen.sum(axis=1, keepdims=True) + 1e-20)

    def check(self, x, weights, experts):
        """Every expert and weight; where two experts are equal but for f32's
        rounding, either may come first."""
        want_experts, want_weights = self.answer(x)
        same = (np.asarray(experts) == want_experts).all(axis=1)
        assert same.mean() > 0.999, f"{(~same).sum()} of {len(x)} tokens have other experts"
        close = np.isclose(np.asarray(weights)[same], want_weights[same], rtol=1e-4, atol=1e-6)
        assert close.all(), "weights differ"
        return "numpy in f64, every element"

    def check_near(self, x, weights, experts, error, rounding):
        """Every expert and weight of who computes scores to within `error`, and rounds
        weights by a share of `rounding` of them."""
        scores, choice, group_scores = self.scores(x)
        size, rows = self.experts // self.groups, np.arange(len(x))
        ranked = -np.sort(-group_scores, axis=1)
        groups = np.sort(experts // size, axis=1)
        assert ((np.diff(groups, axis=1) > 0).sum(axis=1) < self.kept).all(), "too many groups"
        assert (np.diff(np.sort(experts, axis=1), axis=1) > 0).all(), "an expert twice"
        # The score of a group is that of two experts, and two of either are compared.
        taken = np.take_along_axis(group_scores, groups, axis=1)
        assert (taken >= ranked[:, self.kept - 1, None] - 4 * error).all(), "other groups"
        sure = group_scores > ranked[:, self.kept, None] + 4 * error
        left = np.where(np.repeat(sure, size, axis=1), choice, -np.inf)
        for expert in experts.T:
            assert (choice[rows, expert] >= left.max(axis=1) - 2 * error).all(), "other experts"
            left[rows, expert] = -np.inf
        chosen = np.take_along_axis(scores, experts, axis=1)
        total = chosen.sum(axis=1, keepdims=True)
        share = error / chosen + error * self.topk / total + rounding
        wanted = 2.5 * chosen / total
        assert (np.abs(weights - wanted) <= wanted * share).all(), "weights differ"
        return f"numpy in f64, every element, where scores are off by {error:.2g} at most"


def deduplicate(row):
    """Candidates `[batch, steps * k]`, i32."""
    needs_text(row)
    if row.kind.endswith("inverse"):
        raise Skip("no other library has places of indices")
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


def experts(row):
    """A router's picks `[tokens, k]`, i32, of experts that are all alike or of which
    each next is half as popular; and how many there are."""
    rng = random(row)
    words = row.kind.split(" ")
    count, k = int(words[0]), int(words[3].rstrip(","))
    shape = (row.numbers[0], k)
    if row.kind.endswith("skewed"):
        # No token twice to one expert: k in a row from a popular one on.
        first = np.minimum(rng.geometric(0.5, shape[0]) - 1, count - 1)
        picks = (first[:, None] + np.arange(k)) % count
    else:
        picks = rng.random((shape[0], count)).argpartition(k, axis=1)[:, :k]
    return picks.astype(np.int32), count


def check_experts(picks, count, block, order, padded):
    flat = picks.reshape(-1)
    runs = -(-np.bincount(flat, minlength=count) // block) * block
    assert (np.asarray(order) == flat.argsort(kind="stable")).all(), "another order"
    assert int(padded) == runs.sum(), "another length"
    return "numpy's stable sort, every element"


def check_runs(picks, count, block, sorted_ids, padded):
    """A run per expert, in which picks may stand in any order."""
    flat = picks.reshape(-1)
    runs = -(-np.bincount(flat, minlength=count) // block) * block
    assert int(padded) == runs.sum(), "another length"
    there = np.asarray(sorted_ids)[: runs.sum()]
    places = np.repeat(np.arange(count), runs)
    kept = there < len(flat)
    assert (np.sort(there[kept]) == np.arange(len(flat))).all(), "other picks"
    assert (flat[there[kept]] == places[kept]).all(), "another run"
    return "numpy, every pick in its run"


class Trees:
    """Trees of drafts, and what the target chose at each node."""

    VOCAB = 128_256

    def __init__(self, row):
        rng = random(row)
        self.batch = row.numbers[0]
        words = row.kind.split(" ")
        self.nodes, chain = int(words[-1]), words[0] == "chains"
        node = np.arange(self.nodes)
        self.parents = node - 1 if chain else np.where(node > 0, (node - 1) // 2, -1)
        self.steps = self.nodes - 1 if chain else self.nodes.bit_length() - 1
        shape = (self.batch, self.nodes)
        self.draft = rng.integers(0, self.VOCAB, shape)
        # The last child of each node, which the target follows but for one in eight.
        self.children = np.full((self.nodes, 2), -1)
        for child in node[1:]:
            parent = self.parents[child]
            self.children[parent, 1 if self.children[parent, 0] >= 0 else 0] = child
        last = self.children.max(1)
        followed = (last >= 0) & (rng.random(shape) >= 0.125)
        other = rng.integers(0, self.VOCAB, shape)
        self.target = np.where(followed, self.draft[:, last], other)
        self.bytes = row.memory

    def answer(self):
        """Tokens of each request, -1 after the last."""
        tokens = np.full((self.batch, self.steps + 1), -1)
        for request in range(self.batch):
            node = 0
            for step in range(self.steps + 1):
                tokens[request, step] = wanted = self.target[request, node]
                found = [c for c in self.children[node] if c >= 0 and self.draft[request, c] == wanted]
                if not found:
                    break
                node = found[0]
        return tokens

    def check(self, tokens):
        assert (np.asarray(tokens) == self.answer()).all(), "other tokens"
        return "a walk in numpy, every token"


def scores(row):
    """Scores `[rows, columns]`, f32."""
    if any(word in row.kind for word in ("top ", "blocks", "forced", "candidates")):
        raise Skip("the calls of other libraries choose 2048 single scores")
    columns = number(row.kind.split(" ")[0])
    shape = (row.numbers[0], columns)
    if row.kind.endswith("all equal"):
        return np.full(shape, 0.5, np.float32)
    values = random(row).standard_normal(shape, dtype=np.float32)
    return np.maximum(values - 2.5, 0) if row.kind.endswith("mostly zeros") else values


def check_scores(values, k, indices):
    """The scores of what was chosen, since who breaks ties by chance chooses others."""
    best = -np.sort(-values, axis=1)[:, :k]
    got = -np.sort(-np.take_along_axis(values, np.asarray(indices), axis=1), axis=1)
    assert (got == best).all(), "other scores"
    return "numpy's sort of the chosen scores, every element"


def logits(row):
    """Logits `[rows, vocabulary]`, f32, as the bench has them in kind."""
    shape = tuple(row.numbers)
    if "equal" in row.kind:
        return np.full(shape, 1.5, np.float32)
    rng = random(row)
    values = rng.standard_normal(shape, dtype=np.float32)
    if "ties" in row.kind:
        values[rng.random(shape) < 0.78] = 9.0
    elif "peak" in row.kind:
        values[:, shape[1] // 3] = 60.0
    else:
        values *= 2.5
    return values


def check_tokens(values, tokens, kept):
    """Whose random numbers they are is not known, so what the filters keep is held
    against: the `kept` largest."""
    tokens = np.asarray(tokens).reshape(-1)
    chosen = values[np.arange(len(values)), tokens]
    assert (chosen >= -np.sort(-values, axis=1)[:, kept - 1]).all(), "beyond the filters"
    return "tokens among what the filters keep"


def check_logprob(logits, token, logprob):
    """A token's log-probability among a row's logits."""
    logits = logits.astype(np.float64)
    largest = logits.max()
    expected = logits[token] - largest - np.log(np.exp(logits - largest).sum())
    assert abs(logprob - expected) < 1e-4, f"a log-probability of {logprob} instead of {expected}"


class Rejection:
    """Distributions of which every request rejects one draft, or none."""

    def __init__(self, row):
        self.batch, self.drafts = row.numbers
        vocab, self.recovery, *requests = row.kind.split(", ")
        if "half greedy" in requests:
            raise Skip("a batch of two kinds of requests is two calls of these")
        self.vocab = int(vocab)
        rng = random(row)
        tokens = self.batch * self.drafts
        scale = np.float32(2 / self.vocab)
        self.target, self.draft = (
            rng.random((tokens, self.vocab), dtype=np.float32) * scale for _ in range(2)
        )
        rejected = rng.integers(0, self.drafts, self.batch)
        if "all accepted" in requests:
            rejected[:] = self.drafts
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
        # Both distributions of the rejected token, or an entry of each for all.
        rows = int((rejected < self.drafts).sum())
        self.bytes = max(2 * rows * self.vocab * 4, 2 * tokens * 4)

    def check(self, output):
        output = np.asarray(output)
        for request in range(self.batch):
            turn, row = self.rejected[request], output[request]
            token = request * self.drafts + turn
            assert (row[:turn] == self.ids[token - turn : token]).all()
            assert (row[turn + 1 :] == -1).all()
            if turn == self.drafts:
                assert row[turn] == self.bonus[request]
                continue
            residual = self.target[token] - self.draft[token]
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
        if "encodes" in row.kind or "budget" in row.kind:
            raise Skip("no budget is shared there")
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


class Lookup(Ngram):
    """The same requests as one text each."""

    def __init__(self, row):
        self.last = row.kind.endswith(", last occurrence")
        row.kind = row.kind.removesuffix(", last occurrence")
        super().__init__(row)
        self.lengths = self.step + self.prompt + 1
        if self.last:
            end = self.prompt + self.steps
            at = end - self.bytes // self.batch // 8 + 3 if self.expected[0, 0] >= 0 else 0
            self.bytes = self.batch * (end - at) * 8


# The decode tail of `spec-bench`: rows of each request, tokens of each text, half of them the
# prompt, and the penalties of repetition, frequency and presence.
NODES, TEXT, PENALTIES = 5, 2048, (1.001, 0.001, 0.001)
STRONG = (1.5, 0.25, 0.5)


class Tail:
    """A row of `decode_tail`: requests with a text and a chain of three drafts each."""

    def __init__(self, row):
        rng = random(row)
        self.batch, self.vocab = row.numbers[0], int(row.kind.rpartition(" ")[2])
        shape = (self.batch * NODES, self.vocab)
        self.logits = rng.standard_normal(shape, dtype=np.float32) * np.float32(3)
        # The last column takes what is not appended.
        self.text = np.zeros((self.batch, TEXT + NODES + 1), np.int64)
        self.text[:, :TEXT] = rng.integers(0, self.vocab, (self.batch, TEXT))
        self.draft_tokens = rng.integers(0, self.vocab, (self.batch, NODES))
        self.draft_tokens[:, -1] = -1

    def check_penalties(self, logits):
        """The first request's logits under strong penalties."""
        rows = self.logits[:NODES].astype(np.float64)
        repetition, frequency, presence = STRONG
        for node, row in enumerate(rows):
            drafts = [token for token in self.draft_tokens[0, 1 : node + 1] if token >= 0]
            for token in {*self.text[0, :TEXT], *drafts}:
                row[token] *= 1 / repetition if row[token] > 0 else repetition
            generated = [*self.text[0, TEXT // 2 : TEXT], *drafts]
            for token, count in zip(*np.unique(generated, return_counts=True)):
                row[token] -= frequency * count + presence
        wrong = ~np.isclose(logits, rows, rtol=1e-5, atol=1e-5)
        assert not wrong.any(), f"{wrong.sum()} logits differ"
        return "plain loops: texts and drafts of all requests, penalties of the first"

    def check(self, text, target, length, chain):
        """What follows from the tokens that were sampled."""
        for request in range(self.batch):
            agreed = 0
            while agreed < NODES - 1 and self.draft_tokens[request, agreed + 1] == target[request, agreed]:
                agreed += 1
            tokens = [*self.text[request, :TEXT], *target[request, : agreed + 1]]
            assert length[request] == len(tokens) and (text[request, : len(tokens)] == tokens).all()
            drafts = [-1] * (NODES - 1)
            for n in (4, 3, 2, 1):
                ends = [e for e in range(n, len(tokens)) if tokens[e - n : e] == tokens[-n:]]
                if ends:
                    found = tokens[ends[-1] :][: NODES - 1]
                    drafts[: len(found)] = found
                    break
            assert (chain[request] == [tokens[-1], *drafts]).all(), "other drafts"


class Keys:
    """The sets of `unique`: ranks, scrambled. `xp` is numpy, or computes as it
    does (cupy)."""

    def __init__(self, row, xp=None):
        self.n = row.numbers[0]
        self.set = row.kind.split(",")[0]
        self.inverse = row.kind.endswith(", inverse")
        known = self.set.endswith("bits") or self.set in ("zipf", "sorted", "constant")
        if not known:
            raise Skip("that set is the library's to make")
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
