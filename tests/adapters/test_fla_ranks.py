"""Kernels of fla-core that run on several ranks, interpreted, over gloo."""

from dataclasses import replace
from pathlib import Path

import pytest

from linkern.testing.checks import CHECKS
from linkern.testing.runner.judging import judge
from linkern.testing.runner.opening import config_of, open_target
from linkern.testing.runner.plan import Plan
from linkern.testing.spec.contract import Contract
from tests.marks import every

ADAPTER = "linkern.adapters.fla_ranks"
FAULTY = Path(__file__).parent / "fla_ranks_targets.py"
CONTRACT = {"layout": "bthd", "packing": "full", "decay_floor": -5.0, "max_length": 12}
pytestmark = pytest.mark.slow
# Interpreted, each takes ten seconds, and the second calls all that the first does.
LAWS = [
    pytest.param("value_on_reals", marks=pytest.mark.exhaustive),
    "packed_gradients",
]


def plan_of(target, op, **declared):
    contract = Contract(**CONTRACT, ranks_even=True, ranks_empty=False, **declared)
    options = {"layout": "zigzag"} if declared else {}
    return Plan(
        target,
        op,
        contract,
        "torch",
        profile="smoke",
        seed=3,
        options=options,
        interpret=True,
        ranks=(2,),
    )


@pytest.fixture(scope="module")
def target(fla):
    """A target in processes that all tests share, opened again by each."""
    del fla
    target = open_target(plan_of(f"{ADAPTER}:kda", "kda"))
    yield target
    target.close()


def judged(target, plan, law):
    target.reopen(config_of(plan))
    return judge(plan, target, CHECKS[law], {}).result


@pytest.mark.parametrize(
    ("op", "declared"),
    [
        pytest.param("gated_delta_rule", {}, marks=pytest.mark.exhaustive),
        ("gated_delta_rule", {"ranks_order": "zigzag"}),
        ("kda", {}),
    ],
)
@pytest.mark.parametrize("law", LAWS)
def test_a_kernel_is_right(op, declared, law, target):
    result = judged(target, plan_of(f"{ADAPTER}:{op}", op, **declared), law)
    assert result.verdict == "passed", result.message


@pytest.mark.parametrize("law", LAWS)
def test_rwkv7_is_right(law, target):
    result = judged(target, plan_of(f"{ADAPTER}:rwkv7", "rwkv7"), law)
    assert result.verdict == "passed", result.message


def test_gated_delta_product_is_right_in_bfloat16(target):
    op = "gated_delta_product"
    contract = Contract(**CONTRACT, ranks_even=True, feature_dtype="bfloat16")
    plan = replace(plan_of(f"{ADAPTER}:{op}", op), contract=contract)
    plan = replace(plan, dtypes=("bfloat16",))
    result = judged(target, plan, "packed_gradients")
    assert result.verdict == "passed", result.message


ZIGZAG = {"ranks_order": "zigzag", "ranks_even": True}


@pytest.mark.parametrize("declared", every(2, [ZIGZAG, {}], slow=0))
@pytest.mark.parametrize("law", LAWS)
def test_a_context_is_passed_to_a_target_that_takes_one(law, declared, target):
    contract = Contract(**CONTRACT, **declared)  # equal shards are not declared
    plan = replace(plan_of(f"{FAULTY}:of_context", "kda"), contract=contract)
    result = judged(target, plan, law)
    assert result.verdict == "passed", result.message


def test_a_rank_without_those_before_it_is_named(target):
    plan = plan_of(f"{FAULTY}:without_earlier_ranks", "gated_delta_rule")
    result = judged(target, plan, "value_on_integers")
    assert result.verdict == "failed"
    assert "first at token 0 of rank 1 of 2" in result.message
