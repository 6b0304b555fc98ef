"""Tensors of every kind: computed right, or refused, and never written to."""

import warnings
from importlib import import_module

import numpy as np
import pytest

import linkern
from linkern import State
from tests.kernels.torch.calls import WITHOUT_STATE, drawn_state, flat, results
from tests.operators.problems import NAMES, operator, problem


@pytest.fixture
def inputs(torch):
    drawn = problem("gated_delta_rule", np.random.default_rng(0), 9)
    return {name: torch.from_numpy(x) for name, x in drawn.items()}


def run(inputs, **options):
    return linkern.gated_delta_rule(**inputs, **options)


def law_same(torch, inputs, others, **options):
    """Other tensors of the same numbers give the same bits."""
    pairs = zip(results(run(inputs)), results(run(others, **options)), strict=True)
    assert all(torch.equal(x, y) for x, y in pairs)


VIEWS = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    "expanded": lambda x: x.expand(1, *x.shape)[0],
    "negative bit": lambda x: (-x)._neg_view(),
    "parameter": lambda x: import_module("torch").nn.Parameter(x, requires_grad=False),
    "offset": lambda x: x.repeat(2, *[1] * (x.ndim - 1))[len(x) :],
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_layout_of_a_tensor_does_not_matter(torch, inputs, view):
    law_same(torch, inputs, {name: VIEWS[view](x) for name, x in inputs.items()})


def test_tensors_that_numpy_may_not_write_to(torch, inputs):
    arrays = {name: x.numpy().copy() for name, x in inputs.items()}
    for x in arrays.values():
        x.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of what this test is about
        others = {name: torch.from_numpy(x) for name, x in arrays.items()}
    law_same(torch, inputs, others)


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_modes_without_gradients(torch, inputs, mode):
    for x in inputs.values():
        x.requires_grad_()
    with getattr(torch, mode)():
        result = run(inputs)
        law_same(torch, inputs, inputs)
    assert not result.output.requires_grad
    assert result.output.is_inference() == (mode == "inference_mode")


def test_tensors_made_in_inference_mode(torch, inputs):
    with torch.inference_mode():
        others = {name: x.clone() for name, x in inputs.items()}
    law_same(torch, inputs, others)


