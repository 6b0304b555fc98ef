"""Checks: each is one law, a strategy that can reach its violations, and a body.

A check is data in a registry. Its body gets a checked target and a problem, calls the
target as often as the law needs, and raises a `Violation`. Names are public. Checks run
in the order in which they are registered: first the call itself, then its results.
"""

from linkern.testing.checks.registry import CHECKS, Check

# They run in this order.
# isort: off
from linkern.testing.checks import calls, values, order, scaling
from linkern.testing.checks import extremes, memory, states, gradients, gates

__all__ = ["CHECKS", "Check"]

del calls, values, order, scaling, extremes, memory, states, gradients, gates
