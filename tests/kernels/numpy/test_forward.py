"""Additive attention on NumPy: results, memory layouts, threads, memory use."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.core.recurrence import Terms, token
from linkern.kernels import numpy as numpy_backend
from linkern.kernels.numpy import chunk_linear, forward, workspace
from linkern.kernels.numpy.features import in_place
from linkern.kernels.numpy.schedule import Layout
from linkern.kernels.numpy.threads import thread_count
from linkern.operators.forms import Form

pytestmark = pytest.mark.usefixtures("no_kept_buffers")


MAPS = (linkern.identity, linkern.elu_plus_one, linkern.relu, linkern.feature_maps.exp)


@st.composite
def problems(draw, dtype="float64", decays=None):
    """Draw positive features, values, decays and a state, of various shapes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    lead = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    length = draw(st.integers(0, 40) | st.sampled_from([64, 65, 130]))
    features, values = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rows = (*lead, length)
    query, key = rng.uniform(0.1, 2, (2, *rows, features)).astype(dtype)
    value = rng.normal(size=(*rows, values)).astype(dtype)
    log_decay = None
    if draw(st.booleans()) if decays is None else decays:
        log_decay = -rng.exponential(0.3, (*rows, 1)).astype(dtype)
        if draw(st.booleans()) and length:
            log_decay[..., rng.integers(length), :] = -np.inf
    memory = rng.normal(size=(*lead, features, values)).astype(dtype)
    normalizer = None
    if draw(st.booleans()):
        normalizer = rng.uniform(0, 2, (*lead, features)).astype(dtype)
    return query, key, value, log_decay, memory, normalizer


def one_by_one(query, key, value, log_decay, memory, normalizer):
    """Return the result of the equation, token by token."""
    terms = Terms(query, key, value, log_decay)
    output, after = Form(token, 1)(memory, terms)
    if normalizer is None:
        return output, after, None
    ones = terms._replace(value=np.ones((*value.shape[:-1], 1), value.dtype))
    weights, sums = Form(token, 1)(normalizer[..., None], ones)
    return output / weights, after, sums[..., 0]


def same(result, expected, tolerance=1e-12):
    """Compare up to the rounding of a few hundred terms, relative to the largest."""
    for actual, wanted in zip(result, expected, strict=True):
        assert (actual is None) == (wanted is None)
        if actual is not None:
            assert actual.shape == wanted.shape
            scale = abs(wanted).max(initial=1)
            assert abs(actual - wanted).max(initial=0) <= tolerance * scale


def identical(result, expected):
    for actual, wanted in zip(result, expected, strict=True):
        assert (actual is None) == (wanted is None)
        assert actual is None or np.array_equal(actual, wanted)


def law_it_is_the_recurrence(attend):
    @settings(max_examples=150)
    @given(problems(), st.sampled_from([1, 3, 16, 64]))
    def law(arrays, size):
        same(attend(*arrays, size=size), one_by_one(*arrays))

    law()


def test_it_is_the_recurrence():
    law_it_is_the_recurrence(numpy_backend.attend)


def test_features_made_on_the_way_are_those_of_the_map():
    rng = np.random.default_rng(0)
    rows = rng.normal(scale=3, size=(2, 3, 70, 4))
    value, memory = rng.normal(size=(3, 70, 2)), np.zeros((3, 4, 2))
    for feature_map in MAPS:
        made = [feature_map(x) for x in rows]
        for causal in (True, False):
            expected = numpy_backend.attend(
                *made, value, None, memory, None, causal=causal
            )
            result = numpy_backend.attend(
                *rows,
                value,
                None,
                memory,
                None,
                causal=causal,
                feature_map=feature_map,
            )
            same(result, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elu_plus_one_in_place_keeps_relative_accuracy(dtype):
    x = np.concatenate([np.linspace(-80, 5, 999), [-np.inf, np.inf, np.nan, 0, -0.0]])
    x = x.astype(dtype)
    out, spare, zeros = np.empty_like(x), np.empty_like(x), np.zeros_like(x)
    in_place(linkern.elu_plus_one).write(x, out, spare, zeros)
    expected = linkern.elu_plus_one(x.astype("float64"))
    np.testing.assert_allclose(out, expected, rtol=4 * np.finfo(dtype).eps, atol=0)


def law_every_query_sees_every_key(attend):
    @settings(max_examples=50)
    @given(problems(decays=False), st.integers(0, 3))
    def law(arrays, more):
        query, key, value, _, memory, normalizer = arrays
        query = np.concatenate([query] + [query[..., :1, :]] * more, axis=-2)
        after = memory + key.swapaxes(-1, -2) @ value
        output, sums = query @ after, None
        if normalizer is not None:
            sums = normalizer + key.sum(-2)
            output = output / (query @ sums[..., None])
        result = attend(query, key, value, None, memory, normalizer, causal=False)
        same(result, (output, after, sums))

    law()


@pytest.mark.parametrize("size", [0, forward._NON_CAUSAL_BYTES])
def test_every_query_sees_every_key(monkeypatch, size):
    monkeypatch.setattr(forward, "_NON_CAUSAL_BYTES", size)
    law_every_query_sees_every_key(numpy_backend.attend)


def in_blocks_of(monkeypatch, *, together, chunks, threads):
    """Set heads per group, chunks per block and threads of the next calls."""
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)
    monkeypatch.setattr(forward, "_MAX_CHUNKS", chunks)
    monkeypatch.setattr(
        forward, "head_groups", lambda named, batch, _: heads_of(named, batch, together)
    )
    monkeypatch.setenv("LINKERN_NUM_THREADS", str(threads))


