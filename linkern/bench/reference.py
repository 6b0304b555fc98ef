"""Reference answers: the textbook in float64, at some tokens.

It shares no code with any peer. The gradients need no equations of their own: each is a
causal sum of the same kind, forwards or backwards in time.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.bench.tasks import (
    DISTINCT_HEADS,
    GATED,
    WITH_GRADIENT,
    Inputs,
    Kind,
    Task,
    drawn,
)

__all__ = ["ALLOWED", "Judge", "answers", "expected", "judged_rows", "largest_error"]

Real = NDArray[Any]

# Allowed error, relative to the largest number of the answer. In float32 and float64
# correct kernels reach a hundredth of it at these lengths, in bfloat16 and float16 some
# roundings of inputs and outputs. A mask that is off by one, or a lost chunk, is a
# thousand times a correct error.
ALLOWED = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4, "float64": 1e-10}


# Tokens of a product. OpenBLAS takes no threads for products as small as these: on a
# busy machine they would wait for each other, thousands of times.
_CHUNK = 48


def judged_rows(length: int, count: int = 48) -> list[int]:
    """Return the tokens compared: both ends, edges of chunks, and some between.

    Examples
    --------
    >>> judged_rows(6)
    [0, 1, 2, 3, 4, 5]
    """
    edges = [0, 1, *(x + i for x in (64, 128) for i in (-1, 0, 1)), length - 2]
    between = np.rint(np.linspace(0, length - 1, count)).astype(int).tolist()
    return sorted({i for i in (*edges, *between) if 0 <= i < length})


def answers(inputs: Inputs, kind: Kind, meaning: str, rows: list[int]) -> list[Real]:
    """Return some tokens of the output in float64, ``(B, H, rows, dim)``.

    Kinds with a gradient return those of query, key and value too. The inputs of a
    stream repeat, and its rows may be of any repetition. `meaning` is
    "attention" with ``elu(x) + 1``; its numerator alone, "sums"; linear attention with
    ``exp(x)``, "exponential"; or "softmax" attention.
    """
    batch, heads = inputs.query.shape[:2]
    arrays = inputs.arrays()
    if kind in GATED:
        cotangent = arrays[3:] if kind == "delta-gradient" else ()
        arrays = (*arrays[:3], *inputs.gates(kind), *cotangent)
    by_head = [
        _of_one_head([x[b, h].astype("float64") for x in arrays], kind, meaning, rows)
        for b in range(batch)
        for h in range(heads)
    ]
    return [
        np.stack(same).reshape(batch, heads, *same[0].shape)
        for same in zip(*by_head, strict=True)
    ]


def expected(task: Task, inputs: Inputs, meaning: str, rows: list[int]) -> list[Real]:
    """Return the answers of the heads compared, as a peer of the task returns them."""
    arrays = answers(inputs, task.kind, meaning, rows)
    if task.device == "cpu":
        return arrays
    heads = [head % DISTINCT_HEADS for head in task.judged_heads()]
    # There, gradients come without the output.
    return [x[:, heads] for x in arrays[1 if task.kind in WITH_GRADIENT else 0 :]]


def largest_error(result: list[Real], expected: list[Real]) -> float:
    """Return the largest difference over the largest number of its array.

    Infinite if an array is missing, has another shape or is not finite.
    """
    if [x.shape for x in result] != [x.shape for x in expected]:
        return float("inf")
    errors = [np.max(abs(x - y)) / np.max(abs(y)) for x, y in zip(result, expected)]  # noqa: B905 -- same lengths, above
    return float("inf") if not np.isfinite(errors).all() else float(max(errors))


class Judge:
    """Compares answers to one task at one length with the reference, made when needed.

    Attributes
    ----------
    rows : list of int
        Tokens that are compared.
    """

    def __init__(self, task: Task, length: int, seed: int) -> None:
        self.task, self.length, self.seed = task, length, seed
        self.rows = judged_rows(length)
        self._inputs: Inputs | None = None
        self._expected: dict[str, list[Real]] = {}

    def error(self, result: list[Real], meaning: str) -> float:
        """Return the largest error of these tokens."""
        if meaning not in self._expected:
            if self._inputs is None:
                self._inputs = drawn(self.task, self.length, self.seed)
            arrays = expected(self.task, self._inputs, meaning, self.rows)
            self._expected[meaning] = arrays
        return largest_error(result, self._expected[meaning])


def _of_one_head(
    given: list[Real], kind: Kind, meaning: str, rows: list[int]
) -> list[Real]:
    if meaning == "softmax":
        return _softmax(given, rows, causal=kind != "full")
    if kind == "delta-gradient":
        return _gated_delta_gradients(given, rows)
    if kind in GATED:
        return _gated_delta_rule(given, rows)
    query, key, value = given[:3]
    mapped = np.exp if meaning == "exponential" else _elu_plus_one
    features = [mapped(query), mapped(key)]
    with_ones = np.concatenate((value, np.ones((len(value), 1))), axis=1)
    if kind == "full":
        sums = features[0][rows] @ (features[1].T @ with_ones)
        return [sums[:, :-1] / sums[:, -1:]]
    if kind == "stream":
        repeats, at = np.divmod(rows, len(key))
        sums = _causal_sums(features[0], features[1], with_ones, at)
        whole = features[0][at] @ (features[1].T @ with_ones)
        sums = sums + repeats[:, None] * whole
        return [sums[:, :-1] / sums[:, -1:]]
    # The gradients of some tokens need the output of all.
    every = kind in WITH_GRADIENT
    at = np.arange(len(query)) if every else np.asarray(rows)
    sums = _causal_sums(features[0], features[1], with_ones, at)
    if meaning == "sums":
        return [sums[:, :-1][rows] if every else sums[:, :-1]]
    output = sums[:, :-1] / sums[:, -1:]
    if not every:
        return [output]
    return [output[rows], *_gradients(given, features, output, sums[:, -1:], at[rows])]


def _gated_delta_rule(given: list[Real], rows: list[int]) -> list[Real]:
    """Return ``K^-0.5 q_i . S_i``, token by token.

    ``S_i = exp(g_i) S_(i-1) + b_i k_i (v_i - k_i . exp(g_i) S_(i-1))^T``, where ``g_i``
    is a number, or a vector of one for each channel.
    """
    query, key, value, log_decay, beta = given
    state = np.zeros((key.shape[1], value.shape[1]))
    outputs = np.empty((len(rows), value.shape[1]))
    decay = np.exp(log_decay).reshape(len(key), -1, 1)  # of a token or of its channels
    places = {token: i for i, token in enumerate(rows)}
    for i, (k, v) in enumerate(zip(key, value, strict=True)):
        state *= decay[i]
        state += np.outer(k, beta[i] * (v - k @ state))
        if i in places:
            outputs[places[i]] = query[i] @ state
    return [outputs / query.shape[1] ** 0.5]


def _gated_delta_gradients(given: list[Real], rows: list[int]) -> list[Real]:
    """Return the output, and the gradients of query, key and value, token by token.

    With the cotangent d, the gradient of ``S_i`` does not depend on S: it is
    ``R_i = K^-0.5 q_i d_i^T + exp(g_j) (R_j - b_j k_j (k_j . R_j))``, where ``j`` is
    the next token.
    """
    query, key, value, log_decay, beta, cotangent = given
    scale, places = query.shape[1] ** -0.5, {token: i for i, token in enumerate(rows)}
    output, of_query, of_key, of_value = (
        np.empty((len(rows), x.shape[1])) for x in (value, query, key, value)
    )
    decayed: dict[int, Real] = {}
    state = np.zeros((key.shape[1], value.shape[1]))
    for i, (k, v) in enumerate(zip(key, value, strict=True)):
        state = np.exp(log_decay[i]) * state
        if i in places:
            decayed[i] = state
        state = state + np.outer(k, beta[i] * (v - k @ state))
        if i in places:
            output[places[i]] = scale * query[i] @ state
            of_query[places[i]] = scale * state @ cotangent[i]
    gradient = np.zeros_like(state)
    for i in reversed(range(len(key))):
        k, b = key[i], beta[i]
        gradient = gradient + np.outer(scale * query[i], cotangent[i])
        along = k @ gradient
        if i in places:
            before = decayed[i]
            of_value[places[i]] = b * along
            of_key[places[i]] = b * (
                gradient @ (value[i] - k @ before) - before @ along
            )
        gradient = np.exp(log_decay[i]) * (gradient - np.outer(b * k, along))
    return [output, of_query, of_key, of_value]


def _gradients(
    given: list[Real], features: list[Real], output: Real, total: Real, rows: Real
) -> tuple[Real, Real, Real]:
    """Return the gradients of query, key and value at some tokens.

    Weight ``w_ij = phi(q_i) . phi(k_j)`` has the gradient ``a_i . v_j + b_i``, with
    ``a = g / d`` and ``b = -(g . o) / d`` for cotangent g, output o, denominator d.
    """
    query, key, value, cotangent = given
    a = cotangent / total
    b = -np.sum(a * output, axis=1, keepdims=True)
    left = np.concatenate((a, b), axis=1)
    right = np.concatenate((value, np.ones_like(b)), axis=1)
    late = len(query) - 1 - rows
    of_query = _causal_sums(left, right, features[1], rows)
    of_key = _causal_sums(right[::-1], left[::-1], features[0][::-1], late)
    of_value = _causal_sums(features[1][::-1], features[0][::-1], a[::-1], late)
    slopes = (np.exp(np.minimum(x[rows], 0)) for x in (query, key))
    return of_query * next(slopes), of_key * next(slopes), of_value


def _causal_sums(query: Real, key: Real, value: Real, rows: Real) -> Real:
    """Return ``sum over j <= i of (query_i . key_j) value_j`` for all i of `rows`."""
    state = np.zeros((key.shape[1], value.shape[1]))
    sums = np.empty((len(rows), value.shape[1]))
    numbers = rows // _CHUNK
    for number in range(-(-len(key) // _CHUNK)):
        start = number * _CHUNK
        k, v = (x[start : start + _CHUNK] for x in (key, value))
        here = np.flatnonzero(numbers == number)
        if here.size:
            q, seen = query[rows[here]], rows[here, None] - start
            scores = np.where(np.arange(len(k)) <= seen, q @ k.T, 0.0)
            sums[here] = scores @ v + q @ state
        state += k.T @ v
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
