"""Stages that keep fewer bits than declared, told by the paths that lose them.

A stage is on the way of some paths and not of others: what a state loses is lost far
from the source and not beside it, what a score loses beside it and not far, and what
the sums lose is lost everywhere.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.influence.paths import Survival, survivals
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["first_distance", "narrow_stage", "rounding"]

# Declarations of each stage; those without any are inputs and the output.
DTYPES = {
    "sums": ("accumulator_dtype", "feature_dtype"),
    "operands": ("operand_dtype",),
    "keys": ("feature_dtype",),
    "queries": ("feature_dtype",),
    "features": ("feature_dtype",),
    "state": ("state_dtype",),
    "state and normalizer": ("state_dtype", "normalizer_dtype"),
    "normalizer": ("normalizer_dtype",),
    "scores": ("score_dtype",),
}
# Paths whose losses may be those of a stage; others are inputs of their own.
ARITHMETIC = {"value", "key", "query", "score", "sum", "state", "normalizer"}
WORDS = {"key": "keys", "query": "queries"}
# No format has fewer bits: a larger error is none of rounding.
FEWEST = 6
# Errors of rounding include some that are this share of the largest.
EVEN = 0.2
# Bits from the narrowest path to others that lose as much.
BESIDES = 4
NAMES = {
    "sums": "computed_in_narrower_dtype",
    "keys": "features_rounded",
    "queries": "features_rounded",
    "state and normalizer": "state_rounded",
    "quotient": "coarse_reciprocal",
}


def rounding(target: Target, scope: Scope) -> Diagnosis | None:
    """Return the stage that keeps fewer bits than declared, and how many.

    Parameters
    ----------
    target : Target
        Behind its fence.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Diagnosis or None
        None if every path keeps what its declarations promise.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    try:
        paths = survivals(target, scope)
        stage, bits = narrow_stage(paths)
        if not stage:
            return None
        distance = first_distance(target, scope, paths)
    except (DoesNotApply, TargetRaised):
        return None
    names = [name for name, width in SIGNIFICAND_BITS.items() if width == bits]
    formats = f" ({' or '.join(names)})" if names else ""
    where = every = ""
    declared = tuple(f"{key}={names[0]}" for key in DTYPES.get(stage, ()) if names)
    if stage.startswith("state") and distance is not None:
        every = f" every {distance} tokens" if distance > 1 else " at every token"
        where = f"sources {distance} back or more"
        declared += (f"chunk_size={distance}",) * (distance > 1)
    sentence = f"the {stage} {_be(stage)} rounded to {bits} bits{formats}{every}"
    return Diagnosis(
        NAMES.get(stage, f"{stage}_rounded"),
        sentence,
        declaration=declared,
        stage="output",
        where=where,
        by_what=f"rounded to {bits} bits",
    )


def _be(noun: str) -> str:
    return "are" if noun.endswith("s") or " and " in noun else "is"


def narrow_stage(paths: tuple[Survival, ...]) -> tuple[str, int]:
    """Return the stage that explains the paths on which bits are lost; and its bits.

    The stage is empty if nothing is lost.
    """
    fewest = min((one.bits for one in paths if one.lost), default=0)
    summed = any(one.lost and one.path == "sum" for one in paths)
    # Others lose by the same rounding, further down in their significands.
    paths = tuple(
        replace(one, lost=one.lost and one.bits <= fewest + BESIDES) for one in paths
    )
    lost = {one.path for one in paths if one.lost}
    other = any(one.lost and (one.scaled or one.bits < FEWEST) for one in paths)
    if not lost or other:
        return "", 0
    states = [one for one in paths if one.path == "state"]
    far = states[-1].lost if states else False
    near = states[0].lost if states else False
    narrowest = min(paths, key=lambda one: (not one.lost, one.bits)).path
    if "value" in lost and summed:
        stage, shown = "sums", lost
    elif narrowest not in ARITHMETIC:
        stage, shown = narrowest, {narrowest}
    elif "value" in lost and not near and not far:
        normalised = any(one.path == "normalizer" for one in paths)
        stage, shown = "output", {"value"}
        if normalised:
            stage, shown = "quotient", {"normalizer"}
    elif "value" in lost and lost & {"key", "query"}:
        stage, shown = "operands", {"value", "key", "query"}
    elif "value" in lost:
        stage, shown = "values", {"value"}
    elif near and not far:
        stage, shown = "scores", {"score"}
    elif lost & {"key", "query"}:
        shown = lost & {"key", "query"}
        stage = "features" if len(shown) > 1 else WORDS[next(iter(shown))]
    elif far:
        stage = "state and normalizer" if "normalizer" in lost else "state"
        shown = {"state"}
    else:
        stage = narrowest
        shown = {stage}
    entries = [one for one in paths if one.lost and one.path in shown]
    # Sums round more than once, on some paths more often than on others.
    typical = max if stage == "sums" else np.median
    bits = int(typical([one.bits for one in entries])) if entries else 0
    if not entries or not all(_spread(np.asarray(one.errors)) for one in entries):
        return "", 0
    return stage, _usual(bits)


def _spread(errors: NDArray[np.float64]) -> bool:
    """Return True if errors are of both signs, or of all sizes: a factor's are not."""
    sizes = abs(errors)
    both = (errors > 0).any() and (errors < 0).any()
    return bool(both or sizes.min() < EVEN * sizes.max())


def _usual(bits: int) -> int:
    """Return the bits of a dtype that are one apart or less, or the bits themselves.

    The largest of a few errors is somewhat smaller than half of a unit, and two
    roundings make one that is somewhat larger.
    """
    near = [n for n in SIGNIFICAND_BITS.values() if abs(n - bits) <= 1]
    return min(near, key=lambda n: abs(n - bits), default=bits)


def first_distance(
    target: Target, scope: Scope, paths: tuple[Survival, ...]
) -> int | None:
    """Return the least distance at which a state was rounded; None if it was not."""
    states = [one for one in paths if one.path == "state"]
    lost = [one.distance for one in states if one.lost]
    if not lost:
        return None
    high = min(lost)
    low = max((one.distance for one in states if one.distance < high), default=0)
    while high - low > 1:
        middle = (low + high) // 2
        (one,) = survivals(target, scope, (middle,)) or (None,)
        low, high = (low, middle) if one is not None and one.lost else (middle, high)
    return high
