"""The cost of gradients against what counting arrays see of `linkern.vjp`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern.cost import Gradient, gradient_cost
from tests.cost.calls import ALL, FEW, call, calls
from tests.counting import counted, tally


def there_and_back(of):
    """The result, and the gradients of all inputs, from the cotangent of the output."""

    def run(**inputs):
        result, pullback = linkern.vjp(getattr(linkern, of.name), **inputs)
        pullback(counted(np.ones(result.output.shape, result.output.dtype)))

    return run


def cost(of, cost_of):
    asked = {x: y for x, y in of.asked.items() if x != "dtype"}
    return cost_of(of.name, of.length, **asked)


def law_products(cost_of, of):
    seen, _ = tally(there_and_back(of), **of.inputs, **of.options)
    assert sum(cost(of, cost_of)) == seen.multiply_adds


def law_result(cost_of, of):
    seen, _ = tally(of, **of.inputs, **of.options)
    assert cost(of, cost_of).forward == seen.multiply_adds


def law_recomputed(cost_of, of):
    """What is counted before the way back is the result, and no more."""
    found = cost(of, cost_of)
    assert found.recomputed in (0, found.forward) or of.name == "mesa"
    # Two products for each one, but where an operand depends on no input; those of an
    # inverse of two rows are eight times as large as what it is made of.
    factor = 8 if of.name in ERASING else 2
    assert found.pulled <= factor * found.forward + of_solving(of)


def of_solving(of):
    """A solution has a product more going back than the two of the same size."""
    if of.name != "mesa":
        return 0
    inputs = of.inputs["key"]
    return inputs.size * inputs.shape[-1]


ERASING = (
    *("delta_rule", "gated_delta_rule", "gated_delta_product", "kda", "gdn2"),
    *("preconditioned_gated_delta_rule", "preconditioned_kda"),
    "momentum_delta_rule",
    *("comba", "oja", "rwkv7", "dplr", "iplr"),
)
LAWS = (law_products, law_result, law_recomputed)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=4)
@given(data=st.data())
def test_laws_hold(name, data):
    of = data.draw(calls(name, FEW, dtype="float64"))
    for law in LAWS:
        law(gradient_cost, of)


def test_solutions_in_several_spans():
    law_products(gradient_cost, call("mesa", 130, 2, 2, form="chunkwise", size=4))


# What gradients are often said to cost.


def not_recomputed(*sizes, **asked):
    return gradient_cost(*sizes, **asked)._replace(recomputed=0)


def three_times(*sizes, **asked):
    found = gradient_cost(*sizes, **asked).forward
    return Gradient(found, found, 2 * found)


def of_another_form(*sizes, **asked):
    other = {"form": "parallel", "chunk_size": None}
    return gradient_cost(*sizes, **{**asked, **other})


def one_more(*sizes, **asked):
    found = gradient_cost(*sizes, **asked)
    return found._replace(pulled=found.pulled + 1)


CASES = [
    call(name, 9, form="chunkwise", size=4, heads=2)
    for name in ("linear_attention", "kda", "hgrn", "rwkv6", "dplr", "gsa", "mesa")
]


@pytest.mark.parametrize("of", CASES, ids=lambda of: of.name)
@pytest.mark.parametrize(
    "wrong", [not_recomputed, three_times, of_another_form, one_more]
)
def test_a_wrong_cost_is_caught(wrong, of):
    with pytest.raises(AssertionError):
        law_products(wrong, of)


@pytest.mark.parametrize("of", CASES, ids=lambda of: of.name)
def test_a_wrong_result_is_caught(of):
    def twice(*sizes, **asked):
        found = gradient_cost(*sizes, **asked)
        return found._replace(forward=2 * found.forward, recomputed=0)

    with pytest.raises(AssertionError):
        law_result(twice, of)


def test_a_cost_beyond_two_products_for_one_is_caught():
    def thrice(*sizes, **asked):
        found = gradient_cost(*sizes, **asked)
        return found._replace(pulled=3 * found.forward)

    with pytest.raises(AssertionError):
        law_recomputed(thrice, CASES[0])


def test_a_gradient_is_the_sum_of_its_parts():
    one = gradient_cost("gla", 9, key_dim=2, value_dim=3)
    assert one + Gradient(0, 0, 1) == one._replace(pulled=one.pulled + 1)
    assert gradient_cost("gla", 9, key_dim=2, value_dim=3, heads=3) == one.times(3)