heads_of = forward.head_groups


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_results_do_not_depend_on_threads_or_blocks(monkeypatch, dtype, heads, causal):
    law_results_do_not_depend_on_threads_or_blocks(monkeypatch, dtype, heads, causal)


def test_blocks_that_depend_on_threads_are_caught(monkeypatch):
    def by_threads(*_):
        return Layout(1, 16 * thread_count())

    monkeypatch.setattr(forward, "non_causal_layout", by_threads)
    with pytest.raises(AssertionError):
        law_results_do_not_depend_on_threads_or_blocks(monkeypatch, "float32", 3, False)


def law_results_do_not_depend_on_threads_or_blocks(monkeypatch, dtype, heads, causal):
    monkeypatch.setattr(
        forward, "_NON_CAUSAL_BYTES", 0
    )  # many blocks, where there would be one
    rng = np.random.default_rng(heads)
    query, key, value = rng.normal(size=(3, heads, 1100, 8)).astype(dtype)
    log_decay = -rng.exponential(0.1, (heads, 1100, 1)).astype(dtype)
    wide = np.result_type(dtype, "float32")
    state = np.zeros((heads, 8, 8), wide), np.zeros((heads, 8), wide)
    gates = log_decay if causal else None
    run = partial(
        numpy_backend.attend, query, key, value, gates, *state, causal=causal, size=32
    )
    run = partial(run, feature_map=linkern.elu_plus_one)
    expected = run()
    for threads in (1, 2, 4, 100):
        for together, chunks in ((1, 1), (2, 3), (8, 16)):
            in_blocks_of(monkeypatch, together=together, chunks=chunks, threads=threads)
            identical(run(), expected)


