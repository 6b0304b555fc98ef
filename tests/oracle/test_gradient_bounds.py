"""Correct gradients, in many orders of summation, stay within the bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern import oracle
from linkern.testing.kernels.assembly import Backward, Parts, stateful
from tests.oracle.feature_sums import Differentiand, bounded_gradients

CONFIDENCE = 3.0


def total(x, axis, backwards=False):
    """Sum one after the other, in the dtype of `x`, from the first or from the last."""
    ordered = np.flip(x, axis) if backwards else x
    return np.cumsum(ordered, axis, dtype=x.dtype).take(-1, axis)


def by_pairs(query, key, value, cotangent, causal, backwards=False):
    """All pairs at once, and every sum over one axis of them."""
    mask = np.tril if causal else np.asarray

    def add(x, axis):
        return total(x, axis, backwards)

    scores = mask(add(query[:, None] * key, -1))
    divisor = add(scores, -1)[:, None]
    output = add(scores[:, :, None] * value, 1) / divisor
    through = add(cotangent * output, -1)[:, None]
    pairs = add(cotangent[:, None] * value, -1)
    w = mask((pairs - through) / divisor)
    return (
        add(w[:, :, None] * key, 1),
        add(w[:, :, None] * query[:, None], 0),
        add((scores / divisor)[:, :, None] * cotangent[:, None], 0),
    )


def from_last_to_first(*of):
    """The same, with every sum taken in the other direction."""
    return by_pairs(*of, backwards=True)


def by_states(query, key, value, cotangent, causal):
    """Token by token with a state, forwards and back; divides last of all."""
    states = np.cumsum(key[:, :, None] * value[:, None], 0, dtype=key.dtype)
    normalizers = np.cumsum(key, 0, dtype=key.dtype)
    if not causal:
        states, normalizers = states[-1:], normalizers[-1:]
    divisor = total(query * normalizers, -1)[:, None]
    output = total(query[:, :, None] * states, 1) / divisor
    through = total(cotangent * output, -1)[:, None]
    of_query = total(states * cotangent[:, None], -1) - through * normalizers
    g, through = cotangent / divisor, through / divisor
    writes = query[:, :, None] * g[:, None], query * through
    if causal:
        of_state, of_normalizer = (
            np.flip(np.cumsum(np.flip(x, 0), 0, dtype=x.dtype), 0) for x in writes
        )
    else:
        of_state, of_normalizer = (total(x, 0)[None] for x in writes)
    of_key = total(of_state * value[:, None], -1) - of_normalizer
    return of_query / divisor, of_key, total(of_state * key[:, :, None], 1)


def by_chunks(size):
    """The chunkwise kernel that mutants are made of, on features."""

    def kernel(query, key, value, cotangent, causal):
        assert causal
        slope = Backward(slope=np.ones_like)
        parts = Parts(chunk=size, features=np.asarray, backward=slope)
        return stateful(parts).vjp(query, key, value, cotangent)[:3]

    kernel.__name__ = f"by_chunks_of_{size}"
    return kernel


def by_autograd(form):
    """PyTorch's automatic differentiation of one form."""

    def kernel(query, key, value, cotangent, causal):
        torch = pytest.importorskip("torch")
        leaves = [torch.asarray(x).requires_grad_() for x in (query, key, value)]
        a, b, v = leaves
        if form == "scan" and causal:
            states = (b[:, :, None] * v[:, None]).cumsum(0)
            numerator = (a[:, None] @ states)[:, 0]
            divisor = (a * b.cumsum(0)).sum(-1)[:, None]
        else:
            scores = torch.tril(a @ b.T) if causal else a @ b.T
            numerator, divisor = scores @ v, scores.sum(-1)[:, None]
        output = numerator / divisor
        found = torch.autograd.grad(output, leaves, torch.asarray(cotangent))
        return [x.numpy() for x in found]

    kernel.__name__ = f"by_autograd_of_torch_{form}"
    return kernel


ANY = [
    by_pairs,
    from_last_to_first,
    by_states,
    by_autograd("scores"),
    by_autograd("scan"),
]
CAUSAL = [by_chunks(1), by_chunks(16), by_chunks(100)]
KERNELS = [(k, c) for k in ANY for c in (True, False)] + [(k, True) for k in CAUSAL]
IDS = [f"{k.__name__}{'' if c else '_noncausal'}" for k, c in KERNELS]
KINDS = ("uniform", "normal", "constant", "bigfirst", "needle", "tiny", "ties")


