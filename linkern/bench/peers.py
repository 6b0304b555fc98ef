"""Peers: linkern, and whatever else is installed that computes the same.

A peer is data: a name, and where to find the function that prepares its call. Nothing
of it is imported before that, which happens in the process that is timed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from linkern.bench.clocks import Prepared
from linkern.bench.tasks import Task, drawn

__all__ = ["COPY", "GEMM", "SOFTMAX", "Meaning", "Peer", "left_out", "takes_part"]

Meaning = Literal["attention", "sums", "exponential", "softmax", "limit", "unjudged"]

GEMM, COPY, SOFTMAX = "gemm", "copy", "torch-sdpa"


@dataclass(frozen=True)
class Peer:
    """One way to compute a task."""

    # As in ``--peer``; a description in a few words.
    name: str
    summary: str
    # ``package.module:function`` below `linkern.bench`: from `Inputs`, a `Task` and
    # `options` to a `Prepared`.
    prepare: str
    # Kinds of task that it can do; modules without which it is left out.
    kinds: tuple[str, ...]
    needs: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("float32", "float64")
    # Its function, as in `linkern.bench.reference.answers`. "The fastest peer" is one
    # of those that return attention.
    meaning: Meaning = "attention"
    # Length above which it would take minutes, or all memory.
    longest: int | None = 65536
    # Lengths have to be multiples of it.
    multiple: int = 1
    # The only tasks that it takes part in; None for all of its kinds.
    tasks: tuple[str, ...] | None = None
    # The most threads, whatever the task says.
    threads: int | None = None
    # True if `tracemalloc` sees its memory.
    traced: bool = False
    # True if `linkern.bench.trial` judges what was timed.
    judged: bool = False

    def function(self) -> Any:
        """Import and return the function that prepares."""
        module, _, name = self.prepare.partition(":")
        return getattr(import_module(f"linkern.bench.{module}"), name)

    def ready(self, task: Task, length: int, seed: int) -> Prepared:
        """Draw the inputs and return the prepared call."""
        inputs = drawn(task, length, seed)
        # Those of a stream are one period of it; limits are the same for all tasks.
        streams = task.kind == "stream" and self.meaning != "limit"
        more = {"length": length} if streams else {}
        prepared: Prepared = self.function()(inputs, task, **self.options, **more)
        return prepared


def takes_part(peer: Peer, task: Task) -> bool:
    """Return True if a peer can do a task, and is installed."""
    return (
        task.kind in peer.kinds
        and task.dtype in peer.dtypes
        and (peer.tasks is None or task.name in peer.tasks)
        and all(find_spec(module) is not None for module in peer.needs)
    )


def left_out(peer: Peer, length: int) -> str | None:
    """Return why a peer is not measured at a length; None if it is."""
    if peer.longest is not None and length > peer.longest:
        return f"left out above {peer.longest} tokens"
    if length % peer.multiple:
        return f"takes multiples of {peer.multiple} tokens"
    return None
