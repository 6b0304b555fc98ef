"""Calls cut into shards, and replies joined again, without any process."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.target.protocol import Call, Reply, TargetConfig
from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.ranks.shards import joined, shards

CONFIG = TargetConfig("kernel", "torch", op="gla", ranks=(3,))
LENGTH = 7
UNEVEN = Sharding(3, (0.0, 0.3))


def a_call(**options):
    rng = np.random.default_rng(1)
    inputs = {
        name: rng.normal(size=(2, 3, LENGTH, dim))
        for name, dim in {"query": 4, "key": 4, "value": 5, "log_decay": 4}.items()
    }
    return Call(inputs, **options)


def reply_of(part, **options):
    """The reply of a target that returns its values, on one rank."""
    value = part.inputs["value"]
    shape = value.shape
    return Reply(value, "float64", "torch.Tensor", shape, shape, **options)


@pytest.mark.parametrize("order", ["contiguous", "zigzag"])
@pytest.mark.parametrize("cuts", [(), (2,), (1, 4)])
def test_a_reply_is_that_of_the_whole(order, cuts):
    sharding, call = Sharding(3, order=order), a_call(cuts=cuts)
    parts = shards(call, sharding, CONFIG)
    reply = joined([reply_of(x) for x in parts], call, sharding, CONFIG)
    np.testing.assert_array_equal(reply.output, call.inputs["value"])
    assert reply.shape == reply.expected_shape == call.inputs["value"].shape


def test_a_rank_has_its_part_of_every_span():
    parts = shards(a_call(cuts=(2, 5)), Sharding(3), CONFIG)
    assert [part.cuts for part in parts] == [(1, 2), (1, 2), (0, 1)]
    assert [part.inputs["key"].shape[2] for part in parts] == [3, 3, 1]


def test_offsets_are_those_of_the_whole_or_of_the_shard():
    call = a_call(segments=((0, 3, 3, 6),))
    assert shards(call, UNEVEN, CONFIG)[2].segments == ((0, 3, 3, 6),)
    of_shard = shards(call, UNEVEN, replace(CONFIG, ranks_cu_seqlens="shard"))
    assert [x.segments[0] for x in of_shard] == [
        (0, 0, 0, 0),
        (0, 2, 2, 2),
        (0, 1, 1, 4),
    ]


def test_keys_follow_the_tokens_that_they_belong_to():
    rng = np.random.default_rng(1)
    shapes = {"query": (1, 1, 5, 2), "key": (1, 1, 10, 2), "log_decay": (1, 1, 5)}
    shapes |= {"value": (1, 1, 10, 2), "beta": (1, 1, 10)}
    call = Call({name: rng.normal(size=shape) for name, shape in shapes.items()})
    config = TargetConfig("kernel", "torch", op="gated_delta_product")
    first, second = shards(call, Sharding(2), config)
    assert first.inputs["key"].shape[2] == 6
    np.testing.assert_array_equal(second.inputs["beta"], call.inputs["beta"][..., 6:])


def with_gradients(call, dtypes):
    """The replies of ranks to which the given inputs of each have gradients."""
    parts = shards(call, UNEVEN, CONFIG)
    return [
        reply_of(
            part,
            gradients=tuple(part.inputs.values()),
            gradient_dtypes=tuple(dtypes(rank) for _ in part.inputs),
        )
        for rank, part in enumerate(parts)
    ]


def test_gradients_of_tokens_are_joined():
    call = a_call(cotangent=np.ones((2, 3, LENGTH, 5)))
    replies = with_gradients(call, lambda rank: "float64" if rank else "")
    reply = joined(replies, call, UNEVEN, CONFIG)
    for gradient, x in zip(reply.gradients, call.inputs.values(), strict=True):
        np.testing.assert_array_equal(gradient, x)
    assert set(reply.gradient_dtypes) == {"float64"}


def test_no_gradient_on_any_rank_is_none():
    call = a_call(cotangent=np.ones((2, 3, LENGTH, 5)))
    reply = joined(with_gradients(call, lambda _: ""), call, UNEVEN, CONFIG)
    assert reply.gradients is None
    assert reply.not_differentiable == "its output carries no gradient"


@pytest.mark.parametrize("whole", [False, True])
def test_a_gradient_of_another_shape_has_another_shape(whole):
    call = a_call(cotangent=np.ones((2, 3, LENGTH, 5)))
    replies = with_gradients(call, lambda _: "float64")
    key = call.inputs["key"] if whole else call.inputs["key"][..., :1]
    query, _, *others = replies[1].gradients
    replies[1] = replace(replies[1], gradients=(query, key, *others))
    reply = joined(replies, call, UNEVEN, CONFIG)
    assert reply.gradients[1].shape != call.inputs["key"].shape
    assert reply.gradients[0].shape == call.inputs["query"].shape


def test_gradients_of_whole_inputs_are_added_up():
    inputs = {
        "query": (1, 1, 4, 2),
        "key": (1, 1, 4, 2),
        "value": (1, 1, 4, 3),
        "log_decay": (1, 1, 4, 2),
        "bonus": (1, 2),
    }
    call = Call(
        {name: np.ones(shape) for name, shape in inputs.items()},
        cotangent=np.ones((1, 1, 4, 3)),
    )
    config = TargetConfig("kernel", "torch", op="rwkv6")
    replies = [
        reply_of(
            part,
            gradients=tuple(part.inputs.values()),
            gradient_dtypes=("float64",) * len(inputs),
        )
        for part in shards(call, Sharding(2), config)
    ]
    reply = joined(replies, call, Sharding(2), config)
    np.testing.assert_array_equal(reply.gradients[-1], [[2.0, 2.0]])


def test_an_output_of_another_form_names_its_rank():
    call = a_call()
    replies = [reply_of(x) for x in shards(call, UNEVEN, CONFIG)]
    replies[1] = replace(replies[1], shape=(2, 3, 9, 5))
    assert joined(replies, call, UNEVEN, CONFIG).place == " on rank 1 of 3"


def test_a_reply_has_the_dtypes_of_all_ranks():
    call = a_call()
    replies = [reply_of(x) for x in shards(call, UNEVEN, CONFIG)]
    replies[1] = replace(replies[1], dtype="float32")
    reply = joined(replies, call, UNEVEN, CONFIG)
    assert reply.dtypes == ("float64", "float32", "float64")


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_without_a_state_is_named_where_every_rank_has_one(rank, asked):
    call = a_call(wants_state=asked)
    state = {"states": (np.ones((2, 3, 4, 5)),), "state_kind": "torch.Tensor"}
    replies = [reply_of(part, **state) for part in shards(call, UNEVEN, CONFIG)]
    replies[rank] = replace(replies[rank], states=None, state_kind="")
    config = replace(CONFIG, ranks_final="every")
    reply = joined(replies, call, UNEVEN, config)
    expected = f"rank {rank} of 3 returned no final state" if asked else ""
    assert reply.state_fault.startswith(expected)
    assert bool(reply.state_fault) is asked
    assert not joined(replies, call, UNEVEN, CONFIG).state_fault


@pytest.mark.parametrize(("final", "expected"), [("last", 1.0), ("every", 4.0)])
def test_a_state_of_every_rank_is_the_worst_of_all(final, expected):
    call, states = a_call(), [1.5, 4.0, 1.0]
    parts = shards(call, UNEVEN, CONFIG)
    replies = [
        reply_of(part, states=(np.full((2, 3, 4, 5), state),))
        for part, state in zip(parts, states, strict=True)
    ]
    reply = joined(replies, call, UNEVEN, replace(CONFIG, ranks_final=final))
    np.testing.assert_array_equal(reply.states[0], expected)
