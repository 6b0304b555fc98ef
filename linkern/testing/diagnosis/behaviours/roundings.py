"""Stages that keep fewer bits than declared, told by the paths that lose them.

A stage is on the way of some paths and not of others: what a state loses is lost far
from the source and not beside it, what a score loses beside it and not far, and what
the sums lose is lost everywhere.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.declarations import first_right
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.sentences import in_place
from linkern.testing.diagnosis.sizes import in_words
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.paths import (
    LENGTH,
    Survival,
    few_bits,
    survivals,
    tokens_of,
    usual_bits,
)
from linkern.testing.problems.context import Scope
from linkern.testing.target.process import Target

__all__ = ["rounded_result", "rounding"]


class _Stage(NamedTuple):
    """Name of what a stage does, the path that shows its place, its declarations."""

    name: str
    path: str = ""
    keys: tuple[str, ...] = ()


FEATURES = _Stage("features_rounded", "", ("feature_dtype",))
SUMS = ("accumulator_dtype", "feature_dtype")
STATES = ("state_dtype", "normalizer_dtype")
# Stages that a declaration allows, or whose place is measured.
STAGES = {
    "sums": _Stage("computed_in_narrower_dtype", "", SUMS),
    "operands": _Stage("operands_rounded", "value", ("operand_dtype",)),
    "written values": _Stage("written_values_rounded", "value", ("operand_dtype",)),
    "keys": FEATURES,
    "queries": FEATURES,
    "features": FEATURES,
    "state": _Stage("state_rounded", "state", STATES[:1]),
    "state and normalizer": _Stage("state_rounded", "state", STATES),
    "normalizer": _Stage("normalizer_rounded", "normalizer", STATES[1:]),
    "scores": _Stage("scores_rounded", "score", ("score_dtype",)),
    "slot weights": _Stage("slot_weights_rounded", "value", ("score_dtype",)),
    "erase weights": _Stage("erase_weights_rounded", "erase", ("score_dtype",)),
    "quotient": _Stage("coarse_reciprocal"),
    "log_decay": _Stage("decays_rounded"),
}
# Paths whose losses may be those of a stage; others are inputs of their own.
ARITHMETIC = {"value", "key", "query", "score", "sum", "state", "normalizer", "erase"}
WORDS = {"key": "keys", "query": "queries"}
# Lengths that are tried for one at which nothing is lost, and lengths of wrong maps.
LENGTHS, TRIED = (17, 24, 32, 40, 47, 48, 64, 80, 100, 128, LENGTH), 3
# No format has fewer bits: a larger error is none of rounding.
FEWEST = 6
# Errors of rounding include some that are this share of the largest.
EVEN = 0.2
# Bits of a format beyond those of numbers that it has rounded some times.
TWICE = range(3)
# Bits from the narrowest path to others that lose as much.
BESIDES = 5


def rounding(
    target: Target, scope: Scope, maps: Sequence[InfluenceMap] = ()
) -> Diagnosis | None:
    """Return the stage that keeps fewer bits than declared, and how many.

    Parameters
    ----------
    target : Target
        Loaded.
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
            stage, bits, way = _narrow_stage(paths)
            if stage:
                return _said(target, scope, stage, bits, way, paths, length)
        except (DoesNotApply, TargetRaised):
            continue
    return None


def _said(
    target: Target,
    scope: Scope,
    stage: str,
    bits: int,
    way: str,
    paths: tuple[Survival, ...],
    length: int,
) -> Diagnosis:
    def ask(path: str, pair: tuple[int, int], length: int) -> bool:
        """Return True if so many bits are lost on a path between two tokens."""
        between = survivals(target, scope, (path, (pair,)), length)
        return any(one.lost and one.bits <= bits + BESIDES for one in between)

    what = f"{way} to {bits} bits"
    name, path, keys = STAGES.get(stage, _Stage(f"{stage}_rounded"))
    path = path or stage
    lost = min((x for x in paths if x.lost), key=lambda x: (x.path != path, x.distance))
    near = any(one.path == "state" and not one.lost for one in paths)
    where, chunk = _place(ask, path, tokens_of(scope, length), near=near)
    some = "" if scope.few_shapes else _lengths(ask, lost, length)
    names = [name for name, width in SIGNIFICAND_BITS.items() if width == bits]
    formats = f" ({' or '.join(names)})" if names else ""
    every = f" every {chunk} tokens" if chunk > 1 else " at every token" * chunk
    at = f" at {some}" * bool(some)
    verb = "are" if stage.endswith("s") or " and " in stage else "is"
    wider = [name for name, width in SIGNIFICAND_BITS.items() if width - bits in TWICE]
    widths = [dict.fromkeys(keys, x) for x in wider if keys]
    widths = widths if stage == "operands" else widths[::-1]
    size = {"chunk_size": chunk} if chunk > 1 and scope.operator.causal else {}
    candidates = [one | width for one in (size, {}) for width in widths]
    return Diagnosis(
        name if scope.operator.feature_map else name.replace("features", "keys"),
        f"the {stage} {verb} {what}{formats}{every * scope.operator.causal}{at}",
        declaration=() if some else first_right(target, scope, candidates),
        stage="output",
        where=" and ".join(x for x in (where, some) if x) or "everywhere",
        by_what=what,
        factor={"kind": way, "bits": bits},
    )


