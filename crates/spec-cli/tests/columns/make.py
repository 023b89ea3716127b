#!/usr/bin/env python3
"""Writes polars.parquet and polars.arrow beside this script: columns of keys and of
what is no key, from a library that shares no code with this one (polars 2.1.0)."""

from pathlib import Path

import polars

FRAME = polars.DataFrame(
    {
        "key": polars.Series([2**64 - 1, 7, 0, 7, 3] * 40, dtype=polars.UInt64),
        "signed": polars.Series([-(2**63), 7, 0, 7, -3] * 40, dtype=polars.Int64),
        "narrow": polars.Series([255, 7, 0, 7, 3] * 40, dtype=polars.UInt8),
        "gaps": polars.Series([1, None, 0, 7, 3] * 40, dtype=polars.Int64),
        "word": ["a", "b", "c", "d", "e"] * 40,
        "real": [0.5, 1.0, 2.0, 3.0, 4.0] * 40,
    }
)

HERE = Path(__file__).resolve().parent
FRAME.write_parquet(HERE / "polars.parquet", compression="zstd")
FRAME.write_ipc(HERE / "polars.arrow", compression="lz4")
