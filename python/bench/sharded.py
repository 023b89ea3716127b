"""Sampling on two GPUs whose ranks each have half of the columns, three ways:

    python bench/sharded.py [--world 2] [--json FILE] [--vocab 128256] [--seconds 1]

* `gather`: an all-gather of the logits, then `sample_logits` of the whole rows on each rank;
* `exchange`: an all-to-all, after which each rank has whole rows, `sample_logits` of these, and
  an all-gather of the tokens;
* `winners`: the largest logits, an all-reduce MAX, `sample_logits` with `maxima`, and an
  all-reduce MIN.

All by NCCL, each in one CUDA graph per rank. Prints microseconds per step, the largest of the
ranks' medians, and compares the tokens of every way, on every rank, with those of one GPU that has
the whole rows. NVLink multicast stays off.
"""

import argparse
import json
import os
import socket
import statistics

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

import spec_ops

ROWS = [1, 16, 32, 64, 256, 1024]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32}
#: Replays of a graph between two events.
REPLAYS = 20


class Shard:
    """A rank's columns of random rows, and the whole rows."""

    def __init__(self, rows, vocab, dtype, rank, size):
        device = torch.device("cuda", rank)
        generator = torch.Generator(device).manual_seed(rows)
        self.whole = (torch.randn(rows, vocab, generator=generator, device=device) * 2.5).to(dtype)
        self.rows, self.vocab, self.rank, self.size = rows, vocab, rank, size
        bounds = [vocab * at // size for at in range(size + 1)]
        self.first, self.end = bounds[rank], bounds[rank + 1]
        self.equal = vocab % size == 0
        self.logits = self.whole[:, self.first : self.end].contiguous()
        self.positions = torch.arange(rows, device=device) * 3
        self.temperature = torch.full((rows,), 0.8, device=device)
        # The bits of seeds of 64 bits.
        self.seeds = (torch.arange(rows, device=device) * 0x9E3779B97F4A7C1 + 5).view(torch.uint64)

    def drawn(self, rows=slice(None)):
        return self.positions[rows], self.temperature[rows], self.seeds[rows]

    def reference(self):
        return spec_ops.sample_logits(self.whole, *self.drawn()).tokens

    def gather(self):
        made = self.logits.new_empty((self.size, *self.logits.shape))
        dist.all_gather_into_tensor(made.view(-1), self.logits.view(-1))
        whole = made.permute(1, 0, 2).reshape(self.rows, self.vocab)
        return spec_ops.sample_logits(whole, *self.drawn()).tokens

    def exchange(self):
        each = self.rows // self.size
        made = self.logits.new_empty((self.size, each, self.logits.shape[1]))
        dist.all_to_all_single(made.view(-1), self.logits.view(-1))
        whole = made.permute(1, 0, 2).reshape(each, self.vocab)
        own = slice(self.rank * each, (self.rank + 1) * each)
        tokens = spec_ops.sample_logits(whole, *self.drawn(own)).tokens
        all_tokens = tokens.new_empty(self.rows)
        dist.all_gather_into_tensor(all_tokens, tokens)
        return all_tokens

    def winners(self):
        of = {"first_token": self.first}
        found = spec_ops.sample_logits(self.logits, *self.drawn(), n=0, largest=True, **of)
        maxima = found.largest
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        of |= {"maxima": maxima, "winners": True}
        winners = spec_ops.sample_logits(self.logits, *self.drawn(), **of).winners
        dist.all_reduce(winners, dist.ReduceOp.MIN)
        return winners.to(torch.int32)

    def largest_alone(self):
        return spec_ops.sample_logits(
            self.logits, *self.drawn(), first_token=self.first, n=0, largest=True
        ).largest

    def ways(self):
        """What is timed. The last two show the parts of `winners` that do not communicate."""
        ways = {"winners": self.winners, "largest alone": self.largest_alone}
        if self.equal:
            ways["gather"] = self.gather
        if self.equal and self.rows % self.size == 0:
            ways["exchange"] = self.exchange
        return ways


def captured(call):
    """A graph of a call, and its results."""
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


def run(rank, size, port, arguments):
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        device_id=torch.device("cuda", rank),
    )
    results = []
    for name, dtype in DTYPES.items():
        for rows in ROWS:
            shard = Shard(rows, arguments.vocab, dtype, rank, size)
            expected = shard.reference()
            for way, call in shard.ways().items():
                graph, made = captured(call)
                time = torch.tensor([microseconds(graph, arguments.seconds)], device="cuda")
                torch.cuda.synchronize()
                if way == "largest alone":
                    same = (made == shard.logits.float().amax(1)).all()
                else:
                    same = (made == expected).all()
                wrong = torch.tensor([int(not same)], device="cuda")
                dist.all_reduce(time, dist.ReduceOp.MAX)
                dist.all_reduce(wrong)
                one = {"dtype": name, "rows": rows, "way": way, "us": round(time.item(), 2)}
                results.append(one | {"wrong_ranks": wrong.item()})
            if rank == 0:
                here = [one for one in results if (one["dtype"], one["rows"]) == (name, rows)]
                words = "  ".join(f"{one['way']} {one['us']:8.1f}" for one in here)
                print(f"{name:>4} {rows:5} rows: {words}", flush=True)
    if rank == 0:
        about = {
            "gpu": torch.cuda.get_device_name(0),
            "torch": torch.__version__,
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "world": size,
            "vocab": arguments.vocab,
        }
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump({"about": about, "results": results}, file, indent=1)
        wrong = [one for one in results if one["wrong_ranks"]]
        print(about)
        print("all tokens are those of one GPU" if not wrong else f"WRONG: {wrong}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (arguments.world, port, arguments), nprocs=arguments.world)


if __name__ == "__main__":
    main()
