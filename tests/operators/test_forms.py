"""The forms mean one thing, and it is what the oracle says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import linkern
from linkern import State, oracle
from tests.oracle.feature_sums import evaluate_integers

FORMS = ("recurrent", "chunkwise", "parallel")
LENGTHS = st.integers(0, 40) | st.sampled_from([63, 64, 65, 100, 129])
DIMS = st.integers(1, 5)
CHUNK_SIZES = {"jax": (16,)}  # it compiles for each


def sizes(lib, dims=DIMS):
    """Strategies for lengths, and for the dimensions of keys and of values.

    JAX compiles every operation for each shape, so it gets few: none, one, and what
    leaves a tail of one token in chunks of 64 and of 16; dimensions that differ.
    """
    if lib.name == "jax":
        return st.sampled_from([65, 17, 1, 0]), st.just(3), st.just(4)
    return LENGTHS, dims, dims


def spans(lib, length):
    """Lengths of a first part: for JAX an end, the middle of a chunk, or its edge."""
    if lib.name == "jax":
        return st.sampled_from([n for n in (0, 16, length) if n <= length])
    return st.integers(0, length)


@st.composite
def inputs(draw, lib, causal, dtype):
    """Inputs whose leading axes broadcast, of any small shape."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    lengths, key_dims, value_dims = sizes(lib)
    length = draw(lengths)
    keys = length if causal else draw(lengths.filter(bool))
    key_dim, value_dim = draw(key_dims), draw(value_dims)
    lead = draw(st.sampled_from([((), (), ()), ((2,), (2,), (2,)), ((3, 1), (2,), ())]))
    shapes = ((length, key_dim), (keys, key_dim), (keys, value_dim))
    return [
        rng.normal(size=(*a, *b)).astype(dtype)
        for a, b in zip(lead, shapes, strict=True)
    ]


def judged(query, key, value, causal):
    """The oracle's answer and the proved bound of any order of summation."""
    lead = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    q, k, v = (
        np.broadcast_to(x, (*lead, *x.shape[-2:])).astype(np.float64)
        for x in (query, key, value)
    )
    phi = oracle.FEATURE_MAPS["elu_plus_one"]
    u = oracle.unit_roundoff(query.dtype.name)
    exact = oracle.evaluate(
        phi.value(q),
        phi.value(k),
        v,
        causal=causal,
        query_error=phi.error(q, u),
        key_error=phi.error(k, u),
    )
    precisions = oracle.Precisions(query.dtype.name)
    return exact, oracle.bounded_output(exact, oracle.Quotient(), precisions)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_form_is_within_the_proved_bound(lib, form, causal, dtype):
    @lib.examples
    @given(inputs(lib, causal, dtype))
    def law(arrays):
        result = linkern.linear_attention(
            *map(lib.array, arrays), causal=causal, form=form
        )
        exact, expected = judged(*arrays, causal)
        output = lib.numpy(result.output)
        assert output.dtype == dtype
        assert output.shape == expected.output.shape
        assert (abs(output - expected.output) <= expected.bound).all()
        precisions = oracle.Precisions(dtype)
        due = oracle.bounded_state(exact, precisions)
        for got, expected in zip(result.state, due, strict=True):
            stored = np.broadcast_to(lib.numpy(got), expected.output.shape)
            allowed = expected.once_stored(dtype)
            assert (abs(stored - expected.output) <= allowed).all()

    law()


