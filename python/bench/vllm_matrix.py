"""vLLM with and without this library, on a GPU: `python bench/vllm_matrix.py --set drafts --turns 3`.

Options of vllm_serve.py follow `--`: `-- --model llama1b` for another shape, or with real weights, whose
texts copy their prompts, `-- --gguf FILE` and `-- --path FOLDER`.

Runs processes of `vllm_serve.py`, alternating between the rows of a set, so that what changes on the
machine in between meets all rows. Prints a table: tokens per second, the median of the processes, and the
ratio to the set's first row. `--json FILE` keeps each process's lines.
"""

import argparse
import json
import statistics
import subprocess
import sys
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
        "vLLM's ngram_gpu": [*NGRAM, *SIZES],
        "ngram_gpu, drafter,sampler": [*NGRAM, *SIZES, *LOOKUP],
        "ngram_gpu, all": [*NGRAM, *SIZES, *OURS],
        "no drafts, all": [*SIZES, *OURS],
    },
    "sampled": {
        "no drafts, 0.8, 40, 0.9": [*SAMPLED],
        "no drafts, 0.8, 40, 0.9, all": [*SAMPLED, *OURS],
        "vLLM's ngram_gpu, 0.8, 40, 0.9": [*SAMPLED, *NGRAM, *SIZES],
        "ngram_gpu, 0.8, 40, 0.9, all": [*SAMPLED, *NGRAM, *SIZES, *OURS],
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
    parser.add_argument("--turns", type=int, default=3, help="processes of each row")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 128, 256], help="requests")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which none starts")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("rest", nargs="*", help="options of vllm_serve.py, after --")
    asked = parser.parse_args()
    serve = Path(__file__).with_name("vllm_serve.py")
    batches = ["--batch", *map(str, asked.batch)]
    rows, start, failed = {name: [] for name in SETS[asked.set]}, time.monotonic(), 0
    for _ in range(asked.turns):
        for name, options in SETS[asked.set].items():
            if time.monotonic() - start > asked.limit:
                print(f"not run, no time left: {name}")
                continue
            command = [sys.executable, str(serve), *options, *batches, *asked.rest]
            done = subprocess.run(command, capture_output=True, text=True)
            lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode != 0:
                print(f"{name}: failed\n{(done.stdout + done.stderr)[-3000:]}")
                failed = 1
                continue
            rows[name].append(lines)
            print(json.dumps({"row": name, "lines": lines}), flush=True)
    report(rows)
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=1))
    return failed


def report(rows):
    """The table of a set."""
    first, medians = next(iter(rows)), {}
    for name, processes in rows.items():
        batches = [line for lines in processes for line in lines if "batch" in line]
        for batch in dict.fromkeys(line["batch"] for line in batches):
            of_batch = [line for line in batches if line["batch"] == batch]
            speed = statistics.median(line["tokens_per_s"] for line in of_batch)
            made, accepted = of_batch[-1]["drafts"]
            digests = sorted({line["digest"] for line in of_batch})
            medians[name, batch] = (speed, accepted / made if made else 0.0, digests)
    print("| | requests | tokens per second | ratio to the first | drafts accepted | texts |")
    print("|---|---|---|---|---|---|")
    for (name, batch), (speed, share, digests) in medians.items():
        base = medians.get((first, batch), (float("nan"),))[0]
        print(f"| {name} | {batch} | {speed:.0f} | {speed / base:.3f} | {share:.2f} | {' '.join(digests)} |")


if __name__ == "__main__":
    sys.exit(main())
