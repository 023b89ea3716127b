#!/usr/bin/env python3
"""Times `spec unique` on text against `sort -n -u`, on CSV and on Parquet against polars.

    cargo build --release --features parquet
    pip install numpy polars
    python3 benches/external/formats.py                  # 10^8 keys in Parquet, 2 x 10^7 as text
    python3 benches/external/formats.py --keys 10000000 --text-keys 2000000 --repeat 3

Each way runs in turn, round after round, on the same file, so that what else the
machine does hits all of them alike; a row is the median of its rounds, and the
ratio is the median of the rounds' own ratios. `spec` and `sort` are timed as
whole processes, polars inside a process that has imported it already. Results are
compared: text byte for byte, Parquet key for key.

The page cache: inputs are read once before each run (`warm`), or dropped from it
(`--cold`, by posix_fadvise). Writing ends with each program's own last write;
`spec` also syncs its output before it renames it, and the others do not.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ("random", "three in four repeated")

POLARS = """
import sys, time, polars
source, target, compression = sys.argv[1:]
start = time.perf_counter()
query = polars.scan_parquet(source).select("key").unique().sort("key")
query.sink_parquet(target, compression=compression)
print(time.perf_counter() - start)
"""


POLARS_CSV = """
import sys, time, polars
source, target = sys.argv[1:]
start = time.perf_counter()
query = polars.scan_csv(source, schema_overrides={"key": polars.UInt64})
query.select("key").unique().sort("key").sink_csv(target)
print(time.perf_counter() - start)
"""


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", default=ROOT / "target/release/spec", help="the program")
    parser.add_argument("--keys", type=int, default=100_000_000, help="keys in Parquet")
    parser.add_argument("--text-keys", type=int, default=20_000_000, help="keys as text")
    parser.add_argument("--csv-keys", type=int, default=10_000_000, help="keys in CSV")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--folder", help="where the files go; needs about 40 bytes per key")
    parser.add_argument("--memory", help="passed to `spec unique --memory`")
    parser.add_argument("--cold", action="store_true", help="drop inputs from the page cache")
    parser.add_argument("--only", choices=["text", "csv", "parquet"],
                        help="leave the others out")
    parser.add_argument("--shape", choices=SHAPES, help="leave the other out")
    return parser.parse_args()


def keys(numpy, n, shape):
    """Uniform random keys, or keys of which three in four occur before."""
    random = numpy.random.default_rng(n)
    if shape == "random":
        return random.integers(0, 1 << 64, n, dtype=numpy.uint64)
    pool = random.integers(0, 1 << 64, max(n // 4, 1), dtype=numpy.uint64)
    return pool[random.integers(0, len(pool), n)]


def prepare(path, cold):
    """Puts the page cache into the state that was asked for."""
    with open(path, "rb", buffering=0) as file:
        if cold:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while file.read(1 << 24):
                pass


def process(command, **environment):
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, **environment})
    return time.perf_counter() - start


def rounds(ways, source, arguments):
    """Seconds of each way, round by round."""
    seconds = {name: [] for name in ways}
    for _ in range(arguments.repeat):
        for name, way in ways.items():
            prepare(source, arguments.cold)
            seconds[name].append(way())
    return seconds


def report(title, seconds, n):
    print(f"\n{title}")
    ours = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratio = statistics.median(theirs / our for theirs, our in zip(times, ours))
        middle = statistics.median(times)
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"  {name:<34} {middle:>8.2f} s ({spread:>16}) {n / middle / 1e6:>8.1f} Mkeys/s"
              f"   {ratio:>6.2f} x the time of spec", flush=True)


def unique(arguments, *rest):
    command = [arguments.spec, "unique", *rest, "--force"]
    return command + (["--memory", arguments.memory] if arguments.memory else [])


def text(arguments, numpy, polars, folder, shape):
    n = arguments.text_keys
    source, ours, theirs = (folder / name for name in ("keys.txt", "ours.txt", "theirs.txt"))
    polars.DataFrame({"key": keys(numpy, n, shape)}).write_csv(source, include_header=False)
    sort = ["sort", "-n", "-u", "-T", folder, source, "-o", theirs]
    spec = unique(arguments, "--text", source, "-o", ours)
    ways = {
        "spec unique --text": lambda: process(spec),
        "LC_ALL=C sort -n -u": lambda: process(sort, LC_ALL="C"),
        "sort -n -u (the locale as it is)": lambda: process(sort),
    }
    seconds = rounds(ways, source, arguments)
    subprocess.run(["cmp", ours, theirs], check=True)
    report(f"text, {n} keys, {shape}, {source.stat().st_size / 1e6:.0f} MB", seconds, n)


def csv(arguments, numpy, polars, folder, shape):
    n = arguments.csv_keys
    source, ours, theirs = (folder / f"{name}.csv" for name in ("keys", "ours", "theirs"))
    key = keys(numpy, n, shape)
    words = numpy.array(["alpha", "beta, gamma", "delta epsilon", ""])[key % 4]
    others = {"user": key % 10_007, "word": words, "price": (key % 100_000) / 100}
    spec = unique(arguments, "--csv", "--column", "key", source, "-o", ours)
    peer = [sys.executable, "-c", POLARS_CSV, source, theirs]
    ways = {
        "spec unique --csv": lambda: process(spec),
        "polars": lambda: float(subprocess.run(peer, check=True, capture_output=True).stdout),
    }
    for title, columns, quotes in [("one column", {}, "necessary"), ("four columns", others, "necessary"),
                                   ("four columns, all fields quoted", others, "always")]:
        table = polars.DataFrame({"key": key, **columns})
        table.write_csv(source, quote_style=quotes)
        seconds = rounds(ways, source, arguments)
        subprocess.run(["cmp", ours, theirs], check=True)
        report(f"CSV, {title}, {n} keys, {shape}, {source.stat().st_size / 1e6:.0f} MB", seconds, n)


def parquet(arguments, numpy, polars, folder, shape):
    n = arguments.keys
    source, ours, theirs = (folder / f"{name}.parquet" for name in ("keys", "ours", "theirs"))
    polars.DataFrame({"key": keys(numpy, n, shape)}).write_parquet(source)
    spec = unique(arguments, "--column", "key", source, "-o", ours)

    def peer(compression):
        command = [sys.executable, "-c", POLARS, source, theirs, compression]
        return float(subprocess.run(command, check=True, capture_output=True).stdout)

    ways = {
        "spec unique --column key": lambda: process(spec),
        "polars, zstd (its default)": lambda: peer("zstd"),
        "polars, uncompressed": lambda: peer("uncompressed"),
    }
    seconds = rounds(ways, source, arguments)
    same = polars.read_parquet(ours)["key"].equals(polars.read_parquet(theirs)["key"])
    if not same:
        raise SystemExit("the results differ")
    report(f"Parquet, {n} keys, {shape}, {source.stat().st_size / 1e6:.0f} MB, "
           f"written: spec {ours.stat().st_size / 1e6:.0f} MB, "
           f"polars uncompressed {theirs.stat().st_size / 1e6:.0f} MB", seconds, n)


def main():
    arguments = options()
    try:
        import numpy
        import polars
    except ImportError as missing:
        raise SystemExit(f"{missing.name} is not installed; it makes the keys and is measured")
    cores = len(os.sched_getaffinity(0))
    state = "cold" if arguments.cold else "warm"
    version = subprocess.run(["sort", "--version"], capture_output=True, text=True).stdout
    print(f"{cores} cores, load {os.getloadavg()[0]:.1f}, page cache {state}, polars "
          f"{polars.__version__}, {version.splitlines()[0]}, {arguments.repeat} rounds")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for shape in [arguments.shape] if arguments.shape else SHAPES:
            for compare in text, csv, parquet:
                if arguments.only in (None, compare.__name__):
                    compare(arguments, numpy, polars, Path(folder), shape)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}; all results are equal")


if __name__ == "__main__":
    main()
