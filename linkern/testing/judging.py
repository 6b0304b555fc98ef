"""Comparing what came back with what a correct kernel can return."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.errors import TargetRaised
from linkern.testing.frameworks import numpy_dtype
from linkern.testing.problem import Problem
from linkern.testing.process import Target
from linkern.testing.worker import Call, Reply

__all__ = ["Tally", "Trial", "Violation"]

Real = NDArray[np.float64]


class Violation(AssertionError):  # noqa: N818 -- it is the finding, not an error
    """A law that the target broke, and where.

    Parameters
    ----------
    message : str
        What was observed, in one sentence.
    problem : Problem
        The input.
    index : tuple of int, optional
        First wrong entry of the output, in ``(B, H, T, V)``.
    got, exact, bound, ratio : float, optional
        The entry, what is exact there, what a correct kernel may be off by, and the
        error as a multiple of that.
    """

    def __init__(
        self,
        message: str,
        problem: Problem,
        *,
        index: tuple[int, ...] | None = None,
        got: float | None = None,
        exact: float | None = None,
        bound: float | None = None,
        ratio: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problem = problem
        self.index = index
        self.got = got
        self.exact = exact
        self.bound = bound
        self.ratio = ratio


@dataclass
class Tally:
    """What a check has seen so far.

    Parameters
    ----------
    examples, bounded, proved : int
        Problems tried; comparisons with a bound; those in which it proved something.
    worst_ratio : float or None
        Largest error as a multiple of its bound.
    exact : bool
        Whether sums of integers came out exactly, wherever they can.
    problem : Problem or None
        The problem most recently passed to the target.
    calls : list of Call
        The calls made for the example at hand.
    """

    examples: int = 0
    bounded: int = 0
    proved: int = 0
    worst_ratio: float | None = None
    exact: bool = True
    problem: Problem | None = None
    calls: list[Call] = field(default_factory=list)

    def start(self) -> None:
        """Begin an example."""
        self.examples += 1
        self.calls.clear()

    def record(self, ratio: float) -> None:
        """Remember the largest error as a multiple of its bound."""
        self.worst_ratio = max(ratio, self.worst_ratio or 0.0)


class Trial:
    """One check of one target: calls it, and judges what comes back.

    Parameters
    ----------
    target : Target
        Behind its fence.
    tally : Tally
        Where examples are counted.
    """

    def __init__(self, target: Target, tally: Tally) -> None:
        self._target = target
        self._tally = tally

    def observe(self, problem: Problem, **options: Any) -> Reply:
        """Call the target and return all that was observed, well-formed or not."""
        call = Call(problem.query, problem.key, problem.value, options)
        self._tally.problem = problem
        self._tally.calls.append(call)
        try:
            return self._target.call(call)
        except TargetRaised as raised:
            message = f"the target raised {raised}"
            raise Violation(message, problem) from None

    def run(self, problem: Problem, **options: Any) -> Real:
        """Call the target and return a well-formed output, in float64."""
        reply = self.observe(problem, **options)
        if reply.output is None:
            message = f"the target returned {reply.kind}, not an array of its library"
            raise Violation(message, problem)
        if reply.shape != reply.expected_shape:
            message = (
                f"the output has shape {reply.shape}, it must have "
                f"{reply.expected_shape}"
            )
            raise Violation(message, problem)
        if reply.dtype != problem.scope.dtype:
            message = (
                f"the output has dtype {reply.dtype}, it must have the dtype of the "
                f"query, {problem.scope.dtype}"
            )
            raise Violation(message, problem)
        return reply.output.astype(np.float64)

    def require_within(
        self, got: Real, expected: Bounded, problem: Problem, message: str
    ) -> None:
        """Require ``got`` to be a rounding of something within the bound.

        A correct kernel holds a number within ``bound`` of the exact one and rounds it
        to the output dtype. Rounding is monotonic, so its result lies between the
        roundings of the two ends: no further allowance for the output is needed.
        """
        dtype = problem.scope.dtype
        low, high = _interval(expected.output, expected.bound, dtype)
        known = np.isfinite(expected.bound)
        self._count(known, got)
        beyond = np.where(got >= expected.output, high, low)
        ratio = _ratio(abs(got - expected.output), abs(beyond - expected.output))
        inside = (low <= got) & (got <= high)
        self._judge(inside | ~known, ratio, got, expected, problem, message)
        if expected.sharp is not None:
            low, high = _interval(expected.output, expected.sharp, dtype)
            self._tally.exact &= bool(((low <= got) & (got <= high)).all())

    def require_agreement(
        self, one: Real, other: Real, expected: Bounded, problem: Problem, message: str
    ) -> None:
        """Require two results to differ by no more than two correct kernels can."""
        low, high = _interval(expected.output, expected.bound, problem.scope.dtype)
        known = np.isfinite(expected.bound)
        self._count(known, one)
        difference = abs(one - other)
        ratio = _ratio(difference, high - low)
        agree = (difference <= high - low) | ~known
        self._judge(agree, ratio, one, Bounded(other, high - low), problem, message)

    def require_same(
        self, one: Real, other: Real, problem: Problem, message: str
    ) -> None:
        """Require two results to be equal bit by bit (the sign of a zero aside)."""
        same = (one == other) | (np.isnan(one) & np.isnan(other))
        ratio = np.where(same, 0.0, np.inf)
        exact = Bounded(other, np.zeros_like(other))
        self._judge(same, ratio, one, exact, problem, message)

    def _count(self, known: NDArray[np.bool_], got: Real) -> None:
        self._tally.bounded += 1
        self._tally.proved += bool(known.any() or got.size == 0)

    def _judge(
        self,
        fine: NDArray[np.bool_],
        ratio: Real,
        got: Real,
        expected: Bounded,
        problem: Problem,
        message: str,
    ) -> None:
        within = ratio[fine]
        self._tally.record(float(within[np.isfinite(within)].max(initial=0.0)))
        if fine.all():
            return
        self._tally.record(float(ratio[~fine].max()))
        index = tuple(int(i) for i in np.argwhere(~fine)[0])
        raise Violation(
            message,
            problem,
            index=index,
            got=float(got[index]),
            exact=float(expected.output[index]),
            bound=float(expected.bound[index]),
            ratio=float(ratio[index]),
        )


def _interval(output: Real, bound: Real, dtype: str) -> tuple[Real, Real]:
    """Return the least and the greatest result that rounding to `dtype` can give."""
    stored = numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        low = (output - bound).astype(stored).astype(np.float64)
        high = (output + bound).astype(stored).astype(np.float64)
    return low, high


def _ratio(error: Real, allowed: Real) -> Real:
    with np.errstate(all="ignore"):
        ratio = np.where(error == 0, 0.0, error / allowed)
    return np.where(np.isnan(ratio) | (ratio < 0), np.inf, ratio)
