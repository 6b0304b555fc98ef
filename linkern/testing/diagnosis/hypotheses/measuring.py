"""Measuring the one parameter of a deviation from what a target answered.

The parameter is fitted by Gauss-Newton, each entry weighed by what rounding allows it,
and then spelt in as few digits as agree with every answer.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from linkern.oracle.bounds import unit_roundoff
from linkern.testing.diagnosis.hypotheses.evidence import Evidence, Probe
from linkern.testing.diagnosis.hypotheses.hypothesis import OPERATOR, Deviation
from linkern.testing.diagnosis.hypotheses.pairs import Real

__all__ = ["decimals", "fitted", "geometric", "spelt", "typical_ratio"]

# What the fit looks at: the shortest sequences that show a defect.
PROBES = 3
STEPS = 12
DIGITS = 7


def fitted(
    evidence: Evidence,
    deviation_of: Callable[[float], Deviation],
    guesses: Iterable[float],
) -> float | None:
    """Return the positive parameter of the deviation that is closest to the target.

    The guesses are a power of ten or less apart; the fit starts from the best. It is
    None if no guess predicts anything.
    """
    probes = evidence.informative[:PROBES]
    # One sequence, the shortest, tells which guess is best.
    misfits = {guess: _misfit(probes[:1], deviation_of(guess)) for guess in guesses}
    best = min(misfits, key=lambda guess: misfits[guess])
    if not misfits[best] < _misfit(probes[:1], OPERATOR):
        return None
    for _ in range(STEPS):
        step = _step(probes, deviation_of, best)
        best *= float(np.exp(np.clip(step, -1, 1)))
        if abs(step) < 1e-12:
            break
    return best


def _misfit(probes: list[Probe], deviation: Deviation) -> float:
    misses = []
    for probe in probes:
        missed, allowed, output = _compared(probe, deviation)
        # What is allowed grows with the prediction: one that is far too large must not
        # look better for it.
        with np.errstate(all="ignore"):
            smaller = np.nan_to_num(abs((output + missed) / output), nan=1.0)
        misses.append(abs(missed) / (allowed * np.clip(smaller, 1e-9, 1)))
    joined = np.concatenate(misses)
    return float(np.log1p(joined).mean()) if joined.size else np.inf


def _step(
    probes: list[Probe], deviation_of: Callable[[float], Deviation], parameter: float
) -> float:
    """Return the Gauss-Newton step in the logarithm of the parameter."""
    nudge = 1e-6
    towards = curvature = 0.0
    for probe in probes:
        missed, allowed, output = _compared(probe, deviation_of(parameter))
        nudged = _compared(probe, deviation_of(parameter * (1 + nudge)))[2]
        if output.shape != nudged.shape:
            continue
        slope = (nudged - output) / nudge / allowed
        towards += float((slope * missed / allowed).sum())
        curvature += float((slope * slope).sum())
    return towards / curvature if curvature > 0 else 0.0


def _compared(probe: Probe, deviation: Deviation) -> tuple[Real, Real, Real]:
    """Return what is missed, what is allowed, and what is predicted, where it is."""
    predicted = deviation.predict(probe.problem)
    if predicted is None or predicted.output.shape != probe.got.shape:
        nothing = np.zeros(0)
        return nothing, nothing, nothing
    rounding = unit_roundoff(probe.dtype) * abs(probe.got)
    allowed = predicted.bound + rounding
    with np.errstate(all="ignore"):
        missed = probe.got - predicted.output
        known = np.isfinite(missed) & np.isfinite(allowed) & (allowed > 0)
    return missed[known], allowed[known], predicted.output[known]


def decimals(x: float, digits: int = DIGITS) -> Iterator[float]:
    """Yield `x` in more and more significant digits.

    Examples
    --------
    >>> list(decimals(9.987e-7, digits=3))
    [1e-06, 9.99e-07]
    """
    seen = set()
    for precision in range(digits):
        rounded = float(f"{x:.{precision}e}")
        if rounded not in seen and rounded > 0:
            seen.add(rounded)
            yield rounded


def spelt(x: float) -> str:
    """Return a number as one writes it.

    Examples
    --------
    >>> spelt(1e-6), spelt(0.9999), spelt(3.7e-5)
    ('1e-6', '0.9999', '3.7e-5')
    """
    mantissa, e, exponent = f"{x:.7g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def geometric(low: int, high: int) -> list[float]:
    """Return the powers of ten from ``10^low`` to ``10^high``."""
    return [float(x) for x in 10.0 ** np.arange(low, high + 1)]


def typical_ratio(evidence: Evidence, deviation: Deviation) -> float | None:
    """Return by what factor the target's outputs exceed a deviation's, typically."""
    for probe in evidence.informative:
        predicted = deviation.predict(probe.problem)
        if predicted is None or predicted.output.shape != probe.got.shape:
            continue
        with np.errstate(all="ignore"):
            ratio = probe.got / predicted.output
        ratio = ratio[np.isfinite(ratio) & (probe.got != 0)]
        if ratio.size:
            return float(np.median(ratio))
    return None
