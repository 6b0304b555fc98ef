"""Tasks: one kind of call at one shape, its inputs, and the work that it needs."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "CHUNK",
    "DISTINCT_HEADS",
    "GATED",
    "OURS",
    "WITH_GRADIENT",
    "Inputs",
    "Kind",
    "Task",
    "drawn",
]

Real = NDArray[Any]
Kind = Literal[
    "causal",
    "delta",
    "kda",
    "full",
    "gradient",
    "delta-gradient",
    "compile",
    "compile-delta",
    "decode",
    "generate",
    "stream",
]

OURS = "linkern"
# Kinds of task that compute gated delta rule or Kimi delta attention, which has a decay
# for each channel: keys have norm one.
GATED = ("delta", "kda", "delta-gradient", "compile-delta")
# Kinds of task with a cotangent: their answers are the output and three gradients, or,
# on a GPU, the gradients alone.
WITH_GRADIENT = ("gradient", "delta-gradient", "compile", "compile-delta")
# Executed operations are counted at this chunk size, whatever a peer does.
CHUNK = 64
# Heads drawn for a GPU; all others repeat them. No power of two, so that a head differs
# from those that a kernel could confuse it with.
DISTINCT_HEADS = 3


@dataclass(frozen=True)
class Task:
    """One kind of call at one shape, at several lengths."""

    name: str
    summary: str
    # Causal; gated delta rule; Kimi delta attention; noncausal; gradients of a causal
    # call, and of gated delta rule; compiling these; token by token; generating token
    # by token beside other kinds of attention; causal, from stores beyond the memory.
    kind: Kind
    # Tokens; in a quick run `quick`. Keys and values have the same `dim`.
    lengths: tuple[int, ...]
    batch: int = 1
    heads: int = 8
    dim: int = 64
    dtype: str = "float32"
    # None for those of the run.
    threads: int | None = None
    # False if it must be named to run.
    default: bool = True
    quick: tuple[int, ...] = (512, 1024)
    # On a GPU few heads are drawn and repeated, and gradients exclude the forward pass.
    device: Literal["cpu", "cuda"] = "cpu"
    # The peer that ratios are relative to.
    baseline: str = OURS
    # Tokens timed of a generator that recomputes every token.
    samples: int = 12
    # Tokens after which the inputs of a stream repeat.
    period: int = 2**18

    def steps(self, length: int) -> int:
        """Return the number of tokens that share the time of a call; 1 if none do."""
        return length if (self.kind, self.device) == ("decode", "cpu") else 1

    def operations(self, length: int) -> int | None:
        """Return the operations of a timed unit; None for what is not counted.

        The chunk form at chunks of 64 executes ``2 C (K + V) + 4 K V`` for each token
        and head, and ``4 K V`` where there is no mask or no chunk.
        """
        state = 4 * self.dim * self.dim
        each = {
            "causal": 2 * CHUNK * 2 * self.dim + state,
            "stream": 2 * CHUNK * 2 * self.dim + state,
            "full": state,
            "decode": state,
        }.get(self.kind)
        if each is None:
            return None
        return each * self.batch * self.heads * (length // self.steps(length))

    def compulsory_bytes(self, length: int) -> int | None:
        """Return the bytes that must be read and written once: inputs and outputs.

        None for decoding on a CPU, where the state can stay in the caches, and for
        compiling; on a GPU the float32 state and normalizer are read and written too.
        """
        if self.kind in ("compile", "compile-delta"):
            return None
        if self.kind == "decode":
            if self.device == "cpu":
                return None
            heads, item = self.batch * self.heads, numpy_dtype(self.dtype).itemsize
            return heads * (4 * self.dim * item + 2 * 4 * self.dim * (self.dim + 1))
        # On a GPU the gradients alone are timed: their output is not written.
        gradient = 8 if self.device == "cpu" else 7
        arrays = gradient if self.kind in WITH_GRADIENT else 4
        # Gates have gradients, too.
        each = {"delta": 2, "delta-gradient": 4, "kda": self.dim + 1}
        numbers = each.get(self.kind, 0)
        gates = 4 * numbers * self.batch * self.heads * length
        return arrays * self.array_bytes(length) + gates

    def array_bytes(self, length: int) -> int:
        """Return the bytes of the queries, or of the output, of some tokens."""
        item = numpy_dtype(self.dtype).itemsize
        return self.batch * self.heads * length * self.dim * item

    def judged_heads(self) -> list[int]:
        """Return the heads compared with the reference: all, or first and last few."""
        heads = range(self.batch * self.heads)
        if self.device == "cpu":
            return [*heads]
        return sorted({*heads[:DISTINCT_HEADS], *heads[-DISTINCT_HEADS:]})


@dataclass(frozen=True)
class Inputs:
    """NumPy arrays ``(B, H, T, dim)``; the cotangent is empty if a task has none."""

    query: Real
    key: Real
    value: Real
    cotangent: Real

    def arrays(self) -> tuple[Real, ...]:
        """Return the arrays that the task takes."""
        arrays = (self.query, self.key, self.value)
        return (*arrays, self.cotangent) if self.cotangent.size else arrays

    def gates(self, kind: Kind) -> tuple[Real, Real]:
        """Return log-decays and rates for a kind of `GATED`.

        They are ``(B, H, T)``, but the log-decays of "kda" ``(B, H, T, dim)``.
        """
        rates = 1 / (1 + np.exp(-self.query[..., 1]))
        if kind == "kda":
            return -abs(self.query) / 8, rates
        return -abs(self.query[..., 0]), rates


def drawn(task: Task, length: int, seed: int) -> Inputs:
    """Return independent standard normal numbers, the same for the same seed.

    Of a stream: those of one period. For a GPU: float32 numbers of a few heads, rounded
    to the dtype of the task.
    """
    if task.device == "cuda":
        few = replace(task, batch=1, heads=DISTINCT_HEADS, dtype="float32")
        inputs = drawn(replace(few, device="cpu"), length, seed)
        kind = numpy_dtype(task.dtype)
        return Inputs(*(x.astype(kind).astype("f4") for x in vars(inputs).values()))
    rng = np.random.default_rng(seed)
    if task.kind == "stream":
        length = min(length, task.period)
    shape = (task.batch, task.heads, length, task.dim)
    dtype: Any = np.dtype(task.dtype)
    query, key, value = (rng.standard_normal(shape, dtype=dtype) for _ in range(3))
    if task.kind in GATED:
        key /= np.linalg.norm(key, axis=-1, keepdims=True)
    if task.kind not in WITH_GRADIENT:
        return Inputs(query, key, value, value[:, :, :0])
    return Inputs(query, key, value, rng.standard_normal(shape, dtype=dtype))
