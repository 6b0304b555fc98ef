"""The chunk size of a target, as the order of its sums shows it.

A number so large that 1 is lost beside it comes in with the first token and is taken
back by token j; the 1 of the token after that survives only if the sum was closed in
between. In a kernel that sums chunk by chunk that is so at the edges of its chunks, and
nowhere else; token by token, everywhere. Source of the idea: P. Xie, Y. Gao and J. Xue,
"FPRev: Revealing the Order of Floating-Point Summation by Numerical Testing",
arXiv:2411.00442 (2024), which asks for the whole tree of additions.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.fingerprint.features import with_features
from linkern.testing.influence.paths import ask
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target

__all__ = ["measure"]

# float64 has 53 bits, and float16 a range of 40 powers of two with its subnormals.
LARGE_AND_SMALL = (2.0**60, 1.0)
IN_FLOAT16 = (2.0**15, 2.0**-10)
# Most value channels that a call holds, over all batch entries.
MOST_CHANNELS = 1600
# Length, key and value dimension: four chunks of 256, and some more tokens; the others
# for kernels that take whole tiles.
SIZES = ((1040, 4, 64), (1024, 16, 64), (1024, 64, 64), (256, 16, 16))


def measure(target: Target, scope: Scope) -> int | None:
    """Return the chunk size; None if sums have no edges at regular distances."""
    for length, key_dim, value_dim in SIZES:
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

    Each value channel asks about one token; nothing is asked about the first quarter,
    in which the first chunk may lie.
    """
    positions = np.arange(max(shape.length // 4, 2), shape.length)
    entry, channel = divmod(np.arange(len(positions)), shape.value_dim)
    if shape.keys != shape.length or not 0 < len(positions) <= MOST_CHANNELS:
        return None
    shape = replace(shape, batch=int(entry[-1]) + 2)
    large, small = IN_FLOAT16 if scope.dtype == "float16" else LARGE_AND_SMALL
    query, key, value = (np.zeros(x) for x in (shape.query, shape.key, shape.value))
    query[..., 0] = key[..., 0] = 1.0
    value[:, :, 0] = large
    value[entry, :, positions - 1, channel] = -large
    value[entry, :, positions, channel] = small
    value[-1], value[-1, :, 0] = 0.0, small
    made = with_features(scope, shape, query=query, key=key, value=value)
    last = ask(target, made)[:, 0, -1]
    with np.errstate(all="ignore"):
        survived = last[entry, channel] / last[-1, channel]
    told = np.minimum(abs(survived), abs(survived - 1)) < 1 / 4
    closed = np.zeros(shape.length, dtype=np.bool_)
    closed[positions] = survived > 1 / 2
    return closed if told.all() else None


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