def _place(
    ask: Callable[..., bool], path: str, length: int, *, near: bool
) -> tuple[str, int]:
    """Return the place of what is rounded, and of a state the tokens between two."""
    if path == "state" and ask(path, (0, 0), length):
        return "", 1
    inside = path in ("score", "erase") and near
    if path == "erase" and ask(path, (0, length - 1), length):
        return "", 0
    if path not in ("state", "normalizer") and not inside:
        return "", 0
    # What is read far from its source is another path, from an edge or a distance on.
    asked = "state" if path == "score" else path
    chunk = 1 + bisect_left(
        range(1, length - 1), True, key=lambda n: ask(asked, (0, n), length) != inside
    )
    on_edges = chunk > 1 and ask(asked, (chunk - 1, chunk), length) != inside
    if inside:
        near_by = f"sources less than {chunk} back"
        return f"pairs inside chunks of {chunk}" if on_edges else near_by, 0
    if not on_edges:
        return f"sources {chunk} back or more", chunk
    # The first edge need not come after a whole chunk. What the token at it writes may
    # be rounded at once.
    after = chunk + 1
    later = range(after + 1, length - 1)
    each = 2 + bisect_left(later, True, key=lambda n: ask(asked, (after, n), length))
    if each in (chunk, len(later) + 2):
        return f"pairs across edges of chunks of {chunk}", chunk
    edges = f"tokens {chunk}, {chunk + each}, ..."
    return f"pairs across {edges}", each


def _lengths(ask: Callable[..., bool], lost: Survival, length: int) -> str:
    """Return the lengths at which a path loses bits; empty if at all of them."""
    narrow = partial(ask, lost.path, (0, lost.distance))
    tried = sorted({n for n in (*LENGTHS, length) if n > lost.distance})
    chosen = [n for n in tried if narrow(n)]
    others = sorted({*tried} - {*chosen})
    if not others or not chosen:
        return ""
    if others[-1] < chosen[0]:
        between = range(others[-1] + 1, chosen[0])
        return f"lengths above {others[-1] + bisect_left(between, True, key=narrow)}"
    return in_words("lengths", chosen, tried)[0]


def _narrow_stage(paths: tuple[Survival, ...]) -> tuple[str, int, str]:
    """Return the stage that loses bits, their number, and how: rounded or truncated.

    The stage is empty if no bits are lost.
    """
    fewest = min((one.bits for one in paths if one.lost), default=0)
    summed = any(one.lost and one.path == "sum" for one in paths)
    # Others lose by the same rounding, further down in their significands.
    paths = tuple(
        replace(one, lost=one.lost and one.bits <= fewest + BESIDES) for one in paths
    )
    lost = {one.path for one in paths if one.lost}
    scaled = any(one.lost and one.scaled and one.path != "value" for one in paths)
    if not lost or scaled or fewest < FEWEST:
        return "", 0, ""
    stage, shown = _stage(paths, lost, fewest, summed=summed)
    entries = [one for one in paths if one.lost and one.path in shown]
    errors = [np.asarray(one.errors) for one in entries] or [np.zeros(1)]
    every = np.concatenate(errors)
    # Those of a chopped quotient are few on each path.
    if not all(_spread(one) for one in ([every] if stage == "quotient" else errors)):
        return "", 0, ""
    # Sums round more than once, on some paths more often than on others.
    typical = max if stage == "sums" else np.median
    bits = int(typical([one.bits for one in entries]))
    if every.min() < 0 < every.max():
        return stage, usual_bits(bits), "rounded"
    # A chopped number is nearer to 0, and so is the output, but for a divisor.
    chopped = every.min() < 0 or stage == "normalizer"
    return (stage, bits + 1, "truncated") if chopped else ("", 0, "")


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
        return _summed(paths, lost, near=near)
    if "value" in lost and not near and not far:
        if any(one.path == "normalizer" for one in paths):
            return "quotient", {"normalizer"}
        return "output", {"value"}
    # Products of keys and values alone, which no normalizer holds.
    products = arguments == {"key"} and "normalizer" not in lost
    if near and far and products and (hidden or "value" in lost):
        return "state", {"state"}
    if "value" in lost and arguments:
        return "operands", {"value"} | arguments
    if "value" in lost and lost - ARITHMETIC - {"log_decay"}:
        return "written values", {"value"}
    if narrowest not in ARITHMETIC:
        return narrowest, {narrowest}
    if "value" in lost:
        return "values", {"value"}
    if lost == {"erase"}:
        return "erase weights", lost
    if near and not far:
        return "scores", {"score"}
    if arguments:
        return "features" if len(arguments) > 1 else WORDS[min(arguments)], arguments
    if far:
        return "state and normalizer" if "normalizer" in lost else "state", {"state"}
    return narrowest, {narrowest}


