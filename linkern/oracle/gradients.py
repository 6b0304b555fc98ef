r"""Gradients of linear attention in closed form, and how far anyone's can be from them.

Notation as in `linkern.oracle.bounds`, with a cotangent ``g_i`` of the output and the
divisor ``D_i`` (the denominator, with a declared epsilon). For ``L = sum_i g_i.o_i``,

    W_ij = (g_i.v_j - g_i.o_i) / D_i        for j <= i, 0 elsewhere
    dL/da_i = sum_j W_ij b_j,   dL/db_j = sum_i W_ij a_i,
    dL/dv_j = sum_i (a_i.b_j) g_i / D_i.

The second term of ``W`` is the path through the normalizer; without normalisation it is
absent and ``D = 1``. Every term is a product with at most two divisions by a computed
``D'``, whose relative error ``e_D`` is that of the forward pass. So a computed gradient
differs from the exact one by at most

    ((1 + gamma_h) / (1 - e_D)^2 - 1) times the same sums over absolute values,

where ``h`` counts the sums over keys (twice: inside ``o_i`` and over ``j``), queries,
features and channels. The absolute values of ``W`` are ``(|g|.|v_j| + |g|.G_i)/|D_i|``
with the gauge ``G_i`` of the output, which is what makes the difference ``v_j - o_i``
testable without an absolute tolerance.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import (
    Bounded,
    Precisions,
    Quotient,
    gamma,
    probable,
    relative_errors,
    smallest,
    unit_roundoff,
)

__all__ = ["Differentiand", "bounded_gradients"]

Real = NDArray[np.float64]

# Roundings of a term besides those in its sums: products, quotients, a difference, a
# scale that is put in and taken out.
_PRODUCTS = 14


@dataclass(frozen=True)
class Differentiand:
    """What is differentiated.

    Parameters
    ----------
    query, key : array (..., T, K), (..., S, K)
        Features, float64.
    value, cotangent : array (..., S, V), (..., T, V)
        Values, and the cotangent of the output.
    query_error, key_error : array
        Admitted absolute errors of the features, of their shapes.
    causal : bool
        Whether query i sees keys 0..i only.
    """

    query: Real
    key: Real
    value: Real
    cotangent: Real
    query_error: Real
    key_error: Real
    causal: bool

    def weights(self, query: Real, key: Real) -> Real:
        """Return the scores ``a_i.b_j`` of the pairs that count."""
        return self.masked(query @ np.swapaxes(key, -1, -2))

    def masked(self, pairs: Real) -> Real:
        """Return pairs ``(..., T, S)`` with zeros where key j is not seen."""
        return np.tril(pairs) if self.causal else pairs

    @property
    def keys_seen(self) -> Real:
        """How many keys row i sums over, ``(T, 1)``."""
        length, keys = self.query.shape[-2], self.key.shape[-2]
        seen = (
            np.arange(1.0, length + 1) if self.causal else np.full(length, 1.0 * keys)
        )
        return seen[:, None]

    def absolute(self) -> "Differentiand":
        """Return the same problem over absolute values."""
        return replace(
            self,
            query=abs(self.query),
            key=abs(self.key),
            value=abs(self.value),
            cotangent=abs(self.cotangent),
        )

    def gauged(self) -> "Differentiand":
        """Return it over the largest absolute values that admitted errors allow."""
        absolute = self.absolute()
        return replace(
            absolute,
            query=absolute.query + self.query_error,
            key=absolute.key + self.key_error,
        )


def bounded_gradients(
    of: Differentiand,
    quotient: Quotient,
    precisions: Precisions,
    *,
    output_dtype: str,
    confidence: float | None = None,
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the gradients of features and values with their any-order bounds.

    Parameters
    ----------
    of : Differentiand
        Features, values and cotangent.
    quotient : Quotient
        How the output is formed.
    precisions : Precisions
        In which arithmetic.
    output_dtype : str
        Dtype of the output, which a kernel may use again as it returned it.
    confidence : float, optional
        The lambda of the probabilistic tier; None for the proved one.

    Returns
    -------
    Bounded, Bounded, Bounded
        For the query features ``(..., T, K)``, the key features ``(..., S, K)`` and the
        values ``(..., S, V)``.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> of = Differentiand(one, one, 3 * one, 5 * one, 0 * one, 0 * one, causal=True)
    >>> exact = Quotient(), Precisions("float32")
    >>> query, key, value = bounded_gradients(of, *exact, output_dtype="float32")
    >>> query.output.item(), key.output.item(), value.output.item()
    (0.0, 0.0, 5.0)
    """
    with np.errstate(all="ignore"):
        divisor, error_d = _divisor(of, quotient, precisions, confidence)
        growth = _growth(of, precisions, confidence) / (1 - error_d) ** 2
        # Nothing is known of a row whose divisor is not.
        growth = np.where(np.isfinite(error_d), growth, np.inf)
        exact = _terms(of, quotient, divisor, sign=-1.0)
        absolute = replace(quotient, scale=abs(quotient.scale)), abs(divisor)
        base = _terms(of.absolute(), *absolute, sign=1.0)
        saved = 1 + unit_roundoff(output_dtype)
        gauge = _terms(of.gauged(), *absolute, sign=saved)
        # Gradients are linear in the cotangent: what grows with row i grows with g_i.
        grown = replace(of.gauged(), cotangent=abs(of.cotangent) * (growth - 1))
        rounded = _terms(grown, *absolute, sign=saved)
        tiny = smallest(precisions.accumulator) * (of.query.shape[-2] + _PRODUCTS)
        query, key, value = (
            Bounded(x, np.where(np.isnan(r), np.inf, r + (g - b) + tiny))
            for x, r, g, b in zip(exact, rounded, gauge, base, strict=True)
        )
    return query, key, value


