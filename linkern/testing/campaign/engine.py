"""Engines of a campaign: local processes, or a cluster of `distributed`.

Each is the `submit` of an executor of `concurrent.futures`, and the exceptions that say
that the worker of a task ended. Either calls every function in a process of its own.
"""

import logging
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from linkern.testing.campaign.alone import ProcessEndedError, call_alone
from linkern.testing.errors import UsageError

__all__ = ["PROCESSES", "Engine", "engine_of"]

PROCESSES = "processes"
# Seconds in which a scheduler must answer.
PATIENCE = 10.0


@dataclass(frozen=True)
class Engine:
    """Executor of tasks.

    Parameters
    ----------
    submit : callable
        Called with a function and its arguments; it returns a future.
    lost : tuple of type
        The exceptions of a future whose worker ended.
    """

    submit: Callable[..., Future[Any]]
    lost: tuple[type[Exception], ...]


def engine_of(
    where: str, jobs: int | None, default: int
) -> AbstractContextManager[Engine]:
    """Return the engine of an address; what it runs ends with its context.

    Parameters
    ----------
    where : str
        ``processes``; ``dask://`` for a cluster on this machine; ``dask://host:port``
        for the one of a scheduler.
    jobs, default : int
        Tasks at a time; a scheduler decides itself, and takes no `jobs`.

    Raises
    ------
    UsageError
        If the address cannot be one, `distributed` is not installed, or, as the
        context begins, no scheduler answers.
    """
    if where == PROCESSES:
        return _processes(jobs or default)
    url = urlsplit(where)
    if not (where.startswith("dask://") and _names_a_cluster(url)):
        msg = (
            f'the executor must be "{PROCESSES}", "dask://" for a cluster on this '
            f'machine, or "dask://host:port", got "{where}".'
        )
        raise UsageError(msg)
    if url.netloc and jobs is not None:
        msg = f"--jobs is for processes of this machine; {where} has workers."
        raise UsageError(msg)
    try:
        import distributed  # noqa: PLC0415 -- an extra
    except ImportError as error:
        msg = (
            f"{where} needs distributed; run `python -m pip install "
            "'linkern[distributed]'`."
        )
        raise UsageError(msg) from error
    return _cluster(distributed, url.netloc, jobs or default)


def _names_a_cluster(url: SplitResult) -> bool:
    """Return True for an address of nothing, or of a host and a port."""
    try:
        whole = bool(url.hostname and url.port) or not url.netloc
    except ValueError:  # a port that is no number
        return False
    return whole and not (url.path or url.query or url.fragment)


@contextmanager
def _processes(jobs: int) -> Iterator[Engine]:
    """Run tasks in threads, each of which waits for a process; end all with it."""
    running: set[subprocess.Popen[bytes]] = set()
    call = partial(call_alone, running=running)
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield Engine(lambda *task: pool.submit(call, *task), (ProcessEndedError,))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in {*running}:
                assert process.stdin is not None
                process.stdin.close()


@contextmanager
def _cluster(distributed: Any, address: str, jobs: int) -> Iterator[Engine]:
    """Connect to a scheduler, or start one with workers on this machine."""
    with _local(distributed, jobs) if not address else nullcontext() as local:
        try:
            client = distributed.Client(
                local or f"tcp://{address}", timeout=PATIENCE, set_as_default=False
            )
        except OSError as error:
            msg = (
                f"no scheduler answers at dask://{address} within {PATIENCE:g} s; "
                "start one (`dask scheduler`), or check host and port."
            )
            raise UsageError(msg) from error
        lost = (ProcessEndedError, distributed.KilledWorker, CancelledError)
        with client:
            submit = client.get_executor(pure=False).submit
            yield Engine(partial(submit, call_alone), lost)


@contextmanager
def _local(distributed: Any, jobs: int) -> Iterator[Any]:
    """Start a cluster of processes with one thread each, and end it."""
    with distributed.LocalCluster(
        n_workers=jobs,
        threads_per_worker=1,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,
        # A lost worker is an answer: the campaign tries its kernels once more.
        scheduler_kwargs={"allowed_failures": 0},
        # Ctrl-C is for the campaign, which ends its workers.
        preload="import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    ) as cluster:
        yield cluster
