"""The referee: laws that every implementation of an operator must keep.

It knows the operators by their equations alone; it does not import linkern's own.
Names are imported when they are first used: pytest loads `linkern.testing.plugin`
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
    "Operator",
    "Plan",
    "Report",
    "UsageError",
    "parametrize_with_checks",
    "run",
    "subject",
    "verify",
]

if TYPE_CHECKING:
    from linkern.testing.api import verify
    from linkern.testing.checks import CHECKS, Check
    from linkern.testing.contract import Contract
    from linkern.testing.errors import UsageError
    from linkern.testing.operators import OPERATORS, Operator
    from linkern.testing.plan import Plan
    from linkern.testing.pytest_checks import parametrize_with_checks, subject
    from linkern.testing.report import CheckResult, Counterexample, Report
    from linkern.testing.runner import run
else:
    _HOMES = {
        "CHECKS": "checks",
        "OPERATORS": "operators",
        "Check": "checks",
        "CheckResult": "report",
        "Contract": "contract",
        "Counterexample": "report",
        "Operator": "operators",
        "Plan": "plan",
        "Report": "report",
        "UsageError": "errors",
        "parametrize_with_checks": "pytest_checks",
        "run": "runner",
        "subject": "pytest_checks",
        "verify": "api",
    }
    __getattr__ = attributes_of(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
