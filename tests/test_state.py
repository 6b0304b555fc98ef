"""The state: zeros, and the monoid."""

import re
import tracemalloc
from math import prod

import numpy as np
import pytest

import linkern
import linkern.array as ground
from linkern import State
from linkern.operators.definition import prepare
from linkern.operators.gated import RETENTION, SIMPLE_GLA
from tests.conftest import library


def random_state(seed, normalize=True):
    rng = np.random.default_rng(seed)
    memory = rng.integers(-5, 5, (2, 3, 4)).astype(np.float64)
    return State(memory, memory[..., 0] if normalize else None)


@pytest.mark.parametrize("normalize", [True, False])
def test_combine_is_a_monoid(normalize):
    a, b, c = (random_state(seed, normalize) for seed in range(3))
    zero = State.zeros(3, 4, like=a.memory, batch_shape=(2,), normalize=normalize)
    for left, right in (
        (a.combine(b).combine(c), a.combine(b.combine(c))),
        (zero.combine(a), a),
        (a.combine(zero), a),
    ):
        assert np.array_equal(left.memory, right.memory)
        assert (left.normalizer is None) == (right.normalizer is None)
        if normalize:
            assert np.array_equal(left.normalizer, right.normalizer)


def test_zeros_follow_the_array_they_are_like(lib):
    like = lib.array(np.zeros(1, np.float32))
    state = State.zeros(2, 3, like=like, batch_shape=(4,))
    assert type(state.memory) is type(like)
    assert state.memory.dtype == like.dtype
    assert tuple(state.normalizer.shape) == (4, 2)


def test_zeros_like_half_precision_are_float32():
    assert State.zeros(2, 3, like=np.zeros(1, np.float16)).memory.dtype == np.float32


@pytest.fixture
def widened_sizes(monkeypatch):
    """The size of every array that a check, or what prepares a call, converts."""
    sizes = []

    def astype(x, dtype):
        sizes.append(prod(x.shape) if x.dtype != dtype else 0)
        return ground.astype(x, dtype)

    monkeypatch.setattr("linkern.validate.arrays.astype", astype)
    monkeypatch.setattr("linkern.operators.definition.astype", astype)
    return sizes


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_zeros_read_no_entry_of_the_array_they_are_like(name, widened_sizes):
    like = library(name).array(np.ones((8, 1024), np.float16))
    state = State.zeros(2, 3, like=like)
    assert ground.dtype_name(state.memory.dtype) == "float32"
    assert sum(widened_sizes) == 0


def test_zeros_like_a_large_array_take_no_memory_of_its_size():
    like = np.zeros((1 << 20,), np.float16)
    State.zeros(2, 3, like=like)
    tracemalloc.start()
    try:
        State.zeros(2, 3, like=like)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16


def test_what_a_back_end_reads_narrow_is_not_widened(monkeypatch, widened_sizes):
    monkeypatch.setattr("linkern.operators.layout._kernels_read", lambda *_: True)
    monkeypatch.setattr("linkern.operators.layout._LAYOUTS", {})
    x = np.ones((5, 2), np.float16)
    ready = prepare(SIMPLE_GLA, dict.fromkeys(("query", "key", "value"), x))
    assert sum(widened_sizes) == 0
    assert ready.inputs["query"].dtype == np.float16
    assert ready.like.dtype == np.float32
    assert ready.form.scale == 2**-0.5


def test_the_decays_of_retention_widen_no_query(widened_sizes):
    x = np.ones((3, 5, 2), np.float16)
    inputs = {**dict.fromkeys(("query", "key", "value"), x), "log_decay": None}
    ready = prepare(RETENTION, inputs)
    assert ready.inputs["log_decay"].dtype == np.float32
    # Queries, keys and values are widened once, for the computation.
    assert sum(widened_sizes) == 3 * x.size


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (
            lambda s: State.zeros(-1, 2, like=s.memory),
            ValueError,
            "`key_dim` must not be negative, got -1.",
        ),
        (
            lambda s: State.zeros(1.5, 2, like=s.memory),
            TypeError,
            "`key_dim` must be an integer, got 1.5.",
        ),
        (lambda s: State.zeros(1, 2, like=[1.0]), TypeError, "`like` must be an array"),
        (
            lambda s: State.zeros(1, 2, like=s.memory, batch_shape=4),
            TypeError,
            "`batch_shape` must be a tuple of integers, got 4.",
        ),
        (
            lambda s: State.zeros(1, 2, like=s.memory, batch_shape="4"),
            TypeError,
            "`batch_shape` must be a tuple of integers, got '4'.",
        ),
        (
            lambda s: State.zeros(1, 2, like=s.memory, batch_shape=(4.0,)),
            TypeError,
            "`batch_shape` must be an integer, got 4.0.",
        ),
        (
            lambda s: State.zeros(1, 2, like=s.memory, normalize="no"),
            TypeError,
            "`normalize` must be True or False, got 'no'.",
        ),
        (
            lambda s: State.zeros(1, 2, like=s.memory, normalize=None),
            TypeError,
            "`normalize` must be True or False, got None.",
        ),
        (
            lambda s: s.combine(None),
            TypeError,
            "`later` must be a `State`, got NoneType.",
        ),
        (
            lambda s: s.combine(State(s.memory, None)),
            ValueError,
            "`later` must carry a normalizer exactly when",
        ),
        (
            lambda s: s.combine(s.memory),
            TypeError,
            "`later` must be a `State`, got ndarray.",
        ),
        (
            lambda s: s.combine(State(s.memory[:1], s.normalizer[:1])),
            ValueError,
            "`later.memory` must have the shape of this state's memory, (2, 3, 4), got (1, 3, 4).",
        ),
        (
            lambda s: s.combine(State(s.memory, s.normalizer[:1])),
            ValueError,
            "`later.normalizer` must have the shape",
        ),
    ],
)
def test_bad_states_are_refused(call, error, sentence):
    with pytest.raises(error, match=re.escape(sentence)):
        call(random_state(0))


def test_results_are_named_tuples():
    x = np.ones((2, 1))
    output, state = linkern.linear_attention(x, x, x)
    assert output.shape == (2, 1)
    assert state._fields == ("memory", "normalizer")


def test_types_take_a_parameter_and_values_do_not_know_it():
    assert State.__bases__ == linkern.AttentionResult.__bases__ == (tuple,)
    assert linkern.SpanMap.__bases__ == (tuple,)
    memory = np.zeros((3, 4))
    assert State[np.ndarray](memory, None) == State(memory, None)
    assert isinstance(State[np.ndarray](memory, None), State)


def test_states_are_trees_of_torch_and_jax(torch, jax):
    state = random_state(0)
    doubled = State(2 * state.memory, 2 * state.normalizer)
    for tree_map in (torch.utils._pytree.tree_map, jax.tree_util.tree_map):
        for got, expected in zip(
            tree_map(lambda x: 2 * x, state), doubled, strict=True
        ):
            np.testing.assert_array_equal(got, expected)
