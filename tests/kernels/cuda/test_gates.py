"""Gates as kernels read them: two dtypes, beta, and a look at their values."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import linkern
from linkern.core.recurrence import Terms
from linkern.kernels import dispatch
from linkern.kernels.cuda import backend
from linkern.kernels.cuda.forward import attend, recurrent
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import close

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
LOG_DECAY = "`log_decay` must be a natural logarithm of a decay"
BETA = r"`beta` must be in \[0, 2\]"


def terms_of(dtype, features=6, *, gate_dtype=None, by_channel=True, length=11):
    """Draw terms of the delta rule, and a memory."""
    rng = np.random.default_rng(0)
    wide = np.float64 if dtype is np.float64 else np.float32

    def rows(size):
        return rng.normal(size=(2, length, size)) / features**0.5

    query, key, value = (rows(n).astype(dtype) for n in (features, features, 5))
    gates = (-abs(rows(features if by_channel else 1)), rng.random((2, length, 1)))
    log_decay, beta = (x.astype(gate_dtype or dtype) for x in gates)
    terms = Terms(query, key, value, log_decay, key, beta=beta)
    return terms, rng.normal(size=(2, features, 5)).astype(wide)


def expected(memory, terms, scale):
    """Return the output and the last memory in float64, token by token."""
    memory = memory.astype(np.float64)
    q, k, v, g, b = (
        x.astype(np.float64)
        for x in (terms.query, terms.key, terms.value, terms.log_decay, terms.beta)
    )
    outputs = []
    for t in range(q.shape[-2]):
        memory = np.exp(g[:, t])[..., None] * memory
        written = b[:, t] * (v[:, t] - (k[:, t, None] @ memory)[:, 0])
        memory = memory + k[:, t, :, None] * written[:, None]
        outputs.append(scale * (q[:, t, None] @ memory)[:, 0])
    return np.stack(outputs, axis=1), memory


def law_the_equation(device, terms, memory):
    results = recurrent(device, memory, terms, scale=0.3, check_gates=True)
    close(results, expected(memory, terms, 0.3))


PROBLEMS = {"gates": lambda device: law_the_equation(device, *terms_of(BFLOAT16))}


@pytest.mark.parametrize("by_channel", [True, False])
@pytest.mark.parametrize("features", [6, 260])
@pytest.mark.parametrize(
    ("dtype", "gate_dtype"),
    [(BFLOAT16, BFLOAT16), (BFLOAT16, np.float32), (np.float64, np.float64)],
    ids=str,
)
def test_beta_scale_and_narrow_gates(dtype, gate_dtype, features, by_channel):
    terms, memory = terms_of(
        dtype, features, gate_dtype=gate_dtype, by_channel=by_channel
    )
    law_the_equation(Emulator(), terms, memory)


@pytest.mark.parametrize("dtype", [np.float64, BFLOAT16], ids=str)
def test_narrow_decays_of_chunks(dtype):
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 70, 16)).astype(dtype) for _ in range(3))
    g = -abs(rng.normal(size=(2, 70, 1))).astype(dtype)
    wide = np.float64 if dtype is np.float64 else np.float32
    memory = rng.normal(size=(2, 16, 16)).astype(wide)
    narrow = attend(Emulator(), q, k, v, g, memory, None)
    widened = attend(Emulator(), q, k, v, g.astype(wide), memory, None)
    for x, y in zip(narrow[:2], widened[:2], strict=True):
        np.testing.assert_array_equal(x, y)


# Rules about values. A gate that breaks one is at the edges of spans, chunks, segments.


@cache
def additive(dtype):
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(2, 700, 16)).astype(dtype) for _ in range(3))
    return q, k, v, -abs(rng.normal(size=(2, 700, 1))).astype(np.float32)


@pytest.mark.parametrize("token", [0, 63, 64, 699])
@pytest.mark.parametrize("multiprocessors", [2, 64])
def test_a_positive_decay_of_a_chunk_is_refused(token, multiprocessors):
    q, k, v, g = additive(BFLOAT16)
    device = Emulator(multiprocessors=multiprocessors)
    memory = np.zeros((2, 16, 16), np.float32)
    attend(device, q, k, v, g, memory, None, check_gates=True)
    assert len(device.launches) == (1 if multiprocessors == 2 else 3)
    wrong = g.copy()
    wrong[1, token] = 1e-30
    with pytest.raises(ValueError, match=LOG_DECAY):
        attend(device, q, k, v, wrong, memory, None, check_gates=True)
    attend(device, q, k, v, wrong, memory, None)


@pytest.mark.parametrize("operator", ["simple_gla", "gated_delta_rule"])
def test_gates_are_not_looked_at_while_a_graph_is_recorded(operator, monkeypatch):
    """Nothing can wait for what is only recorded."""
    device = Emulator()
    monkeypatch.setattr(backend, "device_of", lambda *_: device)
    monkeypatch.setitem(dispatch.BACKENDS, np.ndarray, backend.BACKEND)
    monkeypatch.setattr(device, "on_host", lambda x: pytest.fail("it waits"))
    monkeypatch.setattr("linkern.kernels.cuda.forward.is_captured", lambda x: True)
    q, k, v, g = (x[:, :40] for x in additive(np.float32))
    betas = {"beta": g[..., 0] + 0.5} if "delta" in operator else {}
    getattr(linkern, operator)(q, k, v, g[..., 0] + 9, **betas)


@pytest.mark.parametrize("token", [0, 15, 16, 39])
def test_a_positive_decay_of_a_chunk_without_tensor_cores_is_refused(token):
    q, k, v, g = (x[:, :40].astype(np.float64) for x in additive(BFLOAT16))
    memory = np.zeros((2, 16, 16))
    attend(Emulator(), q, k, v, g, memory, None, check_gates=True)
    g[0, token] = 1e-30
    with pytest.raises(ValueError, match=LOG_DECAY):
        attend(Emulator(), q, k, v, g, memory, None, check_gates=True)


@pytest.mark.parametrize("features", [6, 260])
@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [("log_decay", 1e-30, LOG_DECAY), ("beta", 2.01, BETA), ("beta", -1e-30, BETA)],
)
@pytest.mark.parametrize("place", [(0, 0, 0), (1, 4, 3), (1, 10, -1)])
def test_a_gate_out_of_its_range_is_refused(name, number, rule, place, features):
    terms, memory = terms_of(np.float32, features)
    recurrent(Emulator(), memory, terms, check_gates=True)
    gate = getattr(terms, name)
    gate[*place[:2], min(place[2], gate.shape[-1] - 1)] = number
    with pytest.raises(ValueError, match=rule):
        recurrent(Emulator(), memory, terms, check_gates=True)
    recurrent(Emulator(), memory, terms)


def test_what_is_not_a_number_breaks_no_rule():
    terms, memory = terms_of(np.float32)
    terms.log_decay[0, 1], terms.beta[1, 2] = np.nan, np.nan
    output, _ = recurrent(Emulator(), memory, terms, check_gates=True)
    assert np.isnan(output[0, 1:]).all()
    assert np.isfinite(output[0, :1]).all()


# Calls of users.


@pytest.fixture
def device(monkeypatch):
    """An emulator that takes the arrays of NumPy for its own."""
    emulator = Emulator()
    monkeypatch.setattr("linkern.kernels.cuda.backend.device_of", lambda *_: emulator)
    monkeypatch.setitem(dispatch.BACKENDS, np.ndarray, backend.BACKEND)
    return emulator


def call_of(rng, **changed):
    inputs = {name: rng.normal(size=(2, 12, 6)) for name in ("query", "key", "value")}
    inputs |= {"log_decay": -rng.random((2, 12, 6)), "beta": rng.random((2, 12))}
    return {name: x.astype(np.float32) for name, x in (inputs | changed).items()}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("traced", [False, True])
def test_calls_refuse_gates_out_of_range(device, packed, traced):
    rng = np.random.default_rng(0)
    options = {"cu_seqlens": [0, 5, 12]} if packed else {}
    call = linkern.vjp if traced else lambda op, *x, **more: op(*x, **more)

    def run(**changed):
        inputs = call_of(rng, **changed)
        return call(
            lambda q, k, v, g, b: linkern.kda(q, k, v, g, b, **options),
            *inputs.values(),
        )

    run()
    assert len(device.launches) == (0 if traced else 2 if packed else 1)
    with pytest.raises(ValueError, match=LOG_DECAY):
        run(log_decay=rng.random((2, 12, 6)))
    with pytest.raises(ValueError, match=BETA):
        run(beta=3 + rng.random((2, 12)))


def test_gradients_that_are_array_code_are_computed_wide(device):
    rng = np.random.default_rng(0)
    inputs = {name: x.astype(BFLOAT16) for name, x in call_of(rng).items()}
    wide = {name: x.astype(np.float32) for name, x in inputs.items()}

    def gradients(inputs):
        result, pullback = linkern.vjp(linkern.kda, *inputs.values())
        return pullback(np.ones_like(result.output), None)

    found, exact = gradients(inputs), gradients(wide)
    assert not device.launches
    for name, x in found.items():
        assert x.dtype == BFLOAT16
        error = abs(x.astype(np.float32) - exact[name])
        assert (error <= 2.0**-8 * abs(exact[name]) + 1e-6).all(), name
