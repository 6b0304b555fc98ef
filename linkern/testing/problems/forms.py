"""Forms in which targets take gates: what a number means, and what has a meaning.

Decays are natural logarithms to another base, factors, or raw: the kernel makes
``-exp(A_log) softplus(x + b)``, ``floor sigmoid(exp(A_log) (x + b))`` or
``log(sigmoid(x))`` of them. Rates are themselves, or logits of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import Input
from linkern.testing.spec.raw_gates import (
    RAW_FORMS,
    SOFTPLUS_THRESHOLD,
    gate_parameters,
)

__all__ = ["Change", "Form", "form_of", "is_raw"]

Real = NDArray[np.float64]
Change = Callable[[Real, Real], tuple[Real, Real]]

# A raw number whose sigmoid and softplus are zero in every dtype, one whose sigmoid is
# one, and one behind whose softplus nothing is left of a memory.
SHUT, FULL, LEAVES_NOTHING = -1000.0, 40.0, 3e4
# Beyond this, a rate is as good as one.
_LARGEST_LOGIT = 16.0


@dataclass(frozen=True)
class Form:
    """One form of a gate.

    Parameters
    ----------
    meaning : callable
        From the numbers that a target takes to natural log-decays, or to rates.
    taken : callable
        From those back to numbers that a target can take, as near as there are any.
    slope : callable
        The derivative of `meaning`; infinite where no gradient is known.
    slope_error : callable
        What a kernel's slope may be off by: in units of rounding, and besides.
    """

    meaning: Callable[[Real], Real]
    taken: Callable[[Real], Real]
    slope: Callable[[Real], Real]
    slope_error: Callable[[Real], tuple[Real, Real | float]]

    def pulled_back(self, x: Real, gradient: Bounded, unit: float) -> Bounded:
        """Return the gradient of what a target takes, from that of its meaning."""
        with np.errstate(all="ignore"):
            slope, (units, besides) = self.slope(x), self.slope_error(x)
            known = np.isfinite(slope)
            reach = abs(gradient.output) + gradient.bound
            bound = abs(slope) * gradient.bound + (units * unit + besides) * reach
            return Bounded(
                np.where(known, slope * gradient.output, 0.0),
                np.where(known, bound, np.inf),
            )


def is_raw(contract: Contract, one: Input) -> bool:
    """Return True if a kernel makes a gate itself, so that it must not be left out."""
    if one.name == "log_decay":
        return contract.decay_form in RAW_FORMS
    return one.name == "beta" and contract.beta_form != "rate"


def form_of(
    contract: Contract, one: Input, changed: Change | None = None
) -> Form | None:
    """Return the form of an input; None for the numbers themselves.

    Parameters
    ----------
    contract, one : Contract, Input
        The declarations, and the input.
    changed : callable, optional
        From rates ``exp(A_log)`` and biases to others, which a wrong kernel may take.
    """
    if one.name == "beta" and contract.beta_form != "rate":
        return _logits(2.0 if contract.beta_form == "twice_sigmoid" else 1.0)
    if one.name != "log_decay":
        return None
    if contract.decay_form == "factor":
        return Form(
            np.log, np.exp, lambda x: 1 / x, lambda x: (2 / np.where(x > 0, x, 1), 0.0)
        )
    if contract.decay_form == "softplus":
        return _softplus(one.axes, contract.gate_parameters, changed or _kept)
    if contract.decay_form == "sigmoid":
        floor, taken = contract.decay_floor, contract.gate_parameters
        return _sigmoid(one.axes, floor, taken, changed or _kept)
    if contract.decay_form == "logsigmoid":
        return _logsigmoid()
    if contract.decay_log_base == "2":
        factor = float(np.log(2.0))
        return Form(
            lambda x: np.asarray(x * factor),
            lambda x: np.asarray(x / factor),
            lambda x: np.full_like(x, factor),
            lambda x: (np.full_like(x, 2 * factor), 0.0),
        )
    return None


def _parameters(x: Real, axes: str, names: str) -> tuple[Real, Real]:
    """Return ``exp(A_log)`` and `dt_bias` with the axes of raw gates."""
    shape = (1,) * (len(axes) - x.ndim) + x.shape
    heads = shape[axes.index("g")]
    channels = None if axes[-1] == "t" else shape[-1]
    rates, biases = gate_parameters(heads, channels, names)
    if channels is None:
        return np.exp(rates)[:, None], biases[:, None]
    return np.exp(rates)[:, None, None], biases[:, None, :]


def _kept(rate: Real, bias: Real) -> tuple[Real, Real]:
    return rate, bias


def _softplus(axes: str, names: str, changed: Change) -> Form:
    """Return the form of decays ``-exp(A_log) softplus(x + b)``."""

    def shifted(x: Real) -> tuple[Real, Real]:
        rate, bias = changed(*_parameters(x, axes, names))
        return rate, x + bias

    def meaning(x: Real) -> Real:
        rate, z = shifted(x)
        return np.asarray(-rate * np.logaddexp(0.0, z)).reshape(x.shape)

    def taken(decay: Real) -> Real:
        rate, bias = _parameters(decay, axes, names)
        size = -decay / rate
        with np.errstate(over="ignore", divide="ignore"):
            z = np.where(size > 30, size, np.log(np.expm1(np.minimum(size, 30.0))))
        return _within(decay, z - bias)

    def slope(x: Real) -> Real:
        rate, z = shifted(x)
        return np.asarray(-rate * _sigma(z)).reshape(x.shape)

    def slope_error(x: Real) -> tuple[Real, Real]:
        _, z = shifted(x)
        units = (8 + np.maximum(-z, 0)).reshape(x.shape)
        return abs(slope(x)) * units, abs(slope(x)) * SOFTPLUS_THRESHOLD

    return Form(meaning, taken, slope, slope_error)


def _sigmoid(axes: str, floor: float, names: str, changed: Change) -> Form:
    """Return the form of decays ``floor sigmoid(exp(A_log) (x + b))``."""

    def scaled(x: Real) -> tuple[Real, Real]:
        rate, bias = changed(*_parameters(x, axes, names))
        return rate, rate * (x + bias)

    def meaning(x: Real) -> Real:
        return np.asarray(floor * _sigma(scaled(x)[1])).reshape(x.shape)

    def taken(decay: Real) -> Real:
        rate, bias = _parameters(decay, axes, names)
        with np.errstate(divide="ignore"):
            y = np.log(decay / floor) - np.log1p(-np.minimum(decay / floor, 1.0))
        return _within(decay, np.minimum(y, FULL) / rate - bias)

    def slope(x: Real) -> Real:
        rate, y = scaled(x)
        return np.asarray(floor * rate * _sigma(y) * _sigma(-y)).reshape(x.shape)

    def slope_error(x: Real) -> tuple[Real, float]:
        rate, y = scaled(x)
        units = abs(floor) * rate * _sigma(y) * (8 + abs(y))
        return units.reshape(x.shape), 0.0

    return Form(meaning, taken, slope, slope_error)


def _logsigmoid() -> Form:
    """Return the form of decays ``log(sigmoid(x))``."""

    def taken(decay: Real) -> Real:
        with np.errstate(divide="ignore"):
            x = decay - np.log(-np.expm1(decay))
        return -_within(decay, -x)

    def slope(x: Real) -> Real:
        return _sigma(-x)

    def slope_error(x: Real) -> tuple[Real, Real]:
        units = 8 + np.maximum(x, 0)
        return slope(x) * units, slope(x) * SOFTPLUS_THRESHOLD

    return Form(lambda x: -np.logaddexp(0.0, -x), taken, slope, slope_error)


def _logits(most: float) -> Form:
    """Return the form of rates ``most sigmoid(x)``."""

    def taken(rate: Real) -> Real:
        share = np.clip(rate / most, 0.0, 1.0)
        with np.errstate(divide="ignore"):
            x = np.log(share) - np.log1p(-share)
        near = np.clip(x, -_LARGEST_LOGIT, _LARGEST_LOGIT)
        ends = np.where(x > 0, FULL, SHUT)
        return np.asarray(np.where(np.isinf(x), ends, near))

    return Form(
        lambda x: np.asarray(most * _sigma(x)),
        taken,
        lambda x: np.asarray(most * _sigma(x) * _sigma(-x)),
        lambda x: (most * _sigma(x) * (8 + abs(x)), 0.0),
    )


def _within(decay: Real, x: Real) -> Real:
    """Return raw numbers that kernels take; an open gate is the same everywhere."""
    x = np.where(decay == 0, SHUT, np.clip(x, SHUT, LEAVES_NOTHING))
    return np.asarray(x).reshape(decay.shape)


def _sigma(x: Real) -> Real:
    small = np.exp(-abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small))