def problem(rng, kind, length, keys, dtype=np.float32):
    """Positive features, values and a cotangent that can be hard to sum."""
    key_dim, value_dim = rng.integers(1, 7, 2)
    query, key = (rng.uniform(0.1, 1, (n, key_dim)) for n in (length, keys))
    value, cotangent = (rng.normal(size=(n, value_dim)) for n in (keys, length))
    if kind == "normal":
        query, key = (np.exp(rng.normal(size=x.shape)) for x in (query, key))
    if kind == "tiny":
        query, key = (np.exp2(rng.uniform(-19, -9, x.shape)) for x in (query, key))
    if kind == "constant":
        query[...], key[...] = rng.uniform(0.5, 1.5, 2)
        value = np.broadcast_to(value[:1], value.shape)
    if kind in ("bigfirst", "needle"):
        key[0 if kind == "bigfirst" else keys // 2] *= 2.0**10
    if kind == "ties":
        # Half a unit of the first: rounding to even takes away every one of them.
        half = np.finfo(dtype).eps / 2
        key[...], query[...], cotangent[...], value[...] = half, 1, half, -1
        key[0], cotangent[0], value[0] = 1, 1, 1
    return [x.astype(dtype) for x in (query, key, value, cotangent)]


def judged(arrays, causal, dtype="float32", confidence=None):
    wide = [x.astype(np.float64) for x in arrays]
    zeros = (np.zeros_like(x) for x in wide[:2])
    return bounded_gradients(
        Differentiand(*wide, *zeros, causal),
        oracle.Quotient(),
        oracle.Precisions(dtype),
        output_dtype=dtype,
        confidence=confidence,
    )


def require_within(found, bounds, dtype="float32"):
    for got, bounded in zip(found, bounds, strict=True):
        assert got.dtype == dtype
        allowed = bounded.once_stored(dtype)
        assert np.isfinite(allowed).all()
        assert (abs(got.astype(np.float64) - bounded.output) <= allowed).all()


def sizes(most):
    near = st.sampled_from([n for n in (1, 2, 3, 16, 17, 64, 65, 130) if n <= most])
    return near | st.integers(1, most)


@pytest.mark.parametrize(("kernel", "causal"), KERNELS, ids=IDS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(KINDS),
    length=sizes(150),
    keys=sizes(150),
)
def test_no_order_of_summation_exceeds_the_proved_bound(
    kernel, causal, seed, kind, length, keys
):
    keys = length if causal else keys
    arrays = problem(np.random.default_rng(seed), kind, length, keys)
    require_within(kernel(*arrays, causal), judged(arrays, causal))


@pytest.mark.parametrize(("kernel", "causal"), KERNELS, ids=IDS)
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(("uniform", "normal")),
    length=sizes(150),
    keys=sizes(150),
)
def test_independent_draws_stay_within_the_probabilistic_bound(
    kernel, causal, seed, kind, length, keys
):
    keys = length if causal else keys
    arrays = problem(np.random.default_rng(seed), kind, length, keys)
    bounds = judged(arrays, causal, confidence=CONFIDENCE)
    require_within(kernel(*arrays, causal), bounds)


@pytest.mark.parametrize("kernel", [by_pairs, by_states, by_chunks(16)])
@pytest.mark.parametrize("kind", ["uniform", "ties"])
def test_long_sequences_do_too(kernel, kind):
    arrays = problem(np.random.default_rng(1), kind, 600, 600)
    require_within(kernel(*arrays, True), judged(arrays, True))


@pytest.mark.parametrize("kernel", [by_pairs, from_last_to_first, by_states])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**16),
    kind=st.sampled_from(("uniform", "normal", "constant")),
    length=sizes(60),
)
def test_sums_in_float16_stay_within_theirs(kernel, seed, kind, length):
    rng = np.random.default_rng(seed)
    arrays = problem(rng, kind, length, length, np.float16)
    found = kernel(*arrays, True)
    require_within(found, judged(arrays, True, "float16"), "float16")


def test_ties_attain_a_good_part_of_the_bound():
    # So no constant in it can be much smaller.
    arrays = problem(np.random.default_rng(0), "ties", 600, 600)
    found, bounds = by_pairs(*arrays, True), judged(arrays, True)
    error = abs(found[2] - bounds[2].output)
    assert 0.1 < (error / bounds[2].bound).max() <= 1


def test_the_probabilistic_bound_is_false_where_errors_are_not_independent():
    # Which is why it is for independent draws only.
    arrays = problem(np.random.default_rng(0), "ties", 600, 600)
    bounds = judged(arrays, True, confidence=CONFIDENCE)
    error = abs(by_pairs(*arrays, True)[2] - bounds[2].output)
    assert (error > bounds[2].once_stored("float32")).any()
