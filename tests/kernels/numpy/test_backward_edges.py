"""Gradients on NumPy: layouts, dtypes, threads, edge cases, costs in counts."""

import tracemalloc

import numpy as np
import pytest

from linkern import feature_maps
from linkern.kernels.numpy import backward, bwd_workspace, causal, chunk_bwd, workspace
from linkern.kernels.numpy.backward import Gradients, pullback
from linkern.kernels.numpy.features import in_place
from linkern.kernels.numpy.schedule import Layout
from linkern.kernels.numpy.threads import thread_count
from tests.kernels.numpy.backward_problems import (
    KINDS,
    Problem,
    from_tape,
    near,
    problem,
)

pytestmark = pytest.mark.usefixtures("no_kept_buffers")


# Layouts, dtypes, threads.


def laid_out(x, rng):
    """Return a read-only copy in another memory layout."""
    if x is None:
        return None
    x = np.concatenate([x, x], axis=-1)[..., : x.shape[-1]][..., ::-1].copy()
    x = [x[..., ::-1], np.asfortranarray(x)[..., ::-1]][rng.integers(2)]
    x.flags.writeable = False
    return x


def law_layouts(back, case):
    rng = np.random.default_rng(7)
    kept = [None if x is None else x.copy() for x in case.arrays()]
    laid = [laid_out(x, rng) for x in case.arrays()]
    near(back(*laid, **case.options()), back(*case.arrays(), **case.options()))
    for x, y in zip(case.arrays(), kept, strict=True):
        assert x is None or (x == y).all()


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_change_nothing_and_inputs_stay(kind):
    for batch in ((), (2,), (2, 3)):
        case = problem(np.random.default_rng(8), batch=batch, **KINDS[kind])
        law_layouts(pullback, case)


def by_memory(*arrays, **options):
    """A wrong pullback: takes numbers in the order of memory."""
    arrays = [None if x is None else x.ravel("K").reshape(x.shape) for x in arrays]
    return pullback(*arrays, **options)


def over_the_query(query, *rest, **options):
    """A wrong pullback: overwrites the query with its gradient."""
    gradients = pullback(query, *rest, **options)
    if query.flags.writeable:
        query[...] = gradients.query
    return gradients


@pytest.mark.parametrize("mutant", [by_memory, over_the_query])
def test_laws_of_layouts_catch(mutant):
    with pytest.raises(AssertionError):
        law_layouts(mutant, problem(np.random.default_rng(8)))


def test_cotangents_may_be_broadcast():
    case = problem(np.random.default_rng(9), length=20)
    row = case.cotangents[0][:1, :1]
    repeated = np.broadcast_to(row, case.cotangents[0].shape)
    cotangents = (repeated, None, None)
    gradients = pullback(*case.inputs, *cotangents, **case.options())
    expected = pullback(*case.inputs, repeated.copy(), None, None, **case.options())
    near(gradients, expected, 0)


def law_dtypes(back, case, dtype):
    narrow = [None if x is None else x.astype(dtype) for x in case.arrays()]
    states = [None if x is None else x.astype("float32") for x in narrow]
    arrays = [*narrow[:4], *states[4:6], narrow[6], *states[7:]]
    gradients = back(*arrays, **case.options())
    wide = [None if x is None else x.astype("float64") for x in arrays]
    expected = pullback(*wide, **case.options())
    assert {x.dtype for x in gradients[:4] if x is not None} == {np.dtype(dtype)}
    assert {x.dtype for x in gradients[4:] if x is not None} == {np.dtype("float32")}
    for x, y in zip(gradients, expected, strict=True):
        if x is None:
            continue
        # One rounding to the dtype; sums of 200 terms, four deep, in float32: their
        # roundings together are far below 2^-24 times 2^8.
        own = np.finfo(x.dtype).eps
        assert abs(x - y).max() <= (own + 2.0**-16) * (1 + abs(y).max())


