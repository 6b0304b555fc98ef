"""Arrays on a GPU: few heads are drawn, repeated there, and some rows come back."""

import numpy as np

from linkern.bench.tasks import DISTINCT_HEADS, GATED, Inputs, Real, Task
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["as_bits", "from_bits", "head_indices", "of_task", "rotation"]

# Bytes of all sets of inputs and outputs that take turns: many times any cache.
_ROTATED = 512 * 2**20


def as_bits(x: Real, dtype: str) -> Real:
    """Return numbers in some dtype as integers, which every library has."""
    kind = numpy_dtype(dtype)
    integer = {2: np.int16, 4: np.int32}[kind.itemsize]
    return np.ascontiguousarray(x.astype(kind)).view(integer)


def from_bits(x: Real, dtype: str) -> Real:
    """Return the numbers, float64."""
    return x.view(numpy_dtype(dtype)).astype(np.float64)


def head_indices(task: Task) -> Real:
    """Return the index of the drawn head that each head of the task repeats."""
    return np.arange(task.batch * task.heads) % DISTINCT_HEADS


def of_task(inputs: Inputs, task: Task) -> list[tuple[Real, str]]:
    """Return the arrays that a task takes, each with its dtype: gates are float32."""
    pairs = [(x, task.dtype) for x in inputs.arrays()]
    if task.kind in GATED:
        pairs += [(x, "float32") for x in inputs.gates(task.kind)]
    return pairs


def rotation(task: Task, length: int) -> int:
    """Return the number of sets of arrays that take turns, so that no cache helps."""
    return -(-_ROTATED // (task.compulsory_bytes(length) or _ROTATED))
