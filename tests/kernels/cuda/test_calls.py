"""Calls as users make them, with kernels in the emulator: form="auto" on CuPy."""

import ml_dtypes
import numpy as np
import pytest

import linkern
from linkern.kernels import dispatch
from linkern.kernels.cuda import backend
from tests.kernels.cuda.emulator.device import Emulator

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def device(monkeypatch):
    """An emulator that takes the arrays of NumPy for its own."""
    found = Emulator()
    monkeypatch.setattr("linkern.kernels.cuda.backend.device_of", lambda *_: found)
    monkeypatch.setitem(dispatch.BACKENDS, np.ndarray, backend.BACKEND)
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
    assert files(device) == {"chunk_fwd_simt" if dtype is np.float64 else "chunk_fwd"}
    due = CALLS[name](*(x.astype(float) for x in (q, k, v, g)), form="parallel")
    assert found.output.dtype == dtype
    near(found.output, due.output, dtype)
    assert found.state.memory.dtype == g.dtype
    near(found.state.memory, due.state.memory, dtype)


def test_rows_stay_narrow_on_their_way_to_a_kernel(device):
    q, k, v = rows(*3 * [(2, 3, 40, 16)], dtype=BFLOAT16)
    linkern.simple_gla(q, k, v, scale=0.3)
    (launch,) = device.launches
    assert "<TileShape<bf16" in launch.kernel
    assert launch.parameters["scale"] == np.float32(0.3)


