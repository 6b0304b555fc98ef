"""Changes of a right output: rows overwritten, entries moved, a factor, few bits."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.formats import (
    Format,
    formats_of,
    rounded,
)
from linkern.testing.diagnosis.hypotheses.hypothesis import (
    Deviation,
    hypothesis,
    then,
)
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.problems.problem import Problem

__all__ = ["Finish", "Move", "epilogue", "moved", "remaining_formats", "rows_filled"]

Finish = Callable[[Bounded], Bounded]
Move = Callable[[Real], Real]
Rows = Callable[[NDArray[np.int64], int], NDArray[np.bool_]]
FILLS = ((0.0, "zero"), (np.nan, "not finite"))


def epilogue(name: str, phrase: str, finish: Finish) -> Deviation:
    """Return the deviation that changes the right output."""
    return Deviation(name, phrase, then(Problem.solve, finish))


def rows_filled(rows: Rows, fill: float) -> Finish:
    """Return what writes `fill` into rows; ``rows(row, T)`` says into which.

    Examples
    --------
    >>> ones = Bounded(np.ones((3, 1)), np.ones((3, 1)))
    >>> finished = rows_filled(lambda row, length: row == length - 1, 0.0)(ones)
    >>> finished.output.ravel(), finished.bound.ravel()
    (array([1., 1., 0.]), array([1., 1., 0.]))
    """

    def finish(output: Bounded) -> Bounded:
        length = output.output.shape[-2]
        chosen = rows(np.arange(length), length)[:, None]
        return Bounded(
            np.where(chosen, fill, output.output), np.where(chosen, 0.0, output.bound)
        )

    return finish


def moved(move: Move) -> Finish:
    """Return what moves the entries of an output about."""
    return lambda output: Bounded(move(output.output), move(output.bound))


@hypothesis("outputs", 10)
def constants(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs that have nothing to do with a sum."""
    for name, phrase, constant in (
        ("returns_zeros", "zeros", 0.0),
        ("returns_nan", "an output that is nowhere finite", np.nan),
    ):
        everywhere = rows_filled(lambda rows, _: rows >= 0, constant)
        yield epilogue(name, phrase, everywhere)
    names = evidence.scope.operator.names
    for source in (name for name in ("value", "query", "key") if name in names):

        def itself(problem: Problem, source: str = source) -> Bounded:
            x = problem.inputs[source].astype(np.float64)
            return Bounded(x, np.zeros_like(x))

        yield Deviation(f"returns_{source}", f"the {source} itself", itself)


@hypothesis("outputs", 80)
def tails(evidence: Evidence) -> Iterator[Deviation]:
    """Yield rows that are not written: the first, the last, or a tail of a chunk."""
    for fill, what in FILLS:
        yield epilogue(
            "first_row_not_written",
            f"a first row that is {what}",
            rows_filled(lambda rows, _: rows == 0, fill),
        )
        yield epilogue(
            "last_row_not_written",
            f"a last row that is {what}",
            rows_filled(lambda rows, length: rows == length - 1, fill),
        )
        for chunk in evidence.divisors:
            last = f"after the last full chunk of {chunk} that"
            yield epilogue(
                "tail_of_one_not_written",
                f"a row alone {last} is {what}",
                rows_filled(_alone(chunk), fill),
            )
            for least, where in ((chunk, ""), (0, ", shorter sequences included")):
                yield epilogue(
                    "tail_not_written",
                    f"rows {last} are {what}{where}",
                    rows_filled(_after(chunk, least), fill),
                )


def _alone(chunk: int) -> Rows:
    return lambda rows, length: (
        (rows == length - 1) & (length > 1) & (length % chunk == 1)
    )


def _after(chunk: int, least: int) -> Rows:
    return lambda rows, length: (rows >= length // chunk * chunk) & (length >= least)


@hypothesis("outputs", 69)
@hypothesis("far", 69)
def rows_beyond(evidence: Evidence) -> Iterator[Deviation]:
    """Yield rows that are not written from some token on."""
    first = evidence.first_row
    for fill, what in FILLS if first else ():
        yield epilogue(
            "rows_beyond_not_written",
            f"rows from {first} on that are {what}",
            rows_filled(lambda rows, _: rows >= first, fill),
        )


@hypothesis("outputs", 190)
def few_bits(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs that keep fewer bits, cut off or rounded."""
    for to in remaining_formats(evidence):
        name = "output_truncated" if to.truncates else "output_rounded"
        yield epilogue(name, f"outputs {to.phrase}", rounded_to(to))


def rounded_to(to: Format) -> Finish:
    """Return what rounds an output."""
    return lambda output: rounded(output, to)


def remaining_formats(evidence: Evidence) -> Iterator[Format]:
    """Yield the formats whose roundoff is about the relative error that shows."""
    errors = [np.zeros(0)]
    for probe in evidence.informative:
        if probe.got.shape == probe.exact.output.shape:
            with np.errstate(all="ignore"):
                relative = abs(probe.got / probe.exact.output - 1)[probe.violated]
            errors.append(relative[np.isfinite(relative)])
    joined = np.concatenate(errors)
    # Not the largest: underflow costs more.
    large = float(np.quantile(joined, 0.9)) if joined.size else 0.0
    if not 0 < large < 1:
        return
    bits, scope = -int(np.floor(np.log2(large))), evidence.scope
    accumulator = scope.contract.precisions(scope.dtype).accumulator
    # The rounding of a narrower output hides how many bits there were before.
    narrow = SIGNIFICAND_BITS[scope.output_dtype] < SIGNIFICAND_BITS[accumulator]
    most = SIGNIFICAND_BITS[accumulator] if narrow else bits + 2
    for truncates in (True, False):
        for n in range(most, max(bits - 3, 1), -1):
            yield from formats_of(n, truncates=truncates)
