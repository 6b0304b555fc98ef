"""Relative error of one term of the recurrence: its roundings, and its weight."""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Rounding
from linkern.oracle.bounds import gamma, unit_roundoff

__all__ = ["row_errors"]

Real = NDArray[np.float64]

# Roundings of a term besides those of its sums: preparatory products (beta, scale, a
# gate), the decay's exponential to two ulps and its product, the last update.
_PRODUCTS = 12
# Those of a weight between two memories: the share, and the product of two decays.
_FOLLOWING = 4


def row_errors(
    rounding: Rounding,
    log_decay: Real,
    depth: int,
    rows_per_token: int,
    *,
    pair: bool = False,
    exact: bool = False,
) -> tuple[Real, Real]:
    """Return ``e_t``, ``(..., R, 1)``, and the part of it that no decay adds to.

    Parameters
    ----------
    rounding : Rounding
        The declared arithmetic.
    log_decay : array (..., R, K)
        Log-decays of the rows; a weight is formed from differences of sums of up to
        ``n`` of them, so that its relative error is ``exp((2 n + 6) u sum|g|) - 1``;
        the declared errors of gates that the kernel makes itself add to the exponent.
    depth : int
        Over how many channels a term is summed in all.
    rows_per_token : int
        How many rows a token of a declared chunk has.
    pair : bool
        Whether the channels are two memories, one of which follows the other. A weight
        is then a sum over the tokens in between, of products of two decays and a share.
        A momentum that forgets all, with a log-decay of -inf, begins its sums anew:
        without momentum, all tokens do, and finite numbers in their place would leave
        nothing of a proof.
    exact : bool
        Whether log-decays are 0 or -inf, so that these sums have no errors.
    """
    length = log_decay.shape[-2]
    seen = np.arange(1.0, length + 1)
    inside, carries = seen, seen
    window = None
    if rounding.chunk_size is not None:
        window = rounding.chunk_size * rows_per_token
        inside, carries = np.minimum(seen, window), np.ceil(seen / window)
        window = window if rounding.chunk_size > 1 else 0
    reach = _decayed(log_decay, rounding.lowest, window)
    summed = inside if inside is carries else inside + carries
    if pair:
        half = reach.shape[-1] // 2
        lowest = 0.0 if exact else rounding.lowest
        since = _since_forgotten(log_decay[..., half:], lowest)
        halves = reach[..., :half], np.minimum(reach[..., half:], since)
        largest = sum(x.max(axis=-1, initial=0.0) for x in halves)
        summed = 2 * summed + _FOLLOWING
    else:
        largest = reach.max(axis=-1, initial=0.0)
    errors = 2 * inside + 6
    if rounding.confidence is not None and not rounding.precisions.truncates:
        errors = np.minimum(errors, 2 * rounding.confidence * np.sqrt(inside) + 6)
    made = rounding.precisions
    exponent = (errors + made.gate_roundings) * rounding.unit * largest
    weight = np.expm1(exponent + made.gate_error * seen)
    products = 6 + 2 * (made.score is not None)
    rounded = rounding.grown(summed + depth + _PRODUCTS + made.rate_roundings, products)
    state = rounding.precisions.state
    if state is not None:
        carried = gamma(carries + 1, unit_roundoff(state))
        rounded = (1 + rounded) * (1 + carried) - 1
    error = np.asarray((1 + rounded) * (1 + weight) - 1)
    return error[..., None], np.broadcast_to(rounded, error.shape)[..., None]


def _decayed(log_decay: Real, lowest: float, window: int | None) -> Real:
    """Return how large the sums of log-decays are that a weight of row t is made from.

    Without chunks, all earlier ones. With chunks, the sums inside the first and the
    last chunk that a weight crosses, and whole chunks in between, which are at most
    `lowest` unless the weight vanishes; chunks of one token have no sums inside.
    """
    sizes = np.where(np.isinf(log_decay), lowest, abs(log_decay))
    total = np.cumsum(sizes, axis=-2)
    if window is None:
        return np.asarray(total)
    if window == 0:
        capped = np.cumsum(np.minimum(sizes, lowest), axis=-2)
        return np.asarray(np.minimum(capped, lowest))
    before = np.zeros_like(total)
    before[..., window:, :] = total[..., :-window, :]
    worst = np.maximum.accumulate(total - before, axis=-2)
    return np.asarray(np.minimum(total, 2 * worst + lowest))


def _since_forgotten(log_decay: Real, lowest: float) -> Real:
    """Return the sums of log-decays since the last that is infinite, and once that."""
    gone = np.isinf(log_decay)
    total = np.cumsum(np.where(gone, 0.0, abs(log_decay)), axis=-2)
    before = np.maximum.accumulate(np.where(gone, total, 0.0), axis=-2)
    since = total - before
    # Sums of nothing but zeros are exact, and e^-inf is 0.
    inexact = np.maximum.accumulate(gone, axis=-2) & (since > 0)
    return np.asarray(since + np.where(inexact, lowest, 0.0))
