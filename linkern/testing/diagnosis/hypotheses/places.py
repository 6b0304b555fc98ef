"""Right numbers in the wrong place, and places that hold no such number at all."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.finishes import (
    Finish,
    moved,
    rows_filled,
)
from linkern.testing.diagnosis.hypotheses.pairs import Real
from linkern.testing.diagnosis.hypotheses.variant import Deviation, variant
from linkern.testing.problems.problem import Problem

__all__ = ["constants", "permutations", "tails"]

Rows = Callable[[NDArray[np.int64], int], NDArray[np.bool_]]


def constants(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs that have nothing to do with a sum."""
    for name, phrase, constant in (
        ("returns_zeros", "zeros", 0.0),
        ("returns_nan", "an output that is nowhere finite", np.nan),
    ):
        yield variant(name, phrase, finish=rows_filled(_every_row, constant))
    for source in ("value", "query", "key"):
        predict = partial(_itself, source=source)
        yield Deviation(f"returns_{source}", f"the {source} itself", predict)
    del evidence


def _every_row(rows: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    del length
    return np.ones_like(rows, dtype=bool)


def _itself(problem: Problem, source: str) -> Bounded:
    given = getattr(problem, source).astype(np.float64)
    return Bounded(given, np.zeros_like(given))


def tails(evidence: Evidence) -> Iterator[Deviation]:
    """Yield rows that are not written: after the last full chunk, or the very last."""
    for fill, what in ((0.0, "zero"), (np.nan, "not finite")):
        yield variant(
            "last_row_not_written",
            f"a last row that is {what}",
            finish=rows_filled(lambda rows, length: rows == length - 1, fill),
        )
        for chunk in evidence.divisors:
            last = f"after the last full chunk of {chunk} that"
            yield variant(
                "tail_of_one_not_written",
                f"a row alone {last} is {what}",
                finish=rows_filled(_alone(chunk), fill),
            )
            for least, where in ((chunk, ""), (0, ", shorter sequences included")):
                yield variant(
                    "tail_not_written",
                    f"rows {last} are {what}{where}",
                    finish=rows_filled(_after(chunk, least), fill),
                )


def _alone(chunk: int) -> Rows:
    return lambda rows, length: (
        (rows == length - 1) & (length > 1) & (length % chunk == 1)
    )


def _after(chunk: int, least: int) -> Rows:
    return lambda rows, length: (rows >= length // chunk * chunk) & (length >= least)


def permutations(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs whose heads, batch entries, channels or rows are others'.

    Which ones is read off the first output that can tell: each part is compared with
    every part of the exact output.
    """
    for axis, name, part in (
        (0, "batches_mixed", "batch entry"),
        (1, "heads_mixed", "head"),
        (3, "channels_swapped", "channel"),
    ):
        for probe in evidence.telling:
            taken = _taken(probe.got, probe.exact, axis)
            if taken is None or (taken == np.arange(taken.size)).all():
                continue
            found = enumerate(taken.tolist())
            others = [f"{part} {i} is {part} {j}" for i, j in found if i != j]
            phrase = f"outputs whose {', '.join(others)}"
            yield variant(name, phrase, finish=_moving(axis, taken))
            break
    for name, phrase, order in (
        ("rows_reversed", "rows in reverse", _backwards),
        ("rows_late", "rows that come one late", _late),
        ("rows_early", "rows that come one early", _early),
    ):
        yield variant(name, f"outputs with {phrase}", finish=moved(order))


def _backwards(x: Real) -> Real:
    return x[:, :, ::-1]


def _late(x: Real) -> Real:
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], axis=-2)


def _early(x: Real) -> Real:
    return np.concatenate([x[..., 1:, :], x[..., -1:, :]], axis=-2)


def _taken(got: Real, exact: Bounded, axis: int) -> NDArray[np.int64] | None:
    """Return which part of the exact output each part of the target's is closest to."""
    if got.shape != exact.output.shape:
        return None
    parts, known = (np.moveaxis(x, axis, 0) for x in (got, exact.output))
    differences = abs(parts[:, None] - known[None])
    apart = np.nan_to_num(differences, nan=np.inf).mean(axis=(2, 3, 4))
    return np.asarray(apart.argmin(axis=1))


def _moving(axis: int, taken: NDArray[np.int64]) -> Finish:
    """Return what puts parts where the target puts them, where there are as many."""

    def move(x: Real) -> Real:
        order = np.arange(x.shape[axis])
        count = min(order.size, taken.size)
        chosen = taken[:count]
        order[:count] = np.where(chosen < order.size, chosen, order[:count])
        return x.take(order, axis=axis)

    return moved(move)
