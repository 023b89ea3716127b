#!/usr/bin/env python3
"""Times numpy on the CPU: each operator as a user would write it in arrays.

pip install numpy
python3 benches/peers/with_numpy.py --json numpy.json
"""

import inputs
from common import Skip, cpu_device, free_memory, main, module, time_cpu

# Beyond this, numpy.unique takes minutes and more.
MANY = 1 << 24


class Numpy:
    name = "numpy"
    names = {"unique": "numpy.unique"}

    def __init__(self, numpy, options):
        self.np, self.quick = numpy, options.quick
        self.device = cpu_device()
        self.versions = {"numpy": numpy.__version__}

    def timed(self, call):
        def again():
            self.last = call()

        return lambda: time_cpu(again, self.quick)

    def room(self, row, copies):
        free = free_memory()
        if free is not None and free < copies * row.memory:
            raise Skip(f"it takes {copies * row.memory / 2**30:.1f} GiB of main memory")

    def topk_router(self, row):
        if row.kind != "f32":
            raise Skip("numpy has no bf16, and this is DeepSeek-V3's routing")
        np = self.np
        self.room(row, 8)
        given = inputs.Router(row)
        x, bias = given.x, given.bias

        def call():
            scores = 1 / (1 + np.exp(-x))
            choice = scores + bias
            groups = choice.reshape(-1, 8, 32)
            group_scores = np.partition(groups, 30, axis=2)[:, :, 30:].sum(axis=2)
            kept = np.argpartition(-group_scores, 3, axis=1)[:, :4]
            mask = np.zeros(group_scores.shape, bool)
            np.put_along_axis(mask, kept, True, axis=1)
            choice = np.where(mask[:, :, None], groups, 0).reshape(-1, 256)
            experts = np.argpartition(-choice, 7, axis=1)[:, :8]
            values = np.take_along_axis(choice, experts, axis=1)
            order = np.argsort(-values, axis=1, kind="stable")
            experts = np.take_along_axis(experts, order, axis=1)
            weights = np.take_along_axis(scores, experts, axis=1)
            weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20) * 2.5
            return weights, experts.astype(np.int32)

        check = lambda: given.check(x, *self.last)
        return self.timed(call), check, x.nbytes + row.numbers[0] * 64

    def deduplicate_topk(self, row):
        np = self.np
        values = inputs.deduplicate(row)

        def call():
            ordered = np.sort(values, axis=1)
            first = ordered >= 0
            first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
            requests, _ = np.nonzero(first)
            places = (np.cumsum(first, axis=1) - 1)[first]
            unique = np.full_like(values, -1)
            unique[requests, places] = ordered[first]
            return unique

        check = lambda: inputs.check_deduplicate(values, self.last)
        return self.timed(call), check, 2 * values.nbytes

    def rejection_sample(self, row):
        np = self.np
        self.room(row, 3)
        given = inputs.Rejection(row)
        batch, drafts = given.batch, given.drafts
        tokens = np.arange(batch * drafts)
        tail = np.concatenate([given.ids.reshape(batch, drafts), given.bonus[:, None]], axis=1)
        columns = np.arange(drafts + 1)
        rng = np.random.default_rng(7)

        def call():
            p = given.target[tokens, given.ids]
            q = np.maximum(given.draft[tokens, given.ids], np.float32(1e-10))
            rejected = ~((p >= q) | (given.uniform * q < p)).reshape(batch, drafts)
            count = np.where(rejected.any(axis=1), rejected.argmax(axis=1), drafts)
            at = np.arange(batch) * drafts + np.minimum(count, drafts - 1)
            residual = np.maximum(given.target[at] - given.draft[at], 0)
            if given.recovery == "sample":
                running = np.cumsum(residual, axis=1, dtype=np.float64)
                threshold = rng.random((batch, 1)) * running[:, -1:]
                recovered = (running > threshold).argmax(axis=1)
            else:
                recovered = residual.argmax(axis=1)
            output = np.where(columns < count[:, None], tail, -1)
            last = np.where(count == drafts, given.bonus, recovered)
            np.put_along_axis(output, count[:, None], last[:, None], axis=1)
            return output

        return self.timed(call), lambda: given.check(self.last), given.bytes

    def ngram_match(self, row):
        np = self.np
        self.room(row, 6)
        given = inputs.Ngram(row)
        if given.cold:
            raise Skip("on a CPU that is the row without `cold`")
        drafts = inputs.DRAFTS
        windows_of = np.lib.stride_tricks.sliding_window_view
        slots = np.arange(drafts)

        def call():
            generated = given.all[:, given.prompt :]
            lengths = np.full(given.batch, given.prompt)
            out = np.full((given.batch, drafts), -1, np.int64)
            count = np.zeros(given.batch, np.int64)
            for n in (3, 2, 1):
                pattern = np.take_along_axis(generated, given.step[:, None] + 1 - n + np.arange(n), 1)
                for tokens, length in ((given.input_ids, lengths), (generated, given.step)):
                    if (count > 0).all():
                        return out, count
                    hit = (windows_of(tokens, n, axis=1) == pattern[:, None]).all(axis=2)
                    hit &= np.arange(hit.shape[1]) + n < length[:, None]
                    at, new = hit.argmax(axis=1), hit.any(axis=1) & (count == 0)
                    left = np.minimum(length - at - n, drafts)
                    source = np.clip(at[:, None] + n + slots, 0, tokens.shape[1] - 1)
                    found = np.where(slots < left[:, None], np.take_along_axis(tokens, source, 1), -1)
                    out = np.where(new[:, None], found, out)
                    count = np.where(new, left, count)
            return out, count

        return self.timed(call), lambda: given.check(*self.last), given.bytes

    def unique(self, row):
        np = self.np
        if row.numbers[0] > MANY:
            raise Skip("it takes minutes and more")
        given = inputs.Keys(row)
        keys = given.keys()
        size = (2 + given.inverse) * keys.nbytes

        def check():
            if not given.inverse:
                return given.check(self.last)
            distinct, places = self.last
            assert (distinct[places] == keys).all(), "places of other keys"
            return given.check(distinct)

        return self.timed(lambda: np.unique(keys, return_inverse=given.inverse)), check, size


class Sort(Numpy):
    """What numpy.unique did before it hashed."""

    name = "numpy sort and compare"
    names = {}
    topk_router = deduplicate_topk = rejection_sample = ngram_match = prompt_lookup = None

    def unique(self, row):
        np = self.np
        if row.numbers[0] > 1 << 27:
            raise Skip("it takes minutes and more")
        given = inputs.Keys(row)
        if given.inverse:
            raise Skip("it gives no places")
        self.room(row, 2)
        keys = given.keys()

        def call():
            ordered = np.sort(keys)
            return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]

        return self.timed(call), lambda: given.check(self.last), 2 * keys.nbytes


def peer(options):
    numpy = module("numpy")
    return numpy and Numpy(numpy, options)


def sort_peer(options):
    numpy = module("numpy")
    return numpy and Sort(numpy, options)


if __name__ == "__main__":
    main(__doc__, peer, sort_peer)
