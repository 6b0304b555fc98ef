"""KDA where every gate is at the lower bound that kernels ship with, -5.

Sums of such gates pass the range of the exponential within a chunk: of float32 after 17
tokens, of float64 after 141. Kernels whose exponents are differences of sums keep them
small by sub-chunks of 16 tokens. The same laws judge a kernel in that order, right and
wrong, so that they are seen to break.
"""

from functools import partial

import numpy as np
import pytest

import linkern
from tests.conftest import library
from tests.marks import every
from tests.operators.problems import close, expected
from tests.testing import sub_chunks

BOUND = -5.0
# Around the edges of sub-chunks and of a chunk.
LENGTHS = (15, 16, 17, 63, 64, 65)
FORMS = ({"form": "recurrent"}, {"chunk_size": 16}, {"chunk_size": 64}, {})
CASES = [(x, form) for x in ("numpy", "array_api_strict") for form in FORMS]
NAMES = ("query", "key", "value", "log_decay", "beta")


def ours(inputs, state=None, *, of="numpy", **form):
    """Output and memory of `linkern.kda`."""
    lib = library(of)
    first = None if state is None else linkern.State(lib.array(state), None)
    arrays = {name: lib.array(x) for name, x in inputs.items()}
    result = linkern.kda(**arrays, initial_state=first, **form)
    return lib.numpy(result.output), lib.numpy(result.state.memory)


def shipped(inputs, state=None, **options):
    """Output and memory in the order of the published kernel."""
    rows = (np.moveaxis(inputs[name], 1, 2) for name in NAMES)
    scale = inputs["key"].shape[-1] ** -0.5
    with np.errstate(over="ignore", invalid="ignore"):
        output, memory = sub_chunks.delta(*rows, scale, state, False, **options)
    return np.moveaxis(output, 2, 1), memory


def drawn(length, dtype=np.float64, key_dim=4):
    """Inputs with every gate at the bound."""
    rng = np.random.default_rng(length)
    rows = {name: rng.normal(size=(1, 2, length, key_dim)) for name in NAMES[:3]}
    rows["key"] /= np.linalg.norm(rows["key"], axis=-1, keepdims=True)
    rows["log_decay"] = np.full_like(rows["key"], BOUND)
    rows["beta"] = rng.random((1, 2, length))
    return {name: x.astype(dtype) for name, x in rows.items()}


def at_the_bound(length):
    return np.full(length, BOUND)


def mild_after_the_bound(length):
    """Gates that forget little, behind a sum that differences of sums would lose."""
    return np.where(np.arange(length) < length // 2, BOUND, -0.01)


def law_one_write_decays(attend, gates, dtype, near):
    """Head s writes at token s alone; what is read at t has decayed since."""
    length = len(gates)
    key = np.zeros((1, length, length, 2), dtype)
    key[..., 0] = 1
    log_decay = np.zeros_like(key) + gates.astype(dtype)[:, None]
    beta = np.eye(length, dtype=dtype)[None]
    value = np.ones((1, length, length, 1), dtype)
    rows = (key, key, value, log_decay, beta)
    output, memory = attend(dict(zip(NAMES, rows, strict=True)))
    ages = np.arange(length) - np.arange(length)[:, None]
    exact = gates.astype(dtype).astype(np.longdouble)
    sums = np.cumsum(np.where(ages > 0, exact, 0), axis=1)
    with np.errstate(under="ignore"):
        decays = np.where(ages < 0, 0, np.exp(sums))
    # Token by token, each decay is one more rounding; a sum is rounded as it is large.
    error = near * (8 + np.maximum(ages, 0) - sums) * decays
    error += 8 * np.finfo(dtype).smallest_subnormal
    assert (abs(output[0, ..., 0] - 0.5**0.5 * decays) <= error).all()
    assert (abs(memory[0, :, 0, 0] - decays[:, -1]) <= error[:, -1]).all()
    assert not memory[..., 1, :].any()


def law_the_plain_loop(attend, length):
    inputs = drawn(length)
    state = np.random.default_rng(0).normal(size=(1, 2, 4, 4))
    output, memory = attend(inputs, state)
    loop, (last,) = expected("kda", inputs, (state,))
    close(output, loop)
    close(memory, last)


def law_long_chunks(attend, dtype, near):
    """A chunk of 256: sums of its gates are -1280, whose opposites overflow."""
    inputs = drawn(300, dtype)
    inputs["log_decay"][:, 1, ::3] = 0  # of another head, tokens that forget nothing
    output, memory = attend(inputs)
    loop, (last,) = expected("kda", inputs)
    np.testing.assert_allclose(output, loop, rtol=0, atol=near)
    np.testing.assert_allclose(memory, last, rtol=0, atol=near)


@pytest.mark.parametrize(("of", "form"), every(3, CASES))
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("gates", [at_the_bound, mild_after_the_bound])
def test_one_write_decays_by_each_later_token(of, form, length, gates):
    attend = partial(ours, of=of, **form)
    for dtype in (np.float32, np.float64):
        near = np.finfo(dtype).eps
        law_one_write_decays(attend, gates(length), dtype, near)


@pytest.mark.parametrize(("of", "form"), every(3, CASES))
@pytest.mark.parametrize("length", LENGTHS)
def test_every_form_is_the_plain_loop_at_the_bound(of, form, length):
    law_the_plain_loop(partial(ours, of=of, **form), length)


@pytest.mark.parametrize("form", [{"chunk_size": 256}, {"form": "parallel"}])
@pytest.mark.parametrize("of", ["numpy", "array_api_strict"])
def test_long_chunks_do_not_overflow(of, form):
    for dtype, near in ((np.float32, 2e-6), (np.float64, 1e-14)):
        law_long_chunks(partial(ours, of=of, **form), dtype, near)


def test_gradients_of_long_chunks_are_those_of_the_recurrence():
    inputs = drawn(300)
    results = []
    for form in ({"form": "recurrent"}, {"chunk_size": 256}):
        result, pullback = linkern.vjp(linkern.kda, **inputs, **form)
        ones = linkern.State(np.ones_like(result.state.memory), None)
        results.append(pullback(np.ones_like(result.output), ones))
    by_tokens, by_chunks = results
    assert {*by_chunks} == {*NAMES}
    for name in NAMES:
        assert np.isfinite(by_tokens[name]).all()
        np.testing.assert_allclose(by_chunks[name], by_tokens[name], rtol=0, atol=1e-13)


@pytest.mark.parametrize("length", LENGTHS)
def test_sub_chunks_of_16_keep_the_laws(length):
    for gates in (at_the_bound(length), mild_after_the_bound(length)):
        law_one_write_decays(shipped, gates, np.float32, 2e-5)
        law_one_write_decays(shipped, gates, np.float64, 1e-13)
    law_the_plain_loop(shipped, length)
    law_long_chunks(partial(shipped, chunk=256), np.float64, 1e-14)


@pytest.mark.parametrize("fault", sub_chunks.FAULTS)
def test_faults_of_sub_chunks_break_the_laws(fault):
    with pytest.raises(AssertionError):
        law_one_write_decays(
            partial(shipped, fault=fault), at_the_bound(65), np.float32, 2e-5
        )
    with pytest.raises(AssertionError):
        law_long_chunks(partial(shipped, fault=fault, chunk=256), np.float64, 1e-14)


def test_differences_of_sums_lose_mild_gates_after_the_bound():
    gates = mild_after_the_bound(65)
    with pytest.raises(AssertionError):
        law_one_write_decays(shipped, gates, np.float32, np.finfo(np.float32).eps)
