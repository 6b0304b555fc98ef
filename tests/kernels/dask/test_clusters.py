"""Calls on the workers of a cluster, and the example of the page."""

import re
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import linkern
from tests.operators.problems import close
from tests.waiting import LONG

ROOT = Path(__file__).parents[3]
PAGE, README = ROOT / "docs" / "out-of-core.md", ROOT / "README.md"
SHAPE, CHUNKS = (1, 2, 24, 4), (1, 1, 4, 4)


@pytest.fixture
def arrays(dask):
    da = import_module("dask.array")
    rng = np.random.default_rng(0)
    plain = [rng.normal(size=SHAPE) / 2 for _ in range(4)]
    return plain, [da.from_array(x, chunks=CHUNKS) for x in plain]


@pytest.fixture(params=[2, 4])
def client(request, distributed):
    cluster = distributed.LocalCluster(
        n_workers=request.param,
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        death_timeout=LONG,
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.mark.slow
def test_workers_compute_what_one_call_does(client, arrays):
    (*plain, cotangent), blocks = arrays
    options = {"feature_map": lambda x: x * x}  # goes to the workers by value
    due, pull = linkern.vjp(linkern.linear_attention, *plain, **options)
    # One input is on the cluster already, one is made of it.
    held = client.persist(blocks[0])
    inputs = [held, blocks[1], (blocks[2] + held) - held]
    got, pull_blocks = linkern.vjp(linkern.linear_attention, *inputs, **options)
    gradients = pull_blocks(blocks[3])
    results = client.compute([got.output, got.state.memory, *gradients.values()])
    output, memory, *of_inputs = client.gather(results)
    close(output, due.output)
    close(memory, due.state.memory)
    for x, y in zip(of_inputs, pull(cotangent).values(), strict=True):
        close(x, y)


LANES, LENGTH = 4, 6


def noted(log, marker, block, block_info=None):
    """Return a block, after a line of who makes it; one worker ends at one block."""
    import os

    _, lane, n, _ = block_info[0]["chunk-location"]
    with Path(log).open("a") as file:
        file.write(f"{os.getpid()} {lane} {n}\n")
    if (lane, n) == (1, 3):
        try:
            with Path(marker).open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return block
        os._exit(1)
    return block


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "scan"), [("output", "chain"), ("gradients", "blelloch")]
)
def test_a_worker_that_dies_costs_its_tasks(kind, scan, dask, client, tmp_path):
    da, log, marker = import_module("dask.array"), tmp_path / "log", tmp_path / "dead"
    rng, shape = np.random.default_rng(0), (1, LANES, 4 * LENGTH, 4)
    *plain, cotangent = rng.normal(size=(4, *shape)) / 2
    query, key, value, of_output = (
        da.from_array(x, chunks=(1, 1, 4, 4)) for x in (*plain, cotangent)
    )
    value = value.map_blocks(
        partial(noted, str(log), str(marker)), dtype=float, meta=np.empty((0,) * 4)
    )
    with dask.config.set({"linkern.scan": scan}):
        result, pullback = linkern.vjp(linkern.delta_rule, query, key, value)
    due, pull = linkern.vjp(linkern.delta_rule, *plain)
    if kind == "output":
        close(client.compute(result.output).result(timeout=LONG), due.output)
        times = [1] * LENGTH
    else:
        gradients = client.compute([*pullback(of_output).values()])
        for x, y in zip(
            client.gather(gradients), pull(cotangent).values(), strict=True
        ):
            close(x, y)
        # The states before the blocks, and then the gradients.
        times = [1 + (n < LENGTH - 1) for n in range(LENGTH)]
    lines = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    dead = int(marker.read_text())
    touched = {lane for pid, lane, _ in lines if pid == dead}
    assert 1 in touched
    counts = Counter((lane, n) for _, lane, n in lines)
    for lane in range(LANES):
        for n in range(LENGTH):
            assert counts[lane, n] >= times[n]
            if lane not in touched:
                assert counts[lane, n] == times[n]
    # What the others made of these lanes is needed again at most once.
    again = sum(counts.values()) - LANES * sum(times)
    before = lines.index((dead, 1, 3))
    assert 1 <= again <= before + 1


def examples(heading):
    """Return the code of the page up to a heading, and behind it."""
    before, _, behind = PAGE.read_text().partition(heading)
    return [
        "\n".join(re.findall(r"```python\n(.*?)```", part, re.DOTALL))
        for part in (before, behind)
    ]


def test_the_example_of_the_page_runs(zarr, dask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    da, names = import_module("dask.array"), {}
    code, _ = examples("## On a cluster")
    exec(code, names)
    x = [da.from_zarr(f"{name}.zarr").compute() for name in ("query", "key", "value")]
    due, pull = linkern.vjp(linkern.delta_rule, *x)
    close(da.from_zarr("output.zarr").compute(), due.output)
    close(da.from_zarr("output-2.zarr").compute(), due.output)
    close(da.from_zarr("key-gradient.zarr").compute(), pull(x[2])["key"])


def test_the_example_of_the_readme_runs(zarr, dask, tmp_path, monkeypatch):
    del dask
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.M | re.S)
    (shown,) = (block for block in blocks if "dask" in block)
    rng, plain = np.random.default_rng(0), {}
    for name in ("query", "key", "value"):
        plain[name] = rng.normal(size=SHAPE) / 2
        zarr.create_array(f"{name}.zarr", data=plain[name], chunks=CHUNKS)
    exec(shown, {"linkern": linkern})
    written = zarr.open_array("output.zarr", mode="r")
    assert written.chunks == CHUNKS
    close(written[...], linkern.delta_rule(**plain).output)


@pytest.mark.slow
def test_the_example_for_clusters_runs(zarr, distributed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    da, names = import_module("dask.array"), {}
    for code in examples("## On a cluster"):
        exec(code, names)
    again = da.from_zarr("output-again.zarr").compute()
    np.testing.assert_array_equal(again, da.from_zarr("output.zarr").compute())
