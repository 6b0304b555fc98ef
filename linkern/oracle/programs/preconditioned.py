"""Delta rules whose writes go along keys that are scaled by how much they were used."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, Rounding, contracted
from linkern.oracle.calls import Call, column, reshaped
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Node

__all__ = ["preconditioned"]

Real = NDArray[np.float64]
# A number of the equation, and those of calls that name none.
_EPS = 1e-6
_CENTER, _LOG_RANGE = -0.2, np.log(1.5)


def preconditioned(call: Call) -> tuple[Node, tuple[Node, ...]]:
    """Return ``S = R + beta w (v - R^T k)^T``, ``R = e^g S``, ``w`` the scaled key."""
    tape, key = call.tape, call.shared("key")
    sums, last = _sums_of_squares(call, key)
    written, off = _written(call, key, sums)
    written = tape.part("scaled key", written)
    decay = call.get("log_decay")
    if decay is not None and len(decay.shape) < len(call["value"].shape):
        decay = column(tape, decay)
    output, memory = scanned(
        tape,
        query=tape.product(call.shared("query"), coefficient=call.scale),
        key=tape.product(written, call.per_channel("beta")),
        value=call["value"],
        state=call.state[0],
        log_decay=decay,
        erase=key,
        off=off,
    )
    return output, (memory, last)


def _sums_of_squares(call: Call, key: Node) -> tuple[Node, Node]:
    """Return ``A = e^a A + b k^2`` after each token, and after the last."""
    tape, (length, size) = call.tape, key.shape[-2:]
    ones = tape.constant(np.ones((length, 1)))
    lead = call["value"].shape[:-2]
    sums, last = scanned(
        tape,
        query=ones,
        key=tape.product(key, key, call.per_channel("preconditioner_beta")),
        value=ones,
        state=reshaped(tape, call.state[1], (*lead, size, 1)),
        log_decay=call.per_channel("preconditioner_log_decay"),
        transpose_state=True,
        depth=2,
        memory="the preconditioner",
    )
    sums = tape.part("preconditioner", sums)
    return sums, reshaped(tape, last, (*lead, size))


def _written(call: Call, key: Node, sums: Node) -> tuple[Node, float]:
    """Return ``k exp(-log_range r / (1 + |r|))``, and its largest relative error.

    Here ``r = log(A + eps) - center``.
    """
    tape, rounding = call.tape, call.tape.rounding
    center, log_range = (
        column(tape, column(tape, call[name]))
        if name in call.inputs
        else tape.constant(np.full((1, 1), default))
        for name, default in (("center", _CENTER), ("log_range", _LOG_RANGE))
    )
    squash = _Squash.of(sums, center.value, log_range.value, rounding)

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        (g,) = cotangents
        assert g is not None
        of_factor = contracted("...,...->...", g, key.ball, rounding)
        slopes = squash.to_sums, squash.to_center, squash.to_range
        return [
            contracted("...,...->...", g, squash.factor, rounding),
            *(contracted("...,...->...", of_factor, x, rounding) for x in slopes),
        ]

    written = key.ball  # exactly, where all factors are exp(0)
    if log_range.value.any():
        written = contracted("...,...->...", key.ball, squash.factor, rounding)
    parents = [key, sums, center, log_range]
    (node,) = tape.record([written], parents, pullback)
    if rounding is None or not log_range.value.any():
        return node, 0.0
    relative = squash.factor.radius / squash.factor.value
    return node, float(relative.max(initial=0.0) + 2 * rounding.grown(4))


@dataclass(frozen=True)
class _Squash:
    """The factor of each channel, and its derivatives."""

    factor: Ball
    to_sums: Ball
    to_center: Ball
    to_range: Ball

    @classmethod
    def of(
        cls, sums: Node, center: Real, log_range: Real, rounding: Rounding | None
    ) -> "_Squash":
        total = sums.value + _EPS
        logarithm = np.log(total)
        r = logarithm - center
        s, narrowed = _squashed(r), 1 / (1 + abs(r)) ** 2
        factor = np.exp(-log_range * s)
        slope = log_range * factor * narrowed
        values = factor, -slope / total, slope, -s * factor
        if rounding is None:
            return cls(*map(Ball, values))

        few = float(rounding.grown(8))
        off = sums.ball.radius / total + few  # of the sum, relatively
        certain = off < 1
        off = np.where(certain, off, 0.0)
        moved = -np.log1p(-off) + few * (1 + abs(logarithm) + abs(r))
        most = np.maximum(_squashed(r + moved) - s, s - _squashed(r - moved))
        of_s = most + few * abs(s)
        of_factor = factor * np.expm1(abs(log_range) * (of_s + few) + few)
        # Whatever the sum is, the factor has its range; exp(0) is 1 and does not round.
        reach = np.exp(abs(log_range))
        of_factor = np.fmin(np.where(certain, of_factor, np.inf), 2 * reach)
        of_factor = np.where(log_range == 0, 0.0, of_factor + rounding.tiny)
        of_range = abs(s) * of_factor + of_s * (factor + of_factor) + few * abs(s)

        # The square of 1 + |r|, the factor, and the products of both.
        near = np.maximum(1 + abs(r) - moved, 1.0)
        of_narrowed = 1 / near**2 - narrowed + few * narrowed
        of_slope = abs(log_range) * (
            narrowed * of_factor + of_narrowed * (factor + of_factor)
        )
        of_slope = of_slope + few * abs(slope) + rounding.tiny
        of_sums = (of_slope + off * (abs(slope) + of_slope)) / (total * (1 - off))
        # Both slopes are products with the range; of any sum, |s| is at most 1.
        ranged, nothing = log_range != 0, np.where(certain, 0.0, np.inf)
        of_sums, of_slope = (
            np.where(ranged, x + nothing, 0.0) for x in (of_sums, of_slope)
        )
        of_range = np.fmin(of_range + nothing, 3 * reach)
        errors = of_factor, of_sums, of_slope, of_range
        return cls(*(Ball(x, e) for x, e in zip(values, errors, strict=True)))


def _squashed(r: Real) -> Real:
    return np.asarray(r / (1 + abs(r)))
