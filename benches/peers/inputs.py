"""The inputs that `spec-bench inputs DIR` wrote for a row, and checks of results.

Numbers of 16 bits lie in the files as f32. What the library makes of the inputs lies beside them;
where another library rounds, breaks ties or draws in another way, the checks here say what is
right.
"""

import json

from common import Skip, number

try:
    import numpy as np
except ImportError:
    np = None  # which the scripts ask for, and say

DRAFTS = 5


def folder(row):
    if not row.folder.is_dir():
        raise Skip("its inputs are not there: `spec-bench inputs` writes them")
    return row.folder


def load(row, name):
    """An argument; None if the row's call has none of this name."""
    path = folder(row) / f"{name}.npy"
    return np.load(path) if path.exists() else None


def expected(row, name):
    """A result of the library on the CPU, which the bench has checked."""
    return np.load(folder(row) / "expected" / f"{name}.npy")


def moved(row):
    """The bytes that any implementation must read and write."""
    return json.loads((folder(row) / "row.json").read_text())["bytes"]


class Router:
    """A row of `topk_router`: DeepSeek-V3's routing but for what its name says. Logits and
    bias are f32."""

    def __init__(self, row):
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
        self.x, self.bias = load(row, "x"), load(row, "bias")
        self.replicas, self.counts = load(row, "replicas"), load(row, "replica_counts")
        if self.replicas is not None:
            self.places = len(load(row, "load"))

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
    if row.kind.endswith("inverse"):
        raise Skip("no other library has places of indices")
    return load(row, "indices").reshape(row.numbers[0], -1)


def check_deduplicate(values, unique):
    for got, given in zip(np.asarray(unique), values):
        want = np.unique(given[given >= 0])
        assert (got[: len(want)] == want).all() and (got[len(want) :] == -1).all()
    return "numpy.unique of each request, every element"


class Slots:
    """A row of `hot_slots`: ascending wanted positions, slots in random order, and when they were
    last used."""

    def __init__(self, row):
        self.wanted, self.resident, self.used = (load(row, n) for n in ("wanted", "resident", "used"))
        self.step = int(load(row, "step")[0])

    def check(self, slots, positions, fetch_slots, fetches, resident, used):
        for r, wanted in enumerate(self.wanted):
            held = np.isin(self.resident[r], wanted)
            misses = wanted[~np.isin(wanted, self.resident[r])]
            free = np.flatnonzero(~held)
            oldest = free[np.argsort(self.used[r][free], kind="stable")][: len(misses)]
            taken = np.sort(oldest)
            after, when = self.resident[r].copy(), np.where(held, self.step, self.used[r])
            after[taken], when[taken] = misses, self.step
            n = len(misses)
            assert fetches[r] == n and (positions[r, :n] == misses).all()
            assert (fetch_slots[r, :n] == taken).all() and (positions[r, n:] == -1).all()
            assert (resident[r] == after).all() and (used[r] == when).all()
            assert (after[slots[r]] == wanted).all() and (fetch_slots[r, n:] == -1).all()
        return "numpy, every element"

    def order(self):
        """Slots by their last use, the oldest first, as engines keep them instead of ages."""
        return self.used.argsort(axis=1, kind="stable")

    def check_in_order(self, slots, positions, fetch_slots, fetches, resident, order):
        """As `check`, where the slots that misses take are in the order of last use, and the order
        is a state of its own: slots that stay, then slots that were taken, then hits."""
        for r, (wanted, before) in enumerate(zip(self.wanted, self.order())):
            hit = np.isin(wanted, self.resident[r])
            holds = np.isin(self.resident[r][before], wanted)
            misses, free, n = wanted[~hit], before[~holds], int((~hit).sum())
            after = self.resident[r].copy()
            after[free[:n]] = misses
            assert fetches[r] == n and (positions[r, :n] == misses).all()
            assert (fetch_slots[r, :n] == free[:n]).all(), "other slots are taken"
            assert (resident[r] == after).all() and (after[slots[r]] == wanted).all()
            assert len(np.unique(slots[r])) == len(wanted), "a slot is given twice"
            assert (self.resident[r][slots[r][hit]] == wanted[hit]).all(), "a hit has moved"
            expected = np.concatenate([free[n:], free[:n], before[holds]])
            assert (order[r] == expected).all(), "another order"
        return "numpy, every element"


