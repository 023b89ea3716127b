"""What the scripts beside this one share: arguments, rows, times, the report.

A script has a class with a method an operator; each makes what is timed of one
row, and what checks its result. `rows.json` are the rows of `spec-bench`, so
that shapes, names and units are the same; a test of the library holds the two
against each other. The inputs of a row are those that `spec-bench inputs DIR` wrote.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FORMAT = "spec-bench 1"

# As `spec-bench` has it: samples and seconds, in full and quick.
CPU_EFFORT = {False: (31, 1.0), True: (7, 0.1)}
GPU_EFFORT = {False: (15, 20, 1.5), True: (9, 20, 0.3)}


class Skip(Exception):
    """Why a row is not timed."""


class Row:
    """A row of `spec-bench`, and the numbers in its shape."""

    def __init__(self, fields, inputs):
        self.operator = fields["operator"]
        self.shape = fields["shape"]
        self.folder = Path(inputs, self.operator, self.shape)
        self.series = fields["series"]
        self.size = fields["size"]
        self.size_unit = fields["size_unit"]
        self.quick = fields["quick"]
        self.memory = fields["memory"]
        sizes, _, self.kind = self.shape.partition(", ")
        self.numbers = [number(word) for word in sizes.split(" ") if word[0].isdigit()]


def number(word):
    """`4096`, `2^20` or `5e8`."""
    if "^" in word:
        base, exponent = word.split("^")
        return int(base) ** int(exponent)
    return int(float(word)) if "e" in word else int(word)


def arguments(description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--inputs",
        metavar="DIR",
        default="target/inputs",
        help="what `spec-bench inputs DIR` wrote [default: target/inputs]",
    )
    parser.add_argument("--json", metavar="FILE", help="write the report there")
    parser.add_argument("--quick", action="store_true", help="a few rows, fewer samples")
    parser.add_argument(
        "--only",
        action="append",
        metavar="WORDS",
        help="rows whose operator or shape contains these words; may be repeated",
    )
    parser.add_argument("--device", metavar="ID", help="peers of cpu or cuda:0 alone")
    return parser.parse_args()


def rows(options):
    for fields in json.loads((HERE / "rows.json").read_text()):
        row = Row(fields, options.inputs)
        wanted = options.only or [""]
        chosen = any(words in f"{row.operator} {row.shape}" for words in wanted)
        if chosen and (row.quick or not options.quick):
            yield row


def module(name, package=None):
    """A module, or None and a line that says that it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        print(f"skipped: {package or name} is not installed ({error})", file=sys.stderr)
        return None


def cpu_model():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def host():
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count()
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = 0
    try:
        system = platform.freedesktop_os_release().get("NAME", platform.system())
    except (AttributeError, OSError):
        system = platform.system()
    return {
        "cpu": cpu_model(),
        "cores": cores,
        "memory_bytes": memory,
        "os": f"{system} {platform.machine()}",
    }


def free_memory():
    """Bytes of main memory that nobody uses, where the system says."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


class Report:
    """The rows of a run, printed as they come."""

    def __init__(self, options, versions, devices):
        self.options = options
        # Where it was written is of no use to others.
        paths = (options.json, options.inputs)
        given = [Path(word).name if word in paths else word for word in sys.argv[1:]]
        words = ["python3", os.path.relpath(sys.argv[0]), *map(shlex.quote, given)]
        self.fields = {
            "format": FORMAT,
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "command": " ".join(words),
            "host": host(),
            "versions": {"python": platform.python_version(), **versions},
            "devices": devices,
            "measurements": [],
        }

    def row(self, row, implementation, device, timing, size_bytes, check):
        samples, method = timing
        median = statistics.median(samples)
        print(
            f"{row.operator:<18} {row.shape:<32} {device:<7} {implementation:<34} {median:>13.2f} us",
            flush=True,
        )
        self.fields["measurements"].append(
            {
                "operator": row.operator,
                "shape": row.shape,
                "series": row.series,
                "size": row.size,
                "size_unit": row.size_unit,
                "device": device,
                "implementation": implementation,
                "role": "peer",
                "method": method,
                "samples_us": [round(sample, 4) for sample in samples],
                "bytes": int(size_bytes),
                "goal_us": None,
                "check": check,
            }
        )

    def skip(self, row, implementation, reason):
        print(f"skipped: {row.operator}, {row.shape}, {implementation}: {reason}", file=sys.stderr)

    def save(self):
        """Writes the report so far, a row a line."""
        if not self.options.json:
            return
        fields = dict(self.fields)
        lists = {key: fields.pop(key) for key in ("devices", "measurements")}
        head = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in fields.items())
        body = ",\n".join(
            f"  {json.dumps(key)}: [\n"
            + ",\n".join("    " + json.dumps(value, ensure_ascii=False) for value in values)
            + "\n  ]"
            for key, values in lists.items()
        )
        Path(self.options.json).write_text("{\n" + head + ",\n" + body + "\n}\n")


def time_cpu(call, quick):
    """Microseconds of one call, several times, by the clock."""
    start = time.perf_counter()
    call()
    once = time.perf_counter() - start
    if once > 10:
        return [once * 1e6], "1 call, clock, its first"
    samples, budget = CPU_EFFORT[quick]
    # The clock needs a while.
    calls = min(max(1, round(1e-4 / once)), 64)
    samples = min(max(3, int(budget / once / calls)), samples)
    times = []
    for _ in range(samples):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    return times, f"{calls} call{'s' if calls > 1 else ''}, clock"


def main(description, *peers):
    """Times what each peer does on the rows that it does.

    A peer is a function of the options that gives an object, or None where its
    package or device is not there. The object has a `name`, perhaps other `names`
    by operator, a `device` as the report has it, `versions`, and a method an
    operator, which takes a row and gives what times it, what checks it, and the
    bytes of what it must read and write: `(time, check, size_bytes)`. `time()`
    gives samples and method; `check()` words for what the last result was held
    against.
    """
    options = arguments(description)
    made = [make(options) for make in peers]
    there = [p for p in made if p and options.device in (None, p.device["id"])]
    versions, devices = {}, []
    for peer in there:
        versions.update(peer.versions)
        if peer.device not in devices:
            devices.append(peer.device)
    report, failed = Report(options, versions, devices), 0
    for row in rows(options):
        for peer in there:
            make = getattr(peer, row.operator.replace("+", "_then_"), None)
            if make is None:
                continue
            name = getattr(peer, "names", {}).get(row.operator, peer.name)
            try:
                timed, check, size_bytes = make(row)
                timing = timed()
                report.row(row, name, peer.device["id"], timing, size_bytes, check())
                report.save()
            except (Skip, MemoryError) as reason:
                report.skip(row, name, reason or "there is too little memory")
            except Exception as error:
                # The other rows are worth having; this one is not, and that is said.
                failed += 1
                words = f"{type(error).__name__}: {error}"
                print(f"FAILED: {row.operator}, {row.shape}, {name}: {words}", file=sys.stderr)
            finally:
                timed = check = None
                getattr(peer, "release", lambda: None)()
    report.save()
    if failed:
        raise SystemExit(f"{failed} rows failed")


def device(name, identity):
    """A device as the report has it."""
    return {"id": identity, "name": name, "facts": {}}


def cpu_device():
    return device(cpu_model(), "cpu")
