"""What is timed on a GPU, and the bytes that have to pass through its memory for it.

Linear attention does so little with each number that a fast kernel waits for memory.
How fast it is, is therefore said as a share of copying as many bytes.
"""

from dataclasses import replace

import numpy as np

from linkern.bench.tasks import Inputs, Real, Task
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "ALLOWED",
    "COPIED",
    "DRAWN",
    "TASKS",
    "drawn",
    "judged_heads",
    "moved_bytes",
    "rotated",
    "task_named",
]

# Of the largest number in the answer: some roundings of what goes in and out. A mask
# that is off by one, or a lost chunk, is far more.
ALLOWED = {"bfloat16": 2e-2, "float16": 4e-3, "float32": 1e-4}
# Heads that are drawn; all others are like one of these. No power of two, so that a
# head is unlike those that kernels could take it for.
DRAWN = 3
# Bytes of all sets of inputs and outputs that take turns: many times any cache.
_ROTATED = 512 * 2**20
# Bytes that are copied for comparison.
COPIED = 2**30
_ITEMS = {"bfloat16": 2, "float16": 2, "float32": 4}

_LENGTHS = (4096, 16384, 65536)


def _task(name: str, summary: str, kind: str, **more: object) -> Task:
    given = {"batch": 8, "heads": 16, "dtype": "bfloat16", "lengths": _LENGTHS}
    return Task(name, summary, kind, **{"quick": (4096,), **given, **more})  # type: ignore[arg-type]


TASKS = (
    _task("causal", "causal", "causal"),
    _task("wide", "causal", "causal", dim=128),
    _task("float32", "causal", "causal", dtype="float32"),
    _task("float32-wide", "causal", "causal", dtype="float32", dim=128),
    _task("gradient", "VJP of a causal call", "gradient"),
    _task("gradient-wide", "VJP of a causal call", "gradient", dim=128),
    *(
        _task(
            f"decode-{heads}",
            f"one token, {heads * 128 * 128 * 4 >> 20} MiB of memory",
            "decode",
            batch=heads // 16,
            dim=128,
            lengths=(16,),
            quick=(16,),
        )
        for heads in (1024, 2048)
    ),
)


def task_named(name: str) -> Task | None:
    """Return the task of a name, or None.

    Examples
    --------
    >>> task_named("wide").dim
    128
    """
    return next((task for task in TASKS if task.name == name), None)


def moved_bytes(task: Task, length: int) -> int:
    """Return what has to be read and written once.

    Inputs and outputs; of a VJP the cotangent and three gradients, not the output. For
    one token, the float32 memory and its normalizer are read and written besides.
    """
    heads = task.batch * task.heads
    arrays = 7 if task.kind == "gradient" else 4
    item = _ITEMS[task.dtype]
    if task.kind == "decode":
        return heads * (arrays * task.dim * item + 2 * 4 * task.dim * (task.dim + 1))
    return arrays * heads * length * task.dim * item


def rotated(task: Task, length: int) -> int:
    """Return how many sets of inputs and outputs take turns, so that no cache helps.

    Examples
    --------
    >>> rotated(task_named("decode-1024"), 16)
    4
    """
    return -(-_ROTATED // moved_bytes(task, length))


def drawn(task: Task, length: int, seed: int) -> Inputs:
    """Return inputs of a few heads, rounded to the dtype of the task: float32."""
    few = replace(task, batch=1, heads=DRAWN, dtype="float32")
    inputs = Inputs.drawn(few, length, seed)
    kind = numpy_dtype(task.dtype)

    def rounded(x: Real) -> Real:
        return x.astype(kind).astype(np.float32)

    return Inputs(
        rounded(inputs.query),
        rounded(inputs.key),
        rounded(inputs.value),
        rounded(inputs.cotangent),
    )


def judged_heads(task: Task) -> list[int]:
    """Return heads to look at: the first and the last.

    Examples
    --------
    >>> judged_heads(task_named("causal"))
    [0, 1, 2, 125, 126, 127]
    """
    heads = range(task.batch * task.heads)
    return sorted({*heads[:DRAWN], *heads[-DRAWN:]})
