"""The chunk size of a target, as the order of its sums shows it.

A number so large that 1 is lost beside it comes in with the first token and is taken
back by token j; the 1 of the token after that survives only if the sum was closed in
between. In a kernel that sums chunk by chunk that is so at the edges of its chunks, and
nowhere else; token by token, everywhere. Source of the idea: P. Xie, Y. Gao and J. Xue,
"FPRev: Revealing the Order of Floating-Point Summation by Numerical Testing",
arXiv:2411.00442 (2024), which asks for the whole tree of additions.
"""

import numpy as np
from numpy.typing import NDArray

from linkern.testing.fingerprint.probing import (
    Prober,
    Question,
    Token,
    Unanswered,
    inputs_of,
    lengths,
)

__all__ = ["measure"]

# float64 has 53 bits, and float16 a range of 40 powers of two with its subnormals.
LARGE = 2.0**60
LARGE_AND_SMALL_IN_FLOAT16 = (2.0**15, 2.0**-10)
MOST_CALLS = 100
# Four chunks of 256, and some more tokens.
LENGTHS = (1040, 1024, 512, 256)


def measure(prober: Prober) -> int | None:
    """Return the chunk size; None if sums have no edges at regular distances."""
    if prober.erases:
        return None
    for length in lengths(prober.scope.contract, LENGTHS):
        try:
            closed = _closed(prober, length)
        except Unanswered:
            continue
        return None if closed is None else period(closed)
    return None


def _closed(prober: Prober, length: int) -> NDArray[np.bool_] | None:
    """Return the tokens before which sums are closed; None if that cannot be read.

    Nothing is asked about the first quarter, in which the first chunk may lie.
    """
    columns = prober.channels
    if length > MOST_CALLS * columns:
        return None
    large, small = LARGE, 1.0
    if prober.scope.dtype == "float16":
        large, small = LARGE_AND_SMALL_IN_FLOAT16
    features = np.zeros((length, prober.key_dim))
    features[:, 0] = 1
    scope = prober.scope
    query, key = (inputs_of(of, features) for of in (scope.query_map, scope.key_map))
    one = _share_of_one(prober, length) * small
    closed = np.zeros(length, dtype=np.bool_)
    for first in range(length // 4, length, columns):
        positions = np.arange(first, min(first + columns, length))
        value = np.zeros((length, columns))
        value[0] = large
        value[positions - 1, positions - first] = -large
        value[positions, positions - first] = small
        survived = prober.ask(query, key, value)[-1, : len(positions)] / one
        told = np.minimum(abs(survived), abs(survived - 1)) < 1 / 4
        closed[positions] = survived > 1 / 2
        each = (closed[1:] & closed[:-1]).any()
        never = positions[-1] >= length // 2 and not closed.any()
        if not told.all() or each or never:
            return None
    return closed


def _share_of_one(prober: Prober, length: int) -> float:
    """Return the last output if all weights are 1, one value is 1 and the others 0."""
    tokens = (Token(at, (1,), float(at == 0)) for at in range(length))
    return prober.exact(Question((1,), tuple(tokens)))


def period(closed: NDArray[np.bool_]) -> int | None:
    """Return the distance of edges that are regular over three periods after the first.

    With fewer, the branches of a binary tree would look regular too.

    Examples
    --------
    >>> period(np.arange(130) % 32 == 0)
    32
    >>> period(np.arange(120) % 32 == 0) is None
    True
    """
    positions = np.arange(len(closed) // 4, len(closed))
    for size in range(2, positions[0] + 1):
        if np.array_equal(closed[positions], positions % size == 0):
            return size
    return None
