"""Sampling on several GPUs whose ranks each have some of the columns, compared way by way:

    python bench/sharded.py [--world 2] [--json FILE] [--vocab 128256] [--seconds 1] [--check 100000]
    python bench/sharded.py --device cpu --vocab 1000 --rows 1 16 --check 64     # no times, by Gloo

Without filters:

* `gather`: an all-gather of the logits, then `sample_logits` of the whole rows on each rank;
* `exchange`: an all-to-all, after which each rank has whole rows, `sample_logits` of these, and
  an all-gather of the tokens;
* `winners`: the largest logits, an all-reduce MAX, `sample_logits` with `maxima`, and an
  all-reduce MIN;
* `finishers`: `spec_ops.torch.sample_once`, one all-gather. Of its tokens, only those that are certain
  are compared, and the others are counted.

With top-k 50 and top-p 0.9:

* `gather k-p`, `exchange k-p`: as above;
* `candidates k-p`: the 64 largest logits of each rank, one all-gather, and `sample_logits` of these.

On GPUs by NCCL, each way in one CUDA graph per rank. Prints microseconds per step, the largest of the
ranks' medians. Then checks at least `--check` rows of each element type, in batches of all sizes of `--rows`: the
token of every row, by every way and on every rank, must be the one that `sample_logits` gives for the
whole row on one device. NVLink multicast stays off.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import types

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

import spec_ops
import spec_ops.torch
from spec_ops._torch_finishers import all_gather

ROWS = [1, 16, 32, 64, 256, 1024]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
FILTERS = {"top_k": 50, "top_p": 0.9}
#: Replays of a graph between two events.
REPLAYS = 20


class Shard:
    """A rank's columns of random rows, and the whole rows, in memory that :meth:`fill` rewrites."""

    def __init__(self, rows, vocab, dtype, device, rank, size):
        self.device = device
        self.whole = torch.empty(rows, vocab, dtype=dtype, device=device)
        self.rows, self.vocab, self.rank, self.size = rows, vocab, rank, size
        bounds = [vocab * at // size for at in range(size + 1)]
        self.first, self.end = bounds[rank], bounds[rank + 1]
        self.equal = vocab % size == 0
        self.logits = torch.empty(rows, self.end - self.first, dtype=dtype, device=device)
        self.positions = torch.empty(rows, dtype=torch.int64, device=device)
        self.temperature = torch.full((rows,), 0.8, device=device)
        self.seeds = torch.empty(rows, dtype=torch.int64, device=device)
        self.fill(0)

    def fill(self, number):
        """Other rows for each number, the same on every rank."""
        generator = torch.Generator(self.device).manual_seed(1000 * self.rows + number)
        shape = self.whole.shape
        self.whole.copy_(torch.randn(shape, generator=generator, device=self.device) * 2.5)
        self.logits.copy_(self.whole[:, self.first : self.end])
        row = torch.arange(self.rows, device=self.device) + number * self.rows
        self.positions.copy_(row * 3)
        self.seeds.copy_(row * 0x9E3779B97F4A7C1 + 5)

    def drawn(self, rows=slice(None)):
        # The bits of seeds of 64 bits.
        return self.positions[rows], self.temperature[rows], self.seeds[rows].view(torch.uint64)

    def reference(self, filters):
        return spec_ops.sample_logits(self.whole, *self.drawn(), **filters).tokens

    def gather(self, **filters):
        made = self.logits.new_empty((self.size, *self.logits.shape))
        all_gather(made, self.logits, None)
        whole = made.permute(1, 0, 2).reshape(self.rows, self.vocab)
        return spec_ops.sample_logits(whole, *self.drawn(), **filters).tokens

    def exchange(self, **filters):
        each = self.rows // self.size
        made = self.logits.new_empty((self.size, each, self.logits.shape[1]))
        to, of = made.view(-1).view(torch.uint8), self.logits.view(-1).view(torch.uint8)
        dist.all_to_all_single(to, of)
        whole = made.permute(1, 0, 2).reshape(each, self.vocab)
        own = slice(self.rank * each, (self.rank + 1) * each)
        tokens = spec_ops.sample_logits(whole, *self.drawn(own), **filters).tokens
        all_tokens = tokens.new_empty(self.rows)
        all_gather(all_tokens, tokens, None)
        return all_tokens

    def sharded(self, way, **filters):
        where = {"first_token": self.first, "vocab": self.vocab}
        return spec_ops.torch.sample_sharded(
            self.logits, None, *self.drawn(), way=way, **where, **filters
        )

    def winners(self):
        return self.sharded("winners")

    def candidates(self, **filters):
        return self.sharded("candidates", **filters)

    def finishers(self):
        """The tokens, -1 for those that are not certain."""
        tokens, certain = spec_ops.torch.sample_once(
            self.logits, None, *self.drawn(), first_token=self.first
        )
        return tokens.masked_fill(~certain, -1)

    def largest_alone(self):
        return spec_ops.sample_logits(
            self.logits, *self.drawn(), first_token=self.first, n=0, largest=True
        ).largest

    def ways(self):
        """What is timed and compared: calls and their filters. `largest alone` is the part of
        `winners` that does not communicate."""
        ways = {
            "winners": (self.winners, {}),
            "finishers": (self.finishers, {}),
            "largest alone": (self.largest_alone, {}),
            "candidates k-p": (self.candidates, FILTERS),
        }
        if self.equal:
            ways |= {"gather": (self.gather, {}), "gather k-p": (self.gather, FILTERS)}
        if self.equal and self.rows % self.size == 0:
            ways |= {"exchange": (self.exchange, {}), "exchange k-p": (self.exchange, FILTERS)}
        return ways

    def wrong(self, way, made, filters):
        """How many rows of a result are wrong, and how many tokens of it are not certain."""
        if way == "largest alone":
            return int((made != self.logits.float().amax(1)).sum()), 0
        uncertain = (made < 0) if way == "finishers" else torch.zeros_like(made, dtype=torch.bool)
        wrong = (made != self.reference(filters)) & ~uncertain
        return int(wrong.sum()), int(uncertain.sum())


def captured(call, device):
    """What replays a call, and its results. A CPU has no graphs: there, it is called again."""
    if device.type == "cpu":
        made = call()
        return types.SimpleNamespace(replay=lambda: made.copy_(call())), made
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    dist.barrier()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call()
    return graph, made


def microseconds(graph, seconds):
    """The median time of a replay."""
    times = []
    graph.replay()
    torch.cuda.synchronize()
    # Every rank replays as often, since replays wait for each other.
    for _ in range(max(5, int(seconds * 200))):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / REPLAYS)
    return statistics.median(times)


