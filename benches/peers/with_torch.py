#!/usr/bin/env python3
"""Times plain PyTorch on a GPU: each operator as a user would write it in tensors.

    pip install torch numpy
    python3 benches/peers/with_torch.py --json torch.json

Calls are captured into a CUDA graph where they can be (torch.unique waits for the
device, and cannot). Without PyTorch or a GPU it says so and does nothing.
"""

import sys

import inputs
from common import GPU_EFFORT, Skip, device, main, module

# Inputs in turns shall be this many bytes together, as in `spec-bench`.
BEYOND_CACHES = 200 << 20
ROTATED = 48 << 20


WANTS = {"n-4", "logprobs", "top-logprobs-20", "processed-logprobs", "probs"}


def wanted(row):
    """What a row of sample_logits asks for besides a token, or None."""
    return next(iter(WANTS.intersection(row.kind.split(", "))), None)


class Gpu:
    """Times calls on the current GPU."""

    def __init__(self, torch, quick):
        self.torch, self.quick, self.last = torch, quick, None

    def events(self, work):
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3

    def plan(self, once):
        samples, calls, budget = GPU_EFFORT[self.quick]
        once = max(once, 1e-9)
        # A short call carries a part of its graph's own launch.
        calls = calls * 10 if once < 10e-6 else calls
        calls = max(1, min(calls, int(budget / once / 5)))
        return min(max(3, int(budget / once / calls)), samples), calls

    def time(self, call, turns=1, capture=True):
        """Samples in microseconds of a call, how, and the last call's result.
        `call` takes the number of the input to use."""
        torch = self.torch
        for i in range(3):
            call(i % turns)
        torch.cuda.synchronize()
        samples, calls = self.plan(min(self.events(lambda: call(0)) for _ in range(3)))
        result = None

        def several():
            nonlocal result
            for i in range(calls):
                result = None
                result = call(i % turns)

        if capture:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                several()
            work, method = graph.replay, f"{calls} calls in a CUDA graph, events"
        else:
            work, method = several, f"{calls} calls, events"
        if calls == 1:
            method = method.replace("calls", "call")
        if turns > 1:
            method += f", inputs in {turns} copies used in turns"
        for _ in range(3):
            work()
        times = [self.events(work) / calls * 1e6 for _ in range(samples)]
        self.last = ((calls - 1) % turns, result)
        return times, method


