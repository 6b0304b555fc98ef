"""Calls on the workers of a cluster, and the example of the page."""

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import linkern
from tests.operators.problems import close
from tests.waiting import LONG

PAGE = Path(__file__).parents[3] / "docs" / "out-of-core.md"
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


def killed_once(marker, block):
    """Return a block; the first worker that gets to it ends."""
    if not marker.exists():
        marker.touch()
        import os

        os._exit(1)
    return block


@pytest.mark.slow
def test_a_worker_that_dies_costs_its_tasks(client, arrays, tmp_path):
    (*plain, _), blocks = arrays
    marker = tmp_path / "marker"
    x = blocks[2].map_blocks(
        lambda x, block_info=None: (
            killed_once(marker, x) if block_info[0]["chunk-location"][2] == 3 else x
        ),
        dtype=float,
        meta=np.empty((0,) * 4),
    )
    got = linkern.delta_rule(blocks[0], blocks[1], x).output
    close(client.compute(got).result(timeout=LONG), linkern.delta_rule(*plain).output)
    assert marker.exists()


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
    close(da.from_zarr("key-gradient.zarr").compute(), pull(x[2])["key"])


@pytest.mark.slow
def test_the_example_for_clusters_runs(zarr, distributed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    da, names = import_module("dask.array"), {}
    for code in examples("## On a cluster"):
        exec(code, names)
    again = da.from_zarr("output-again.zarr").compute()
    np.testing.assert_array_equal(again, da.from_zarr("output.zarr").compute())
