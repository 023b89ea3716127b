#!/usr/bin/env python3
"""Times cupy.unique on a GPU.

    pip install cupy-cuda12x numpy      # or cupy-cuda13x
    python3 benches/peers/with_cupy.py --json cupy.json

It waits for the device, so no graph can hold it: events around several calls. Without
CuPy or a GPU it says so and does nothing.
"""

import sys

import inputs
from common import GPU_EFFORT, Skip, device, main, module


class Cupy:
    name = "cupy.unique"

    def __init__(self, cupy, options):
        self.cupy, self.quick = cupy, options.quick
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.device = device(properties["name"].decode(), "cuda:0")
        self.versions = {"cupy": cupy.__version__}

    def release(self):
        self.last = None
        self.cupy.get_default_memory_pool().free_all_blocks()

    def events(self, call, calls):
        cuda = self.cupy.cuda
        start, end = cuda.Event(), cuda.Event()
        start.record()
        for _ in range(calls):
            self.last = None
            self.last = call()
        end.record()
        end.synchronize()
        return cuda.get_elapsed_time(start, end) * 1e3 / calls

    def time(self, call):
        self.events(call, 2)
        once = min(self.events(call, 1) for _ in range(3)) * 1e-6
        samples, calls, budget = GPU_EFFORT[self.quick]
        calls = max(1, min(calls, int(budget / once / 5)))
        samples = min(max(3, int(budget / once / calls)), samples)
        times = [self.events(call, calls) for _ in range(samples)]
        return times, f"{calls} call{'s' if calls > 1 else ''}, events"

    def unique(self, row):
        cupy = self.cupy
        given = inputs.Keys(row, cupy)
        if given.inverse:
            raise Skip("torch.unique is timed with places")
        keys = given.keys()
        check = lambda: given.check(self.last)
        return lambda: self.time(lambda: cupy.unique(keys)), check, given.bytes


def peer(options):
    cupy = module("cupy")
    if cupy is None:
        return None
    try:
        if cupy.cuda.runtime.getDeviceCount() > 0:
            return Cupy(cupy, options)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(f"skipped: cupy: {error}", file=sys.stderr)
        return None
    print("skipped: cupy sees no GPU", file=sys.stderr)
    return None


if __name__ == "__main__":
    main(__doc__, peer)