def in_half(*arrays, **options):
    """A wrong pullback: rounds sums to float16."""
    gradients = pullback(*arrays, **options)
    return Gradients(
        *(None if x is None else x.astype("float16").astype(x.dtype) for x in gradients)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_dtypes_are_kept_and_sums_are_wide(kind, dtype):
    case = problem(np.random.default_rng(10), length=200, size=64, **KINDS[kind])
    law_dtypes(pullback, case, dtype)
    with pytest.raises(AssertionError):
        law_dtypes(in_half, case, dtype)


def law_threads(monkeypatch, case):
    narrow = [None if x is None else x.astype("float32") for x in case.arrays()]
    gradients = []
    for threads in ("1", "2", "4", "9"):
        monkeypatch.setenv("LINKERN_NUM_THREADS", threads)
        gradients.append(pullback(*narrow, **case.options()))
    for other in gradients[1:]:
        for x, y in zip(gradients[0], other, strict=True):
            assert x is None or (x == y).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(1,), (5,)], ids=["one head", "heads"])
def test_threads_change_no_bit(monkeypatch, kind, batch):
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)
    monkeypatch.setattr(backward, "_NON_CAUSAL_BYTES", 0)
    case = problem(np.random.default_rng(11), length=333, batch=batch, **KINDS[kind])
    law_threads(monkeypatch, case)


def test_chunks_that_depend_on_threads_are_caught(monkeypatch):
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)
    wrong = lambda *_: Layout(1, 8 * thread_count())  # noqa: E731
    monkeypatch.setattr(backward, "_causal_layout", wrong)
    case = problem(np.random.default_rng(11), length=333, batch=(5,))
    with pytest.raises(AssertionError):
        law_threads(monkeypatch, case)


# Edge cases.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("length", "batch", "dims"),
    [(0, (2,), (3, 4)), (9, (0,), (3, 4)), (9, (2,), (3, 0)), (9, (2,), (0, 4))],
    ids=["no tokens", "no heads", "no values", "no keys"],
)
def test_nothing_has_gradients_of_its_shape(kind, length, batch, dims):
    choices = {**KINDS[kind], "keys": length}
    case = problem(
        np.random.default_rng(12), length=length, batch=batch, dims=dims, **choices
    )
    with np.errstate(divide="ignore", invalid="ignore"):  # no weights to divide by
        gradients = pullback(*case.arrays(), **case.options())
    for x, y in zip(gradients, case.inputs, strict=True):
        assert (x is None) == (y is None)
        assert x is None or x.shape == y.shape
    if length == 0:
        assert (gradients.memory == case.cotangents[1]).all()
        if gradients.normalizer is not None:
            assert (gradients.normalizer == case.cotangents[2]).all()


def law_no_slope_at_zero(back):
    case = problem(np.random.default_rng(13), normalize=False, map="relu")
    for x in case.inputs[:2]:
        x[..., ::3, :] = 0
    gradients = back(*case.arrays(), **case.options())
    for x, gradient in zip(case.inputs[:2], gradients[:2], strict=True):
        assert (gradient[x <= 0] == 0).all()
        assert (gradient[x > 0] != 0).all()


def test_features_that_are_zero_have_no_slope():
    law_no_slope_at_zero(pullback)
    always = in_place(feature_maps.relu)._replace(derivative=lambda _, out: out.fill(1))
    with pytest.raises(AssertionError):
        law_no_slope_at_zero(
            lambda *x, feature_map, **options: pullback(
                *x, feature_map=always, **options
            )
        )


def test_elu_has_slope_one_where_it_is_linear():
    case = problem(np.random.default_rng(14))
    for x in case.inputs[:2]:
        np.abs(x, out=x)
        x[..., 0] = 0
    linear = Problem(**{**vars(case), "map": "identity"})
    linear.inputs = (case.inputs[0] + 1, case.inputs[1] + 1, *case.inputs[2:])
    expected = pullback(*linear.arrays(), **linear.options())
    near(pullback(*case.arrays(), **case.options()), expected)


HUGE = 1e200
# Inputs of which product is a pair of query 2 with key 5, or its cotangent.
OVERFLOWS = {
    "pairs": (0, 1, "decays"),
    "weights": (0, 1, "causal"),
    "cotangents": (6, 2, "decays"),
    "their shares": (6, 2, "decays and weights"),
}


