"""The epsilon in a quotient, measured by rows that are 1 without it.

There is one key, of feature b, and all values are 1; row i has the query feature
``a_i``, so its denominator is ``d_i = a_i b``, and its output ``d/(d + eps)``. Each row
confines the epsilon to an interval, by the rounding of the quotient and the error that
features as small as these may have. What all intervals have in common is what is known
of it; where they have nothing in common, the epsilon enters in another way.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FeatureMap, depth, gamma, unit_roundoff
from linkern.testing.fingerprint.probing import (
    Prober,
    Unanswered,
    inputs_of,
)
from linkern.testing.fingerprint.significands import Significands
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import tiny_feature_exponent
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["Epsilon", "measure"]

Real = NDArray[np.float64]

# Denominators over all their range for each of so many key features.
KEY_FEATURES = 4
# Smaller outputs are subnormal in float16, and say little; other rows say more.
LEAST_OUTPUT = 2.0**-8
DIGITS = 3


@dataclass(frozen=True)
class Epsilon:
    """The epsilons that the rows of a target allow.

    Parameters
    ----------
    intervals : dict of str to tuple
        Least and greatest epsilon that every row allows, by the way it would enter:
        ``denominator normalizer clamp``. Ways that no epsilon fits are left out.
    resolution : float
        The smallest epsilon in the denominator that would have shown; infinite if none
        would.
    """

    intervals: dict[str, tuple[float, float]]
    resolution: float

    @property
    def mode(self) -> str | None:
        """The way in which it enters; None if there is none that shows."""
        if any(low <= 0 for low, _ in self.intervals.values()):
            return None
        return next(iter(self.intervals), None)

    @property
    def size(self) -> float | None:
        """Its size in as few digits as it allows; None if there is none that shows."""
        if self.mode is None:
            return None
        low, high = self.intervals[self.mode]
        sizes = [float(f"{(low + high) / 2:.{n}g}") for n in range(1, DIGITS + 1)]
        return next((size for size in sizes if low <= size <= high), sizes[-1])


@dataclass(frozen=True)
class _Rows:
    """Answers of some rows, and by how much each number can be off.

    Parameters
    ----------
    excess : array (2, R)
        Least and greatest ``1/o - 1``: the epsilon as a multiple of the denominator.
    divisor, query : array (R,)
        The denominator, scale included, and the feature of the query.
    spread : array (R,)
        Relative error of the denominator.
    """

    excess: Real
    divisor: Real
    query: Real
    spread: Real


def measure(prober: Prober, stages: Significands) -> Epsilon:
    """Return the epsilon in the quotient, within the precision of the stages.

    Nothing is known of it if the target does not normalise or did not answer.
    """
    nothing = Epsilon({}, np.inf)
    slack = _slack(prober, stages)
    if not prober.scope.contract.normalize or slack >= 1:
        return nothing
    smallest = tiny_feature_exponent(prober.scope)
    try:
        asked = [
            _rows(prober, 2.0**exponent, smallest, slack, stages)
            for exponent in np.linspace(0, -smallest, KEY_FEATURES)
        ]
    except Unanswered:
        return nothing
    joined = (
        np.concatenate([getattr(rows, name) for rows in asked], axis=-1)
        for name in _Rows.__dataclass_fields__
    )
    rows = _Rows(*joined)
    if not rows.divisor.size:
        return nothing
    intervals = _intervals(rows, abs(prober.quotient.scale))
    if not intervals:
        return nothing
    # What a row cannot tell from 1 is off by the slack on either side.
    least = rows.divisor * (1 + rows.spread) * 2 * slack / (1 - slack)
    return Epsilon(intervals, float(least.min()))


def _slack(prober: Prober, stages: Significands) -> float:
    """Return the relative error of a row that would be 1."""
    scope = prober.scope
    unit = max(scope.contract.precisions(scope.dtype).unit, 2.0**-stages.narrowest)
    # Two sums of one product, three roundings of their quotient, and the output's own.
    products = float(gamma(depth(np.ones(1), 1), unit)[0])
    return 2 * products + 3 * unit + unit_roundoff(prober.output_dtype)


def _rows(
    prober: Prober,
    feature: float,
    smallest: int,
    slack: float,
    stages: Significands,
) -> _Rows:
    """Ask about one key feature and query features from 1 down to ``2^-smallest``."""
    scope, length = prober.scope, prober.length
    query = np.zeros((length, prober.key_dim))
    query[:, 0] = np.exp2(np.linspace(0, -smallest, length))
    key = np.zeros((length, prober.key_dim))
    key[0, 0] = feature
    query, key = inputs_of(scope.query_map, query), inputs_of(scope.key_map, key)
    output = prober.ask(query, key, np.ones((length, prober.value_dim)))[:, 0]
    precisions = scope.contract.precisions(scope.dtype)
    known = max(precisions.unit, unit_roundoff(precisions.feature))
    unit = max(known, 2.0**-stages.of_features)
    a, error_a = _as_fed(scope.query_map, query[:, :1], scope, unit)
    b, error_b = _as_fed(scope.key_map, key[:1, :1], scope, unit)
    with np.errstate(all="ignore"):
        excess = np.stack([(1 - slack) / output - 1, (1 + slack) / output - 1])
    divisor, spread = abs(prober.quotient.scale) * a * b, error_a + error_b
    # Where features may be all error, nothing is known of the denominator.
    told = np.isfinite(output) & (output >= LEAST_OUTPUT) & (spread < 1)
    return _Rows(excess[:, told], divisor[told], a[told], spread[told])


def _as_fed(
    feature_map: FeatureMap, inputs: Real, scope: Scope, unit: float
) -> tuple[Real, Real]:
    """Return the features of inputs as the target gets them; their relative error."""
    fed = inputs.astype(numpy_dtype(scope.dtype)).astype(np.float64)
    features = feature_map.value(fed)
    error = feature_map.error(fed, unit) / features
    if scope.contract.feature_error == "relative":
        error = np.minimum(error, 4 * unit)
    return features[:, 0], error[:, 0] + unit


def _intervals(rows: _Rows, scale: float) -> dict[str, tuple[float, float]]:
    """Return what the rows have in common, for each way in which it is not nothing."""
    sides = np.stack([1 - rows.spread, 1 + rows.spread])
    in_denominator = rows.divisor * rows.excess
    # Added to the only entry of the normalizer that counts: times scale and query.
    in_normalizer = in_denominator / (scale * rows.query)
    # A row below the clamp is divided by it; a row above says that it is above.
    clamped = rows.divisor * (1 + rows.excess) * (rows.excess[0] > 0)
    clamped[1] = rows.divisor * (1 + np.maximum(rows.excess[1], 0))
    intervals = {}
    for mode, (low, high) in (
        ("denominator", in_denominator),
        ("normalizer", in_normalizer),
        ("clamp", clamped),
    ):
        least = float((low * np.where(low > 0, *sides)).max())
        most = float((high * np.where(high > 0, *sides[::-1])).min())
        # A clamp that no row is above could as well be no quotient at all.
        if least <= most and (mode != "clamp" or least < rows.divisor.max()):
            intervals[mode] = (least, most)
    return intervals
