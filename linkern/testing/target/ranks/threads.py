"""Threads that call one function each, as the ranks of `torch.distributed` do."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

from linkern.testing.target.ranks.collectives import Collectives
from linkern.testing.target.ranks.meeting import Meeting
from linkern.testing.target.ranks.messages import Messages

__all__ = ["on_threads"]


def on_threads(function: Callable[[int], Any], size: int) -> list[Any]:
    """Call a function with each rank, each in a thread; return all results."""
    results: list[Any] = [None] * size
    failures: list[BaseException] = []
    meeting = Meeting(size)

    def work(rank: int) -> None:
        meeting.join(rank)
        try:
            results[rank] = function(rank)
        except BaseException as error:
            failures.append(error)
            meeting.abort()  # nobody waits for this rank

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(size)]
    with _replaced(Collectives(meeting), Messages(meeting)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]  # others fail because of the first
    return results


@contextmanager
def _replaced(*owners: Any) -> Iterator[None]:
    """Replace functions of `torch.distributed` by methods, imported ones too.

    Modules of torch itself call them by their place in `torch.distributed`.
    """
    distributed = import_module("torch.distributed")
    others = {
        id(getattr(distributed, name)): getattr(owner, name)
        for owner in owners
        for name in vars(type(owner))
        if not name.startswith("_")
    }
    modules = [x for n, x in [*sys.modules.items()] if not n.startswith("torch")]
    with ExitStack() as replaced:
        for module in (distributed, *modules):
            names = getattr(module, "__dict__", {})
            new = {n: others[id(x)] for n, x in [*names.items()] if id(x) in others}
            if new:
                replaced.enter_context(patch.dict(names, new))
        yield
