"""Stages of measuring: each asks a target for the influence maps of some results."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["Measure", "Stage"]

Measure = Callable[[Target, Scope, np.random.Generator], list[InfluenceMap]]


@dataclass(frozen=True)
class Stage:
    """Calls of one sort, and the maps that are read from them.

    Parameters
    ----------
    name : str
        The sort: ``outputs``, ``state``, ``spans``, ``packed``, ``gradients``, ...
    measure : callable
        Returns the maps for a target, a scope and a source of random numbers. It raises
        `TargetRaised` or `TargetDied` if the target does not answer.
    skipped : callable
        Returns the reason for which a scope has no such maps; empty if it has some.
    """

    name: str
    measure: Measure
    skipped: Callable[[Scope], str] = lambda _: ""

    def applies(self, scope: Scope) -> bool:
        """Return True if a target of this scope can be asked."""
        return not self.skipped(scope)
