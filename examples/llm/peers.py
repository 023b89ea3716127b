#!/usr/bin/env python3
"""Drafters of other libraries on the texts that `spec-llm texts` wrote, beside `spec-llm replay`.

    cargo run --release -- texts --model FILE --out texts.json
    cargo run --release -- replay texts.json --json > ours.json
    pip install numpy torch transformers llama-cpp-python arctic-inference
    python3 peers.py texts.json --ours ours.json

Each text is gone through as decoding goes through it: the drafter sees the tokens so far, its drafts
are compared with the tokens that follow, those that stand and one token more are the next step.
The time of a call is that of drafting alone, and of what a drafter must be told of new tokens.
A library that is not installed is left out, by name. Of llama-cpp-python, whose installation
compiles llama.cpp, `--llama-cpp-python FOLDER` takes the one file that drafts from an unpacked
source package.
"""

import argparse
import importlib.util
import json
import sys
import time
from pathlib import Path


class Transformers:
    """PromptLookupCandidateGenerator: the first occurrence of the longest of 1 .. size tokens."""

    def __init__(self, most, size):
        import torch
        from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

        self.torch, self.most = torch, most
        self.make = lambda length: PromptLookupCandidateGenerator(
            num_output_tokens=most, max_matching_ngram_size=size, max_length=length
        )

    def start(self, text, prompt):
        self.text, self.prompt = self.torch.tensor([text]), prompt
        self.generator = self.make(len(text) + self.most + 2)

    def draft(self, place, most):
        ids, _ = self.generator.get_candidates(self.text[:, :place])
        return ids[0, place : place + most], None

    def finish(self, answer):
        pass


class LlamaCpp:
    """LlamaPromptLookupDecoding: the first occurrence as well, in numpy."""

    def __init__(self, most, size, folder):
        if folder:
            path = Path(folder) / "llama_cpp" / "llama_speculative.py"
            spec = importlib.util.spec_from_file_location("llama_speculative", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            import llama_cpp.llama_speculative as module
        self.generator = module.LlamaPromptLookupDecoding(
            max_ngram_size=size, num_pred_tokens=most
        )

    def start(self, text, prompt):
        import numpy

        self.text = numpy.array(text, numpy.intc)

    def draft(self, place, most):
        return self.generator(self.text[:place])[:most], None

    def finish(self, answer):
        pass


class Arctic:
    """SuffixDecodingCache: suffix trees of the request and of finished answers, kept up to date."""

    def __init__(self, most, tree, corpus):
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.most, self.tree, self.request = most, tree, 0
        # Without a corpus, nothing of finished answers is kept.
        self.cache = SuffixDecodingCache(64, -1 if corpus else 0)

    def start(self, text, prompt):
        import numpy

        self.text = numpy.array(text, numpy.int32)
        self.request += 1
        self.known = prompt
        self.cache.start_request(self.request, self.text[:prompt])

    def draft(self, place, most):
        if place > self.known:
            self.cache.add_active_response(self.request, self.text[self.known : place])
            self.known = place
        draft = self.cache.speculate(
            self.request, self.text[:place], min(most, self.most), use_tree_spec=self.tree
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
    seconds = 0.0
    for known in texts:
        text = known["prompt"] + known["answer"]
        prompt = place = len(known["prompt"])
        drafter.start(text, prompt)
        while known["measured"] and place < len(text):
            # The last token of a run is the model's own, as in decoding.
            room = len(text) - 1 - place
            started = time.perf_counter()
            drafts, parents = drafter.draft(place, room)
            seconds += time.perf_counter() - started
            drafts = [int(token) for token in drafts]
            stood = stands(drafts, parents, text[place : place + room])
            runs, drafted, accepted = runs + 1, drafted + len(drafts), accepted + stood
            place += stood + 1
        tokens += len(known["answer"]) if known["measured"] else 0
        drafter.finish(known["answer"])
    return {
        "tokens_per_run": tokens / max(runs, 1),
        "accepted_share": accepted / max(drafted, 1),
        "microseconds_per_call": seconds * 1e6 / max(runs, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", help="what `spec-llm texts` wrote")
    parser.add_argument("--ours", help="what `spec-llm replay --json` printed")
    parser.add_argument("--llama-cpp-python", metavar="FOLDER", help="its unpacked source package")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    groups = {}
    for known in json.loads(Path(options.texts).read_text()):
        groups.setdefault(known["group"], []).append(known)

    drafters = {
        "transformers, 8": lambda: Transformers(8, 2),
        "transformers, 8, up to 4": lambda: Transformers(8, 4),
        "llama-cpp-python, 8": lambda: LlamaCpp(8, 2, options.llama_cpp_python),
        "arctic chain of 8": lambda: Arctic(8, False, False),
        "arctic tree of 8": lambda: Arctic(8, True, False),
        "arctic tree of 16": lambda: Arctic(16, True, False),
        "arctic chain of 8 + corpus": lambda: Arctic(8, False, True),
        "arctic tree of 8 + corpus": lambda: Arctic(8, True, True),
        "arctic tree of 16 + corpus": lambda: Arctic(16, True, True),
    }
    rows = json.loads(Path(options.ours).read_text()) if options.ours else []
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
    print(f"{'':<28}" + "".join(f"{group:>24}" for group in groups))
    print(f"{'':<28}" + "    tokens/run  stood   us" * len(groups))
    for name in dict.fromkeys(row["drafter"] for row in rows):
        cells = {row["group"]: row for row in rows if row["drafter"] == name}
        line = "".join(
            f"{cell['tokens_per_run']:>14.2f}{100 * cell['accepted_share']:>6.0f}%"
            f"{cell['microseconds_per_call']:>5.0f}"
            for cell in (cells[group] for group in groups)
        )
        print(f"{name:<28}{line}")


if __name__ == "__main__":
    main()
