"""Calls on CPU tensors: bit by bit those on NumPy arrays, forward and backward."""

from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from tests.kernels.torch.calls import (
    Call,
    calls,
    drawn_like,
    flat,
    results,
    same_bits,
    tensor_of,
)
from tests.operators.problems import NAMES, operator, problem


def law_bits(torch, call):
    """Results and gradients are those on NumPy arrays, by autograd and by `vjp`."""
    expected, pullback = call.vjp()
    of_output, of_state = drawn_like(expected)
    gradients = flat(pullback(of_output, of_state))
    tensor = tensor_of(torch)
    for ours, theirs in zip(
        results(call.run(tensor)), results(call.run()), strict=True
    ):
        assert same_bits(ours, theirs)
    by_autograd(torch, call, expected, gradients, (of_output, of_state))
    made, back = call.vjp(tensor)
    cotangents = [None if x is None else tensor(x) for x in of_state]
    ours = flat(back(tensor(of_output), linkern.State(*cotangents)))
    for x, y in zip(results(made), results(expected), strict=True):
        assert same_bits(x, y)
    assert ours.keys() == gradients.keys()
    assert all(same_bits(ours[name], gradients[name]) for name in gradients)


def by_autograd(torch, call, expected, gradients, cotangents):
    leaves = {}

    def leaf(x):
        if not isinstance(x, np.ndarray) or x.dtype.kind != "f":
            return tensor_of(torch)(x)
        return torch.from_numpy(x).requires_grad_()

    arguments = call.arguments(leaf)
    leaves = flat(
        {k: x for k, x in arguments.items() if k in call.inputs or k == "initial_state"}
    )
    made = results(operator(call.name)(**arguments))
    for x, y in zip(made, results(expected), strict=True):
        assert same_bits(x, y)
    of_results = [cotangents[0], *(x for x in cotangents[1] if x is not None)]
    ours = torch.autograd.grad(
        made, list(leaves.values()), [torch.from_numpy(x) for x in of_results]
    )
    assert all(same_bits(x, gradients[k]) for k, x in zip(leaves, ours, strict=True))


def test_every_operator_gives_the_bits_of_numpy(torch):
    @settings(max_examples=60)
    @given(calls())
    def law(call):
        law_bits(torch, call)

    law()


@pytest.mark.parametrize("name", NAMES)
def test_each_operator_once(torch, name):
    rng = np.random.default_rng(0)
    inputs = {k: x.astype("f4") for k, x in problem(name, rng, 70).items()}
    law_bits(torch, Call(name, inputs))


def test_heads_that_share_queries_and_keys(torch):
    rng = np.random.default_rng(0)
    for name in ("linear_attention", "gla", "gated_delta_rule", "delta_rule"):
        inputs = problem(name, rng, 9, heads=4)
        if name != "linear_attention":
            inputs |= {k: inputs[k][:, ::2] for k in ("query", "key")}
        else:
            inputs["key"] = inputs["key"][:, :1]
        law_bits(torch, Call(name, inputs))


@pytest.mark.parametrize("feature_map", ["exp", "hedgehog"])
@pytest.mark.parametrize("normalize", [True, False])
def test_feature_maps_by_name(torch, feature_map, normalize):
    inputs = problem("linear_attention", np.random.default_rng(0), 40)
    feature_map = getattr(linkern.feature_maps, feature_map)
    options = {"feature_map": feature_map, "normalize": normalize, "causal": False}
    law_bits(torch, Call("linear_attention", inputs, options))


@settings(max_examples=30)
@given(data=st.data())
def test_bfloat16_is_the_call_in_float32_rounded_once(torch, data):
    call = data.draw(calls(dtypes=("float32",)))

    def narrow(x):
        if not any(x is y for y in call.inputs.values()):
            return tensor_of(torch)(x)
        return torch.from_numpy(x).bfloat16().requires_grad_()

    def rounded(x):
        if not any(x is y for y in call.inputs.values()):
            return x
        return rounded_to_bfloat16(torch, x)

    expected, pullback = call.vjp(rounded)
    of_output, of_state = drawn_like(expected)
    of_output = rounded_to_bfloat16(torch, of_output)
    gradients = pullback(of_output, of_state)
    arguments = call.arguments(narrow)
    made = operator(call.name)(**arguments)
    assert made.output.dtype == torch.bfloat16
    assert equal(torch, made.output, torch.from_numpy(expected.output).bfloat16())
    assert same_bits(made.state.memory, expected.state.memory)
    of_results = [torch.from_numpy(of_output).bfloat16()]
    of_results += [torch.from_numpy(x) for x in of_state if x is not None]
    leaves = {k: arguments[k] for k in call.inputs}
    ours = torch.autograd.grad(results(made), list(leaves.values()), of_results)
    for name, x in zip(leaves, ours, strict=True):
        due = torch.tensor(gradients[name]).bfloat16()
        assert x.dtype == torch.bfloat16
        assert equal(torch, x, due), name


def equal(torch, x, y):
    return torch.equal(x.nan_to_num(), y.nan_to_num())


def rounded_to_bfloat16(torch, x):
    return torch.from_numpy(x).bfloat16().float().numpy()


def test_a_single_token_and_the_recurrent_form_are_one_computation(torch):
    rng = np.random.default_rng(0)
    inputs = {k: torch.from_numpy(x) for k, x in problem("kda", rng, 5).items()}
    whole = linkern.kda(**inputs, form="recurrent")
    state = None
    for t in range(5):
        token = {k: x[:, :, t] for k, x in inputs.items()}
        output, state = linkern.step(linkern.kda, state, **token)
        assert torch.equal(output, whole.output[:, :, t])
    assert torch.equal(state.memory, whole.state.memory)


def law_uses_numpy(torch, monkeypatch, **options):
    """The call is evaluated on NumPy arrays."""
    seen = []
    kind = import_module("linkern.kernels.torch.call").Call
    original = kind.evaluated

    def evaluated(self, *tensors):
        seen.append(self.operator)
        return original(self, *tensors)

    monkeypatch.setattr(kind, "evaluated", evaluated)
    x = torch.ones(3, 2)
    linkern.linear_attention(x, x, x, **options)
    assert seen == ["linear_attention"]


@pytest.mark.parametrize("form", ["auto", "recurrent"])
def test_these_forms_run_on_numpy(torch, monkeypatch, form):
    law_uses_numpy(torch, monkeypatch, form=form)


@pytest.mark.parametrize("form", ["chunkwise", "parallel"])
def test_the_other_forms_stay_array_code(torch, monkeypatch, form):
    with pytest.raises(AssertionError):
        law_uses_numpy(torch, monkeypatch, form=form)


def test_the_law_of_bits_can_fail(torch, monkeypatch):
    call = Call("gla", problem("gla", np.random.default_rng(0), 9))
    law_bits(torch, call)
    kind = import_module("linkern.kernels.torch.call").Call
    original = kind.gradients

    def off_by_one_bit(self, *arguments):
        first, *others = original(self, *arguments)
        first.view(torch.int64).bitwise_xor_(1)
        return (first, *others)

    monkeypatch.setattr(kind, "gradients", off_by_one_bit)
    with pytest.raises(AssertionError):
        law_bits(torch, call)
