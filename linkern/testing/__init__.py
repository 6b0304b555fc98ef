"""The referee: laws that every implementation of an operator must keep.

It knows the operators by their equations alone; it does not import linkern's own.
"""

from linkern.testing.api import verify
from linkern.testing.checks import CHECKS, Check
from linkern.testing.contract import Contract
from linkern.testing.errors import UsageError
from linkern.testing.operators import OPERATORS, Operator
from linkern.testing.plan import Plan
from linkern.testing.report import CheckResult, Counterexample, Report
from linkern.testing.runner import run

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
    "run",
    "verify",
]
