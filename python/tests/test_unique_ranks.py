"""The program examples/unique_ranks.py: ranges of ranks, one after another, are the distinct keys.

Processes of `torch.distributed` on the CPU, by Gloo.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import need, on_ranks

torch = need("torch", whole_file=True)
if not torch.distributed.is_available():
    pytest.skip("torch lacks torch.distributed", allow_module_level=True)

PROGRAM = Path(__file__).parents[1] / "examples/unique_ranks.py"
FEW = 20_000


def example():
    spec = importlib.util.spec_from_file_location("unique_ranks", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cases(size):
    """The keys of each rank, by name."""
    generator = torch.Generator().manual_seed(size)

    def some(count, low=-(10**12), high=10**12):
        return torch.randint(low, high, (count,), generator=generator)

    none = torch.empty(0, dtype=torch.int64)
    limits = torch.tensor([-(2**63), 2**63 - 1, 0, -1])
    skewed = [torch.cat([some(FEW), some(9 * FEW, 5, 8)]) for _ in range(size)]
    # The keys 5, 6 and 7 are nine tenths of all keys, and lie within one range.
    return {
        "uniform": [some(FEW) for _ in range(size)],
        "negative": [some(FEW, -(10**9), -5) for _ in range(size)],
        "limits": [torch.cat([some(100), limits]) for _ in range(size)],
        "skewed": skewed,
        "one rank has all": [some(FEW)] + [none] * (size - 1),
        "the first rank has none": [none] + [some(FEW, -500, 500) for _ in range(1, size)],
        "none": [none] * size,
        "one key": [none] * (size - 1) + [torch.tensor([3])],
        "all equal": [torch.full((FEW,), -7)] * size,
        "two keys": [torch.full((FEW,), rank % 2) for rank in range(size)],
        "ranks apart": [some(FEW, rank * 1000, rank * 1000 + 900) for rank in range(size)],
        "u8 in i32": [some(FEW, 0, 256).to(torch.int32) for _ in range(size)],
    }


def run(rank, size, port, failures):
    """What a rank does."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    try:
        module = example()
        for name, keys in cases(size).items():
            torch.manual_seed(rank)
            found = module.distinct(keys[rank])
            gathered = [None] * size
            torch.distributed.all_gather_object(gathered, found)
            whole = torch.unique(torch.cat(keys))
            if not torch.equal(torch.cat(gathered), whole):
                failures.put((rank, name, found[:10].tolist(), whole[:10].tolist()))
            cuts, frequent = module.ranges(keys[rank])
            received = len(module.exchange(module.split(keys[rank], cuts, frequent)))
            # Ranges hold about equal numbers of what is sent.
            if received > 1.4 * sum(map(len, keys)) / size + 50:
                failures.put((rank, name, "received", received))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_ranges_of_ranks_are_the_distinct_keys(size):
    on_ranks(run, size, size)


@pytest.mark.parametrize(("world", "keys"), [("3", "30001"), ("2", "30003")])
def test_the_program(world, keys):
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--keys", keys, "--check"]
    command += ["--world", world, "--turns", "1", "--kind", "skewed", "--bits", "32"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "GB/s" in done.stdout and "the ranges of all ranks are the distinct keys" in done.stdout
