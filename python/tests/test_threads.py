"""Threads that share a plan."""

import itertools
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from conftest import Numpy, golden, need, need_cuda
from test_golden import (
    CLASSES,
    OPERATORS,
    cases_for,
    check,
    extents_of,
    inputs_of,
    options_of,
    outputs_of,
)
from test_refusals import python

HERE = Path(__file__).parent


def share_a_plan(*arguments):
    """Runs the program of that name, which an illegal access of memory may end; how many of its
    calls were compared."""
    done = subprocess.run(
        [sys.executable, str(HERE / "share_a_plan.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return int(re.fullmatch(r"(\d+) calls compared\n", done.stdout)[1])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_on_the_cpu(library):
    """Each call has a workspace of its own."""
    need(library)
    calls = share_a_plan("--library", library, "--device", "cpu", "--seconds", "2")
    assert calls >= 8 * 4


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_on_one_cuda_stream(library):
    """The kernels of two calls never mix, though both use the stream's one workspace."""
    if library == "torch":
        need_cuda(need(library))
    need(library)
    assert share_a_plan("--library", library, "--device", "cuda", "--seconds", "10") > 100


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_from_many_threads(operator):
    """Golden vectors by plans that four threads share at the same time."""
    library, wrong = Numpy(), []
    cases = sorted(cases_for(operator, library), key=size)[-3:]

    def work(case, plan, start):
        try:
            start.wait(60)
            for _ in range(10):
                inputs = inputs_of(operator, case, library)
                outputs = outputs_of(operator, case, library)
                made = plan(**inputs, out=outputs)
                made = made if made is None or isinstance(made, tuple) else (made,)
                check(operator, case, library, inputs, made or ())
        except BaseException as error:
            wrong.append(f"{case['name']}: {error}")

    for case in cases:
        inputs, outputs = inputs_of(operator, case, library), outputs_of(operator, case, library)
        values = options_of(operator, case["params"]) | extents_of(operator, case)
        plan = CLASSES[operator](**values).plan(**inputs, out=outputs)
        start = threading.Barrier(4)
        threads = [threading.Thread(target=work, args=(case, plan, start)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def size(case):
    """How many numbers a golden case has as inputs."""
    return sum(len(tensor["data"]) for tensor in case["inputs"].values())


@pytest.fixture(scope="module")
def mock_cuda(tmp_path_factory):
    """What a program needs in its environment to find a stand-in for CUDA's driver, which only
    writes down what is enqueued."""
    folder = tmp_path_factory.mktemp("driver")
    source = HERE / "shims/mock_cuda/driver.c"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", folder / "libcuda.so.1", source]
    if subprocess.run(command, check=False).returncode:
        pytest.skip("no C compiler for the stand-in")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    path = os.pathsep.join([str(source.parent), os.environ.get("PYTHONPATH", "")])
    return {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": path}


def enqueued(mock_cuda, streams):
    """What four threads enqueue by one plan, three calls each, on these streams in turns: for each
    entry the thread, the stream, and the address that was cleared or 0 for a kernel."""
    done = python(
        f"""
        import threading, numpy as np, spec_ops, mock_gpu
        assert spec_ops.devices()["cuda"][0]["name"] == "a stand-in"
        keys = [mock_gpu.Array(1 << 18, np.int64) for _ in range(4)]
        plan = spec_ops.Unique().plan(keys[0])
        assert plan.device == "cuda:0" and plan.workspace_size > 0
        start, wrong = threading.Barrier(4), []
        def work(place):
            try:
                mock_gpu.use_stream({streams!r}[place % {len(streams)}])
                start.wait(60)
                for _ in range(3):
                    plan(keys[place])
            except BaseException as error:
                wrong.append(error)
        threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong
        for entry in mock_gpu.entries():
            print(*entry)
        """,
        **mock_cuda,
    )
    assert done.returncode == 0, done.stderr
    return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]


def test_kernels_of_two_calls_do_not_mix(mock_cuda):
    """On one stream, which has one workspace, a call's kernels are enqueued one after the other,
    whatever other threads do meanwhile."""
    entries = enqueued(mock_cuda, [16])
    kernels, rest = divmod(len(entries), 4 * 3)
    assert kernels > 3 and rest == 0
    calls = [entries[start : start + kernels] for start in range(0, len(entries), kernels)]
    for call in calls:
        assert len({thread for thread, _, _ in call}) == 1, "kernels of two calls mix"
    # A call begins by clearing the start of its workspace.
    starts = {address for call in calls for _, _, address in call[:1]}
    assert len(starts) == 1 and 0 not in starts
    assert len({thread for thread, _, _ in entries}) == 4


def test_streams_do_not_wait_for_each_other(mock_cuda):
    """On two streams a plan has two workspaces, and the kernels of two calls may mix."""
    entries = enqueued(mock_cuda, [16, 32])
    streams = [stream for _, stream, _ in entries]
    assert set(streams) == {16, 32}
    # Twelve calls whose kernels stay together would change streams eleven times at most.
    assert len(list(itertools.groupby(streams))) > 12, "calls on two streams waited for each other"
    workspaces = [
        {address for _, on, address in entries if on == stream and address} for stream in (16, 32)
    ]
    assert workspaces[0].isdisjoint(workspaces[1])
