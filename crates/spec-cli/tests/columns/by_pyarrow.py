#!/usr/bin/env python3
"""Writes the other files beside this script, by pyarrow 26.0.1: Parquet and Arrow files of the same
tables, Parquet files with checksums of their pages, and one whose codec is not read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
DAY = 86_400_000


def both(name, table):
    pq.write_table(table, HERE / f"{name}.parquet", store_schema=False)
    with ipc.new_file(HERE / f"{name}.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


# Dates and times of every unit, before and after 1970, and words that are numbers.
numbers = [-3, 5, 5, None]
times = {
    "date32": pa.array(numbers, pa.date32()),
    "date64": pa.array([number and number * DAY for number in numbers], pa.date64()),
    "duration": pa.array(numbers, pa.duration("s")),
    "words": pa.array(numbers, pa.int64()).dictionary_encode(),
    "bytes": pa.array([3, 200, 200, None], pa.uint8()).dictionary_encode(),
}
for unit in ["s", "ms", "us", "ns"]:
    times[f"timestamp_{unit}"] = pa.array(numbers, pa.timestamp(unit, "Europe/Berlin"))
    clock = pa.time32(unit) if unit in ["s", "ms"] else pa.time64(unit)
    times[f"time_{unit}"] = pa.array([3, 5, 5, None], clock)
both("times", pa.table(times))

# A column in a structure, one of the same name beside it, and columns of one name.
inner = pa.struct([("b", pa.int64()), ("d", pa.struct([("e", pa.int32())]))])
rows = [{"b": 1, "d": {"e": 7}}, {"b": None, "d": None}, None, {"b": 2, "d": {"e": None}}]
nested = pa.table({"a": pa.array(rows, inner), "c.d": pa.array([3, 4, 5, 6], pa.int64())})
both("nested", nested)
twice = [("a", pa.array(rows, inner)), ("a.b", pa.array([3] * 4)), ("k", pa.array([1] * 4)), ("k", pa.array([2] * 4))]
both("twice", pa.table([column for _, column in twice], names=[name for name, _ in twice]))

# Numbers with and without words, so that there are pages of each kind.
state, keys = 1, []
for _ in range(120):
    state = (state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) % 2**64
    keys.append(state - 2**63)
table = pa.table({"key": pa.array(keys, pa.int64())})
for version, codecs in [("1.0", ["none", "snappy", "zstd"]), ("2.0", ["lz4", "gzip"])]:
    for codec in codecs:
        pq.write_table(
            table,
            HERE / f"checksums.{codec}.parquet",
            compression=codec,
            data_page_version=version,
            use_dictionary=codec in ["none", "lz4"],
            write_page_checksum=True,
            store_schema=False,
        )
pq.write_table(table, HERE / "brotli.parquet", compression="brotli", store_schema=False)

with ipc.new_stream(HERE / "stream.arrows", table.schema) as writer:
    writer.write_table(table)
