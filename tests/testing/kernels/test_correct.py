"""Correct kernels agree with the oracle to the last digits, whole and in two parts."""

import inspect

import numpy as np
import pytest

from linkern.testing.kernels.correct import CORRECT
from linkern.testing.spec.operators import OPERATORS

RECURRENT = [
    name
    for name, kernel in CORRECT.items()
    if not OPERATORS[kernel.op].feature_map and "l2norm" not in kernel.contract
]
BETWEEN_ZERO_AND_ONE = (
    *("beta", "ridge", "erase_gate", "write_gate", "removal_rate", "dt"),
    "trapezoid",
    *("preconditioner_beta", "log_range", "momentum_beta"),
)


def inputs_of(operator, length):
    """Return well conditioned inputs of a call."""
    rng = np.random.default_rng(length)
    keys = length * (2 if operator.micro_steps else 1)
    sizes = {"b": 2, "h": 3, "g": 3, "t": length, "s": keys, "k": 4, "v": 5}
    sizes |= {"m": 3, "l": 6, "p": 2, "r": 1}
    inputs = {}
    for one in operator.inputs:
        x = rng.standard_normal([sizes[axis] for axis in one.axes])
        if "log_decay" in one.name:
            x = -abs(x)
        elif "key" in one.name or one.name in ("a", "b", operator.erase_along):
            x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        elif one.name in BETWEEN_ZERO_AND_ONE:
            x = abs(x) / (1 + abs(x))
        inputs[one.name] = abs(x) if one.draw == "positive" else x
    return inputs


def differences(got, expected):
    """Yield the largest difference of outputs, and of each part of the state."""
    output, state = got
    parts = state if isinstance(state, tuple) else (state,)
    for x, y in zip((output, *parts), (expected.output, *expected.state), strict=True):
        assert x.shape == y.shape
        equal = x == y  # as infinities are
        yield np.max(abs(np.where(equal, 0, x) - np.where(equal, 0, y)), initial=0)


@pytest.mark.parametrize("length", [0, 1, 37])
@pytest.mark.parametrize("name", RECURRENT)
def test_a_kernel_computes_its_operator(name, length):
    kernel = CORRECT[name]
    operator = OPERATORS[kernel.op]
    inputs = inputs_of(operator, length)
    expected = operator.evaluate(inputs, scale=kernel.contract.get("scale"))
    assert max(differences(kernel.kernel(**inputs), expected)) < 1e-12
    required = {
        one.name: inputs[one.name] for one in operator.inputs if not one.optional
    }
    expected = operator.evaluate(required, scale=kernel.contract.get("scale"))
    assert max(differences(kernel.kernel(**required), expected)) < 1e-12


@pytest.mark.parametrize("name", RECURRENT)
def test_a_kernel_goes_on_from_its_state(name):
    kernel = CORRECT[name]
    operator = OPERATORS[kernel.op]
    inputs = inputs_of(operator, 37)
    expected = operator.evaluate(inputs, scale=kernel.contract.get("scale"))

    def part(first, last):
        each = {"s": 2 if operator.micro_steps else 1}
        return {
            one.name: inputs[one.name][
                :, :, first * each.get(one.axes[2], 1) : last * each.get(one.axes[2], 1)
            ]
            if one.per_token
            else inputs[one.name]
            for one in operator.inputs
        }

    names = inspect.signature(kernel.kernel).parameters
    position = {"position": 13} if "position" in names else {}
    first, state = kernel.kernel(**part(0, 13))
    second, state = kernel.kernel(**part(13, 37), initial_state=state, **position)
    output = np.concatenate([first, second], axis=-2)
    assert max(differences((output, state), expected)) < 1e-12


@pytest.mark.parametrize(
    "name", [n for n, k in CORRECT.items() if OPERATORS[k.op].feature_map]
)
def test_a_kernel_of_linear_attention_computes_it(name):
    kernel = CORRECT[name]
    inputs = inputs_of(OPERATORS[kernel.op], 37)
    expected = OPERATORS[kernel.op].evaluate(inputs).output
    output = kernel.kernel(**inputs)
    output = output[0] if isinstance(output, tuple) else output
    assert np.max(abs(output - expected)) < 1e-12


def test_every_operator_has_a_correct_kernel():
    assert {*OPERATORS} == {kernel.op for kernel in CORRECT.values()}
