"""One vLLM engine on the CPU, and batches of requests: `python engine.py '{"runner": 2, ..}'`.

Prints a line of JSON that says which classes serve, then one for each batch: the tokens of each
request, how many drafts were made and accepted, log-probabilities, how many requests were preempted, or
the sentence of a refusal. The
model has random weights, the same in each process, and a tokenizer whose words are `t0`, `t1`, ...
"""

import json
import os
import random
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

import live_model  # noqa: E402

WANTED = json.loads(sys.argv[1])
os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if WANTED["runner"] == 2 else "0"
os.environ["SPEC_OPS_VLLM"] = WANTED.get("parts", "")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
if WANTED.get("ranks"):
    # A question to all ranks is a function, which is pickled.
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
# vLLM compiles parts of itself (the ranks of log-probabilities, the embedding of a rank's tokens), for which
# torch asks Triton for more than `sitecustomize.py` has.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ[name] = "1"


def model(folder):
    """A folder with a model and a tokenizer, made once."""
    if os.path.exists(os.path.join(folder, "tokenizer.json")):
        return folder
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    live_model.save(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(live_model.VOCAB)}, unk_token="t2"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="t0", eos_token="t1", unk_token="t2", pad_token="t1"
    ).save_pretrained(folder)
    return folder


def prompts(count, length, rng):
    """Texts that repeat themselves: a phrase of 12 tokens over and over, cut at random places."""
    made = []
    for _ in range(count):
        phrase = live_model.phrase(rng)
        text = []
        while len(text) < length:
            text += phrase[: rng.randrange(6, 13)]
        made.append(text[: length - rng.randrange(length // 2)])
    return made


def counted(llm):
    """How many drafts were made, and accepted, and how many requests preempted, since the engine
    started."""
    found = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "num_preemptions")
    return [int(found.get(f"vllm:{name}", 0)) for name in names]


def scores(positions):
    """Log-probabilities and ranks, of each position of a text."""
    return positions and [
        at and {token: [round(one.logprob, 3), one.rank] for token, one in at.items()}
        for at in positions
    ]


def drawn(worker):
    """How many steps a rank drew from its columns, by way; None where it has no columns."""
    shards = getattr(worker.model_runner, "spec_ops_shards", None)
    return shards and dict(shards.drawn)


def served(core):
    """The classes that sample, verify and draft."""
    if WANTED.get("ranks"):
        return {}
    runner = core.model_executor.driver_worker
    runner = getattr(runner, "worker", runner).model_runner
    parts = ("sampler", "rejection_sampler", "speculator", "drafter")
    kinds = {name: type(getattr(runner, name, None)) for name in ("", *parts)} | {"": type(runner)}
    return {name or "runner": f"{kind.__module__}.{kind.__name__}" for name, kind in kinds.items()}


def main():
    import torch
    from vllm import LLM, SamplingParams
    from vllm.exceptions import VLLMClientError
    from vllm.sampling_params import StructuredOutputsParams

    torch.set_num_threads(2)
    options = {"max_model_len": 512} | WANTED.get("engine", {})
    if WANTED.get("draft"):
        options["speculative_config"] = {
            "method": WANTED["draft"],
            "num_speculative_tokens": WANTED.get("drafts", 4),
            "prompt_lookup_min": 1,
            "prompt_lookup_max": 4,
        }
    llm = LLM(
        model=model(WANTED["model"]),
        dtype="float32",
        enforce_eager=True,
        max_num_seqs=16,
        seed=0,
        enable_prefix_caching=False,
        disable_log_stats=False,
        tensor_parallel_size=WANTED.get("ranks", 1),
        **options,
    )
    print(json.dumps(served(llm.llm_engine.engine_core.engine_core)), flush=True)
    for batch in WANTED["batches"]:
        rng = random.Random(batch.get("text", 11))
        requests = batch["requests"]
        texts = prompts(len(requests), batch.get("length", 40), rng)
        asked = []
        for i, request in enumerate(requests):
            request = {"max_tokens": batch.get("tokens", 16), "ignore_eos": True, **request}
            if "regex" in request:
                request["structured_outputs"] = StructuredOutputsParams(regex=request.pop("regex"))
            if request.get("temperature", 0) > 0:
                request.setdefault("seed", 100 + i)
            asked.append(SamplingParams(**{"temperature": 0.0, **request}))
        before = counted(llm)
        line = {"batch": batch["name"]}
        try:
            made = llm.generate(
                [{"prompt_token_ids": text} for text in texts], asked, use_tqdm=False
            )
        except VLLMClientError as refused:
            line["refused"] = str(refused)
        else:
            line["tokens"] = [list(one.outputs[0].token_ids) for one in made]
            line["logprobs"] = [scores(one.outputs[0].logprobs) for one in made]
            line["prompt_logprobs"] = [scores(one.prompt_logprobs) for one in made]
            *line["drafts"], line["preempted"] = [
                now - then for now, then in zip(counted(llm), before)
            ]
        if WANTED.get("ranks"):
            line["drawn"] = llm.collective_rpc(drawn)
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
