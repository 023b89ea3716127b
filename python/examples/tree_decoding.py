"""Decodes with trees of drafts that a smaller model proposes, as EAGLE does.

    python examples/tree_decoding.py --tiny                                   # random weights
    python examples/tree_decoding.py --model SmolLM2-135M-Instruct.Q4_1.gguf --layers 20

The drafter is the model without its last layers: a real drafter for which nothing has to be
trained, though not a good one. In each step it proposes the `--beam` likeliest tokens after the
text, then, `--depth` times in all, the likeliest tokens after each token of its beam: 8 + 5 * 64 =
328 candidates by default, each with the probability of the whole way to it. `draft_tree` keeps the
`--nodes` likeliest and packs which node sees which others into bits. From these bits the program
makes the 4D mask with which the model's attention reads all nodes in one run. `sample_logits` draws the
model's own token after each node, and `tree_verify` follows them through the tree, so the text is
the one without drafts, greedy or sampled. The program compares both texts, and counts runs.
"""

import argparse
import copy
import dataclasses
import sys

import torch
from generate import Decoder, Model, Settings, first_difference, load, prompts_of, tiny

import spec_ops


def without_last_layers(model, layers):
    """The same model with its first `layers` layers alone. It shares the weights."""
    smaller = copy.copy(model)
    smaller._modules = dict(model._modules)
    smaller.model = copy.copy(model.model)
    smaller.model._modules = dict(model.model._modules)
    smaller.model.layers = model.model.layers[:layers]
    smaller.config = copy.deepcopy(model.config)
    smaller.config.num_hidden_layers = layers
    smaller.model.config = smaller.config
    return smaller


@dataclasses.dataclass
class Shape:
    """How many tokens follow each token of the beam, how deep a tree is, and how many of its
    candidates the model verifies."""

    beam: int = 8
    depth: int = 6
    nodes: int = 64

    @property
    def candidates(self):
        return self.beam + (self.depth - 1) * self.beam**2


