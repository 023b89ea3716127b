#!/usr/bin/env python3
"""Times polars on the CPU, all its threads: unique, and deduplicate_topk as a frame.

pip install polars numpy
python3 benches/peers/with_polars.py --json polars.json
"""

import inputs
from common import Skip, cpu_device, free_memory, main, module, time_cpu


class Polars:
    name = "polars"
    names = {"unique": "polars unique, then sort"}

    def __init__(self, polars, options):
        self.polars, self.quick = polars, options.quick
        self.device = cpu_device()
        self.versions = {"polars": polars.__version__}

    def timed(self, call):
        def again():
            self.last = call()

        return lambda: time_cpu(again, self.quick)

    def deduplicate_topk(self, row):
        np = inputs.np
        pl = self.polars
        values = inputs.deduplicate(row)
        batch, n = values.shape
        frame = pl.DataFrame(
            {"request": np.repeat(np.arange(batch, dtype=np.int32), n), "value": values.ravel()}
        )

        def call():
            kept = frame.lazy().filter(pl.col("value") >= 0).unique()
            return kept.sort("request", "value").collect()

        def check():
            # A frame has no padding: the distinct pairs are all there is.
            unique = np.full_like(values, -1)
            request, value = (self.last[name].to_numpy() for name in ("request", "value"))
            starts = np.searchsorted(request, np.arange(batch))
            unique[request, np.arange(len(request)) - starts[request]] = value
            return inputs.check_deduplicate(values, unique)

        return self.timed(call), check, 2 * values.nbytes

    def unique(self, row):
        if row.numbers[0] > 1 << 27:
            raise Skip("it takes minutes and more")
        free = free_memory()
        if free is not None and free < 4 * row.memory:
            raise Skip(f"it takes {4 * row.memory / 2**30:.1f} GiB of main memory")
        given = inputs.Keys(row)
        if given.inverse:
            raise Skip("it gives no places")
        keys = self.polars.Series(given.keys())
        check = lambda: given.check(self.last.to_numpy())
        return self.timed(lambda: keys.unique().sort()), check, 16 * len(keys)


def peer(options):
    polars = module("polars")
    if polars is None or module("numpy") is None:
        return None
    return Polars(polars, options)


if __name__ == "__main__":
    main(__doc__, peer)
