#!/usr/bin/env python3
"""Drafters of this library and of others on the texts that `spec-llm texts` wrote.

    cargo run --release -- texts --model FILE --out texts.json
    pip install ../../python numpy torch transformers llama-cpp-python arctic-inference
    python3 peers.py texts.json
    python3 peers.py --cost spec_ops; python3 peers.py --cost arctic

Each text is gone through as decoding goes through it: the drafter sees the tokens so far, its drafts
are compared with the tokens that follow, those that stand and one token more are the next step.
The time of a call is that of drafting alone, and of what a drafter must be told of new tokens: the
median.
A library that is not installed is left out, by name. Of llama-cpp-python, whose installation
compiles llama.cpp, `--llama-cpp-python FOLDER` takes the one file that drafts from an unpacked
source package.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path


class Spec:
    """spec_ops.prompt_lookup and suffix_lookup, by a plan for each text, and spec_ops.Corpus."""

    def __init__(self, drafts, width, corpus=False, limit=1 << 18):
        import numpy
        import spec_ops

        self.np, self.ops, self.drafts = numpy, spec_ops, drafts
        if width:
            self.operator = spec_ops.SuffixLookup(width=width, n=drafts)
        else:
            self.operator = spec_ops.PromptLookup(min_ngram=1, max_ngram=4, max_draft=drafts)
        self.width, self.corpus = width, spec_ops.Corpus(limit) if corpus else None

    def start(self, text, prompt):
        self.text = self.np.array([text], self.np.int32)
        self.length = self.np.array([prompt], self.np.int32)
        self.corpora = {}
        if self.corpus is not None:
            self.corpora = {"corpus": self.corpus.tokens, "corpus_length": self.corpus.length}
        asked = {"parents": True} if self.width else {}
        self.plan = self.operator.plan(self.text, self.length, **self.corpora, **asked)

    def draft(self, place, drafts):
        self.length[0] = place
        found = self.plan(self.text, self.length, **self.corpora)
        count = min(int(found.counts[0]), drafts)
        parents = found.parents[0, :count] - 1 if self.width else None
        return found.drafts[0, :count], parents

    def finish(self, answer):
        if self.corpus is not None:
            self.corpus.append(answer)


class Transformers:
    """PromptLookupCandidateGenerator: the first occurrence of the longest of 1 .. size tokens."""

    def __init__(self, drafts, size):
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self.torch, self.drafts = torch, drafts
        self.make = lambda length: PromptLookupCandidateGenerator(
            num_output_tokens=drafts, max_matching_ngram_size=size, max_length=length
        )

    def start(self, text, prompt):
        self.text, self.prompt = self.torch.tensor([text]), prompt
        self.generator = self.make(len(text) + self.drafts + 2)

    def draft(self, place, drafts):
        ids, _ = self.generator.get_candidates(self.text[:, :place])
        return ids[0, place : place + drafts], None

    def finish(self, answer):
        pass


class LlamaCpp:
    """LlamaPromptLookupDecoding: the first occurrence as well, in numpy."""

    def __init__(self, drafts, size, folder):
        if folder:
            path = Path(folder) / "llama_cpp" / "llama_speculative.py"
            spec = importlib.util.spec_from_file_location("llama_speculative", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            import llama_cpp.llama_speculative as module
        self.generator = module.LlamaPromptLookupDecoding(
            max_ngram_size=size, num_pred_tokens=drafts
        )

    def start(self, text, prompt):
        import numpy

        self.text = numpy.array(text, numpy.intc)

    def draft(self, place, drafts):
        return self.generator(self.text[:place])[:drafts], None

    def finish(self, answer):
        pass


class Arctic:
    """SuffixDecodingCache: suffix trees of the request and of finished answers, kept up to date."""

    def __init__(self, drafts, tree, corpus, limits=True):
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.drafts, self.tree, self.request = drafts, tree, 0
        # By default a match of n tokens gives n drafts at most, of a probability of 0.1 at least.
        self.limits = {} if limits else {"max_spec_factor": 64.0, "min_token_prob": 0.0}
        # Without a corpus, nothing of finished answers is kept.
        self.cache = SuffixDecodingCache(64, -1 if corpus else 0)

    def start(self, text, prompt):
        import numpy

        self.text = numpy.array(text, numpy.int32)
        self.request += 1
        self.known = prompt
        self.cache.start_request(self.request, self.text[:prompt])

    def draft(self, place, drafts):
        if place > self.known:
            self.cache.add_active_response(self.request, self.text[self.known : place])
            self.known = place
        draft = self.cache.speculate(
            self.request,
            self.text[:place],
            min(drafts, self.drafts),
            use_tree_spec=self.tree,
            **self.limits,
        )
        return draft.token_ids, draft.parents

    def finish(self, answer):
        if self.known < len(self.text):
            self.cache.add_active_response(self.request, self.text[self.known :])
        self.cache.stop_request(self.request)


def stands(drafts, parents, after):
    """How many drafts stand, and none behind the first that does not."""
    node, count = -1, 0
    for token in after:
        for at, draft in enumerate(drafts):
            if draft == token and (parents[at] if parents is not None else at - 1) == node:
                break
        else:
            break
        node, count = at, count + 1
    return count


def go_through(drafter, texts):
    tokens = runs = drafted = accepted = 0
    seconds = []
    for known in texts:
        text = known["prompt"] + known["answer"]
        prompt = place = len(known["prompt"])
        drafter.start(text, prompt)
        while known["measured"] and place < len(text):
            # The last token of a run is the model's own, as in decoding.
            room = len(text) - 1 - place
            started = time.perf_counter()
            drafts, parents = drafter.draft(place, room)
            seconds.append(time.perf_counter() - started)
            drafts = [int(token) for token in drafts]
            stood = stands(drafts, parents, text[place : place + room])
            runs, drafted, accepted = runs + 1, drafted + len(drafts), accepted + stood
            place += stood + 1
        tokens += len(known["answer"]) if known["measured"] else 0
        drafter.finish(known["answer"])
    return {
        "tokens_per_run": tokens / max(runs, 1),
        "accepted_share": accepted / max(drafted, 1),
        "microseconds_per_call": statistics.median(seconds) * 1e6,
    }


def resident():
    """Bytes of memory that this process has by now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


