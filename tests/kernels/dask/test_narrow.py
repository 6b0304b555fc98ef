"""16-bit Dask arrays: blocks are read as they are, states are float32."""

import tracemalloc
from importlib import import_module
from itertools import pairwise, product

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.kernels.dask.spans import Span
from linkern.operators.register import DEFINITIONS
from tests.marks import every
from tests.operators.problems import NAMES, operator, parts, problem

LENGTH = 9
FLOAT16, BFLOAT16 = np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def da(dask):
    return import_module("dask.array")


@pytest.fixture
def read(monkeypatch):
    """The dtypes of all blocks of inputs that calls of operators got, by name."""
    dtypes, run = set(), Span._run

    def noted(self, start, blocks, state):
        dtypes.update(
            (name, x.dtype)
            for name, x in zip(self.names, blocks, strict=True)
            if x is not None
        )
        return run(self, start, blocks, state)

    monkeypatch.setattr(Span, "_run", noted)
    return dtypes


def lengths(draw):
    """Draw chunks of the tokens."""
    cuts = draw(st.sets(st.integers(1, LENGTH - 1)))
    edges = [0, *sorted(cuts), LENGTH]
    return tuple(end - start for start, end in pairwise(edges))


def rows(x, letters, chunks, number):
    """Return one block of an array that may have no axis of tokens."""
    if letters[:1] not in ("t", "s"):
        return x
    step = x.shape[2] // LENGTH
    start = step * sum(chunks[:number])
    return x[:, :, start : start + step * chunks[number]]


@pytest.mark.parametrize(
    ("name", "dtype"), every(5, product(NAMES, (FLOAT16, BFLOAT16))), ids=str
)
def test_any_chunks_are_calls_on_narrow_blocks_bit_for_bit(name, dtype, da, read):
    axes = DEFINITIONS[name].axes

    @settings(max_examples=3)
    @given(st.data())
    def law(data):
        read.clear()
        chunks = lengths(data.draw)
        rng = np.random.default_rng(data.draw(st.integers(0, 2**16)))
        inputs = problem(name, rng, LENGTH, batch=1, heads=2)
        inputs = {key: x.astype(dtype) for key, x in inputs.items()}
        outputs, state = [], None
        for n in range(len(chunks)):
            block = {key: rows(x, axes[key], chunks, n) for key, x in inputs.items()}
            if name == "log_linear_attention":
                block["position"] = sum(chunks[:n])
            output, state = operator(name)(**block, initial_state=state)
            outputs.append(output)
        got = operator(name)(**blocks_of(da, inputs, axes, chunks))
        output = got.output.compute()
        assert output.dtype == got.output.dtype == dtype
        np.testing.assert_array_equal(output, np.concatenate(outputs, 2))
        for x, y in zip(parts(got.state), parts(state), strict=True):
            assert x.dtype == y.dtype == np.float32
            np.testing.assert_array_equal(x.compute(), y)
        assert {item for item in read if item[0] in inputs} == {
            (key, dtype) for key in inputs
        }

    law()


def blocks_of(da, inputs, axes, chunks):
    """Return inputs in chunks of the tokens."""

    def chunked(key, x):
        if axes[key][:1] not in ("t", "s"):
            return da.from_array(x, chunks=x.shape)
        step = x.shape[2] // LENGTH
        tokens = tuple(step * n for n in chunks)
        return da.from_array(x, chunks=(*x.shape[:2], tokens, *x.shape[3:]))

    return {key: chunked(key, x) for key, x in inputs.items()}


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
def test_gradients_are_as_narrow_as_the_inputs(dtype, da, read):
    rng = np.random.default_rng(0)
    axes = DEFINITIONS["gated_delta_rule"].axes
    inputs = problem("gated_delta_rule", rng, LENGTH, batch=1, heads=2)
    inputs = {key: x.astype(dtype) for key, x in inputs.items()}
    cotangent = rng.normal(size=inputs["value"].shape).astype(dtype)
    _, pull = linkern.vjp(linkern.gated_delta_rule, **inputs)
    blocks = blocks_of(da, inputs, axes, (4, 5))
    _, pull_blocks = linkern.vjp(linkern.gated_delta_rule, **blocks)
    of_output = blocks_of(da, {"value": cotangent}, axes, (4, 5))["value"]
    gradients, expected = pull_blocks(of_output), pull(cotangent)
    for key, x in gradients.items():
        assert x.dtype == x.compute().dtype == expected[key].dtype == dtype
        # Both round once, sums of another order.
        step = 4 * float(ml_dtypes.finfo(dtype).eps)
        one, other = (np.asarray(y, "float64") for y in (x.compute(), expected[key]))
        np.testing.assert_allclose(one, other, rtol=step, atol=step)
    assert {dtype for _, dtype in read} == {dtype}


def test_no_array_is_widened_as_a_whole(da, dask):
    length, chunk = 1 << 18, 1 << 13
    shape, chunks = (1, 1, length, 8), (1, 1, chunk, 8)
    arrays = [da.full(shape, 0.5, dtype="float16", chunks=chunks) for _ in range(3)]
    total = linkern.linear_attention(*arrays).output.sum(dtype="float32", split_every=2)
    with dask.config.set(scheduler="sync"):
        total.compute()  # imports
        tracemalloc.start()
        try:
            assert total.compute() == pytest.approx(length * 8 / 2)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # Outputs wait for their sums on one thread, 2 bytes an entry; widened ones take 4.
    assert peak < 3 * length * 8
