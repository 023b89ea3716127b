"""Distinct keys of several GPUs: `python examples/unique_ranks.py [--world 2] [--keys 1000000000]`.

Each rank of a process group has keys, and in the end the distinct keys of one range, so that the ranges
of all ranks, one after another, are what `unique` makes of all keys on one device:

1. **Sample.** All ranks gather some keys of each, and cut the sorted sample into ranges that hold equal
   numbers of it. Keys that are a large part of the sample are known to all ranks then, and are not sent.
2. **Split.** Each rank puts its keys in the order of the ranges.
3. **Exchange.** One all-to-all sends each key to the rank of its range.
4. **Unique.** Each rank calls `unique` for what it received.

By NCCL on GPUs, and with `--device cpu` by Gloo. Prints the seconds of each part and gigabytes of keys per
second, beside `unique` of all keys on one device (`--alone`) and beside an all-to-all of the same size
alone, which is the limit of the link.
"""

import argparse
import os
import socket
import time

os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

import torch
import torch.distributed as dist

import spec_ops.torch

#: Keys of the sample for each range.
SAMPLE = 1024
#: A key is not sent if it is at least this part of what a range holds on the average.
HEAVY = 1 / 4


class Clock:
    """The seconds of parts: each lasts from the end of the one before, on all ranks."""

    def __init__(self, device, group=None):
        self.device, self.group, self.seconds = device, group, {}
        self.last = self.now()

    def now(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        dist.barrier(self.group)
        return time.perf_counter()

    def lap(self, name):
        before, self.last = self.last, self.now()
        self.seconds[name] = self.last - before


def all_gather(own, group):
    """The tensors of all ranks, which have the same shape, `[size, ..]`."""
    made = own.new_empty((dist.get_world_size(group), *own.shape))
    dist.all_gather(list(made.unbind(0)), own, group)
    return made


def ranges(keys, group=None):
    """The first keys of all ranges except the first range, and the keys that are too frequent to be
    sent; both ascending, and the same on all ranks."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    counts = all_gather(torch.tensor([len(keys)], device=keys.device), group).flatten().tolist()
    total = max(sum(counts), 1)
    # A rank's part of the sample is its part of the keys.
    parts = [-(-SAMPLE * size * count // total) for count in counts]
    own = keys.new_zeros(max(parts))
    if len(keys):
        at = torch.randint(len(keys), (parts[rank],), device=keys.device)
        own[: parts[rank]] = keys[at]
    gathered = all_gather(own, group)
    sample = torch.cat([found[:part] for found, part in zip(gathered, parts)]).sort().values
    values, times = torch.unique_consecutive(sample, return_counts=True)
    frequent = times * size >= len(sample) * HEAVY
    sample = sample[~frequent.repeat_interleave(times)]
    if len(sample) == 0:
        # Any ranges will do.
        return keys.new_zeros(size - 1), values[frequent]
    at = torch.arange(1, size, device=keys.device) * len(sample) // size
    return sample[at], values[frequent]


def split(keys, cuts, frequent):
    """The keys of each range, without frequent ones."""
    for key in frequent.tolist():
        keys = keys[keys != key]
    parts = []
    for first in reversed(range(len(cuts))):
        is_behind = keys >= cuts[first]
        parts.append(keys[is_behind])
        keys = keys[~is_behind]
    return [keys, *reversed(parts)]


def exchange(parts, group=None):
    """The keys of this rank's range, from all ranks."""
    sent = torch.tensor([len(part) for part in parts], device=parts[0].device)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    received, sent = received.tolist(), sent.tolist()
    made = parts[0].new_empty(sum(received))
    dist.all_to_all_single(made, torch.cat(parts), received, sent, group)
    return made


def distinct(keys, group=None, clock=None):
    """The distinct keys of this rank's range, ascending. ``keys`` is `[n]` of i64 or i32, with another
    ``n`` on each rank."""
    lap = clock.lap if clock else lambda name: None
    cuts, frequent = ranges(keys, group)
    lap("sample")
    parts = split(keys, cuts, frequent)
    lap("split")
    found = exchange(parts, group)
    lap("exchange")
    own = torch.bucketize(frequent, cuts, right=True) == dist.get_rank(group)
    if own.any():
        found = torch.cat([found, frequent[own]])
    made = spec_ops.torch.unique(found)
    found = made.unique[: int(made.count)]
    lap("unique")
    return found


def keys_of(rank, arguments, device):
    """The keys of a rank, the same in every run."""
    generator = torch.Generator(device).manual_seed(rank)
    bounds = [arguments.keys * at // arguments.world for at in (rank, rank + 1)]
    most = max(arguments.keys // 2, 1)
    keys = torch.randint(-most, most, (bounds[1] - bounds[0],), generator=generator, device=device)
    if arguments.kind == "equal":
        keys.fill_(7)
    elif arguments.kind == "skewed":
        # Nine of ten keys are one of a few, and of the others small ones are frequent.
        keys = torch.where(keys % 10 == 0, (keys / most * 1000).long() ** 3, keys % 3)
    return keys.to(torch.int32) if arguments.bits == 32 else keys


def link(each, dtype, device):
    """The seconds of an all-to-all in which every rank sends `each` keys to every rank."""
    of, to = torch.zeros((2, each * dist.get_world_size()), dtype=dtype, device=device)
    dist.all_to_all_single(to, of)
    clock = Clock(device)
    dist.all_to_all_single(to, of)
    clock.lap("link")
    return clock.seconds["link"]


def run(rank, port, arguments):
    """What a rank does."""
    size, on_gpu = arguments.world, arguments.device == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=size,
        device_id=device if on_gpu else None,
    )
    keys = keys_of(rank, arguments, device)
    bytes_of_keys = arguments.keys * keys.element_size()
    say = print if rank == 0 else lambda *words, **named: None
    for turn in range(arguments.turns):
        clock = Clock(device)
        found = distinct(keys, clock=clock)
        whole = sum(clock.seconds.values())
        counts = all_gather(torch.tensor([len(found)], device=device), None).flatten().tolist()
        parts = ", ".join(f"{name} {seconds:.4f}" for name, seconds in clock.seconds.items())
        say(
            f"{arguments.keys} {arguments.kind} keys of {keys.element_size()} bytes on {size} ranks: "
            f"{whole:.4f} s ({parts}), {bytes_of_keys / whole / 1e9:.2f} GB/s; "
            f"{sum(counts)} distinct keys, by rank {counts}"
        )
    each = arguments.keys // size // size
    seconds = link(each, keys.dtype, device)
    sent = each * (size - 1) * keys.element_size()
    say(f"an all-to-all alone: {seconds:.4f} s, {sent / seconds / 1e9:.2f} GB/s from each rank")
    if rank == 0 and (arguments.alone or arguments.check):
        every = torch.cat([keys_of(other, arguments, device) for other in range(size)])
        for turn in range(2):
            start = time.perf_counter()
            made = spec_ops.torch.unique(every)
            alone = made.unique[: int(made.count)]
            whole = time.perf_counter() - start
        say(f"one device: {whole:.4f} s, {bytes_of_keys / whole / 1e9:.2f} GB/s; {len(alone)} keys")
    if arguments.check:
        gathered = [None] * size
        dist.all_gather_object(gathered, found.cpu())
        if rank == 0 and not torch.equal(torch.cat(gathered), alone.cpu()):
            raise SystemExit("WRONG: the ranges of all ranks are not the distinct keys")
        say("the ranges of all ranks are the distinct keys")
    dist.barrier()
    dist.destroy_process_group()


def main():
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--keys", type=int, default=10**9, help="of all ranks together")
    parser.add_argument("--kind", choices=["uniform", "skewed", "equal"], default="uniform")
    parser.add_argument("--bits", type=int, choices=[32, 64], default=64)
    parser.add_argument("--turns", type=int, default=3, help="the first makes the connections")
    parser.add_argument("--alone", action="store_true", help="also all keys on the first GPU")
    parser.add_argument("--check", action="store_true", help="compares with all keys on one device")
    arguments = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (port, arguments), nprocs=arguments.world)


if __name__ == "__main__":
    main()
