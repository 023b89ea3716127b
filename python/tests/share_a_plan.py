"""Threads that share a plan: `python share_a_plan.py [--library torch] [--device cuda] ..`.

Each thread calls one plan of `unique` on keys of its own and compares every result. On a CUDA
device all threads enqueue on one stream, so a plan that let the kernels of two calls mix would
write by another call's counts: wrong keys, or memory of others.

The program needs spec_ops, the library of arrays, and nothing else. It ends with code 0 and a
line that says how many calls were compared.
"""

import argparse
import importlib
import threading
import time

import spec_ops


class Numpy:
    def __init__(self, device):
        self.module = importlib.import_module("numpy")

    def keys(self, seed, count):
        return self.module.random.default_rng(seed).integers(0, count, count)

    def stream(self):
        return None

    def same(self, result, expected):
        return self.module.array_equal(result, expected)

    def unique(self, keys):
        return self.module.unique(keys)


class Cupy(Numpy):
    def __init__(self, device):
        self.module = importlib.import_module("cupy")
        self.one = self.module.cuda.Stream(non_blocking=True)

    def keys(self, seed, count):
        keys = self.module.asarray(Numpy(None).keys(seed, count))
        self.module.cuda.runtime.deviceSynchronize()
        return keys

    def stream(self):
        return self.one

    def same(self, result, expected):
        return bool(self.module.array_equal(result, expected))


class Torch:
    def __init__(self, device):
        self.torch = importlib.import_module("torch")
        self.device = device
        self.one = self.torch.cuda.Stream() if device == "cuda" else None

    def keys(self, seed, count):
        self.torch.manual_seed(seed)
        keys = self.torch.randint(0, count, (count,)).to(self.device)
        if self.one is not None:
            self.torch.cuda.synchronize()
        return keys

    def stream(self):
        return self.torch.cuda.stream(self.one)

    def same(self, result, expected):
        return self.torch.equal(result, expected)

    def unique(self, keys):
        return self.torch.unique(keys)


LIBRARIES = {"numpy": Numpy, "cupy": Cupy, "torch": Torch}


class Run:
    """Threads that call one plan until the time is over or a result is wrong."""

    def __init__(self, library, count, threads, seconds):
        self.library, self.seconds = library, seconds
        self.keys = [library.keys(seed, count) for seed in range(threads)]
        self.plan = spec_ops.Unique().plan(self.keys[0])
        self.start = threading.Barrier(threads)
        self.calls, self.wrong = [0] * threads, []

    def work(self, place):
        try:
            if self.library.stream() is None:
                self.call_until_the_end(place)
            else:
                with self.library.stream():
                    self.call_until_the_end(place)
        except Exception as error:  # a thread's exception would be printed and lost
            self.wrong.append(f"thread {place}: {type(error).__name__}: {error}")

    def call_until_the_end(self, place):
        keys = self.keys[place]
        expected = self.library.unique(keys)
        # cupy compiles its comparison at the first use, which may take longer than the calls.
        assert self.library.same(expected, expected)
        self.start.wait(60)
        end = time.monotonic() + self.seconds
        while not self.wrong and (self.calls[place] < 3 or time.monotonic() < end):
            # Several calls are enqueued before one waits for a result.
            results = [self.plan(keys) for _ in range(4)]
            for distinct, found, *_ in results:
                if not self.library.same(distinct[: int(found[0])], expected):
                    self.wrong.append(f"thread {place}: wrong keys after {self.calls[place]} calls")
                self.calls[place] += 1

    def finish(self):
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(len(self.keys))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=LIBRARIES, default="torch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--keys", type=int, default=1 << 18)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    run = Run(LIBRARIES[given.library](given.device), given.keys, given.threads, given.seconds)
    run.finish()
    if run.wrong:
        raise SystemExit("\n".join(run.wrong))
    print(f"{sum(run.calls)} calls compared")


if __name__ == "__main__":
    main()
