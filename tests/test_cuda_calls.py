"""Calls as users make them, with kernels in the emulator: form="auto" on CuPy."""

import ml_dtypes
import numpy as np
import pytest

import linkern
from linkern import testing
from tests.emulator.device import Emulator

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def device(monkeypatch):
    """An emulator that takes the arrays of NumPy for its own."""
    found = Emulator()
    monkeypatch.setattr("linkern._cuda.terms.device_of", lambda *_: found)
    for place in ("linkern.operators.linear", "linkern._operator"):
        monkeypatch.setattr(f"{place}.on_cupy", lambda *_: True)
    return found


def rows(*shapes, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def files(device):
    return {launch.file for launch in device.launches}


def near(found, due, dtype):
    bound = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
    limit = bound[np.dtype(dtype).name] * np.abs(due.astype(float)).max()
    assert np.abs(found.astype(float) - due.astype(float)).max() <= limit


CALLS = {
    "linear_attention": lambda q, k, v, g, **_: linkern.linear_attention(q, k, v, **_),
    "simple_gla": linkern.simple_gla,
    "retention": lambda q, k, v, g, **_: linkern.retention(q, k, v, **_),
    "lightning_attention": lambda q, k, v, g, **_: linkern.lightning_attention(
        q, k, v, **_
    ),
}


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, BFLOAT16], ids=str
)
@pytest.mark.parametrize("name", CALLS)
def test_auto_is_by_kernels(device, name, dtype):
    q, k, v = rows(*3 * [(2, 3, 40, 16)], dtype=dtype)
    g = -np.random.default_rng(1).random((2, 3, 40))
    g = g.astype(np.float64 if dtype is np.float64 else np.float32)
    found = CALLS[name](q, k, v, g)
    assert files(device) == {"additive" if dtype is np.float64 else "walk"}
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr("linkern.operators.linear.on_cupy", lambda *_: False)
        plain.setattr("linkern._operator.on_cupy", lambda *_: False)
        due = CALLS[name](*(x.astype(float) for x in (q, k, v, g)), form="parallel")
    assert found.output.dtype == dtype
    near(found.output, due.output, dtype)
    assert found.state.memory.dtype == g.dtype
    near(found.state.memory, due.state.memory, dtype)


@pytest.mark.parametrize("form", ["chunkwise", "recurrent", "parallel"])
def test_other_forms_are_array_code(device, form):
    q, k, v = rows(*3 * [(2, 5, 4)])
    linkern.linear_attention(q, k, v, form=form)
    linkern.simple_gla(q, k, v, form=form)
    assert not device.launches
