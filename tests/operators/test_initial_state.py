"""An initial state that is one memory may be passed as a plain array."""

import re

import numpy as np
import pytest

import linkern
from linkern import State
from tests.operators.problems import NAMES, operator, problem

RNG = np.random.default_rng(0)
QUERY = RNG.normal(size=(2, 5, 3))  # (heads, T, K)
VALUE = RNG.normal(size=(2, 5, 4))
MEMORY = RNG.normal(size=(2, 3, 4))
PASS_BOTH = re.escape("got one array; pass `linkern.State(memory, normalizer)`.")
SWAP = re.escape("arrays of (batch, time, heads, dim) need x.swapaxes(-3, -2)")


def same(got, expected):
    np.testing.assert_array_equal(got.output, expected.output)
    np.testing.assert_array_equal(got.state.memory, expected.state.memory)


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_takes_its_memory_or_asks_for_the_normalizer(name):
    op, inputs = operator(name), problem(name, np.random.default_rng(1), 6)
    state = op(**inputs).state
    if state.normalizer is None:
        same(
            op(**inputs, initial_state=state.memory),
            op(**inputs, initial_state=State(state.memory, None)),
        )
    else:
        with pytest.raises(TypeError, match=PASS_BOTH):
            op(**inputs, initial_state=state.memory)


def test_arrays_of_every_library(lib):
    inputs = [lib.array(x) for x in (QUERY, QUERY, VALUE)]
    memory = lib.array(MEMORY)
    got = linkern.gla(*inputs, initial_state=memory)
    expected = linkern.gla(*inputs, initial_state=State(memory, None))
    np.testing.assert_array_equal(lib.numpy(got.output), lib.numpy(expected.output))


def test_linear_attention_without_a_normalizer_has_one_memory():
    options = {"normalize": False}
    same(
        linkern.linear_attention(QUERY, QUERY, VALUE, initial_state=MEMORY, **options),
        linkern.linear_attention(
            QUERY, QUERY, VALUE, initial_state=State(MEMORY, None), **options
        ),
    )


def test_packed_sequences_take_an_array_with_a_memory_for_each():
    offsets, memories = [0, 2, 5], np.stack([MEMORY, -MEMORY])
    same(
        linkern.gla(QUERY, QUERY, VALUE, cu_seqlens=offsets, initial_state=memories),
        linkern.gla(
            *(QUERY, QUERY, VALUE),
            cu_seqlens=offsets,
            initial_state=State(memories, None),
        ),
    )


def test_a_step_takes_an_array():
    token = QUERY[:, 0], QUERY[:, 0], VALUE[:, 0]
    same(
        linkern.step(linkern.gla, MEMORY, *token),
        linkern.step(linkern.gla, State(MEMORY, None), *token),
    )
    same(
        linkern.linear_attention_step(MEMORY, *token, normalize=False),
        linkern.linear_attention_step(State(MEMORY, None), *token, normalize=False),
    )
    with pytest.raises(TypeError, match=PASS_BOTH):
        linkern.linear_attention_step(MEMORY, *token)


def test_gradients_of_an_array_come_as_a_state():
    def pulled(state, cotangent):
        _, pullback = linkern.vjp(linkern.gla, QUERY, QUERY, VALUE, initial_state=state)
        return pullback(VALUE, cotangent)["initial_state"]

    expected = pulled(State(MEMORY, None), State(MEMORY, None))
    got = pulled(MEMORY, MEMORY)
    assert isinstance(got, State)
    assert got.normalizer is None
    np.testing.assert_array_equal(got.memory, expected.memory)


def test_a_cotangent_of_two_memories_is_no_array():
    result, pullback = linkern.vjp(linkern.linear_attention, QUERY, QUERY, VALUE)
    with pytest.raises(TypeError, match=PASS_BOTH):
        pullback(result.output, MEMORY)


def test_a_decoder_takes_an_array():
    token = QUERY[:, 0], QUERY[:, 0], VALUE[:, 0]
    decoders = [
        linkern.Decoder(state, normalize=False)
        for state in (MEMORY, State(MEMORY, None))
    ]
    outputs = [decoder.step(*token) for decoder in decoders]
    np.testing.assert_array_equal(*outputs)
    with pytest.raises(TypeError, match=PASS_BOTH):
        linkern.Decoder(MEMORY)