class Drafter:
    """Proposes candidates with a model whose cache has room for the beams of a step."""

    def __init__(self, model, shape, batch, max_len):
        self.shape, self.batch = shape, batch
        self.model = Model(model, max_len + shape.depth * shape.beam + shape.depth)
        self.columns = self.model.columns
        # For each candidate, 0 if it follows the text, else the candidate that it follows, from 1.
        self.parents = torch.zeros(batch, shape.candidates, dtype=torch.int32, device=model.device)

    def __call__(self, tokens, lengths):
        """Candidates `[batch, candidates]` and the probability of the way to each, after texts of
        `lengths` tokens. Fills `parents`."""
        shape, device = self.shape, tokens.device
        # A step appends at most `depth` + 1 tokens, which this model has not seen yet.
        at = (lengths[:, None] + torch.arange(-shape.depth - 1, 0, device=device)).clamp_min(0)
        logits = self.model(tokens.gather(1, at).long(), at, logits_to_keep=1)[:, -1]
        scores, beam = logits.float().softmax(-1).topk(shape.beam)
        candidates, ways = [beam], [scores]
        # Of each token of the beam: its candidate, and which beam slots lie on the way to it.
        number = torch.arange(shape.beam, device=device).expand(self.batch, -1)
        slots = shape.beam * shape.depth
        way = torch.zeros(self.batch, shape.beam, slots, dtype=torch.bool, device=device)
        first = shape.beam
        for level in range(shape.depth - 1):
            own = level * shape.beam + torch.arange(shape.beam, device=device)
            way[:, torch.arange(shape.beam, device=device), own] = True
            logits = self.read_beam(beam, lengths, level, own, way)
            shares, tokens_after = logits.float().softmax(-1).topk(shape.beam)
            scores = scores[:, :, None] * shares
            parents = (number + 1).repeat_interleave(shape.beam, 1)
            self.parents[:, first : first + shape.beam**2] = parents
            candidates.append(tokens_after.flatten(1))
            ways.append(scores.flatten(1))
            scores, best = ways[-1].topk(shape.beam)
            beam = candidates[-1].gather(1, best)
            number = first + best
            way = way.gather(1, (best // shape.beam)[:, :, None].expand(-1, -1, slots))
            first += shape.beam**2
        return torch.cat(candidates, 1).int(), torch.cat(ways, 1)

    def read_beam(self, beam, lengths, level, own, way):
        """Logits after the tokens of a beam, each of which sees the text and its own way."""
        positions = (lengths + level)[:, None].expand_as(beam)
        behind = self.columns - lengths[:, None]
        sees = way.gather(2, behind.clamp(0, way.shape[2] - 1)[:, None].expand(-1, beam.shape[1], -1))
        mask = (behind < 0)[:, None] | (sees & (behind < way.shape[2])[:, None])
        return self.model(beam, positions, slots=lengths[:, None] + own, mask=mask)


class TreeDecoder:
    """Decodes a batch of prompts with trees. Nothing in a step waits for the device."""

    def __init__(self, model, drafter, settings, shape, batch, max_len):
        self.device, self.batch, self.shape = model.device, batch, shape
        self.model = Model(model, max_len + shape.nodes + 1)
        self.drafter = Drafter(drafter, shape, batch, max_len)
        self.tokens = torch.zeros(batch, max_len, dtype=torch.int32, device=self.device)
        self.lengths = torch.ones(batch, dtype=torch.int32, device=self.device)
        self.max_lengths = torch.zeros_like(self.lengths)
        self.finished = torch.zeros_like(self.lengths)
        self.runs = torch.zeros_like(self.lengths)
        self.flags = torch.zeros(1, dtype=torch.int32, device=self.device)
        self.request_of = torch.arange(batch, dtype=torch.int32, device=self.device)
        stops = settings.stop_tokens or (-1,)
        self.stops = torch.tensor([stops] * batch, dtype=torch.int32, device=self.device)

        def each(value, dtype=torch.float32):
            return torch.full((batch,), value, dtype=dtype, device=self.device)

        self.sampling = {
            "temperature": each(settings.temperature),
            "seeds": torch.arange(batch, dtype=torch.int64, device=self.device) + settings.seed,
            "top_k": each(settings.top_k, torch.int32),
            "top_p": each(settings.top_p),
            "min_p": each(settings.min_p),
        }

    def mask_of(self, bits, last):
        """The 4D mask, without its dimension of heads: node v lies `v` slots behind the text's last
        token, and sees the tokens before that and the nodes of its own bits."""
        behind = self.model.columns - last[:, None]
        node = behind.clamp(0, self.shape.nodes)
        words = bits.gather(2, (node // 32)[:, None].expand(-1, bits.shape[1], -1))
        sees = (words >> (node % 32)[:, None].int()) & 1 != 0
        return (behind < 0)[:, None] | (sees & (behind <= self.shape.nodes)[:, None])

    def keep_path(self, path, last):
        """Moves the keys and values of the accepted nodes to where the text has them."""
        depth = torch.arange(path.shape[1], device=self.device)
        to = last[:, None] + depth
        taken = torch.where(path >= 0, last[:, None] + path, to)
        for layer in self.model.cache.layers:
            for states in (layer.keys, layer.values):
                shape = (-1, states.shape[1], -1, states.shape[3])
                moved = states.gather(2, taken[:, None, :, None].expand(*shape))
                states.scatter_(2, to[:, None, :, None].expand(*shape), moved)

    def step(self):
        """One run of the drafter for each level, and one run of the model."""
        shape, lengths = self.shape, self.lengths.long()
        last = lengths - 1
        self.runs += self.finished == 0
        candidates, ways = self.drafter(self.tokens, lengths)
        tree = spec_ops.draft_tree(
            candidates, n=shape.nodes, parents=self.drafter.parents, shares=ways, cumulative=True,
            finished=self.finished, first_child=True, next_sibling=True, depths=True, masks=True,
            flags=self.flags,
        )
        node_tokens = torch.cat([self.tokens.gather(1, last[:, None]), tree.drafts], 1)
        nodes = torch.arange(shape.nodes + 1, device=self.device)
        # Nodes that a tree does not have write to slots of their own, and no node sees them.
        depths = tree.depths.clamp_min(0)
        logits = self.model(
            node_tokens.clamp_min(0).long(), last[:, None] + depths,
            slots=last[:, None] + nodes, mask=self.mask_of(tree.masks, last),
        )
        target = spec_ops.sample_logits(
            logits.flatten(0, 1), (lengths[:, None] + depths).flatten(), n=1,
            requests=self.request_of.repeat_interleave(shape.nodes + 1), **self.sampling,
        ).tokens
        path = spec_ops.tree_verify(
            node_tokens, target.view(self.batch, -1), first_child=tree.first_child,
            next_sibling=tree.next_sibling, max_depth=shape.depth, flags=self.flags,
        )
        spec_ops.append_tokens(
            self.tokens, self.lengths, path.tokens, path.num_tokens, stop_tokens=self.stops,
            max_lengths=self.max_lengths, finished=self.finished, flags=self.flags,
        )
        self.keep_path(path.nodes.long(), last)

    @torch.inference_mode()
    def decode(self, prompts, tokens):
        """The texts, and how many runs of the model each request took part in."""
        for request, prompt in enumerate(prompts):
            self.tokens[request, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        lengths = torch.tensor([len(prompt) for prompt in prompts], dtype=torch.int32)
        self.lengths.copy_(lengths)
        self.max_lengths.copy_(lengths + tokens)
        longest = int(lengths.max())
        at = torch.arange(longest, device=self.device).repeat(self.batch, 1)
        for model in (self.model, self.drafter.model):
            model(self.tokens[:, :longest].long(), at, logits_to_keep=1)
        while not bool(self.finished.all()):
            self.step()
        assert int(self.flags) == 0, f"flags {int(self.flags)}"
        texts = zip(self.tokens.tolist(), self.lengths.tolist())
        return [row[:length] for row, length in texts], self.runs.tolist()


def arguments():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", metavar="PATH", help="a GGUF file, or a folder of transformers")
    which.add_argument("--tiny", action="store_true", help="a small model of random weights")
    parser.add_argument("--layers", type=int, help="layers of the drafter; three quarters by default")
    for field in dataclasses.fields(Shape):
        parser.add_argument(f"--{field.name}", type=int, default=field.default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prompt", action="append", default=[], help="may be repeated: a batch")
    parser.add_argument("--prompt-file", action="append", default=[], metavar="FILE")
    parser.add_argument("--chat", action="store_true", help="prompts in the chat template")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to decode; 64 by default")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.batch = 1
    return given


def main():
    given = arguments()
    if given.tiny:
        model, tokenizer = tiny()[0].to(given.device), None
    else:
        model, tokenizer = load(given.model, torch.float32, given.device)
    drafter = without_last_layers(model, given.layers or model.config.num_hidden_layers * 3 // 4)
    stop = tokenizer.eos_token_id if tokenizer else None
    settings = Settings(
        temperature=given.temperature, top_p=given.top_p, seed=given.seed,
        stop_tokens=() if stop is None else (stop,),
    )
    shape = Shape(given.beam, given.depth, given.nodes)
    prompts = prompts_of(given, tokenizer)
    max_len = max(map(len, prompts)) + given.tokens
    plain = Decoder(model, settings, len(prompts), max_len)
    plain.prepare()
    texts, runs = plain.decode(prompts, given.tokens)
    trees = TreeDecoder(model, drafter, settings, shape, len(prompts), max_len)
    with_trees, tree_runs = trees.decode(prompts, given.tokens)
    fresh = sum(map(len, texts)) - sum(map(len, prompts))
    print(f"without drafts: {fresh} tokens in {sum(runs)} runs")
    print(f"trees of {shape.nodes} of {shape.candidates} candidates: {sum(tree_runs)} runs, "
          f"{fresh / sum(tree_runs):.2f} tokens a run")
    differs = first_difference(texts, with_trees)
    if differs is not None:
        sys.exit(f"request {differs[0]} differs at token {differs[1]}")
    print("the same texts")


if __name__ == "__main__":
    main()