def experts(row):
    """A router's picks `[tokens, k]`, i32, and how many experts there are."""
    return load(row, "topk_ids"), int(row.kind.split(" ")[0])


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

    def __init__(self, row):
        self.draft = load(row, "draft_tokens")
        self.target = load(row, "target_tokens").astype(np.int64)
        self.batch, self.nodes = self.draft.shape
        self.steps = expected(row, "tokens").shape[1] - 1
        # Every request has the same tree; a chain needs no links.
        self.children = np.full((self.nodes, 2), -1)
        if (first := load(row, "first_child")) is None:
            self.children[:-1, 0] = np.arange(1, self.nodes)
        else:
            self.children[:, 0] = first[0]
            self.children[:, 1] = np.where(first[0] < 0, -1, load(row, "next_sibling")[0][first[0]])
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


class DraftTrees:
    """Candidates with probabilities: chains, or levels of 64 of which each follows one of the level
    before it. The batch shares half of the drafts that all trees hold."""

    WIDTH = 64

    def __init__(self, row):
        self.row, self.tokens, self.shares = row, load(row, "candidates"), load(row, "shares")
        self.batch, self.candidates = self.tokens.shape
        words = row.kind.split(" ")
        self.chain, self.drafts = words[0] == "chains", int(words[2])
        self.budget = int(load(row, "budget")[0])
        self.rows = self.budget + self.batch
        self.parents = load(row, "parents")
        if self.chain:
            self.parents = np.broadcast_to(np.arange(self.candidates), self.tokens.shape)
        self.bytes = row.memory

    def survivals(self, dtype=None):
        survivals = np.ones((self.batch, self.candidates + 1), dtype)
        for j in range(self.candidates):
            above = np.take_along_axis(survivals, self.parents[:, j : j + 1], 1)[:, 0]
            survivals[:, j + 1] = above * self.shares[:, j]
        return survivals[:, 1:]

    def check(self, kept):
        """`kept` has how many drafts each request keeps. Products in another order may exchange two
        drafts of nearly one survival."""
        best = -np.sort(-self.survivals(), axis=1)[:, : self.drafts]
        floor = -np.sort(-best.ravel())[self.budget - 1]
        expected = (best >= floor).sum(1)
        assert kept.sum() == self.budget and abs(kept - expected).sum() <= 2, "other drafts"
        return "survivals in numpy, the number of drafts of each request"

    def check_trees(self, picked, tokens, masks, positions, first_child, next_sibling):
        """Trees without a budget: the candidates that each request keeps, and by node, of which the
        first is the root: tokens, what a node sees, positions, links."""
        survivals, starts = self.survivals(np.float32), load(self.row, "starts")
        for r, (own, parents) in enumerate(zip(picked, self.parents)):
            best = np.sort(survivals[r])[-self.drafts :]
            assert (np.diff(own) > 0).all() and (np.sort(survivals[r, own]) == best).all()
            assert (tokens[r, 1:] == self.tokens[r, own]).all(), "other tokens"
            node_of = {0: 0} | {candidate + 1: node for node, candidate in enumerate(own, 1)}
            sees, depths = np.eye(self.drafts + 1, dtype=bool), [0]
            children = {node: [] for node in node_of.values()}
            for node, candidate in enumerate(own, 1):
                above = node_of[parents[candidate]]
                sees[node] |= sees[above]
                depths.append(depths[above] + 1)
                children[above].append(node)
            assert (masks[r] == sees).all(), "another mask"
            assert (positions[r] == starts[r] + depths).all(), "other positions"
            first, following = np.full((2, self.drafts + 1), -1)
            for node, below in children.items():
                first[node] = below[0] if below else -1
                following[below[:-1]] = below[1:]
            assert (first_child[r] == first).all() and (next_sibling[r] == following).all()
        return "plain loops, every element"


