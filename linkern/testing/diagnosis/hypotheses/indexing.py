"""Outputs whose parts are those of another head, batch entry, channel or row."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import Bounded
from linkern.testing.diagnosis.hypotheses.epilogue import (
    Finish,
    Move,
    epilogue,
    moved,
)
from linkern.testing.diagnosis.hypotheses.evidence import Evidence
from linkern.testing.diagnosis.hypotheses.hypothesis import Deviation, hypothesis
from linkern.testing.diagnosis.hypotheses.pairs import Real

__all__ = ["ORDERS", "reversed_rows"]

# Orders of ``(B, H, ...)`` arrays by what takes the place of what.
ORDERS: dict[str, Move] = {
    "the first head": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "the next head": lambda x: np.roll(x, -1, axis=1),
    "the head before": lambda x: np.roll(x, 1, axis=1),
    "the first batch entry": lambda x: np.broadcast_to(x[:1], x.shape),
    "another batch entry": lambda x: np.roll(x, 1, axis=0),
}


@hypothesis("outputs", 30)
def permutations(evidence: Evidence) -> Iterator[Deviation]:
    """Yield outputs whose heads, batch entries, channels or rows are others'.

    Each part is compared with every part of the exact output; the first output in
    which some part is closer to another one tells the order.
    """
    for axis, name, part in (
        (0, "batches_mixed", "batch entry"),
        (1, "heads_mixed", "head"),
        (3, "channels_swapped", "channel"),
    ):
        for probe in evidence.informative:
            order = _closest(probe.got, probe.exact, axis)
            if order is None or (order == np.arange(order.size)).all():
                continue
            pairs = enumerate(order.tolist())
            others = [f"{part} {i} is {part} {j}" for i, j in pairs if i != j]
            phrase = f"outputs whose {', '.join(others)}"
            yield epilogue(name, phrase, _taking(axis, order))
            break
    for name, phrase, move in (
        ("rows_reversed", "rows in reverse", reversed_rows),
        ("rows_late", "rows that come one late", _late),
        ("rows_early", "rows that come one early", _early),
    ):
        yield epilogue(name, f"outputs with {phrase}", moved(move))


def reversed_rows(x: Real) -> Real:
    """Return the tokens of an array ``(B, H, T, ...)`` in reverse."""
    return x[:, :, ::-1]


def _late(x: Real) -> Real:
    return np.concatenate([x[..., :1, :], x[..., :-1, :]], axis=-2)


def _early(x: Real) -> Real:
    return np.concatenate([x[..., 1:, :], x[..., -1:, :]], axis=-2)


def _closest(got: Real, exact: Bounded, axis: int) -> NDArray[np.int64] | None:
    """Return which part of the exact output each part of the target's is closest to."""
    if got.shape != exact.output.shape:
        return None
    parts, known = (np.moveaxis(x, axis, 0) for x in (got, exact.output))
    differences = abs(parts[:, None] - known[None])
    apart = np.nan_to_num(differences, nan=np.inf).mean(axis=(2, 3, 4))
    return np.asarray(apart.argmin(axis=1))


def _taking(axis: int, order: NDArray[np.int64]) -> Finish:
    """Return what takes parts in an order, as far as there are as many."""

    def move(x: Real) -> Real:
        indices = np.arange(x.shape[axis])
        count = min(indices.size, order.size)
        chosen = order[:count]
        indices[:count] = np.where(chosen < indices.size, chosen, indices[:count])
        return x.take(indices, axis=axis)

    return moved(move)
