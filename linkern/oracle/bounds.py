r"""How far from the exact answer a correct kernel can be, whatever its order of sums.

Notation: features ``a_i``, ``b_j``, values ``v_j``; numerator ``N_i``, denominator
``d_i`` with gauges ``Nt_i``, ``dt_i`` (the same sums over absolute values). A term of
``N_i`` meets at most ``h`` roundings on its way, so a computed numerator differs from
the exact one by at most ``gamma_h Nt_i`` with ``gamma_h = h u / (1 - h u)``, and
likewise for the denominator. From ``E_N`` and ``E_d`` so obtained,

    |N'/d' - o| <= (E_N + |o| E_d) / (|d| - E_d),      o = N/d,

with no constant that was fitted to anything. Source: N. Higham, "Accuracy and Stability
of Numerical Algorithms", 2nd ed., sections 3.1 and 3.5, applied to a quotient of sums.

Where inputs are drawn independently, rounding errors are all but independent too, and
their sum grows like the square root: ``gamma_h`` may be replaced by ``exp(lambda
sqrt(h) u + h u^2 / (1 - u)) - 1``. Source: N. Higham and T. Mary, "A new approach to
probabilistic rounding error analysis", SIAM J. Sci. Comput. 41 (2019). This is a second
tier, for such draws only: on constant or tied data it is false.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.exact import Evaluation, Integers, Sums

__all__ = [
    "SIGNIFICAND_BITS",
    "Bounded",
    "Precisions",
    "Quotient",
    "bounded_output",
    "bounded_state",
    "depth",
    "exact_integer_output",
    "gamma",
    "probable",
    "relative_errors",
    "smallest",
    "unit_roundoff",
]

Real = NDArray[np.float64]

SIGNIFICAND_BITS = {
    "float64": 53,
    "float32": 24,
    "tfloat32": 11,
    "float16": 11,
    "bfloat16": 8,
}
_SMALLEST_EXPONENT = {
    "float64": -1074,
    "float32": -149,
    "tfloat32": -136,
    "float16": -24,
    "bfloat16": -133,
}
# Beyond this, gamma_h proves nothing worth the name.
_PROVABLE = 0.5


@dataclass(frozen=True)
class Precisions:
    """The arithmetic a kernel declares, stage by stage, as dtype names.

    Parameters
    ----------
    accumulator : str
        In which sums are formed, and features and quotients evaluated.
    feature, operand, score, state, normalizer : str or None
        To which the features, the operands of products, the scores, the carried memory
        and the carried normalizer are rounded besides; None for not at all.
    truncates : bool
        Whether sums are rounded towards zero and not to nearest.
    """

    accumulator: str
    feature: str | None = None
    operand: str | None = None
    score: str | None = None
    state: str | None = None
    normalizer: str | None = None
    truncates: bool = False

    @property
    def unit(self) -> float:
        """The largest relative error of one operation of the accumulator."""
        return unit_roundoff(self.accumulator) * (2 if self.truncates else 1)


@dataclass(frozen=True)
class Quotient:
    """How the read-out becomes an output.

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
    """

    normalize: bool = True
    scale: float = 1.0
    eps: float = 0.0
    eps_mode: str = "denominator"


@dataclass(frozen=True)
class Bounded:
    """The exact output and a bound on everybody's error before the final rounding.

    Parameters
    ----------
    output : array (..., T, V)
        Exact output, float64.
    bound : array (..., T, V)
        Proved bound on the absolute error; infinite where nothing is proved.
    sharp : array (..., T, V) or None
        What is left of it for a kernel that only sums, and divides once, where the sums
        are of integers; None where they are not.
    """

    output: Real
    bound: Real
    sharp: Real | None = None

    def rows(self, first: int, last: int) -> "Bounded":
        """Return the same for the rows from `first` to before `last`."""
        return Bounded(self.output[..., first:last, :], self.bound[..., first:last, :])

    def channels(self, chosen: NDArray[Any]) -> "Bounded":
        """Return the same for chosen channels, in their order."""
        bound = np.broadcast_to(self.bound, self.output.shape)
        return Bounded(self.output[..., chosen], bound[..., chosen])

    def once_stored(self, dtype: str) -> Real:
        """Return the bound on the error of the result after it is stored as `dtype`."""
        return self.bound + unit_roundoff(dtype) * (abs(self.output) + self.bound)


def smallest(dtype: str) -> float:
    """Return half the smallest subnormal of a dtype name: what underflow costs at most.

    Examples
    --------
    >>> smallest("float16") == 2.0**-25
    True
    """
    return float(2.0 ** (_SMALLEST_EXPONENT[dtype] - 1))


def unit_roundoff(dtype: str | None) -> float:
    """Return the unit roundoff of a dtype name; 0 for None.

    Examples
    --------
    >>> unit_roundoff("float32") == 2.0**-24
    True
    """
    return 0.0 if dtype is None else 2.0 ** -SIGNIFICAND_BITS[dtype]


def gamma(h: Real | float, u: float) -> Real:
    """Return ``h u / (1 - h u)``, infinite where ``h u > 0.5``."""
    product = np.asarray(h, dtype=np.float64) * u
    provable = product <= _PROVABLE
    if provable.all():
        return np.asarray(product / (1 - product))
    return np.where(provable, product / np.where(provable, 1 - product, 1), np.inf)


def probable(h: Real | float, u: float, confidence: float) -> Real:
    """Return the probabilistic counterpart of `gamma`, never more than it.

    Examples
    --------
    >>> bool(probable(10_000, 2.0**-24, confidence=3) < gamma(10_000, 2.0**-24) / 30)
    True
    """
    h = np.asarray(h, dtype=np.float64)
    with np.errstate(over="ignore"):
        grown = np.expm1(confidence * np.sqrt(h) * u + h * u * u / (1 - u))
    return np.minimum(grown, gamma(h, u))


def _accumulated(h: Real, precisions: Precisions, confidence: float | None) -> Real:
    """Return how much `h` roundings of the accumulator amount to."""
    if confidence is None or precisions.truncates:
        return gamma(h, precisions.unit)
    return probable(h, precisions.unit, confidence)


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
    with np.errstate(all="ignore"):
        e_n, e_d = relative_errors(
            exact.keys_seen,
            feature_dim,
            precisions,
            chunk_size=chunk_size,
            confidence=confidence,
        )
        own = gamma(depth(exact.keys_seen, feature_dim), unit_roundoff("float64"))
        error_n = _widen(exact.numerator_gauge, exact.numerator_slack, e_n + own)
        error_d = _widen(exact.denominator_gauge, exact.denominator_slack, e_d + own)
        tiny = smallest(precisions.accumulator)
        underflow = tiny * (exact.sums.query_gauge * exact.keys_seen + feature_dim)
        return _divided(
            exact.sums,
            quotient,
            error_n + underflow,
            error_d + underflow,
            precisions.unit,
        )


def relative_errors(
    keys_seen: Real,
    feature_dim: int,
    precisions: Precisions,
    *,
    chunk_size: int | None = None,
    confidence: float | None = None,
) -> tuple[Real, Real]:
    """Return how far numerator and denominator can be off, relative to their gauges."""
    h = depth(keys_seen, feature_dim, chunk_size)
    sums = _accumulated(h, precisions, confidence)
    carries = keys_seen if chunk_size is None else np.ceil(keys_seen / chunk_size)
    stages = (
        (1 + unit_roundoff(precisions.score))
        # queries and keys, then scores and values
        * (1 + unit_roundoff(precisions.operand)) ** 4
        * (1 + unit_roundoff(precisions.feature)) ** 2
    )
    e_n = (1 + sums) * stages * (1 + _carried(precisions.state, carries)) - 1
    e_d = (1 + sums) * stages * (1 + _carried(precisions.normalizer, carries)) - 1
    return e_n, e_d


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
    own = gamma(keys + 1, unit_roundoff("float64"))
    sums = gamma(keys + 1, precisions.unit)
    stages = (1 + unit_roundoff(precisions.operand)) ** 2
    stages *= 1 + unit_roundoff(precisions.feature)
    carries = keys if chunk_size is None else np.ceil(keys / chunk_size)
    gauge, slack = exact.memory_gauge, exact.memory_slack
    tiny = smallest(precisions.accumulator) * (keys + 1)
    found = []
    for dtype in (precisions.state, precisions.normalizer):
        with np.errstate(all="ignore"):
            relative = (1 + sums) * stages * (1 + _carried(dtype, carries)) - 1
        error = _widen(gauge, slack, relative + own) + tiny
        found.append(error)
    memory, normalizer = found
    return (
        Bounded(exact.memory[..., :-1], memory[..., :-1]),
        Bounded(exact.memory[..., -1], normalizer[..., -1]),
    )


def _carried(dtype: str | None, carries: Real) -> Real:
    """Return the error of rounding a running sum to `dtype` at every carry and read."""
    return gamma(carries + 1, unit_roundoff(dtype)) if dtype else np.zeros(1)


def _widen(gauge: Real, slack: Real, relative: Real) -> Real:
    return np.asarray(relative * (gauge + slack) + slack)


def exact_integer_output(
    exact: Integers, quotient: Quotient, precisions: Precisions
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
    exact : Integers
        The sums.
    quotient : Quotient
        How the output is formed.
    precisions : Precisions
        Arithmetic of sums and quotient.

    Returns
    -------
    Bounded
        Output, bound and sharp bound.
    """
    u = precisions.unit
    nothing = np.zeros(1)
    sums = exact.sums
    with np.errstate(all="ignore"):
        last = _divided(sums, quotient, nothing, nothing, u)
        rounded = gamma(depth(exact.keys_seen, sums.feature_dim), u)
        errors = rounded * exact.numerator_gauge, rounded * abs(sums.denominator)
        any_order = _divided(sums, quotient, *errors, u)
    sharp = np.where(_stays_exact(sums, quotient), last.bound, any_order.bound)
    return Bounded(last.output, any_order.bound, sharp)


