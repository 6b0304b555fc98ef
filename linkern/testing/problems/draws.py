"""Draws of each sort of input of operators with gates, token by token.

Keys that erase have a length of one most of the time, rates lie between 0 and 2,
log-decays are never positive.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.context import Scope
from linkern.testing.problems.kinds import Kind
from linkern.testing.problems.tokens import per_token, uniform

__all__ = ["DRAWS", "POSITIVE", "RATES", "erasing_vectors", "normal", "unit"]

Real = NDArray[np.float64]
Draw = Callable[[Scope, np.random.Generator, tuple[int, ...], Kind], Real]

RATES = (
    *("beta", "removal_rate", "erase_gate", "write_gate", "preconditioner_beta"),
    *("trapezoid", "momentum_beta"),
)
POSITIVE = ("slots", "level_scales", "ridge", "dt")
# From nothing at all to less than float32 holds.
STRONG = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0)
# Gates that stay, of heads that forget at once and of others that hardly do.
STEADY = (-5.0, -3.0, -0.1, -1e-3)
# The floor of a contract that declares none, as layers with a bounded gate have it.
FLOOR = -5.0
# Cosines between a key and the direction that all of them share.
COSINES = (0.9, 0.99, 0.999, 0.9999)
# Rates at which an erase is complete or a reflection, and their neighbours.
ENDS = (1.0, 2.0, 1 - 2.0**-7, 1 + 2.0**-7, 2 - 2.0**-6)
# An exponential of the first overflows in float32, one of the second in float64.
SHIFT, SPREAD = 95.0, 750.0


def normal(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], _: Kind
) -> Real:
    """Draw normal numbers."""
    del scope
    return per_token(rng, rows, lambda r, s: r.normal(size=s))


def unit(x: Real) -> Real:
    """Return rows of length one; rows of zeros stay."""
    norm = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.asarray(x / np.where(norm == 0, 1.0, norm))


def erasing_vectors(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw the vectors along which an operator erases."""
    free = unit(normal(scope, rng, rows, kind))
    one = (*rows[:-1], 1)
    if kind.keys == "long":
        return np.asarray(free * uniform(rng, one, 0.2, 1.1))
    if kind.keys == "short":
        return np.asarray(free * np.exp2(uniform(rng, one, -6, 0)))
    if kind.keys == "parallel":
        cosine, length = rng.choice(COSINES), rng.choice((1.0, 1.0, 0.9))
        shared = unit(rng.normal(size=(*rows[:-2], 1, rows[-1])))
        turned = cosine * shared + np.sqrt(1 - cosine**2) * free
        return np.asarray(length * unit(turned))
    if kind.keys == "repeated":
        few = unit(rng.normal(size=(*rows[:-2], 3, rows[-1])))
        if scope.contract.l2norm != 0:
            few[..., 2, :] = 0
        chosen = per_token(rng, one, lambda r, s: r.choice(3, s, p=(0.5, 0.4, 0.1)))
        return np.asarray(np.take_along_axis(few, chosen, axis=-2))
    return free


