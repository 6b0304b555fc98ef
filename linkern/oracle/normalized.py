r"""Linear attention on features as one operation of a tape, with its adjoint.

Notation of `linkern.oracle.sums`, with a cotangent ``g_i`` of the output and the
divisor ``D_i`` (the denominator, with a declared epsilon). For ``L = sum_i g_i.o_i``,

    W_ij = (g_i.v_j - g_i.o_i) / D_i        for j <= i, 0 elsewhere
    dL/da_i = sum_j W_ij b_j,   dL/db_j = sum_i W_ij a_i,
    dL/dv_j = sum_i (a_i.b_j) g_i / D_i.

The second term of ``W`` is the path through the normalizer; without normalisation it is
absent and ``D = 1``. A memory ``S_0`` with normalizer ``z_0`` before the first key are
``K`` more keys, the unit vectors, with the rows of ``S_0`` for values, each of which
counts ``z_0k`` times in the denominator.

Every term is a product with at most two divisions by a computed ``D'``, whose relative
error ``e_D`` is that of the forward pass. So a computed gradient differs from the exact
one by at most

    ((1 + gamma_h) / (1 - e_D)^2 - 1) times the same sums over absolute values,

where ``h`` counts the sums over keys (twice: inside ``o_i`` and over ``j``), queries,
features and channels. The absolute values of ``W`` are ``(|g|.|v_j| + |g|.G_i)/|D_i|``
with the gauge ``G_i`` of the output, which is what makes the difference ``v_j - o_i``
testable without an absolute tolerance.

This is one operation because its adjoint is bounded as a whole: a product of balls, one
per step, would take the square root of each of its counts of roundings by itself in the
probabilistic tier, and count channels twice on the path through the normalizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import sums
from linkern.oracle.balls import Ball, Rounding, added, contracted
from linkern.oracle.bounds import (
    Bounded,
    Precisions,
    gamma,
    smallest,
    unit_roundoff,
)
from linkern.oracle.sums import Evaluation, Quotient, Sums
from linkern.oracle.tape import Node, Tape

__all__ = ["feature_gradients", "normalized_read"]

Real = NDArray[np.float64]

# Roundings of a term besides those in its sums: products, quotients, a difference, a
# scale that is put in and taken out.
_PRODUCTS = 14


@dataclass(frozen=True)
class _Factors:
    """Factors of the sums, as values or as magnitudes.

    Parameters
    ----------
    query, key : array (..., T, K), (..., S, K)
        Features.
    value : array (..., S, V)
        Values.
    memory, normalizer : array (..., K, V), (..., K)
        The state before the first key.
    query_error, key_error : array
        Admitted absolute errors of the features, of their shapes.
    causal : bool
        Whether query i sees keys 0..i only.
    """

    query: Real
    key: Real
    value: Real
    memory: Real
    normalizer: Real
    query_error: Real
    key_error: Real
    causal: bool

    def masked(self, pairs: Real) -> Real:
        """Return pairs ``(..., T, S)`` with zeros where key j is not seen."""
        return np.tril(pairs) if self.causal else pairs

    @cached_property
    def pairs(self) -> Real:
        """The weight of each pair, ``(..., T, S)``."""
        return self.masked(self.query @ np.swapaxes(self.key, -1, -2))

    @cached_property
    def denominator(self) -> Real:
        """The sum of the weights of each row, ``(..., T, 1)``."""
        total = self.pairs.sum(-1, keepdims=True)
        if self.begun:
            total = total + self.query @ self.normalizer[..., None]
        return np.asarray(total)

    @cached_property
    def begun(self) -> bool:
        """True if there is a state before the first key."""
        return bool(self.memory.any() or self.normalizer.any())

    @property
    def keys_seen(self) -> Real:
        """The number of terms that row i sums, ``(T, 1)``."""
        length, keys = self.query.shape[-2], self.key.shape[-2]
        return sums.keys_seen(length, keys, causal=self.causal) + self.begun

    def absolute(self) -> "_Factors":
        """Return the magnitudes of all factors."""
        return replace(
            self,
            query=abs(self.query),
            key=abs(self.key),
            value=abs(self.value),
            memory=abs(self.memory),
            normalizer=abs(self.normalizer),
        )

    def gauged(self) -> "_Factors":
        """Return the largest magnitudes that admitted errors allow."""
        absolute = self.absolute()
        return replace(
            absolute,
            query=absolute.query + self.query_error,
            key=absolute.key + self.key_error,
        )


def normalized_read(
    tape: Tape,
    query: Node,
    key: Node,
    value: Node,
    state: Sequence[Node],
    quotient: Quotient,
    *,
    causal: bool = True,
    exact: bool = False,
    output_dtype: str | None = None,
) -> tuple[Node, Node, Node]:
    """Read values by features, and divide by the sum of the weights.

    Parameters
    ----------
    tape : Tape
        Where to.
    query, key : Node (..., T, K), (..., S, K)
        Features.
    value : Node (..., S, V)
        Values, without a radius.
    state : sequence of Node
        Memory ``(..., K, V)`` and normalizer ``(..., K)`` before the first key.
    quotient : Quotient
        How the output is formed.
    causal : bool
        Whether query i sees keys 0..i only.
    exact : bool
        Whether every sum is an integer below 2^53.
    output_dtype : str, optional
        Dtype of the output, which a kernel may use again as it returned it.

    Returns
    -------
    Node, Node, Node
        Output, and the memory and the normalizer after the last key.
    """
    if any(node.ball.error is not None for node in (value, *state)):
        msg = "`value` and `state` must be exact, got a radius."
        raise ValueError(msg)
    memory, normalizer = state

    # Gradients need neither: what nobody asks for is not computed.
    @cache
    def evaluation() -> Evaluation:
        return sums.evaluate(
            query.value,
            key.value,
            value.value,
            causal=causal,
            query_error=query.ball.error,
            key_error=key.ball.error,
            state=np.concatenate([memory.value, normalizer.value[..., None]], axis=-1),
        )

    def read() -> Ball:
        return _output(evaluation(), quotient, tape.rounding, exact=exact)

    @cache
    def last() -> tuple[Ball, Ball]:
        return _state(evaluation(), tape.rounding)

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        g, *of_state = cotangents
        factors = _Factors(
            query.value,
            key.value,
            value.value,
            memory.value,
            normalizer.value,
            query.ball.radius,
            key.ball.radius,
            causal,
        )
        cotangent = np.zeros((*query.shape[:-1], value.shape[-1]))
        gradients = _gradients(
            factors,
            cotangent if g is None else g.value,
            quotient,
            tape.rounding,
            output_dtype,
        )
        for index, change in _of_state(key, value, of_state, tape.rounding):
            gradients[index] = added(gradients[index], change, tape.rounding)
        return gradients

    parents = [query, key, value, memory, normalizer]
    results = [read, lambda: last()[0], lambda: last()[1]]
    output, last_memory, last_normalizer = tape.record(results, parents, pullback)
    return output, last_memory, last_normalizer


def feature_gradients(
    query: Bounded,
    key: Bounded,
    value: Real,
    cotangent: Real,
    quotient: Quotient,
    precisions: Precisions,
    *,
    causal: bool,
    output_dtype: str,
    confidence: float | None = None,
) -> tuple[Bounded, Bounded, Bounded]:
    """Return the gradients of features and values with their any-order bounds.

    Parameters
    ----------
    query, key : Bounded (..., T, K), (..., S, K)
        Features with their admitted errors.
    value, cotangent : array (..., S, V), (..., T, V)
        Values, and the cotangent of the output.
    quotient, precisions, causal, output_dtype
        As for `normalized_read`.
    confidence : float, optional
        The lambda of the probabilistic tier; None for the proved one.

    Examples
    --------
    >>> one = np.ones((1, 1))
    >>> a, exact = Bounded(one, 0 * one), (Quotient(), Precisions("float32"))
    >>> options = {"causal": True, "output_dtype": "float32"}
    >>> gradients = feature_gradients(a, a, 3 * one, 5 * one, *exact, **options)
    >>> [x.output.item() for x in gradients]
    [0.0, 0.0, 5.0]
    """
    tape = Tape(Rounding(precisions, None, confidence))
    a, b = (Node(Ball(x.output, x.bound)) for x in (query, key))
    v = tape.constant(value)
    empty = np.zeros((*value.shape[:-2], key.output.shape[-1], value.shape[-1]))
    state = tape.constant(empty), tape.constant(empty.sum(-1))
    output, *_ = normalized_read(
        tape, a, b, v, state, quotient, causal=causal, output_dtype=output_dtype
    )
    gradients = tape.gradients([(output, Ball(cotangent))], [a, b, v])
    of_query, of_key, of_value = (ball.bounded() for ball in gradients)
    return of_query, of_key, of_value


def _output(
    evaluation: Evaluation,
    quotient: Quotient,
    rounding: Rounding | None,
    *,
    exact: bool,
) -> Ball:
    """Return the output, with a radius where there is a rounding."""
    if rounding is None:
        return Ball(sums.plain_output(evaluation.sums, quotient))
    if exact:
        bounded = sums.exact_output(evaluation, quotient, rounding.precisions)
    else:
        bounded = sums.bounded_output(
            evaluation,
            quotient,
            rounding.precisions,
            chunk_size=rounding.chunk_size,
            confidence=rounding.confidence,
        )
    return Ball(bounded.output, bounded.bound, bounded.sharp)


def _state(evaluation: Evaluation, rounding: Rounding | None) -> tuple[Ball, Ball]:
    """Return memory and normalizer after the last key."""
    if rounding is None:
        return Ball(evaluation.memory[..., :-1]), Ball(evaluation.memory[..., -1])
    memory, normalizer = sums.bounded_state(
        evaluation, rounding.precisions, chunk_size=rounding.chunk_size
    )
    return Ball(memory.output, memory.bound), Ball(normalizer.output, normalizer.bound)


def _of_state(
    key: Node, value: Node, cotangents: list[Ball | None], rounding: Rounding | None
) -> list[tuple[int, Ball]]:
    """Return the additions of cotangents of the last state, by index of the parent."""
    memory, normalizer = cotangents
    additions = []
    if memory is not None:
        to_key = contracted("...kv,...sv->...sk", memory, value.ball, rounding)
        to_value = contracted("...sk,...kv->...sv", key.ball, memory, rounding)
        additions += [(1, to_key), (2, to_value), (3, memory)]
    if normalizer is not None:
        ones = Ball(np.ones(value.shape[:-1]))
        to_key = contracted("...k,...s->...sk", normalizer, ones, rounding)
        additions += [(1, to_key), (4, normalizer)]
    return additions


def _gradients(
    factors: _Factors,
    cotangent: Real,
    quotient: Quotient,
    rounding: Rounding | None,
    output_dtype: str | None,
) -> list[Ball]:
    """Return gradients of query, key, value, memory and normalizer."""
    with np.errstate(all="ignore"):
        if rounding is None:
            divisor = _divisor(factors, quotient)
            exact = _terms(_shares(factors, quotient, divisor), cotangent, sign=-1.0)
            return [Ball(x) for x in exact]
        absolute, gauged = factors.absolute(), factors.gauged()
        divisor = _divisor(factors, quotient)
        error_d = _divisor_error(factors, absolute, gauged, quotient, divisor, rounding)
        growth = _growth(factors, rounding) / (1 - error_d) ** 2
        # Nothing is known of a row whose divisor is not.
        growth = np.where(np.isfinite(error_d), growth, np.inf)
        exact = _terms(_shares(factors, quotient, divisor), cotangent, sign=-1.0)
        size, saved = abs(cotangent), 1 + unit_roundoff(output_dtype)
        sizes = replace(quotient, scale=abs(quotient.scale)), abs(divisor)
        base = _terms(_shares(absolute, *sizes), size, sign=1.0)
        shares = _shares(gauged, *sizes)
        gauge = _terms(shares, size, sign=saved)
        # Gradients are linear in the cotangent: what grows with row i grows with g_i.
        rounded = _terms(shares, size * (growth - 1), sign=saved)
        accumulator = rounding.precisions.accumulator
        tiny = smallest(accumulator) * (factors.query.shape[-2] + _PRODUCTS)
        return [
            Ball(x, np.where(np.isnan(r), np.inf, r + (g - b) + tiny))
            for x, r, g, b in zip(exact, rounded, gauge, base, strict=True)
        ]


def _exact_sums(factors: _Factors) -> Sums:
    """Return the sums that a divisor is made of."""
    signed, gauge, slack = (
        x.sum(-1, keepdims=True)
        for x in (factors.query, abs(factors.query), factors.query_error)
    )
    feature_dim = factors.query.shape[-1]
    return Sums(np.zeros(0), factors.denominator, signed, gauge, slack, feature_dim)


def _divisor(factors: _Factors, quotient: Quotient) -> Real:
    """Return what outputs are divided by, ``(..., T, 1)``."""
    if not quotient.normalize:
        return np.ones((*factors.query.shape[:-1], 1))
    return sums.divisor(_exact_sums(factors), quotient)


def _divisor_error(
    factors: _Factors,
    absolute: _Factors,
    gauged: _Factors,
    quotient: Quotient,
    divisor: Real,
    rounding: Rounding,
) -> Real:
    """Return the relative error of the divisor, infinite where it may be zero."""
    if not quotient.normalize:
        return np.zeros_like(divisor)
    seen, feature_dim = factors.keys_seen, factors.query.shape[-1]
    rounding = replace(rounding, chunk_size=None)
    _, e_d = sums.relative_errors(seen, feature_dim, rounding)
    oracle_error = gamma(sums.depth(seen, feature_dim), unit_roundoff("float64"))
    reach, exact = gauged.denominator, _exact_sums(factors)
    error = (e_d + oracle_error) * reach + (reach - absolute.denominator)
    size = abs(quotient.scale) * reach
    error = sums.divisor_error(exact, quotient, error, rounding.unit, size)
    known = abs(divisor) > 2 * error
    if quotient.eps and quotient.eps_mode == "clamp":
        # On which side of the clamp a kernel is, rounding decides.
        known &= abs(quotient.scale * exact.denominator - quotient.eps) > error
    return np.where(known, error / abs(divisor), np.inf)


@dataclass(frozen=True)
class _Shares:
    """Scores over the divisors: the share of each pair and of each row of the state.

    Parameters
    ----------
    factors, quotient, divisor
        Of which they are made.
    pairs, memory : array (..., T, S), (..., T, K)
        The shares.
    output : array (..., T, V)
        What they weigh.
    """

    factors: _Factors
    quotient: Quotient
    divisor: Real
    pairs: Real
    memory: Real
    output: Real


def _shares(factors: _Factors, quotient: Quotient, divisor: Real) -> _Shares:
    """Return shares; over absolute values, the output is its gauge."""
    pairs = quotient.scale * factors.pairs / divisor
    memory = quotient.scale * factors.query / divisor
    output = pairs @ factors.value
    if factors.begun:
        output = output + memory @ factors.memory
    return _Shares(factors, quotient, divisor, pairs, memory, output)


def _terms(shares: _Shares, g: Real, *, sign: float) -> tuple[Real, ...]:
    """Return the sums of the closed form; over absolute values with a positive sign.

    The sign is that of the path through the normalizer. A kernel may form it from the
    output that it has returned, so there it is larger than one by its last rounding.
    """
    factors, divisor, quotient = shares.factors, shares.divisor, shares.quotient
    pairs = g @ np.swapaxes(factors.value, -1, -2)
    through = sign * (g * shares.output).sum(-1, keepdims=True)
    if not quotient.normalize or quotient.constant:
        through = np.zeros_like(through)
    elif quotient.eps_mode == "clamp":
        # Below the clamp the divisor is a constant.
        through = np.where(divisor > quotient.eps, through, 0.0)
    w = factors.masked(quotient.scale * (pairs + through) / divisor)
    of_query = w @ factors.key
    if factors.begun:
        direct = g @ np.swapaxes(factors.memory, -1, -2)
        weighed = through * factors.normalizer[..., None, :]
        of_query = of_query + quotient.scale * (direct + weighed) / divisor
    if quotient.normalize and quotient.eps and quotient.eps_mode == "normalizer":
        of_query = of_query + quotient.scale * quotient.eps * through / divisor
    back = np.swapaxes(shares.memory, -1, -2)
    return (
        of_query,
        np.swapaxes(w, -1, -2) @ factors.query,
        np.swapaxes(shares.pairs, -1, -2) @ g,
        back @ g,
        (back @ through)[..., 0],
    )


def _growth(factors: _Factors, rounding: Rounding) -> Real:
    """Return how much terms of row i can grow, the divisor aside; ``(T, 1)``."""
    keys, length = factors.keys_seen, float(factors.query.shape[-2])
    dims = factors.query.shape[-1] + factors.value.shape[-1]
    h = keys + np.maximum(keys, length) + dims + _PRODUCTS
    precisions = rounding.precisions
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
    oracle_error = 1 + gamma(h + keys, unit_roundoff("float64"))
    return np.asarray((1 + rounding.rounded(h)) * stages * oracle_error)
