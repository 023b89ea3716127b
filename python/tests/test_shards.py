"""`spec_ops.torch.sample_sharded`: ranks that each have some columns choose the token of the row.

Processes of `torch.distributed` on the CPU, by Gloo. `bench/sharded.py` runs it by NCCL.
"""

import pytest
from conftest import free_port, on_ranks

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
            tokens = spec_ops.torch.sample_sharded(shard, None, *drawn, way="finishers", **where)
            if not torch.equal(tokens, spec_ops.sample_logits(logits, *drawn).tokens):
                failures.put((rank, "finishers", dtype, tokens.tolist()))
            for way, filters in [
                ("winners", {}),
                (None, {}),
                ("gather", {"top_k": 20, "top_p": 0.9}),
                ("candidates", {"top_k": 20, "top_p": 0.9}),
                ("candidates", {"top_k": torch.arange(ROWS, dtype=torch.int32) + 1}),
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


def run_finishers(rank, size, port, failures):
    """What a rank does: one all-gather for rows of many kinds, of which a few are not certain."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=size)
    try:
        generator, rows, uncertain = torch.Generator().manual_seed(1), torch.arange(512), 0
        for round in range(8):
            wide = 0.5 + torch.rand(512, 1, generator=generator) * 8
            logits = torch.randn(512, VOCAB, generator=generator) * wide
            # Logits that are equal, and a rank whose logits are so small that few of them count.
            logits = logits.round() if round % 3 == 0 else logits
            first, end = SPLITS[size][rank : rank + 2]
            logits[:, : SPLITS[size][1]] -= torch.rand(512, 1, generator=generator) * 40 * (round % 2)
            temperature = torch.where(rows % 7 == 0, 0.0, 0.1 + torch.rand(512, generator=generator))
            drawn = rows + 512 * round, temperature, rows.view(torch.uint64)
            whole = spec_ops.sample_logits(logits, *drawn).tokens
            shard = logits[:, first:end]
            options = {"first_token": first, "requests": rows.to(torch.int32)}
            tokens, certain = spec_ops.torch.sample_once(shard, None, *drawn, **options)
            uncertain += int((~certain).sum())
            all_tokens = spec_ops.torch.sample_sharded(
                shard, None, *drawn, vocab=VOCAB, way="finishers", **options
            )
            if (tokens != whole)[certain].any() or not torch.equal(all_tokens, whole):
                failures.put((rank, round, certain.tolist(), tokens.tolist(), whole.tolist()))
        if not 0 < uncertain < 100:
            failures.put((rank, "uncertain", uncertain))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("of_rank", [run, run_finishers])
@pytest.mark.parametrize("size", SPLITS)
def test_ranks_choose_the_token_of_the_whole_row(size, of_rank):
    on_ranks(of_rank, size, size)


@pytest.mark.parametrize("behind, is_certain", [(1e-5, False), (1e-4, True)])
def test_nearly_equal_times_are_not_certain(behind, is_certain):
    """Two ranks have sent four finishers each. The last of one rank is behind the first of the other
    by a share of its time: a token that the rank kept for itself may be before it by rounding."""
    tokens = torch.arange(200, dtype=torch.int32)
    position = torch.zeros(200, dtype=torch.int64)
    noise = spec_ops.sample_logits(
        torch.zeros(200, 1), position, 1.0, 5, token_ids=tokens.unsqueeze(1), winners=True
    ).winners
    noise = (noise >> 32).to(torch.int32).view(torch.float32)
    slow, fast = tokens[noise > 3], tokens[noise < 1.5]
    sent = torch.stack([torch.cat([fast[:4], slow[:1]]), torch.cat([fast[4:8], slow[1:2]])])
    times = torch.tensor([[2.0, 2.1, 2.2, 2.3], [2.0 * (1 + behind)] * 4])
    # A token with this logit finishes at this time, as the largest logit is 0.
    values = (noise[sent[:, :4].long()] / times).log()
    values = torch.cat([values, torch.zeros(2, 1)], dim=1)
    token, certain = spec_ops._torch_finishers._settled(
        values.flatten(), sent.flatten(), position[:1], 1.0, 5, None, 2
    )
    assert certain.tolist() == [is_certain] and token.tolist() == sent[:1, 0].tolist()


def test_what_a_way_cannot_do_is_refused():
    logits, positions = torch.zeros(2, 8), torch.arange(2)
    way = spec_ops.torch.sample_sharded
    address = f"tcp://127.0.0.1:{free_port()}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="neither top_k nor top_p"):
            way(logits, None, positions, 1.0, 0, way="winners", top_k=3)
        with pytest.raises(ValueError, match="top_k of 1 to 64"):
            way(logits, None, positions, 1.0, 0, way="candidates", top_k=65)
        with pytest.raises(ValueError, match="knows no mask, forced tokens or filters"):
            way(logits, None, positions, 1.0, 0, way="finishers", min_p=0.5)
        with pytest.raises(ValueError, match="no way 'guess'"):
            way(logits, None, positions, 1.0, 0, way="guess")
    finally:
        torch.distributed.destroy_process_group()
