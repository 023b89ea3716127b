"""Trees of drafts as other libraries read them: links, positions and packed masks."""

import numpy as np
import pytest

import spec_ops

TOPK = 4
STEPS = 4


def eagle(rng, batch):
    """What a draft model with a beam gives: tokens, scores of the whole way, and for each group of TOPK
    candidates the candidate that they follow, -1 for the root."""
    groups = 1 + TOPK * (STEPS - 1)
    parent_list = np.full((batch, groups), -1, np.int64)
    scores = np.zeros((batch, groups * TOPK), np.float32)
    for request in range(batch):
        for group in range(groups):
            level = (group - 1) // TOPK
            above = 1.0
            if group:
                # The beam of a level goes on from candidates of the level before it.
                first = 0 if level == 0 else TOPK * (1 + TOPK * (level - 1))
                size = TOPK if level == 0 else TOPK * TOPK
                taken = set(parent_list[request, 1 + level * TOPK : group])
                left = [at for at in range(first, first + size) if at not in taken]
                parent_list[request, group] = max(left, key=lambda at: scores[request, at])
                above = scores[request, parent_list[request, group]]
            own = np.sort(rng.random(TOPK).astype(np.float32))[::-1]
            scores[request, group * TOPK : (group + 1) * TOPK] = above * own
    tokens = rng.integers(0, 30_000, scores.shape)
    return tokens, scores, parent_list


def trees(nodes, batch=5, seed=0):
    tokens, scores, parent_list = eagle(np.random.default_rng(seed), batch)
    parents = (np.repeat(parent_list, TOPK, axis=1) + 1).astype(np.int32)
    tree = spec_ops.draft_tree(
        tokens, n=nodes - 1, parents=parents, shares=scores, cumulative=True, picked=True,
        first_child=True, next_sibling=True, depths=True, masks=True)
    return tree, scores, parent_list


@pytest.mark.parametrize("nodes", [2, 8, 9, 16, 17, 32])
def test_links_and_masks_are_those_that_sglang_builds(nodes):
    """By the steps of `build_tree_efficient_partial_packed`: a mask has 1, 2 or 4 bytes, bit v % 8 of
    byte v / 8 for node v, and links are set from the last node to the first."""
    tree, scores, parent_list = trees(nodes)
    size = 4 if nodes > 16 else 2 if nodes > 8 else 1
    for request, picked in enumerate(tree.picked):
        # The best scores, in the order of their indices.
        best = np.sort(np.argsort(-scores[request], kind="stable")[: nodes - 1])
        assert picked.tolist() == best.tolist()
        place = {candidate: at + 1 for at, candidate in enumerate(picked.tolist())}

        def parent_of(node):
            group = picked[node - 1] // TOPK
            return place[parent_list[request, group]] if group else 0

        child, sibling = np.full(nodes, -1), np.full(nodes, -1)
        for node in range(nodes - 1, 0, -1):
            sibling[node], child[parent_of(node)] = child[parent_of(node)], node
        assert tree.first_child[request].tolist() == child.tolist()
        assert tree.next_sibling[request].tolist() == sibling.tolist()
        for node in range(nodes):
            packed, depth, at = np.zeros(size, np.uint8), 0, node
            packed[0] = 1
            while at:
                packed[at // 8] |= 1 << at % 8
                depth, at = depth + 1, parent_of(at)
            assert tree.depths[request, node] == depth
            words = tree.masks[request, node].astype("<i4").view(np.uint8)
            assert words[:size].tolist() == packed.tolist()


@pytest.mark.parametrize("nodes", [5, 33, 50])
def test_masks_are_the_packed_rows_that_flashinfer_reads(nodes):
    """FlashInfer packs a boolean mask bit by bit, the lowest bit first, and reads it as u16."""
    tree, _, parent_list = trees(nodes, seed=1)
    for request, masks in enumerate(tree.masks):
        sees = np.zeros((nodes, tree.masks.shape[2] * 32), bool)
        picked = tree.picked[request].tolist()
        for node in range(nodes):
            at = node
            while at:
                sees[node, at] = True
                group = picked[at - 1] // TOPK
                at = picked.index(parent_list[request, group]) + 1 if group else 0
            sees[node, 0] = True
        packed = np.packbits(sees, axis=1, bitorder="little").view("<u2")
        assert masks.astype("<i4").view("<u2").tolist() == packed.tolist()


def test_a_budget_keeps_the_likeliest_of_all_requests():
    rng = np.random.default_rng(2)
    shares = rng.random((6, 8)).astype(np.float32)
    tokens = rng.integers(0, 100, (6, 8))
    survivals = np.cumprod(shares, axis=1, dtype=np.float32)
    for budget in [0, 1, 7, 20, 48]:
        tree = spec_ops.draft_tree(
            tokens, n=8, shares=shares, budget=np.array([budget], np.int32), cap=54,
            row_offsets=True, row_requests=True, row_positions=True, starts=np.arange(6, dtype=np.int32))
        floor = np.sort(survivals.ravel())[::-1][budget - 1] if budget else 2.0
        assert tree.num_drafts.tolist() == (survivals >= floor).sum(axis=1).tolist()
        assert tree.row_offsets.tolist() == [0, *np.cumsum(tree.num_drafts + 1).tolist()]
        rows = [(at, at + depth) for at, num in enumerate(tree.num_drafts) for depth in range(num + 1)]
        rows += [(-1, -1)] * (54 - len(rows))
        assert list(zip(tree.row_requests.tolist(), tree.row_positions.tolist())) == rows
