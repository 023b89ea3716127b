"""What a call costs the host: `python bench/host_cost.py [--device cuda] [--json FILE]`.

Microseconds a call, the median of samples and their best, without waiting for the GPU. Beside
it a trivial operator of torch's, which is what any call through torch costs, and FlashInfer's
top-k where it is installed. One token of eight experts: on the CPU the rest is the operator.
"""

import argparse
import importlib.util
import json
import platform
import statistics
import time

import spec_ops


def measure(call, wait, calls, samples):
    """Microseconds a call: median and best of the samples."""
    for _ in range(calls):
        call()
    times = []
    for _ in range(samples):
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls * 1e6)
    wait()
    return statistics.median(times), min(times)


def numpy_rows():
    import numpy as np

    logits, bias = np.zeros((1, 8), np.float32), np.zeros(8, np.float32)
    out = np.empty((1, 1), np.float32), np.empty((1, 1), np.int32)
    yield from rows(logits, bias, out, "numpy")
    yield "numpy: numpy.add(bias, bias, out=bias)", lambda: np.add(bias, bias, out=bias)


def torch_rows(device):
    import torch

    import spec_ops.torch

    logits, bias = torch.zeros(1, 8, device=device), torch.zeros(8, device=device)
    out = torch.empty(1, 1, device=device), torch.empty(1, 1, device=device, dtype=torch.int32)
    name = f"torch on {device}"
    yield from rows(logits, bias, out, name)
    by_torch = torch.ops.spec_ops.topk_router.default
    yield f"{name}: torch.ops.spec_ops.topk_router", lambda: by_torch(logits, bias=bias, topk=1)
    add = torch.ops.aten.add_.Tensor
    yield f"{name}: torch.ops.aten.add_", lambda: add(bias, bias)
    yield (
        f"{name}: two torch.empty",
        lambda: (
            logits.new_empty((1, 1)),
            logits.new_empty((1, 1), dtype=torch.int32),
        ),
    )
    if device == "cuda" and importlib.util.find_spec("flashinfer"):
        import flashinfer

        probs = torch.full((1, 8), 0.125, device=device)
        yield (
            f"{name}: flashinfer.top_k_renorm_probs",
            lambda: flashinfer.sampling.top_k_renorm_probs(probs, 2),
        )


def rows(logits, bias, out, name):
    plan = spec_ops.TopkRouter(topk=1).plan(logits, bias=bias)
    yield f"{name}: planned", lambda: plan(logits, bias=bias, out=out)
    route = spec_ops.topk_router
    yield f"{name}: function with out", lambda: route(logits, bias=bias, topk=1, out=out)
    yield f"{name}: function", lambda: route(logits, bias=bias, topk=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], action="append")
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=31)
    parser.add_argument("--json", metavar="FILE")
    arguments = parser.parse_args()
    devices = arguments.device or ["cpu"]
    torch = importlib.util.find_spec("torch") and __import__("torch")
    measured = {}

    def report(found, wait):
        for name, call in found:
            median, best = measure(call, wait, arguments.calls, arguments.samples)
            measured[name] = {"median_us": round(median, 3), "best_us": round(best, 3)}
            print(f"{name:48} {median:8.2f} us   best {best:8.2f}")

    if "cpu" in devices:
        report(numpy_rows(), lambda: None)
    for device in devices if torch else []:
        report(torch_rows(device), torch.cuda.synchronize if device == "cuda" else lambda: None)
    if not torch:
        print("torch is not installed: no rows of it")
    if arguments.json:
        about = {"python": platform.python_version(), "torch": torch and torch.__version__}
        with open(arguments.json, "w") as file:
            json.dump(about | {"rows": measured}, file, indent=1)


if __name__ == "__main__":
    main()
