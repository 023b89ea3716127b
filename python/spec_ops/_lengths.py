"""How many drafts are worth the cost of their rows, for the loops that decode on the host.

An additional row costs the model a share of the time of a run with one row, and brings a token
only if every draft up to this row is accepted. Both are measured while a text is written.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

#: The weight of the newest observation in the moving averages.
NEWEST = 0.125
#: The time that drafting may lose before the first token, in runs of one row.
FIRST = 1.0
#: The additional time that drafting may lose with each token, in runs of one row.
SHARE = 0.005
#: The cost of an additional row in runs of one row, before one was measured.
ROW = 0.2


class Costs:
    """What a run of several rows costs, in runs of one row. Keep it as long as the model."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._table: dict[int, float] = {}

    def record(self, rows: int, seconds: float) -> None:
        """The time that a run of `rows` rows took, drafts included."""
        # The median of a few runs leaves out those that another process interrupted.
        times = self._seconds.setdefault(rows, deque(maxlen=15))
        times.append(seconds)
        self._table[rows] = statistics.median(times)

    def of(self, rows: int) -> float:
        """The cost of a run as measured, else estimated from the number of rows measured nearest."""
        first = self._table.get(1)
        others = [n for n in self._table if n > 1]
        if rows == 1 or first is None or not others:
            return 1 + ROW * (rows - 1)
        near = min(others, key=lambda n: abs(n - rows))
        slope = max(self._table[near] / first - 1, 0.0) / (near - 1)
        # The first additional rows cost about twice as much as the rows behind them.
        return 1 + slope * (min(rows, near) - 1) + slope / 2 * max(rows - near, 0)


class Lengths:
    """Chooses how many drafts of a text are run, from how often its drafts were right so far.

    `kinds` kinds of drafts are told from each other, by the length of their match: the longer,
    the likelier are its drafts at first.
    Drafts that were not run count too: the text shows later whether they would have stood. So
    copying is noticed without a run, and text that repeats nothing costs nearly nothing.
    """

    def __init__(self, kinds: int, max_draft: int, costs: Costs) -> None:
        #: The estimated probability that the draft at a place is right if those before it are.
        self._stand = [[min(0.4 + 0.1 * kind, 0.9)] * max_draft for kind in range(kinds)]
        self._open: list[tuple[int, int, list[int], int]] = []
        self._costs = costs
        #: What drafting may still lose, in runs of one row. Rejected drafts are paid from it.
        self._budget = FIRST

    def choose(self, kind: int, max_draft: int) -> int:
        """How many of `max_draft` drafts to run: the number with the most expected tokens in a time,
        of those that the budget pays for if all are rejected."""
        best, length = 1.0, 0
        tokens = reached = 1.0
        for drafts, stands in zip(range(1, max_draft + 1), self._stand[kind]):
            reached *= stands
            tokens += reached
            cost = self._costs.of(drafts + 1)
            if cost - 1 <= self._budget and tokens / cost > best:
                best, length = tokens / cost, drafts
        return length

    def drafted(self, place: int, kind: int, tokens: list[int]) -> None:
        """Remembers drafts for the text from `place` on, whether they are run or not."""
        if tokens:
            self._open.append((place, kind, tokens, 0))

    def settle(self, drafts: int, accepted: int) -> None:
        """Pays for the drafts of a run. Accepted drafts save a run each."""
        cost = self._costs.of(drafts + 1) - 1
        self._budget += SHARE * (accepted + 1) + accepted - cost

    def observe(self, text: Sequence[int], length: int) -> None:
        """Compares the drafts that are remembered with the first `length` tokens of the text."""
        still_open = []
        for place, kind, tokens, stood in self._open:
            stand = self._stand[kind]
            right = True
            while right and stood < len(tokens) and place + stood < length:
                right = tokens[stood] == text[place + stood]
                stand[stood] += NEWEST * (right - stand[stood])
                stood += right
            if right and stood < len(tokens):
                still_open.append((place, kind, tokens, stood))
        self._open = still_open
