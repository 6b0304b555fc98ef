"""The answers of a target, and their agreement with a deviation."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.protocol import Reply

__all__ = ["Evidence", "Probe"]


# The part of its violations that a deviation may leave open.
OPEN = 0.1
# Chunk sizes that kernels are known to have.
USUAL_SIZES = (16, 32, 64, 96, 100, 128, 192, 256)


@dataclass(frozen=True, eq=False)
class Probe:
    """One problem and what came back.

    Parameters
    ----------
    problem : Problem
        The inputs; its knobs hold what else is known of the call.
    got : array
        An output or a gradient, in float64; empty if there is none.
    dtype : str
        The dtype it came in.
    exact : Bounded
        What the operator returns.
    """

    problem: Problem
    got: Real
    dtype: str
    exact: Bounded

    @cached_property
    def violated(self) -> NDArray[np.bool_]:
        """The entries beyond the bound of the operator itself."""
        if self.got.shape != self.exact.output.shape:
            return np.ones(self.got.shape or 1, dtype=bool)
        return ~self._between(*self._allowed, self.exact)

    @cached_property
    def _allowed(self) -> tuple[Real, Real]:
        """Between what the operator itself may be; many predictions are held to it."""
        return self._spread(self.exact)

    def ratio(self, deviation: Deviation, predicted: Bounded) -> float:
        """Return the largest difference as a multiple of what rounding allows.

        Infinite if rounding does not allow it, or if the prediction leaves open what
        the operator is at odds with.
        """
        if predicted.output.shape != self.got.shape:
            return np.inf
        low, high = self._spread(predicted)
        if not self._between(low, high, predicted).all():
            return np.inf
        if self._left_open(deviation, predicted):
            return np.inf
        with np.errstate(all="ignore"):
            error = abs(self.got - predicted.output)
            beyond = np.where(self.got >= predicted.output, high, low)
            ratio = np.where(error == 0, 0.0, error / abs(beyond - predicted.output))
        return float(np.where(np.isfinite(ratio), ratio, 0.0).max(initial=0.0))

    def _left_open(self, deviation: Deviation, predicted: Bounded) -> bool:
        """Return True if a prediction leaves too much of the violations unknown."""
        on_reals = (
            deviation.allow_unknown == "on reals" and self.problem.integers is None
        )
        if on_reals or deviation.allow_unknown == "anywhere":
            return False
        # A quotient of two sums that cancel is open; but not most quotients.
        left_open = self.violated & ~np.isfinite(predicted.bound)
        return bool(left_open.sum() > OPEN * self.violated.sum())

    def shows(self, deviation: Deviation, predicted: Bounded) -> bool:
        """Return True if target and prediction leave the operator in the same entry."""
        if predicted.output.shape != self.exact.output.shape:
            return True
        low, high = self._allowed
        within = (low <= predicted.output) & (predicted.output <= high)
        leaves = ~within | deviation.loosens
        known = np.isfinite(predicted.bound)
        return bool((self.violated & known & leaves).any())

    def _between(self, low: Real, high: Real, expected: Bounded) -> NDArray[np.bool_]:
        """Return the entries between `low` and `high`."""
        inside = (low <= self.got) & (self.got <= high)
        # What is known not to be finite must not be, one way or the other.
        undefined = np.isnan(expected.output) & (expected.bound == 0)
        if undefined.any():
            inside = np.where(undefined, ~np.isfinite(self.got), inside)
        return np.asarray(inside | ~np.isfinite(expected.bound))

    def _spread(self, expected: Bounded) -> tuple[Real, Real]:
        """Return the least and the greatest number that rounding can make of it.

        What comes in another dtype than is due may have been rounded to either.
        """
        ends = []
        for stored in map(numpy_dtype, {self.dtype, self.problem.scope.output_dtype}):
            with np.errstate(all="ignore"):
                low = (expected.output - expected.bound).astype(stored)
                high = (expected.output + expected.bound).astype(stored)
            ends.append((low.astype(np.float64), high.astype(np.float64)))
        if len(ends) == 1:
            return ends[0]
        lows, highs = zip(*ends, strict=True)
        return np.minimum.reduce(lows), np.maximum.reduce(highs)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a target answered to one set of problems.

    Parameters
    ----------
    scope : Scope
        What it claims and declares.
    probes : tuple of Probe
        In the order of the calls.
    replies : tuple of Reply
        All that was observed, of the same calls and of others.
    repeated : tuple of array
        Outputs of one problem, called again and again.
    fails_on_one_token : str
        What it raised on a sequence of one token; empty if nothing.
    """

    scope: Scope
    probes: tuple[Probe, ...]
    replies: tuple[Reply, ...] = ()
    repeated: tuple[Real, ...] = ()
    fails_on_one_token: str = ""

    @cached_property
    def informative(self) -> list[Probe]:
        """The probes that show a defect, the smallest first."""
        return sorted((p for p in self.probes if p.violated.any()), key=_size)

    @cached_property
    def first_row(self) -> int:
        """The first wrong row of the shortest sequences that show a defect."""
        shapes = [
            probe.violated for probe in self._shortest if probe.violated.ndim == 4
        ]
        rows = [int(np.argmax(violated.any(axis=(0, 1, 3)))) for violated in shapes]
        return min(rows, default=0)

    @cached_property
    def chunk_sizes(self) -> list[int]:
        """The chunk sizes that could be behind a defect of rows, or inside chunks.

        A wrong tail starts at a multiple of the chunk size. Where one of the first two
        rows is wrong, any size can be.
        """
        return self.all_sizes if self.first_row <= 1 else self.divisors

    @cached_property
    def state_sizes(self) -> list[int]:
        """The chunk sizes that could be behind a defect of the state.

        A causal state that is wrong from chunk n on shows in row ``n C`` first.
        """
        return self.divisors if self.scope.operator.causal else self.chunk_sizes

    @cached_property
    def likely_sizes(self) -> list[int]:
        """Chunk sizes for defects so small that the first wrong row may show late."""
        return list(dict.fromkeys((1, *self.state_sizes, *USUAL_SIZES)))

    @cached_property
    def all_sizes(self) -> list[int]:
        """All chunk sizes that leave more than one chunk, and longer usual ones."""
        length = self._shortest[0].problem.length
        return [*range(2, length), *(n for n in USUAL_SIZES if n >= length)]

    @cached_property
    def divisors(self) -> list[int]:
        """The sizes with which the first wrong row starts a chunk, largest first."""
        first = self.first_row
        return [n for n in range(first, 0, -1) if first % n == 0]

    @cached_property
    def _shortest(self) -> list[Probe]:
        """The shortest sequences that show a defect, of integers if there are any.

        Integers show it at once, reals where it exceeds their bound; one token has no
        edges.
        """
        longer = [probe for probe in self.informative if probe.problem.length > 1]
        first = (longer or self.informative)[0].problem
        return [
            probe
            for probe in self.informative
            if probe.problem.shape == first.shape
            and (probe.problem.integers is None) == (first.integers is None)
        ]

    def agreement(self, deviation: Deviation) -> float | None:
        """Return by how much of the bound a deviation misses what came back, at most.

        None if it does not predict every answer within rounding, or if it does not
        differ from the operator where the target does.
        """
        worst, shown = 0.0, False
        for probe in self._informative_first:
            try:
                predicted = deviation.predict(probe.problem)
            except ValueError:
                # Queries cannot stand for keys, say, where there are more of them.
                predicted = None
            if predicted is None:
                if probe.violated.any():
                    return None
                continue
            worst = max(worst, probe.ratio(deviation, predicted))
            if not np.isfinite(worst):
                return None
            shown = shown or probe.shows(deviation, predicted)
        return worst if shown else None

    @cached_property
    def _informative_first(self) -> list[Probe]:
        rest = [probe for probe in self.probes if not probe.violated.any()]
        return self.informative + sorted(rest, key=_size)


def _size(probe: Probe) -> tuple[int, bool]:
    """Return what puts small problems first, and integers before reals."""
    of = probe.problem.shape
    work = of.batch * of.heads * of.length * of.keys * (of.key_dim + of.value_dim)
    return work, probe.problem.integers is None
