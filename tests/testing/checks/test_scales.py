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
    assert scales(GLA) == SCALES
    assert scales(GLA, fixed=["scale"]) == ("declared",)
    assert scales(required) == ("declared", "halved")
    assert scales(recurrence("gla", default_scale=0.5)) == ("declared",)


def test_a_scale_that_gradients_do_not_take_is_not_halved():
    def kernel(q, k, v, g, *, scale=None):
        return GLA(q, k, v, g, scale=scale)

    kernel.vjp = lambda q, k, v, g, do: (q, k, v, g)
    assert scales(kernel) == ("declared", "omitted")


@pytest.mark.parametrize(
    ("scale", "passed"), [("declared", 0.5), ("omitted", None), ("halved", 0.25)]
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


@pytest.mark.parametrize("scale", ["omitted", "halved"])
def test_the_report_says_what_was_passed(scale):
    def kernel(query, key, value, log_decay, *, scale=None):
        """Be wrong for every scale but that of the operator."""
        wrong = scale in (None, query.shape[-1] ** -0.5 / 2)
        output, _ = GLA(query, key, value, log_decay, scale=scale)
        return output * output.dtype.type(1 + wrong)

    seen = set()
    for seed in range(8):
        result = judge(kernel, "value_on_reals", op="gla", seed=seed, shrink=False)
        assert result.verdict == "failed"
        example = result.counterexample
        seen.add(example.calls[-1].scale)
        assert f"scale={example.calls[-1].scale}" in example.input
    assert scale in seen
