"""Linear attention with parts exchanged: what a kernel with a known defect computes.

The reference's recurrence says what is right; here the same sums are written densely,
one weight for each pair of a query and a key, because that is where defects are easy to
state: a lost key is a zero, a key counted twice is a two. How far a kernel with that
defect may be from its own exact output is the proved bound of `linkern.oracle`, over
the same weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded, FeatureMap, Precisions, Quotient, gamma
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation
from linkern.testing.diagnosis.hypotheses.pairs import Pairs, Real, Weights, seen
from linkern.testing.diagnosis.hypotheses.sums import (
    WeightedSums,
    quotient_of,
    scored,
    weighted_sums,
)
from linkern.testing.problems.problem import Problem

__all__ = ["Inputs", "Variant", "attend", "features", "in_parts", "resumed", "variant"]

Inputs = tuple[Real, Real, Real]


@dataclass(frozen=True)
class Variant:
    """Linear attention, part by part; each default is the operator's own.

    Parameters
    ----------
    arrange : callable or None
        Query, key and value in float64, to those that the sums are formed of.
    query_map, key_map : FeatureMap or None
        Feature maps; None for those of the contract.
    numerator, denominator : callable
        How often each pair counts; None in the denominator: as in the numerator.
    divisor_row : callable or None
        The rows whose denominators divide rows ``0..T-1``.
    quotient : callable or None
        The contract's quotient and the key dimension, to that of the variant.
    finish : callable or None
        Changes the output.
    roundings : float
        Roundings for each key that is seen, besides those of a plain sum.
    """

    arrange: Callable[[Inputs], Inputs] | None = None
    query_map: FeatureMap | None = None
    key_map: FeatureMap | None = None
    numerator: Weights = seen
    denominator: Weights | None = None
    divisor_row: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
    quotient: Callable[[Quotient, int], Quotient] | None = None
    finish: Callable[[Bounded], Bounded] | None = None
    roundings: float = 0.0


def variant(name: str, phrase: str, **parts: Any) -> Deviation:
    """Return the deviation that exchanges `parts` of a `Variant`.

    Examples
    --------
    >>> variant("sums", "sums", quotient=lambda q, k: replace(q, normalize=False)).name
    'sums'
    """
    exchanged = Variant(**parts)
    return Deviation(name, phrase, lambda problem: attend(problem, exchanged))


def in_parts(
    evidence: Evidence, name: str, phrase: str, weights: Weights
) -> Iterator[Deviation]:
    """Yield a defect of both sums, of the numerator, and of the denominator alone."""
    yield variant(name, phrase, numerator=weights)
    if evidence.scope.contract.normalize:
        part = f"{phrase} from the numerator"
        yield variant(f"{name}_numerator", part, numerator=weights, denominator=seen)
        part = f"{phrase} from the denominator"
        yield variant(f"{name}_denominator", part, denominator=weights)


def attend(problem: Problem, exchanged: Variant) -> Bounded:
    """Return the output of a variant with its any-order bound.

    Where something infinite is summed, the output is NaN with a bound of 0: it cannot
    be finite.
    """
    query, key, value = _float64(problem)
    if exchanged.arrange is not None:
        query, key, value = exchanged.arrange((query, key, value))
    key_dim = query.shape[-1]
    pairs = Pairs(
        np.arange(query.shape[-2])[:, None],
        np.arange(key.shape[-2])[None, :],
        problem.scope.operator.causal,
        problem.knobs.get("cuts", ()),
    )
    quotient = problem.scope.contract.quotient(key_dim)
    if exchanged.quotient is not None:
        quotient = exchanged.quotient(quotient, key_dim)
    rows = None
    if exchanged.divisor_row is not None:
        rows = exchanged.divisor_row(pairs.query[:, 0])
    with np.errstate(all="ignore"):
        all_finite = bool(np.isfinite(value).all())
        finite = value if all_finite else np.where(np.isfinite(value), value, 0.0)
        a, sums = _summed(problem, exchanged, (query, key, finite), pairs)
        precisions = _precisions(problem)
        output = quotient_of(problem, a, sums, quotient, precisions, rows)
    if quotient.normalize and quotient.eps == 0:
        # Nothing over nothing.
        empty = (sums.gauge + sums.slack)[..., -1:] == 0
        if rows is not None:
            empty = empty[..., rows, :]
        if empty.any():
            output = _not_finite(output, np.broadcast_to(empty, output.output.shape))
    if not all_finite:
        output = _touched(output, exchanged.numerator(pairs), ~np.isfinite(value))
    return output if exchanged.finish is None else exchanged.finish(output)


def _float64(problem: Problem) -> Inputs:
    inputs = problem.query, problem.key, problem.value
    query, key, value = (x.astype(np.float64) for x in inputs)
    return query, key, value


def _summed(
    problem: Problem, exchanged: Variant, inputs: Inputs, pairs: Pairs
) -> tuple[Bounded, WeightedSums]:
    """Return query features and sums; what most variants share is found once."""
    query, key, value = inputs
    scope = problem.scope
    replaced = exchanged.arrange, exchanged.query_map, exchanged.key_map
    shared = all(part is None for part in replaced)
    find = problem.recalled if shared else (lambda _, compute: compute())

    def both_features() -> tuple[Bounded, Bounded]:
        return (
            features(problem, exchanged.query_map or scope.query_map, query),
            features(problem, exchanged.key_map or scope.key_map, key),
        )

    def weighed() -> WeightedSums:
        counts = np.asarray(exchanged.numerator(pairs), dtype=np.float64)
        weighs = counts
        if exchanged.denominator is not None:
            weighs = np.asarray(exchanged.denominator(pairs), dtype=np.float64)
        return weighted_sums(scores, value, counts, weighs)

    a, b = find("features of variants", both_features)
    scores = find("scores of variants", lambda: scored(a, b))
    as_seen = exchanged.numerator is seen and exchanged.denominator is None
    sums = find("sums of variants", weighed) if as_seen else weighed()
    if exchanged.roundings:
        sums = replace(sums, keys=sums.keys * (1 + exchanged.roundings))
    return a, sums


def resumed(
    problem: Problem, state: tuple[Bounded, ...] | None
) -> tuple[Bounded, tuple[Bounded, ...]]:
    """Return the output of linear attention from a state on, and the state after it.

    A state is a memory ``(B, H, K, V)`` and a normalizer ``(B, H, K)``.
    """
    scope, precisions = problem.scope, _precisions(problem)
    query, key, value = _float64(problem)
    a = features(problem, scope.query_map, query)
    b = features(problem, scope.key_map, key)
    rows, keys = query.shape[-2], key.shape[-2]
    mask = np.tri(rows) if scope.operator.causal else np.ones((rows, keys))
    sums = weighted_sums(scored(a, b), value, mask, mask)
    columns = np.concatenate([value, np.ones((*value.shape[:-1], 1))], axis=-1)
    transposed, spread = (np.swapaxes(x, -1, -2) for x in (b.output, b.bound))
    written, error = transposed @ columns, spread @ abs(columns)
    size = abs(transposed) @ abs(columns)
    if state is not None:
        memory, bound = (
            np.concatenate([x, z[..., None]], axis=-1)
            for x, z in zip(*((x.output, x.bound) for x in state), strict=True)
        )
        reach = abs(a.output)
        sums = WeightedSums(
            sums.exact + a.output @ memory,
            sums.gauge + reach @ abs(memory),
            sums.slack + reach @ bound + a.bound @ (abs(memory) + bound),
            sums.keys + 1,
        )
        written, error, size = written + memory, error + bound, size + abs(memory)
    if problem.integers is None:
        error = error + gamma(np.full(1, keys + 1.0), precisions.unit) * size
    quotient = scope.contract.quotient(query.shape[-1])
    return quotient_of(problem, a, sums, quotient, precisions), (
        Bounded(written[..., :-1], error[..., :-1]),
        Bounded(written[..., -1], error[..., -1]),
    )


def _touched(
    output: Bounded, counts: NDArray[Any], infinite: NDArray[np.bool_]
) -> Bounded:
    """Return an output into which some values that are not finite go.

    Rows that are not to see them may be NaN, where a mask multiplies by zero, or not.
    """
    touched = (counts != 0).astype(np.float64) @ infinite > 0
    elsewhere = np.where(infinite.any(-2, keepdims=True), np.inf, output.bound)
    return _not_finite(Bounded(output.output, elsewhere), touched)


def _precisions(problem: Problem) -> Precisions:
    """Return the arithmetic that a kernel may use; integers fit its narrowest stage."""
    scope = problem.scope
    declared = scope.contract.precisions(scope.dtype)
    if problem.integers is None:
        return declared
    return Precisions(declared.accumulator, truncates=declared.truncates)


def _not_finite(output: Bounded, where: NDArray[np.bool_]) -> Bounded:
    """Return an output that is known to be no number in some places."""
    return Bounded(
        np.where(where, np.nan, output.output), np.where(where, 0.0, output.bound)
    )


def features(problem: Problem, feature_map: FeatureMap, x: Real) -> Bounded:
    """Return features with the error that a correct evaluation may make."""
    scope = problem.scope
    u = scope.contract.precisions(scope.dtype).unit
    exact, error = feature_map.value(x), feature_map.error(x, u)
    if scope.contract.feature_error == "relative":
        error = np.minimum(error, 4 * u * abs(exact))
    if problem.integers is not None and feature_map in (scope.query_map, scope.key_map):
        error = np.zeros_like(error)
    return Bounded(exact, error)
