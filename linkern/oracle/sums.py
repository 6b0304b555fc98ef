r"""Sums of weighted values, the quotient of two, and bounds on anyone's error in them.

Notation: features ``a_i``, ``b_j``, values ``v_j``; numerator ``N_i = sum_j (a_i.b_j)
v_j``, denominator ``d_i = sum_j a_i.b_j``. The gauges ``Nt_i``, ``dt_i`` are the same
sums over absolute values. A term of ``N_i`` meets at most ``h`` roundings, so that a
computed numerator differs from the exact one by at most ``gamma_h Nt_i``, and likewise
for the denominator. From ``E_N`` and ``E_d`` so obtained,

    |N'/d' - o| <= (E_N + |o| E_d) / (|d| - E_d),      o = N/d,

with no constant that was fitted to anything. Source: N. Higham, "Accuracy and Stability
of Numerical Algorithms", 2nd ed., sections 3.1 and 3.5, applied to a quotient of sums.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Rounding
from linkern.oracle.bounds import (
    Bounded,
    Precisions,
    gamma,
    smallest,
    unit_roundoff,
)
from linkern.oracle.recurrence import Terms, run

__all__ = [
    "Evaluation",
    "Quotient",
    "Sums",
    "bounded_output",
    "bounded_state",
    "depth",
    "divisor",
    "divisor_error",
    "evaluate",
    "exact_output",
    "keys_seen",
    "plain_output",
    "relative_errors",
]

Real = NDArray[np.float64]


@dataclass(frozen=True)
class Quotient:
    """The final operation of an output: scale, epsilon, division.

    Parameters
    ----------
    normalize : bool
        ``scale N / (scale d)`` if true, ``scale N`` if not.
    scale : float
        Factor on the scores; cancels when `normalize`, unless there is an epsilon.
    eps : float
        Declared epsilon; 0 for the exact quotient.
    eps_mode : {"denominator", "normalizer", "clamp"}
        The divisor: ``scale d + eps``, ``scale a . (z + eps)``, ``max(scale d, eps)``.
    constant : bool
        Whether gradients hold the divisor constant.
    """

    normalize: bool = True
    scale: float = 1.0
    eps: float = 0.0
    eps_mode: str = "denominator"
    constant: bool = False


@dataclass(frozen=True)
class Sums:
    """The exact sums that an output is formed from, in float64.

    Parameters
    ----------
    numerator : array (..., T, V)
        ``N_i``.
    denominator : array (..., T, 1)
        ``d_i``.
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
        How many terms row i sums.
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


