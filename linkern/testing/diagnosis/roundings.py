"""Stages that keep fewer bits than declared, told by the paths that lose them.

A stage is on the way of some paths and not of others: what a state loses is lost far
from the source and not beside it, what a score loses beside it and not far, and what
the sums lose is lost everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.declarations import first_right
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.sizes import in_words
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.paths import (
    DISTANCES,
    LENGTH,
    Survival,
    survivals,
    usual_bits,
)
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["narrow_stage", "rounding"]

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
# The path on which the place of a stage is measured, where it has one.
PATHS = {
    "state": "state",
    "state and normalizer": "state",
    "normalizer": "normalizer",
    "scores": "score",
    "operands": "value",
}
# Lengths that are tried for one at which nothing is lost, and lengths of wrong maps.
LENGTHS, TRIED = (17, 24, 32, 40, 47, 48, 64, 80, 100, 128, LENGTH), 3
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
    "log_decay": "decays_rounded",
}


def rounding(
    target: Target, scope: Scope, maps: Sequence[InfluenceMap] = ()
) -> Diagnosis | None:
    """Return the stage that keeps fewer bits than declared, and how many.

    Parameters
    ----------
    target : Target
        Behind its fence.
    scope : Scope
        What it claims and declares.
    maps : sequence of InfluenceMap
        Maps with wrong entries: of lengths at which it shows.

    Returns
    -------
    Diagnosis or None
        None if every path keeps what its declarations promise.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    lengths = dict.fromkeys([LENGTH, *(one.problem.length for one in maps)])
    for length in [*lengths][:TRIED]:
        try:
            paths = survivals(target, scope, length=length)
            stage, bits = narrow_stage(paths)
            if stage:
                return _said(target, scope, stage, bits, paths, length)
        except (DoesNotApply, TargetRaised):
            continue
    return None


def _said(
    target: Target,
    scope: Scope,
    stage: str,
    bits: int,
    paths: tuple[Survival, ...],
    length: int,
) -> Diagnosis:
    ask = partial(_lost, target, scope, bits + BESIDES)
    path = PATHS.get(stage, stage)
    lost = min((x for x in paths if x.lost), key=lambda x: (x.path != path, x.distance))
    near = any(one.path == "state" and not one.lost for one in paths)
    where, every, chunk = _place(ask, path, length, near=near)
    some = "" if scope.few_shapes else _lengths(ask, lost, length)
    names = [name for name, width in SIGNIFICAND_BITS.items() if width == bits]
    formats = f" ({' or '.join(names)})" if names else ""
    keys = DTYPES.get(stage, ())
    formats_first = names if stage == "operands" else names[::-1]
    same = [dict.fromkeys(keys, name) for name in formats_first if keys]
    every *= scope.operator.causal
    sizes = [{"chunk_size": chunk}] if every and chunk > 1 else []
    candidates = [size | one for size in (*sizes, {}) for one in same]
    what = f"rounded to {bits} bits"
    place = f" at {some}" * bool(some)
    name = NAMES.get(stage, f"{stage}_rounded")
    return Diagnosis(
        name if scope.operator.feature_map else name.replace("features", "keys"),
        f"the {stage} {_be(stage)} {what}{formats}{every}{place}",
        declaration=() if some else first_right(target, scope, candidates),
        stage="output",
        where=" and ".join(x for x in (where, some) if x) or "everywhere",
        by_what=what,
    )


def _place(
    ask: Callable[..., bool], path: str, length: int, *, near: bool
) -> tuple[str, str, int]:
    """Return the place of what is rounded, how often it is, and the tokens of each."""
    if path == "state" and ask(path, (0, 0), length):
        return "", " at every token", 1
    if path in ("state", "normalizer"):
        chunk, on_edges = _edge(ask, path, length, inside=False)
        every = f" every {chunk} tokens" if chunk > 1 else " at every token"
        if on_edges:
            return f"pairs across edges of chunks of {chunk}", every, chunk
        return f"sources {chunk} back or more", every, chunk
    if path == "score" and near:
        chunk, on_edges = _edge(ask, "state", length, inside=True)
        if on_edges:
            return f"pairs inside chunks of {chunk}", "", chunk
        return f"sources less than {chunk} back", "", chunk
    return "", "", 0


