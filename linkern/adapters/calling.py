"""What the adapters share: finding a published function, and moving its axes."""

from functools import cache
from importlib import import_module
from inspect import unwrap
from typing import Any

__all__ = ["published", "tokens_first"]


@cache
def published(module: str, name: str) -> Any:
    """Import a published function when it is first called.

    The functions of transformers are wrapped: where the package that they stand in for
    is installed, what is called is its kernel. What is judged here is what they wrap.
    """
    return unwrap(getattr(import_module(module), name))


def tokens_first(*arrays: Any) -> tuple[Any, ...]:
    """Exchange heads and tokens."""
    return tuple(x.transpose(1, 2) for x in arrays)
