"""The referee: laws that every implementation of an operator must keep.

It knows the operators by their equations alone; it does not import linkern's own.
Names are imported when they are first used: pytest loads its plugin
everywhere, and the child process of a target needs no Hypothesis.
"""

from typing import TYPE_CHECKING

from linkern._lazy import attributes_of

__all__ = [
    "CHECKS",
    "OPERATORS",
    "Check",
    "CheckResult",
    "Contract",
    "Counterexample",
    "Grade",
    "Operator",
    "OutOfBoundError",
    "Plan",
    "Report",
    "UsageError",
    "VerificationError",
    "assert_within_bound",
    "grade",
    "grade_many",
    "parametrize_with_checks",
    "run",
    "simulate_ranks",
    "strategies",
    "subject",
    "verify",
]

if TYPE_CHECKING:
    from linkern.testing import strategies
    from linkern.testing.api import verify
    from linkern.testing.bounds import OutOfBoundError, assert_within_bound
    from linkern.testing.checks import CHECKS, Check
    from linkern.testing.errors import UsageError
    from linkern.testing.grading.pool import grade_many
    from linkern.testing.grading.single import grade
    from linkern.testing.pytest.parametrize import parametrize_with_checks, subject
    from linkern.testing.report.grade import Grade
    from linkern.testing.report.report import Report, VerificationError
    from linkern.testing.runner.loop import run
    from linkern.testing.runner.plan import Plan
    from linkern.testing.runner.results import CheckResult, Counterexample
    from linkern.testing.spec.contract import Contract
    from linkern.testing.spec.operators import OPERATORS, Operator
    from linkern.testing.target.ranks.simulated import simulate_ranks
else:
    _HOMES = {
        "CHECKS": "checks",
        "OPERATORS": "spec.operators",
        "Check": "checks",
        "CheckResult": "runner.results",
        "Contract": "spec.contract",
        "Counterexample": "runner.results",
        "Grade": "report.grade",
        "Operator": "spec.operators",
        "OutOfBoundError": "bounds",
        "Plan": "runner.plan",
        "Report": "report.report",
        "UsageError": "errors",
        "assert_within_bound": "bounds",
        "grade": "grading.single",
        "grade_many": "grading.pool",
        "parametrize_with_checks": "pytest.parametrize",
        "run": "runner.loop",
        "simulate_ranks": "target.ranks.simulated",
        "strategies": "strategies",
        "subject": "pytest.parametrize",
        "VerificationError": "report.report",
        "verify": "api",
    }
    __getattr__ = attributes_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