def _lost(
    target: Target,
    scope: Scope,
    most: int,
    path: str,
    pair: tuple[int, int],
    length: int,
) -> bool:
    """Return True if bits are lost on a path between two tokens."""
    paths = survivals(target, scope, (path, (pair,)), length)
    return any(one.lost and one.bits <= most for one in paths)


def _edge(
    ask: Callable[..., bool], path: str, length: int, *, inside: bool
) -> tuple[int, bool]:
    """Return the least distance from the first token at which a path is another.

    And True if that is the place of an edge, which neighbouring tokens have across it.
    """
    low, high = 0, length - 1
    for high in (n for n in DISTANCES if n < length):
        if ask(path, (0, high), length) != inside:
            break
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        other = ask(path, (0, middle), length) != inside
        low, high = (low, middle) if other else (middle, high)
    return high, high > 1 and ask(path, (high - 1, high), length) != inside


def _lengths(ask: Callable[..., bool], lost: Survival, length: int) -> str:
    """Return the lengths at which a path loses bits; empty if at all of them."""
    tried = sorted({n for n in (*LENGTHS, length) if n > lost.distance})
    pair = (0, lost.distance)
    narrow = {n: ask(lost.path, pair, n) for n in tried}
    chosen = [n for n in tried if narrow[n]]
    low = max((n for n in tried if not narrow[n]), default=0)
    if not low or not chosen:
        return ""
    if low < chosen[0]:
        high = chosen[0]
        while high - low > 1:
            middle = (low + high) // 2
            is_narrow = ask(lost.path, pair, middle)
            low, high = (low, middle) if is_narrow else (middle, high)
        return f"lengths above {low}"
    return in_words("lengths", chosen, tried)[0]


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
    stage, shown = _stage(paths, lost, fewest, summed=summed)
    entries = [one for one in paths if one.lost and one.path in shown]
    # Sums round more than once, on some paths more often than on others.
    typical = max if stage == "sums" else np.median
    bits = int(typical([one.bits for one in entries])) if entries else 0
    errors = [np.asarray(one.errors) for one in entries]
    if stage == "quotient":  # those of a chopped one are of one sign, and few
        errors = [np.concatenate(errors)]
    if not entries or not all(_spread(one) for one in errors):
        return "", 0
    return stage, usual_bits(bits)


def _stage(
    paths: tuple[Survival, ...], lost: set[str], fewest: int, *, summed: bool
) -> tuple[str, set[str]]:
    """Return the stage on paths that lose bits, and the paths that show how many."""
    states = [one.lost for one in paths if one.path == "state"] or [False]
    near, far = states[0], states[-1]
    narrowest = min(paths, key=lambda one: (not one.lost, one.bits)).path
    arguments = lost & {"key", "query"}
    # Values of so few bits lose none.
    hidden = all(one.limit <= fewest + 1 for one in paths if one.path == "value")
    if "value" in lost and summed:
        return "sums", lost
    if narrowest not in ARITHMETIC:
        return narrowest, {narrowest}
    if "value" in lost and not near and not far:
        if any(one.path == "normalizer" for one in paths):
            return "quotient", {"normalizer"}
        return "output", {"value"}
    # Products of keys and values alone, which no normalizer holds.
    products = arguments == {"key"} and "normalizer" not in lost
    if near and far and products and (hidden or "value" in lost):
        return "state", {"state"}
    if "value" in lost:
        return "operands" if arguments else "values", {"value"} | arguments
    if near and not far:
        return "scores", {"score"}
    if arguments:
        return "features" if len(arguments) > 1 else WORDS[min(arguments)], arguments
    if far:
        return "state and normalizer" if "normalizer" in lost else "state", {"state"}
    return narrowest, {narrowest}


def _spread(errors: NDArray[np.float64]) -> bool:
    """Return True if errors are of both signs, or of all sizes: a factor's are not."""
    sizes = abs(errors)
    both = (errors > 0).any() and (errors < 0).any()
    return bool(both or sizes.min() < EVEN * sizes.max())
