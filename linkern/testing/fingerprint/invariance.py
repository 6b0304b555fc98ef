"""Distance of outputs whose bits a batch-invariant kernel would make equal.

One sequence is computed alone and in a batch, at once and in parts, dense and packed.
The distance of two outputs is the largest over their rows, in units in the last place
of the largest number of the row.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import DoesNotApply, TargetRaised
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, Reply

__all__ = ["BATCH", "DECODED", "PACKED", "SPLIT", "measure", "ulps"]

Real = NDArray[np.float64]
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
        Behind its fence.
    scope : Scope
        Operator, contract and dtype.

    Returns
    -------
    dict of str to float
        Units in the last place: 0 for equal bits. A pair is missing if the target
        takes no batch, no state or no packed sequences, or raises.
    """
    try:
        batch = _batch(scope)
    except DoesNotApply:
        return {}
    row = batch.first_of_batch()
    length, step = row.length, scope.contract.length_multiple_of
    cut = CUT // step * step

    def output(problem: Problem, **options: object) -> Reply:
        return target.call(Call(problem.inputs, **options))  # type: ignore[arg-type]

    def of_split(cuts: tuple[int, ...]) -> tuple[Reply, Reply]:
        return output(row), output(row, cuts=cuts, wants_state=True)

    def of_packed() -> tuple[Reply, Reply]:
        edges = ((0, cut, length),)
        return output(row.span(0, cut)), output(row, segments=edges)

    pairs: dict[str, Callable[[], tuple[Reply, Reply]]] = {}
    if "b" in scope.contract.layout:
        pairs[BATCH] = lambda: (output(row), output(batch))
    if 0 < cut < length and scope.operator.causal:
        if scope.interface.takes_state:
            pairs[SPLIT] = lambda: of_split((cut,))
            if step == 1:
                last = tuple(range(length - TOKENS, length))
                pairs[DECODED] = lambda: of_split(last)
        if scope.interface.cu_seqlens is not None and "b" in scope.contract.layout:
            pairs[PACKED] = of_packed
    distances = {}
    for name, replies in pairs.items():
        try:
            one, other = (reply.output for reply in replies())
        except TargetRaised:
            continue
        if one is not None and other is not None:
            distances[name] = ulps(one, other, scope.output_dtype)
    return distances


def _batch(scope: Scope) -> Problem:
    kind = "uniform" if scope.operator.feature_map else "mild"
    shape = nearest_shape(scope, SIZES)
    return real_problem(scope, shape, kind, "normal", np.random.default_rng(0))


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
    common = tuple(
        slice(min(a, b)) for a, b in zip(one.shape, other.shape, strict=True)
    )
    x, y = (np.asarray(array[common], dtype=np.float64) for array in (one, other))
    if not x.size:
        return 0.0
    largest = np.maximum(abs(x), abs(y)).max(axis=-1, keepdims=True)
    _, exponent = np.frexp(np.where(largest == 0, 1.0, largest))
    unit = np.exp2(exponent - float(SIGNIFICAND_BITS[dtype]))
    distance = float((abs(x - y) / unit).max())
    return distance if np.isfinite(distance) else float("inf")
