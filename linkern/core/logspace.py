r"""Running weighted averages whose weights are given by their logarithms.

Weights ``exp(l_j)``, forgotten by ``exp(w)`` from token to token, can be of any size;
their logarithmic sum ``z_t = log(e^{z_{t-1} + w} + e^{l_t})`` and the average cannot.
With ``d_t = l_t - (z_{t-1} + w)``, the average obeys

    m_t = exp(-softplus(d_t)) m_{t-1} + sigmoid(d_t) x_t,

a decay and a weight between 0 and 1 that add up to 1: terms of the recurrence like any
others.
"""

from typing import NamedTuple, cast

from linkern.array import concat, namespace
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
    before : array (..., T, D)
        ``z_{t-1}``.
    last : array (..., D)
        ``z`` after the last token.
    """

    log_decay: Array
    weight: Array
    before: Array
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
    forgetting : array (..., 1, D), optional
        ``w``, what is added to ``z`` from token to token. Default: nothing.
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
    return Averaging(log_decay, sigmoid(distance), before, last)


def _above_nothing(x: Array) -> Array:
    """Return `x` with a finite stand-in for ``-inf``."""
    xp = namespace(x)
    return cast(Array, xp.where(x < _NOTHING, _NOTHING + xp.zeros_like(x), x))


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    xp = namespace(x)
    return cast(Array, xp.exp(-xp.logaddexp(xp.zeros_like(x), -x)))


def _running(logits: Array, first: Array, forgetting: Array | None) -> Array:
    """Return ``z_t`` for ``t = -1, 0, ..., T - 1``: a scan by doubling.

    After step n each entry holds the sum over the last ``2^n`` tokens, and the
    forgetting over as many. Nothing is subtracted, so nothing cancels.
    """
    xp = namespace(logits)
    sums = concat([first[..., None, :], logits], axis=-2)
    length, reach = sums.shape[-2], 1
    while reach < length:
        earlier = sums[..., : length - reach, :]
        if forgetting is not None:
            earlier = earlier + reach * forgetting
        combined = xp.logaddexp(sums[..., reach:, :], earlier)
        sums = concat([sums[..., :reach, :], combined], axis=-2)
        reach *= 2
    return sums
