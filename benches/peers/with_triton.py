#!/usr/bin/env python3
"""Times Triton kernels of several operators, as users write them.

    pip install torch triton numpy
    python3 benches/peers/with_triton.py --json triton.json

The router is a program a token. Rejection sampling splits each row of the vocabulary
over several programs, and a second kernel puts their results together. Aligning counts
experts by atomics and scatters by them, in any order within a run, as SGLang does.
Selection is a radix select, a program a row. Without Triton or a GPU it says so and does
nothing.
"""

import sys

import inputs
from common import Skip, device, main, module
from with_torch import Gpu, turns_of

# Entries of a vocabulary that a program looks at.
SPLIT = 8192


class Triton:
    name = "Triton kernels"

    def __init__(self, torch, triton, options):
        import triton_kernels

        self.torch, self.triton, self.kernels = torch, triton, triton_kernels
        self.gpu = Gpu(torch, options.quick)
        self.device = device(torch.cuda.get_device_name(0), "cuda:0")
        self.versions = {"triton": triton.__version__, "torch": torch.__version__}

    def release(self):
        self.gpu.last = None
        self.torch.cuda.empty_cache()

    def topk_router(self, row):
        torch, tokens = self.torch, row.numbers[0]
        given = inputs.Router(row)
        if not given.usual:
            raise Skip("the kernel is for DeepSeek-V3's routing")
        x, bias = (torch.from_numpy(array).cuda() for array in (given.x, given.bias))
        x = x.to(torch.bfloat16) if row.kind == "bf16" else x
        weights = torch.empty((tokens, 8), device="cuda")
        experts = torch.empty((tokens, 8), dtype=torch.int32, device="cuda")

        def call(_):
            self.kernels.route[(tokens,)](x, bias, weights, experts, tokens, 2.5, E=256, G=8, KEPT=4, K=8)

        def check():
            return given.check(x.float().cpu().numpy(), weights.cpu().numpy(), experts.cpu().numpy())

        size = x.numel() * x.element_size() + tokens * 64
        return lambda: self.gpu.time(call), check, size

    def rejection_sample(self, row):
        torch, triton = self.torch, self.triton
        given = inputs.Rejection(row)
        batch, drafts, vocab = given.batch, given.drafts, given.vocab
        turns = turns_of(row.memory, given.bytes)
        target, draft, ids, bonus, uniform = (
            torch.from_numpy(array).cuda()
            for array in (given.target, given.draft, given.ids, given.bonus, given.uniform)
        )
        copies = [(target, draft)] + [(target.clone(), draft.clone()) for _ in range(turns - 1)]
        parts = triton.cdiv(vocab, SPLIT)
        value = torch.empty((batch, parts), device="cuda")
        index = torch.empty((batch, parts), dtype=torch.int32, device="cuda")
        output = torch.empty((batch, drafts + 1), dtype=torch.int32, device="cuda")
        sizes = {"D": drafts, "P": triton.next_power_of_2(drafts + 1)}
        sample = given.recovery == "sample"

        def call(turn):
            target, draft = copies[turn]
            self.kernels.largest[(batch, parts)](
                target,
                draft,
                ids,
                uniform,
                value,
                index,
                vocab,
                7,
                SPLIT=SPLIT,
                BLOCK=4096,
                SAMPLE=sample,
                num_warps=8,
                **sizes,
            )
            self.kernels.emit[(batch,)](
                target,
                draft,
                ids,
                bonus,
                uniform,
                value,
                index,
                output,
                vocab,
                parts,
                PARTS=triton.next_power_of_2(parts),
                num_warps=1,
                **sizes,
            )

        check = lambda: given.check(output.cpu().numpy())
        return lambda: self.gpu.time(call, turns), check, given.bytes

    def moe_align(self, row):
        torch, triton = self.torch, self.triton
        picks, count = inputs.experts(row)
        size, flat = 64, picks.size
        if count & (count - 1):
            raise Skip("the kernel takes a power of two of experts")
        capacity = -(-(flat + count * (size - 1)) // size) * size
        blocks = capacity // size
        ids = torch.from_numpy(picks).cuda()
        work = torch.zeros(2, count, dtype=torch.int32, device="cuda")
        padded = torch.zeros(1, dtype=torch.int32, device="cuda")
        experts = torch.empty(blocks, dtype=torch.int32, device="cuda")
        sorted_ids = torch.empty(capacity, dtype=torch.int32, device="cuda")
        grid = (triton.cdiv(flat, 1024),)

        def call(_):
            work[0].zero_()
            sorted_ids.fill_(flat)
            self.kernels.count_picks[grid](ids, work[0], flat, BLOCK=1024)
            self.kernels.lay_runs[(triton.cdiv(blocks, 16),)](
                work[0], work[1], padded, experts, blocks, E=count, SIZE=size, BLOCK=16
            )
            self.kernels.place_picks[grid](ids, work[1], sorted_ids, flat, BLOCK=1024)

        def check():
            return inputs.check_runs(picks, count, size, sorted_ids.cpu().numpy(), padded.item())

        return lambda: self.gpu.time(call), check, row.memory

    def indexer_topk(self, row):
        torch = self.torch
        values = inputs.scores(row)
        x = torch.from_numpy(values).cuda()
        x = x.to(torch.bfloat16) if "bf16" in row.kind else x
        turns = turns_of(row.memory, row.memory)
        copies = [x] + [x.clone() for _ in range(turns - 1)]
        rows, columns = values.shape
        indices = torch.empty(rows, 2048, dtype=torch.int32, device="cuda")

        def call(turn):
            self.kernels.select_row[(rows,)](
                copies[turn], indices, columns, 2048, BLOCK=4096, num_warps=16
            )

        def check():
            return inputs.check_scores(x.float().cpu().numpy(), 2048, indices.cpu().numpy())

        return lambda: self.gpu.time(call, turns), check, row.memory


def peer(options):
    torch, triton = module("torch"), module("triton")
    if torch is None or triton is None or module("numpy") is None:
        return None
    if not torch.cuda.is_available():
        print("skipped: triton has no GPU", file=sys.stderr)
        return None
    return Triton(torch, triton, options)


if __name__ == "__main__":
    main(__doc__, peer)