RECURRENT = {
    "delta_rule": lambda q, k, v, g, b, **_: linkern.delta_rule(q, k, v, b, **_),
    "gated_delta_rule": linkern.gated_delta_rule,
    "kda": lambda q, k, v, g, b, **_: linkern.kda(
        q, k, v, np.repeat(g[..., None], q.shape[-1], -1), b, **_
    ),
    "gla": lambda q, k, v, g, b, **_: linkern.gla(
        q, k, v, np.repeat(g[..., None], q.shape[-1], -1), **_
    ),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", RECURRENT)
def test_overwriting_and_forgetting_by_channel(device, name, dtype):
    q, k, v = rows(*3 * [(2, 3, 20, 16)])
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g, b = rows(*2 * [(2, 3, 20)], seed=1)
    g, b = -np.abs(g), 1 / (1 + np.exp(b))
    q, k, v, g, b = (x.astype(dtype) for x in (q, k, v, g, b))
    found = RECURRENT[name](q, k, v, g, b)
    by_chunks = "chunk_delta" if "delta_rule" in name else "chunk_gla"
    assert files(device) == {"recurrent" if dtype is np.float64 else by_chunks}
    due = RECURRENT[name](*(x.astype(float) for x in (q, k, v, g, b)), form="recurrent")
    near(found.output, due.output, dtype)
    near(found.state.memory, due.state.memory, dtype)


def test_values_that_are_read_across_are_array_code(device):
    q, k, v = rows(*3 * [(2, 5, 4)])
    assert linkern.operators.oja(q, k, v) is not None
    assert not device.launches


@pytest.mark.parametrize("form", ["chunkwise", "recurrent", "parallel"])
def test_other_forms_are_array_code(device, form):
    q, k, v = rows(*3 * [(2, 5, 4)])
    linkern.linear_attention(q, k, v, form=form)
    linkern.simple_gla(q, k, v, form=form)
    assert not device.launches


def test_all_that_is_not_causal_is_array_code(device):
    q, k, v = rows(*3 * [(2, 5, 4)])
    linkern.linear_attention(q, k, v, causal=False)
    assert not device.launches


def test_feature_maps_of_users_are_applied_before(device):
    q, k, v = rows(*3 * [(2, 20, 8)])
    found = linkern.linear_attention(q, k, v, feature_map=lambda x: x**2 + 1)
    assert "IDENTITY" in device.launches[0].kernel
    due = linkern.linear_attention(
        *(x.astype(float) for x in (q, k, v)),
        feature_map=lambda x: x**2 + 1,
        form="parallel",
    )
    near(found.output, due.output, np.float32)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_by_kernels(device, name):
    q, k, v = rows(*3 * [(2, 3, 40, 16)])
    g = -np.random.default_rng(1).random((2, 3, 40))

    def gradients(form, *given):
        def call(q, k, v, g):
            return CALLS[name](q, k, v, g, form=form)

        result, pullback = linkern.vjp(call, *given)
        return pullback(np.cos(result.output), None)

    found = gradients("auto", q, k, v, g.astype(np.float32))
    assert files(device) == {"chunk_fwd", "chunk_bwd"}
    due = gradients("parallel", *(x.astype(float) for x in (q, k, v, g)))
    for x in "qkv" + ("g" if name == "simple_gla" else ""):
        near(found[x], due[x], np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ["delta_rule", "gated_delta_rule"])
def test_gradients_of_delta_rules_are_by_kernels(device, name, dtype):
    """Keys have fewer heads, and the state is differentiated."""
    q, k, v = rows((2, 1, 40, 16), (2, 1, 40, 16), (2, 3, 40, 24))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    g, b = rows(*2 * [(2, 3, 40)], seed=1)
    g, b = -np.abs(g), 1 / (1 + np.exp(b))
    inputs = [x.astype(dtype) for x in (q, k, v, g, b)]
    (memory,) = rows((2, 3, 16, 24), seed=2)

    def gradients(form, *inputs):
        wide = np.float64 if inputs[0].dtype == np.float64 else np.float32
        state = linkern.State(memory.astype(wide), None)

        def call(q, k, v, g, b, initial_state):
            options = {"initial_state": initial_state, "form": form}
            return RECURRENT[name](q, k, v, g, b, **options)

        result, pullback = linkern.vjp(call, *inputs, initial_state=state)
        return pullback(np.cos(result.output), state)

    results = gradients("auto", *inputs)
    by_kernels = {"chunk_delta", "chunk_delta_bwd"}
    assert files(device) == (set() if dtype is np.float64 else by_kernels)
    expected = gradients("recurrent", *(x.astype(float) for x in inputs))
    for x in "qkvgb" if name == "gated_delta_rule" else "qkvb":
        assert results[x].dtype == dtype
        near(results[x], expected[x], dtype)
    near(results["initial_state"].memory, expected["initial_state"].memory, dtype)


def test_gates_are_checked_where_gradients_are_asked_for(device):
    q, k, v = rows(*3 * [(2, 20, 8)])
    with pytest.raises(ValueError, match="`beta` must be"):
        linkern.vjp(linkern.delta_rule, q, k, v, np.full((2, 20), 2.5, np.float32))
    assert files(device) == {"chunk_delta"}


def test_gradients_of_what_heads_share_are_summed_wide(device):
    q, k, v = rows((4, 40, 16), (1, 40, 16), (4, 40, 16), dtype=BFLOAT16)
    result, pullback = linkern.vjp(linkern.linear_attention, q, k, v)
    found = pullback(np.ones_like(result.output))["key"]
    assert {launch.kernel.split("<")[2][:5] for launch in device.launches[:1]} == {
        "float"
    }
    assert found.dtype == BFLOAT16
    assert found.shape == k.shape


def test_packed_sequences_and_states(device):
    q, k, v = rows(*3 * [(2, 50, 8)])
    found = linkern.linear_attention(q, k, v, cu_seqlens=[0, 20, 20, 50])
    whole = linkern.linear_attention(q[:, 20:], k[:, 20:], v[:, 20:])
    np.testing.assert_array_equal(found.output[:, 20:], whole.output)
    np.testing.assert_array_equal(found.state.memory[2], whole.state.memory)
    first = linkern.linear_attention(q[:, :20], k[:, :20], v[:, :20])
    rest = linkern.linear_attention(
        q[:, 20:], k[:, 20:], v[:, 20:], initial_state=first.state
    )
    due = linkern.linear_attention(q, k, v, form="parallel")
    near(rest.output, due.output[:, 20:], np.float32)
    near(rest.state.memory, due.state.memory, np.float32)


def test_queries_may_have_heads_that_keys_do_not(device):
    q, k, v = rows((3, 2, 20, 8), (20, 8), (20, 8))
    found = linkern.linear_attention(q, k, v)
    due = linkern.linear_attention(
        *(x.astype(float) for x in (q, k, v)), form="parallel"
    )
    near(found.output, due.output, np.float32)
    assert found.state.memory.shape == due.state.memory.shape


@pytest.mark.parametrize("shape", [(0, 5, 4), (2, 0, 4), (2, 5, 0)])
def test_nothing_at_all(device, shape):
    q, k, v = (
        np.ones((*shape[:2], 4), np.float32),
        np.ones((*shape[:2], 4), "f4"),
        np.ones(shape, "f4"),
    )
    found = linkern.linear_attention(q, k, v)
    assert found.output.shape == shape
    due = linkern.linear_attention(q, k, v, form="parallel")
    np.testing.assert_array_equal(found.state.memory, due.state.memory)
    np.testing.assert_array_equal(found.state.normalizer, due.state.normalizer)
