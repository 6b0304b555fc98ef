"""Work shared by threads: each takes the next item, and matrix products take one each.

NumPy lets other threads run while it computes, so heads can be walked side by side.
The threads of the BLAS would fight with ours for the same cores, and would make results
depend on how many there are: each product is held to one.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["blas_held", "cores", "share", "thread_count", "threads_worth"]

VARIABLE = "LINKERN_NUM_THREADS"
# Multiply-adds below which starting threads takes longer than they save.
WORTH_THREADS = 1 << 23

Item = TypeVar("Item")


def thread_count() -> int:
    """Return how many threads to compute with: the cores of this process.

    ``LINKERN_NUM_THREADS`` in the environment says otherwise.

    Raises
    ------
    ValueError
        If the variable is set to anything but a positive integer.
    """
    said = os.environ.get(VARIABLE)
    if said is None:
        return cores()
    if not said.strip().isdecimal() or int(said) < 1:
        msg = f"`{VARIABLE}` must be a positive integer, got {said!r}; set or unset it."
        raise ValueError(msg)
    return int(said)


def threads_worth(multiply_adds: int) -> int:
    """Return how many threads to compute with, given how much there is to compute."""
    threads = thread_count()
    return threads if multiply_adds >= WORTH_THREADS else 1


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share(
    items: Iterable[Item], work: Callable[[Item], Iterator[None]], threads: int
) -> None:
    """Go through ``work(item)`` for all items, in `threads` threads, this one too.

    Whoever is done takes the next item. The first exception ends all work and is raised
    here, and so does an interrupt of this thread; work is left at its next ``yield``.
    """
    waiting = deque(items)
    failed: list[BaseException] = []

    def drain() -> None:
        while waiting and not failed:
            try:
                item = waiting.popleft()
            except IndexError:  # somebody else was faster
                return
            try:
                for _ in work(item):
                    if failed:
                        return
            except BaseException as error:
                failed.append(error)
                raise

    count = min(threads, len(waiting)) - 1
    if count < 1:
        drain()
        return
    # What NumPy does about overflow lives in the context: workers take the caller's.
    helpers = [_pool().submit(copy_context().run, drain) for _ in range(count)]
    try:
        drain()
        _wait(helpers)
    except BaseException as error:
        failed.append(error)  # an interrupt may come between two items, or here
        _wait(helpers)
        raise
    if failed:
        raise failed[0]


def _wait(helpers: "list[Future[None]]") -> None:
    """Wait for those that have begun; the others are not needed any more."""
    from concurrent.futures import wait  # noqa: PLC0415 -- slow to import

    wait([helper for helper in helpers if not helper.cancel()])


@cache
def _pool() -> "ThreadPoolExecutor":
    """Return the threads of this process; each is started when it is first needed."""
    from concurrent.futures import (  # noqa: PLC0415 -- slow to import
        ThreadPoolExecutor,
    )

    return ThreadPoolExecutor(max_workers=1024, thread_name_prefix="linkern")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child starts its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _Hold:
    """How many calls are computing now, in all threads of the process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.limiter: Any = None


_HOLD = _Hold()


@contextmanager
def blas_held() -> Iterator[None]:
    """Hold the BLAS to one thread for a product, until the last caller is done.

    The setting is one for the process. Restored by each caller on its own, it could be
    restored to what another had set.
    """
    with _HOLD.lock:
        if _HOLD.count == 0:
            _HOLD.limiter = _controller().limit(limits=1, user_api="blas")
        _HOLD.count += 1
    try:
        yield
    finally:
        with _HOLD.lock:
            _HOLD.count -= 1
            if _HOLD.count == 0:
                _HOLD.limiter.restore_original_limits()
                _HOLD.limiter = None


@cache
def _controller() -> Any:
    """Look once which libraries there are: it takes milliseconds."""
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 -- when needed

    return ThreadpoolController()
