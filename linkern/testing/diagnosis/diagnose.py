"""Diagnosis of a failure: what behaves otherwise, or where which results are wrong.

Influence maps of the results are measured one stage after the other; the first that
is wrong is described. Nothing is said that does not hold on fresh inputs, and nothing
at all of a target whose maps are right.
"""

import time

import numpy as np

from linkern.testing.diagnosis.behaviour import (
    not_finite,
    observed_after,
    observed_before,
)
from linkern.testing.diagnosis.declarations import declarations
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.localising import Finding, localise
from linkern.testing.diagnosis.roundings import rounded_result, rounding
from linkern.testing.diagnosis.sentences import localised
from linkern.testing.errors import TargetRaised
from linkern.testing.influence.forward import STAGES
from linkern.testing.influence.gradient_maps import GRADIENT_STAGES
from linkern.testing.influence.long_maps import LONG
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.stages import Stage
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["Diagnosis", "diagnose"]

# Inputs are the same in every run; those of the second seed test what the first says.
SEED, FRESH = 1, 2
# Seconds after which no further stage begins: several times those of a fast target.
BUDGET = 30.0


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
    behaviour = observed_before(target, scope)
    if behaviour is not None:
        return behaviour
    not_measured: list[str] = []
    began = time.monotonic()
    for stage in (*STAGES, *GRADIENT_STAGES, LONG):
        reason = stage.skipped(scope)
        if reason:
            if not any(said.endswith(reason) for said in not_measured):
                not_measured.append(f"{stage.name}: {reason}")
            continue
        if time.monotonic() - began > BUDGET:
            not_measured.append(f"{stage.name}: no time is left")
            continue
        try:
            diagnosis = _of_stage(target, scope, stage, tuple(not_measured))
        except TargetRaised as raised:
            not_measured.append(f"{stage.name}: {raised}")
            continue
        if diagnosis is not None:
            return diagnosis
    return observed_after(target, scope)


def _of_stage(
    target: Target, scope: Scope, stage: Stage, not_measured: tuple[str, ...]
) -> Diagnosis | None:
    maps = _measured(target, scope, stage, SEED)
    tensor = next((one.tensor for one in maps if one.wrong.any()), "")
    if not tensor:
        return None

    def of_tensor(maps: list[InfluenceMap]) -> list[InfluenceMap]:
        return [one for one in maps if one.tensor == tensor]

    finding = localise(
        of_tensor(maps), lambda: of_tensor(_measured(target, scope, stage, FRESH))
    )
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
        not_measured=not_measured,
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
