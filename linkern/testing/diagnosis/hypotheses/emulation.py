"""Linear attention on integers with one stage rounded, the rest exact.

Where inputs are integers, sums are exact in every order, so a kernel that rounds one
stage is predicted to the last bit, whatever its order: chunk by chunk, with scores
inside a chunk and a state between chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from linkern.oracle import Bounded, Evaluation, Sums, bounded_output
from linkern.testing.diagnosis.hypotheses.formats import Format
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.variant import Inputs
from linkern.testing.problems.problem import Problem

__all__ = ["Stages", "emulate"]

Rounding = Callable[[Real], Real]


def _exact(x: Real) -> Real:
    return x


@dataclass(frozen=True)
class Stages:
    """What is done to the numbers of each stage; each default is nothing.

    Parameters
    ----------
    query, key, value : callable
        To the features of queries and keys, and to values.
    score, weight : callable
        To the scores as they weigh values, and as they enter the denominator.
    share : callable
        To the scores divided by the denominator, if a kernel divides before it sums.
    memory, normalizer : callable
        To the two parts of the state, whenever a chunk is added.
    read_memory, read_normalizer : callable
        To copies of them, whenever they are read.
    chunk : int or None
        Tokens per chunk; None for one chunk, or one for each span of a problem with
        cuts.
    through_state : bool
        Whether a chunk is added before it is read, so that it has no scores of its own.
    """

    query: Rounding = _exact
    key: Rounding = _exact
    value: Rounding = _exact
    score: Rounding = _exact
    weight: Rounding = _exact
    share: Rounding | None = None
    memory: Rounding = _exact
    normalizer: Rounding = _exact
    read_memory: Rounding = _exact
    read_normalizer: Rounding = _exact
    chunk: int | None = None
    through_state: bool = False

    def unlimited(self) -> "Stages":
        """Return the same stages without overflow."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        formats: dict[str, Any] = {
            name: part.unlimited
            for name, part in parts.items()
            if isinstance(part, Format)
        }
        return replace(self, **formats)


def emulate(problem: Problem, stages: Stages) -> Bounded:
    """Return what a kernel with rounded stages makes of integers, and the bound.

    Parameters
    ----------
    problem : Problem
        With integers.
    stages : Stages
        Which stages are rounded.

    Returns
    -------
    Bounded
        Its output; NaN with a bound of 0 where it overflows.
    """
    assert problem.integers is not None
    scope = problem.scope
    a, b, v = (x.astype(np.float64) for x in problem.integers)
    given = stages.query(a), stages.key(b), stages.value(v)
    causal = scope.operator.causal
    with np.errstate(all="ignore"):
        length, keys = a.shape[-2], b.shape[-2]
        starts = (0, *problem.knobs.get("cuts", ()))
        if stages.chunk is not None:
            starts = tuple(range(0, keys, stages.chunk))
        numerator, denominator = _sums(given, stages, starts, causal=causal)
        absolute = abs(given[0]), abs(given[1]), abs(given[2])
        # Absolute values may overflow where the sums themselves do not.
        gauges = _sums(absolute, stages.unlimited(), starts, causal=causal)
        seen = np.arange(1.0, length + 1) if causal else np.full(length, 1.0 * keys)
        nothing = np.zeros(0)
        signed_sum, gauge_sum, slack_sum = (
            x.sum(-1, keepdims=True) for x in (a, abs(a), np.zeros_like(a))
        )
        sums = Evaluation(
            Sums(numerator, denominator, signed_sum, gauge_sum, slack_sum, a.shape[-1]),
            *gauges,
            np.zeros_like(numerator),
            np.zeros_like(denominator),
            seen[:, None],
            nothing,
            nothing,
            nothing,
        )
        found = bounded_output(
            sums,
            scope.contract.quotient(a.shape[-1]),
            scope.contract.precisions(scope.dtype),
            chunk_size=scope.contract.chunk_size,
        )
    finite = np.isfinite(numerator) & np.isfinite(denominator)
    return Bounded(
        np.where(finite, found.output, np.nan), np.where(finite, found.bound, 0.0)
    )


def _sums(
    given: Inputs, stages: Stages, starts: tuple[int, ...], *, causal: bool
) -> tuple[Real, Real]:
    """Return numerator and denominator, ``(..., T, V)`` and ``(..., T, 1)``."""
    a, b, v = given
    length, keys = a.shape[-2], b.shape[-2]
    if not causal and stages.chunk is None:
        return _read_scores(a, b, v, stages, np.ones((length, keys)))
    memory = np.zeros((*b.shape[:-2], b.shape[-1], v.shape[-1]))
    normalizer = np.zeros((*b.shape[:-2], b.shape[-1], 1))
    parts = []
    for first, after in zip(starts, (*starts[1:], keys), strict=True):
        span = (..., slice(first, after), slice(None))
        before = memory, normalizer
        transposed = np.swapaxes(b[span], -1, -2)
        memory = stages.memory(memory + transposed @ v[span])
        normalizer = stages.normalizer(normalizer + transposed.sum(-1, keepdims=True))
        if not causal:
            continue
        if stages.through_state:
            parts.append(_read_state(a[span], memory, normalizer, stages))
            continue
        inside = _read_scores(
            a[span], b[span], v[span], stages, np.tri(transposed.shape[-1])
        )
        carried = _read_state(a[span], *before, stages)
        parts.append((inside[0] + carried[0], inside[1] + carried[1]))
    if not causal:
        return _read_state(a, memory, normalizer, stages)
    numerators, denominators = zip(*parts, strict=True)
    return np.concatenate(numerators, axis=-2), np.concatenate(denominators, axis=-2)


def _read_state(
    a: Real, memory: Real, normalizer: Real, stages: Stages
) -> tuple[Real, Real]:
    return a @ stages.read_memory(memory), a @ stages.read_normalizer(normalizer)


def _read_scores(
    a: Real, b: Real, v: Real, stages: Stages, counts: Real
) -> tuple[Real, Real]:
    scores = counts * (a @ np.swapaxes(b, -1, -2))
    denominator = stages.weight(scores).sum(-1, keepdims=True)
    if stages.share is not None:
        shares = stages.share(scores / denominator)
        return shares @ v, np.ones_like(denominator)
    return stages.score(scores) @ v, denominator
