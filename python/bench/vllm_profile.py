"""Where a step of vLLM goes, with this library and without, on a GPU:
`python bench/vllm_profile.py --batch 1 32 -- --draft ngram_gpu`.

Runs an engine without this library and one with `--parts`, each in a process of its own, under
torch.profiler. Prints for each batch a table of microseconds a step: what keeps the host, by part of the
step, and what keeps the device, by kernel. The profiler itself costs the host time, so host times are for
comparison between the two columns. Options of vllm_serve.py follow `--`.
"""

import argparse
import json
import subprocess
import sys

import vllm_serve


def profiled(asked):
    """Serves batches under the profiler, and prints a line of JSON for each."""
    llm, core, runner = vllm_serve.started(asked)
    import torch
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    steps = []

    def around(name, call):
        def wrapped(*args, **named):
            if name == "execute_model":
                steps.append(name)
            with record_function(f"host: {name}"):
                return call(*args, **named)

        return wrapped

    vllm_serve.wrap(core, runner, around)
    for batch in asked.batch:
        given, wanted = vllm_serve.prompts(asked, llm, batch), vllm_serve.asks(asked, batch, asked.tokens)
        llm.generate(given, wanted, use_tqdm=False)
        steps.clear()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
            llm.generate(given, wanted, use_tqdm=False)
            torch.cuda.synchronize()
        host, device, launches = {}, {}, 0
        for event in trace.events():
            name, on_device = event.name, event.device_type == DeviceType.CUDA
            if name.startswith("host: "):
                if not on_device:
                    add(host, name.removeprefix("host: "), event.cpu_time_total)
            elif on_device:
                add(device, name, event.device_time_total)
            else:
                launches += "Launch" in name
        line = {"batch": batch, "steps": len(steps), "host": host, "device": device, "launches": launches}
        print(json.dumps(line), flush=True)


def add(found, name, microseconds):
    calls, spent = found.get(name, (0, 0.0))
    found[name] = (calls + 1, spent + microseconds)


def table(theirs, ours, rows):
    """The table of a batch; of kernels the `rows` that take longest."""
    print(f"\n{theirs['batch']} requests, {theirs['steps']} and {ours['steps']} steps; "
          "calls and microseconds a step\n")
    print("| | vLLM: calls | us | with spec_ops: calls | us |\n|---|---|---|---|---|")
    sides = theirs, ours
    for kind, most in (("host", None), ("device", rows)):
        names = {name: max(side[kind].get(name, (0, 0))[1] / side["steps"] for side in sides)
                 for side in sides for name in side[kind]}
        names = sorted(names, key=names.get, reverse=True)
        for name in names[:most]:
            print(row(f"{kind}: {short(name)}", sides, [side[kind].get(name, (0, 0)) for side in sides]))
        if names[most or len(names):]:
            rest = [[side[kind].get(name, (0, 0)) for name in names[most:]] for side in sides]
            print(row(f"{kind}: {len(names[most:])} others", sides, [sums(one) for one in rest]))
        if kind == "device":
            print(row("device: all", sides, [sums(side[kind].values()) for side in sides]))
    print(row("launches of kernels and graphs", sides, [(side["launches"], None) for side in sides]))


def sums(pairs):
    pairs = list(pairs)
    return sum(calls for calls, _ in pairs), sum(spent for _, spent in pairs)


def row(name, sides, found):
    cells = []
    for side, (calls, spent) in zip(sides, found):
        cells += [f"{calls / side['steps']:.1f}", "" if spent is None else f"{spent / side['steps']:.1f}"]
    return f"| {name} | {' | '.join(cells)} |"


def short(name):
    """A kernel's name without its template's arguments, which fill lines."""
    name = name.removeprefix("void ").replace("|", "/")
    name = name.partition("(")[0] if not name.startswith("(") else name
    return name if len(name) <= 70 else name[:67] + "..."


def main():
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", default="all", help="SPEC_OPS_VLLM of the second engine")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, default=25, help="kernels in a table")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments[:split])
    rest = ["--batch", *map(str, asked.batch), "--tokens", str(asked.tokens), *arguments[split + 1 :]]
    if asked.child:
        return profiled(vllm_serve.options().parse_args([*rest, "--parts", asked.parts]))
    lines = []
    for parts in ("", asked.parts):
        command = [sys.executable, __file__, "--child", "--parts", parts, "--", *rest]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print((done.stdout + done.stderr)[-5000:])
            return 1
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        print(json.dumps(found[0]), flush=True)
        lines.append([line for line in found if "steps" in line])
    for theirs, ours in zip(*lines):
        table(theirs, ours, asked.rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
