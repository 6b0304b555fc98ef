"""The plans of the tasks of a GPU: the cut of each kernel, and why it was chosen.

Nothing is measured, and no GPU is needed. Times are predictions of a model that was
fitted on one card (`linkern.kernels.cuda.plan.cost`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from linkern.bench.cuda.machine import multiprocessors_here
from linkern.bench.tasks import Task
from linkern.kernels.cuda.plan import (
    chunk_bwd,
    chunk_delta,
    chunk_delta_bwd,
    chunk_gla,
    cost,
)
from linkern.kernels.cuda.plan.choice import choose
from linkern.kernels.cuda.plan.tiles import Sizes
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["Card", "Plan", "cards", "explained", "plans"]

# Bytes of shared memory that a block may have on the cards of `cost.CARDS`.
_SHARED = {108: 163 << 10, 132: 227 << 10, 148: 227 << 10}
# The card on which the model was fitted.
_FITTED = 132


@dataclass(frozen=True)
class Card:
    """A GPU as planners see it.

    Parameters
    ----------
    name : str
        For people.
    multiprocessors, shared : int
        Their number; bytes of shared memory that a block may have.
    """

    name: str
    multiprocessors: int
    shared: int

    @property
    def is_known(self) -> bool:
        """True if the planner has a model of it."""
        return self.multiprocessors in cost.CARDS


@dataclass(frozen=True)
class Plan:
    """One kernel of a task on a card, in words."""

    task: str
    length: int
    card: str
    kernel: str
    cut: str
    blocks: int
    # Blocks that a multiprocessor runs at once, and microseconds: of the model, None
    # where it says nothing.
    resident: int | None
    predicted: float | None
    reason: str

    def text(self) -> str:
        """Return the plan as a line."""
        blocks = [f"{self.blocks} blocks"] if self.blocks else []
        if self.resident is not None:
            blocks.append(f"{self.resident} at once on a multiprocessor")
        if self.predicted is not None:
            blocks.append(f"{1e6 * self.predicted:.0f} us predicted")
        words = ", ".join(x for x in (self.kernel, self.cut, *blocks) if x)
        return f"{self.card}: {words}; {self.reason}"


_LEGEND = (
    "cut: features, columns of the values, tokens and warps of a block of threads",
    "blocks at once: those that registers and shared memory leave room for",
    (
        "predicted: by a model that was fitted on an H100, with elu(x) + 1; no "
        "measurement. It was within 10 % of the times there in bfloat16 and float32, "
        "and does not tell float16, decays and other maps apart: their times were up "
        "to 32 % away"
    ),
)


def cards() -> list[Card]:
    """Return the card here, if there is one, and those that planners know."""
    known = [Card(name, n, _SHARED[n]) for n, name in cost.CARDS.items()]
    here = multiprocessors_here()
    if here is None:
        return known
    name, multiprocessors, shared = here
    return [Card(f"{name}, here", multiprocessors, shared), *known]


def plans(tasks: Iterable[tuple[Task, Sequence[int]]]) -> list[Plan]:
    """Return the plans of some tasks at some lengths, on each card."""
    makers = {
        "causal": _forward,
        "delta": _delta,
        "kda": _delta,
        "delta-gradient": _delta,
        "gradient": _backward,
    }
    return [
        makers[task.kind](task, length, card)
        for task, lengths in tasks
        if task.kind in makers
        for length in lengths
        for card in cards()
    ]


def explained(tasks: Iterable[tuple[Task, Sequence[int]]]) -> list[str]:
    """Return the plans of some tasks at some lengths as lines, and what they mean."""
    lines: list[str] = []
    for task, lengths in tasks:
        shape = f"B = {task.batch}, H = {task.heads}, K = V = {task.dim}, {task.dtype}"
        for length in lengths:
            texts = [plan.text() for plan in plans([(task, [length])])]
            rest = ["one kernel for each token, without a cut to choose"]
            lines += [f"{task.name}, {length} tokens; {shape}"]
            lines += [f"  {line}" for line in texts or rest]
    lines += [
        f"{card.name}: {card.multiprocessors} multiprocessors are none of those that "
        "the planner has a model of: it takes the safe cut"
        for card in cards()
        if not card.is_known
    ]
    return [*lines, *_LEGEND]


def _forward(task: Task, length: int, card: Card) -> Plan:
    item, heads = numpy_dtype(task.dtype).itemsize, task.batch * task.heads
    sizes = Sizes(item, heads, length, task.dim, task.dim)
    choice = choose(sizes, card.multiprocessors, card.shared)
    if choice is None:
        reason = "no cut for tensor cores fits"
        return Plan(
            task.name, length, card.name, "chunk_fwd_simt", "", 0, None, None, reason
        )
    shape, prediction = choice.shape, choice.prediction
    blocks = heads * -(-task.dim // shape.columns) * choice.segments[0]
    seconds = None
    if prediction is not None and card.multiprocessors == _FITTED:
        seconds = prediction.seconds
    return Plan(
        *(task.name, length, card.name, "chunk_fwd", _words(shape), blocks),
        None if prediction is None else prediction.resident,
        seconds,
        choice.reason,
    )


def _delta(task: Task, length: int, card: Card) -> Plan:
    # A planner, its kernel, and what runs where it has no tile shape.
    planners: dict[str, tuple[Any, str, str]] = {
        "delta": (chunk_delta, "chunk_delta", "recurrent"),
        "kda": (chunk_gla, "chunk_gla", "recurrent"),
        "delta-gradient": (chunk_delta_bwd, "chunk_delta_bwd", "array code"),
    }
    by_channel = task.kind == "kda"
    planner, kernel, otherwise = planners[task.kind]
    heads = task.batch * task.heads
    shape = planner.tile_shape(
        *(task.dtype, task.dim, task.dim, card.shared),
        heads=heads,
        multiprocessors=card.multiprocessors,
    )
    named = task.name, length, card.name
    if shape is None:
        reason = "no chunks of so many features"
        return Plan(*named, otherwise, "", 0, None, None, reason)
    blocks = heads * -(-task.dim // shape.columns)
    reason = "blocks that all run at once" if by_channel else "the longest chunks"
    if shape.columns > 64:
        reason = "few blocks of many columns"
    reason += "; no model of it"
    return Plan(*named, kernel, _words(shape), blocks, None, None, reason)


def _backward(task: Task, length: int, card: Card) -> Plan:
    shape = chunk_bwd.shape_of(task.dtype, task.dim, task.dim, card.shared)
    reason = "the first that fits; no model of it"
    if not card.is_known:
        reason += f"; a card of {card.multiprocessors} multiprocessors is unknown"
    heads = task.batch * task.heads
    kernel, cut = (
        ("chunk_bwd_simt", "") if shape is None else ("chunk_bwd", _words(shape))
    )
    return Plan(*(task.name, length, card.name, kernel, cut, heads), None, None, reason)


def _words(shape: Sequence[int]) -> str:
    features, columns, tokens, warps = shape
    return f"K {features}, {columns} columns, {tokens} tokens, {warps} warps"