def _divisor(
    of: Differentiand,
    quotient: Quotient,
    precisions: Precisions,
    confidence: float | None,
) -> tuple[Real, Real]:
    """Return what outputs are divided by, and its relative error: ``(..., T, 1)``."""
    if not quotient.normalize:
        ones = np.ones((*of.query.shape[:-1], 1))
        return ones, np.zeros_like(ones)
    scale, eps = quotient.scale, quotient.eps
    d, plain, dt = (
        s * x.weights(x.query, x.key).sum(-1, keepdims=True)
        for s, x in (
            (scale, of),
            (abs(scale), of.absolute()),
            (abs(scale), of.gauged()),
        )
    )
    _, e_d = relative_errors(
        of.keys_seen, of.query.shape[-1], precisions, confidence=confidence
    )
    own = gamma(of.keys_seen + of.query.shape[-1] + 2, unit_roundoff("float64"))
    error = (e_d + own) * dt + (dt - plain)
    undecided = np.zeros_like(d, dtype=bool)
    if eps:
        added = reach = np.full((1,), eps)
        moved = np.zeros(1)
        if quotient.eps_mode == "normalizer":
            added, reach, moved = (
                eps * s * x.sum(-1, keepdims=True)
                for s, x in (
                    (scale, of.query),
                    (abs(scale), of.gauged().query),
                    (abs(scale), of.query_error),
                )
            )
        error = error + moved
        error = error + gamma(of.query.shape[-1] + 4, precisions.unit) * (dt + reach)
        if quotient.eps_mode == "clamp":
            # On which side of the clamp a kernel is, rounding decides.
            undecided = abs(d - eps) <= error
            d = np.maximum(d, eps)
        else:
            d = d + added
    known = (abs(d) > 2 * error) & ~undecided
    return d, np.where(known, error / abs(d), np.inf)


def _terms(
    of: Differentiand, quotient: Quotient, divisor: Real, *, sign: float
) -> tuple[Real, Real, Real]:
    """Return the sums of the closed form; over absolute values with a positive sign.

    The sign is that of the path through the normalizer. A kernel may form it from the
    output that it has returned, so there it is larger than one by its last rounding.
    """
    g, scale = of.cotangent, quotient.scale
    scores = scale * of.weights(of.query, of.key) / divisor
    output = scores @ of.value  # over absolute values: its gauge
    pairs = g @ np.swapaxes(of.value, -1, -2)
    through_divisor = sign * (g * output).sum(-1, keepdims=True)
    if not quotient.normalize:
        through_divisor = np.zeros_like(through_divisor)
    elif quotient.eps_mode == "clamp":
        # Below the clamp the divisor is a constant.
        through_divisor = np.where(divisor > quotient.eps, through_divisor, 0.0)
    w = of.masked(scale * (pairs + through_divisor) / divisor)
    of_query = w @ of.key
    if quotient.normalize and quotient.eps and quotient.eps_mode == "normalizer":
        of_query = of_query + scale * quotient.eps * through_divisor / divisor
    return (
        of_query,
        np.swapaxes(w, -1, -2) @ of.query,
        np.swapaxes(scores, -1, -2) @ g,
    )


def _growth(
    of: Differentiand,
    precisions: Precisions,
    confidence: float | None,
) -> Real:
    """Return how much terms of row i can grow, the divisor aside; ``(T, 1)``."""
    keys, length = of.keys_seen, float(of.query.shape[-2])
    dims = of.query.shape[-1] + of.value.shape[-1]
    h = keys + np.maximum(keys, length) + dims + _PRODUCTS
    if confidence is None or precisions.truncates:
        rounded = gamma(h, precisions.unit)
    else:
        rounded = probable(h, precisions.unit, confidence)
    stages: Real | float = (
        (1 + unit_roundoff(precisions.score)) ** 2
        * (1 + unit_roundoff(precisions.operand)) ** 8
        * (1 + unit_roundoff(precisions.feature)) ** 4
    )
    # States are carried forwards over keys and backwards over queries.
    for dtype in (precisions.state, precisions.normalizer):
        if dtype:
            u = unit_roundoff(dtype)
            stages = stages * (1 + gamma(keys + 1, u)) * (1 + gamma(length + 1, u))
    own = 1 + gamma(h + keys, unit_roundoff("float64"))
    return np.asarray((1 + rounded) * stages * own)
