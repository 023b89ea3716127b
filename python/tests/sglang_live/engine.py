"""One SGLang engine on the CPU, and batches of requests: `python engine.py '{"parts": "tree", ..}'`.

Prints a line of JSON for each batch: the tokens of each request, and how many drafts were made and
accepted. The model has random weights, the same in each process.
"""

import json
import os
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import live_model  # noqa: E402


def model(folder):
    """A folder with a model, made once."""
    if os.path.exists(os.path.join(folder, "config.json")):
        return folder
    live_model.save(folder)
    return folder


def prompts(count, rng):
    """Texts that repeat themselves: a phrase of 12 tokens over and over, cut at random places."""
    made = []
    for _ in range(count):
        phrase = live_model.phrase(rng)
        text = [token for _ in range(6) for token in phrase[: rng.randrange(6, 13)]]
        made.append(text[: 40 - rng.randrange(20)])
    return made


def main():
    wanted = json.loads(sys.argv[1])
    # The processes that SGLang starts have these too.
    os.environ |= {"SPEC_OPS_SGLANG": wanted["parts"], "SGLANG_USE_CPU_ENGINE": "1"}
    import sglang

    engine = sglang.Engine(
        model_path=model(wanted["model"]),
        skip_tokenizer_init=True,
        device="cpu",
        dtype="float32",
        context_length=512,
        max_running_requests=8,
        max_total_tokens=4096,
        random_seed=0,
        log_level="info",
        **wanted["engine"],
    )
    for batch in wanted["batches"]:
        rng = random.Random(11)
        asked = [
            {"max_new_tokens": 16, "ignore_eos": True, "temperature": 0.0, **request}
            for request in batch["requests"]
        ]
        made = engine.generate(input_ids=prompts(len(asked), rng), sampling_params=asked)
        drafts = [
            sum(one["meta_info"].get(f"spec_num_{name}_drafts", 0) for one in made)
            for name in ("proposed", "correct")
        ]
        tokens = [one["output_ids"] for one in made]
        print(json.dumps({"batch": batch["name"], "tokens": tokens, "drafts": drafts}), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