def law_unseen_pairs_leave_no_trace(back, overflow):
    """A masked score that overflows changes nothing."""
    reading, written, kind = OVERFLOWS[overflow]
    case = problem(np.random.default_rng(15), length=8, **KINDS[kind])
    case.arrays()[reading][:, 2] = case.arrays()[written][:, 5] = HUGE
    with np.errstate(over="ignore", invalid="ignore"):
        gradients = back(*case.arrays(), **case.options())
        expected = from_tape(case)
    for x, y in zip(gradients, expected, strict=True):
        if x is not None:
            assert np.isfinite(x).all()
            # Of very different size: each sum has one number that is largest.
            assert np.allclose(x, y, rtol=2.0**-30, atol=2.0**-30)


@pytest.mark.parametrize("overflow", OVERFLOWS)
def test_unseen_pairs_leave_no_trace(monkeypatch, overflow):
    law_unseen_pairs_leave_no_trace(pullback, overflow)

    def multiplied(self, scores):
        np.multiply(scores, -self.causal_mask, out=scores)

    monkeypatch.setattr(bwd_workspace.BackwardWorkspace, "mask", multiplied)
    with pytest.raises(AssertionError):
        law_unseen_pairs_leave_no_trace(pullback, overflow)


def test_a_decay_that_forgets_everything_has_no_gradient():
    case = problem(np.random.default_rng(16), **KINDS["decays"])
    case.inputs[3][:, 3::5] = -np.inf
    gradients = pullback(*case.arrays(), **case.options())
    assert (gradients.log_decay[:, 3::5] == 0).all()
    assert (gradients.log_decay[case.inputs[3] > -1] != 0).all()


# Costs, in counts.

BLOCK = backward._MAX_CHUNKS


def products(case):
    """Multiply-adds of all products whose three sizes are those of a chunk."""
    count = 0

    def matmul(x, y, out):
        nonlocal count
        if min(*x.shape[-2:], *y.shape[-2:]) == case.size:
            count += out.size * x.shape[-1]
        return np.matmul(x, y, out=out)

    class Counting:
        def __getattr__(self, name):
            return matmul if name == "matmul" else getattr(np, name)

    with pytest.MonkeyPatch.context() as patch:
        for module in (chunk_bwd, causal):
            patch.setattr(module, "np", Counting())
        pullback(*case.arrays(), **case.options())
    return count


def law_eleven_products(kind):
    case = problem(
        np.random.default_rng(17),
        length=1024,
        batch=(1,),
        dims=(16, 16),
        size=16,
        **KINDS[kind],
    )
    # Ten in the backward pass and one in the first, for the state; but the state after
    # the last block is not needed.
    chunks = 1024 // 16
    last = chunks % BLOCK or BLOCK
    assert products(case) == 16**3 * (11 * chunks - last)


def law_little_is_kept():
    def beside(length):
        case = problem(
            np.random.default_rng(18), length=length, batch=(1,), dims=(16, 16), size=64
        )
        workspace.clear()
        tracemalloc.start()
        gradients = pullback(*case.arrays(), **case.options())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak - sum(x.nbytes for x in gradients if x is not None)

    # A checkpoint of 16 x 17 numbers of 8 bytes per block of 20 chunks of 64 tokens,
    # with lists and views: at most 9 bytes a token, an eighth of one key.
    assert beside(3 * 4096) - beside(4096) <= 2 * 4096 * 9


@pytest.mark.parametrize("kind", ["causal", "scaled", "decays", "decays and weights"])
def test_a_chunk_takes_eleven_products(kind):
    law_eleven_products(kind)


def test_memory_beside_the_gradients_hardly_grows():
    law_little_is_kept()


def test_counts_catch_blocks_of_one_chunk(monkeypatch):
    monkeypatch.setattr(backward, "_MAX_CHUNKS", 1)
    with pytest.raises(AssertionError):
        law_eleven_products("causal")
    with pytest.raises(AssertionError):
        law_little_is_kept()
