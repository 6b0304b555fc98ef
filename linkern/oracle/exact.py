"""The judge's arithmetic: the recurrence, token by token, in float64 or in integers.

Nothing here knows a chunk, a form or an array library other than NumPy. The same loop
is run on absolute values, which gives the gauge of Higham's componentwise error
analysis: how large the sums could have become without cancellation, and so how large an
error a correct kernel may make.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evaluation", "Integers", "Sums", "evaluate", "evaluate_integers"]

Real = NDArray[np.float64]

# Of as many memories at once as have this many entries together.
_ENTRIES = 2**16


@dataclass(frozen=True)
class Sums:
    """The exact sums that an output is formed from, in float64.

    Parameters
    ----------
    numerator : array (..., T, V)
        ``N_i = sum_j (a_i.b_j) v_j``.
    denominator : array (..., T, 1)
        ``d_i = sum_j a_i.b_j``.
    query_sum, query_gauge, query_slack : array (..., T, 1)
        ``sum_k a_ik``, the same over absolute values and over admitted errors, for
        epsilons that are added to every entry of the normalizer.
    feature_dim : int
        ``K``, the number of features.
    """

    numerator: Real
    denominator: Real
    query_sum: Real
    query_gauge: Real
    query_slack: Real
    feature_dim: int


@dataclass(frozen=True)
class Evaluation:
    """Exact sums of one call and the gauges that bound anyone's error in them.

    Parameters
    ----------
    sums : Sums
        The exact sums.
    numerator_gauge, denominator_gauge : array (..., T, V), (..., T, 1)
        The same sums over absolute values.
    numerator_slack, denominator_slack : array (..., T, V), (..., T, 1)
        The most that the admitted errors of the features can move the sums.
    keys_seen : array (T, 1)
        How many keys row i sums over.
    memory, memory_gauge, memory_slack : array (..., K, V + 1)
        The state after the last key, its gauge and its slack; the normalizer is the
        last column.
    """

    sums: Sums
    numerator_gauge: Real
    denominator_gauge: Real
    numerator_slack: Real
    denominator_slack: Real
    keys_seen: Real
    memory: Real
    memory_gauge: Real
    memory_slack: Real


@dataclass(frozen=True)
class Integers:
    """Sums of integer features and values, exact.

    Parameters
    ----------
    sums : Sums
        The sums; every one is an integer below 2^53.
    numerator_gauge : array (..., T, V)
        The numerator over absolute values.
    keys_seen : array (T, 1)
        How many keys row i sums over.
    largest : int
        The largest absolute partial sum that any order of summation can meet.
    """

    sums: Sums
    numerator_gauge: Real
    keys_seen: Real
    largest: int


def evaluate(
    query: Real,
    key: Real,
    value: Real,
    *,
    causal: bool,
    query_error: Real | None = None,
    key_error: Real | None = None,
) -> Evaluation:
    """Evaluate linear attention on features, in float64, one token after the other.

    Parameters
    ----------
    query : array (..., T, K)
        Features of the queries, float64.
    key : array (..., S, K)
        Features of the keys, float64.
    value : array (..., S, V)
        Values, float64.
    causal : bool
        Whether query i sees keys 0..i only.
    query_error, key_error : array, optional
        Admitted absolute errors of the features, of their shapes. Default: none.

    Returns
    -------
    Evaluation
        Sums, gauges and state.

    Examples
    --------
    >>> ones = np.ones((2, 1))
    >>> evaluate(ones, ones, np.asarray([[1.0], [2.0]]), causal=True).sums.numerator
    array([[1.],
           [3.]])
    """
    query_error = np.zeros_like(query) if query_error is None else query_error
    key_error = np.zeros_like(key) if key_error is None else key_error
    columns = np.concatenate([value, np.ones((*value.shape[:-1], 1))], axis=-1)
    found = None
    if not query_error.any() and not key_error.any():
        found = _without_errors(query, key, columns, causal=causal)
    if found is None:
        found = _with_errors(query, key, columns, query_error, key_error, causal=causal)
    (exact, gauge, slack), memory = found
    return Evaluation(
        sums=_sums(query, exact, query_error),
        numerator_gauge=gauge[..., :-1],
        denominator_gauge=gauge[..., -1:],
        numerator_slack=slack[..., :-1],
        denominator_slack=slack[..., -1:],
        keys_seen=_keys_seen(query, key, causal=causal),
        memory=memory[0],
        memory_gauge=memory[1],
        memory_slack=memory[2],
    )


def _with_errors(
    query: Real,
    key: Real,
    columns: Real,
    query_error: Real,
    key_error: Real,
    *,
    causal: bool,
) -> tuple[tuple[Real, Real, Real], tuple[Real, Real, Real]]:
    """Return what is read and the memory: exact, their gauge and their slack."""
    # Four readings of one loop, stacked in front: the sums themselves, their gauge, and
    # the two halves of (|a| + da)(|b| + db) - |a||b| = da(|b| + db) + |a| db.
    a = np.stack([query, abs(query), query_error, abs(query)])
    b = np.stack([key, abs(key), abs(key) + key_error, key_error])
    v = np.stack([columns, *[abs(columns)] * 3])
    read, memory = _recurrence(a, b, v, causal=causal)
    return (read[0], read[1], read[2] + read[3]), (memory[0], memory[1], memory[3])


def _without_errors(
    query: Real, key: Real, columns: Real, *, causal: bool
) -> tuple[tuple[Real, Real, Real], tuple[Real, Real, Real]] | None:
    """Return the same for features that are exact; None if a sum overflows.

    Nothing times a finite number is nothing, so the slacks need no reading.
    """
    a, b, v = (np.stack([x, abs(x)]) for x in (query, key, columns))
    read, memory = _recurrence(a, b, v, causal=causal)
    if not (np.isfinite(read[1]).all() and np.isfinite(memory[1]).all()):
        return None
    slacks = np.zeros_like(read[1]), np.zeros_like(memory[1])
    return (read[0], read[1], slacks[0]), (memory[0], memory[1], slacks[1])


def evaluate_integers(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], *, causal: bool
) -> Integers:
    """Evaluate linear attention on integer features and values, exactly.

    Parameters
    ----------
    query, key, value : integer array (..., T, K), (..., S, K), (..., S, V)
        Features and values.
    causal : bool
        Whether query i sees keys 0..i only.

    Returns
    -------
    Integers
        The sums, and how large a partial sum can get in any order.

    Examples
    --------
    >>> ones = np.ones((2, 1), dtype=int)
    >>> evaluate_integers(ones, ones, np.asarray([[5], [-7]]), causal=True).largest
    12
    """
    a, b, v = (x.astype(np.int64) for x in (query, key, value))
    columns = np.concatenate([v, np.ones((*v.shape[:-1], 1), np.int64)], axis=-1)
    exact, _ = _recurrence(a, b, columns, causal=causal)
    reach, memory = _recurrence(abs(a), abs(b), abs(columns), causal=causal)
    largest = max(int(reach.max(initial=0)), int(memory.max(initial=0)))
    return Integers(
        _sums(a, exact, np.zeros_like(a)),
        reach[..., :-1].astype(np.float64),
        _keys_seen(query, key, causal=causal),
        largest,
    )


def _keys_seen(query: NDArray[Any], key: NDArray[Any], *, causal: bool) -> Real:
    length, keys = query.shape[-2], key.shape[-2]
    seen = np.arange(1, length + 1) if causal else np.full(length, keys)
    return seen[:, None].astype(np.float64)


def _sums(
    query: NDArray[Any], read_out: NDArray[Any], query_error: NDArray[Any]
) -> Sums:
    """Split a read-out whose last column is the sum of the weights."""
    signed, gauge, slack = (
        x.sum(axis=-1, keepdims=True).astype(np.float64)
        for x in (query, abs(query), query_error)
    )
    return Sums(
        numerator=read_out[..., :-1].astype(np.float64),
        denominator=read_out[..., -1:].astype(np.float64),
        query_sum=signed,
        query_gauge=gauge,
        query_slack=slack,
        feature_dim=query.shape[-1],
    )


def _recurrence(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], *, causal: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """``S <- S + k v^T; o = q^T S``, in the dtype of the inputs."""
    memory = np.zeros(
        (*key.shape[:-2], key.shape[-1], value.shape[-1]), dtype=value.dtype
    )
    output = np.empty((*query.shape[:-1], value.shape[-1]), dtype=value.dtype)
    queries, keys, values, outputs = (
        np.moveaxis(x, -2, 0) for x in (query, key, value, output)
    )
    # The memories after some tokens, one added to the next, are made and read at once.
    most = min(max(1, _ENTRIES // max(memory.size, 1)), len(keys))
    room = np.empty((most, *memory.shape), dtype=value.dtype)
    for first in range(0, len(keys), max(most, 1)):
        span = slice(first, first + most)
        k, v = keys[span, ..., :, None], values[span, ..., None, :]
        memories = np.multiply(k, v, out=room[: len(k)])
        memories[0] += memory
        for before, after in pairwise(memories):
            np.add(before, after, out=after)
        if causal:
            outputs[span] = (queries[span, ..., None, :] @ memories)[..., 0, :]
        memory = memories[-1].copy()
    if not causal:
        output[...] = query @ memory
    return output, memory
