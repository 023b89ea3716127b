"""Sparse attention with KV offload: `python examples/kv_offload.py [--device cuda]`.

All entries of the KV cache lie in host memory (pinned, with a GPU), and the attention has a buffer
of few slots on the device. Each step chooses the best positions of each row (`indexer_topk`), merges
the rows (`deduplicate_topk`), finds the slots and the entries to fetch (`hot_slots`), copies these,
and attends over the slots. The copy is the caller's: on a GPU one kernel, which reads the list and the
pinned memory itself. So the host decides nothing, and with a GPU all steps are one CUDA graph, replayed.

The text is synthetic: the scores of its positions rise and fall slowly, so that the set of the best
positions drifts. The output is compared, bit by bit, with attention over a cache that is wholly on the
device. A list in the order of last use, as engines keep it, is run beside, for its hit rate.
"""

import argparse
from collections import OrderedDict

import torch

import spec_ops

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Rows of a step (the last token and one draft), positions of a row, slots, tail slots.
ROWS, K, SLOTS, TAIL = 2, 48, 192, 2
# Tokens before the first step, the longest text, numbers of a key or a value.
PROMPT, MAX, WIDTH = 1000, 2000, 32
BYTES = 2 * WIDTH * 4

# The operators of a step, in one call. On a GPU, an operator may start while the operator before it
# ends. The output `slots` of hot_slots is named `places`, because indexer_topk has an output `slots`.
CHAIN = spec_ops.Pipeline(
    ["scores", "lengths", "resident", "used", "step", "reset", "tail_starts", "flags"],
    [
        spec_ops.IndexerTopk(k=K),
        spec_ops.DeduplicateTopk(mtp_step=ROWS),
        (spec_ops.HotSlots(tail=TAIL), {"wanted": "unique", "slots": "places"}),
    ],
    results={
        "indices": "i32",
        "unique": "i32",
        "inverse": "i32",
        "places": None,
        "fetch_positions": None,
        "fetch_slots": None,
        "fetches": None,
    },
)

if triton:

    @triton.jit
    def copy_entries(to, source, positions, slots, width: tl.constexpr):
        """A program for each place of the list; behind its end stands -1."""
        at = tl.program_id(0)
        position = tl.load(positions + at).to(tl.int64)
        slot = tl.load(slots + at).to(tl.int64)
        columns = tl.arange(0, width)
        listed = (columns < width) & (position >= 0)
        entry = tl.load(source + position * width + columns, mask=listed)
        tl.store(to + slot * width + columns, entry, mask=listed)


def attend(queries, entries, valid):
    """Attention of each row over its entries [rows, k, 2, width]: keys, then values."""
    scores = (queries[:, None] * entries[:, :, 0]).sum(-1).masked_fill(~valid, -torch.inf)
    return (scores.softmax(-1)[..., None] * entries[:, :, 1]).sum(1)


