"""Stages in a narrower precision than declared."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.hypotheses.emulation import Stages, emulate
from linkern.testing.diagnosis.hypotheses.epilogue import remaining_formats
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.formats import (
    Format,
    known_formats,
    rounded,
)
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    hypothesis,
    linear,
    normalized,
)
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.variant import Inputs, variant
from linkern.testing.problems.problem import Problem

__all__ = ["formats"]


def relaxed(problem: Problem, **declared: Any) -> Bounded:
    """Return the output of the operator under a contract that declares more."""
    contract = replace(problem.scope.contract, **declared)
    scope = replace(problem.scope, contract=contract)
    return replace(problem, scope=scope).solve()


def staged(
    name: str, phrase: str, stages: Stages, to: Format, **declared: Any
) -> Deviation:
    """Return a deviation that is emulated on integers, and bounded on reals.

    What is declared is what it does if the format is a dtype and rounds to nearest.
    """

    def predict(problem: Problem) -> Bounded:
        if problem.integers is None:
            return relaxed(problem, **declared)
        return emulate(problem, stages)

    declaration: tuple[str, ...] = ()
    if to.name and not to.truncates and stages.share is None:
        # Of two dtypes with as many bits, the bound takes either.
        dtypes = {to.bound_dtype: to.name}
        declaration = tuple(f"{k}={dtypes.get(v, v)}" for k, v in declared.items())
    return Deviation(
        name, phrase, predict, allow_unknown="on reals", declaration=declaration
    )


def formats(evidence: Evidence) -> list[Format]:
    """Return the formats that a stage could be rounded to and should not be."""
    scope = evidence.scope
    return known_formats(scope.contract.precisions(scope.dtype).accumulator)


@hypothesis("outputs", 210, linear)
def inputs(evidence: Evidence) -> Iterator[Deviation]:
    """Yield values, features and operands that are rounded before they are used."""
    for to in formats(evidence):

        def arrange(given: Inputs, to: Format = to) -> Inputs:
            return given[0], given[1], to(given[2])

        yield variant("values_rounded", f"values {to.phrase}", arrange=arrange)
        both: dict[str, Any] = {"query": to, "key": to}
        for name, what, parts, key in (
            ("operands_rounded", "operands", both | {"value": to}, "operand"),
            ("features_rounded", "features", both, "feature"),
            ("features_rounded", "query features", {"query": to}, "feature"),
            ("features_rounded", "key features", {"key": to}, "feature"),
        ):
            declared = {f"{key}_dtype": to.bound_dtype}
            yield staged(name, f"{what} {to.phrase}", Stages(**parts), to, **declared)


@hypothesis("outputs", 230, linear)
def scores(evidence: Evidence) -> Iterator[Deviation]:
    """Yield scores that are rounded, inside a chunk or all of them."""
    for to in formats(evidence):
        operands: dict[str, Any] = {"query": to, "key": to, "value": to}
        for chunk in (None, *evidence.all_sizes):
            where = f" inside chunks of {chunk}" if chunk else ""
            declared = {"score_dtype": to.bound_dtype}
            for name, what, parts in (
                ("scores_rounded", "scores", {"score": to, "weight": to}),
                ("scores_rounded", "scores that weigh values", {"score": to}),
                (
                    "operands_rounded",
                    "operands, scores among them,",
                    operands | {"score": to, "weight": to, "read_memory": to},
                ),
                (
                    "operands_rounded",
                    "operands, scores that weigh values among them,",
                    operands | {"score": to, "read_memory": to},
                ),
            ):
                if "value" in parts:
                    declared = {"operand_dtype": to.bound_dtype}
                stages = Stages(chunk=chunk, **parts)
                yield staged(name, f"{what} {to.phrase}{where}", stages, to, **declared)
        if evidence.scope.contract.normalize:
            yield staged(
                "weights_rounded",
                f"normalised weights {to.phrase}",
                Stages(share=to),
                to,
                score_dtype=to.bound_dtype,
            )


@hypothesis("outputs", 220, linear)
def states(evidence: Evidence) -> Iterator[Deviation]:
    """Yield states that are rounded when a chunk is added, or when they are read."""
    both = ("memory", "normalizer")
    for to in formats(evidence):
        for chunk in evidence.likely_sizes:
            every = f"every {chunk} tokens" if chunk > 1 else "every token"
            for name, what, parts in (
                ("state_rounded", "state", both),
                ("memory_rounded", "memory", both[:1]),
                ("normalizer_rounded", "normalizer", both[1:]),
            ):
                declared: dict[str, Any] = {"chunk_size": chunk}
                declared |= {_DTYPES[part]: to.bound_dtype for part in parts}
                kept: dict[str, Any] = dict.fromkeys(parts, to)
                read: dict[str, Any] = {f"read_{part}": to for part in parts}
                after = f"{what} {to.phrase} after {every}"
                yield staged(name, after, Stages(chunk=chunk, **kept), to, **declared)
                if chunk == 1:
                    stages = Stages(chunk=1, through_state=True, **kept)
                    yield staged(name, f"{after}, then read", stages, to, **declared)
                yield staged(
                    name,
                    f"{what} {to.phrase} when it is read, after {every}",
                    Stages(chunk=chunk, **read),
                    to,
                    **declared,
                )


_DTYPES = {"memory": "state_dtype", "normalizer": "normalizer_dtype"}


@hypothesis("outputs", 200, normalized)
def divisions(evidence: Evidence) -> Iterator[Deviation]:
    """Yield products with a reciprocal of the denominator that has few bits."""
    numerator = variant(
        "", "", quotient=lambda q, _: replace(q, normalize=False, eps=0.0)
    )
    denominator = variant(
        "",
        "",
        arrange=lambda given: (given[0], given[1], np.ones_like(given[2][..., :1])),
        quotient=lambda q, _: replace(q, normalize=False, eps=0.0),
    )
    for to in remaining_formats(evidence):

        def predict(problem: Problem, to: Format = to) -> Bounded | None:
            n, d = numerator.predict(problem), denominator.predict(problem)
            assert n is not None
            assert d is not None
            u = problem.scope.contract.precisions(problem.scope.dtype).unit
            return _multiplied(n, _inverse(d, u, to), u)

        phrase = f"a reciprocal of the denominator {to.phrase}"
        yield Deviation("coarse_reciprocal", phrase, predict)


def _inverse(d: Bounded, u: float, to: Format) -> Bounded:
    with np.errstate(all="ignore"):
        ends = 1 / (abs(d.output) + d.bound), 1 / (abs(d.output) - d.bound)
        exact = 1 / d.output
        widest = np.maximum(ends[1] - abs(exact), abs(exact) - ends[0])
        bound = np.where(abs(d.output) > d.bound, widest + u * abs(exact), np.inf)
    return rounded(Bounded(exact, bound), to)


def _multiplied(one: Bounded, other: Bounded, u: float) -> Bounded:
    output = one.output * other.output
    errors = (
        one.bound * (abs(other.output) + other.bound) + abs(one.output) * other.bound
    )
    return Bounded(output, errors + 2 * u * (abs(output) + errors))


@hypothesis("outputs", 240, linear)
def whole(evidence: Evidence) -> Iterator[Deviation]:
    """Yield everything in a narrower dtype, if no output has more bits than that.

    What such sums are depends on their order, and on whether they overflow; that no
    output holds more bits is what gives them away.
    """
    dtype = evidence.probes[0].dtype
    if dtype not in SIGNIFICAND_BITS:
        return
    for to in reversed(known_formats(dtype)):
        if to.truncates or not all(_held(probe.got, to) for probe in evidence.probes):
            continue

        def predict(problem: Problem, name: str = to.name) -> Bounded:
            result = relaxed(problem, accumulator_dtype=name, feature_dtype=name)
            fits = _fits(problem, name)
            return Bounded(result.output, np.where(fits, result.bound, np.inf))

        yield Deviation(
            "computed_in_narrower_dtype",
            f"sums in {to.name}",
            predict,
            allow_unknown="anywhere",
            loosens=True,
            declaration=(f"accumulator_dtype={to.name}", f"feature_dtype={to.name}"),
        )


def _held(output: Real, to: Format) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.array_equal(to(output), output, equal_nan=True))


def _fits(problem: Problem, dtype: str) -> bool:
    """Return True if no sum can overflow, whatever the signs of the inputs."""
    if dtype != "float16":
        return True
    scope = problem.scope
    sizes = [
        abs(x).max(initial=0.0)
        for x in (
            scope.query_map.value(problem.query.astype(np.float64)),
            scope.key_map.value(problem.key.astype(np.float64)),
            np.maximum(abs(problem.value.astype(np.float64)), 1.0),
        )
    ]
    terms = problem.shape.keys * problem.shape.key_dim
    return bool(np.prod(sizes) * terms < np.finfo(np.float16).max)
