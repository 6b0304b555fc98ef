"""Quotients whose divisor has a floor, with the errors of their two cases."""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.balls import Ball, Rounding, contracted, quotient
from linkern.oracle.tape import Node, Tape

__all__ = ["floored"]

Real = NDArray[np.float64]
# Roundings that one exponential is admitted.
_ULPS = 8
# Powers of two that dtypes do not hold, where they are not those of float32.
_EXPONENTS = {"float64": 1024, "float16": 16}
# Logarithm of the tokens by which the sum of weights is above the largest of them.
_COUNTS = 8.0


def floored(
    tape: Tape, above: Node, below: Node, log_weight: Node, *, constant: bool = False
) -> Node:
    r"""Return ``e^z a / max(|e^z b|, 1)`` for rows ``a`` of numbers ``b`` and ``z``.

    It is ``a / |b|`` or ``e^z a``. Where rounding can tell one case for the other, the
    result is close to both, but the gradients are not: those of either are admitted.
    Kernels divide by ``max(|b|, e^-z)``, and automatic differentiation by its square:
    where that overflows, the gradients of the divisor may be lost.

    Parameters
    ----------
    tape : Tape
        Where to.
    above : Node (..., T, V)
        ``a``.
    below, log_weight : Node (..., T, 1)
        ``b`` and ``z``.
    constant : bool
        Whether gradients hold the divisor constant.
    """
    rounding, z = tape.rounding, log_weight.ball
    lift = _exponential(np.minimum(z.value, 0), z.radius, rounding)
    floor = _exponential(-np.maximum(z.value, 0), z.radius, rounding)
    size = Ball(abs(below.value), below.ball.error)
    raised = contracted("...,...->...", lift, size, rounding)
    divisor = Ball(np.maximum(raised.value, floor.value))
    doubtful = np.zeros(z.value.shape, dtype=bool)
    if rounding is not None:
        margin = raised.radius + floor.radius
        unsure = abs(raised.value - floor.value) <= margin
        exponent = _EXPONENTS.get(rounding.precisions.accumulator, 128)
        squares = -z.value > np.log(2.0) * exponent / 2 - _COUNTS
        doubtful = unsure | squares
        divisor = Ball(divisor.value, np.maximum(raised.radius, floor.radius))
    lifted = contracted("...,...->...", lift, above.ball, rounding)
    result = quotient(lifted, divisor, rounding)
    divided = raised.value > floor.value
    # Over a constant, the result is ``e^z a`` times a number.
    by_divisor = divided & ~np.asarray(constant)

    def pullback(cotangents: list[Ball | None]) -> list[Ball]:
        (g,) = cotangents
        assert g is not None
        slope = quotient(lift, divisor, rounding)
        to_above = contracted("...,...->...", g, slope, rounding)
        along = contracted("...v,...v->...", g, result, rounding)
        along = Ball(
            along.value[..., None],
            None if along.error is None else along.error[..., None],
        )
        by_size = contracted("...,...->...", along, slope, rounding)
        sign = np.sign(below.value)
        to_below = Ball(
            np.where(by_divisor, -sign * by_size.value, 0.0),
            None if rounding is None else np.where(by_divisor, by_size.radius, 0.0),
        )
        to_weight = Ball(np.where(by_divisor, 0.0, along.value))
        if rounding is not None:
            # Kernels that divide by a weight take out again what they put in.
            products = contracted(
                "...v,...v->...", _reached(g), _reached(result), rounding
            ).reach[..., None]
            left = 4 * rounding.grown(g.value.shape[-1] + 16) * products
            to_weight = Ball(to_weight.value, along.radius + left)
        if doubtful.any() and not constant:
            to_below, to_weight = (
                Ball(x.value, x.radius + np.where(doubtful, either.reach, 0.0))
                for x, either in ((to_below, by_size), (to_weight, along))
            )
        return [to_above, to_below, to_weight]

    parents, roles = [above, below, log_weight], ("numerator", "denominator", "")
    return tape.record([result], parents, pullback, roles)[0]


def _exponential(x: Real, radius: Real, rounding: Rounding | None) -> Ball:
    """Return ``exp(x)`` of exponents that are off by a radius."""
    value = np.exp(x)
    if rounding is None:
        return Ball(value)
    units = _ULPS * rounding.unit * (1 + abs(x))
    return Ball(value, value * np.expm1(radius + units) + rounding.tiny)


def _reached(x: Ball) -> Ball:
    return Ball(x.reach)