class Offload:
    """The cache, the state of its slots, and sums over the steps, all on the device."""

    def __init__(self, device):
        make = torch.Generator().manual_seed(0)
        entries = torch.randn(MAX, 2, WIDTH, generator=make)
        self.host = entries.pin_memory() if device.type == "cuda" else entries
        self.whole = entries.to(device)
        self.speed = ((1 + torch.rand(MAX, generator=make)) / 800).to(device)
        self.phase = torch.rand(MAX, generator=make).to(device)
        self.queries = torch.randn(MAX, ROWS, WIDTH, generator=make).to(device)
        self.hot = torch.zeros(SLOTS + TAIL, 2, WIDTH, device=device)
        self.positions = torch.arange(MAX, device=device)
        self.rows = torch.arange(ROWS, device=device)[:, None]

        def ints(*shape):
            return torch.zeros(*shape, dtype=torch.int32, device=device)

        self.resident, self.used = ints(1, SLOTS), ints(1, SLOTS)
        self.length, self.reset, self.flags = ints(1), ints(1), ints(1)
        self.wanted, self.fetched, self.wrong = ints(1), ints(1), ints(1)
        self.history = ints(MAX, ROWS * K)
        self.begin()

    def begin(self):
        self.resident.fill_(-1)
        self.length.fill_(PROMPT)
        for total in (self.wanted, self.fetched, self.wrong):
            total.zero_()

    def decide(self):
        """The positions of each row, and where they lie."""
        # Each position has its own slow rhythm; the newest tokens always score best.
        now = (self.length - PROMPT + 3 * self.rows) * self.speed + self.phase
        rhythm = 1 - (2 * now.frac() - 1).abs()
        scores = torch.where(self.positions >= self.length - TAIL, 2.0, rhythm)
        lengths = self.length.repeat(ROWS)
        self.start = self.length - TAIL
        # The length of the text is also the step: a clock that never stands still.
        made = CHAIN(
            scores, lengths, self.resident, self.used, self.length, self.reset, self.start, self.flags
        )
        self.indices, self.unique, self.inverse, self.places, *copies = made
        self.fetch_positions, self.fetch_slots, self.fetches = copies

    def copy(self):
        """Fetches what is listed. With several layers, each has such a copy of its own."""
        positions, slots = self.fetch_positions[0], self.fetch_slots[0]
        if self.hot.is_cuda:
            grid = (positions.shape[0],)
            copy_entries[grid](self.hot, self.host, positions, slots, 2 * WIDTH)
        else:
            count = int(self.fetches)
            self.hot[slots[:count].long()] = self.host[positions[:count].long()]

    def attend(self):
        """Attention over the slots, compared with attention over the whole cache."""
        newest = self.start + self.positions[:TAIL]
        self.hot[SLOTS:] = self.whole.index_select(0, newest)  # the model writes the tail itself
        valid, positions = self.indices >= 0, self.indices.clamp(min=0)
        slots = self.places[0][self.inverse.clamp(min=0)].clamp(min=0)
        queries = self.queries.index_select(0, self.length - PROMPT)[0]
        over_slots = attend(queries, self.hot[slots], valid)
        over_all = attend(queries, self.whole[positions], valid)
        self.wrong += (over_slots != over_all).any() | over_slots.isnan().any()
        inside = (self.unique >= 0) & (self.unique < self.start)
        self.wanted += inside.sum()
        self.fetched += self.fetches
        wanted = torch.where(inside, self.unique, -1)
        self.history.index_copy_(0, (self.length - PROMPT).long(), wanted)
        self.length += 1

    def step(self):
        self.decide()
        self.copy()
        self.attend()


def list_order(history):
    """How many entries a list in the order of last use fetches."""
    slots, fetched = OrderedDict(), 0
    for row in history.tolist():
        wanted = [entry for entry in row if entry >= 0]
        fetched += sum(entry not in slots for entry in wanted)
        for entry in wanted:
            slots[entry] = True
            slots.move_to_end(entry)
        while len(slots) > SLOTS:
            slots.popitem(last=False)
    return fetched


def run(device, steps, fails_at=None, recovers=True):
    """Some steps, on a GPU as replays of a graph. The copy of step `fails_at` leaves garbage in the
    slots; then the step runs again, with `reset` if `recovers`, which fetches everything again."""
    offload = Offload(torch.device(device))
    step = offload.step
    if offload.hot.is_cuda:
        # Before the capture, kernels are loaded, and the chain gets a workspace for its stream.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            offload.step()
        torch.cuda.current_stream().wait_stream(stream)
        offload.begin()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            offload.step()
        offload.begin()
        step = graph.replay
    for at in range(steps):
        if at != fails_at:
            step()
            continue
        offload.decide()
        count = int(offload.fetches)
        offload.hot[offload.fetch_slots[0, :count].long()] = torch.nan
        offload.reset.fill_(int(recovers))
        offload.step()
        offload.reset.zero_()
    assert not offload.flags.item(), "there are slots for all that a step wants"
    fetched = {"hot_slots": int(offload.fetched), "list-order LRU": list_order(offload.history[:steps])}
    return int(offload.wrong), int(offload.wanted), fetched


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=500, help=f"1 to {MAX - PROMPT}")
    arguments = parser.parse_args()
    steps = max(1, min(arguments.steps, MAX - PROMPT))
    wrong, wanted, fetched = run(arguments.device, steps)
    assert wrong == 0, "the attention over the slots is another"
    print(f"{steps} steps: the same attention as over the whole cache, to the bit")
    for name, count in fetched.items():
        hits = 100 * (1 - count / max(wanted, 1))
        print(f"{name}: {hits:.2f} % hits, {count * BYTES // steps} bytes fetched a step")


if __name__ == "__main__":
    main()
