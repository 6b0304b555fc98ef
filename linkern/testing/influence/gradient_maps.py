"""Influence maps of gradients.

The gradient of a value is the weight of the value in the row of the cotangent. The
gradient of a query, key or gate is read where one value and one cotangent are not zero:
it lies at one token, comes from one row, and depends on what one token wrote.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.checks.registry import (
    any_of,
    no_gradients,
    no_gradients_of_state,
    not_causal,
)
from linkern.testing.errors import Inapplicable, skipped
from linkern.testing.influence.gradient_places import (
    ACROSS,
    INSIDE,
    THROUGH,
    Part,
    coordinates,
)
from linkern.testing.influence.gradient_scenes import (
    Impulses,
    every_row,
    one_pair,
    one_row,
)
from linkern.testing.influence.maps import InfluenceMap, Real
from linkern.testing.influence.readings import half_ulp
from linkern.testing.influence.stages import Stage
from linkern.testing.problems.context import Scope
from linkern.testing.problems.packing import exact_gradients
from linkern.testing.problems.problem import Problem
from linkern.testing.spec.operators import Input
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["GRADIENT_STAGES", "gradient_maps"]

# Names of the gradient of an input, by where its row is.
TENSORS = {
    INSIDE: "gradient of {}",
    THROUGH: "gradient through the final state",
    ACROSS: "gradient of {} across sequences",
}
# The tensors of pairs that are not in one part.
APART = ("final state", "across sequences")

# Packed sequences of a scene, in all its calls.
SEQUENCES = 6


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
    for place, (name, x) in enumerate(problem.inputs.items()):
        one = problem.scope.operator.input(name)
        measured = np.full(x.shape, np.nan)
        if reply.gradients[place].shape == x.shape:
            measured = reply.gradients[place].astype(np.float64)
        dtype = reply.gradient_dtypes[place] or problem.scope.dtype
        if _isolated(made, one):
            rounding = half_ulp(measured, dtype)
            maps += _of_input(made, one, measured, rounding, exact[name])
    # What is wrong on the way through a state reaches the tokens behind it, too.
    return sorted(maps, key=lambda x: not x.tensor.endswith(APART))


def _isolated(made: Impulses, one: Input) -> bool:
    """Return True if a scene has a gradient of an input: of one pair, or of all."""
    if made.scene == "one row":
        return True
    in_every_row = one.name in ("query", "value")
    # Other keys erase, or are in the denominator of rows after them.
    in_every_row |= one.name == "key" and one.name in made.problem.scope.linear
    return in_every_row == (made.scene == "every row")


def _of_input(
    made: Impulses,
    one: Input,
    measured: Real,
    rounding: Real,
    exact: Bounded,
) -> list[InfluenceMap]:
    """Return the maps of the gradient of one input, one for each part of a sequence."""
    bound = exact.bound + rounding
    # The gradients of values are weights: those ahead of a row say that they are zero.
    unaffected = (exact.output == 0) & (one.name != "value")
    maps = []
    for part, relation, chosen, places in coordinates(made, one, measured.shape):
        maps.append(
            InfluenceMap(
                TENSORS[relation].format(one.name),
                _problem_of(made.problem, part),
                measured[chosen],
                exact.output[chosen],
                bound[chosen],
                bound[chosen],
                {name: x[chosen] for name, x in places.items()},
                unaffected[chosen],
            )
        )
    return maps


def _problem_of(problem: Problem, part: Part) -> Problem:
    """Return the problem of a part, which is the same for all maps of a scene."""
    if (part.first, part.last) == (0, problem.length):
        return problem
    ends = part.first, part.last
    return problem.recalled(("part", *ends), lambda: problem.span(*ends))


# -- stages


@lru_cache(maxsize=16)
def _scenes(
    scope: Scope, seed: int, *, batch: int = 2, heads: int = 2
) -> tuple[Impulses, ...]:
    """Return scenes of two lengths: one leaves a tail for every chunk, one for few.

    They are kept, so that targets of one scope share what is exact.
    """
    rng = np.random.default_rng(seed)
    operator = scope.operator
    # The oracle takes longer where tokens erase, and longest where they take two rows.
    batch = 1 if operator.erases else batch
    slow = operator.rows_per_token > 1 or operator.erase_along == "value"
    # A scale of four channels would be taken for a half.
    sizes = ((int(rng.integers(130, 160)), 6), (128, 4))
    return tuple(
        made
        for length, width in sizes[: 1 if scope.few_shapes or slow else 2]
        for made in (
            every_row(scope, (batch, heads, length, width, length), rng),
            one_pair(scope, (batch, 8 if slow else 16, length, width, 5), rng),
        )
    )


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**32))


def _whole(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    """Measure the gradients of whole sequences."""
    return [
        x for made in _scenes(scope, _seed(rng)) for x in gradient_maps(target, made)
    ]


def _dense(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    """Measure the gradients of one row, to which all sources contribute."""
    return [
        x
        for made in _all_sources(scope, _seed(rng))
        for x in gradient_maps(target, made)
    ]


@lru_cache(maxsize=16)
def _all_sources(scope: Scope, seed: int) -> tuple[Impulses, ...]:
    """Return scenes of all sources: of some gates, and of more channels than a tile."""
    rng = np.random.default_rng(seed)
    length, most = int(rng.integers(130, 160)), scope.operator.largest_key_dim
    if scope.operator.feature_map:
        kinds = {"normal": (1, 8, length, 4, 5), "wide": (1, 8, 128, 4, 5)}
    else:
        kinds = {"open": (1, 8, 50, 4, 5), "strong": (1, 8, 128, 4, 5)}
    tiles = (1, 1, 33, min(136, most or 136), 140)
    usual = next(iter(kinds))
    return tuple(
        one_row(scope, sizes, kind, rng)
        for kind, sizes in (*kinds.items(), (usual, tiles))
    )


def _of_spans(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    """Measure the gradients that go through the states between spans."""
    maps = []
    for made in _scenes(scope, _seed(rng)):
        cuts = sorted(rng.choice(np.arange(20, 110), 2, replace=False).tolist())
        maps += gradient_maps(target, made.cut(*cuts))
    return maps


def _packed(
    target: Target, scope: Scope, rng: np.random.Generator
) -> list[InfluenceMap]:
    """Measure the gradients of packed sequences, in one call and in two."""
    maps = []
    for made in _scenes(scope, _seed(rng), batch=1, heads=8):
        for calls in (1, 2):
            if calls == 1 or no_gradients_of_state(scope) is None:
                maps += gradient_maps(target, made.packed(_lengths(made, calls, rng)))
    return maps


def _lengths(
    made: Impulses, calls: int, rng: np.random.Generator
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of sequences in each call; some are left that no one has.

    The second sequence has none in the first call.
    """
    contract, length = made.problem.scope.contract, made.problem.length
    unit, least = contract.length_multiple_of, contract.min_length
    count = SEQUENCES // calls
    shares = rng.uniform(0.7, 1.3, (calls, count)) / (count * calls)
    lengths = np.maximum((shares * length).astype(int) // unit * unit, least)
    lengths[0, 1] = least
    while lengths.sum() > length - unit:
        lengths[np.unravel_index(lengths.argmax(), lengths.shape)] -= unit
    return tuple(map(tuple, lengths.tolist()))


def _no_packed_gradients(scope: Scope) -> Inapplicable | None:
    """Require packed sequences in calls that return gradients."""
    interface = scope.interface
    takes = interface.cu_seqlens is not None and "b" in scope.contract.layout
    if not takes or scope.contract.interface == "step":
        return skipped("the target takes no packed sequences", "take `cu_seqlens`")
    if interface.differentiable and not interface.vjp_takes_packed:
        return skipped("its `vjp` takes no packed sequences", "take `cu_seqlens`")
    return no_gradients(scope)


def _unless(*rules: Callable[[Scope], Inapplicable | None]) -> Callable[[Scope], str]:
    """Return the reason for which one of the rules leaves out a scope."""

    def skipped(scope: Scope) -> str:
        inapplicable = any_of(*rules)(scope)
        return "" if inapplicable is None else inapplicable.reason

    return skipped


# In the order in which a defect is to be explained.
GRADIENT_STAGES = (
    Stage("gradients", _whole, _unless(no_gradients)),
    Stage("gradients of all sources", _dense, _unless(no_gradients)),
    Stage("gradients of spans", _of_spans, _unless(not_causal, no_gradients_of_state)),
    Stage(
        "gradients of packed sequences",
        _packed,
        _unless(not_causal, _no_packed_gradients),
    ),
)
