"""A candidate: anybody's function, timed on inputs of which no two calls have the same.

Between two calls one number changes in place, and the outputs of some calls are kept as
they were timed: `linkern.bench.trial` judges them in another process.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.bench.clocks import Peak, Turn, timed
from linkern.bench.cpu.torch_peers import torch_with_threads
from linkern.bench.memory import peak_by_growth
from linkern.bench.peers import Peer
from linkern.bench.reference import judged_rows
from linkern.bench.tasks import Inputs, Task, drawn
from linkern.testing.target.framework import Framework
from linkern.testing.target.frameworks import framework_named
from linkern.testing.target.inference import infer
from linkern.testing.target.loading import load, resolve

__all__ = [
    "Candidate",
    "Edit",
    "Kept",
    "candidate_peer",
    "edited",
    "edits",
    "kept_rows",
    "prepare",
]

Real = NDArray[Any]
NAMES = ("query", "key", "value")
OP = "linear_attention"
# Tokens from the first one on whose outputs are kept, and judged by the proved bound.
REACH = 4096


@dataclass(frozen=True)
class Edit:
    """One number of the inputs: the input, and the index in it."""

    name: str
    index: tuple[int, ...]

    @property
    def head(self) -> list[int]:
        """The batch entry and the head in which it is."""
        return [*self.index[:2]]


@dataclass(frozen=True)
class Kept:
    """Part of the output of one call: how many edits it has seen, which head, rows."""

    edits: int
    head: list[int]
    output: NDArray[Any]


def candidate_peer(target: str, framework: str | None, seed: int) -> Peer:
    """Return the peer of a function ``package.module:name`` or ``file.py:name``.

    Parameters
    ----------
    target : str
        The function: causal linear attention on ``(B, H, T, dim)``.
    framework : str, optional
        Array library of its inputs. Default: inferred, as `linkern verify` does.
    seed : int
        Of the numbers that change between its calls.
    """
    options = {"target": target, "framework": framework, "seed": seed}
    return Peer(
        target,
        "a candidate, judged on what was timed",
        "candidates:prepare",
        ("causal",),
        options=options,
        longest=None,
        judged=True,
    )


def edits(task: Task, length: int, seed: int) -> Iterator[Edit]:
    """Yield which number changes after each call, often one of an early token."""
    rng = np.random.default_rng([seed, length])
    while True:
        token = int(length ** rng.random()) % length
        batch, head = int(rng.integers(task.batch)), int(rng.integers(task.heads))
        name = NAMES[int(rng.integers(3))]
        yield Edit(name, (batch, head, token, int(rng.integers(task.dim))))


def edited(x: Any) -> Any:
    """Return another number of about the same size."""
    two = x.dtype.type(2)
    return x - two if x > 0 else x + two


def kept_rows(length: int) -> list[int]:
    """Return the tokens of which outputs are kept."""
    return sorted({*range(min(length, REACH)), *judged_rows(length)})


def prepare(inputs: Inputs, task: Task, **options: Any) -> "Candidate":
    """Load a candidate and return its calls."""
    return Candidate(inputs, task, **options)


class Candidate:
    """The calls of one function, with inputs that change and outputs that are kept.

    Parameters
    ----------
    inputs, task : Inputs, Task
        The first inputs, and what they are inputs of.
    target, framework, seed : str, str or None, int
        As of `candidate_peer`.
    """

    def __init__(
        self, inputs: Inputs, task: Task, target: str, framework: str | None, seed: int
    ) -> None:
        function = resolve(target)
        self._framework: Framework = framework_named(framework or infer(function).name)
        if self._framework.name == "torch":
            torch_with_threads()
        loaded = load(function, target, op=OP)
        self._function: Callable[..., Any] = loaded.function
        self._names = loaded.interface.inputs
        self._task, self._length = task, inputs.query.shape[2]
        self._edits = edits(task, self._length, seed)
        self._choice = np.random.default_rng()
        self._count, self._last = 0, Edit("query", (0, 0, 0, 0))
        self._kept: list[Kept] = []
        self._natives: dict[str, Any] = {}
        self._fill(inputs)

    def _fill(self, inputs: Inputs) -> None:
        """Take other numbers, at the same addresses where arrays can be written to."""
        fresh = dict(zip(NAMES, inputs.arrays()[:3], strict=True))
        self._held = {name: x.copy() for name, x in fresh.items()}
        natives = {n: self._framework.to_native(x, "cpu") for n, x in fresh.items()}
        if self._framework.mutable and self._natives:
            for name, x in natives.items():
                self._natives[name][...] = x
            return
        self._natives = natives

    def _call(self) -> Any:
        natives = self._natives.values()
        if self._names:
            result = self._function(**dict(zip(self._names, natives, strict=True)))
        else:
            result = self._function(*natives)
        output = result[0] if isinstance(result, tuple | list) else result
        if hasattr(output, "block_until_ready"):
            output.block_until_ready()
        return output

    def _edit(self) -> None:
        """Change one number in place, or in a new array where that cannot be."""
        edit = self._last = next(self._edits)
        x = self._held[edit.name]
        x[edit.index] = edited(x[edit.index])
        self._count += 1
        if self._framework.mutable:
            self._natives[edit.name][edit.index] = float(x[edit.index])
        else:
            self._natives[edit.name] = self._framework.to_native(x, "cpu")

    def _checked(self, output: Any) -> Real:
        """Return an output as a NumPy array; require library, shape and dtype."""
        if not self._framework.is_native(output):
            kind = type(output).__name__
            msg = f"returned a {kind}, not an array of {self._framework.name}"
            raise TypeError(msg)
        x, expected = self._framework.to_numpy(output), self._held["value"]
        if x.shape != expected.shape or x.dtype != expected.dtype:
            msg = f"returned {x.dtype} {x.shape}, not {expected.dtype} {expected.shape}"
            raise ValueError(msg)
        return x

    def _copied(self, output: Any, count: int, edit: Edit) -> Kept:
        """Copy the head of an output in which a number was changed last."""
        batch, head = edit.head
        x = self._checked(output)[batch, head][kept_rows(self._length)]
        return Kept(count, [batch, head], x.copy())

    def answer(self, rows: list[int]) -> list[Real]:
        """Call once and return some tokens of the output, in float64."""
        x = self._checked(self._call())
        return [np.asarray(x[..., rows, :], "float64")]

    def turn(self, window: float) -> Turn:
        """Repeat the call for some seconds; keep the last output and one by chance."""
        gc.collect()
        made, chosen, last = 0, list[Kept](), (None, 0, self._last)

        def after(output: Any) -> None:
            nonlocal made, chosen, last
            made += 1
            last = (output, self._count, self._last)
            if self._choice.integers(made) == 0:
                chosen = [self._copied(*last)]
            self._edit()

        turn = timed(self._call, window, after=after)
        self._kept = [*chosen, self._copied(*last)]
        return turn

    def kept(self) -> list[Kept]:
        """Return what was kept of the last turn."""
        return self._kept

    def again(self, seed: int) -> list[Kept]:
        """Call twice on inputs that nobody has announced."""
        self._fill(drawn(self._task, self._length, seed))
        self._count = 0
        return [self._copied(self._call(), 0, self._last) for _ in range(2)]

    def peak(self, *, traced: bool) -> Peak:
        """Return the most memory of one more call beside inputs and output."""
        del traced
        peak = peak_by_growth(self._call)
        size = self._held["value"].nbytes
        return Peak(None if peak is None else max(0, peak - size))
