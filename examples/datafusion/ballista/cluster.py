#!/usr/bin/env python3
"""Runs `spec-ballista` as a user does: a scheduler and workers, each a process, on the loopback address.

    cluster.py check               distinct keys of every kind of input, and a fault of every kind
    cluster.py kills --times 20    kills a worker at random moments, and starts it again
    cluster.py figures             core seconds by step with 1, 2 and 4 workers; each step includes those before it

`--spec` names the program `spec`, built with `--features parquet`; outputs are compared with `spec unique`
byte for byte, after their files are put one after the other.
"""

import argparse
import filecmp
import os
import random
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HOST = "127.0.0.1"
TICK = os.sysconf("SC_CLK_TCK")


def seconds(pid):
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def peak(pid):
    """The peak of a process's memory, MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) >> 10
    return 0


class Cluster:
    def __init__(self, options, folder, workers, memory="256MiB", lost_after=20):
        """`lost_after`: seconds until the scheduler takes a silent worker for lost."""
        self.options, self.folder, self.memory, self.lost_after = options, folder, memory, lost_after
        self.port = options.port
        options.port += 40
        self.workers = {}
        self.start_scheduler()
        for worker in range(workers):
            self.start_worker(worker)

    def spawn(self, name, *arguments):
        log = open(self.folder / f"{name}.log", "ab")
        command = [self.options.program, *map(str, arguments)]
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)

    def start_scheduler(self):
        self.scheduler = self.spawn(
            "scheduler", "scheduler", "--bind-host", HOST, "--external-host", HOST,
            "--bind-port", self.port, "--executor-timeout-seconds", self.lost_after,
            "--expire-dead-executor-interval-seconds", 2, "--scheduler-policy", "pull-staged",
            "--no-executors-grace-period-seconds", self.lost_after,
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                return socket.create_connection((HOST, self.port)).close()
            except ConnectionRefusedError:
                time.sleep(0.02)
        raise SystemExit("the scheduler does not listen")

    def start_worker(self, worker, work=None):
        port = self.port + 1 + 3 * worker
        work = work or self.folder / f"worker-{worker}"
        work.mkdir(exist_ok=True)
        self.workers[worker] = self.spawn(
            f"worker-{worker}", "worker", "--bind-host", HOST, "--external-host", HOST,
            "--scheduler-host", HOST, "--scheduler-port", self.port,
            "--bind-port", port, "--bind-grpc-port", port + 1, "--bind-health-port", port + 2,
            "--work-dir", work, "--vcores", 1, "--memory-pool-size", self.memory,
            "--task-scheduling-policy", "pull-staged",
            "--scheduler-connect-timeout-seconds", 60, "--executor-heartbeat-interval-seconds", 2,
        )

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def signal(self, number):
        """Sends a signal to all workers."""
        for worker in self.workers.values():
            worker.send_signal(number)

    def job(self, inputs, output, *arguments):
        """Starts a client."""
        command = [self.options.program, "unique", "--scheduler", f"http://{HOST}:{self.port}"]
        command += ["--output", output, *arguments, *inputs]
        return subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def shuffled(self, worker, count=1):
        """Waits until a worker has written `count` shuffle files, and returns them."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                files = [file for file in (self.folder / f"worker-{worker}").rglob("*.index")]
            except FileNotFoundError:
                files = []  # The worker has removed a folder while it was listed.
            if len(files) >= count:
                return [file.with_suffix("") for file in files]
            time.sleep(0.02)
        raise SystemExit(f"worker {worker} has written no shuffle file")

    def written(self, output, count=1):
        """Waits until the workers have written `count` files of the output, and returns the unfinished folder."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            files = list(output.parent.glob(f".{output.name}.*.partial/*.parquet"))
            if len(files) >= count:
                return files[0].parent
            time.sleep(0.01)
        raise SystemExit("the workers have not written the files")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in [self.scheduler, *self.workers.values()]:
            if process.poll() is None:
                self.kill(process)


class Checks:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    def make(self, shape, keys):
        folder = self.folder / f"{shape}-{keys}"
        subprocess.run(
            [self.options.program, "make", folder, "--shape", shape, "--keys", str(keys)], check=True
        )
        return sorted(folder.glob("*.parquet"))

    def expected(self, inputs, counts=False):
        """What `spec unique` makes of the files, raw."""
        file = inputs[0].parent / ("counts.raw" if counts else "keys.raw")
        if not file.exists():
            command = [self.options.spec, "unique", "--column", "key", "--output-format", "raw", "-o", file]
            command += ["--device", "cpu", "--quiet", *(["--counts"] if counts else []), *inputs]
            subprocess.run(command, check=True)
        return file

    def compare(self, what, output, expected):
        """Removes an output that is right, and returns the number of its files."""
        got = self.folder / "got.raw"
        with open(got, "wb") as sink:
            subprocess.run([self.options.program, "print", output], stdout=sink, check=True)
        if not filecmp.cmp(got, expected, shallow=False):
            raise SystemExit(f"{what}: the output is wrong")
        files = len(list(output.iterdir()))
        shutil.rmtree(output)
        return files

    def finish(self, what, job, output, expected, must_work):
        """Checks that a job has ended right, or with one sentence and without an output. Returns whether it is
        right, and how many submissions the client has given up."""
        start = time.monotonic()
        try:
            said, error = job.communicate(timeout=self.options.limit)
        except subprocess.TimeoutExpired:
            job.kill()
            raise SystemExit(f"{what}: the job does not end")
        left = list(output.parent.glob(f".{output.name}.*.partial"))
        if left:
            raise SystemExit(f"{what}: {left} is left")
        again = said.count("is given up")
        took = f"{time.monotonic() - start:.1f} s later" + (f", {again} submissions given up" if again else "")
        if job.returncode == 0:
            files = self.compare(what, output, expected)
            print(f"ok: {what}: the output is right, {files} files, {took}", flush=True)
            return True, again
        if output.exists():
            raise SystemExit(f"{what}: failed, and there is an output")
        lines = error.splitlines()
        if len(lines) != 1 or not lines[0].startswith("error: ") or job.returncode != 1:
            raise SystemExit(f"{what}: not one sentence: {error}")
        if must_work:
            raise SystemExit(f"{what}: {lines[0]}")
        print(f"ok: {what}: no output, {took}: {lines[0][:300]}", flush=True)
        return False, again


def check(options, folder):
    checks = Checks(options, folder)
    output = folder / "out"
    keys = options.keys
    with Cluster(options, folder, 2) as cluster:
        for shape in ["random", "few", "sorted", "skewed"]:
            inputs = checks.make(shape, keys)
            for counts in [False, True]:
                arguments = ["--ranges", 8, *(["--counts"] if counts else [])]
                job = cluster.job(inputs, output, *arguments)
                what = f"{shape} keys{', counted' if counts else ''}"
                checks.finish(what, job, output, checks.expected(inputs, counts), must_work=True)
        inputs = checks.make("random", keys)
        expected = checks.expected(inputs)

        output.mkdir()
        (output / "mine").touch()
        _, error = cluster.job(inputs, output).communicate()
        assert "exists already" in error and (output / "mine").exists(), error
        shutil.rmtree(output)
        job = cluster.job(inputs, output, "--device", "cuda:99")
        right, _ = checks.finish("a device that is not there", job, output, expected, must_work=False)
        assert not right

    faults = [killed, killed_late, late, full, damaged, cut, scheduler_killed, stopped, woken]
    for fault in faults:
        sub = folder / fault.__name__
        sub.mkdir()
        fault(options, sub, checks, inputs, expected)


def killed(options, folder, checks, inputs, expected):
    output = folder / "out"
    with Cluster(options, folder, 2) as cluster:
        job = cluster.job(inputs, output)
        cluster.shuffled(0)
        cluster.kill(cluster.workers[0])
        checks.finish("one of two workers killed", job, output, expected, must_work=True)


def killed_late(options, folder, checks, inputs, expected):
    """Ballista repeats all of the tasks that write, since the lost worker held a part of what they read."""
    output = folder / "out"
    for back in [True, False]:
        with Cluster(options, folder, 2, lost_after=8) as cluster:
            job = cluster.job(inputs, output, "--ranges", 64)
            cluster.written(output, 16)
            cluster.kill(cluster.workers[0])
            if back:
                cluster.start_worker(0)
            what = f"a worker killed while it writes, and {'' if back else 'not '}started again"
            checks.finish(what, job, output, expected, must_work=True)


def late(options, folder, checks, inputs, expected):
    output = folder / "out"
    with Cluster(options, folder, 1) as cluster:
        job = cluster.job(inputs, output, "--parts", 64)
        cluster.shuffled(0)
        cluster.start_worker(1)
        cluster.shuffled(1)
        checks.finish("a worker that joins late and works", job, output, expected, must_work=True)


def full(options, folder, checks, inputs, expected):
    output, disk = folder / "out", folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk]
    if subprocess.run(mount, stderr=subprocess.DEVNULL).returncode:
        print("left out: a full disk: this user may not mount one", flush=True)
        return
    try:
        with Cluster(options, folder, 1) as cluster:
            cluster.start_worker(1, disk)
            job = cluster.job(inputs, output)
            checks.finish("a full disk on one worker", job, output, expected, must_work=False)
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def damage(options, folder, checks, inputs, expected, what, change):
    output = folder / "out"
    with Cluster(options, folder, 1) as cluster:
        job = cluster.job(inputs, output)
        file = cluster.shuffled(0)[0]
        change(file)
        checks.finish(what, job, output, expected, must_work=False)


def damaged(options, folder, checks, inputs, expected):
    def flip(file):
        with open(file, "r+b") as bytes_:
            middle = file.stat().st_size // 2
            bytes_.seek(middle)
            byte = bytes_.read(1)
            bytes_.seek(middle)
            bytes_.write(bytes([byte[0] ^ 1]))

    damage(options, folder, checks, inputs, expected, "a flipped bit in a shuffle file", flip)


def cut(options, folder, checks, inputs, expected):
    def shorten(file):
        os.truncate(file, file.stat().st_size // 2)

    damage(options, folder, checks, inputs, expected, "a shuffle file cut in half", shorten)


def scheduler_killed(options, folder, checks, inputs, expected):
    output = folder / "out"
    with Cluster(options, folder, 2) as cluster:
        job = cluster.job(inputs, output)
        cluster.shuffled(0)
        cluster.kill(cluster.scheduler)
        right, _ = checks.finish("the scheduler killed", job, output, expected, must_work=False)
        assert not right
        cluster.start_scheduler()
        time.sleep(2)
        job = cluster.job(inputs, output)
        checks.finish("the next job, with a new scheduler", job, output, expected, must_work=True)


def stopped(options, folder, checks, inputs, expected):
    """No task ever ends, and the scheduler does not know why."""
    output = folder / "out"
    with Cluster(options, folder, 2, lost_after=3600) as cluster:
        job = cluster.job(inputs, output, "--parts", 64, "--stall-seconds", 3, "--submissions", 2)
        cluster.shuffled(0)
        cluster.signal(signal.SIGSTOP)
        what = "workers that stand still for ever"
        right, again = checks.finish(what, job, output, expected, must_work=False)
        assert not right and again == 2, (right, again)


def woken(options, folder, checks, inputs, expected):
    """Tasks of a cancelled job go on beside those of its successor."""
    output = folder / "out"
    with Cluster(options, folder, 2, lost_after=3600) as cluster:
        job = cluster.job(inputs, output, "--ranges", 64, "--stall-seconds", 8)
        first = cluster.written(output)
        cluster.signal(signal.SIGSTOP)
        while first.exists() and job.poll() is None:
            time.sleep(0.02)
        cluster.signal(signal.SIGCONT)
        what = "workers that stand still while they write, and go on after the job was cancelled"
        _, again = checks.finish(what, job, output, expected, must_work=True)
        assert again >= 1, again


def kills(options, folder):
    checks = Checks(options, folder)
    output = folder / "out"
    inputs = checks.make("random", options.keys)
    expected = checks.expected(inputs)
    dice = random.Random(options.seed)
    with Cluster(options, folder, 2, lost_after=8) as cluster:
        # The first job also waits for the workers.
        for what in ["first", "undisturbed"]:
            start = time.monotonic()
            job = cluster.job(inputs, output, "--ranges", 16)
            checks.finish(what, job, output, expected, must_work=True)
            takes = time.monotonic() - start
        right = resubmitted = 0
        for turn in range(options.times):
            job = cluster.job(inputs, output, "--ranges", 16, "--stall-seconds", 30)
            worker, moment = dice.randrange(2), dice.uniform(0, takes)
            time.sleep(moment)
            cluster.kill(cluster.workers[worker])
            time.sleep(dice.uniform(0, 2))
            cluster.start_worker(worker)
            what = f"kill {turn + 1}: worker {worker} after {moment:.2f} of {takes:.2f} s"
            ended, again = checks.finish(what, job, output, expected, must_work=False)
            right, resubmitted = right + ended, resubmitted + (again > 0)
        print(
            f"{options.times} kills: {right} jobs right, {options.times - right} ended with one sentence; "
            f"{resubmitted} were submitted again"
        )


def figures(options, folder):
    """The median of the core seconds, since other programs disturb them little; the best rate, since they disturb
    it much."""
    checks = Checks(options, folder)
    output = folder / "out"
    inputs = checks.make("random", options.keys)
    expected = checks.expected(inputs)
    steps = options.steps.split(",")
    print(f"{options.keys} random keys, {options.runs} runs of each step")
    print("core seconds for 10^9 keys: median (least to most); million keys per second: best", flush=True)
    for workers in map(int, options.workers.split(",")):
        sub = folder / f"workers-{workers}"
        sub.mkdir()
        with Cluster(options, sub, workers, options.memory) as cluster:
            # The first job also waits for the workers.
            first = cluster.job(inputs, output, "--ranges", options.ranges)
            checks.finish(f"{workers} workers", first, output, expected, True)
            for step in steps:
                cores, rates = [], []
                for _ in range(options.runs):
                    used, took = measured(cluster, checks, step, inputs, output, expected)
                    cores.append(used * 1e9 / options.keys)
                    rates.append(options.keys / took / 1e6)
                spread = f"{statistics.median(cores):7.1f} ({min(cores):.1f} to {max(cores):.1f})"
                print(f"{workers} workers, {step:>8}: {spread:>26} {max(rates):8.2f}", flush=True)
            peaks = [peak(worker.pid) for worker in cluster.workers.values()]
            print(f"{workers} workers: peaks of memory, MiB: {peaks}", flush=True)


def measured(cluster, checks, step, inputs, output, expected):
    """Core seconds of all processes, and seconds, that a job takes."""
    processes = [cluster.scheduler.pid, *(worker.pid for worker in cluster.workers.values())]
    before, start = sum(map(seconds, processes)), time.monotonic()
    client = resource.getrusage(resource.RUSAGE_CHILDREN)
    only = ["--only", step] if step != "write" else []
    job = cluster.job(inputs, output, "--ranges", checks.options.ranges, *only)
    _, error = job.communicate()
    took = time.monotonic() - start
    if job.returncode:
        raise SystemExit(f"{step}: {error}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = now.ru_utime + now.ru_stime - client.ru_utime - client.ru_stime
    used += sum(map(seconds, processes)) - before
    if step == "write":
        checks.compare(step, output, expected)
    return used, took


def main():
    here = Path(__file__).resolve().parent
    target = Path(os.environ.get("CARGO_TARGET_DIR", here.parent / "target"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["check", "kills", "figures"])
    parser.add_argument("--profile", choices=["release", "debug"], default="release")
    parser.add_argument("--spec", type=Path, default=here.parents[2] / "target/release/spec")
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--runs", type=int, default=3, help="of each step, for figures")
    parser.add_argument("--steps", default="sum,exchange,unique,write,engine", help="for figures")
    parser.add_argument("--limit", type=float, default=600, help="seconds in which a job must end")
    parser.add_argument("--memory", default="1GiB", help="of a worker, for figures")
    parser.add_argument("--ranges", type=int, default=8, help="for figures")
    parser.add_argument("--port", type=int, default=41000, help="the first of the ports to use")
    options = parser.parse_args()
    options.program = target.resolve() / options.profile / "spec-ballista"
    options.spec = options.spec.resolve()
    with tempfile.TemporaryDirectory(prefix="spec-ballista-") as folder:
        {"check": check, "kills": kills, "figures": figures}[options.what](options, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