def turns_of(memory, size_bytes, calls=20):
    return min(-(-BEYOND_CACHES // size_bytes), calls) if memory > ROTATED else 1


class Torch:
    """Every operator in tensors."""

    name = "torch operators"
    names = {"unique": "torch.unique"}

    def __init__(self, torch, options):
        self.torch = torch
        self.gpu = Gpu(torch, options.quick)
        self.device = device(torch.cuda.get_device_name(0), "cuda:0")
        self.versions = {"torch": torch.__version__, "cuda (torch)": str(torch.version.cuda)}

    def release(self):
        self.gpu.last = None
        self.torch.cuda.empty_cache()

    def timed(self, call, turns=1, capture=True):
        return lambda: self.gpu.time(call, turns, capture)

    def on_gpu(self, *arrays):
        return [self.torch.from_numpy(array).cuda() for array in arrays]

    def topk_router(self, row):
        torch = self.torch
        given = inputs.Router(row)
        x, bias = self.on_gpu(given.x, given.bias)
        x = x.to(torch.bfloat16) if row.series.startswith("bf16") else x
        size = given.experts // given.groups
        if given.replicas is not None:
            replicas, counts = self.on_gpu(given.replicas, given.counts)
            turns = (torch.arange(given.tokens, device="cuda") * 2654435769 % 2**32)[:, None]
            load = torch.zeros(given.places, dtype=torch.int32, device="cuda")
            ones = torch.ones(given.tokens * given.topk, dtype=torch.int32, device="cuda")

        def call(_):
            logits = x.float()
            root = given.root
            scores = torch.nn.functional.softplus(logits).sqrt() if root else torch.sigmoid(logits)
            choice = scores + bias
            if given.groups > 1:
                split = choice.view(-1, given.groups, size)
                groups = split.topk(2, dim=-1).values.sum(-1)
                kept = groups.topk(given.kept, dim=-1, sorted=False).indices
                mask = torch.zeros_like(groups).scatter_(1, kept, 1).bool()
                choice = split.masked_fill(~mask[:, :, None], 0).view(-1, given.experts)
            experts = choice.topk(given.topk, dim=-1).indices
            weights = scores.gather(1, experts)
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5
            if given.replicas is not None:
                experts = replicas[experts, turns % counts[experts]]
                load.index_add_(0, experts.flatten(), ones)
            return weights, experts.int()

        def check():
            weights, experts = (t.cpu().numpy() for t in self.gpu.last[1])
            return given.check(x.float().cpu().numpy(), weights, experts)

        moved = x.numel() * x.element_size() + row.numbers[0] * 64
        return self.timed(call), check, moved

    def deduplicate_topk(self, row):
        torch = self.torch
        values = inputs.deduplicate(row)
        (given,) = self.on_gpu(values)
        batch, n = values.shape

        def call(_):
            ordered = given.sort(dim=1).values
            first = ordered >= 0
            first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
            # What is not the first of its kind goes to a column that is cut off.
            place = torch.where(first, first.cumsum(1) - 1, n)
            unique = torch.full((batch, n + 1), -1, dtype=torch.int32, device="cuda")
            return unique.scatter_(1, place, ordered)[:, :n]

        def check():
            return inputs.check_deduplicate(values, self.gpu.last[1].cpu().numpy())

        return self.timed(call), check, 2 * values.nbytes

    def hot_slots(self, row):
        """Sorts and searches. Wanted entries ascend, those of slots are distinct. The state is not
        changed in place, so that each call finds the same."""
        torch, given = self.torch, inputs.Slots(row)
        wanted, resident, used = self.on_gpu(given.wanted, given.resident, given.used)
        (batch, m), h = wanted.shape, resident.shape[1]
        ranks = torch.arange(m, device="cuda")
        step = torch.full_like(used[:, :1], given.step)
        none = torch.full((batch, m + 1), -1, dtype=torch.int32, device="cuda")

        def call(_):
            ordered, order = resident.sort(dim=1)
            at = torch.searchsorted(ordered, wanted).clamp_max(h - 1)
            hit, slot = ordered.gather(1, at) == wanted, order.gather(1, at)
            # What is no hit goes to a column that is cut off.
            ages = torch.cat([step - used, used[:, :1]], 1)
            ages = ages.scatter_(1, torch.where(hit, slot, h), -1)[:, :h]
            oldest = ages.sort(dim=1, descending=True, stable=True).indices[:, :m]
            rank, fetches = (~hit).cumsum(1) - 1, (~hit).sum(1, keepdim=True)
            taken = torch.where(ranks < fetches, oldest, h).sort(dim=1).values
            slots = torch.where(hit, slot, taken.gather(1, rank.clamp_min(0)))
            positions = none.scatter(1, torch.where(hit, m, rank), wanted)[:, :m]
            fetch_slots = torch.where(ranks < fetches, taken, -1).int()
            state = resident.scatter(1, slots, wanted), used.scatter(1, slots, step.expand(-1, m))
            return slots.int(), positions, fetch_slots, fetches[:, 0].int(), *state

        def check():
            return given.check(*(array.cpu().numpy() for array in self.gpu.last[1]))

        return self.timed(call), check, row.memory

    def rejection_sample(self, row):
        torch = self.torch
        given = inputs.Rejection(row)
        batch, drafts = given.batch, given.drafts
        turns = turns_of(row.memory, given.bytes)
        target, draft, ids, bonus, uniform = self.on_gpu(
            given.target, given.draft, given.ids, given.bonus, given.uniform
        )
        copies = [(target, draft)] + [(target.clone(), draft.clone()) for _ in range(turns - 1)]
        starts = torch.arange(batch, device="cuda") * drafts
        columns = torch.arange(drafts + 1, device="cuda")
        tail = torch.cat([ids.view(batch, drafts), bonus[:, None]], 1)

        def call(turn):
            target, draft = copies[turn]
            p = target.gather(1, ids.long()[:, None])[:, 0]
            q = draft.gather(1, ids.long()[:, None])[:, 0].clamp_min(1e-10)
            accepted = ((p >= q) | (uniform * q < p)).view(batch, drafts)
            count = accepted.int().cumprod(1).sum(1)
            at = starts + count.clamp_max(drafts - 1)
            residual = (target[at] - draft[at]).clamp_min(0)
            if given.recovery == "sample":
                residual = residual / torch.empty_like(residual).exponential_(1)
            recovered = residual.argmax(1).int()
            output = torch.where(columns < count[:, None], tail, -1)
            last = torch.where(count == drafts, bonus, recovered)
            return output.scatter_(1, count[:, None], last[:, None])

        def check():
            return given.check(self.gpu.last[1].cpu().numpy())

        return self.timed(call, turns), check, given.bytes

    def ngram_match(self, row):
        torch = self.torch
        given = inputs.Ngram(row)
        prompt, every, step = self.on_gpu(given.input_ids, given.all, given.step)
        turns = min(-(-BEYOND_CACHES // given.bytes), 20) if given.cold else 1
        copies = [(prompt, every)] + [(prompt.clone(), every.clone()) for _ in range(turns - 1)]
        slots = torch.arange(inputs.DRAFTS, device="cuda")

        def find(tokens, pattern, length):
            """Where the pattern first occurs with a token after it, or -1."""
            n = pattern.shape[1]
            windows = tokens.unfold(1, n, 1)
            hit = (windows == pattern[:, None]).all(-1)
            hit &= torch.arange(hit.shape[1], device="cuda") + n < length[:, None]
            return torch.where(hit.any(1), hit.to(torch.uint8).argmax(1), -1)

        def call(turn):
            prompt, every = copies[turn]
            generated = every[:, given.prompt :]
            lengths = torch.full_like(step, given.prompt)
            drafts = torch.full((given.batch, inputs.DRAFTS), -1, device="cuda")
            count = torch.zeros_like(step)
            for n in (3, 2, 1):
                pattern = generated.gather(1, step[:, None] + 1 - n + torch.arange(n, device="cuda"))
                for tokens, length in ((prompt, lengths), (generated, step)):
                    at = find(tokens, pattern, length)
                    new = (at >= 0) & (count == 0)
                    source = (at[:, None] + n + slots).clamp(0, tokens.shape[1] - 1)
                    drafts = torch.where(new[:, None], tokens.gather(1, source), drafts)
                    left = (length - at - n).clamp_max(inputs.DRAFTS)
                    count = torch.where(new, left, count)
            return torch.where(slots < count[:, None], drafts, -1), count

        def check():
            drafts, count = self.gpu.last[1]
            return given.check(drafts.cpu().numpy(), count.cpu().numpy())

        return self.timed(call, turns), check, given.bytes

    def prompt_lookup(self, row):
        torch = self.torch
        given = inputs.Lookup(row)
        tokens, lengths = self.on_gpu(given.all, given.lengths)
        turns = min(-(-BEYOND_CACHES // given.bytes), 20) if given.cold else 1
        copies = [tokens] + [tokens.clone() for _ in range(turns - 1)]
        slots = torch.arange(inputs.DRAFTS, device="cuda")

        def call(turn):
            tokens = copies[turn]
            drafts = torch.full((given.batch, inputs.DRAFTS), -1, device="cuda")
            count = torch.zeros_like(lengths)
            for n in (3, 2, 1):
                pattern = tokens.gather(1, lengths[:, None] - n + torch.arange(n, device="cuda"))
                hit = (tokens.unfold(1, n, 1) == pattern[:, None]).all(-1)
                hit &= torch.arange(hit.shape[1], device="cuda") + n < lengths[:, None]
                # The first of the largest, from either end.
                at = (hit.flip(1) if given.last else hit).to(torch.uint8).argmax(1)
                at = hit.shape[1] - 1 - at if given.last else at
                new = hit.any(1) & (count == 0)
                source = (at[:, None] + n + slots).clamp_max(tokens.shape[1] - 1)
                drafts = torch.where(new[:, None], tokens.gather(1, source), drafts)
                count = torch.where(new, (lengths - at - n).clamp_max(inputs.DRAFTS), count)
            return torch.where(slots < count[:, None], drafts, -1), count.int()

        def check():
            drafts, count = self.gpu.last[1]
            return given.check(drafts.cpu().numpy(), count.cpu().numpy())

        return self.timed(call, turns), check, given.bytes

    def sample_logits(self, row):
        words = row.kind.split(", ")[0]
        if words == "min-p":
            raise Skip("it is timed by top-k, top-p or neither")
        torch, wants = self.torch, wanted(row)
        values = inputs.logits(row)
        (x,) = self.on_gpu(values)
        x = x.to(torch.bfloat16) if "bf16" in row.kind else x
        top_p = {"top-k-p": 0.9, "top-p": 0.9, "top-p-0.999999": 0.999999}.get(words)
        turns = turns_of(row.memory, row.memory)
        copies = [x] + [x.clone() for _ in range(turns - 1)]

        def told(logits, probs, drawn):
            if wants == "logprobs":
                return (logits.float().log_softmax(dim=-1).gather(-1, drawn),)
            if wants == "top-logprobs-20":
                return tuple(logits.float().log_softmax(dim=-1).topk(20, dim=-1))
            if wants == "processed-logprobs":
                return (probs.gather(-1, drawn).log(),)
            return (probs,) if wants == "probs" else ()

        def call(turn):
            logits = copies[turn]
            if words == "greedy":
                return (logits.argmax(dim=-1),)
            scaled = logits.float() / 0.8
            order = None
            if words == "top-k-p":
                scaled, order = scaled.topk(50, dim=-1)
            elif top_p is not None:
                scaled, order = scaled.sort(dim=-1, descending=True)
            probs = scaled.softmax(dim=-1)
            if top_p is not None:
                before = probs.cumsum(dim=-1) - probs
                probs = probs.masked_fill(before >= top_p, 0)
            # As vLLM draws: the largest of probabilities over exponential numbers.
            finishes = probs / torch.empty_like(probs).exponential_()
            if wants == "n-4":
                drawn = finishes.topk(4, dim=-1).indices
            else:
                drawn = finishes.argmax(dim=-1, keepdim=True)
            tokens = drawn if order is None else order.gather(-1, drawn)
            return tokens, *told(logits, probs, drawn)

        def check():
            kept = {"top-k-p": 50, "greedy": 1}.get(words, values.shape[1])
            tokens, *more = (result.float().cpu().numpy() for result in self.gpu.last[1])
            given = x.float().cpu().numpy()
            for column in tokens.astype("int64").reshape(len(values), -1).T:
                said = inputs.check_tokens(given, column, kept)
            if wants == "logprobs":
                inputs.check_logprob(given[0], int(tokens[0, 0]), more[0][0, 0])
            return said

        return self.timed(call, turns), check, row.memory

    def moe_align(self, row):
        torch = self.torch
        picks, count = inputs.experts(row)
        (ids,) = self.on_gpu(picks)
        block = 64

        def call(_):
            return aligned(torch, ids, count, block)

        def check():
            order, padded, _, _ = (t.cpu().numpy() for t in self.gpu.last[1])
            return inputs.check_experts(picks, count, block, order, padded)

        return self.timed(call), check, row.memory

    def tree_verify(self, row):
        torch = self.torch
        given = inputs.Trees(row)
        draft, target, children = self.on_gpu(given.draft, given.target, given.children)
        requests = torch.arange(given.batch, device="cuda")

        def call(_):
            node = torch.zeros_like(requests)
            alive = torch.ones_like(requests, dtype=torch.bool)
            tokens = []
            for _ in range(given.steps + 1):
                wanted = target[requests, node]
                tokens.append(torch.where(alive, wanted, -1))
                child = children[node]
                hit = (child >= 0) & (draft[requests[:, None], child.clamp_min(0)] == wanted[:, None])
                alive = alive & hit.any(1)
                first = hit.to(torch.uint8).argmax(1, keepdim=True)
                node = torch.where(alive, child.gather(1, first)[:, 0], node)
            return torch.stack(tokens, 1)

        def check():
            return given.check(self.gpu.last[1].cpu().numpy())

        return self.timed(call), check, given.bytes

    def draft_tree(self, row):
        """Which drafts stay, their parents, what each node sees, and the packed rows; no links."""
        torch = self.torch
        given = inputs.DraftTrees(row)
        n, width, levels = given.drafts, given.WIDTH, given.candidates // given.WIDTH
        tokens, shares, parents = self.on_gpu(given.tokens, given.shares, given.parents.astype("int64"))
        nodes = torch.arange(n + 1, device="cuda")
        rows = torch.arange(given.rows, device="cuda")

        def call(_):
            if given.chain:
                survivals = shares.cumprod(1)
            else:
                of_levels = [shares[:, :width]]
                for level in range(1, levels):
                    own = slice(level * width, (level + 1) * width)
                    above = parents[:, own] - 1 - (level - 1) * width
                    of_levels.append(of_levels[-1].gather(1, above) * shares[:, own])
                survivals = torch.cat(of_levels, 1)
            best, picked = survivals.topk(n, dim=1)
            picked, order = picked.sort(1)
            best = best.gather(1, order).flatten()
            kept = torch.zeros_like(best, dtype=torch.bool)
            kept = kept.scatter_(0, best.topk(given.budget).indices, True).view(picked.shape)
            node = kept.cumsum(1)
            num = node[:, -1]
            # What is dropped goes to a column of its own.
            to = torch.where(kept, node, n + 1)
            make = lambda value, columns: torch.full((given.batch, columns), value, device="cuda")
            drafts = make(-1, n + 2).scatter_(1, to, tokens.gather(1, picked))[:, 1:-1]
            node_of = make(0, given.candidates + 1).scatter_(1, picked + 1, torch.where(kept, node, 0))
            above = node_of.gather(1, parents.gather(1, picked))
            above = make(0, n + 2).scatter_(1, to, above)[:, :-1]
            sees = (nodes[:, None] == nodes).expand(given.batch, -1, -1)
            for _ in range(n if given.chain else levels):
                sees = sees | sees.gather(1, above[:, :, None].expand(-1, -1, n + 1))
            ends = (num + 1).cumsum(0)
            requests = torch.searchsorted(ends, rows, right=True)
            return num, drafts, sees, ends, requests

        def check():
            return given.check(self.gpu.last[1][0].cpu().numpy())

        return self.timed(call), check, given.bytes

    def topk_router_then_moe_align(self, row):
        torch = self.torch
        x, bias = self.on_gpu(inputs.load(row, "x"), inputs.load(row, "bias"))

        def call(_):
            scores = torch.sigmoid(x)
            choice = scores + bias
            split = choice.view(-1, 8, 32)
            groups = split.topk(2, dim=-1).values.sum(-1)
            kept = groups.topk(4, dim=-1, sorted=False).indices
            mask = torch.zeros_like(groups).scatter_(1, kept, 1).bool()
            choice = split.masked_fill(~mask[:, :, None], 0).view(-1, 256)
            experts = choice.topk(8, dim=-1).indices
            weights = scores.gather(1, experts)
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * 2.5
            return weights, experts, aligned(torch, experts, 256, 64)

        def check():
            _, experts, (order, padded, _, _) = self.gpu.last[1]
            picks = experts.cpu().numpy()
            return inputs.check_experts(picks, 256, 64, order.cpu().numpy(), padded.cpu().numpy())

        return self.timed(call), check, row.memory

    def indexer_topk_then_deduplicate_topk(self, row):
        torch, batch = self.torch, row.numbers[0]
        steps = int(row.kind.split(" ")[0])
        values = inputs.load(row, "scores")
        (x,) = self.on_gpu(values)
        n = steps * 2048

        def call(_):
            ordered = x.topk(2048, dim=-1).indices.view(batch, n).sort(dim=1).values
            first = torch.ones_like(ordered, dtype=torch.bool)
            first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
            place = torch.where(first, first.cumsum(1) - 1, n)
            unique = torch.full((batch, n + 1), -1, dtype=ordered.dtype, device="cuda")
            return unique.scatter_(1, place, ordered)[:, :n]

        def check():
            best = (-values).argpartition(2048, axis=1)[:, :2048].reshape(batch, n)
            return inputs.check_deduplicate(best.astype("int32"), self.gpu.last[1].cpu().numpy())

        return self.timed(call), check, row.memory

    def decode_tail(self, row):
        torch = self.torch
        given = inputs.Tail(row)
        logits, text, draft_tokens = self.on_gpu(given.logits, given.text, given.draft_tokens)
        logits = logits.to(torch.bfloat16)
        here = {"device": logits.device}
        batch, nodes, width = given.batch, inputs.NODES, text.shape[1]
        slots = torch.arange(inputs.NODES, **here)
        columns = torch.arange(width, **here)
        lengths = torch.full((batch, 1), inputs.TEXT, **here)
        chain, state = draft_tokens.clone(), {}

        def adjust(x, penalties):
            """Penalties by what each row's text and the drafts above it count, in place."""
            said = (columns < lengths).to(torch.int16)
            generated = said * (columns >= inputs.TEXT // 2)
            counts = torch.zeros(2, batch, given.vocab, dtype=torch.int16, **here)
            counts[0].scatter_add_(1, text, said)
            counts[1].scatter_add_(1, text, generated)
            counts = counts[:, :, None].repeat(1, 1, nodes, 1)
            for draft in range(1, nodes):
                there = (chain[:, draft, None, None] >= 0).to(torch.int16)
                at = chain[:, draft, None, None].clamp_min(0).expand(-1, nodes - draft, -1)
                for each in counts:
                    each[:, draft:].scatter_add_(2, at, there.expand_as(at))
            seen, counts = (one.view(batch * nodes, -1) for one in counts)
            repetition, frequency, presence = penalties
            y = x.float()
            y = torch.where(seen > 0, torch.where(y > 0, y / repetition, y * repetition), y)
            x.copy_(y - frequency * counts - presence * (counts > 0))

        def look_up(tokens, length):
            drafts = torch.full((batch, nodes - 1), -1, **here)
            missing = torch.ones(batch, 1, dtype=torch.bool, **here)
            for n in (4, 3, 2, 1):
                pattern = tokens.gather(1, length - n + slots[:n])
                hit = (tokens.unfold(1, n, 1) == pattern[:, None]).all(-1)
                hit &= columns[: hit.shape[1]] + n < length
                at = hit.shape[1] - 1 - hit.flip(1).to(torch.uint8).argmax(1, keepdim=True)
                source = at + n + slots[:-1]
                found = tokens.gather(1, source.clamp_max(width - 1))
                found = torch.where(source < length, found, -1)
                new = hit.any(1, keepdim=True) & missing
                drafts, missing = torch.where(new, found, drafts), missing & ~new
            return drafts

        def call(_):
            # Texts begin anew with each call, so that their rows have no more columns than needed.
            chain.copy_(draft_tokens)
            adjust(logits, inputs.PENALTIES)
            probs = (logits.float() / 0.8).softmax(dim=-1)
            target = (probs / torch.empty_like(probs).exponential_()).argmax(dim=-1)
            target = target.view(batch, nodes)
            agreed = (chain[:, 1:] == target[:, :-1]).int().cumprod(1).sum(1, keepdim=True)
            place = torch.where(slots <= agreed, lengths + slots, width - 1)
            text.scatter_(1, place, target)
            length = lengths + agreed + 1
            last = text.gather(1, length - 1)
            chain[:, :1], chain[:, 1:] = last, look_up(text, length)
            state.update(target=target, length=length, chain=chain)
            return target, length

        def check():
            got = {name: tensor.cpu().numpy() for name, tensor in state.items()}
            given.check(text.cpu().numpy(), **got)
            # Penalties that bf16 does not round away.
            chain.copy_(draft_tokens)
            (x,) = self.on_gpu(given.logits)
            adjust(x, inputs.STRONG)
            return given.check_penalties(x[: inputs.NODES].cpu().numpy())

        return self.timed(call), check, row.memory

    def indexer_topk(self, row):
        torch = self.torch
        values = inputs.scores(row)
        (x,) = self.on_gpu(values)
        x = x.to(torch.bfloat16) if "bf16" in row.kind else x
        turns = turns_of(row.memory, row.memory)
        copies = [x] + [x.clone() for _ in range(turns - 1)]

        def call(turn):
            return copies[turn].topk(2048, dim=-1).indices.sort(dim=-1).values

        def check():
            return inputs.check_scores(x.float().cpu().numpy(), 2048, self.gpu.last[1].cpu().numpy())

        return self.timed(call, turns), check, row.memory

    def unique(self, row):
        torch = self.torch
        given = inputs.Keys(row)
        inverse = given.inverse
        keys, check_keys = keys_of(torch, given)

        def check():
            made = self.gpu.last[1]
            got = made[0] if inverse else made
            said = check_keys(got)
            assert not inverse or bool((got[made[1]] == keys).all()), "places of other keys"
            return said

        call = lambda _: torch.unique(keys, return_inverse=inverse)
        return self.timed(call, capture=False), check, given.bytes


def keys_of(torch, given):
    """The keys of a row of `unique` on the GPU, and a function that checks their distinct keys.
    PyTorch has no arithmetic on u64: the keys are the same bits as i64, in whose order keys from 2^63
    on come first. The check takes either order."""
    on_gpu = lambda keys: torch.from_numpy(keys.view("int64")).cuda()

    def check(got):
        want = on_gpu(given.distinct()).sort().values
        assert len(got) == len(want), f"{len(got)} keys, expected {len(want)}"
        # From the order of u64 to that of i64.
        ordered = torch.roll(got, int((got < 0).sum())) if got[0] >= 0 else got
        assert bool((ordered == want).all()), "other keys"
        return "the keys that were made, every element"

    return on_gpu(given.keys()), check


def aligned(torch, ids, count, block):
    """Picks by expert in padded runs: their order, the length, the runs, the blocks'
    experts."""
    flat = ids.view(-1)
    order = flat.sort(stable=True).indices
    counts = torch.zeros(count, dtype=torch.int32, device=ids.device)
    counts.scatter_add_(0, flat.long(), torch.ones_like(flat, dtype=torch.int32))
    runs = (counts + block - 1) // block * block
    ends = runs.cumsum(0)
    capacity = -(-(len(flat) + count * (block - 1)) // block) * block
    before = (ends - runs) - (counts.cumsum(0) - counts)
    places = torch.arange(len(flat), device=ids.device) + before[flat[order].long()]
    sorted_ids = torch.full((capacity,), len(flat), dtype=torch.int32, device=ids.device)
    sorted_ids.scatter_(0, places, order.int())
    starts = torch.arange(0, capacity, block, device=ids.device)
    experts = torch.searchsorted(ends, starts, right=True).int()
    return order, ends[-1], sorted_ids, experts


def peer(options):
    torch = module("torch")
    if torch is None or module("numpy") is None:
        return None
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU", file=sys.stderr)
        return None
    return Torch(torch, options)


if __name__ == "__main__":
    main(__doc__, peer)