def _log_decay(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw natural log-decays; those below the floor are raised to it later."""
    free = normal(scope, rng, rows, kind)
    if kind.decays == "open":
        return np.zeros(rows)
    if kind.decays == "typical":
        return _log_sigmoid(free + 2)
    if kind.decays == "strong":
        return per_token(rng, rows, lambda r, s: r.choice(STRONG, s))
    if kind.decays == "smooth":
        return -uniform(rng, rows, 0.01, 1.0)
    if kind.decays == "steady":
        steady = rng.choice(STEADY, (*rows[:-2], 1, rows[-1]))
        return np.broadcast_to(steady, rows)
    if kind.decays == "floor":
        floor = max(FLOOR, scope.contract.decay_floor)
        ends = np.array((0.0, floor, floor * (1 - 2.0**-7), floor * 2.0**-7))
        return per_token(rng, rows, lambda r, s: r.choice(ends, s))
    if kind.decays == "sharp":
        sharpness = rng.choice((1.0, 4.0, 20.0))
        there = per_token(rng, rows, lambda r, s: r.random(s) < 0.7)
        return np.asarray(np.where(there, sharpness * _log_sigmoid(free), 0.0))
    if kind.decays == "trained":
        if rng.random() < 0.5:
            return np.asarray(_log_sigmoid(free) / 16)
        # A state space model: exp(A) from 1 to 16, steps of 0.001 to 0.1.
        rate = rng.uniform(1, 16, (*rows[:-2], 1, rows[-1]))
        step = np.exp(rng.uniform(np.log(0.001), np.log(0.1), rate.shape))
        return np.asarray(-rate * np.logaddexp(0.0, free + np.log(np.expm1(step))))
    return np.asarray(-abs(free) / 10)


def _log_sigmoid(x: Real) -> Real:
    return np.asarray(-np.logaddexp(0.0, -x))


def _rate(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    if kind.rates == "ends":
        # One number for a token: channels that differ here would let a state grow.
        one = (*rows[:-1], 1)
        grows = scope.operator.early_erase and kind.decays != "open"
        ends = rng.choice([x for x in ENDS if x <= 1 or not grows], rng.integers(1, 3))
        drawn = per_token(rng, one, lambda r, s: r.choice(ends, s))
        return np.broadcast_to(drawn, rows)
    if kind.rates == "sigmoid":
        return np.asarray(np.exp(_log_sigmoid(normal(scope, rng, rows, kind))))
    low, high = (0.1, 0.9) if kind.rates == "smooth" else (0.0, 1.0)
    return uniform(rng, rows, low, 1.6 if kind.rates == "large" else high)


def _share(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw rates up to one, and one itself."""
    return np.minimum(_rate(scope, rng, rows, kind), 1.0)


def _weight(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    del scope, kind
    return uniform(rng, rows, 0.25, 1.25)


def _range(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw logarithms of factors on keys, none far from what models have."""
    del scope, kind
    return uniform(rng, rows, 0.0, 0.5)


def _logit(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw logarithms of weights: without their largest, exponentials overflow."""
    free = normal(scope, rng, rows, kind)
    if kind.logits == "shifted":
        shift = rng.choice((-SHIFT, SHIFT), (*rows[:-2], 1, rows[-1]))
        return np.asarray(free + shift)
    if kind.logits == "spread":
        return uniform(rng, rows, -SPREAD, SPREAD)
    return free


def _score(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw queries whose products with keys are logarithms of weights."""
    factor = {"normal": 1.0, "shifted": SHIFT, "spread": SPREAD}[kind.logits]
    return np.asarray(factor * normal(scope, rng, rows, kind))


def _exponent(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw logarithms of weights whose exponentials overflow, and do not underflow.

    In float32 none is larger: sums of weights over the largest lose a part of it at
    every token.
    """
    stages = scope.stages | {scope.output_dtype}
    wide = stages == {"float64"}
    drawn = _logit(scope, rng, rows, kind)
    if kind.logits == "spread" and not wide:
        drawn = uniform(rng, rows, -SHIFT, SHIFT)
    least = -500.0 if wide else -4.0 if "float16" in stages else -20.0
    return np.maximum(drawn, least)


def _signed(
    scope: Scope, rng: np.random.Generator, rows: tuple[int, ...], kind: Kind
) -> Real:
    """Draw vectors whose entries are of one sign: no product with weights cancels."""
    one = (*rows[:-1], 1)
    sign = per_token(rng, one, lambda r, s: r.choice((-1.0, 1.0), s))
    return np.asarray(sign * _weight(scope, rng, rows, kind))


DRAWS: dict[str, Draw] = {
    "log_decay": _log_decay,
    "log_decay_rate": _log_decay,
    "log_range": _range,
    "removal_key": erasing_vectors,
    "a": erasing_vectors,
    "unit": erasing_vectors,
    "positive": _weight,
    "logit": _logit,
    "score": _score,
    "exponent": _exponent,
    "signed": _signed,
    **dict.fromkeys(RATES, _rate),
    **dict.fromkeys(("trapezoid", "momentum_beta"), _share),
    **dict.fromkeys(POSITIVE, _weight),
}
