r"""Running weighted averages whose weights are given by their logarithms.

Weights ``exp(l_j)``, forgotten by ``exp(w)`` from token to token, can be of any size;
their logarithmic sum ``z_t = log(e^{z_{t-1} + w} + e^{l_t})`` and the average cannot.
With ``d_t = l_t - (z_{t-1} + w)``, the average obeys

    m_t = exp(-softplus(d_t)) m_{t-1} + sigmoid(d_t) x_t,

a decay and a weight between 0 and 1 that add up to 1: terms of the recurrence like any
others.
"""

from typing import NamedTuple, cast

from linkern.array import concat, namespace, reshape
from linkern.typing import Array

# Stands for the logarithm of nothing: far below any weight, and finite,
# so that neither these sums nor the gradients of any library meet ``inf - inf``.
_NOTHING = -1e30

__all__ = ["Averaging", "averaging", "sigmoid"]


class Averaging(NamedTuple):
    """Terms of the recurrence that logarithms of weights turn into.

    Parameters
    ----------
    log_decay, weight : array (..., T, D)
        ``-softplus(d_t)`` and ``sigmoid(d_t)``.
    before, after : array (..., T, D)
        ``z_{t-1}`` and ``z_t``; far below any weight where there has been none.
    last : array (..., D)
        ``z`` after the last token.
    """

    log_decay: Array
    weight: Array
    before: Array
    after: Array
    last: Array


def averaging(
    logits: Array, first: Array, forgetting: Array | None = None
) -> Averaging:
    """Return the running average with weights ``exp(logits)``.

    Parameters
    ----------
    logits : array (..., T, D)
        Logarithms of the weights.
    first : array (..., D)
        ``z`` before the first token; ``-inf`` if there has been none.
    forgetting : array (..., 1, D) or (..., T, D), optional
        ``w``, what is added to ``z`` from token to token, one for all or one for each.
        Default: nothing.
    """
    xp = namespace(logits)
    first = _above_nothing(first)
    if forgetting is not None:
        forgetting = _above_nothing(forgetting)
    sums = _running(_above_nothing(logits), first, forgetting)
    before = sums[..., :-1, :]
    reference = before if forgetting is None else before + forgetting
    distance = logits - reference
    log_decay = -xp.logaddexp(xp.zeros_like(distance), distance)
    last = sums[..., -1, :]
    last = xp.where(last < _NOTHING / 2, -float("inf") + xp.zeros_like(last), last)
    after = sums[..., 1:, :]
    return Averaging(log_decay, sigmoid(distance), before, after, last)


def _above_nothing(x: Array) -> Array:
    """Return `x` with a finite stand-in for ``-inf``."""
    xp = namespace(x)
    return cast(Array, xp.where(x < _NOTHING, _NOTHING + xp.zeros_like(x), x))


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    xp = namespace(x)
    return cast(Array, xp.exp(-xp.logaddexp(xp.zeros_like(x), -x)))


def _running(logits: Array, first: Array, forgetting: Array | None) -> Array:
    """Return ``z_t`` for ``t = -1, 0, ..., T - 1``. Nothing is subtracted."""
    xp = namespace(logits)
    start = first[..., None, :]
    if logits.shape[-2] == 0:
        return start
    at_start = start if forgetting is None else start + forgetting[..., :1, :]
    begun = xp.logaddexp(logits[..., :1, :], at_start)
    sums = _scanned(concat([begun, logits[..., 1:, :]], axis=-2), forgetting)
    return concat([start, sums], axis=-2)


def _scanned(x: Array, forgetting: Array | None) -> Array:
    """Return ``log sum_{j<=t} exp(x_j + w_{j+1} + ... + w_t)`` for each token t.

    A scan over pairs of tokens, and over pairs of these: about two sums a token.
    """
    xp, length = namespace(x), x.shape[-2]
    if length == 1:
        return x
    if length % 2:
        last = (..., slice(-1, None), slice(None))
        gates = forgetting
        if forgetting is not None and forgetting.shape[-2] != 1:
            forgetting, gates = forgetting[..., :-1, :], forgetting[last]
        sums = _scanned(x[..., :-1, :], forgetting)
        before = sums[last] if gates is None else sums[last] + gates
        return concat([sums, xp.logaddexp(x[last], before)], axis=-2)
    first, second = _halves_of_pairs(x)
    if forgetting is None:
        ends = _scanned(xp.logaddexp(second, first), None)
        before = ends[..., :-1, :]
    else:
        one, other = (
            (forgetting, forgetting)
            if forgetting.shape[-2] == 1
            else _halves_of_pairs(forgetting)
        )
        ends = _scanned(xp.logaddexp(second, first + other), one + other)
        before = ends[..., :-1, :] + (one if one.shape[-2] == 1 else one[..., 1:, :])
    later = xp.logaddexp(first[..., 1:, :], before)
    starts = concat([first[..., :1, :], later], axis=-2)
    both = concat([starts[..., None, :], ends[..., None, :]], axis=-2)
    return reshape(both, tuple(x.shape))


def _halves_of_pairs(x: Array) -> tuple[Array, Array]:
    """Return the rows of the first and of the second token of each pair."""
    *lead, length, dim = x.shape
    pairs = reshape(x, (*lead, length // 2, 2, dim))
    return pairs[..., 0, :], pairs[..., 1, :]