def measured(shard, arguments, batches):
    """The ways of a shard: times, and how many tokens of `batches` batches are wrong or not certain,
    on all ranks together."""
    results = []
    for way, (call, filters) in shard.ways().items():
        shard.fill(0)
        graph, made = captured(lambda call=call, filters=filters: call(**filters), shard.device)
        timed = shard.device.type == "cuda"
        time = microseconds(graph, arguments.seconds) if timed else 0.0
        wrong = uncertain = 0
        for number in range(batches):
            shard.fill(number)
            graph.replay()
            more = shard.wrong(way, made, filters)
            wrong, uncertain = wrong + more[0], uncertain + more[1]
        time = torch.tensor([time], device=shard.device)
        counts = torch.tensor([wrong, uncertain], device=shard.device)
        dist.all_reduce(time, dist.ReduceOp.MAX)
        dist.all_reduce(counts)
        one = {"way": way, "us": round(time.item(), 2) if timed else None}
        one |= {"checked_rows": batches * shard.rows, "wrong": int(counts[0])}
        # Every rank counts them.
        results.append(one | {"uncertain": int(counts[1]) // shard.size})
    return results


def run(rank, size, port, arguments):
    """What a rank does."""
    on_gpu = arguments.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        device_id=device if on_gpu else None,
    )
    results = []
    # The same number of batches of each size, and at least one.
    batches = max(1, -(-arguments.check // sum(arguments.rows)))
    for name, dtype in DTYPES.items():
        for rows in arguments.rows:
            shard = Shard(rows, arguments.vocab, dtype, device, rank, size)
            here = measured(shard, arguments, batches)
            results += [{"dtype": name, "rows": rows} | one for one in here]
            if rank == 0:
                times = [f"{one['way']} {one['us']:8.1f}" if on_gpu else one["way"] for one in here]
                print(f"{name:>4} {rows:5} rows: {'  '.join(times)}", flush=True)
    wrong = [one for one in results if one["wrong"]]
    if rank == 0:
        about = {"gpu": "none", "torch": torch.__version__, "world": size, "vocab": arguments.vocab}
        if on_gpu:
            about["gpu"] = torch.cuda.get_device_name(0)
            about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump({"about": about, "results": results}, file, indent=1)
        print(about)
        checked = batches * sum(arguments.rows)
        uncertain = sum(one["uncertain"] for one in results)
        print(f"{checked} rows of each type; {uncertain} tokens of `finishers` are not certain")
        print("all tokens are those of one device" if not wrong else f"WRONG: {wrong}", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    if wrong:
        sys.exit(1)


def main():
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--check", type=int, default=100_000)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (arguments.world, port, arguments), nprocs=arguments.world)


if __name__ == "__main__":
    main()
