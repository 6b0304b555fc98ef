"""Related calls come in any order, and earlier ones are repeated in between."""

from dataclasses import replace

import numpy as np
import pytest

from linkern.testing.checks.assertions import CheckedTarget
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.kernels.correct import quadratic
from linkern.testing.problems.context import Shape
from linkern.testing.problems.generators import real_problem
from linkern.testing.runner.opening import open_target, scope_of
from linkern.testing.runner.plan import Plan

ORDERS = range(1, 60)


def judged(kernel):
    """Return a checked target, its tally and problems of three lengths."""
    plan = Plan("kernel", "linear_attention", function=kernel)
    target, tally = open_target(plan), Tally()
    scope, rng = scope_of(plan, target, "float32"), np.random.default_rng(0)
    drawn = [
        real_problem(scope, Shape(1, 1, n, n, 3, 2), "uniform", "normal", rng)
        for n in (2, 3, 4)
    ]
    problems = [replace(problem, sort="reals") for problem in drawn]
    return CheckedTarget(target, tally), tally, problems


def lengths(tally):
    return [call.inputs["query"].shape[-2] for call in tally.calls]


def test_outputs_come_back_in_the_order_of_the_problems():
    checked, tally, problems = judged(quadratic)
    orders = set()
    for order in ORDERS:
        checked.begin(order, keeping=False)
        outputs = checked.runs(*problems)
        assert [x.shape[-2] for x in outputs] == [2, 3, 4]
        orders.add(tuple(lengths(tally)))
    assert len(orders) == 6


def test_the_simplest_order_is_the_one_that_is_written():
    checked, tally, problems = judged(quadratic)
    for _ in range(30):
        checked.begin(0)
        checked.runs(*problems)
        assert lengths(tally) == [2, 3, 4]


def test_earlier_calls_are_repeated_and_kept_for_a_reproducer():
    checked, tally, problems = judged(quadratic)
    repeated = 0
    for order in ORDERS:
        checked.begin(order)
        checked.runs(*problems)
        repeated += len(tally.calls) - len(problems)
    assert repeated > 2
    assert tally.asked == len(problems) * len(ORDERS)


def counting(change, at_first=lambda x: x):
    """Return a kernel whose later calls of the same values are changed."""
    seen = set()

    def kernel(query, key, value):
        output, known = at_first(quadratic(query, key, value)), value.tobytes()
        if known in seen:
            output = change(output)
        seen.add(known)
        return output

    return kernel


def ask(*changes):
    """Ask for three problems, each once; what is repeated is up to the order."""
    for order in ORDERS:
        checked, _, problems = judged(counting(*changes))
        checked.begin(order)
        checked.runs(*problems[:2])
        checked.begin(order)
        checked.run(problems[2])


def test_a_repeated_call_with_another_output_is_found():
    with pytest.raises(Violation, match="inputs of an earlier one"):
        ask(lambda x: 2 * x + 1)


def test_other_bits_within_the_bound_are_left_to_determinism():
    ask(lambda x: np.nextafter(x, np.float32(9)))


def test_other_bits_of_an_output_that_was_wrong_already_are_no_finding():
    ask(lambda x: np.nextafter(x, np.float32(9)), lambda x: 2 * x + 1)


def refusing(query, key, value):
    msg = "shapes do not fit"
    raise ValueError(msg)


def test_what_the_target_raises_is_a_refusal():
    checked, _, problems = judged(quadratic)
    assert not checked.refuses(problems[0])
    checked, _, problems = judged(refusing)
    assert checked.refuses(problems[0])


def test_memory_that_is_read_out_of_bounds_is_no_refusal(monkeypatch):
    checked, _, problems = judged(quadratic)
    called = checked._target.call

    def out_of_bounds(call):
        return replace(called(call), out_of_bounds=("kernel.py:3: a load",))

    monkeypatch.setattr(checked._target, "call", out_of_bounds)
    with pytest.raises(Violation, match="a load"):
        checked.refuses(problems[0])
