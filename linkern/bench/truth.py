"""What the answers have to be: float64, textbook, at some rows.

Nothing here is shared with what is timed. The gradients need no equations of their own:
each is a causal sum of the same kind, forwards or backwards in time.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.bench.tasks import Inputs, Kind, Task

__all__ = ["ALLOWED", "Judge", "answers", "judged_rows", "largest_error"]

Real = NDArray[Any]

# Of the largest number in the answer. What correct float32 kernels do at these lengths
# is a hundredth of it; a mask that is off by one, or a lost chunk, is a thousand times.
ALLOWED = {"float32": 1e-4, "float64": 1e-10}


def judged_rows(length: int, count: int = 48) -> list[int]:
    """Return tokens to look at: both ends, edges of chunks, and some between.

    Examples
    --------
    >>> judged_rows(6)
    [0, 1, 2, 3, 4, 5]
    """
    edges = [0, 1, *(x + i for x in (64, 128) for i in (-1, 0, 1)), length - 2]
    between = np.rint(np.linspace(0, length - 1, count)).astype(int).tolist()
    return sorted({i for i in (*edges, *between) if 0 <= i < length})


def answers(inputs: Inputs, kind: Kind, meaning: str, rows: list[int]) -> list[Real]:
    """Return the rows of everything that a contestant returns.

    Parameters
    ----------
    inputs : Inputs
        What it was given.
    kind : {"causal", "full", "gradient", "decode"}
        What is asked for. A gradient returns the output and the gradients of query, key
        and value.
    meaning : {"attention", "sums", "exponential", "softmax"}
        Linear attention with ``elu(x) + 1``; its numerator alone; linear attention with
        ``exp(x)``; softmax attention.
    rows : list of int
        Which tokens.

    Returns
    -------
    list of array (B, H, rows, dim)
        float64.
    """
    parts = (inputs.query, inputs.key, inputs.value)
    given = [*parts, inputs.cotangent] if kind == "gradient" else parts
    batch, heads = inputs.query.shape[:2]
    found = [
        _of_one_head([x[b, h].astype("float64") for x in given], kind, meaning, rows)
        for b in range(batch)
        for h in range(heads)
    ]
    return [
        np.stack(same).reshape(batch, heads, *same[0].shape)
        for same in zip(*found, strict=True)
    ]


def largest_error(found: list[Real], due: list[Real]) -> float:
    """Return the largest difference over the largest number of its array.

    Infinite where anything is missing, has another shape or is not finite.
    """
    if [x.shape for x in found] != [x.shape for x in due]:
        return float("inf")
    errors = [np.max(abs(x - y)) / np.max(abs(y)) for x, y in zip(found, due)]  # noqa: B905 -- same lengths, above
    return float("inf") if not np.isfinite(errors).all() else float(max(errors))


class Judge:
    """A task at a length, and the answers to it, made when they are first needed.

    Parameters
    ----------
    task : Task
        What was asked for.
    length, seed : int
        Tokens; of the inputs.
    draw : callable
        From these three to the inputs.
    asked : callable
        From all answers to those that contestants return.

    Attributes
    ----------
    rows : list of int
        Which tokens are looked at.
    """

    def __init__(
        self,
        task: Task,
        length: int,
        seed: int,
        *,
        draw: Callable[[Task, int, int], Inputs] = Inputs.drawn,
        asked: Callable[[list[Real]], list[Real]] = list,
    ) -> None:
        self.task, self.length, self.seed = task, length, seed
        self.rows = judged_rows(length)
        self._draw, self._asked = draw, asked
        self._inputs: Inputs | None = None
        self._answers: dict[str, list[Real]] = {}

    def error(self, found: list[Real], meaning: str) -> float | None:
        """Return how far the rows are off; None if there is nothing to compare."""
        if meaning == "limit":
            return None
        if meaning not in self._answers:
            if self._inputs is None:
                self._inputs = self._draw(self.task, self.length, self.seed)
            due = answers(self._inputs, self.task.kind, meaning, self.rows)
            self._answers[meaning] = self._asked(due)
        return largest_error(found, self._answers[meaning])


def _of_one_head(
    given: list[Real], kind: Kind, meaning: str, rows: list[int]
) -> list[Real]:
    if meaning == "softmax":
        return _softmax(given, rows, causal=kind != "full")
    query, key, value = given[:3]
    mapped = np.exp if meaning == "exponential" else _elu_plus_one
    features = [mapped(query), mapped(key)]
    with_ones = np.concatenate((value, np.ones((len(value), 1))), axis=1)
    if kind == "full":
        sums = features[0][rows] @ (features[1].T @ with_ones)
        return [sums[:, :-1] / sums[:, -1:]]
    sums = _causal_sums(features[0], features[1], with_ones)
    if meaning == "sums":
        return [sums[rows, :-1]]
    output = sums[:, :-1] / sums[:, -1:]
    if kind != "gradient":
        return [output[rows]]
    gradients = _gradients(given, features, output, sums[:, -1:])
    return [x[rows] for x in (output, *gradients)]


def _gradients(
    given: list[Real], features: list[Real], output: Real, total: Real
) -> tuple[Real, Real, Real]:
    """Return the gradients of query, key and value.

    Weight ``w_ij = phi(q_i) . phi(k_j)`` has the gradient ``a_i . v_j + b_i``, with
    ``a = g / d`` and ``b = -(g . o) / d`` for cotangent g, output o, denominator d.
    """
    query, key, value, cotangent = given
    a = cotangent / total
    b = -np.sum(a * output, axis=1, keepdims=True)
    rows = np.concatenate((a, b), axis=1)
    columns = np.concatenate((value, np.ones_like(b)), axis=1)
    of_query = _causal_sums(rows, columns, features[1])
    of_key = _causal_sums(columns[::-1], rows[::-1], features[0][::-1])[::-1]
    of_value = _causal_sums(features[1][::-1], features[0][::-1], a[::-1])[::-1]
    slopes = (np.exp(np.minimum(x, 0)) for x in (query, key))
    return of_query * next(slopes), of_key * next(slopes), of_value


def _causal_sums(query: Real, key: Real, value: Real, chunk: int = 256) -> Real:
    """Return ``sum over j <= i of (query_i . key_j) value_j``."""
    memory = np.zeros((key.shape[1], value.shape[1]))
    sums = np.empty((len(query), value.shape[1]))
    for start in range(0, len(query), chunk):
        q, k, v = (x[start : start + chunk] for x in (query, key, value))
        sums[start : start + chunk] = np.tril(q @ k.T) @ v + q @ memory
        memory += k.T @ v
    return sums


def _softmax(given: list[Real], rows: list[int], *, causal: bool) -> list[Real]:
    query, key, value = given
    scores = query[rows] @ key.T / np.sqrt(query.shape[1])
    if causal:
        late = np.arange(len(key)) > np.asarray(rows)[:, None]
        scores = np.where(late, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return [weights / weights.sum(axis=1, keepdims=True) @ value]


def _elu_plus_one(x: Real) -> Real:
    features: Real = np.maximum(x + 1, np.exp(np.minimum(x, 0)))
    return features