def test_a_span_map_takes_an_array():
    span = linkern.span_map(linkern.gla, QUERY, QUERY, VALUE)
    np.testing.assert_array_equal(
        span.apply(MEMORY).memory, span.apply(State(MEMORY, None)).memory
    )
    span = linkern.span_map(linkern.based, QUERY, QUERY, VALUE)
    with pytest.raises(TypeError, match=PASS_BOTH):
        span.apply(MEMORY)


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("gla", "(..., K, V) = (1, 2, 3, 4)"),
        ("mesa", "(..., K, K + V) = (1, 2, 3, 7)"),
        ("hgrn", "(..., 1, V) = (1, 2, 1, 4)"),
        ("based", "(..., 1 + K + K^2, V) = (1, 2, 13, 4)"),
    ],
)
def test_a_wrong_shape_is_told_the_axes(name, axes):
    inputs = problem(name, np.random.default_rng(1), 6, key_dim=3, value_dim=4)
    state = operator(name)(**inputs).state
    wrong = State(state.memory[..., :0], state.normalizer)
    with pytest.raises(ValueError, match=re.escape(axes)):
        operator(name)(**inputs, initial_state=wrong)


def test_a_transposed_memory_is_named():
    with pytest.raises(ValueError, match=r"of a memory \(..., V, K\) pass x.swapaxes"):
        linkern.gla(QUERY, QUERY, VALUE, initial_state=MEMORY.mT)


@pytest.mark.parametrize(
    "call",
    [
        lambda q, g: linkern.gla(q, q, q.swapaxes(1, 2)),
        lambda q, g: linkern.linear_attention(q, q, q.swapaxes(1, 2)),
        lambda q, g: linkern.linear_attention(q, q.swapaxes(1, 2), q.swapaxes(1, 2)),
        lambda q, g: linkern.kda(q, q, q, -q.swapaxes(1, 2)),
        lambda q, g: linkern.simple_gla(q, q, q, g.swapaxes(1, 2)),
        lambda q, g: linkern.retention(q, q, q, log_decay=np.zeros(2)),
        lambda q, g: linkern.rwkv6(q, q, q, bonus=np.zeros((2, 3))),
        lambda q, g: linkern.gla(q, q, q, initial_state=np.zeros((1, 2, 3, 3))),
    ],
)
def test_heads_where_time_should_be_are_named(call):
    """Some arrays are (batch, time, heads, dim), and others tell that they are."""
    query, gate = np.ones((1, 7, 2, 3)), -np.ones((1, 7, 2))
    with pytest.raises(ValueError, match=SWAP):
        call(query, gate)


def test_other_wrong_shapes_say_nothing_of_the_layout():
    with pytest.raises(ValueError, match="must have shape") as caught:
        linkern.simple_gla(QUERY, QUERY, VALUE, np.zeros((2, 4)))
    assert "swapaxes" not in str(caught.value)


@pytest.mark.parametrize("form", ["recurrent", "chunkwise", "parallel"])
@pytest.mark.parametrize("position", [0, 6, 13])
def test_no_form_reads_a_level_without_tokens(lib, form, position):
    """A number in a level that holds no token so far changes nothing, not even NaN."""
    inputs = {x: lib.array(QUERY) for x in ("query", "key", "value")}
    levels = (position + QUERY.shape[-2]).bit_length() + 1
    memory = RNG.normal(size=(len(QUERY), levels, 3, 3))
    empty = [level for level in range(levels) if not position << 1 >> level & 1]
    results = []
    for number in (0.0, 7.0, np.nan):
        memory[:, empty] = number
        results.append(
            linkern.log_linear_attention(
                **inputs, position=position, initial_state=lib.array(memory), form=form
            )
        )
    due, *others = ([lib.numpy(x.output), lib.numpy(x.state.memory)] for x in results)
    assert np.isfinite(due[0]).all()
    for got in others:
        for x, expected in zip(got, due, strict=True):
            np.testing.assert_array_equal(x, expected)
