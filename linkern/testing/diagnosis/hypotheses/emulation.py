"""Linear attention on integers with one stage rounded, the rest exact.

Where inputs are integers, sums are exact in every order, so a kernel that rounds one
stage is predicted to the last bit, whatever its order: chunk by chunk, with scores
inside a chunk and a state between chunks.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.formats import Format
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.sums import WeightedSums, quotient_of
from linkern.testing.diagnosis.hypotheses.variant import Inputs
from linkern.testing.problems.problem import Problem

__all__ = ["Stages", "emulate"]

Rounding = Callable[[Real], Real]


def _exact(x: Real) -> Real:
    return x


@dataclass(frozen=True)
class Stages:
    """The rounding of each stage; each default is none.

    Parameters
    ----------
    query, key, value : callable
        Of the features of queries and keys, and of values.
    score, weight : callable
        Of the scores as they weigh values, and as they enter the denominator.
    share : callable
        Of the scores divided by the denominator, if a kernel divides before it sums.
    memory, normalizer : callable
        Of the two parts of the state, whenever a chunk is added.
    read_memory, read_normalizer : callable
        Of copies of them, whenever they are read.
    chunk : int or None
        Tokens per chunk; None for one chunk.
    through_state : bool
        True if a chunk is added before it is read, so that it has no scores of its own.
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
    """Return the output of a kernel that rounds stages, for a problem of integers.

    It is NaN with a bound of 0 where it overflows.
    """
    assert problem.integers is not None
    contract, dtype = problem.scope.contract, problem.scope.dtype
    causal = problem.scope.operator.causal
    a, b, v = (x.astype(np.float64) for x in problem.integers)
    inputs = stages.query(a), stages.key(b), stages.value(v)
    with np.errstate(all="ignore"):
        exact = _sums(inputs, stages, causal=causal)
        absolute = abs(inputs[0]), abs(inputs[1]), abs(inputs[2])
        # Absolute values may overflow where the sums themselves do not.
        gauge = _sums(absolute, stages.unlimited(), causal=causal)
        length, keys = a.shape[-2], b.shape[-2]
        seen = np.arange(1.0, length + 1) if causal else np.full(length, 1.0 * keys)
        output = quotient_of(
            problem,
            Bounded(a, np.zeros_like(a)),
            WeightedSums(exact, gauge, np.zeros_like(exact), seen[:, None]),
            contract.quotient(a.shape[-1]),
            contract.precisions(dtype),
        )
    finite = np.isfinite(exact[..., :-1]) & np.isfinite(exact[..., -1:])
    return Bounded(
        np.where(finite, output.output, np.nan), np.where(finite, output.bound, 0.0)
    )


def _sums(inputs: Inputs, stages: Stages, *, causal: bool) -> Real:
    """Return numerators and, in the last column, denominators ``(..., T, V + 1)``."""
    a, b, v = inputs
    length, keys = a.shape[-2], b.shape[-2]
    if not causal and stages.chunk is None:
        return _read_scores(a, b, v, stages, np.ones((length, keys)))
    memory = np.zeros((*b.shape[:-2], b.shape[-1], v.shape[-1]))
    normalizer = np.zeros((*b.shape[:-2], b.shape[-1], 1))
    chunk = stages.chunk or max(keys, 1)
    parts = []
    for first in range(0, keys, chunk):
        span = (..., slice(first, first + chunk), slice(None))
        before = memory, normalizer
        transposed = np.swapaxes(b[span], -1, -2)
        memory = stages.memory(memory + transposed @ v[span])
        normalizer = stages.normalizer(normalizer + transposed.sum(-1, keepdims=True))
        if not causal:
            continue
        if stages.through_state:
            parts.append(_read_state(a[span], memory, normalizer, stages))
            continue
        mask = np.tri(transposed.shape[-1])
        inside = _read_scores(a[span], b[span], v[span], stages, mask)
        parts.append(inside + _read_state(a[span], *before, stages))
    if not causal:
        return _read_state(a, memory, normalizer, stages)
    return np.concatenate(parts, axis=-2)


def _read_state(a: Real, memory: Real, normalizer: Real, stages: Stages) -> Real:
    read = stages.read_memory(memory), stages.read_normalizer(normalizer)
    return a @ np.concatenate(read, axis=-1)


def _read_scores(a: Real, b: Real, v: Real, stages: Stages, counts: Real) -> Real:
    scores = counts * (a @ np.swapaxes(b, -1, -2))
    denominator = stages.weight(scores).sum(-1, keepdims=True)
    if stages.share is not None:
        shares = stages.share(scores / denominator) @ v
        return np.concatenate([shares, np.ones_like(denominator)], axis=-1)
    return np.concatenate([stages.score(scores) @ v, denominator], axis=-1)
