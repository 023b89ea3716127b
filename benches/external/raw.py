#!/usr/bin/env python3
r"""Times `spec unique` on raw u64 keys, beside what disk and host link do alone.

    cargo build --release
    pip install numpy                    # and torch, where the link to a GPU is to be timed
    python3 benches/external/raw.py --device cuda:0 --device cpu      # 5 x 10^8 keys, 4 GB
    python3 benches/external/raw.py --device cuda:0 --seconds 100 \
        --options="--memory 32GiB" --options="--memory 1GiB --device-memory 6GiB"
    python3 benches/external/raw.py --keys 100000000 --device cpu --options="--memory 64MiB"

One file, one run. "Warm": the input is in the page cache; "cold": the system was
asked to drop it (posix_fadvise). What is written ends on the disk (fsync). The
floor of a run is reading the input, cold or warm as it was, and then writing the
result, at the rates that as many threads reach in this very run; or the host
link, both ways, where that is slower. What does not fit into --memory (CPU) or
--device-memory (GPU) is spilled, written and read once more; the floor leaves that out. Results of all runs
are compared byte for byte, and their count and sum with the input's, which proves
them where no key occurs twice.
"""

import argparse
import filecmp
import json
import mmap
import os
import shlex
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parents[2]
BLOCK = 4 << 20


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--spec", default=str(ROOT / "target/release/spec"), help="the program")
    parser.add_argument("--keys", type=int, default=500_000_000)
    parser.add_argument("--bits", type=int, default=64, help="bits of a key that vary")
    parser.add_argument("--device", action="append", default=[], help="as spec takes it; several")
    parser.add_argument("--options", action="append", default=[],
                        help="passed on: options in quotes; several times for several ways")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="begin no run that would end later than so long from now")
    parser.add_argument("--folder", help="where the files go; needs three times the input")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=2, help="warm runs per device")
    return parser.parse_args()


def timed(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def generate(path, keys, bits, threads):
    def some(part):
        first, count = part
        random = numpy.random.default_rng(first)
        block = random.integers(0, 1 << 64, count, dtype=numpy.uint64) >> numpy.uint64(64 - bits)
        with open(path, "r+b") as file:
            file.seek(first * 8)
            file.write(block.data)
        return block.sum(dtype=numpy.uint64)

    with open(path, "wb") as file:
        file.truncate(keys * 8)
    step = 1 << 22
    parts = [(first, min(step, keys - first)) for first in range(0, keys, step)]
    with ThreadPoolExecutor(threads) as pool:
        total = sum(int(part) for part in pool.map(some, parts))
    sync(path)
    return total % (1 << 64)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def drop(path):
    sync(path)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def blocks(size, threads, work):
    """Calls work(buffer, offset, length) for each block, each thread with a buffer."""
    share = -(-size // threads // BLOCK) * BLOCK

    def stretch(index):
        buffer = memoryview(mmap.mmap(-1, BLOCK))
        for at in range(index * share, min((index + 1) * share, size), BLOCK):
            work(buffer, at, min(BLOCK, size - at))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(stretch, range(threads)))


def read(path, size, threads):
    descriptor = os.open(path, os.O_RDONLY)
    blocks(size, threads, lambda buffer, at, n: os.preadv(descriptor, [buffer[:n]], at))
    os.close(descriptor)


def write(path, size, threads):
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    blocks(size, threads, lambda buffer, at, n: os.pwrite(descriptor, buffer[:n], at))
    os.fsync(descriptor)
    os.close(descriptor)


def link(size):
    """Seconds for so many bytes to the GPU and then back, page-locked."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    host = torch.empty(min(size, 1 << 30), dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device="cuda")
    seconds = 0
    for to, source in ((device, host), (host, device)):
        for _ in range(2):
            torch.cuda.synchronize()
            one = timed(lambda: (to.copy_(source, non_blocking=True), torch.cuda.synchronize()))
        seconds += one * size / host.numel()
    del host, device
    torch.cuda.empty_cache()
    return seconds


def run(args, device, more, source, target, temp):
    command = [args.spec, "unique", source, "-o", target, "--force", "--json"]
    command += ["--device", device, "--temp", temp]
    command += shlex.split(more)
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return seconds, json.loads(done.stdout)


def show(name, seconds, size):
    print(f"| {name} | {seconds:.3f} | {size / 1e9 / seconds:.2f} |", flush=True)
    return seconds


def main():
    begun = time.perf_counter()
    args = options()
    ways = [(d, more) for more in args.options or [""] for d in args.device or ["auto"]]
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="spec-raw-") as folder:
        source = os.path.join(folder, "keys.bin")
        total = generate(source, args.keys, args.bits, args.threads)
        size = args.keys * 8
        print(f"{args.keys} keys, {args.bits} bits vary, {size / 1e9:.3f} GB, {args.threads} threads")
        print("\n| alone | seconds | GB/s |\n|---|---|---|")
        drop(source)
        reads = {"cold": show("read, cold", timed(lambda: read(source, size, args.threads)), size)}
        reads["warm"] = show("read, warm", timed(lambda: read(source, size, args.threads)), size)
        target = os.path.join(folder, "written")
        writes = show("write and fsync", timed(lambda: write(target, size, args.threads)), size)
        os.unlink(target)
        links = link(size)
        if links:
            show("host link, there and back", links, 2 * size)
        print("\n| run | process s | pipeline s | floor s | ratio | phases, seconds | peak MB |")
        print("|---|---|---|---|---|---|---|")
        results = []
        for device, more in ways:
            target = os.path.join(folder, f"distinct.{len(results)}")
            summary = None
            for state in ["cold"] + ["warm"] * args.repeat:
                # Some seconds for comparing; spilled keys cost that much again.
                expected = 2 * (reads[state] + writes) + 10
                if time.perf_counter() - begun + expected > args.seconds:
                    print(f"| {device}, {more}, {state} | left out: no time |", flush=True)
                    continue
                drop(source) if state == "cold" else read(source, size, args.threads)
                if os.path.exists(target):
                    os.unlink(target)
                seconds, summary = run(args, device, more, source, target, folder)
                out = summary["distinct"] * 8
                floor = reads[state] + writes * out / size
                if links and not device.startswith("cpu"):
                    floor = max(floor, links * (size + out) / (2 * size))
                phases = ", ".join(f"{p['phase']} {p['seconds']:.2f}" for p in summary["phases"])
                peak = (summary.get("peak_memory") or 0) / 1e6
                ran = summary["seconds"]
                print(
                    f"| {summary['device']}, {more}, {state} | {seconds:.3f} | {ran:.3f} | {floor:.3f} "
                    f"| {seconds / floor:.2f} | {phases} | {peak:.0f} |",
                    flush=True,
                )
            if summary:
                results.append((target, summary))
        if not results:
            raise SystemExit("no run was made")
        first, summary = results[0]
        for other, _ in results[1:]:
            assert filecmp.cmp(first, other, shallow=False), f"{first} and {other} differ"
        found = numpy.fromfile(first, dtype=numpy.uint64)
        assert len(found) == summary["distinct"] and summary["keys"] == args.keys
        assert bool((found[1:] > found[:-1]).all()), "not ascending"
        if len(found) == args.keys:
            assert int(found.sum(dtype=numpy.uint64)) == total, "other keys than the input's"
            print("\nEvery key is distinct; the result has as many and the same sum.")
        print(f"at {time.perf_counter() - begun:.0f} s: {len(results)} results, equal, ascending, {len(found)} distinct keys")


if __name__ == "__main__":
    main()
