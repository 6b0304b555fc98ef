"""The Triton kernels of `examples/`: right ones pass, and each fault has its law."""

from pathlib import Path

import pytest

from linkern.testing import Plan, run
from linkern.testing.runner.loop import CheckFinished

EXAMPLES = Path(__file__).parents[4] / "examples" / "triton_kernels.py"
LAWS = ("no_access_out_of_bounds", "causality", "every_configuration", "state_value")
RIGHT = ("linear_attention", "simple_gla", "delta_rule")
FAULTS = {
    "one_token_ahead": ("linear_attention", "causality", "changed"),
    "tail_beyond_the_end": (
        "simple_gla",
        "no_access_out_of_bounds",
        "bytes past the end of `v`",
    ),
    "state_without_tail": ("simple_gla", "state_value", "memory"),
    "grid_of_wide_tiles": (
        "delta_rule",
        "every_configuration",
        "in a configuration of delta_kernel (BV=16)",
    ),
}


def verdicts(name, op, checks, profile="quick"):
    plan = Plan(
        f"{EXAMPLES}:{name}",
        op=op,
        interpret=True,
        checks=checks,
        profile=profile,
        seed=0,
        shrink=False,
        diagnose=False,
    )
    results = (e.result for e in run(plan) if isinstance(e, CheckFinished))
    return {result.name: result for result in results}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_passes(name, triton):
    results = verdicts(name, name, LAWS, "smoke")  # each call is interpreted
    judged = {key: one.verdict for key, one in results.items()}
    assert "failed" not in judged.values()
    assert judged["causality"] == judged["no_access_out_of_bounds"] == "passed"
    assert (judged["every_configuration"] == "passed") == (name == "delta_rule")
    assert (judged["state_value"] == "passed") == (name == "simple_gla")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_law_of_each_fault_fails(name, triton):
    op, law, words = FAULTS[name]
    result = verdicts(name, op, (law,))[law]
    assert result.verdict == "failed"
    assert words in result.message
