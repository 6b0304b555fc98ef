"""A span of tokens is an affine map of the memory, and spans compose."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
import linkern.operators
from linkern import State
from linkern.operators.register import DEFINITIONS
from linkern.oracle import OPERATORS as RECORDS
from tests.operators.problems import NAMES, close, operator, parts, problem
from tests.operators.test_recurrences import tokens

AFFINE = [name for name in NAMES if DEFINITIONS[name].affine]
LENGTH = 9


def drawn_state(name, rng, inputs):
    like = operator(name)(**inputs).state
    return State(*(None if x is None else rng.normal(size=x.shape) for x in like))


@pytest.mark.parametrize("name", AFFINE)
def test_spans_compose_to_what_the_whole_sequence_does(name):
    """Cut anywhere, empty spans and single tokens among them, in any order of maps."""

    @settings(max_examples=12)
    @given(
        st.integers(0, 2**16).map(np.random.default_rng),
        st.lists(st.integers(0, LENGTH), min_size=2, max_size=4).map(sorted),
    )
    def law(rng, cuts):
        inputs = problem(name, rng, LENGTH)
        state = drawn_state(name, rng, inputs)
        edges = [0, *cuts, LENGTH]
        maps = [
            linkern.span_map(operator(name), **tokens(name, inputs, slice(a, b)))
            for a, b in pairwise(edges)
        ]
        due = operator(name)(**inputs, initial_state=state).state

        one_by_one = state
        for span in maps:
            one_by_one = span.apply(one_by_one)
        left, right = maps[0], maps[-1]
        for span in maps[1:]:
            left = left.combine(span)
        for span in reversed(maps[:-1]):
            right = span.combine(right)
        for found in (one_by_one, left.apply(state), right.apply(state)):
            for got, x in zip(parts(found), parts(due), strict=True):
                close(got, x)

    law()


@pytest.mark.parametrize("name", ["kda", "gla", "oja", "rwkv7", "gsa"])
def test_the_gradient_of_the_state_is_the_transposed_map(name):
    rng = np.random.default_rng(1)
    inputs = problem(name, rng, LENGTH)
    state = drawn_state(name, rng, inputs)
    span = linkern.span_map(operator(name), **inputs)
    result, pullback = linkern.vjp(operator(name), **inputs, initial_state=state)
    of_state = State(rng.normal(size=result.state.memory.shape), None)
    got = pullback(None, of_state)["initial_state"].memory
    back = np.swapaxes(span.transition, -1, -2)
    due = (
        of_state.memory @ span.transition
        if span.transpose_state
        else back @ of_state.memory
    )
    close(got, due)


@pytest.mark.parametrize("name", sorted(set(NAMES) - set(AFFINE)))
def test_what_is_no_affine_map_is_refused(name):
    inputs = problem(name, np.random.default_rng(2), 3)
    with pytest.raises(ValueError, match=r"is not `M S \+ E` of the state"):
        linkern.span_map(operator(name), **inputs)


def test_maps_of_different_things_are_refused():
    ones = np.ones((2, 1))
    span = linkern.span_map(linkern.delta_rule, ones, ones, ones)
    crossed = linkern.span_map(linkern.oja, ones, ones, ones)
    with pytest.raises(ValueError, match="same side of the memory"):
        span.combine(crossed)
    with pytest.raises(ValueError, match="carry a normalizer exactly when"):
        span.apply(State(np.ones((1, 1)), np.ones(1)))
    with pytest.raises(ValueError, match="`initial_state` must be left out"):
        linkern.span_map(
            linkern.delta_rule, ones, ones, ones, initial_state=span.increment
        )
    with pytest.raises(TypeError, match="`op` must be an operator"):
        linkern.span_map(np.exp, ones)


MEMORY = np.ones((2, 3))


@pytest.mark.parametrize(
    ("state", "error", "sentence"),
    [
        (None, TypeError, "`state` must be a `State`, got NoneType"),
        ([[1.0]], TypeError, "`state` must be a `State`, got list"),
        (
            MEMORY[:1],
            ValueError,
            r"`state.memory` must have shape \(2, 3\), that of `incr.*got \(1, 3\)",
        ),
        (MEMORY.T, ValueError, r"got \(3, 2\)"),
        (MEMORY[0], ValueError, r"got \(3,\)"),
        (MEMORY[None], ValueError, r"got \(1, 2, 3\)"),
        (State([[1.0]], None), TypeError, r"`state.memory` must be an array"),
        (
            MEMORY.astype(np.float32),
            TypeError,
            "`increment.memory` and `state.memory` must have the same dtype",
        ),
        (
            State(MEMORY, MEMORY[:, 0]),
            ValueError,
            "`state` must carry a normalizer exactly when `increment` does",
        ),
    ],
)
@pytest.mark.parametrize("op", [linkern.delta_rule, linkern.simple_gla, linkern.oja])
def test_a_state_that_does_not_fit_a_span_is_named(op, state, error, sentence):
    span = linkern.span_map(op, np.ones((4, 2)), np.ones((4, 2)), np.ones((4, 3)))
    with pytest.raises(error, match=sentence):
        span.apply(state)


@pytest.mark.parametrize("op", [linkern.delta_rule, linkern.simple_gla, linkern.oja])
def test_a_state_is_broadcast_to_the_leading_axes_of_a_span(op):
    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=(5, 4, dim)) for dim in (2, 2, 3)]
    memory = rng.normal(size=(2, 3))
    span = linkern.span_map(op, *inputs)
    whole = span.apply(np.broadcast_to(memory, (5, 2, 3)))
    assert np.array_equal(span.apply(memory).memory, whole.memory)


def test_a_later_span_that_does_not_fit_is_named():
    ones = np.ones((4, 2))
    span = linkern.span_map(linkern.delta_rule, ones, ones, ones)
    for later in (None, span.increment):
        with pytest.raises(TypeError, match="`later` must be a `SpanMap`, got"):
            span.combine(later)
    wider = linkern.span_map(linkern.delta_rule, np.ones((4, 3)), np.ones((4, 3)), ones)
    sentence = r"`self.increment.memory` must have shape \(3, 2\), that of `later.incre"
    with pytest.raises(ValueError, match=sentence):
        span.combine(wider)


def test_a_function_with_the_name_of_an_operator_is_none():
    def gla(query, key, value):
        return linkern.gla(query, key, value)

    with pytest.raises(TypeError, match=r"`op` must be an operator, .*got <function"):
        linkern.span_map(gla, *[np.ones((2, 1))] * 3)


def test_an_operator_that_was_pickled_is_one():
    inputs = [np.ones((2, 1))] * 3
    expected = linkern.span_map(linkern.gla, *inputs).transition
    for op in (pickle.loads(pickle.dumps(linkern.gla)), copy.deepcopy(linkern.gla)):
        assert np.array_equal(linkern.span_map(op, *inputs).transition, expected)


@pytest.mark.parametrize("name", sorted({*DEFINITIONS} & {*RECORDS}))
def test_the_referee_calls_the_same_spans_affine(name):
    assert RECORDS[name].affine == DEFINITIONS[name].affine
