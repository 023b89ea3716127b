#!/usr/bin/env python3
"""Times FlashInfer's kernels, where it does an operator's work.

    pip install flashinfer-python torch numpy
    python3 benches/peers/with_flashinfer.py --json flashinfer.json

The router is timed without and with programmatic dependent launch. Sampling is timed from
logits, with the temperature that the rows have, and as its kernels for clusters do it, which
start from probabilities: without the softmax that gives them, and with it. FlashInfer draws its
own random numbers; rejection sampling is given inputs that leave it no choice of what to reject.
Without FlashInfer or a GPU it says so and does nothing.
"""

import functools
import itertools
import sys

import inputs
from common import Skip, device, main, module
from with_torch import Gpu, turns_of, wanted

# Its sigmoid is made of the processor's tanh, which has a relative error of 2^-11.
SCORE_ERROR = 2.0**-12 + 1e-6
TEMPERATURE, TOP_K = 0.8, 50
TOP_P = {"top-k-p": 0.9, "top-p": 0.9, "top-p-0.999999": 0.999999}


class FlashInfer:
    """What all of these share."""

    names = {}

    def __init__(self, torch, flashinfer, options):
        self.torch, self.flashinfer = torch, flashinfer
        self.gpu = Gpu(torch, options.quick)
        self.device = device(torch.cuda.get_device_name(0), "cuda:0")
        self.versions = {"flashinfer": flashinfer.__version__, "torch": torch.__version__}
        # As tensors, which a graph can be captured with; many, since what is drawn decides
        # how far some kernels read.
        numbers = torch.arange(65, device="cuda")[:, None]
        self.seeds = itertools.cycle(numbers[1:])
        self.offset = numbers[0]

    def release(self):
        self.gpu.last = None
        self.torch.cuda.empty_cache()

    def random(self):
        return {"seed": next(self.seeds), "offset": self.offset}

    def route(self, row, dependent):
        torch, tokens = self.torch, row.numbers[0]
        given = inputs.Router(row)
        if not given.usual:
            raise Skip("the kernel is for DeepSeek-V3's routing")
        x, bias = (torch.from_numpy(array).cuda() for array in (given.x, given.bias))
        x = x.to(torch.bfloat16) if row.kind == "bf16" else x
        weights = torch.empty((tokens, 8), dtype=x.dtype, device="cuda")
        experts = torch.empty((tokens, 8), dtype=torch.int32, device="cuda")
        route = self.flashinfer.fused_moe.fused_topk_deepseek

        def call(_):
            route(x, bias, 8, 4, 8, 2.5, weights, experts, launch_with_pdl=dependent)

        def check():
            found = weights.double().cpu().numpy(), experts.cpu().numpy()
            rounding = 2.0**-8 if x.dtype == torch.bfloat16 else 1e-6
            return given.check_near(x.float().cpu().numpy(), *found, SCORE_ERROR, rounding)

        size = x.numel() * x.element_size() + tokens * 64
        return lambda: self.gpu.time(call), check, size

    def sample(self, row, prepare, draw, words):
        """Times `draw` of what `prepare` makes of the logits."""
        torch = self.torch
        values = inputs.logits(row)
        x = torch.from_numpy(values).cuda()
        x = x.to(torch.bfloat16) if "bf16" in row.kind else x
        turns = turns_of(row.memory, row.memory)
        copies = [prepare(x)] + [prepare(x.clone()) for _ in range(turns - 1)]

        def check():
            kept = TOP_K if words == "top-k-p" else values.shape[1]
            tokens = self.gpu.last[1].cpu().numpy()
            return inputs.check_tokens(x.float().cpu().numpy(), tokens, kept)

        return lambda: self.gpu.time(lambda turn: draw(copies[turn]), turns), check, row.memory

    def probabilities(self, logits):
        return self.flashinfer.sampling.softmax(logits, temperature=TEMPERATURE)

    def in_clusters(self, probabilities):
        sample = self.flashinfer.cake_top_k_top_p_sampling_from_probs
        return sample(probabilities, TOP_K, TOP_P["top-k-p"])


