"""`spec_ops.torch.sample_sharded`: ranks that each have some columns choose the token of the row.

Processes of `torch.distributed` on the CPU, by Gloo. `bench/sharded.py` runs it by NCCL.
"""

import socket

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch lacks torch.distributed", allow_module_level=True)

import spec_ops
import spec_ops.torch

ROWS, VOCAB = 24, 301

#: The first column of each rank, and the end.
SPLITS = {2: [0, 100, VOCAB], 3: [0, 1, 170, VOCAB]}


def whole_rows(dtype):
    """Logits of whole rows, some of them equal, with a row of NaN and one without a finite logit."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(ROWS, VOCAB, generator=generator) * 3
    logits[::3] = logits[::3].round()
    logits[4], logits[5] = torch.nan, -torch.inf
    logits[6, 150], logits[7, 250] = torch.nan, torch.inf
    return logits.to(dtype)


def options():
    """The arguments of all ranks."""
    rows = torch.arange(ROWS)
    mask = torch.full((ROWS, -(-VOCAB // 32)), -1, dtype=torch.int32)
    mask[8, :9] = 0
    mask[9] = 0x5A5A5A5A
    temperature = torch.where(rows % 5 == 0, 0.0, 0.9)
    drawn = rows * 7, temperature, (rows * 1_000_003).view(torch.uint64)
    forced = torch.where(rows == 11, 299, -1).to(torch.int32)
    return drawn, {"mask": mask, "min_p": torch.full((ROWS,), 0.01), "forced": forced}


def run(rank, size, port, failures):
    """What a rank does: every way, compared with a call for the whole rows."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    try:
        for dtype in (torch.float32, torch.bfloat16):
            logits = whole_rows(dtype)
            first, end = SPLITS[size][rank : rank + 2]
            (positions, temperature, seeds), given = options()
            drawn = positions, temperature, seeds
            shard = logits[:, first:end]
            where = {"first_token": first, "vocab": VOCAB}
            for way, filters in [
                ("winners", {}),
                (None, {}),
                ("gather", {"top_k": 20, "top_p": 0.9}),
                ("candidates", {"top_k": 20, "top_p": 0.9}),
            ]:
                whole = spec_ops.sample_logits(logits, *drawn, **given, **filters).tokens
                tokens = spec_ops.torch.sample_sharded(
                    shard, None, *drawn, way=way, **where, **given, **filters
                )
                same = tokens == whole
                if way == "candidates":
                    # Rows without a logit above negative infinity are a corner.
                    same[4], same[5] = True, True
                if not same.all():
                    failures.put((rank, way, dtype, tokens.tolist(), whole.tolist()))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("size", SPLITS)
def test_ranks_choose_the_token_of_the_whole_row(size):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    failures = context.SimpleQueue()
    torch.multiprocessing.spawn(run, (size, port, failures), nprocs=size)
    assert failures.empty(), failures.get()


def test_what_a_way_cannot_do_is_refused():
    logits, positions = torch.zeros(2, 8), torch.arange(2)
    way = spec_ops.torch.sample_sharded
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="neither top_k nor top_p"):
            way(logits, None, positions, 1.0, 0, way="winners", top_k=3)
        with pytest.raises(ValueError, match="top_k of 1 to 64"):
            way(logits, None, positions, 1.0, 0, way="candidates", top_k=65)
        with pytest.raises(ValueError, match="no way 'guess'"):
            way(logits, None, positions, 1.0, 0, way="guess")
    finally:
        torch.distributed.destroy_process_group()
