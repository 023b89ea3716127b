#!/usr/bin/env python3
"""Times what SGLang runs in the place of `draft_tree` and `hot_slots` on a GPU.

    pip install torch numpy                             # and nvcc of CUDA 12 or later
    python3 benches/peers/with_sglang.py --json sglang.json

SGLang need not be installed: sglang_kernels.cu has the algorithms of its kernels in other words.
nvcc compiles that file for the GPU that is there. Calls are captured into a CUDA graph. Without
nvcc, PyTorch or a GPU it says so and does nothing. The files of SGLang that were read are under
python/sglang: srt/speculative/eagle_utils.py, and under kernels/jit
include/sgl_kernel/speculative/eagle.cuh (commit 964b274a) and csrc/kvcacheio/hisparse.cuh (17aa8a06).

`draft_tree`: organize_draft_results in torch, then build_tree_kernel_efficient. SGLang has no
budget of the batch and no packed rows, and its draft model's steps have already multiplied the
shares, so it does less. Its mask is that of nodes alone (QLEN_ONLY), the one that costs least for
65 nodes. A group of its candidates has one parent, where the rows here have a parent for each
candidate, so groups are of one candidate, except for the first. Of chains, SGLang keeps ready what
organize_draft_results would give, so that function is not timed for them. A second name times the
kernel alone, and the fill of links that it needs.

`hot_slots`: the kernel of load_cache_to_device_buffer_mla (HiSparse) that lists the copies and
makes none (RecordMissPlan and SkipIO), with SGLang's default of 960 threads. It looks up where each
miss lies in host memory, which `hot_slots` leaves to the copy. It has an order of last use where
`hot_slots` has ages: misses take the same slots, each another one of them. The branch for texts
that fit into the buffer is left out. Each call of a sample has a state of its own, which is fresh,
as in `spec-bench`.
"""

import ctypes
import functools
import itertools
import subprocess
import sys
import tempfile
from pathlib import Path

import inputs
from common import HERE, Skip, device, main, module
from with_cub import compiler
from with_torch import Gpu

# The numbers of wanted entries and of slots for which sglang_kernels.cu has a kernel.
SIZES = {(2048, 4096), (8192, 16384)}


