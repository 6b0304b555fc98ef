"""Diagnosis of a failure: what behaves otherwise, or where which results are wrong.

Influence maps of the results are measured one stage after the other; the first that
is wrong is described. Nothing is said that does not hold on fresh inputs, and nothing
at all of a target whose maps are right.
"""

import numpy as np

from linkern.testing.diagnosis.behaviour import (
    Observe,
    not_finite,
    observed_after,
    observed_before,
)
from linkern.testing.diagnosis.declarations import declarations
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.localising import Finding, localise
from linkern.testing.diagnosis.roundings import rounded_result, rounding
from linkern.testing.diagnosis.sentences import localised
from linkern.testing.errors import OutOfTime, TargetRaised
from linkern.testing.influence.forward import STAGES
from linkern.testing.influence.gradient_maps import GRADIENT_STAGES
from linkern.testing.influence.long_maps import LONG
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.stages import Stage
from linkern.testing.problems.context import Scope
from linkern.testing.target.clock import Clock, Timed
from linkern.testing.target.process import Target

__all__ = ["Diagnosis", "diagnose"]

# Inputs are the same in every run; those of the second seed test what the first says.
SEED, FRESH = 1, 2
# Seconds for the maps of all stages, several times those of a fast target; and those
# for behaviour, and for maps of fresh inputs.
SECONDS, FEWER = 30.0, 15.0
LATE = "no time is left"
# What was not measured, by the reason.
Reasons = dict[str, list[str]]


def diagnose(target: Target, scope: Scope) -> Diagnosis | None:
    """Return what a target computes instead of the operator, as far as it shows.

    Parameters
    ----------
    target : Target
        Behind its fence; it is called up to some hundred times.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if no result is beyond its bound.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    not_measured: Reasons = {}
    behaviour = _observed(observed_before, target, scope, not_measured)
    if behaviour is not None:
        return behaviour
    clock = Clock(SECONDS)
    for stage in (*STAGES, *GRADIENT_STAGES, *LONG):
        reason = stage.skipped(scope)
        maps: list[InfluenceMap] = []
        try:
            if not reason:
                maps = _measured(Timed(target, clock), scope, stage, SEED)
                reason = LATE if clock.left <= 0 else ""
        except (TargetRaised, OutOfTime) as error:
            reason = str(error) or LATE
        if reason:
            not_measured.setdefault(reason, []).append(stage.name)
        tensor = next((one.tensor for one in maps if one.wrong.any()), "")
        if tensor:
            same = [one for one in maps if one.tensor == tensor]
            return _described(target, scope, stage, same, not_measured)
    return _observed(observed_after, target, scope, not_measured)


def _observed(
    observe: Observe, target: Target, scope: Scope, not_measured: Reasons
) -> Diagnosis | None:
    """Return a behaviour that shows in the time that there is."""
    try:
        return observe(Timed(target, Clock(FEWER)), scope)
    except OutOfTime:
        not_measured.setdefault(LATE, []).append("behaviour")
        return None


def _described(
    target: Target,
    scope: Scope,
    stage: Stage,
    maps: list[InfluenceMap],
    not_measured: Reasons,
) -> Diagnosis:
    """Return what is wrong in maps of one result, some of which are wrong."""
    tensor = maps[0].tensor

    def fresh() -> list[InfluenceMap]:
        try:
            others = _measured(Timed(target, Clock(FEWER)), scope, stage, FRESH)
        except (TargetRaised, OutOfTime) as error:
            not_measured.setdefault(str(error) or LATE, []).append("fresh inputs")
            return []
        return [one for one in others if one.tensor == tensor]

    finding = localise(maps, fresh)
    behaviour = _rounded_or_not_finite(target, scope, tensor, finding)
    if behaviour is not None:
        return behaviour
    declared: tuple[str, ...] = ()
    if tensor == "output":
        by_what = finding.factor.text if finding.factor else ""
        declared = declarations(target, scope, by_what)
    return localised(
        finding.maps,
        finding.place,
        finding.factor,
        declaration=declared,
        not_measured=tuple(
            f"{', '.join(names)}: {reason}" for reason, names in not_measured.items()
        ),
    )


def _rounded_or_not_finite(
    target: Target, scope: Scope, tensor: str, finding: Finding
) -> Diagnosis | None:
    """Return the stage that rounds, or where NaN starts, if that is what is wrong."""
    if finding.coarse:
        place = finding.place.text if finding.place else ""
        stage = rounding(target, scope, finding.maps) if tensor == "output" else None
        return stage or rounded_result(finding.maps, place, scope)
    if tensor == "output" and finding.broken:
        return not_finite(target, scope)
    return None


def _measured(
    target: Target, scope: Scope, stage: Stage, seed: int
) -> list[InfluenceMap]:
    """Return the maps of a stage."""
    return stage.measure(target, scope, np.random.default_rng(seed))
