"""Measure what Zarr takes of a block that a call on Dask arrays reads and writes.

    LINKERN_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python tools/store_costs.py [parts]
    python tools/store_costs.py workers    # a call on a cluster

parts
    A block is 65,536 tokens of 8 heads, K = V = 64, float32: 134 MB for each array.
    With one thread times are those of the processor, all threads of Zarr included; they
    take turns, and ratios are medians over the rounds (`tools/cpu_costs.py`).
workers
    From stores to a store on `distributed.LocalCluster`, four chunks of heads, one
    thread of linkern in each worker. Clusters take turns; a round is a call on each.
    Times by the clock on the wall.
"""

import os
import statistics
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import dask.array as da
import numpy as np
import zarr
from cpu_costs import ALONE, in_turns, median_ratio

import linkern
from linkern.bench.machine import this_machine
from linkern.kernels.dask.mapped_zarr import from_zarr

NAMES = ("query", "key", "value")
BLOCK = (1, 8, 65536, 64)
ROUNDS = 5
WORKERS = (1, 2, 4)


def parts(folder: Path) -> Iterator[str]:
    """Yield the table of the parts of a block."""
    rng = np.random.default_rng(0)
    blocks = {name: rng.standard_normal(BLOCK, dtype="f4") for name in NAMES}
    for name, x in blocks.items():
        made(folder / name, compressors=None)[...] = x
    output = blocks["value"]
    calls = {
        "the call": partial(linkern.linear_attention, **blocks),
        "the call on files, mapped": partial(mapped, folder),
        "reading three arrays, Zarr": partial(read, folder),
        "writing, no compression, no comparison": partial(
            write, folder, output, compressors=None, config={"write_empty_chunks": True}
        ),
        "writing, no compression": partial(write, folder, output, compressors=None),
        "writing, Zarr's default": partial(write, folder, output),
    }
    times = in_turns(list(calls.values()), ROUNDS)
    yield "| a block | time | of the call |"
    yield "| --- | --- | --- |"
    for name, column in zip(calls, times, strict=True):
        share = median_ratio(column, times[0])
        yield f"| {name} | {1e3 * statistics.median(column):.0f} ms | {share:.2f} |"


def made(path: Path, shape: Any = BLOCK, chunks: Any = BLOCK, **options: Any) -> Any:
    """Return a new array of Zarr."""
    options |= {"shape": shape, "chunks": chunks, "dtype": "f4", "overwrite": True}
    return zarr.create_array(str(path), **options)


def mapped(folder: Path) -> None:
    """Call on the three arrays where they are."""
    arrays = (from_zarr(folder / name) for name in NAMES)
    linkern.linear_attention(*(x.compute(scheduler="synchronous") for x in arrays))


def read(folder: Path) -> None:
    """Read the three arrays, one after the other."""
    for name in NAMES:
        zarr.open_array(folder / name, mode="r")[...]


def write(folder: Path, x: Any, **options: Any) -> None:
    """Write an array, and delete it."""
    made(folder / "output", **options)[...] = x


def workers(folder: Path) -> Iterator[str]:
    """Yield the table of clusters."""
    from distributed import Client, LocalCluster  # noqa: PLC0415 -- another extra

    shape, chunks = (1, 8, 131072, 64), (1, 2, 16384, 64)
    rng = np.random.default_rng(0)
    for name in NAMES:
        x = rng.standard_normal(shape, dtype="f4")
        made(folder / name, shape, chunks, compressors=None)[...] = x
    os.environ["LINKERN_NUM_THREADS"] = "1"
    times: dict[int, list[float]] = {number: [] for number in WORKERS}
    for _ in range(ROUNDS):
        for number, column in times.items():
            # Two threads: one stores while the other computes.
            size: dict[str, Any] = {"n_workers": number, "threads_per_worker": 2}
            cluster = LocalCluster(**size, dashboard_address=":0")
            with cluster, Client(cluster):
                stored(folder, shape, chunks)  # imports
                start = perf_counter()
                stored(folder, shape, chunks)
                column.append(perf_counter() - start)
    yield "| workers | time | lowest to highest | as fast as one worker |"
    yield "| --- | --- | --- | --- |"
    for number, column in times.items():
        spread = f"{min(column):.2f} to {max(column):.2f} s"
        cells = (number, f"{statistics.median(column):.2f} s", spread)
        ratio = median_ratio(times[1], column)
        yield f"| {' | '.join(map(str, cells))} | {ratio:.2f} |"


def stored(folder: Path, shape: Any, chunks: Any) -> None:
    """Call on the arrays of the folder, and store the output."""
    arrays = [from_zarr(folder / name) for name in NAMES]
    config = {"write_empty_chunks": True}
    target = made(folder / "output", shape, chunks, compressors=None, config=config)
    da.store(linkern.linear_attention(*arrays).output, target, lock=False)


def main() -> None:
    """Write the tables to standard output."""
    tables = {"parts": parts, "workers": workers}
    for line in this_machine().lines():
        sys.stdout.write(f"{line}\n")
    for name in sys.argv[1:] or ["parts"]:
        timed = "processor" if ALONE and name == "parts" else "wall"
        sys.stdout.write(f"\n{name}, by the clock of the {timed}\n\n")
        with TemporaryDirectory(prefix="linkern-store-costs-") as folder:
            for line in tables[name](Path(folder)):
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
    sys.stdout.write(f"\nload at the end: {os.getloadavg()[0]:.1f}\n")


if __name__ == "__main__":
    main()