def scores(row):
    """Scores `[rows, columns]`, f32."""
    if any(word in row.kind for word in ("top ", "blocks", "forced", "candidates")):
        raise Skip("the calls of other libraries choose 2048 single scores")
    return load(row, "scores")


def check_scores(values, k, indices):
    """The scores of what was chosen, since who breaks ties by chance chooses others."""
    best = -np.sort(-values, axis=1)[:, :k]
    got = -np.sort(-np.take_along_axis(values, np.asarray(indices), axis=1), axis=1)
    assert (got == best).all(), "other scores"
    return "numpy's sort of the chosen scores, every element"


def logits(row):
    """Logits `[rows, vocabulary]`, f32."""
    return load(row, "logits")


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
        self.target, self.draft = load(row, "target_probs"), load(row, "draft_probs")
        self.ids, self.bonus = load(row, "draft_token_ids"), load(row, "bonus_token_ids")
        self.rejected = expected(row, "accepted_counts")
        # Without samples of its own, a row accepts every draft, as the sample 0 does.
        self.uniform = load(row, "uniform_samples")
        if self.uniform is None:
            self.uniform = np.zeros(len(self.ids), np.float32)
        self.bytes = moved(row)

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
    """Requests that have generated tokens, and what followed where their last tokens occurred."""

    def __init__(self, row):
        if "encodes" in row.kind or "budget" in row.kind:
            raise Skip("no budget is shared there")
        self.cold = row.kind.endswith(", cold")
        self.all, self.input_ids = load(row, "token_ids_all"), load(row, "input_ids")
        self.step = load(row, "step_idx")
        self.batch, self.prompt = self.input_ids.shape
        self.counts = expected(row, "seq_lens_this_time") - 1
        self.expected = expected(row, "draft_tokens")[:, 1 : DRAFTS + 1]
        self.bytes = moved(row)

    def check(self, drafts, counts):
        there = np.arange(DRAFTS) < self.counts[:, None]
        assert (np.asarray(counts) == self.counts).all(), "other counts"
        assert (np.where(there, drafts, -1) == np.where(there, self.expected, -1)).all(), "other drafts"
        return "the library on the CPU, every draft"


class Lookup(Ngram):
    """The same requests as one text each."""

    def __init__(self, row):
        self.last = ", last occurrence" in row.kind
        self.cold = ", cold" in row.kind
        self.all, self.lengths = load(row, "tokens"), load(row, "lengths")
        self.batch = len(self.all)
        self.counts, self.expected = expected(row, "counts"), expected(row, "drafts")
        self.bytes = moved(row)


# The decode tail of `spec-bench`: rows of each request, tokens of each text, half of them the
# prompt, and the penalties of repetition, frequency and presence.
NODES, TEXT, PENALTIES = 5, 2048, (1.0001, 1e-5, 1e-5)
STRONG = (1.5, 0.25, 0.5)


class Tail:
    """A row of `decode_tail`: requests with a text and a chain of drafts each."""

    def __init__(self, row):
        self.batch, self.vocab = row.numbers[0], int(row.kind.rpartition(" ")[2])
        self.logits = load(row, "logits")
        # The last column takes what is not appended.
        self.text = np.zeros((self.batch, TEXT + NODES + 1), np.int64)
        self.text[:, :TEXT] = load(row, "tokens")[:, :TEXT]
        self.draft_tokens = load(row, "draft_tokens").astype(np.int64).reshape(self.batch, NODES)

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
    """A row of `unique`. `xp` is numpy, or loads as it does (cupy)."""

    def __init__(self, row, xp=None):
        self.row, self.xp = row, xp or np
        self.inverse = row.kind.endswith(", inverse")
        self.bytes = moved(row)

    def keys(self):
        return self.xp.asarray(load(self.row, "keys"))

    def distinct(self):
        """The distinct keys, ascending."""
        return self.xp.asarray(expected(self.row, "unique"))

    def check(self, unique):
        want = self.distinct()
        assert len(unique) == len(want), f"{len(unique)} keys, expected {len(want)}"
        assert bool((unique == want).all()), "other keys"
        return "the keys that were made, every element"
