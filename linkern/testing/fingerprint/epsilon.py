"""The epsilon in a quotient, measured by rows that are 1 without it.

There is one key that is not zero, and all values are 1, so a row of denominator d is
``d/(d + eps)``; the query features fall from 1 to the smallest that are right. Each row
confines the epsilon to an interval, by the rounding of the quotient and the error that
features as small as these may have. The intersection of all intervals holds the
epsilon; where it is empty, the epsilon enters in another way. The denominators are
read from exact outputs with an epsilon of 1.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import unit_roundoff
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.fingerprint.features import with_features
from linkern.testing.influence.paths import SIZES, ask
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import tiny_feature_exponent
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target

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


def measure(target: Target, scope: Scope, bits: int) -> Epsilon:
    """Return the epsilon in the quotient, within a precision of so many bits.

    Nothing is known of it if the target does not normalise or did not answer, or if
    the feature map has no feature of 0.
    """
    nothing = Epsilon({}, np.inf)
    maps = (scope.query_map, scope.key_map)
    if not (scope.operator.feature_map and scope.normalised):
        return nothing
    if any(one.from_integers is None for one in maps):
        return nothing
    scope = _without_epsilon(scope, bits)
    for length, key_dim, value_dim in SIZES:
        try:
            shape = nearest_shape(scope, (1, 1, length, key_dim, value_dim))
            problem = _problem(scope, shape)
            output = ask(target, problem)[..., 0].ravel()
        except (DoesNotApply, TargetRaised):
            continue
        return _allowed(problem, output)
    return nothing


def _without_epsilon(scope: Scope, bits: int) -> Scope:
    """Return the scope of a quotient whose stages keep no more than so many bits."""
    contract = replace(scope.contract, eps=0.0, eps_mode="denominator")
    if bits < SIGNIFICAND_BITS[contract.precisions(scope.dtype).accumulator]:
        narrow = [name for name, width in SIGNIFICAND_BITS.items() if width <= bits]
        coarsest = min(SIGNIFICAND_BITS, key=lambda name: SIGNIFICAND_BITS[name])
        dtype = max(narrow, key=lambda name: SIGNIFICAND_BITS[name], default=coarsest)
        contract = replace(contract, accumulator_dtype=dtype)
    return replace(scope, contract=contract)


def _problem(scope: Scope, shape: Shape) -> Problem:
    """Return one batch entry for each of some key features."""
    shape = replace(shape, batch=KEY_FEATURES)
    smallest = tiny_feature_exponent(scope)
    query, key = np.zeros(shape.query), np.zeros(shape.key)
    query[..., 0] = np.exp2(np.linspace(0, -smallest, shape.length))
    first = np.exp2(np.linspace(0, -smallest, KEY_FEATURES))
    key[:, :, 0, 0] = first[:, None]
    return with_features(scope, shape, query=query, key=key, value=np.ones(shape.value))


def _allowed(problem: Problem, output: Real) -> Epsilon:
    """Return the epsilons that all rows allow which say something."""
    scope = problem.scope

    def with_epsilon(mode: str) -> tuple[Real, Real]:
        contract = replace(scope.contract, eps=1.0, eps_mode=mode)
        known = replace(problem, scope=replace(scope, contract=contract)).solve()
        return known.output[..., 0].ravel(), known.bound[..., 0].ravel()

    shared = problem.solve(shared_features=True)
    slack = shared.bound[..., 0].ravel() + unit_roundoff(scope.output_dtype)
    with np.errstate(all="ignore"):
        share, bound = with_epsilon("denominator")
        divisor = share / (1 - share)
        spread = bound / share * (1 + divisor)
        # The denominator, were the normalizer 1 in every entry.
        entry = divisor * (1 / with_epsilon("normalizer")[0] - 1)
        # The epsilon as a multiple of the denominator: at least, and at most.
        excess = np.stack([(1 - slack) / output - 1, (1 + slack) / output - 1])
        # A row that cannot be told from 1 is off by the slack on either side.
        least = divisor * (1 + spread) * 2 * slack / (1 - slack)
        # Where features may be all error, nothing is known of the denominator.
        told = np.isfinite(output) & (output >= LEAST_OUTPUT) & (spread < 1)
        told &= (slack < 1) & (divisor > 0)
    if not told.any():
        return Epsilon({}, np.inf)
    intervals = _intervals(excess[:, told], divisor[told], entry[told], spread[told])
    return Epsilon(intervals, float(least[told].min()) if intervals else np.inf)


def _intervals(
    excess: Real, divisor: Real, entry: Real, spread: Real
) -> dict[str, tuple[float, float]]:
    """Return what the rows have in common, for each way in which it is not nothing."""
    sides = np.stack([1 - spread, 1 + spread])
    in_denominator = divisor * excess
    in_normalizer = in_denominator / entry
    # A row below the clamp is divided by it; a row above says that it is above.
    clamped = divisor * (1 + excess) * (excess[0] > 0)
    clamped[1] = divisor * (1 + np.maximum(excess[1], 0))
    intervals = {}
    for mode, (low, high) in (
        ("denominator", in_denominator),
        ("normalizer", in_normalizer),
        ("clamp", clamped),
    ):
        least = float((low * np.where(low > 0, *sides)).max())
        most = float((high * np.where(high > 0, *sides[::-1])).min())
        # A clamp that no row is above could as well be no quotient at all.
        if least <= most and (mode != "clamp" or least < divisor.max()):
            intervals[mode] = (least, most)
    return intervals
