"""What is made ready on a GPU: calls that take turns, and how to look at an answer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from linkern.bench.cuda.clocks import Clock
from linkern.bench.cuda.tasks import DRAWN
from linkern.bench.tasks import Inputs, Real, Task
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["OnDevice", "as_bits", "from_bits", "numbers_of_heads", "parts"]


@dataclass(frozen=True)
class OnDevice:
    """A contestant that is ready.

    Parameters
    ----------
    clock : Clock
        Where it runs, and the time there.
    calls : tuple of callable
        What is timed: the same on different arrays. They do not wait.
    answer : callable
        ``answer(heads, rows)`` returns what it answers, as float64 arrays
        ``(1, heads, rows, dim)``: the output, or the gradients of query, key and value.
    """

    clock: Clock
    calls: tuple[Callable[[], Any], ...]
    answer: Callable[[list[int], list[int]], list[Real]]


def as_bits(x: Real, dtype: str) -> Real:
    """Return numbers in some dtype as integers: every library has those."""
    kind = numpy_dtype(dtype)
    integer = {2: np.int16, 4: np.int32}[kind.itemsize]
    return np.ascontiguousarray(x.astype(kind)).view(integer)


def from_bits(x: Real, dtype: str) -> Real:
    """Return the numbers, float64."""
    return x.view(numpy_dtype(dtype)).astype(np.float64)


def numbers_of_heads(task: Task) -> Real:
    """Return which head of those drawn each head of the task is like."""
    return np.arange(task.batch * task.heads) % DRAWN


def parts(inputs: Inputs, task: Task) -> tuple[Real, ...]:
    """Return the arrays that a task takes; the cotangent only where it has one."""
    given = (inputs.query, inputs.key, inputs.value)
    return (*given, inputs.cotangent) if task.kind == "gradient" else given
