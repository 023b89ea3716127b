"""How many drafts the loops on the host run, and what drafting may lose."""

import pytest

from spec_ops._lengths import FIRST, SHARE, Costs, Lengths


def costs(row):
    """A run of one row takes a second, each further row `row` of it."""
    made = Costs()
    for rows in range(1, 12):
        made.record(rows, 1 + row * (rows - 1))
    return made


def test_costs_are_medians_and_lines_between():
    made = Costs()
    assert made.of(1) == 1 and made.of(3) > made.of(2) > 1
    for seconds in (1.0, 1.0, 50.0):
        made.record(1, seconds)
    for _ in range(3):
        made.record(5, 3.0)
    assert made.of(5) == 3.0 and made.of(3) == 2.0 and made.of(9) == 4.0


def decode(row, right, tokens=400, max_draft=8):
    """Writes a text of which drafts are right where `right` says so; its time in runs."""
    made = costs(row)
    lengths, text, time = Lengths(1, max_draft, made), [], 0.0
    while len(text) < tokens:
        place = len(text)
        offered = [0 if right(place + n) else 1 for n in range(max_draft)]
        lengths.drafted(place, 0, offered)
        run = lengths.choose(0, max_draft)
        accepted = next((n for n in range(run) if offered[n]), run)
        text += [0] * (accepted + 1)
        time += made.of(run + 1)
        lengths.settle(run, accepted)
        lengths.observe(text, len(text))
        # Never more than the budget beyond a run a token.
        assert time <= len(text) + FIRST + SHARE * len(text) + 1e-9
    return time / len(text)


@pytest.mark.parametrize("row", [0.05, 0.2, 0.5, 0.9])
def test_no_text_loses_more_than_it_may(row):
    never = decode(row, lambda _: False)
    assert never < 1.01
    assert decode(row, lambda place: place < 200) < 1.01
    assert decode(row, lambda place: place % 3 == 0) < 1.01


def test_copies_are_noticed():
    assert decode(0.2, lambda _: True) < 0.4
    assert decode(0.2, lambda place: place > 100) < 0.55


def test_rows_that_cost_a_run_each_are_not_run():
    assert decode(1.0, lambda _: True) == 1.0
