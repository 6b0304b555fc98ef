"""Import published functions, and move their axes."""

from functools import cache
from importlib import import_module
from inspect import unwrap
from typing import Any

__all__ = ["published", "tokens_first"]


@cache
def published(module: str, name: str) -> Any:
    """Import a published function when it is first called.

    The functions of transformers are wrapped, and call the kernels of another package
    where it is installed; the wrapped function itself is returned.
    """
    return unwrap(getattr(import_module(module), name))


def tokens_first(*arrays: Any) -> tuple[Any, ...]:
    """Exchange heads and tokens."""
    return tuple(x.transpose(1, 2) for x in arrays)
