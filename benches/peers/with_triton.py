#!/usr/bin/env python3
"""Times Triton kernels of the router and of rejection sampling, as users write them.

    pip install torch triton numpy
    python3 benches/peers/with_triton.py --json triton.json

The router is a program a token. Rejection sampling splits each row of the vocabulary
over several programs, and a second kernel puts their results together. Without
Triton or a GPU it says so and does nothing.
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