LAYOUTS = {
    "tokens first": lambda x: np.moveaxis(np.moveaxis(x, -2, 0).copy(), 0, -2),
    "every other token": lambda x: np.repeat(x, 2, axis=-2)[..., ::2, :],
    "every other number": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "backwards": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "transposed": lambda x: x.swapaxes(-1, -2).copy().swapaxes(-1, -2),
    "batch last": lambda x: np.moveaxis(np.moveaxis(x, 0, -1).copy(), -1, 0),
    "read only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "big endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


def law_layout_does_not_matter(attend, name):
    rng = np.random.default_rng(1)
    query, key, value = rng.uniform(0.1, 1, (3, 2, 3, 150, 4))
    rest = -rng.exponential(0.1, (2, 3, 150, 1)), np.zeros((2, 3, 4, 4)), None
    expected = attend(query, key, value, *rest)
    other = [LAYOUTS[name](x) for x in (query, key, value)]
    assert all(map(np.array_equal, other, (query, key, value)))
    same(attend(*other, *rest), expected)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout_does_not_matter(name):
    law_layout_does_not_matter(numpy_backend.attend, name)


def test_broadcast_inputs_are_not_copied_and_not_written():
    row = np.random.default_rng(0).uniform(0.1, 1, (1, 1, 4))
    wide = np.broadcast_to(row, (2, 300, 4))
    decay = np.broadcast_to(np.full((2, 1, 1), -0.1), (2, 300, 1))
    kept = row.copy()
    arrays = wide, wide, wide, decay, np.zeros((2, 4, 4)), None
    same(
        numpy_backend.attend(*arrays),
        numpy_backend.attend(*(x if x is None else x.copy() for x in arrays)),
    )
    assert np.array_equal(row, kept)


def law_the_future_is_not_seen(attend):
    """A masked score changes nothing even if it is infinite: bits are masked."""
    rng = np.random.default_rng(0)
    query, key, value = rng.uniform(0.5, 1, (3, 1, 150, 4)).astype("float32")
    decay = np.full((1, 150, 1), -0.1, "float32")
    later = key.copy()
    later[:, 100:] = 3e38
    for gates in (None, decay):
        rest = gates, np.zeros((1, 4, 4), "float32"), np.zeros((1, 4), "float32")
        expected, *_ = attend(2 * query, key, value, *rest)
        with np.errstate(all="ignore"):
            result, *_ = attend(2 * query, later, value, *rest)
        assert np.array_equal(result[:, :100], expected[:, :100])


def test_the_future_is_not_seen():
    law_the_future_is_not_seen(numpy_backend.attend)


def law_memory_does_not_grow(attend):
    """Beside the output, workspaces take at most 12 MiB at any length."""
    extra = []
    for length in (4095, 16384 - 65):  # blocks of three sizes
        query, key, value = np.ones((3, 8, length, 64), "float32")
        state = np.zeros((8, 64, 64), "float32"), np.zeros((8, 64), "float32")
        workspace.clear()
        tracemalloc.start()
        output, *_ = attend(query, key, value, None, *state)
        extra.append(tracemalloc.get_traced_memory()[1] - output.nbytes)
        tracemalloc.stop()
    assert max(extra) < 12 * 2**20
    assert extra[1] < extra[0] + 2**20


def test_memory_does_not_grow(monkeypatch):
    for threads in ("1", "4"):
        monkeypatch.setenv("LINKERN_NUM_THREADS", threads)
        law_memory_does_not_grow(numpy_backend.attend)


def test_memory_exhausted_half_way_leaves_everything_as_it_was(monkeypatch):
    monkeypatch.setattr("linkern.kernels.numpy.threads.WORTH_THREADS", 0)
    inputs = np.random.default_rng(0).uniform(0.1, 1, (3, 4, 200, 4))
    kept = inputs.copy()
    rest = None, np.zeros((4, 4, 4)), None
    expected = numpy_backend.attend(*inputs, *rest)

    def failing(*_args, **_options):
        msg = "Unable to allocate 1. TiB"
        raise MemoryError(msg)

    for step in ("LinearWorkspace", "chunk_state", "chunk_output"):
        workspace.clear()
        with monkeypatch.context() as patch:
            owner = forward if step == "LinearWorkspace" else chunk_linear
            patch.setattr(owner, step, failing)
            with pytest.raises(MemoryError, match="Unable to allocate"):
                numpy_backend.attend(*inputs, *rest)
        assert np.array_equal(inputs, kept)
        identical(numpy_backend.attend(*inputs, *rest), expected)


# Mistakes that each law catches.


class MasksByProducts:
    """NumPy with masks applied by multiplication, where 0 * inf is NaN."""

    def __getattr__(self, name):
        return getattr(np, name)

    def bitwise_and(self, _bits, mask, out):
        pairs = out.view(f"f{out.itemsize}")
        np.multiply(pairs, mask != 0, out=pairs)


STATE_PASSING = chunk_linear.state_passing


def passing_without_decay(workspace):
    workspace.decay, decay = None, workspace.decay
    STATE_PASSING(workspace)
    workspace.decay = decay


def passing_drops_the_last(workspace):
    STATE_PASSING(workspace)
    workspace.final_state[...] = workspace.initial_state


@pytest.mark.parametrize(
    ("owner", "name", "value", "law"),
    [
        (
            chunk_linear,
            "state_passing",
            passing_without_decay,
            law_it_is_the_recurrence,
        ),
        (
            chunk_linear,
            "state_passing",
            passing_drops_the_last,
            law_it_is_the_recurrence,
        ),
        (
            chunk_linear,
            "state_passing",
            passing_drops_the_last,
            law_every_query_sees_every_key,
        ),
        (chunk_linear, "np", MasksByProducts(), law_the_future_is_not_seen),
    ],
)
def test_a_mistake_is_caught(monkeypatch, owner, name, value, law):
    monkeypatch.setattr(owner, name, value)
    with pytest.raises(AssertionError):
        law(numpy_backend.attend)


@pytest.mark.parametrize("name", ["tokens first", "transposed"])
def test_taking_numbers_in_the_order_of_memory_is_caught(name):
    def careless(*arrays, **options):
        taken = (
            x if x is None else x.ravel(order="K").reshape(x.shape) for x in arrays
        )
        return numpy_backend.attend(*taken, **options)

    with pytest.raises(AssertionError):
        law_layout_does_not_matter(careless, name)


def test_memory_that_grows_is_caught():
    def copying(query, key, value, *rest):
        return numpy_backend.attend(query.copy(), key.copy(), value.copy(), *rest)

    with pytest.raises(AssertionError):
        law_memory_does_not_grow(copying)
