"""Fits of logarithms: small exponents of few quantities that leave only rounding."""

from collections.abc import Iterator, Sequence

import numpy as np

from linkern.testing.diagnosis.factors.spelling import BASES, is_logarithm
from linkern.testing.influence.maps import Real

__all__ = ["exponents"]

# Subsets of each size that are looked at closer.
KEPT = 150
# Columns that are as good as a combination of others.
DEPENDENT = 1e-7
LARGEST_EXPONENT = 4


def exponents(
    table: Real, names: Sequence[str], most: int
) -> Iterator[dict[str, float]]:
    """Yield exponents of up to `most` quantities that leave no more than rounding.

    The normal equations of all subsets are solved at once; the exponents of those that
    leave little are rounded to multiples of one half.

    Parameters
    ----------
    table : array (quantities + 1, N)
        The quantities and behind them the target, in units of what rounding explains.
    names : sequence of str
        The names of the quantities.
    most : int
        The most quantities in a product.
    """
    yield {}
    size = np.maximum(np.sqrt((table * table).sum(axis=1)), 1e-150)
    allowed = table.shape[1] / size[-1] ** 2 + 1e-12
    table = table / size[:, None]
    # More quantities than a few entries can tell apart fit anything.
    values = np.unique(np.round(table[-1], 7)).size
    varies = size[-1] ** 2 > table.shape[1]
    for used in range(1, min(most, (values - 1) // 2) + 1):
        for chosen in _subsets(table @ table.T, used, allowed):
            solved, *_ = np.linalg.lstsq(table[[*chosen]].T, table[-1], rcond=None)
            powers = solved * size[-1] / size[[*chosen]]
            rounded = {
                names[i]: _rounded(names[i], float(x), alone=used == 1 and varies)
                for i, x in zip(chosen, powers, strict=True)
            }
            if all(rounded.values()):
                yield rounded


def _subsets(gram: Real, used: int, allowed: float) -> list[tuple[int, ...]]:
    """Return the subsets of columns that leave least of the last one."""
    best: list[tuple[float, tuple[int, ...]]] = []
    if used == 1:
        left = 1 - gram[:-1, -1] ** 2
        best = [(float(left[i]), (int(i),)) for i in np.flatnonzero(left <= allowed)]
    elif used == 2:
        best = _pairs(gram, (), allowed)
    else:
        for first in range(len(gram) - 1):
            rest = gram - np.outer(gram[first], gram[first])
            best += _pairs(rest, (first,), allowed)
    return [chosen for _, chosen in sorted(best)[:KEPT]]


def _pairs(
    gram: Real, taken: tuple[int, ...], allowed: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Return pairs of columns behind those that were taken out, and what they leave."""
    own, a, b = np.diagonal(gram)[:-1], gram[:-1, :-1], gram[:-1, -1]
    both = own[:, None] * own
    det = both - a * a
    usable = (own[:, None] > DEPENDENT) & (own > DEPENDENT) & (det > DEPENDENT * both)
    shares = b[:, None] ** 2 * own
    fitted = (shares + shares.T - 2 * a * b[:, None] * b) / np.where(usable, det, 1.0)
    left = gram[-1, -1] - fitted
    pairs = np.argwhere(np.triu(usable & (left <= allowed), 1))
    pairs = pairs[pairs[:, 0] > max(taken, default=-1)]
    order = np.argsort(left[pairs[:, 0], pairs[:, 1]])[:KEPT]
    return [(float(left[i, j]), (*taken, int(i), int(j))) for i, j in pairs[order]]


def _rounded(name: str, exponent: float, *, alone: bool) -> float:
    """Return a short number beside an exponent; 0 if there is none."""
    if name.startswith("e^("):
        # Powers of a number: it may be any.
        near = float(f"{exponent:.2g}")
        close = abs(near - exponent) <= 1e-3 * abs(exponent)
        return (near if close else exponent) if alone else 0.0
    options = [round(2 * exponent) / 2]
    if is_logarithm(name):
        options += [sign * float(x) for x in BASES for sign in (1, -1)]
    best = min(options, key=lambda x: abs(x - exponent))
    close = abs(best - exponent) <= 0.05 and abs(best) <= LARGEST_EXPONENT
    return best if close else 0.0