def _stays_exact(exact: Sums, quotient: Quotient) -> NDArray[np.bool_]:
    """Whether the factors that a kernel may put into its terms are powers of two."""
    if not quotient.normalize:
        return np.full((1,), _is_power_of_two(np.asarray(quotient.scale)))
    # A normalised kernel may scale its queries by K^-0.5 without telling: it cancels.
    scales = np.asarray([exact.feature_dim**-0.5, quotient.scale])
    harmless = bool(_is_power_of_two(scales).all()) and quotient.eps == 0
    return _is_power_of_two(exact.denominator) & harmless


def _is_power_of_two(x: Real) -> NDArray[np.bool_]:
    return np.asarray(np.frexp(abs(x))[0] == 0.5)


def _divided(
    exact: Sums, quotient: Quotient, error_n: Real, error_d: Real, u: float
) -> Bounded:
    """Carry the errors of numerator and denominator through the final operation."""
    numerator, error_n = (
        quotient.scale * exact.numerator,
        abs(quotient.scale) * error_n,
    )
    if quotient.normalize:
        divisor, error_d = _divisor(exact, quotient, error_d, u)
        output = numerator / divisor
        margin = abs(divisor) - error_d
        core = np.where(margin > 0, (error_n + abs(output) * error_d) / margin, np.inf)
    else:
        output, core = numerator, error_n
    # A reciprocal and a product instead of a division, or a factor put in and taken
    # out: at most three roundings of the result, plus one of the oracle's own.
    last = 3 * u if quotient.normalize or quotient.scale != 1 else 0.0
    bound = core + (last + unit_roundoff("float64")) * (abs(output) + core)
    return Bounded(output, np.where(np.isnan(bound), np.inf, bound))


def _divisor(
    exact: Sums, quotient: Quotient, error_d: Real, u: float
) -> tuple[Real, Real]:
    """Return what the numerator is divided by, declared epsilon included; its error."""
    scale, eps = quotient.scale, quotient.eps
    d, error_d = scale * exact.denominator, abs(scale) * error_d
    if eps == 0:
        return d, error_d
    added: Real = np.full((1,), eps)
    reach, moved = added, np.zeros(1)
    if quotient.eps_mode == "normalizer":
        added = scale * eps * exact.query_sum
        reach = abs(scale) * eps * (exact.query_gauge + exact.query_slack)
        moved = abs(scale) * eps * exact.query_slack
    # The epsilon and the scale are rounded to the kernel's precision, and the epsilon
    # joins a sum of up to K + 1 terms.
    error_d = error_d + moved + gamma(exact.feature_dim + 4, u) * (abs(d) + reach)
    return (np.maximum(d, eps) if quotient.eps_mode == "clamp" else d + added), error_d
