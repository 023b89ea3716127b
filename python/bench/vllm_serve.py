"""One vLLM engine on a GPU and batches of requests: `python bench/vllm_serve.py --batch 1 32 128`.

Prints a line of JSON for the engine, then one for each batch: tokens per second (the best of some
turns), a digest of the texts, how many drafts were made and accepted. With `--wait` it serves a batch
only when its number of requests arrives as a line of its input: so `vllm_matrix.py` keeps several engines
alive, lets one of them work at a time, and compares them.

Models: `smol` and `llama1b` have the shapes of SmolLM2-135M and Llama-3.2-1B with random weights, which
accept nearly no draft, and `moe` is a small mixture of experts. Real weights come from `--gguf FILE` or from
`--path FOLDER`, which has a model with its tokenizer as transformers saves it.
"""

import argparse
import hashlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

SHAPES = {
    "smol": ("llama", 576, 1536, 30, 9, 3, 49152),
    "llama1b": ("llama", 2048, 8192, 16, 32, 8, 128256),
    "moe": ("qwen3_moe", 1024, 2048, 8, 16, 4, 32768),
}
#: Lines that a prompt repeats. A model with real weights goes on repeating them, so its text copies itself.
LINES = [
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "def area(width, height):\n    return width * height",
    '{"id": 1, "state": "open", "owner": "Ada", "labels": ["bug", "urgent"]}',
    "A train leaves the station at noon and arrives at four in the afternoon.",
    "for (int i = 0; i < count; i++) { total += values[i]; }",
    "Please keep all receipts, since we can only refund what was paid for.",
]


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smol", choices=sorted(SHAPES))
    parser.add_argument("--gguf", metavar="FILE", help="real weights, computed in bf16")
    parser.add_argument("--path", metavar="FOLDER", help="real weights, a folder of safetensors")
    parser.add_argument("--folder", default="/tmp/spec_vllm_models", help="where models are made")
    parser.add_argument("--runner", type=int, default=2, choices=(1, 2))
    parser.add_argument("--parts", default="", help="SPEC_OPS_VLLM")
    parser.add_argument("--draft", default="none", choices=("none", "ngram", "ngram_gpu"))
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--repetition-penalty", type=float, default=1.0)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--sizes", type=int, nargs="*", help="cudagraph_capture_sizes")
    parser.add_argument("--kv-gib", type=float, default=8.0, help="GiB of the device for keys and values")
    parser.add_argument("--wait", action="store_true", help="serve the batches that the input names")
    parser.add_argument("--cores", type=int, nargs="*", help="cores of the host, with --wait")
    parser.add_argument("--host", action="store_true", help="how long parts of a step keep the host")
    return parser


def shaped(name, folder):
    """A folder with random weights, seeded, so that each process has the same."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    where = Path(folder) / name
    if (where / "config.json").exists():
        return str(where)
    where.parent.mkdir(parents=True, exist_ok=True)
    kind, hidden, intermediate, layers, heads, kv_heads, vocab = SHAPES[name]
    experts = {
        "moe_intermediate_size": 512,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    config = AutoConfig.for_model(
        kind,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        vocab_size=vocab,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.06,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        **(experts if name == "moe" else {}),
    )
    torch.manual_seed(7)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config)
    return saved(model.to(torch.bfloat16), where)


def saved(model, where, tokenizer=None):
    """The folder `where` with a model. Other processes may be making the same folder: each writes one of its
    own, and the first that is whole gets the name."""
    with tempfile.TemporaryDirectory(dir=where.parent) as own:
        made = Path(own) / where.name
        model.save_pretrained(made)
        if tokenizer is not None:
            tokenizer.save_pretrained(made)
        try:
            made.rename(where)
        except OSError:
            if not (where / "config.json").exists():
                raise
    return str(where)


def from_gguf(file, folder):
    """A folder with the weights of a GGUF file and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = Path(file)
    where = Path(folder) / file.stem
    if (where / "config.json").exists():
        return str(where)
    where.parent.mkdir(parents=True, exist_ok=True)
    taken = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    model = AutoModelForCausalLM.from_pretrained(**taken, dtype=torch.bfloat16)
    # transformers refuses to save what came from a GGUF file, although its weights are plain numbers now.
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return saved(model, where, AutoTokenizer.from_pretrained(**taken))


def weights(asked):
    """The folder of the model."""
    if asked.path:
        return asked.path
    return from_gguf(asked.gguf, asked.folder) if asked.gguf else shaped(asked.model, asked.folder)


def texts(asked, where, batch, vocab):
    """Prompts: phrases of random tokens, or lines that a real model goes on repeating."""
    rng = random.Random(11)
    if asked.gguf or asked.path:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(where)
        made = []
        for i in range(batch):
            made.append(tokenizer(f"{LINES[i % len(LINES)]}\n" * (3 + i % 3)).input_ids)
        return made
    made = []
    for _ in range(batch):
        phrase = [rng.randrange(2, vocab) for _ in range(12)]
        text = []
        while len(text) < 64:
            text += phrase[: rng.randrange(6, 13)]
        made.append(text[:64])
    return made


def drafts(llm):
    """How many drafts were made, and accepted, since the engine started."""
    found = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    names = ("draft_tokens", "accepted_tokens")
    return [int(found.get(f"vllm:spec_decode_num_{name}", 0)) for name in names]