@functools.cache
def library(nvcc, architecture):
    """sglang_kernels.cu, compiled and loaded."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "libsglang_kernels.so"
        options = ["-O3", "-std=c++17", f"-arch={architecture}", "-shared", "-Xcompiler", "-fPIC"]
        subprocess.run([nvcc, *options, "-o", path, HERE / "sglang_kernels.cu"], check=True)
        found = ctypes.CDLL(str(path))
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    found.sglang_build_tree.argtypes = [*[pointer] * 8, *[number] * 6, pointer]
    found.sglang_swap_in.argtypes = [*[pointer] * 12, *[number] * 3, wide, wide, pointer]
    return found


class Fresh(Gpu):
    """Times calls that change a state, of which each call of a sample has a copy of its own."""

    def __init__(self, torch, quick, state):
        super().__init__(torch, quick)
        self.state = state
        self.provide(1)

    def provide(self, calls):
        self.copies = [tuple(array.clone() for array in self.state) for _ in range(calls)]
        self.turns = itertools.cycle(self.copies)

    def plan(self, once):
        samples, calls = super().plan(once)
        self.provide(calls)
        return samples, calls

    def events(self, work):
        for copy in self.copies:
            for array, fresh in zip(copy, self.state):
                array.copy_(fresh)
        return super().events(work)


class Tree:
    """A row of `draft_tree` as SGLang's functions take it: lists of a tensor for each step of the
    draft model. A group of candidates has its parent in `parents_list`."""

    def __init__(self, torch, kernels, row):
        self.torch, self.kernels = torch, kernels
        self.given = given = inputs.DraftTrees(row)
        self.topk = topk = 1 if given.chain else given.WIDTH
        self.steps, self.nodes = given.candidates // topk, given.drafts + 1
        on_gpu = lambda array: torch.from_numpy(array).cuda()
        self.seq_lens = on_gpu(inputs.load(row, "starts").astype("int64"))
        self.bonus_tokens = torch.zeros_like(self.seq_lens)
        of_steps = lambda array: [part.contiguous() for part in on_gpu(array).split(topk, dim=1)]
        self.token_list = of_steps(given.tokens)
        scores = given.survivals(given.shares.dtype)
        self.score_list = [part.unsqueeze(1) for part in of_steps(scores)]
        # A step's tensor has the parents of the next step's candidates, so the last tensor is never
        # read. The first one begins with the root.
        first, *others = of_steps(given.parents.astype("int64") - 1)
        self.parents_list = [*others, torch.empty_like(first)]
        root = torch.full_like(first[:, :1], -1)
        self.parents_list[0] = torch.cat((root, self.parents_list[0]), dim=1)

    def organize_draft_results(self):
        torch = self.torch
        scores = torch.cat(self.score_list, dim=1).flatten(1)
        tokens = torch.cat(self.token_list, dim=1)
        picked = torch.topk(scores, self.nodes - 1, dim=-1).indices
        picked = torch.sort(picked).values
        drafts = torch.gather(tokens, index=picked, dim=1)
        return torch.cat(self.parents_list[:-1], dim=1), picked, drafts

    def tensors(self):
        """What the kernel writes to: a mask, positions, and links that are -1."""
        torch, nodes, batch = self.torch, self.nodes, self.given.batch
        mask = torch.full((batch * nodes * nodes,), True, dtype=torch.bool, device="cuda")
        links = torch.full((3, batch, nodes), -1, dtype=torch.long, device="cuda")
        positions = torch.empty((batch * nodes,), dtype=torch.long, device="cuda")
        return mask, positions, links

    def kernel(self, parents, picked, mask, positions, links):
        stream = self.torch.cuda.current_stream().cuda_stream
        arrays = (parents, picked, self.seq_lens, mask, positions, *links)
        sizes = (self.given.batch, self.topk, 1, self.steps, self.nodes, False)
        pointers = (array.data_ptr() for array in arrays)
        error = self.kernels.sglang_build_tree(*pointers, *sizes, stream)
        assert error == 0, f"cudaError_t {error}"

    def build_tree_kernel_efficient(self, parents, picked, drafts):
        tokens = self.torch.cat((self.bonus_tokens.unsqueeze(1), drafts), dim=1).flatten()
        made = self.tensors()
        self.kernel(parents, picked, *made)
        return picked, tokens, *made

    def check(self, picked, tokens, mask, positions, links):
        of_nodes = lambda array: array.view(self.given.batch, self.nodes, -1).squeeze(-1)
        arrays = (picked, of_nodes(tokens), of_nodes(mask), of_nodes(positions), *links)
        picked, tokens, mask, positions, index, *links = (array.cpu().numpy() for array in arrays)
        assert (index.flatten() == range(index.size)).all(), "other indices"
        return self.given.check_trees(picked, tokens, mask, positions, *links)


class Sglang:
    """What SGLang runs for a row."""

    name = "SGLang, transcribed"
    names = {
        "draft_tree": "SGLang's draft tree, transcribed",
        "hot_slots": "SGLang's HiSparse, transcribed",
    }

    def __init__(self, torch, nvcc, options):
        self.torch, self.quick = torch, options.quick
        major, minor = torch.cuda.get_device_capability(0)
        self.kernels = library(nvcc, f"sm_{major}{minor}")
        version = subprocess.run([nvcc, "--version"], check=True, capture_output=True, text=True)
        self.device = device(torch.cuda.get_device_name(0), "cuda:0")
        nvcc_version = version.stdout.rsplit("release ")[-1].split(",")[0]
        self.versions = {"nvcc": nvcc_version, "torch": torch.__version__}

    def release(self):
        self.torch.cuda.empty_cache()

    def draft_tree(self, row):
        tree, gpu = Tree(self.torch, self.kernels, row), Gpu(self.torch, self.quick)
        ready = tree.organize_draft_results() if tree.given.chain else None

        def call(_):
            return tree.build_tree_kernel_efficient(*ready or tree.organize_draft_results())

        return lambda: gpu.time(call), lambda: tree.check(*gpu.last[1]), tree.given.bytes

    def hot_slots(self, row):
        torch, given = self.torch, inputs.Slots(row)
        (batch, m), (_, h) = given.wanted.shape, given.resident.shape
        if (m, h) not in SIZES:
            raise Skip("its kernel is compiled for other sizes")
        here = {"device": "cuda"}
        on_gpu = lambda array: torch.from_numpy(array).cuda()
        wanted, resident, order = on_gpu(given.wanted), on_gpu(given.resident), given.order()
        # The newest token, which no row wants, is in a slot behind the others.
        newest = int(max(given.wanted.max(), given.resident.max())) + 1
        held = torch.nn.functional.pad(resident, (0, 1), value=newest)
        places = torch.arange(held.numel(), dtype=torch.int32, **here).view_as(held)
        host_places = torch.arange(batch * newest, **here).view(batch, newest)
        requests = torch.arange(batch, **here)
        lengths = torch.full_like(requests, newest + 1)
        real = torch.full((1,), batch, dtype=torch.int32, **here)
        found, copy_to = torch.full((2, batch, m), -1, dtype=torch.int32, **here)
        copy_from = torch.full((batch, m), -1, **here)
        copies = torch.empty(batch, dtype=torch.int32, **here)
        gpu = Fresh(torch, self.quick, (held, on_gpu(order.astype("int16"))))
        sizes = (batch, m, h, held.stride(0), host_places.stride(0))

        def call(_):
            held, order = next(gpu.turns)
            of_rows = (host_places, places, found, requests, lengths, order, real)
            arrays = (wanted, held, *of_rows, copy_from, copy_to, copies)
            pointers = (array.data_ptr() for array in arrays)
            stream = torch.cuda.current_stream().cuda_stream
            error = self.kernels.sglang_swap_in(*pointers, *sizes, stream)
            assert error == 0, f"cudaError_t {error}"

        def check():
            for copy in gpu.copies:
                assert all(map(torch.equal, copy, gpu.copies[0])), "calls differ"
            rows = requests[:, None]
            held, order = gpu.copies[0]
            slots, fetch_slots = found - rows * (h + 1), copy_to - rows * (h + 1)
            positions = copy_from - rows * newest
            arrays = (slots, positions, fetch_slots, copies, held[:, :h], order)
            return given.check_in_order(*(array.cpu().numpy() for array in arrays))

        return lambda: gpu.time(call), check, row.memory


class Kernel(Sglang):
    """The kernel of trees alone."""

    names = {"draft_tree": "SGLang's build_tree kernel, transcribed"}
    hot_slots = None

    def draft_tree(self, row):
        tree, gpu = Tree(self.torch, self.kernels, row), Gpu(self.torch, self.quick)
        made = tree.build_tree_kernel_efficient(*tree.organize_draft_results())
        parents, picked, _ = tree.organize_draft_results()
        *_, mask, positions, links = made

        def call(_):
            links.fill_(-1)
            tree.kernel(parents, picked, mask, positions, links)

        return lambda: gpu.time(call), lambda: tree.check(*made), tree.given.bytes


def made(kind, options):
    torch, nvcc = module("torch"), compiler()
    if torch is None or module("numpy") is None:
        return None
    if not torch.cuda.is_available():
        print("skipped: SGLang's kernels have no GPU", file=sys.stderr)
        return None
    if nvcc is None:
        print("skipped: SGLang's kernels: there is no nvcc", file=sys.stderr)
        return None
    try:
        return kind(torch, nvcc, options)
    except subprocess.CalledProcessError as error:
        print(f"skipped: SGLang's kernels: nvcc does not compile them: {error}", file=sys.stderr)
        return None


peers = [functools.partial(made, kind) for kind in (Sglang, Kernel)]


if __name__ == "__main__":
    main(__doc__, *peers)