class Plain(FlashInfer):
    """An operator as most users call it."""

    name = "FlashInfer"
    names = {
        "topk_router": "FlashInfer fused_topk_deepseek",
        "rejection_sample": "FlashInfer chain_speculative_sampling",
    }

    def topk_router(self, row):
        return self.route(row, False)

    def rejection_sample(self, row):
        torch = self.torch
        if "argmax" in row.kind:
            raise Skip("it draws what it recovers")
        if "all accepted" in row.kind:
            raise Skip("it draws the bonus, which that row is given")
        given = inputs.Rejection(row)
        batch, drafts, vocab = given.batch, given.drafts, given.vocab
        turns = turns_of(row.memory, given.bytes)
        # Whatever it draws, it rejects what the row rejects.
        tokens = range(0, batch * drafts, drafts) + given.rejected
        given.target[tokens, given.ids[tokens]] = 0
        ids = torch.from_numpy(given.ids).cuda().view(batch, drafts)
        draft = torch.from_numpy(given.draft).cuda().view(batch, drafts, vocab)
        # The last of each request would be the bonus's, which no request reaches.
        target = torch.zeros((batch, drafts + 1, vocab), device="cuda")
        target[:, :drafts] = torch.from_numpy(given.target).cuda().view(batch, drafts, vocab)
        copies = [(draft, target)] + [(draft.clone(), target.clone()) for _ in range(turns - 1)]
        sample = self.flashinfer.sampling.chain_speculative_sampling
        # It adds to these; new ones are two kernels more in every call.
        counts = [torch.zeros(batch, dtype=torch.int32, device="cuda") for _ in range(2)]

        def call(turn):
            draft, target = copies[turn]
            return sample(draft, ids, target, *counts, **self.random())[0]

        def check():
            words = given.check(self.gpu.last[1].cpu().numpy())
            return f"{words}; what a row rejects is certain"

        return lambda: self.gpu.time(call, turns), check, given.bytes

    def sample_logits(self, row):
        sampling = self.flashinfer.sampling
        words = row.kind.split(", ")[0]

        def draw(logits):
            if words in ("top-p", "top-p-0.999999"):
                chances = self.probabilities(logits)
                return sampling.top_p_sampling_from_probs(chances, TOP_P[words], **self.random())
            scaled = logits.float() / TEMPERATURE
            if words == "plain":
                return sampling.sampling_from_logits(scaled, **self.random())
            top_p = TOP_P[words]
            return sampling.top_k_top_p_sampling_from_logits(scaled, TOP_K, top_p, **self.random())

        if words == "greedy":
            raise Skip("it has no kernel for the largest")
        if words == "min-p" or wanted(row):
            raise Skip("it is timed for one token by top-k, top-p or neither")
        return self.sample(row, lambda logits: logits, draw, words)


class Dependent(FlashInfer):
    """The router, which may start before the call before it has ended."""

    name = "FlashInfer fused_topk_deepseek, dependent launch"

    def topk_router(self, row):
        return self.route(row, True)


class Clusters(FlashInfer):
    """Radix selection by clusters of blocks, of probabilities that are there."""

    name = "FlashInfer cake, from probabilities"

    def sample_logits(self, row):
        if not row.kind.startswith("top-k-p"):
            raise Skip("it is for top-k and top-p")
        if "bf16" in row.kind:
            raise Skip("its probabilities are f32")
        return self.sample(row, self.probabilities, self.in_clusters, "top-k-p")


class SoftmaxClusters(FlashInfer):
    """The same, of logits."""

    name = "FlashInfer softmax and cake"

    def sample_logits(self, row):
        if not row.kind.startswith("top-k-p"):
            raise Skip("it is for top-k and top-p")
        draw = lambda logits: self.in_clusters(self.probabilities(logits))
        return self.sample(row, lambda logits: logits, draw, "top-k-p")


@functools.cache
def packages():
    """PyTorch and FlashInfer, or None and one line that says what is not there."""
    torch = module("torch")
    if torch is None or module("numpy") is None:
        return None
    if not torch.cuda.is_available():
        print("skipped: flashinfer has no GPU", file=sys.stderr)
        return None
    flashinfer = module("flashinfer", "flashinfer-python")
    return flashinfer and (torch, flashinfer)


def made(kind, options):
    there = packages()
    return there and kind(*there, options)


peers = [
    functools.partial(made, kind) for kind in (Plain, Dependent, Clusters, SoftmaxClusters)
]


if __name__ == "__main__":
    main(__doc__, *peers)