def wrap(core, runner, around):
    """Puts `around(name, call)` in the place of the parts of a step. Of these, `sample` and `propose` are
    parts of `sample_tokens`, and the samplers' calls of `sample`."""
    for thing, names in (
        (core.scheduler, ("schedule", "update_from_output")),
        (runner, ("execute_model", "sample_tokens", "sample", "postprocess_sampled")),
        (getattr(runner, "speculator", None), ("propose",)),
    ):
        for name in names if thing is not None else ():
            if hasattr(thing, name):
                setattr(thing, name, around(name, getattr(thing, name)))
    samplers = (getattr(runner, name, None) for name in ("sampler", "rejection_sampler"))
    for thing in filter(None, samplers):
        # Python looks up `__call__` in the class.
        kind = type(thing)
        kind.__call__ = around(f"{kind.__name__}.__call__", kind.__call__)


class Host:
    """How long parts of a step keep the host."""

    def __init__(self):
        self.spent = {}

    def timed(self, name, call):
        def wrapped(*args, **named):
            start = time.perf_counter()
            made = call(*args, **named)
            calls, seconds = self.spent.get(name, (0, 0.0))
            self.spent[name] = calls + 1, seconds + time.perf_counter() - start
            return made

        return wrapped

    def take(self):
        """Microseconds a call, by part, since the last time."""
        spent, self.spent = self.spent, {}
        return {name: round(seconds / calls * 1e6, 1) for name, (calls, seconds) in spent.items()}


def started(asked):
    """The engine, its core, and the core's model runner; prints a line about them."""
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(asked.runner - 1)
    os.environ["SPEC_OPS_VLLM"] = asked.parts
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    for name in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.setdefault(name, "1")
    start = time.perf_counter()
    import torch
    import vllm
    from vllm import LLM

    where = weights(asked)
    engine = {"enforce_eager": asked.eager}
    if not asked.eager:
        # The default of mode 3 compiles the model besides, which takes a minute at each start.
        graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"}
        sizes = {"cudagraph_capture_sizes": asked.sizes} if asked.sizes else {}
        engine["compilation_config"] = graphs | sizes
    if asked.draft != "none":
        engine["speculative_config"] = {
            "method": asked.draft,
            "num_speculative_tokens": asked.drafts,
            "prompt_lookup_min": 2,
            "prompt_lookup_max": 5,
        }
    llm = LLM(
        model=where,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=max(asked.batch),
        # What other engines on the device hold must not change how much this one takes.
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=int(asked.kv_gib * 2**30),
        seed=0,
        enable_prefix_caching=False,
        disable_log_stats=False,
        **engine,
    )
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker
    runner = getattr(runner, "worker", runner).model_runner
    kinds = [type(getattr(runner, name, None)) for name in ("sampler", "rejection_sampler", "speculator")]
    about = {"vllm": vllm.__version__, "torch": torch.__version__}
    about |= {"gpu": torch.cuda.get_device_name(), "start_s": round(time.perf_counter() - start, 1)}
    print(json.dumps(about | {"classes": [f"{k.__module__}.{k.__name__}" for k in kinds]}), flush=True)
    return llm, core, runner


def asks(asked, batch, tokens):
    """What each request of a batch asks for."""
    from vllm import SamplingParams

    return [
        SamplingParams(
            temperature=asked.temperature,
            top_k=asked.top_k,
            top_p=asked.top_p,
            repetition_penalty=asked.repetition_penalty,
            max_tokens=tokens,
            ignore_eos=True,
            seed=100 + i if asked.temperature else None,
            detokenize=False,
        )
        for i in range(batch)
    ]


def prompts(asked, llm, batch):
    """The prompts of a batch, as vLLM takes them."""
    vocab = llm.llm_engine.model_config.get_vocab_size()
    return [{"prompt_token_ids": text} for text in texts(asked, weights(asked), batch, vocab)]


class Served:
    """One batch of requests, which the engine serves as often as it is called."""

    def __init__(self, asked, llm, batch):
        self.llm, self.batch, self.tokens = llm, batch, asked.tokens
        self.given, self.wanted = prompts(asked, llm, batch), asks(asked, batch, asked.tokens)

    def __call__(self):
        """A line: tokens per second, a digest of the texts, drafts made and accepted."""
        before, start = drafts(self.llm), time.perf_counter()
        made = self.llm.generate(self.given, self.wanted, use_tqdm=False)
        seconds = time.perf_counter() - start
        tokens = [list(one.outputs[0].token_ids) for one in made]
        return {
            "batch": self.batch,
            "tokens_per_s": round(self.batch * self.tokens / seconds, 1),
            "digest": hashlib.sha256(repr(tokens).encode()).hexdigest()[:16],
            "drafts": [now - then for now, then in zip(drafts(self.llm), before)],
        }


def main():
    asked = options().parse_args()
    llm, core, runner = started(asked)
    host = Host() if asked.host else None
    if host:
        wrap(core, runner, host.timed)
    batches = {batch: Served(asked, llm, batch) for batch in asked.batch}
    if asked.wait:
        for served in batches.values():
            served()
        for task in os.listdir("/proc/self/task") if asked.cores else ():
            os.sched_setaffinity(int(task), asked.cores)
        print(json.dumps({"ready": asked.batch}), flush=True)
        for line in sys.stdin:
            print(json.dumps(batches[int(line)]()), flush=True)
        return
    for served in batches.values():
        served()
        if host:
            host.take()
        turns = [served() for _ in range(asked.turns)]
        speeds = [turn["tokens_per_s"] for turn in turns]
        line = turns[-1] | {
            "tokens_per_s": max(speeds),
            "median_tokens_per_s": statistics.median(speeds),
            "drafts": [sum(turn["drafts"][i] for turn in turns) for i in (0, 1)],
        }
        if host:
            line["host_us"] = host.take()
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
