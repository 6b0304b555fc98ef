"""The Triton kernels of `examples/`: right ones pass, and each fault has its law."""

from pathlib import Path

import pytest

from linkern.testing import verify

EXAMPLES = Path(__file__).parents[4] / "examples" / "triton_kernels.py"
LAWS = ("no_access_out_of_bounds", "causality", "every_configuration", "state_value")
RIGHT = ("linear_attention", "simple_gla", "delta_rule")
FAULTS = {
    "one_token_ahead": ("linear_attention", "causality", "changes"),
    "tail_beyond_the_end": (
        "simple_gla",
        "no_access_out_of_bounds",
        "bytes past the end of `v`",
    ),
    "state_without_tail": ("simple_gla", "state_value", "state"),
    "grid_of_wide_tiles": (
        "delta_rule",
        "every_configuration",
        "in a configuration of delta_kernel (BV=16)",
    ),
}


def judged(name, op, checks):
    return verify(
        f"{EXAMPLES}:{name}",
        op=op,
        interpret=True,
        checks=checks,
        profile="smoke",
        seed=0,
        jobs=1,
        shrink=False,
        diagnose=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_passes(name, triton):
    report = judged(name, name, LAWS)
    assert report.verdict == "passed"
    verdicts = {check.name: check.verdict for check in report.checks}
    assert verdicts["causality"] == "passed"
    assert (verdicts["every_configuration"] == "passed") == (name == "delta_rule")
    assert (verdicts["state_value"] == "passed") == (name == "simple_gla")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_the_law_of_each_fault_fails(name, triton):
    op, law, words = FAULTS[name]
    (result,) = judged(name, op, (law,)).checks
    assert result.verdict == "failed"
    assert words in result.message