@st.composite
def integers(draw, lib):
    """Inputs whose features, and so whose sums, are small integers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    lengths, *dims = sizes(lib, st.integers(1, 4))
    length, key_dim, value_dim = draw(lengths), *map(draw, dims)
    a, b = (rng.integers(0, 4, (2, length, key_dim)) for _ in range(2))
    a[..., 0] = b[..., 0] = 1
    return a, b, rng.integers(-9, 10, (2, length, value_dim))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("causal", [True, False])
def test_every_form_is_bitwise_exact_on_integers(lib, causal, dtype):
    @lib.examples
    @given(integers(lib), st.sampled_from(CHUNK_SIZES.get(lib.name, (1, 2, 7, 16, 64))))
    def law(features, chunk_size):
        a, b, v = features
        exact = evaluate_integers(a, b, v, causal=causal)
        sums = exact.sums
        with np.errstate(all="ignore"):
            due = sums.numerator.astype(dtype) / sums.denominator.astype(dtype)
        quotient = oracle.exact_output(
            exact, oracle.Quotient(), oracle.Precisions(dtype)
        )
        # elu(n - 1) + 1 is n, and elu(-1000) + 1 is 0, without rounding.
        arrays = [np.where(x > 0, x - 1.0, -1000.0).astype(dtype) for x in (a, b)]
        arrays = [lib.array(x) for x in (*arrays, v.astype(dtype))]
        for form in FORMS:
            size = chunk_size if form == "chunkwise" else None
            result = linkern.linear_attention(
                *arrays, causal=causal, form=form, chunk_size=size
            )
            if lib.name == "jax":
                # XLA divides on the CPU with an error of one unit in the last place.
                error = abs(lib.numpy(result.output) - quotient.output)
                assert (error <= quotient.sharp).all()
            else:
                assert np.array_equal(lib.numpy(result.output), due)
            plain = linkern.linear_attention(
                *arrays, causal=causal, form=form, chunk_size=size, normalize=False
            )
            assert np.array_equal(lib.numpy(plain.output), sums.numerator)

    law()


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_can_be_cut_anywhere(lib, form):
    @lib.examples
    @given(integers(lib), st.data())
    def law(features, data):
        a, b, v = features
        arrays = [lib.array(x.astype("float32")) for x in (a, b, v)]
        cut = data.draw(spans(lib, v.shape[-2]))
        options = {"feature_map": linkern.identity, "form": form}
        whole = linkern.linear_attention(*arrays, **options)
        first = linkern.linear_attention(*(x[:, :cut, :] for x in arrays), **options)
        rest = linkern.linear_attention(
            *(x[:, cut:, :] for x in arrays), **options, initial_state=first.state
        )
        joined = np.concatenate(
            [lib.numpy(first.output), lib.numpy(rest.output)], axis=-2
        )
        assert np.array_equal(joined, lib.numpy(whole.output))
        alone = linkern.linear_attention(*(x[:, cut:, :] for x in arrays), **options)
        for state in (rest.state, first.state.combine(alone.state)):
            for got, due in zip(state, whole.state, strict=True):
                assert np.array_equal(lib.numpy(got), lib.numpy(due))

    law()


def test_the_recurrent_form_is_the_step_bitwise(eager_lib):
    lib = eager_lib  # JAX compiles the loop, and joins products with sums
    rng = np.random.default_rng(0)
    arrays = [
        lib.array(rng.normal(size=(2, 9, d)).astype("float32")) for d in (3, 3, 4)
    ]
    whole = linkern.linear_attention(*arrays, form="recurrent")
    state = None
    for i in range(9):
        output, state = linkern.linear_attention_step(
            state, *(x[:, i, :] for x in arrays)
        )
        assert np.array_equal(lib.numpy(output), lib.numpy(whole.output)[:, i])
    assert np.array_equal(lib.numpy(state.memory), lib.numpy(whole.state.memory))


@pytest.mark.parametrize("causal", [True, False])
def test_a_state_that_heads_share_becomes_one_for_each(causal):
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 2, 5, 3))
    shared = State(np.ones((3, 3)), np.ones(3))
    each = State(np.ones((2, 3, 3)), np.ones((2, 3)))
    results = [
        linkern.linear_attention(*arrays, causal=causal, form=form, initial_state=state)
        for form in FORMS
        for state in (shared, each)
    ]
    for one, other in zip(results[::2], results[1::2], strict=True):
        assert np.array_equal(one.output, other.output)
        for got, expected in zip(one.state, other.state, strict=True):
            assert np.array_equal(got, expected)
