"""All that an interpreted kernel does in a configuration is judged, not its output."""

from pathlib import Path

import pytest

from linkern.testing import Contract, Plan, run
from linkern.testing.runner.loop import CheckFinished

TARGETS = Path(__file__).parents[2] / "triton_targets.py"
CONTRACT = {"feature_map": "identity", "normalize": False, "gradients": "none"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("with_a_state", ""),
        ("state_wrong_in_one_configuration", "the memory is wrong in a"),
        ("turns_in_one_configuration", "two calls with the same inputs differ in the"),
        ("future_in_one_configuration", "on changed an earlier output in a"),
    ],
)
@pytest.mark.slow
def test_a_configuration_of_16_tokens_is_named(name, words, triton):
    plan = Plan(
        f"{TARGETS}:{name}",
        op="linear_attention",
        contract=Contract(**CONTRACT, max_length=40),
        interpret=True,
        checks=("every_configuration",),
        profile="quick",
        seed=0,
        shrink=False,
        diagnose=False,
    )
    (result,) = (e.result for e in run(plan) if isinstance(e, CheckFinished))
    assert result.verdict == ("failed" if words else "passed")
    assert words in result.message
    assert ("configuration of scan (BT=16)" in result.message) == bool(words)
