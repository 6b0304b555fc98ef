"""Linear attention with parts exchanged: what a kernel with a known defect computes.

The reference's recurrence says what is right; here the same sums are written densely,
one weight for each pair of a query and a key, because that is where defects are easy to
state: a lost key is a zero, a key counted twice is a two. How far a kernel with that
defect may be from its own exact output is the proved bound of `linkern.oracle`, over
the same weights.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import (
    Bounded,
    Evaluation,
    FeatureMap,
    Precisions,
    Quotient,
    bounded_output,
    gamma,
)
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation
from linkern.testing.diagnosis.hypotheses.pairs import Pairs, Real, Weights, seen
from linkern.testing.diagnosis.hypotheses.sums import (
    divided_by_rows,
    scored,
    weighted_sums,
)
from linkern.testing.problems.problem import Problem

__all__ = [
    "Inputs",
    "Variant",
    "attend",
    "features",
    "in_parts",
    "resumed",
    "variant",
]

Inputs = tuple[Real, Real, Real]
Found = TypeVar("Found")


def _as_given(inputs: Inputs) -> Inputs:
    return inputs


def _same_quotient(quotient: Quotient, key_dim: int) -> Quotient:
    del key_dim
    return quotient


def _finished(output: Bounded) -> Bounded:
    return output


@dataclass(frozen=True)
class Variant:
    """Linear attention, part by part; each default is the operator's own.

    Parameters
    ----------
    arrange : callable
        Query, key and value in float64, to those that the sums are formed of.
    before : callable or None
        Keys and values in front of the sequence, for a problem.
    query_map, key_map : FeatureMap or None
        Feature maps; None for those of the contract.
    numerator, denominator : callable
        How often each pair counts; None in the denominator: as in the numerator.
    divisor_row : callable or None
        The rows whose denominators divide rows ``0..T-1``.
    quotient : callable
        The contract's quotient and the key dimension, to that of the variant.
    finish : callable
        What becomes of the output.
    roundings : float
        Roundings for each key that is seen, besides those of a plain sum.
    """

    arrange: Callable[[Inputs], Inputs] = _as_given
    before: Callable[[Problem], tuple[Real, Real]] | None = None
    query_map: FeatureMap | None = None
    key_map: FeatureMap | None = None
    numerator: Weights = seen
    denominator: Weights | None = None
    divisor_row: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
    quotient: Callable[[Quotient, int], Quotient] = _same_quotient
    finish: Callable[[Bounded], Bounded] = _finished
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
    """Return what a variant makes of a problem, and how far rounding can take it.

    Parameters
    ----------
    problem : Problem
        The inputs.
    exchanged : Variant
        Which parts differ.

    Returns
    -------
    Bounded
        Exact output and any-order bound. Where something infinite is summed, the output
        is NaN with a bound of 0: it cannot be finite.
    """
    scope, contract = problem.scope, problem.scope.contract
    given = problem.query, problem.key, problem.value
    query, key, value = exchanged.arrange(_float64(*given))
    in_front = 0
    if exchanged.before is not None:
        front = exchanged.before(problem)
        in_front = front[0].shape[-2]
        key = np.concatenate([front[0], key], axis=-2)
        value = np.concatenate([front[1], value], axis=-2)
    pairs = Pairs(
        np.arange(query.shape[-2])[:, None],
        np.arange(key.shape[-2])[None, :] - in_front,
        scope.operator.causal,
        problem.knobs.get("cuts", ()),
    )
    key_dim = query.shape[-1]
    quotient = exchanged.quotient(contract.quotient(key_dim), key_dim)
    with np.errstate(all="ignore"):
        all_finite = bool(np.isfinite(value).all())
        finite = value if all_finite else np.where(np.isfinite(value), value, 0.0)
        sums = _summed(problem, exchanged, (query, key, finite), pairs)
        output = bounded_output(
            sums, quotient, _precisions(problem), chunk_size=contract.chunk_size
        )
    if quotient.normalize and quotient.eps == 0:
        # Nothing over nothing.
        empty = sums.denominator_gauge + sums.denominator_slack == 0
        if empty.any():
            output = _not_finite(output, np.broadcast_to(empty, output.output.shape))
    if not all_finite:
        output = _touched(output, exchanged.numerator(pairs), ~np.isfinite(value))
    return exchanged.finish(output)


def _float64(*arrays: NDArray[Any]) -> Inputs:
    query, key, value = (x.astype(np.float64) for x in arrays)
    return query, key, value


def _summed(
    problem: Problem, exchanged: Variant, given: Inputs, pairs: Pairs
) -> Evaluation:
    """Return the sums of a variant; what most variants share is found once."""
    query, key, value = given
    known = exchanged.arrange is _as_given and exchanged.before is None
    known = known and exchanged.query_map is exchanged.key_map is None
    recalled = problem.recalled if known else _found

    def both_features() -> tuple[Bounded, Bounded]:
        scope = problem.scope
        return (
            features(problem, exchanged.query_map or scope.query_map, query),
            features(problem, exchanged.key_map or scope.key_map, key),
        )

    def weighed() -> Evaluation:
        counts = np.asarray(exchanged.numerator(pairs), dtype=np.float64)
        weighs = counts
        if exchanged.denominator is not None:
            weighs = np.asarray(exchanged.denominator(pairs), dtype=np.float64)
        return weighted_sums(scores, value, counts, weighs)

    a, b = recalled("features of variants", both_features)
    scores = recalled("scores of variants", lambda: scored(a, b))
    as_seen = exchanged.numerator is seen and exchanged.denominator is None
    sums = recalled("sums of variants", weighed) if as_seen else weighed()
    if exchanged.divisor_row is not None:
        sums = divided_by_rows(sums, exchanged.divisor_row(pairs.query[:, 0]))
    if exchanged.roundings == 0:
        return sums
    return replace(sums, keys_seen=sums.keys_seen * (1 + exchanged.roundings))


def _found(what: str, find: Callable[[], Found]) -> Found:
    """Return what `find` finds, for this variant alone."""
    del what
    return find()


def resumed(
    problem: Problem, state: tuple[Bounded, ...] | None
) -> tuple[Bounded, tuple[Bounded, ...]]:
    """Return the output of linear attention from a state on, and the state after it.

    Parameters
    ----------
    problem : Problem
        The tokens after the state.
    state : tuple of Bounded or None
        Memory ``(B, H, K, V)`` and normalizer ``(B, H, K)``; None for no tokens.
    """
    scope, dims = problem.scope, problem.value.shape[-1]
    query, key, value = _float64(problem.query, problem.key, problem.value)
    a = features(problem, scope.query_map, query)
    b = features(problem, scope.key_map, key)
    columns = np.concatenate([value, np.ones((*value.shape[:-1], 1))], axis=-1)
    mask = np.tri(query.shape[-2])
    sums = weighted_sums(scored(a, b), columns, mask, mask)
    total = np.zeros((*key.shape[:-2], key.shape[-1], dims + 1))
    before = Bounded(total, total)
    if state is not None:
        memory, normalizer = state
        before = Bounded(
            np.concatenate([memory.output, normalizer.output[..., None]], axis=-1),
            np.concatenate([memory.bound, normalizer.bound[..., None]], axis=-1),
        )
    size = abs(before.output)
    read = a.output @ before.output
    gauge = abs(a.output) @ size
    slack = abs(a.output) @ before.bound + a.bound @ (size + before.bound)
    exact, of_sizes, off = (
        own + more
        for own, more in (
            (sums.sums.numerator, read),
            (sums.numerator_gauge, gauge),
            (sums.numerator_slack, slack),
        )
    )
    joined = replace(
        sums,
        sums=replace(
            sums.sums, numerator=exact[..., :dims], denominator=exact[..., dims:]
        ),
        numerator_gauge=of_sizes[..., :dims],
        denominator_gauge=of_sizes[..., dims:],
        numerator_slack=off[..., :dims],
        denominator_slack=off[..., dims:],
        keys_seen=sums.keys_seen + 1,
    )
    contract, precisions = scope.contract, _precisions(problem)
    output = bounded_output(
        joined,
        contract.quotient(query.shape[-1]),
        precisions,
        chunk_size=contract.chunk_size,
    )
    transposed, spread = (np.swapaxes(x, -1, -2) for x in (b.output, b.bound))
    written = before.output + transposed @ columns
    error = before.bound + spread @ abs(columns)
    if problem.integers is None:
        roundings = gamma(np.full(1, key.shape[-2] + 1.0), precisions.unit)
        error = error + roundings * (size + abs(transposed) @ abs(columns))
    parts = (
        (written[..., :dims], error[..., :dims]),
        (
            written[..., dims],
            error[..., dims],
        ),
    )
    return output, tuple(Bounded(*part) for part in parts)


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
