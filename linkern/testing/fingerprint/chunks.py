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

from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.fingerprint.features import with_features
from linkern.testing.influence.paths import ask
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target

__all__ = ["measure"]

Real = NDArray[np.float64]
# float64 has 53 bits, and float16 a range of 40 powers of two with its subnormals.
LARGE = 2.0**60
LARGE_AND_SMALL_IN_FLOAT16 = (2.0**15, 2.0**-10)
MOST_CALLS = 100
# Length, key and value dimension: four chunks of 256, and some more tokens; the others
# for kernels that take whole tiles.
SIZES = ((1040, 4, 64), (1024, 16, 64), (1024, 64, 64), (256, 16, 16))


def measure(target: Target, scope: Scope) -> int | None:
    """Return the chunk size; None if sums have no edges at regular distances."""
    for length, key_dim, value_dim in SIZES:
        # Each value channel is a question of its own.
        keys = value_dim if scope.contract.equal_dims else key_dim
        try:
            shape = nearest_shape(scope, (1, 1, length, keys, value_dim))
            closed = _closed(target, scope, shape)
        except (DoesNotApply, TargetRaised):
            continue
        return None if closed is None else period(closed)
    return None


def _closed(target: Target, scope: Scope, shape: Shape) -> NDArray[np.bool_] | None:
    """Return the tokens before which sums are closed; None if that cannot be read.

    Nothing is asked about the first quarter, in which the first chunk may lie.
    """
    length, columns = shape.length, shape.value_dim
    if shape.keys != length or length > MOST_CALLS * columns:
        return None
    large, small = LARGE, 1.0
    if scope.dtype == "float16":
        large, small = LARGE_AND_SMALL_IN_FLOAT16

    def last(value: Real) -> Real:
        x = np.broadcast_to(value, shape.of("bgsv"))
        made = with_features(scope, shape, query=query, key=key, value=x)
        return np.asarray(ask(target, made)[0, 0, -1], np.float64)

    query, key = np.zeros(shape.query), np.zeros(shape.key)
    query[..., 0] = key[..., 0] = 1.0
    value = np.zeros((length, columns))
    value[0] = 1.0
    one = last(value)[0] * small
    closed = np.zeros(length, dtype=np.bool_)
    for first in range(length // 4, length, columns):
        positions = np.arange(first, min(first + columns, length))
        value = np.zeros((length, columns))
        value[0] = large
        value[positions - 1, positions - first] = -large
        value[positions, positions - first] = small
        with np.errstate(all="ignore"):
            survived = last(value)[: len(positions)] / one
        told = np.minimum(abs(survived), abs(survived - 1)) < 1 / 4
        closed[positions] = survived > 1 / 2
        each = (closed[1:] & closed[:-1]).any()
        never = positions[-1] >= length // 2 and not closed.any()
        if not told.all() or each or never:
            return None
    return closed


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