def test_autocast_changes_nothing(torch, inputs):
    narrow = {name: x.float() for name, x in inputs.items()}
    leaves = {name: x.clone().requires_grad_() for name, x in narrow.items()}
    plain = torch.autograd.grad(run(leaves).output.sum(), list(leaves.values()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        law_same(torch, narrow, narrow)
        result = run(leaves).output
        assert result.dtype == torch.float32
        ours = torch.autograd.grad(result.sum(), list(leaves.values()))
    assert all(torch.equal(x, y) for x, y in zip(plain, ours, strict=True))


def test_gradients_pass_through_tensors_that_are_no_leaves(torch, inputs):
    value = inputs["value"].clone().requires_grad_()
    run({**inputs, "value": value * 2}).output.sum().backward()
    other = (inputs["value"] * 2).requires_grad_()
    run({**inputs, "value": other}).output.sum().backward()
    assert torch.equal(value.grad, other.grad * 2)


def test_a_state_carries_gradients_from_call_to_call(torch, inputs):
    value = inputs["value"].clone().requires_grad_()
    first = run({**inputs, "value": value})
    run(inputs, initial_state=first.state).output.sum().backward()
    assert value.grad.abs().sum() > 0


def test_a_graph_that_is_kept_gives_its_gradients_again(torch, inputs):
    value = inputs["value"].clone().requires_grad_()
    total = run({**inputs, "value": value}).output.square().sum()
    once = torch.autograd.grad(total, value, retain_graph=True)[0]
    assert torch.equal(once, torch.autograd.grad(total, value, retain_graph=True)[0])
    total.backward()
    with pytest.raises(RuntimeError, match="second time"):
        total.backward()


def test_tensors_that_were_changed_in_between_are_refused(torch, inputs):
    value = inputs["value"].clone().requires_grad_()
    total = run({**inputs, "value": value}).output.sum()
    inputs["key"].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("length", [0, 3])
def test_results_share_no_memory_with_anything(torch, name, length):
    rng = np.random.default_rng(0)
    leaves = {}
    if name not in WITHOUT_STATE:
        state = drawn_state(name, rng, {}, np.float64)
        parts = [None if x is None else torch.from_numpy(x) for x in state]
        leaves["initial_state"] = State(*parts)
    leaves |= {k: torch.from_numpy(x) for k, x in problem(name, rng, length).items()}
    flat_leaves = [x.requires_grad_() for x in flat(leaves).values()]
    made = results(operator(name)(**leaves))
    cotangents = [torch.ones_like(x) for x in made]
    gradients = torch.autograd.grad(made, flat_leaves, cotangents)
    mine = [x.detach().numpy() for x in (*made, *gradients)]
    others = [x.detach().numpy() for x in (*flat_leaves, *cotangents)]
    for i, x in enumerate(mine):
        assert x.flags.writeable
        assert not any(np.shares_memory(x, y) for y in (*others, *mine[:i]))


def test_feature_maps_of_users_are_applied_by_torch(torch):
    rng = np.random.default_rng(0)
    drawn = problem("linear_attention", rng, 9)
    query, key, value = (torch.from_numpy(x) for x in drawn.values())
    layer = torch.nn.Linear(4, 5, dtype=torch.float64)

    def feature_map(x):
        return torch.nn.functional.softplus(layer(x))

    calls = (
        linkern.linear_attention(query, key, value, feature_map=feature_map, form=form)
        for form in ("auto", "chunkwise")
    )
    fast, slow = (
        torch.autograd.grad(made.output.square().sum(), list(layer.parameters()))
        for made in calls
    )
    assert fast[0].abs().max() > 0
    for x, y in zip(fast, slow, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-11)
    narrow = [x.bfloat16() for x in (query, key, value)]
    made = linkern.linear_attention(
        *narrow, feature_map=lambda x: torch.relu(x) + x.new_ones(())
    )
    assert made.output.dtype == torch.bfloat16
    assert made.state.memory.dtype == torch.float32
    with pytest.raises(TypeError, match="`feature_map` must return an array"):
        linkern.linear_attention(*narrow, feature_map=lambda x: x.numpy())


def test_a_subclass_of_tensors_means_what_it_says(torch, inputs):
    class Counted(torch.Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), options=None):
            Counted.calls += 1
            return super().__torch_function__(function, types, arguments, options or {})

    run({**inputs, "value": inputs["value"].as_subclass(Counted)})
    assert Counted.calls > 20


def test_bad_calls_are_refused_as_on_numpy(torch, inputs):
    half, value = inputs["key"].half(), inputs["value"]
    with pytest.raises(TypeError, match="must have the same dtype, got float64, float"):
        run({**inputs, "key": half})
    narrow = {name: x.float() for name, x in inputs.items()}
    with pytest.raises(TypeError, match="same dtype, got float32, bfloat16, float32"):
        run({**narrow, "key": narrow["key"].bfloat16()})
    with pytest.raises(ValueError, match="must have the same device, got cpu, meta"):
        run({**inputs, "key": inputs["key"].to("meta")})
    with pytest.raises(TypeError, match="must come from one array library"):
        run({**inputs, "key": inputs["key"].numpy()})
    with pytest.raises(TypeError, match="`value` must have a real floating dtype"):
        run({**inputs, "value": value.long()})
    with pytest.raises(ValueError, match="`log_decay` must be a natural logarithm"):
        run({**inputs, "log_decay": -inputs["log_decay"]})
    memory = torch.zeros(4, 3, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="got float64, bfloat16"):
        run(inputs, initial_state=State(memory, None))
    with pytest.raises(TypeError, match="initial_state"):
        run(inputs, initial_state=State(None, None))
    with pytest.raises(ValueError, match="`form` must be one of"):
        run(inputs, form="step")
    with pytest.raises(ValueError, match="`form` must be one of"):
        run(inputs, form="fastest")
    with pytest.raises(TypeError, match="`cu_seqlens` must have an integer dtype"):
        run(inputs, cu_seqlens=torch.tensor([0.0, 9.0]))


def test_what_offsets_may_be(torch, inputs):
    expected = run(inputs, cu_seqlens=[0, 4, 9])
    for offsets in (torch.tensor([0, 4, 9]), np.asarray([0, 4, 9]), (0, 4, 9)):
        made = run(inputs, cu_seqlens=offsets)
        assert torch.equal(made.output, expected.output)
        assert torch.equal(made.state.memory, expected.state.memory)
