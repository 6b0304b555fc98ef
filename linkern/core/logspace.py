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
    """Return ``z_t`` for ``t = -1, 0, ..., T - 1``: a scan by doubling.

    After step n each entry holds the sum over the last ``2^n`` tokens, and the
    forgetting over as many. Nothing is subtracted, so nothing cancels.
    """
    xp = namespace(logits)
    sums = concat([first[..., None, :], logits], axis=-2)
    length, reach = sums.shape[-2], 1
    if forgetting is not None and forgetting.shape[-2] not in (1, 0):
        return _running_under_gates(sums, forgetting)
    while reach < length:
        earlier = sums[..., : length - reach, :]
        if forgetting is not None:
            earlier = earlier + reach * forgetting
        combined = xp.logaddexp(sums[..., reach:, :], earlier)
        sums = concat([sums[..., :reach, :], combined], axis=-2)
        reach *= 2
    return sums


def _running_under_gates(sums: Array, forgetting: Array) -> Array:
    """Return the same, where what is forgotten differs from token to token."""
    xp = namespace(sums)
    length, reach = sums.shape[-2], 1
    # Over the tokens of a sum; that of the first entry goes nowhere.
    gates = concat([xp.zeros_like(sums[..., :1, :]), forgetting], axis=-2)
    while reach < length:
        late = (..., slice(reach, None), slice(None))
        early = (..., slice(None, length - reach), slice(None))
        begun = (..., slice(None, reach), slice(None))
        combined = xp.logaddexp(sums[late], sums[early] + gates[late])
        sums = concat([sums[begun], combined], axis=-2)
        gates = concat([gates[begun], gates[late] + gates[early]], axis=-2)
        reach *= 2
    return sums
