"""What the operators' functions say beyond their contracts: examples, by operator."""

EXAMPLES = {
    "topk_router": """
All ties go to the lower index. ``out`` may bring indices of u32 or i64, and weights of f16 or bf16.

>>> import numpy as np
>>> logits = np.array([[0.1, 2.0, 0.3, 1.5], [3.0, 0.0, 0.0, 3.5]], np.float32)
>>> weights, indices, _ = topk_router(logits, topk=2)
>>> indices
array([[1, 3],
       [3, 0]], dtype=int32)
>>> weights.sum(axis=1).round(6)
array([1., 1.], dtype=float32)

A training run replays the experts that its rollout recorded:

>>> recorded = topk_router(logits, topk=2, logical=True).logical
>>> topk_router(logits * 2, topk=2, chosen=recorded).indices
array([[1, 3],
       [3, 0]], dtype=int32)
""",
    "deduplicate_topk": """
>>> import numpy as np
>>> rows = np.array([[7, 3], [3, -1]], np.int32)
>>> unique, counts = deduplicate_topk(rows, mtp_step=2, counts=True)
>>> unique, counts
(array([[ 3,  7, -1, -1]], dtype=int32), array([2], dtype=int32))
""",
    "rejection_sample": """
Seeds and positions are those of a request and of the position of its first draft in its own
text, so that the numbers drawn are the same in any batch. ``recovery="argmax"`` is faster and
does not keep the target's distribution.

A request with more than ``max_spec_len`` drafts is cut to them, with flag 4. If all of these are
accepted, its bonus token follows, which was drawn for the position behind the drafts that were cut
away. So draft no more than ``max_spec_len`` tokens, or draw the bonus token for the position behind
the cut.

>>> import numpy as np
>>> target = np.array([[0, 1, 0], [0, 0, 1]], np.float32)
>>> drafts, bonus = np.array([1, 0], np.int32), np.array([2], np.int32)
>>> cu, seeds, positions = np.array([0, 2]), np.array([7], np.uint64), np.array([10])
>>> rejection_sample(target, drafts, bonus, cu, max_spec_len=2, seeds=seeds,
...                  positions=positions).output_token_ids
array([[ 1,  2, -1]], dtype=int32)
""",
    "ngram_match": """
Arrays in FastDeploy's order.

>>> import numpy as np
>>> i64, i32 = lambda *n: np.array([n]), lambda n: np.array([n], np.int32)
>>> drafts, this_time = i64(6, 0, 0), i32(1)
>>> ngram_match(i64(5, 6, 7, 8), i64(4), i64(5, 6, 7, 8, 5, 6, 0, 0), i64(3), i64(2), i32(2),
...             drafts, this_time, i32(0), i32(5), i64(20))
>>> drafts, this_time
(array([[6, 7, 8]]), array([3], dtype=int32))
""",
    "hybrid_mtp_ngram": """
Arrays in FastDeploy's order, without its ``draft_token_num``, which no result depends on.

>>> import numpy as np
>>> i64, i32 = lambda *n: np.array([n]), lambda n: np.array([n], np.int32)
>>> drafts, this_time = i64(5, 6, 0, 0), i32(2)
>>> hybrid_mtp_ngram(i64(4, 5, 6, 7, 8), i64(5), i64(4, 5, 6, 0), i64(2), drafts, this_time,
...                  i32(5), i64(20), max_draft_tokens=3)
>>> drafts, this_time
(array([[5, 6, 7, 8]]), array([4], dtype=int32))
""",
    "prompt_lookup": """
>>> import numpy as np
>>> text = np.array([[791, 4062, 14198, 39935, 13, 578, 4062, 14198]])
>>> prompt_lookup(text, np.array([8]), max_draft=3)
Drafts(drafts=array([[39935,    13,   578]]), counts=array([3], dtype=int32))
""",
    "sample_logits": """
Where numbers stand for arrays and no array says how many requests there are, there are as many
as rows. Requests with the same seed and position draw the same numbers, so requests that shall
differ need seeds of their own. ``top_k`` may be of i64, and saturates.

Logits that are wider than the tokenizer, as those of models whose vocabulary was padded, have
columns that stand for no token, and these are drawn like any other: pass a ``mask`` without their
bits, or the logits without these columns.

>>> import numpy as np
>>> logits = np.array([[0.0, 4.0, 1.0], [2.0, 0.0, 0.0]], np.float32)
>>> greedy, seeds = np.zeros(2, np.float32), np.zeros(2, np.uint64)
>>> sample_logits(logits, np.array([5, 9]), greedy, seeds).tokens
array([1, 0], dtype=int32)
>>> sample_logits(logits, np.array([5, 9]), 0.7, 3, top_k=1, probs=True).probs
array([[0., 1., 0.],
       [1., 0., 0.]], dtype=float32)
""",
    "suffix_lookup": """
``n`` is how many drafts there may be. A tree comes as `tree_verify` takes it.

>>> import numpy as np
>>> text = np.array([[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3, 5, 8, 1, 2, 3]])
>>> found = suffix_lookup(text, np.array([18]), n=4, shares=True)
>>> found.drafts, found.counts, found.shares.round(2)
(array([[5, 8, 1, 2]]), array([4], dtype=int32), array([[0.67, 0.33, 0.33, 0.33]], dtype=float32))
""",
    "adjust_logits": """
Logits change in place. Where numbers stand for penalties, all requests have the same.

>>> import numpy as np
>>> logits = np.array([[1.0, 1.0, 1.0, -1.0]], np.float32)
>>> text, prompt, length = np.array([[3, 1, 1]]), np.array([1]), np.array([3])
>>> adjust_logits(logits, text, prompt, length, repetition=2.0, frequency=0.5)
>>> logits
array([[ 1. , -0.5,  1. , -2. ]], dtype=float32)
""",
    "tree_verify": """
>>> import numpy as np
>>> drafts, target = np.array([[0, 14, 25, 39]]), np.array([[14, 39, 8, 35]], np.int32)
>>> child, sibling = np.array([[1, 3, -1, -1]]), np.array([[-1, 2, -1, -1]])
>>> path = tree_verify(drafts, target, first_child=child, next_sibling=sibling, max_depth=2)
>>> path.tokens, path.nodes, path.num_tokens
(array([[14, 39, 35]], dtype=int32), array([[0, 1, 3]], dtype=int32), array([3], dtype=int32))

Chains need no links, and may be packed as an engine has them: two drafts of one request, none of another.

>>> drafts, target = np.array([0, 14, 39, 7]), np.array([14, 8, 35, 22], np.int32)
>>> path = tree_verify(drafts, target, row_offsets=np.array([0, 3, 4], np.int32), max_depth=2)
>>> path.tokens, path.num_tokens
(array([[14,  8, -1],
       [22, -1, -1]], dtype=int32), array([2, 1], dtype=int32))
""",
    "append_tokens": """
Texts, lengths and ``finished`` change in place.

Stop strings are the caller's, since a string may begin within a token: look for them in the decoded
text, cut the text there, and set the request's ``finished``.

>>> import numpy as np
>>> text, lengths = np.array([[5, 3, 8, 0, 0, 0]]), np.array([3], np.int32)
>>> new, count = np.array([[9, 2, 7]], np.int32), np.array([3], np.int32)
>>> finished = np.zeros(1, np.int32)
>>> append_tokens(text, lengths, new, count, stop_tokens=np.array([[2]]), finished=finished).appended
array([2], dtype=int32)
>>> text, lengths, finished
(array([[5, 3, 8, 9, 2, 0]]), array([5], dtype=int32), array([1], dtype=int32))
""",
    "moe_align": """
``sorted_ids``, ``block_experts`` and ``num_padded`` are vLLM's ``sorted_token_ids``,
``expert_ids`` and ``num_tokens_post_padded``.

>>> import numpy as np
>>> picks = np.array([[1, 0], [1, 0]], np.int32)
>>> aligned = moe_align(picks, experts=2, block_size=4)
>>> aligned.sorted_ids, aligned.block_experts
(array([1, 3, 4, 4, 0, 2, 4, 4, 4, 4, 4, 4], dtype=int32), array([ 0,  1, -1], dtype=int32))
""",
    "indexer_topk": """
Ties go to the lower index.

>>> import numpy as np
>>> scores = np.array([[0.0, 3.0, 0.0, 9.0]], np.float32)
>>> indexer_topk(scores, k=3).indices
array([[0, 1, 3]], dtype=int32)

Where a paged cache with blocks of two positions keeps them, and their scores:

>>> blocks = np.array([[7, 2]], np.int32)
>>> best = indexer_topk(scores, k=3, block_table=blocks, block_size=2, values=True, slots=True)
>>> best.slots, best.values
(array([[14, 15,  5]], dtype=int32), array([[0., 3., 9.]], dtype=float32))
""",
    "unique": """
Nothing waits for ``count`` to be known. :func:`torch_unique` waits, and returns what `torch.unique`
returns.

>>> import numpy as np
>>> keys, count, counts, inverse = unique(np.array([7, 3, 7]), counts=True, inverse=True)
>>> keys[: int(count[0])], counts[: int(count[0])]
(array([3, 7]), array([1, 2], dtype=uint64))
>>> keys[inverse]
array([7, 3, 7])
""",
}