def _summed(
    paths: tuple[Survival, ...], lost: set[str], *, near: bool
) -> tuple[str, set[str]]:
    """Return the stage that loses bits of values and of their sums.

    If all channels of a value have the same error, and those of a state next to it,
    what they are multiplied by is rounded.
    """
    alike = any(one.lost and one.scaled for one in paths if one.path == "value")
    if near and alike:
        slots = any(one.path == "slots" for one in paths)
        return "slot weights" if slots else "scores", {"value"}
    return "sums", lost


def _spread(errors: NDArray[np.float64]) -> bool:
    """Return True if errors are of both signs, or of all sizes: a factor's are not."""
    sizes = abs(errors)
    both = (errors > 0).any() and (errors < 0).any()
    return bool(both or sizes.min() < EVEN * sizes.max())


def _signs(maps: Sequence[InfluenceMap]) -> NDArray[np.float64]:
    """Return 1 for each wrong entry that is too large, and -1 if it is too small."""
    return np.concatenate(
        [np.sign(abs(one.measured) - abs(one.exact))[one.wrong] for one in maps]
    )


def _stored_as(tensor: str, scope: Scope) -> str:
    """Return the dtype in which a result is returned."""
    if tensor.startswith("gradient"):
        return scope.dtype
    if tensor.startswith("final "):
        return scope.contract.precisions(scope.dtype).accumulator
    return scope.output_dtype


def rounded_result(
    maps: Sequence[InfluenceMap], place: str, scope: Scope
) -> Diagnosis | None:
    """Return the bits of a result that is stored with fewer than it should have.

    Parameters
    ----------
    maps : sequence of InfluenceMap
        Maps of the result, with wrong entries.
    place : str
        Words for the wrong entries; empty if there are none.
    scope : Scope
        What the target claims and declares.

    Returns
    -------
    Diagnosis or None
        None unless errors are those of numbers of so many bits, or of products of them.
    """
    tensor = maps[0].tensor
    held = SIGNIFICAND_BITS[_stored_as(tensor, scope)]
    wrong = np.concatenate([one.measured[one.wrong] for one in maps])
    with np.errstate(all="ignore"):
        relative = [(one.error / abs(one.exact))[one.wrong] for one in maps]
        sizes = -np.log2(np.concatenate(relative))
    if not sizes.min() >= FEWEST:
        return None
    stored = [n for n in range(2, held) if np.array_equal(few_bits(wrong, n), wrong)]
    bits = stored[0] if stored else int(sizes.min())
    # Errors of rounding are up to half of a unit, and most are hardly smaller, even if
    # bounds hide no small ones; they are as often too large as too small.
    spread = sizes.min() < bits + 1 / 4 and 1 / 2 < np.median(sizes) - bits < 2
    signs = _signs(maps)
    # Of few entries, more of one sign by chance.
    spread &= abs(signs.mean()) < max(EVEN, 2 / np.sqrt(signs.size))
    if sizes.min() < bits or not (stored or (spread and bits < held)):
        return None
    if all(np.array_equal(few_bits(x.measured, bits), x.measured) for x in maps):
        place = "everywhere"
    name = "state" if tensor == "final state" else tensor.replace(" ", "_")
    what = f"rounded to {bits} bits"
    sentence = f"the {tensor} is {'' if stored else 'as if '}{what}"
    if place not in ("", "everywhere"):
        sentence += f" {in_place(place)}"
    return Diagnosis(
        f"{name}_rounded",
        sentence,
        stage=tensor,
        where=place,
        by_what=what,
        factor={"kind": "rounded", "bits": bits},
    )
