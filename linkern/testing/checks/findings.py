"""Violations of laws, and the record of a check."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.problem import Problem
from linkern.testing.target.protocol import Call

__all__ = ["NOT_FINITE", "OUT_OF_BOUNDS", "Tally", "Violation", "listed"]

Real = NDArray[np.float64]

# The deviation of an output with NaN or infinite entries where they must be finite.
NOT_FINITE = "an output that is not finite"
# That of an interpreted kernel, in any call.
OUT_OF_BOUNDS = "an access out of bounds"
# Numbers that a sentence lists; of more, the first and the last.
MOST_LISTED = 4


def listed(numbers: Sequence[int]) -> str:
    """Return numbers as a sentence lists them.

    Examples
    --------
    >>> listed((1, 33)), listed(range(1, 25))
    ('1, 33', '1, 2, 3, ..., 24 (24 places)')
    """
    if len(numbers) <= MOST_LISTED:
        return ", ".join(map(str, numbers))
    first = ", ".join(map(str, numbers[: MOST_LISTED - 1]))
    return f"{first}, ..., {numbers[-1]} ({len(numbers)} places)"


class Violation(AssertionError):  # noqa: N818 -- it is the finding, not an error
    """A broken law: the input and the first wrong entry.

    Parameters
    ----------
    message : str
        The observation, in one sentence.
    problem : Problem
        The input.
    index : tuple of int, optional
        First wrong entry.
    axes : str
        Letters of the axes of what is wrong: ``bgtv`` of an output, those of an input
        for its gradient; empty for a state.
    got, expected, bound, ratio : float, optional
        The entry, what it is compared with (the exact entry, or that of another call),
        the error bound of a correct kernel, and the error as a multiple of it.
    errors : tuple of tuple of float, optional
        Error as a multiple of the bound, ``(T, V)``, in the head of that entry.
    allowed : tuple of float, optional
        The least and the greatest number that the entry may be, if it is one of an
        output that is compared with the exact one.
    deviation : str
        What breaks this law and most others alike: an exception, an output without the
        required form, an output that is not finite. Empty for all else.
    """

    def __init__(
        self,
        message: str,
        problem: Problem,
        *,
        index: tuple[int, ...] | None = None,
        axes: str = "",
        got: float | None = None,
        expected: float | None = None,
        bound: float | None = None,
        ratio: float | None = None,
        errors: tuple[tuple[float, ...], ...] | None = None,
        allowed: tuple[float, float] | None = None,
        deviation: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.problem = problem
        self.index, self.axes = index, axes
        self.got = got
        self.expected = expected
        self.bound = bound
        self.ratio = ratio
        self.errors = errors
        self.allowed = allowed
        self.deviation = deviation


@dataclass
class Tally:
    """Counts, errors and calls of a check so far.

    Parameters
    ----------
    examples, asked, bounded, proved : int
        Problems tried; calls of the target; comparisons with a bound; those in which it
        proved something of every entry.
    covered : int
        Problems that are left to another check: what the law starts from is wrong.
    judged_by : str
        The check to which the latest of them is left.
    worst_ratio : float or None
        Largest error as a multiple of its bound.
    exact : bool
        True if sums of integers were exact wherever they can be.
    curve : tuple of float
        The largest error by position, in the comparison with the largest of all.
    ratios : list of float
        The largest error of each comparison.
    reported : dict of str to str
        Deviations that broke earlier checks of the run, with the check that broke.
    repeated : set of str
        Those that were met again: they are not reported a second time.
    lost : int
        Examples that ended in one of them.
    refused : set of str
        Configurations of autotuned kernels that the device cannot hold.
    problem : Problem or None
        The problem most recently passed to the target.
    calls, outputs : list
        The calls made for the current example, and their outputs.
    """

    examples: int = 0
    asked: int = 0
    bounded: int = 0
    proved: int = 0
    covered: int = 0
    judged_by: str = ""
    worst_ratio: float | None = None
    exact: bool = True
    curve: tuple[float, ...] = ()
    ratios: list[float] = field(default_factory=list)
    reported: dict[str, str] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)
    lost: int = 0
    refused: set[str] = field(default_factory=set)
    problem: Problem | None = None
    calls: list[Call] = field(default_factory=list)
    outputs: list[NDArray[Any] | None] = field(default_factory=list)
    _left: bool = False

    def start(self) -> None:
        """Begin an example."""
        self.calls.clear()
        self.outputs.clear()
        self._left = False

    def count(self) -> None:
        """Count an example on which the law is judged."""
        self.examples += 1

    def leave(self, check: str) -> None:
        """Leave the current example to another check; it is counted once."""
        self.covered += not self._left
        self._left, self.judged_by = True, check

    def repeats(self, deviation: str) -> bool:
        """Return True for a deviation that an earlier check reported, and note it."""
        if deviation not in self.reported:
            return False
        self.repeated.add(deviation)
        return True

    def snapshot(self) -> "Tally":
        """Return a copy of the calls of the current example."""
        return Tally(calls=[*self.calls], outputs=[*self.outputs], problem=self.problem)

    def restore(self, other: "Tally") -> None:
        """Replace the calls of the current example by those of another."""
        self.calls, self.outputs = other.calls, other.outputs
        self.problem = other.problem

    def record(self, ratio: Real) -> None:
        """Remember the errors of one comparison as multiples of their bounds."""
        worst = float(ratio.max(initial=0.0))
        self.ratios.append(worst)
        if ratio.ndim == 4 and ratio.size and worst > max(self.curve, default=-1.0):
            self.curve = tuple(ratio.max(axis=(0, 1, 3)).tolist())
        self.worst_ratio = max(worst, self.worst_ratio or 0.0)
