"""Collectives of `torch.distributed` that a target calls on its rank: none, or some.

Every function of `torch.distributed` ends in a method of its process group. Functional
collectives do not, which call the group from C++: they are seen by their own names.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from importlib import import_module
from typing import Any

__all__ = ["Counting", "install"]

# Beginnings of the names of collectives, and ends of those of what is none.
_BEGINNINGS = (
    *("all", "_allgather", "barrier", "broadcast", "gather", "monitored", "permute"),
    *("recv", "reduce", "_reduce_scatter", "scatter", "send"),
)
_ENDS = ("_backward", "_setup_context", "_meta", "_ctx")


class Counting:
    """True in `called` once the target has called a collective since `begin`.

    There is one for all instances of a process.
    """

    called = False
    _paused = False

    def begin(self) -> None:
        """Forget what was called."""
        Counting.called = _may_be_compiled()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count no collective in a block: it is the referee that calls them."""
        Counting._paused = True
        try:
            yield
        finally:
            Counting._paused = False


@cache
def install() -> None:
    """See each collective that is called in this process from now on."""
    group = import_module("torch.distributed").ProcessGroup
    functional = import_module("torch.distributed._functional_collectives")
    for place in (group, functional):
        for name in dir(place):
            method = getattr(place, name)
            is_one = name.startswith(_BEGINNINGS) and not name.endswith(_ENDS)
            if is_one and callable(method) and not isinstance(method, type):
                setattr(place, name, _seen(method))


def _seen(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a collective that notes its calls."""

    @wraps(method)
    def collective(*args: Any, **options: Any) -> Any:
        Counting.called |= not Counting._paused
        return method(*args, **options)

    return collective


def _may_be_compiled() -> bool:
    """Return True if torch has compiled a function, whose collectives nobody sees."""
    compiler = sys.modules.get("torch._dynamo.utils")
    return compiler is not None and bool(compiler.counters["frames"]["total"])
