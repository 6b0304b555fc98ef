"""Influence maps of gradients.

The gradient of a value is the weight of the value in the row of the cotangent. The
gradient of a query, key or gate is read where one value and one cotangent are not zero:
it lies at one token, comes from one row, and depends on what one token wrote.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache

import numpy as np

from linkern.testing.checks.packed import no_packed_gradients, not_packed
from linkern.testing.checks.registry import (
    any_of,
    no_gradients,
    no_gradients_of_state,
    not_causal,
)
from linkern.testing.errors import Inapplicable
from linkern.testing.influence.gradient_places import Part, coordinates
from linkern.testing.influence.gradient_scenes import (
    Impulses,
    every_row,
    one_pair,
    one_row,
)
from linkern.testing.influence.maps import InfluenceMap
from linkern.testing.influence.readings import half_ulp
from linkern.testing.influence.stages import Stage
from linkern.testing.problems.context import Scope
from linkern.testing.problems.packing import exact_gradients
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import Input
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["GRADIENT_STAGES", "gradient_maps"]

# Ends of the names of gradients whose row is in another part.
APART = ("final state", "across sequences", "after the last sequence")
# Parts of the length that packed sequences take, by the number of calls.
SHARES = {
    1: ((0.22, 0.0, 0.14, 0.3, 0.01, 0.2),),
    2: ((0.2, 0.0, 0.25), (0.16, 0.2, 0.01)),
}


def gradient_maps(target: Target, made: Impulses) -> list[InfluenceMap]:
    """Return the maps of the gradients that a scene isolates.

    Coordinates: ``source`` the token of the gradient, ``row`` that of the cotangent;
    ``written`` that of the value, where it is not the source. The gradient of a query
    lies at its ``row``, and the ``source`` is the token of the value. Rows in a later
    part of the sequence are maps of their own: what is wrong there is the gradient
    that comes back through the final state of a part.

    Raises
    ------
    TargetRaised, TargetDied
        If the target does not answer.
    """
    problem, packing = made.problem, made.packing
    reply = target.call(
        Call(
            problem.inputs,
            cuts=made.cuts,
            wants_state=bool(made.cuts),
            cotangent=problem.cotangent,
            segments=packing.segments if packing else (),
        )
    )
    if reply.gradients is None:
        return []
    exact = exact_gradients(problem) if packing else problem.solve_gradients()
    maps = []
    for place, one in enumerate(map(problem.scope.operator.input, problem.inputs)):
        if not _isolated(made, one):
            continue
        expected, measured = exact[one.name], reply.gradients[place].astype(np.float64)
        if measured.shape != expected.output.shape:
            measured = np.full(expected.output.shape, np.nan)
        dtype = reply.gradient_dtypes[place] or problem.scope.dtype
        bound = expected.bound + half_ulp(measured, dtype)
        # Those of values are weights: ahead of a row they say that they are zero.
        unaffected = (expected.output == 0) & (one.name != "value")
        maps += [
            InfluenceMap(
                tensor,
                _of_part(problem, part),
                measured[chosen],
                expected.output[chosen],
                bound[chosen],
                bound[chosen],
                {name: x[chosen] for name, x in places.items()},
                unaffected[chosen],
            )
            for part, tensor, chosen, places in coordinates(made, one, measured.shape)
        ]
    return sorted(maps, key=_order)


def _order(one: InfluenceMap) -> int:
    """Return the rank of a map: a defect shows in the first ones most plainly.

    What is wrong on the way through a state reaches the tokens behind it, too, and what
    is wrong in a weight, or in a denominator, all that follows from it.
    """
    plain = (APART, ("gradient of value",), ("denominator",))
    ranks = (k for k, ends in enumerate(plain) if one.tensor.endswith(ends))
    return next(ranks, len(plain))


def _isolated(made: Impulses, one: Input) -> bool:
    """Return True if a scene has a gradient of an input: of one pair, or of all."""
    if made.scene == "one row":
        return True
    in_every_row = one.name in ("query", "value")
    # Other keys erase, or are in the denominator of rows after them.
    in_every_row |= one.name == "key" and one.name in made.problem.scope.linear
    return in_every_row == (made.scene == "every row")


def _of_part(problem: Problem, part: Part) -> Problem:
    """Return the problem of a part, which is the same for all maps of a scene."""
    ends = part.first, part.last
    if ends == (0, problem.length):
        return problem
    return problem.recalled(("part", *ends), lambda: problem.span(*ends))


# -- stages


@lru_cache(maxsize=16)
def _pairs(scope: Scope, seed: int, batch: int, heads: int) -> tuple[Impulses, ...]:
    """Return scenes of two lengths: one leaves a tail for every chunk, one for few.

    They are kept, so that targets of one scope share what is exact.
    """
    rng = np.random.default_rng(seed)
    operator = scope.operator
    # The oracle takes longer where tokens erase, and longest where they take two rows.
    batch = 1 if operator.erases else batch
    slow = operator.rows_per_token > 1 or operator.erase_along == "value"
    # A scale of four channels would be taken for a half.
    sizes = ((int(rng.integers(130, 160)), 6), (128, 7))
    return tuple(
        made
        for length, width in sizes[: 1 if scope.few_shapes or slow else 2]
        for made in (
            every_row(scope, (batch, heads, length, width, length), rng),
            one_pair(scope, (batch, 8 if slow else 16, length, width, 5), rng),
        )
    )


@lru_cache(maxsize=16)
def _rows(scope: Scope, seed: int) -> tuple[Impulses, ...]:
    """Return scenes of all sources: of some gates, and of more channels than a tile."""
    rng = np.random.default_rng(seed)
    length, most = int(rng.integers(130, 160)), scope.operator.largest_key_dim
    tiles = (1, 1, 33, min(136, most or 136), 140)
    if scope.operator.feature_map:
        kinds = {"normal": length, "wide": 128}
    else:
        kinds = {"open": 50, "strong": 128}
    made = [one_row(scope, (1, 8, n, 4, 5), kind, rng) for kind, n in kinds.items()]
    return (*made, one_row(scope, tiles, next(iter(kinds)), rng))


def _whole(scope: Scope, rng: np.random.Generator) -> Iterable[Impulses]:
    """Return scenes of whole sequences."""
    return _pairs(scope, int(rng.integers(2**32)), 2, 2)


def _dense(scope: Scope, rng: np.random.Generator) -> Iterable[Impulses]:
    """Return scenes of one row, to which all sources contribute."""
    return _rows(scope, int(rng.integers(2**32)))


def _cut(scope: Scope, rng: np.random.Generator) -> Iterable[Impulses]:
    """Return scenes of spans, between which gradients go through states."""
    scenes = _whole(scope, rng)
    return [x.cut(*rng.choice(np.arange(20, 110), 2, replace=False)) for x in scenes]


def _packed(scope: Scope, rng: np.random.Generator) -> Iterable[Impulses]:
    """Return scenes of packed sequences, in one call and in two."""
    most = 2 if no_gradients_of_state(scope) is None else 1
    scenes = _pairs(scope, int(rng.integers(2**32)), 1, 8)
    made = [(x, _lengths(x, n, rng)) for x in scenes for n in range(1, most + 1)]
    return [
        x.packed(rows) for x, rows in made if sum(map(sum, rows)) < x.problem.length
    ]


def _lengths(
    made: Impulses, calls: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of sequences in each call; some are left that no one has."""
    contract = made.problem.scope.contract
    unit, least = contract.length_multiple_of, contract.min_length
    length = made.problem.length * rng.uniform(0.8, 1)
    return tuple(
        tuple(max(int(share * length) // unit * unit, least) for share in shares)
        for shares in SHARES[calls]
    )


def _stage(
    name: str,
    scenes: Callable[[Scope, np.random.Generator], Iterable[Impulses]],
    *rules: Callable[[Scope], Inapplicable | None],
) -> Stage:
    """Return the stage of some scenes, left out where one of the rules says so."""

    def measure(
        target: Target, scope: Scope, rng: np.random.Generator
    ) -> list[InfluenceMap]:
        return [x for made in scenes(scope, rng) for x in gradient_maps(target, made)]

    def skipped(scope: Scope) -> str:
        inapplicable = any_of(*rules)(scope)
        return inapplicable.reason if inapplicable else ""

    return Stage(name, measure, skipped)


# In the order in which a defect is to be explained.
GRADIENT_STAGES = (
    _stage("gradients", _whole, no_gradients),
    _stage("gradients of all sources", _dense, no_gradients),
    _stage("gradients of spans", _cut, not_causal, no_gradients_of_state),
    _stage(
        "gradients of packed sequences",
        _packed,
        not_causal,
        not_packed,
        no_packed_gradients,
        no_gradients,
    ),
)
