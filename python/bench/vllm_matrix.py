"""vLLM with and without this library, on a GPU: `python bench/vllm_matrix.py --set drafts --turns 3`.

Options of vllm_serve.py follow `--`: `-- --model llama1b` for another shape, or with real weights, whose
texts copy their prompts, `-- --gguf FILE` and `-- --path FOLDER`.

Starts an engine (`vllm_serve.py --wait`) for each row of a set, all of them on one GPU, and lets one
engine at a time serve one batch, row after row and turn after turn. All engines work on the same cores of
the host. So a slow minute or a slow core of the machine meets all rows alike, and a ratio compares what ran
within the same seconds. Prints a table: tokens per second, and the ratios to the set's first row and to
vLLM's own row above; each is the median of the turns, and the ratio's quartiles follow it. A turn counts the
fastest of `--repeats` runs of a batch. `--json FILE` keeps the line of each turn.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NGRAM = ["--draft", "ngram_gpu"]
PENALISED = ["--repetition-penalty", "1.1"]
SAMPLED = ["--temperature", "0.8", "--top-k", "40", "--top-p", "0.9"]
#: Rows of 128 and 256 requests with 5 drafts need graphs of 768 and 1536 tokens, which vLLM does not capture
#: by default.
SIZES = "--sizes 1 2 4 8 16 32 64 96 128 192 256 384 512 768 1536".split()
OURS = ["--parts", "all"]
LOOKUP = ["--parts", "drafter,sampler"]
FIRST = ["--runner", "1"]
#: By set: rows, each with a name and the options of its processes. Ratios are to the first.
SETS = {
    "drafts": {
        "no drafts": SIZES,
        "no drafts, all": [*SIZES, *OURS],
        "vLLM's ngram_gpu": [*NGRAM, *SIZES],
        "ngram_gpu, drafter,sampler": [*NGRAM, *SIZES, *LOOKUP],
        "ngram_gpu, all": [*NGRAM, *SIZES, *OURS],
    },
    "sampled": {
        "no drafts": [*SAMPLED],
        "no drafts, all": [*SAMPLED, *OURS],
        "vLLM's ngram_gpu": [*SAMPLED, *NGRAM, *SIZES],
        "ngram_gpu, all": [*SAMPLED, *NGRAM, *SIZES, *OURS],
    },
    "penalties": {
        "no drafts": PENALISED,
        "no drafts, all": [*PENALISED, *OURS],
        "vLLM's ngram_gpu": [*PENALISED, *NGRAM, *SIZES],
        "ngram_gpu, all": [*PENALISED, *NGRAM, *SIZES, *OURS],
        "ngram_gpu, all,penalties": [*PENALISED, *NGRAM, *SIZES, "--parts", "all,penalties"],
    },
    "default-sizes": {
        "no drafts": [],
        "vLLM's ngram_gpu": NGRAM,
        "ngram_gpu, all": [*NGRAM, *OURS],
    },
    "v1": {
        "no drafts": FIRST,
        "vLLM's ngram": [*FIRST, "--draft", "ngram"],
        "ngram, rejection,penalties": [*FIRST, "--draft", "ngram", "--parts", "rejection,penalties"],
    },
    "moe": {
        "vLLM": ["--model", "moe"],
        "routers": ["--model", "moe", "--parts", "routers"],
        "align": ["--model", "moe", "--parts", "align"],
    },
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=sorted(SETS), default="drafts")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=3, help="runs of a batch in a turn")
    parser.add_argument("--cores", type=int, default=4, help="cores of the host that the engines share")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 128, 256], help="requests")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no turn starts")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("rest", nargs="*", help="options of vllm_serve.py, after --")
    asked = parser.parse_args()
    start = time.monotonic()
    rows, turns = SETS[asked.set], []
    cores = sorted(os.sched_getaffinity(0))[: asked.cores]
    given = ["--batch", *map(str, asked.batch), "--cores", *map(str, cores), *asked.rest]
    with contextlib.ExitStack() as stack:
        engines = {name: stack.enter_context(Engine(name, [*row, *given])) for name, row in rows.items()}
        for engine in engines.values():
            engine.wait()
        for _ in range(asked.turns):
            if time.monotonic() - start > asked.limit:
                print(f"{len(turns)} of {asked.turns} turns: no time left")
                break
            # All rows serve one batch before any serves the next, so that the two of a ratio are neighbours.
            turn = {}
            for batch in asked.batch:
                turn[batch] = {name: engine.serve(batch, asked.repeats) for name, engine in engines.items()}
            turns.append(turn)
            # After each turn, so that an engine that dies takes no other turn with it.
            if asked.json:
                Path(asked.json).write_text(json.dumps(turns, indent=1))
    report(rows, turns)


class Engine:
    """A process of vllm_serve.py that serves what it is asked."""

    def __init__(self, name, options):
        serve = str(Path(__file__).with_name("vllm_serve.py"))
        self.name, self.said = name, tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, serve, "--wait", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def line(self):
        """The next line of JSON that the process writes."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self.said.seek(0)
        raise SystemExit(f"{self.name}: ended with {self.process.wait()}\n{self.said.read()[-3000:]}")

    def wait(self):
        """Returns once the engine has served each of its batches once."""
        while "ready" not in (line := self.line()):
            print(json.dumps({"row": self.name} | line), flush=True)

    def serve(self, batch, repeats):
        """One batch, several times: the line of vllm_serve.py about the fastest."""
        lines = []
        for _ in range(repeats):
            print(batch, file=self.process.stdin, flush=True)
            lines.append(self.line())
        return max(lines, key=lambda line: line["tokens_per_s"])


def report(rows, turns):
    """The table of a set."""
    names, own = list(rows), {}
    for name in names:
        if "--parts" not in rows[name]:
            vllm = name
        own[name] = vllm
    print("| | requests | tokens per second | ratio to the first | to vLLM's own | drafts accepted | texts |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        for batch in turns[0] if turns else ():
            lines = [turn[batch][name] for turn in turns]
            speed = statistics.median(line["tokens_per_s"] for line in lines)
            ratios = [ratio([turn[batch] for turn in turns], name, to) for to in (names[0], own[name])]
            made, accepted = lines[-1]["drafts"]
            digests = sorted({line["digest"] for line in lines})
            share = accepted / made if made else 0.0
            cells = [name, batch, f"{speed:.0f}", *ratios, f"{share:.2f}", " ".join(digests)]
            print(f"| {' | '.join(map(str, cells))} |")


def ratio(turns, name, to):
    """Tokens per second of a row over those of another in the same turn: the median, and the quartiles."""
    found = [turn[name]["tokens_per_s"] / turn[to]["tokens_per_s"] for turn in turns]
    if len(found) < 2:
        return f"{found[0]:.3f}"
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
