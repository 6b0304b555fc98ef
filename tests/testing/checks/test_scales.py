"""The scale that a target is passed, half of it, and the default of the target."""

import numpy as np
import pytest

from linkern.testing import OPERATORS, Contract
from linkern.testing.kernels.assembly import recurrence
from linkern.testing.problems.context import Scope
from linkern.testing.target.loading import load
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import SCALES, Call, TargetConfig
from tests.testing.checks.test_checks import judge

GLA = recurrence("gla")


def scales(kernel, op="gla", fixed=(), vjp=None):
    interface = load(kernel, "test:kernel", op=op, vjp=vjp).interface
    contract = Contract()
    scope = Scope(OPERATORS[op], contract, "float32", interface, frozenset(fixed))
    return scope.scales


def required(q, k, v, g, *, scale):
    return GLA(q, k, v, g, scale=scale)


def test_what_a_target_can_be_passed():
    assert scales(GLA) == tuple(SCALES)
    assert scales(GLA, fixed=["scale"]) == ("declared",)
    assert scales(required) == ("declared", "halved", "tripled")
    assert scales(recurrence("gla", default_scale=0.5)) == ("declared",)


def test_a_scale_that_gradients_do_not_take_is_not_halved():
    def kernel(q, k, v, g, *, scale=None):
        return GLA(q, k, v, g, scale=scale)

    kernel.vjp = lambda q, k, v, g, do: (q, k, v, g)
    assert scales(kernel) == ("declared", "omitted")


@pytest.mark.parametrize(
    ("scale", "passed"),
    [("declared", 0.5), ("omitted", None), ("halved", 0.25), ("tripled", 1.5)],
)
def test_what_is_passed(scale, passed):
    asked = []

    def kernel(query, key, value, log_decay, *, scale=None):
        asked.append(scale)
        return value

    x = np.ones((1, 1, 2, 4), np.float32)
    inputs = dict.fromkeys(OPERATORS["gla"].names, x)
    target = InProcess(TargetConfig("test:kernel", op="gla"), kernel)
    target.call(Call(inputs, scale=scale))
    assert asked == [passed]


@pytest.mark.parametrize("passed", ["omitted", "halved"])
def test_the_report_says_what_was_passed(passed):
    def kernel(query, key, value, log_decay, *, scale=None):
        half = query.shape[-1] ** -0.5 / 2
        wrong = scale == (None if passed == "omitted" else half)
        output, _ = GLA(query, key, value, log_decay, scale=scale)
        return output * output.dtype.type(1 + wrong)

    result = judge(kernel, "value_on_reals", op="gla", profile="default", shrink=False)
    assert result.verdict == "failed"
    assert result.counterexample.calls[-1].scale == passed
    assert f"scale={passed}" in result.counterexample.input
