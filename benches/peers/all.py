#!/usr/bin/env python3
"""Times everything that users would pick instead, as far as it is here, on the shapes
of `spec-bench`.

    pip install numpy polars torch triton flashinfer-python cupy-cuda12x    # those that you want
    cargo run --release -p spec-bench -- inputs                             # once
    python3 benches/peers/all.py --json peers.json
    cargo run -p spec-bench -- report --html page.html ours.json peers.json

What is not installed, and GPUs that are not there, are skipped with a line. The
scripts beside this one time a package each.
"""

import with_cub
import with_cupy
import with_flashinfer
import with_numpy
import with_polars
import with_sglang
import with_torch
import with_triton
from common import main

if __name__ == "__main__":
    main(
        __doc__,
        with_torch.peer,
        with_triton.peer,
        *with_flashinfer.peers,
        *with_sglang.peers,
        with_cupy.peer,
        with_cub.peer,
        with_numpy.peer,
        with_numpy.sort_peer,
        with_polars.peer,
    )
