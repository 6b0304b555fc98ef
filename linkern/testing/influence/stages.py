"""Stages of measuring: each asks a target for the influence maps of some results."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from linkern.testing.checks.registry import Condition, any_of, no_final_state
from linkern.testing.errors import Inapplicable, not_applicable
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import Reading, maps_of
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.problem import Problem
from linkern.testing.target.process import Target

__all__ = ["Measure", "Scenes", "Stage", "one_token", "scenes_of", "stage"]

Measure = Callable[[Target, Scope, np.random.Generator], list[InfluenceMap]]
Scenes = Callable[[Scope, np.random.Generator], Iterator[Problem]]
# Shapes of targets that compile each one.
FEW_SHAPES = 3


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
    unless : tuple of callable
        Conditions under which a scope has such maps.
    """

    name: str
    measure: Measure
    unless: tuple[Condition, ...] = ()

    def skipped(self, scope: Scope) -> str:
        """Return the reason for which a scope has no such maps; empty if it has."""
        inapplicable = any_of(*self.unless)(scope)
        return inapplicable.reason if inapplicable else ""


@lru_cache(maxsize=32)
def scenes_of(draw: Scenes, scope: Scope, seed: int) -> tuple[Problem, ...]:
    """Return scenes of a scope; the same ones for the same seed.

    They are drawn once, so that targets of one scope share their exact results.
    """
    problems: list[Problem] = []
    shapes: set[Shape] = set()
    for problem in draw(scope, np.random.default_rng(seed)):
        if scope.few_shapes and len({*shapes, problem.shape}) > FEW_SHAPES:
            continue
        shapes.add(problem.shape)
        for x in problem.inputs.values():
            x.flags.writeable = False
        problems.append(problem)
    return tuple(problems)


def stage(
    name: str,
    draw: Scenes,
    read: Reading,
    *unless: Condition,
    wants_state: bool = False,
) -> Stage:
    """Return the stage of some scenes; `wants_state` asks for final states, too."""

    def measure(
        target: Target, scope: Scope, rng: np.random.Generator
    ) -> list[InfluenceMap]:
        scenes = scenes_of(draw, scope, int(rng.integers(2**31)))
        states = wants_state and no_final_state(scope) is None
        return maps_of(target, scenes, read, wants_state=states)

    return Stage(name, measure, unless)


def one_token(scope: Scope) -> Inapplicable | None:
    """Require a call of several tokens."""
    if scope.contract.interface != "step":
        return None
    return not_applicable("one call takes one token")
