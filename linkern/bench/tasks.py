"""What is timed: attention of some shape, and how much work it is at least."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "TASKS", "Inputs", "Kind", "Task", "task_named"]

Real = NDArray[Any]
Kind = Literal["causal", "full", "gradient", "decode"]

# The chunk that executed operations are counted for, whatever a contestant does.
CHUNK = 64


@dataclass(frozen=True)
class Task:
    """One kind of call at one shape, at several lengths.

    Parameters
    ----------
    name, summary : str
        As in ``--task``; what it is, in a few words.
    kind : {"causal", "full", "gradient", "decode"}
        One causal call, one where every query sees every key, a causal call and its
        vector-Jacobian product, or token by token.
    lengths : tuple of int
        Tokens ``T``.
    batch, heads, dim : int
        ``B`` and ``H``, and ``K = V``.
    dtype : {"float32", "float64"}
        Of inputs and outputs.
    threads : int or None
        How many; None for as many as the run is told.
    default : bool
        Whether it runs without being named.
    quick : tuple of int
        Its lengths in a quick run.
    """

    name: str
    summary: str
    kind: Kind
    lengths: tuple[int, ...]
    batch: int = 1
    heads: int = 8
    dim: int = 64
    dtype: str = "float32"
    threads: int | None = None
    default: bool = True
    quick: tuple[int, ...] = (512, 1024)

    def steps(self, length: int) -> int:
        """Return among how many tokens the time of a call is shared; 1 if not."""
        return length if self.kind == "decode" else 1

    def operations(self, length: int) -> int | None:
        """Return the floating-point operations of what is timed; None for gradients.

        Those that the chunk form executes at chunks of 64: ``2 C (K + V) + 4 K V`` for
        each token and head, and ``4 K V`` where there is no mask or no chunk.
        """
        memory = 4 * self.dim * self.dim
        each = {
            "causal": 2 * CHUNK * 2 * self.dim + memory,
            "full": memory,
            "decode": memory,
        }.get(self.kind)
        if each is None:
            return None
        return each * self.batch * self.heads * (length // self.steps(length))

    def compulsory_bytes(self, length: int) -> int | None:
        """Return what has to be read and written once: inputs and outputs.

        None for decoding: the memory need not leave the caches.
        """
        if self.kind == "decode":
            return None
        arrays = 8 if self.kind == "gradient" else 4
        numbers = arrays * self.batch * self.heads * length * self.dim
        return numbers * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Inputs:
    """What every contestant is given.

    Parameters
    ----------
    query, key, value, cotangent : array (B, H, T, dim)
        NumPy arrays; the last one is that of the output.
    """

    query: Real
    key: Real
    value: Real
    cotangent: Real

    @classmethod
    def drawn(cls, task: Task, length: int, seed: int) -> "Inputs":
        """Return independent standard normal numbers: the same for the same seed."""
        rng = np.random.default_rng(seed)
        shape = (task.batch, task.heads, length, task.dim)
        kind: Any = np.dtype(task.dtype)
        query, key, value = (rng.standard_normal(shape, dtype=kind) for _ in range(3))
        if task.kind != "gradient":
            return cls(query, key, value, value[:, :, :0])
        return cls(query, key, value, rng.standard_normal(shape, dtype=kind))


_LONG = (4096, 16384, 65536)

TASKS = (
    Task("causal", "causal", "causal", (512, 1024, 2048, *_LONG)),
    Task("wide", "causal", "causal", (1024, 4096, 16384), dim=128),
    Task("narrow", "causal", "causal", (1024, 4096, 16384), dim=32),
    Task("float64", "causal", "causal", (512, 4096, 16384), dtype="float64"),
    Task("one-head", "causal, a single head", "causal", (16384,), heads=1),
    Task(
        "one-thread",
        "causal, one thread",
        "causal",
        (512, 4096, 16384),
        threads=1,
    ),
    Task("noncausal", "every query sees every key", "full", _LONG),
    Task("gradient", "causal and its VJP", "gradient", (512, *_LONG)),
    Task(
        "decode-1",
        "token by token, one sequence",
        "decode",
        (512,),
        quick=(512,),
    ),
    Task(
        "decode-64",
        "token by token, 64 sequences",
        "decode",
        (256,),
        batch=64,
        quick=(256,),
    ),
    Task(
        "million",
        "causal, 8.6 GB of inputs and outputs",
        "causal",
        (2**20,),
        default=False,
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
