"""Stand-ins of SGLang's kernels for trees of drafts."""

import torch


def reconstruct_indices_from_tree_mask(mask, lengths, positions, index, child, sibling, batch, nodes):
    """Each node's position, first child and next sibling, from which nodes each sees."""
    above = mask.view(batch, nodes, nodes) & torch.ones(nodes, nodes, dtype=torch.bool).tril(-1)
    positions.view(batch, nodes).copy_(above.sum(2) + lengths[:, None])
    index.copy_(torch.arange(batch * nodes).view(batch, nodes))
    child.fill_(-1)
    sibling.fill_(-1)
    for b in range(batch):
        last = {}
        for node in range(1, nodes):
            parent = int(above[b, node].nonzero().max())
            if parent in last:
                sibling[b, last[parent]] = node
            else:
                child[b, parent] = node
            last[parent] = node