COSTS = {
    "spec_ops": lambda: Spec(8, 1, corpus=True, limit=1 << 20),
    "arctic": lambda: Arctic(8, False, True, limits=False),
}


def cost(name):
    """Time and memory by the size of a corpus of answers of 512 tokens, drawn from 2,000 words."""
    import numpy

    random = numpy.random.default_rng(0)

    def words():
        return (random.zipf(1.3, 511) % 2000).tolist()

    # What a first text needs is not the corpus's.
    warm = COSTS[name]()
    warm.start(words(), 1)
    warm.finish(words())
    drafter, before, size, answers = COSTS[name](), resident(), 0, []
    print(f"{name:<10}{'corpus':>10}{'us per call':>13}{'us an answer':>14}{'bytes per token':>17}")
    for size_limit in (1 << 14, 1 << 16, 1 << 18, (1 << 20) - (1 << 15)):
        while size < size_limit:
            answer = words()
            drafter.start(answer, 1)
            started = time.perf_counter()
            drafter.finish(answer)
            answers.append(time.perf_counter() - started)
            size += 512
        bytes_per_token = (resident() - before) / size
        calls = []
        for _ in range(20):
            drafter.start(words(), 500)
            for place in range(500, 505):
                started = time.perf_counter()
                drafter.draft(place, 8)
                calls.append(time.perf_counter() - started)
        call, answer = (statistics.median(part) * 1e6 for part in (calls, answers[-32:]))
        print(f"{'':<10}{size:>10}{call:>13.0f}{answer:>14.0f}{bytes_per_token:>17.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="?", help="what `spec-llm texts` wrote")
    parser.add_argument("--cost", choices=COSTS, help="time and memory by size of the corpus")
    parser.add_argument("--llama-cpp-python", metavar="FOLDER", help="its unpacked source package")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.cost:
        cost(options.cost)
        return
    if options.texts is None:
        parser.error("expected texts, or --cost")
    groups = {}
    for known in json.loads(Path(options.texts).read_text()):
        groups.setdefault(known["group"], []).append(known)

    drafters = {
        "prompt_lookup, 8": lambda: Spec(8, 0),
        "chain of 2": lambda: Spec(2, 1),
        "chain of 8": lambda: Spec(8, 1),
        "tree of 2": lambda: Spec(2, 2),
        "tree of 8": lambda: Spec(8, 2),
        "tree of 16": lambda: Spec(16, 4),
        "chain of 2 + corpus": lambda: Spec(2, 1, corpus=True),
        "chain of 8 + corpus": lambda: Spec(8, 1, corpus=True),
        "tree of 2 + corpus": lambda: Spec(2, 2, corpus=True),
        "tree of 8 + corpus": lambda: Spec(8, 2, corpus=True),
        "tree of 16 + corpus": lambda: Spec(16, 4, corpus=True),
        "transformers, 8": lambda: Transformers(8, 2),
        "transformers, 8, up to 4": lambda: Transformers(8, 4),
        "llama-cpp-python, 8": lambda: LlamaCpp(8, 2, options.llama_cpp_python),
        "arctic chain of 8": lambda: Arctic(8, False, False),
        "arctic chain of 8, no limits": lambda: Arctic(8, False, False, limits=False),
        "arctic tree of 16, no limits": lambda: Arctic(16, True, False, limits=False),
        "arctic tree of 8": lambda: Arctic(8, True, False),
        "arctic tree of 16": lambda: Arctic(16, True, False),
        "arctic chain of 8 + corpus": lambda: Arctic(8, False, True),
        "arctic tree of 8 + corpus": lambda: Arctic(8, True, True),
        "arctic tree of 16 + corpus": lambda: Arctic(16, True, True),
        "arctic chain of 8 + corpus, no limits": lambda: Arctic(8, False, True, limits=False),
        "arctic tree of 16 + corpus, no limits": lambda: Arctic(16, True, True, limits=False),
    }
    rows = []
    for name, make in drafters.items():
        try:
            make()
        except (ImportError, OSError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
            continue
        for group, texts in groups.items():
            rows.append({"group": group, "drafter": name} | go_through(make(), texts))
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'':<40}" + "".join(f"{group:>24}" for group in groups))
    print(f"{'':<40}" + "    tokens/run  stood   us" * len(groups))
    for name in dict.fromkeys(row["drafter"] for row in rows):
        cells = {row["group"]: row for row in rows if row["drafter"] == name}
        line = "".join(
            f"{cell['tokens_per_run']:>14.2f}{100 * cell['accepted_share']:>6.0f}%"
            f"{cell['microseconds_per_call']:>5.0f}"
            for cell in (cells[group] for group in groups)
        )
        print(f"{name:<40}{line}")


if __name__ == "__main__":
    main()
