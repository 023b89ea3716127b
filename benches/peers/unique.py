#!/usr/bin/env python3
"""Times what Python users would pick for `unique` on the CPU.

    pip install numpy polars
    python3 benches/peers/unique.py            # the shapes of `cargo bench --bench cpu -- unique`

Prints, for each shape and library, the median of several runs in microseconds.
The keys are uniform random u64, shifted right for fewer bits, as in that bench.
A library that is not installed is skipped with a line.
"""

import os
import statistics
import sys
import time

SHAPES = [(1 << 20, 64), (1 << 20, 30), (1 << 24, 64), (1 << 24, 30)]
if "--full" in sys.argv:
    SHAPES.append((1 << 27, 64))  # many minutes: numpy.unique hashes


def median(call, least=5, seconds=0.5):
    call()
    times, start = [], time.perf_counter()
    while len(times) < least or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        call()
        times.append(time.perf_counter() - before)
    return statistics.median(times) * 1e6


def sorted_distinct(numpy, keys):
    """What numpy.unique did before it hashed."""
    keys = numpy.sort(keys)
    return keys[numpy.concatenate(([True], keys[1:] != keys[:-1]))]


def main():
    try:
        import numpy
    except ImportError:
        raise SystemExit("numpy is not installed; it makes the keys")
    try:
        import polars
    except ImportError:
        polars = None
        print("polars: skipped, not installed")
    print(f"numpy {numpy.__version__}, polars {polars and polars.__version__}, "
          f"{len(os.sched_getaffinity(0))} cores")
    random = numpy.random.default_rng(1)
    for n, bits in SHAPES:
        keys = random.integers(0, 1 << 64, n, dtype=numpy.uint64) >> numpy.uint64(64 - bits)
        row = [
            ("numpy.unique", median(lambda: numpy.unique(keys))),
            ("numpy sort + compare", median(lambda: sorted_distinct(numpy, keys))),
        ]
        if polars:
            series = polars.Series(keys)
            row.append(("polars unique + sort", median(lambda: series.unique().sort())))
        for name, micros in row:
            print(f"{n:>10} keys, {bits} bits  {name:<20} {micros:>12.1f} us", flush=True)


if __name__ == "__main__":
    main()