def evaluate(
    query: Real,
    key: Real,
    value: Real,
    *,
    causal: bool,
    query_error: Real | None = None,
    key_error: Real | None = None,
    state: Real | None = None,
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
    state : array (..., K, V + 1), optional
        Memory before the first key, with the normalizer as its last column.

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
    columns = np.concatenate([value, np.ones((*value.shape[:-1], 1))], axis=-1)
    a, b, v = [query, abs(query)], [key, abs(key)], [columns, abs(columns)]
    da, db = (
        np.zeros_like(x) if error is None else error
        for x, error in ((query, query_error), (key, key_error))
    )
    inexact = bool(da.any() or db.any())
    if inexact:
        # The two halves of (|a| + da)(|b| + db) - |a||b| = da(|b| + db) + |a| db.
        a += [da, abs(query)]
        b += [abs(key) + db, db]
        v += [abs(columns)] * 2
    begin = np.zeros((*key.shape[:-2], key.shape[-1], columns.shape[-1]))
    begun = state is not None and bool(state.any())
    if begun:
        begin = np.broadcast_to(np.asarray(state), begin.shape)
    # What errors of keys add is no part of the state before the first of them.
    first = [begin, abs(begin), abs(begin), np.zeros_like(begin)][: len(a)]
    stacked = (np.stack(x) for x in (a, b, v, first))
    read, memory = _recurrence(*stacked, causal=causal)
    slack, memory_slack = np.zeros_like(read[1]), np.zeros_like(memory[1])
    if inexact:
        slack, memory_slack = read[2] + read[3], memory[3]
    signed, gauge, moved = (x.sum(axis=-1, keepdims=True) for x in (*a[:2], da))
    numerator, denominator = read[0][..., :-1], read[0][..., -1:]
    return Evaluation(
        Sums(numerator, denominator, signed, gauge, moved, query.shape[-1]),
        read[1][..., :-1],
        read[1][..., -1:],
        slack[..., :-1],
        slack[..., -1:],
        keys_seen(query.shape[-2], key.shape[-2], causal=causal) + begun,
        memory[0],
        memory[1],
        memory_slack,
    )


def keys_seen(length: int, keys: int, *, causal: bool) -> Real:
    """Return how many keys each row sums over, ``(T, 1)``."""
    seen = np.arange(1.0, length + 1) if causal else np.full(length, 1.0 * keys)
    return seen[:, None]


def _recurrence(
    query: Real, key: Real, value: Real, state: Real, *, causal: bool
) -> tuple[Real, Real]:
    """Return what queries read and the last memory; all keys at once if not causal."""
    factor = np.ones((*key.shape[:-1], 1))
    rows = Terms(query if causal else key, key, value, factor)
    ran = run(rows, state, reading=causal)
    return ran.reads if causal else query @ ran.last, ran.last


def depth(keys_seen: Real, feature_dim: int, chunk_size: int | None = None) -> Real:
    """Return the most roundings that a term meets on its way into row i.

    Any order: ``i + K + 2`` (K products and sums inside a score, i sums over keys, and
    the product with the value). A declared chunk size C: ``min(i, C) + ceil(i/C) + K +
    2``.
    """
    if chunk_size is None:
        return keys_seen + feature_dim + 2
    inside = np.minimum(keys_seen, chunk_size)
    return inside + np.ceil(keys_seen / chunk_size) + feature_dim + 2


def relative_errors(
    keys_seen: Real, feature_dim: int, rounding: Rounding
) -> tuple[Real, Real]:
    """Return how far numerator and denominator can be off, relative to their gauges."""
    precisions, chunk_size = rounding.precisions, rounding.chunk_size
    sums = rounding.rounded(depth(keys_seen, feature_dim, chunk_size))
    carries = keys_seen if chunk_size is None else np.ceil(keys_seen / chunk_size)
    # Queries and keys, then scores and values.
    stages = rounding.stages(products=4)
    e_n = (1 + sums) * stages * (1 + _carried(precisions.state, carries)) - 1
    e_d = (1 + sums) * stages * (1 + _carried(precisions.normalizer, carries)) - 1
    return e_n, e_d


def bounded_output(
    exact: Evaluation,
    quotient: Quotient,
    precisions: Precisions,
    *,
    chunk_size: int | None = None,
    confidence: float | None = None,
) -> Bounded:
    """Return the exact output and the any-order bound of a declared arithmetic.

    Parameters
    ----------
    exact : Evaluation
        Sums and gauges.
    quotient : Quotient
        How the output is formed.
    precisions : Precisions
        In which arithmetic.
    chunk_size : int, optional
        The kernel's chunk size, if it declared one: a smaller depth, a smaller bound.
    confidence : float, optional
        The lambda of the probabilistic tier; None for the proved one.

    Returns
    -------
    Bounded
        Output and bound. The oracle's own float64 rounding is part of the bound.
    """
    feature_dim = exact.sums.feature_dim
    rounding = Rounding(precisions, chunk_size, confidence)
    with np.errstate(all="ignore"):
        e_n, e_d = relative_errors(exact.keys_seen, feature_dim, rounding)
        oracle_error = gamma(
            depth(exact.keys_seen, feature_dim), unit_roundoff("float64")
        )
        error_n = _widen(
            exact.numerator_gauge, exact.numerator_slack, e_n + oracle_error
        )
        error_d = _widen(
            exact.denominator_gauge, exact.denominator_slack, e_d + oracle_error
        )
        tiny = smallest(precisions.accumulator)
        underflow = tiny * (exact.sums.query_gauge * exact.keys_seen + feature_dim)
        errors = error_n + underflow, error_d + underflow
        return _divided(exact.sums, quotient, *errors, precisions.unit)


def bounded_state(
    exact: Evaluation, precisions: Precisions, *, chunk_size: int | None = None
) -> tuple[Bounded, Bounded]:
    """Return the exact state with its any-order bound: memory, then normalizer.

    Parameters
    ----------
    exact : Evaluation
        Sums and gauges.
    precisions : Precisions
        In which arithmetic.
    chunk_size : int, optional
        The kernel's chunk size, if it declared one.

    Returns
    -------
    Bounded, Bounded
        ``S (..., K, V)`` and ``z (..., K)``: sums of T products, so ``T + 1`` roundings
        besides those of a state that is carried in a narrower dtype.
    """
    keys = exact.keys_seen[-1:].ravel() if exact.keys_seen.size else np.zeros(1)
    oracle_error = gamma(keys + 1, unit_roundoff("float64"))
    sums = gamma(keys + 1, precisions.unit)
    stages = (1 + unit_roundoff(precisions.operand)) ** 2
    stages *= 1 + unit_roundoff(precisions.feature)
    carries = keys if chunk_size is None else np.ceil(keys / chunk_size)
    gauge, slack = exact.memory_gauge, exact.memory_slack
    tiny = smallest(precisions.accumulator) * (keys + 1)
    errors = []
    for dtype in (precisions.state, precisions.normalizer):
        with np.errstate(all="ignore"):
            relative = (1 + sums) * stages * (1 + _carried(dtype, carries)) - 1
            errors.append(_widen(gauge, slack, relative + oracle_error) + tiny)
    memory, normalizer = errors
    return (
        Bounded(exact.memory[..., :-1], memory[..., :-1]),
        Bounded(exact.memory[..., -1], normalizer[..., -1]),
    )


def _carried(dtype: str | None, carries: Real) -> Real:
    """Return the error of rounding a running sum to `dtype` at every carry and read."""
    return gamma(carries + 1, unit_roundoff(dtype)) if dtype else np.zeros(1)


def _widen(gauge: Real, slack: Real, relative: Real) -> Real:
    return np.asarray(relative * (gauge + slack) + slack)


def exact_output(
    exact: Evaluation, quotient: Quotient, precisions: Precisions
) -> Bounded:
    """Return the exact output on integers, its bound, and how sharp the bound can be.

    Sums of integers are exact in any order, and stay so if every term is first
    multiplied by a power of two. So where the divisor is one, only the last operation
    can round, whether a kernel divides before it sums or after: that is `sharp`. A
    correct kernel may still round in between, if it renormalises as it goes or splits
    its operands; `bound` allows for that, and is small enough that no key can get lost
    in it: changed sums of integers move the quotient by ``1 / (d d')`` or more.

    Parameters
    ----------
    exact : Evaluation
        The sums, every one an integer below 2^53.
    quotient : Quotient
        How the output is formed.
    precisions : Precisions
        Arithmetic of sums and quotient.

    Returns
    -------
    Bounded
        Output, bound and sharp bound.
    """
    u, sums, nothing = precisions.unit, exact.sums, np.zeros(1)
    with np.errstate(all="ignore"):
        last = _divided(sums, quotient, nothing, nothing, u)
        rounded = gamma(depth(exact.keys_seen, sums.feature_dim), u)
        errors = rounded * exact.numerator_gauge, rounded * abs(sums.denominator)
        any_order = _divided(sums, quotient, *errors, u)
    sharp = np.where(_stays_exact(sums, quotient), last.bound, any_order.bound)
    return Bounded(last.output, any_order.bound, sharp)


def _stays_exact(exact: Sums, quotient: Quotient) -> NDArray[np.bool_]:
    """Return where the factors that a kernel may put into terms are powers of two."""
    if not quotient.normalize:
        return np.full((1,), _is_power_of_two(np.asarray(quotient.scale)))
    # A normalised kernel may scale its queries by K^-0.5 without telling: it cancels.
    scales = np.asarray([exact.feature_dim**-0.5, quotient.scale])
    harmless = bool(_is_power_of_two(scales).all()) and quotient.eps == 0
    return _is_power_of_two(exact.denominator) & harmless


def _is_power_of_two(x: Real) -> NDArray[np.bool_]:
    return np.asarray(np.frexp(abs(x))[0] == 0.5)


def plain_output(exact: Sums, quotient: Quotient) -> Real:
    """Return the exact output, without a bound."""
    numerator = quotient.scale * exact.numerator
    return numerator / divisor(exact, quotient) if quotient.normalize else numerator


def _divided(
    exact: Sums, quotient: Quotient, error_n: Real, error_d: Real, u: float
) -> Bounded:
    """Carry the errors of numerator and denominator through the final operation."""
    output, core = plain_output(exact, quotient), abs(quotient.scale) * error_n
    if quotient.normalize:
        size = abs(quotient.scale * exact.denominator)
        error_d = divisor_error(exact, quotient, error_d, u, size)
        margin = abs(divisor(exact, quotient)) - error_d
        core = np.where(margin > 0, (core + abs(output) * error_d) / margin, np.inf)
    # A reciprocal and a product instead of a division, or a factor put in and taken
    # out: at most three roundings of the result, plus one of the oracle's own.
    last = 3 * u if quotient.normalize or quotient.scale != 1 else 0.0
    bound = core + (last + unit_roundoff("float64")) * (abs(output) + core)
    return Bounded(output, np.where(np.isnan(bound), np.inf, bound))


def divisor(exact: Sums, quotient: Quotient) -> Real:
    """Return what the numerator is divided by, declared epsilon included."""
    d, eps = quotient.scale * exact.denominator, quotient.eps
    if eps == 0:
        return d
    if quotient.eps_mode == "clamp":
        return np.maximum(d, eps)
    if quotient.eps_mode == "normalizer":
        return d + quotient.scale * eps * exact.query_sum
    return d + eps


def divisor_error(
    exact: Sums, quotient: Quotient, error_d: Real, u: float, size: Real
) -> Real:
    """Return the error of the divisor from that of a denominator of at most `size`."""
    factor, eps = abs(quotient.scale), quotient.eps
    error_d = factor * error_d
    if eps == 0:
        return error_d
    reach: Real | float = eps
    if quotient.eps_mode == "normalizer":
        reach = factor * eps * (exact.query_gauge + exact.query_slack)
        error_d = error_d + factor * eps * exact.query_slack
    # The epsilon and the scale are rounded to the kernel's precision, and the epsilon
    # joins a sum of up to K + 1 terms.
    return error_d + gamma(exact.feature_dim + 4, u) * (size + reach)
