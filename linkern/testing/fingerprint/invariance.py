"""Distance of outputs whose bits a batch-invariant kernel would make equal.

One sequence is computed alone and in a batch, at once and in parts, dense and packed.
The distance of two outputs is the largest over their rows, in units in the last place
of the largest number of the row.
"""

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["BATCH", "DECODED", "PACKED", "SPLIT", "measure", "ulps"]

# Batch, heads, length, key and value dimension.
SIZES = (8, 2, 150, 16, 12)
BATCH = f"row alone against a batch of {SIZES[0]}"
SPLIT = "two spans against one"
DECODED = "prompt and decoding against one span"
PACKED = "packed against dense"
# Tokens that are decoded one by one; where spans and packed sequences are cut.
TOKENS = 4
CUT = 64


def measure(target: Target, scope: Scope) -> dict[str, float]:
    """Return the distance of each pair of outputs that the target returns.

    Parameters
    ----------
    target : Target
        Loaded.
    scope : Scope
        Operator, contract and dtype.

    Returns
    -------
    dict of str to float
        Units in the last place: 0 for equal bits. A pair is missing if the target
        takes no batch, no state or no packed sequences, or raises.

    Raises
    ------
    DoesNotApply
        If the contract allows no such shape.
    """
    kind = "uniform" if scope.operator.feature_map else "mild"
    shape = nearest_shape(scope, SIZES)
    batch = real_problem(scope, shape, kind, "normal", np.random.default_rng(0))
    distances = {}
    for name, calls in _pairs(batch, scope).items():
        try:
            one, other = (target.call(call).output for call in calls)
        except TargetRaised:
            continue
        if one is not None and other is not None:
            distances[name] = ulps(one, other, scope.output_dtype)
    return distances


def _pairs(batch: Problem, scope: Scope) -> dict[str, tuple[Call, Call]]:
    """Return pairs of calls whose outputs agree as far as both go."""
    row, contract = batch.first_of_batch(), scope.contract
    length, step = row.length, contract.length_multiple_of
    cut = CUT // step * step
    whole, batched = Call(row.inputs), "b" in contract.layout
    pairs = {BATCH: (whole, Call(batch.inputs))} if batched else {}
    if not 0 < cut < length or not scope.operator.causal:
        return pairs
    cuts: dict[str, tuple[int, ...]] = {}
    if scope.interface.takes_state:
        cuts[SPLIT] = (cut,)
        if step == 1:
            cuts[DECODED] = tuple(range(length - TOKENS, length))
    for name, at in cuts.items():
        pairs[name] = whole, Call(row.inputs, cuts=at, wants_state=True)
    if scope.interface.cu_seqlens is not None and batched:
        packed = Call(row.inputs, segments=((0, cut, length),))
        pairs[PACKED] = Call(row.span(0, cut).inputs), packed
    return pairs


def ulps(one: NDArray[np.generic], other: NDArray[np.generic], dtype: str) -> float:
    """Return the largest distance of what two outputs have in common.

    Parameters
    ----------
    one, other : array (B, H, T, V)
        Only the first batch entries and tokens that both have are compared.
    dtype : str
        The dtype whose units are counted.

    Examples
    --------
    >>> x = np.ones((1, 1, 2, 3), np.float32)
    >>> ulps(x, x, "float32"), ulps(x, x + np.float32(2**-22), "float32")
    (0.0, 2.0)
    """
    common = tuple(slice(min(n)) for n in zip(one.shape, other.shape, strict=True))
    x, y = (np.asarray(array[common], dtype=np.float64) for array in (one, other))
    largest = np.maximum(abs(x), abs(y)).max(axis=-1, keepdims=True, initial=0.0)
    _, exponent = np.frexp(np.where(largest == 0, 1.0, largest))
    unit = np.exp2(exponent - float(SIGNIFICAND_BITS[dtype]))
    distance = float((abs(x - y) / unit).max(initial=0.0))
    return distance if np.isfinite(distance) else np.inf
