"""Thread pool of the NumPy back end, with the BLAS held to one thread per product.

NumPy releases the interpreter lock while it computes, so threads can process heads at
the same time. Threads of the BLAS would compete with them for the same cores, and would
make results depend on their number.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

__all__ = [
    "cores",
    "for_each",
    "in_one_thread",
    "parallel_for",
    "single_threaded_blas",
    "small_buffers",
    "thread_count",
    "threads_for",
]

VARIABLE = "LINKERN_NUM_THREADS"
# Multiply-adds below which starting threads takes longer than they save.
WORTH_THREADS = 1 << 23

# Entries of a buffer of NumPy, at most those of the matrices of a chunk.
_BUFFER = 1 << 10

Item = TypeVar("Item")


def thread_count() -> int:
    """Return the number of threads to compute with: the cores of this process.

    ``LINKERN_NUM_THREADS`` in the environment overrides it.

    Raises
    ------
    ValueError
        If the variable is set to anything but a positive integer.
    """
    setting = os.environ.get(VARIABLE)
    if setting is None:
        return cores()
    if not setting.strip().isdecimal() or int(setting) < 1:
        msg = (
            f"`{VARIABLE}` must be a positive integer, got {setting!r}; "
            "set or unset it."
        )
        raise ValueError(msg)
    return int(setting)


# True where whole heads are shared by the threads already.
_ALONE = ContextVar("alone", default=False)


def threads_for(multiply_adds: int) -> int:
    """Return the number of threads for so many multiply-adds; 1 if they are few."""
    threads = 1 if _ALONE.get() else thread_count()
    return threads if multiply_adds >= WORTH_THREADS else 1


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Let work that is called from here, or from helpers, start no further threads."""
    token = _ALONE.set(True)
    try:
        yield
    finally:
        _ALONE.reset(token)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parallel_for(
    items: Iterable[Item], work: Callable[[Item], Iterator[None]], threads: int
) -> None:
    """Exhaust ``work(item)`` for all items in `threads` threads, this one included.

    A thread that is idle takes the next item. The first exception, or an interrupt of
    this thread, stops all work at its next ``yield`` and is raised here.
    """
    waiting = deque(items)
    errors: list[BaseException] = []

    def drain() -> None:
        while waiting and not errors:
            try:
                item = waiting.popleft()
            except IndexError:  # another thread took the last item
                return
            try:
                for _ in work(item):
                    if errors:
                        return
            except BaseException as error:
                errors.append(error)
                raise

    count = min(threads, len(waiting)) - 1
    if count < 1:
        drain()
        return
    # NumPy keeps its error state in the context: workers run in a copy of the caller's.
    helpers = [_pool().submit(copy_context().run, drain) for _ in range(count)]
    try:
        drain()
        _wait(helpers)
    except BaseException as error:
        errors.append(error)  # an interrupt may arrive between two items, or here
        _wait(helpers)
        raise
    if errors:
        raise errors[0]


def for_each(
    items: Sequence[Item], function: Callable[[Item], object], threads: int
) -> None:
    """Call ``function(item)`` for all items in `threads` threads."""
    if threads == 1:
        for item in items:
            function(item)
        return

    def work(item: Item) -> Iterator[None]:
        function(item)
        yield

    parallel_for(items, work, threads)


def _wait(helpers: "list[Future[None]]") -> None:
    """Wait for the helpers that have started, and cancel the others."""
    from concurrent.futures import wait  # noqa: PLC0415 -- slow to import

    wait([helper for helper in helpers if not helper.cancel()])


@cache
def _pool() -> "ThreadPoolExecutor":
    """Return the thread pool of this process; threads start when first needed."""
    from concurrent.futures import (  # noqa: PLC0415 -- slow to import
        ThreadPoolExecutor,
    )

    return ThreadPoolExecutor(max_workers=1024, thread_name_prefix="linkern")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork: the child starts its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _BlasLimit:
    """Limit on the threads of the BLAS, and the number of calls that need it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.before: list[int] = []


_LIMIT = _BlasLimit()


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Hold the BLAS to one thread until the last caller in the process is done.

    The setting belongs to the process: if each caller restored it, one could restore
    the limit that another had set.
    """
    with _LIMIT.lock:
        if _LIMIT.count == 0:
            _LIMIT.before = [library.get_num_threads() for library in _libraries()]
            _set_threads([1] * len(_LIMIT.before))
        _LIMIT.count += 1
    try:
        yield
    finally:
        with _LIMIT.lock:
            _LIMIT.count -= 1
            if _LIMIT.count == 0:
                _set_threads(_LIMIT.before)


@contextmanager
def small_buffers() -> Iterator[None]:
    """Let NumPy copy no operand that broadcasts over the matrices of a block.

    It would, to fill a buffer: rows shorter than that are joined.
    """
    with np.errstate():  # on leaving, it restores the size of buffers as well
        np.setbufsize(_BUFFER)
        yield


@cache
def _libraries() -> list[Any]:
    """Return controllers of the loaded BLAS; finding them takes milliseconds.

    They are called one by one: a limit of `threadpoolctl` takes four times as long.
    """
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 -- when needed

    return [x for x in ThreadpoolController().lib_controllers if x.user_api == "blas"]


def _set_threads(counts: list[int]) -> None:
    for library, count in zip(_libraries(), counts, strict=True):
        library.set_num_threads(count)
