"""A span of tokens is an affine map of the memory, and spans compose."""

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


@pytest.mark.parametrize("name", sorted({*DEFINITIONS} & {*RECORDS}))
def test_the_referee_calls_the_same_spans_affine(name):
    assert RECORDS[name].affine == DEFINITIONS[name].affine
