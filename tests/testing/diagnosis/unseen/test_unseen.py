"""Every kernel of the unseen set is wrong by its defect, and by nothing else."""

import pytest

from linkern.testing import Plan, run
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract
from tests.marks import slow_unless
from tests.testing.diagnosis.unseen.draw import EACH, drawn
from tests.testing.diagnosis.unseen.kernels import REPAIRED, UNSEEN

BY_DEFAULT = (
    "gates_late_in_short_sequences",
    "final_state_decayed_by_padding",
    "gradient_of_query_not_scaled",
)


def verdict(kernel):
    plan = Plan(
        "test",
        op=kernel.op,
        contract=Contract(**kernel.contract),
        dtypes=("float32",),
        profile="quick",
        function=kernel.kernel,
        diagnose=False,
        shrink=False,
        checks=kernel.checks,
    )
    (result,) = (e.result for e in run(plan) if isinstance(e, CheckFinished))
    return result


@pytest.mark.parametrize("name", slow_unless(lambda n: n in BY_DEFAULT, UNSEEN))
def test_the_defect_is_the_only_one(name):
    faulty, repaired = verdict(UNSEEN[name]), verdict(REPAIRED[name])
    assert faulty.verdict == "failed", faulty.message
    assert repaired.verdict == "passed", repaired.message


def test_the_set_is_the_drawn_one():
    rows = drawn()
    assert len({(op, defect) for _, op, _, defect in rows}) == len(UNSEEN) == 32
    operators = [mutant.op for mutant in UNSEEN.values()]
    assert sorted(operators) == sorted(op for _, op, _, _ in rows)
    assert max(operators.count(op) for op in operators) == EACH
