"""Gradients of the delta rules in the emulator: those of array code in float64."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import linkern
from linkern.kernels.cuda.backward import differentiates, recurrent_pullback
from linkern.kernels.cuda.plan import chunk_delta, chunk_delta_bwd
from tests.kernels.cuda import test_chunk_delta
from tests.kernels.cuda.chunked import (
    BFLOAT16,
    H200,
    Problem,
    distance,
    problem,
)
from tests.kernels.cuda.emulator.device import (
    LANDINGS,
    SCHEDULES,
    Change,
    Emulator,
    Way,
)
from tests.kernels.cuda.problems import strided
from tests.marks import every

# In the Euclidean norm, about 1.5 times the observed error: of rows, which are rounded
# to their dtype, and of gates and memories, which are float32. That of beta has the
# most in float32, since what is erased cancels what is written: 4.6e-7.
BOUNDS = {"bfloat16": 2.8e-3, "float16": 3.5e-4, "float32": 4e-7}
WIDE_BOUNDS = {"bfloat16": 4e-5, "float16": 4e-5, "float32": 7e-7}
ROWS = ("query", "key", "value")


def drawn(case: Problem, seed: int = 5) -> tuple[Any, Any]:
    """Draw gradients of the output and of the last memory."""
    rng = np.random.default_rng(seed)
    value, memory = case.terms.value, case.memory
    output = rng.standard_normal(value.shape).astype(value.dtype)
    return output, rng.standard_normal(memory.shape).astype(memory.dtype)


def run(
    case: Problem,
    device: Emulator | None = None,
    cotangents: tuple[Any, Any] | None = None,
) -> dict[str, Any]:
    """Return the gradients by name; three launches."""
    device = device or Emulator()
    device.shared = case.shared
    before = len(device.launches)
    cotangents = cotangents or drawn(case)
    memory, gradients = recurrent_pullback(
        device, case.memory, case.terms, *cotangents, scale=0.5
    )
    kernels = [launch.kernel.partition("<")[0] for launch in device.launches[before:]]
    passes = ["chunk_delta_states", "chunk_delta_reverse", "chunk_delta_grads"]
    assert kernels == passes[: 3 if case.terms.query.shape[-2] else 2]
    # ldmatrix has no bank conflicts.
    assert device.counts["matrix_passes"] == 4 * device.counts["matrix_loads"]
    return {**gradients, "memory": memory}


def expected(case: Problem, cotangents: tuple[Any, Any]) -> dict[str, Any]:
    """Return the gradients in float64, token by token."""
    terms, (output, memory) = case.terms, cotangents
    q, k, v = (x.astype(float) for x in terms[:3])
    zeros, ones = np.zeros(q.shape[:-1]), np.ones(q.shape[:-1])
    g = zeros if terms.log_decay is None else terms.log_decay[..., 0].astype(float)
    b = ones if terms.beta is None else terms.beta[..., 0].astype(float)
    options: dict[str, Any] = {"scale": 0.5, "form": "recurrent"}
    state = linkern.State(case.memory.astype(float), None)
    _, pullback = linkern.vjp(
        linkern.gated_delta_rule, q, k, v, g, b, initial_state=state, **options
    )
    last = linkern.State(memory.astype(float), None)
    gradients = dict(pullback(output.astype(float), last))
    gradients["memory"] = gradients.pop("initial_state").memory
    for name in ("log_decay", "beta"):
        gradients[name] = gradients[name][..., None]
    return gradients


def check(case: Problem, gradients: dict[str, Any], factor: float = 1.0) -> None:
    exact = expected(case, drawn(case))
    kind = case.terms.query.dtype
    for name, x in gradients.items():
        like = case.memory if name == "memory" else getattr(case.terms, name)
        if like is None:
            assert x is None
            continue
        assert x.shape == like.shape, name
        assert x.dtype == like.dtype, name
        bound = (BOUNDS if name in ROWS else WIDE_BOUNDS)[kind.name]
        assert distance(x, exact[name]) <= factor * bound, name


def law_the_values(device: Emulator, case: Problem) -> None:
    check(case, run(case, device))


def from_nothing(device: Emulator) -> None:
    """Check that a gradient of the last memory that is left out is zero."""
    case = problem(np.float32, 20, 8, 8)
    output, memory = drawn(case)
    exact = expected(case, (output, 0 * memory))
    gradients = run(case, device, (output, None))
    assert distance(gradients["memory"], exact["memory"]) <= WIDE_BOUNDS["float32"]


PROBLEMS = {
    **test_chunk_delta.in_small_shapes(law_the_values),
    "from nothing": from_nothing,
}


@pytest.mark.parametrize("name", every(3, test_chunk_delta.problems()))
def test_values(name):
    law_the_values(Emulator(), test_chunk_delta.problems()[name])


@pytest.mark.parametrize("name", every(3, PROBLEMS))
def test_values_with_other_tile_shapes(name):
    PROBLEMS[name](Emulator())


@pytest.mark.parametrize("name", ["bfloat16, padded", "float32, padded"])
def test_truncated_products(name):
    case = test_chunk_delta.problems()[name]
    check(case, run(case, Emulator(Way(truncates=True))), factor=3.0)


@pytest.mark.parametrize("name", every(2, ["float32, padded", "bfloat16, padded"]))
def test_any_order(name):
    case = test_chunk_delta.problems()[name]
    first = run(case)
    for schedule, landing in itertools.product(SCHEDULES, LANDINGS):
        same(run(case, Emulator(Way(schedule, landing, seed=3, resident=2))), first)


def same(gradients: dict[str, Any], others: dict[str, Any]) -> None:
    for name, x in gradients.items():
        np.testing.assert_array_equal(x, others[name], name)


@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(0, 140),
    features=st.sampled_from([8, 40, 64]),
    values=st.sampled_from([8, 56, 72]),
    decay=st.sampled_from(["token", None]),
    seed=st.integers(0, 99),
)
@example(length=0, features=40, values=40, decay="token", seed=0)
def test_shapes(length, features, values, decay, seed):
    case = problem(BFLOAT16, length, features, values, decay=decay, seed=seed)
    law_the_values(Emulator(), case)


@pytest.mark.parametrize("how", ["tokens first", "backwards", "every other entry"])
def test_any_strides(how):
    case = problem(BFLOAT16, 40, 16, 16)
    output, memory = drawn(case)
    terms = case.terms.mapped(
        lambda x: x if how == "every other entry" else strided(x, how)
    )
    cotangents = strided(output, how), memory
    same(run(case._replace(terms=terms), cotangents=cotangents), run(case))


def test_narrow_gates_have_narrow_gradients():
    case = problem(BFLOAT16, 70, 16, 16)
    terms = case.terms
    log_decay, beta = (x.astype(BFLOAT16) for x in (terms.log_decay, terms.beta))
    narrow = terms._replace(log_decay=log_decay, beta=beta)
    wide = terms._replace(
        log_decay=log_decay.astype(np.float32), beta=beta.astype(np.float32)
    )
    gradients = run(case._replace(terms=wide))
    gradients |= {x: gradients[x].astype(BFLOAT16) for x in ("log_decay", "beta")}
    same(run(case._replace(terms=narrow)), gradients)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_cotangent_of_none_is_zero(missing):
    case = problem(np.float32, 40, 16, 16)
    without, zeros = list(drawn(case)), list(drawn(case))
    without[missing], zeros[missing] = None, np.zeros_like(zeros[missing])
    same(
        run(case, cotangents=tuple(without)),
        run(case, cotangents=tuple(zeros)),
    )


def test_float16_stays_in_range():
    """Gradients of the memory are beyond 65504, and those of rows are not."""
    case = problem(np.float16, 20, 16, 16, decay=None)
    terms = case.terms
    terms = terms._replace(
        query=terms.query * np.float16(300), value=terms.value * np.float16(30)
    )
    case = case._replace(terms=terms)
    output, memory = drawn(case)
    cotangents = output * np.float16(0.02), memory * 3e5
    exact = expected(case, cotangents)
    assert abs(exact["memory"]).max() > 65504
    for name, x in run(case, cotangents=cotangents).items():
        if np.abs(exact[name]).max() < 65504:
            limit = (BOUNDS if name in ROWS else WIDE_BOUNDS)["float16"]
            assert distance(x, exact[name]) <= limit, name


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=str)
@pytest.mark.parametrize("token", [16, 37, 70])
def test_a_gradient_that_is_not_finite_reaches_no_later_token(token, dtype):
    case = problem(dtype, 80, 16, 16, heads=1)
    output, memory = drawn(case)
    first = run(case)
    for number in (np.nan, np.inf):
        output[..., token, :] = number
        gradients = run(case, cotangents=(output, memory))
        # Tiles of 16 tokens are multiplied at once.
        later = (..., slice(token // 16 * 16 + 16, None), slice(None))
        for name in (*ROWS, "log_decay", "beta"):
            np.testing.assert_array_equal(
                gradients[name][later], first[name][later], name
            )
            assert not np.isfinite(gradients[name][..., token, :].astype(float)).all()


def test_operands_have_two_parts():
    """Numbers that were computed have 16 bits; an operand of one part has 8."""
    case = problem(BFLOAT16, 40, 16, 16)
    # Those of float32 in two parts; float16 has them, too.
    change = Change("kParts = 2, kOrder = `1`;", "0", place=1)
    with pytest.raises(AssertionError):
        law_the_values(Emulator(changed=[change]), case)


def test_differentiates():
    device = Emulator()
    terms, memory, _ = problem(BFLOAT16, 20, 16, 16)
    assert differentiates(device, memory, terms)
    assert differentiates(device, memory, terms._replace(log_decay=None, beta=None))
    by_channel = np.repeat(terms.log_decay, 16, axis=-1)
    assert not differentiates(device, memory, terms._replace(log_decay=by_channel))
    assert not differentiates(device, memory, terms._replace(erase=terms.key.copy()))
    assert not differentiates(Emulator(shared=8 << 10), memory, terms)
    assert not differentiates(
        device, memory.astype(float), terms.mapped(lambda x: x.astype(float))
    )
    assert not differentiates(device, memory[..., :0], terms)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("features", [16, 32, 64, 128])
@pytest.mark.parametrize("values", [16, 32, 64, 128])
def test_every_gpu_has_shapes(dtype, features, values):
    for shared, heads in itertools.product((99 << 10, H200), (1, 2, 3)):
        options = {"heads": heads, "multiprocessors": 4}
        sizes = dtype, features, values, shared
        shape = chunk_delta_bwd.tile_shape(*sizes, **options)
        assert (shape is None) == (chunk_delta.tile_shape(*sizes, **options) is None), (
            sizes
        )
        if shape is None:
            continue
        assert shape.columns <= 64 or features < 128
        one_chunk = chunk_delta_bwd.grad_shape(*sizes, shape.tokens)
        assert one_chunk is not None, sizes
        assert chunk_delta_bwd.shared_bytes(dtype, one_chunk) <= shared
