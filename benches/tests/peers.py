"""Reads rows as the scripts under benches/peers/ do, and holds the library's own results against their
checks: each passes, and fails once a result is changed. Prints the rows that were read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "peers"))

import inputs
import numpy as np
from common import Skip, arguments, rows
from inputs import expected, load


def results(row, *names):
    return [expected(row, name) for name in names]


def topk_router(row):
    given = inputs.Router(row)
    return lambda *found: given.check(given.x, *found), results(row, "weights", "indices")


def deduplicate_topk(row):
    values = inputs.deduplicate(row)
    return lambda unique: inputs.check_deduplicate(values, unique), results(row, "unique")


def hot_slots(row):
    names = ("slots", "fetch_positions", "fetch_slots", "fetches", "resident", "used")
    return inputs.Slots(row).check, results(row, *names)


def rejection_sample(row):
    return inputs.Rejection(row).check, results(row, "output_token_ids")


def sample_logits(row):
    words = row.kind.split(", ")
    if {"winners", "largest", "token-ids", "n-4", "min-p"} & set(words):
        raise Skip("the scripts do not time it")
    values, kept = inputs.logits(row), 50 if words[0] == "top-k-p" else None
    check = lambda tokens: inputs.check_tokens(values, tokens, kept or values.shape[1])
    return check, results(row, "tokens") if kept else None


def ngram_match(row):
    given = inputs.Ngram(row)
    drafts, slots = results(row, "draft_tokens", "seq_lens_this_time")
    return given.check, [drafts[:, 1 : inputs.DRAFTS + 1], slots - 1]


def prompt_lookup(row):
    return inputs.Lookup(row).check, results(row, "drafts", "counts")


def draft_tree(row):
    return inputs.DraftTrees(row).check, results(row, "num_drafts")


def tree_verify(row):
    tokens, count = results(row, "tokens", "num_tokens")
    there = np.arange(tokens.shape[1]) < count[:, None]
    return inputs.Trees(row).check, [np.where(there, tokens, -1)]


def moe_align(row):
    picks, count = inputs.experts(row)
    check = lambda *found: inputs.check_runs(picks, count, 64, *found)
    ids, padded = results(row, "sorted_ids", "num_padded")
    return check, [ids, padded[0]]


def indexer_topk(row):
    values = inputs.scores(row)
    return lambda indices: inputs.check_scores(values, 2048, indices), results(row, "indices")


def unique(row):
    return inputs.Keys(row).check, results(row, "unique")


def topk_router_then_moe_align(row):
    assert load(row, "x").shape == (row.numbers[0], 256) and load(row, "bias").shape == (256,)
    return None, None


def indexer_topk_then_deduplicate_topk(row):
    assert load(row, "scores").shape == (row.numbers[0] * 2, 1 << 17)
    return None, None


def decode_tail(row):
    given = inputs.Tail(row)
    assert given.logits.shape == (given.batch * inputs.NODES, given.vocab)
    assert given.text[:, : inputs.TEXT].min() >= 0 and given.text.max() > 0
    return None, None


def main():
    for row in rows(arguments(__doc__)):
        read = globals().get(row.operator.replace("+", "_then_"))
        if read is None:
            continue
        try:
            check, found = read(row)
        except Skip as reason:
            print(f"skipped: {row.operator}, {row.shape}: {reason}")
            continue
        if found:
            check(*found)
            wrong = [np.array(array) for array in found]
            wrong[0].flat[0] += 1
            try:
                check(*wrong)
            except (AssertionError, IndexError):
                pass
            else:
                raise SystemExit(f"{row.operator}, {row.shape}: a wrong result passes")
        print(f"{row.operator}, {row.shape}")


main()
