"""One child process that answers requests, as data alone and never unasked.

Threads write and read, so that every wait can end. What a child writes is believed only
as far as it answers a request: its ticket, its kind and its size are those of the
question, and there is one answer.
"""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any, Protocol

from linkern.testing.errors import TargetDied
from linkern.testing.target.sandbox import Sandbox, code_inside
from linkern.testing.target.wire import (
    Limits,
    WireError,
    new_ticket,
    packed,
    read_message,
    read_prefix,
)

__all__ = [
    "CALM_THREADS",
    "SMALL",
    "Child",
    "Process",
    "crafted",
    "launched_by",
    "printable",
]

# Most inputs are small: threads of BLAS and OpenMP would only wait for each other, and
# keep all cores busy with it. OpenMP keeps its threads, whose races a check may show.
CALM_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# Blocks of the output of a target that are kept, and their greatest size in bytes.
KEPT_BLOCKS, BLOCK = 4, 2**16
# Seconds to wait for something that is about to happen.
PATIENCE = 0.5
# An answer without arrays.
SMALL = Limits(header=2**16, arrays=0)


@dataclass(frozen=True)
class _Question:
    """A request that waits for its answer."""

    ticket: bytes
    answers: tuple[type, ...]
    limits: Limits


def crafted(why: object) -> TargetDied:
    """Return the error of a target that wrote to the pipe of its own process."""
    return TargetDied(f"wrote to the pipe to the referee: {why}", hung=False)


def printable(text: str) -> str:
    r"""Return a text of a target for a terminal: a mark for each control character.

    Examples
    --------
    >>> printable("\x1b[2J gone")
    '?[2J gone'
    """
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x == "\n" else "?" for x in text)


class Process(Protocol):
    """The methods of `subprocess.Popen` that a child needs."""

    pid: int

    @property
    def stdin(self) -> Any:
        """The pipe to it."""

    @property
    def stdout(self) -> Any:
        """The pipe from it."""

    @property
    def stderr(self) -> Any:
        """The pipe of what it prints."""

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""

    def terminate(self) -> None:
        """Tell it to end."""


Launcher = Callable[[str], Process]
_LAUNCHER: ContextVar[Launcher | None] = ContextVar("launcher", default=None)


@contextlib.contextmanager
def launched_by(launcher: Launcher) -> Iterator[None]:
    """Start all children of a block by a function of the module that they run."""
    token = _LAUNCHER.set(launcher)
    try:
        yield
    finally:
        _LAUNCHER.reset(token)


def _started(
    module: str, environment: Mapping[str, str] | None, sandbox: Sandbox | None
) -> Process:
    words = [sys.executable, "-c", f"import {module} as child; child.main()"]
    return subprocess.Popen(
        words if sandbox is None else sandbox.words(words),
        env=environment or CALM_THREADS | os.environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A group of its own, to take along whatever it forks when it ends.
        start_new_session=True,
    )


class Child:
    """One child process, and threads that write and read, so that waits can end.

    Processes that the target started may hold the pipes open for ever, so each thread
    closes its own pipe and nobody waits for them.

    Parameters
    ----------
    module : str
        Module whose `main` the process runs: it answers each request.
    environment : mapping, optional
        Environment of the process. Default: that of this one, with calm threads.
    sandbox : Sandbox, optional
        What the process runs in.

    Raises
    ------
    UsageError
        If there is no program to run a sandbox.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        self._sandbox = sandbox
        launcher = _LAUNCHER.get()
        # A process in a sandbox is forked from none outside of it, nor is one with an
        # environment of its own.
        self._process: Process = (
            _started(module, environment, sandbox)
            if launcher is None or sandbox is not None or environment is not None
            else launcher(module)
        )
        self._question: _Question | None = None
        self._requests: queue.Queue[list[Any] | None] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._printed: deque[bytes] = deque(maxlen=KEPT_BLOCKS)
        self._over = False
        self._threads = [
            threading.Thread(target=work, args=(stream,), daemon=True)
            for work, stream in (
                (self._write, self._process.stdin),
                (self._read, self._process.stdout),
                (self._listen, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, stdin: IO[bytes]) -> None:
        with contextlib.suppress(OSError), stdin:  # it reports its end by other means
            while (request := self._requests.get()) is not None:
                for part in request:
                    stdin.write(part)
                stdin.flush()

    def _read(self, stdout: Any) -> None:
        """Read answers until the pipe ends, or has something else than an answer."""
        with stdout:
            try:
                while True:
                    self._answers.put(self._answer(stdout))
            except (EOFError, OSError):
                self._answers.put(_ENDED)
            except WireError as error:
                self._answers.put(error)

    def _answer(self, stdout: Any) -> Any:
        prefix = read_prefix(stdout)
        question, self._question = self._question, None
        if question is None or prefix.ticket != question.ticket:
            msg = "a reply that was not asked for"
            raise WireError(msg)
        return read_message(stdout, prefix, question.answers, question.limits)

    def _listen(self, stderr: Any) -> None:
        """Keep the end of the output of the target."""
        with stderr:
            while (block := stderr.read1(BLOCK)) and not self._over:
                # Small ones are joined, or few lines would be kept of many writes.
                if self._printed and len(self._printed[-1]) + len(block) <= BLOCK:
                    self._printed[-1] += block
                else:
                    self._printed.append(block)

    def ask(
        self,
        message: Any,
        timeout: float,
        answers: tuple[type, ...],
        limits: Limits = SMALL,
    ) -> Any:
        """Send a message and wait for its answer.

        Parameters
        ----------
        message : dataclass
            The request.
        timeout : float
            Seconds to wait.
        answers : tuple of type
            The dataclasses that an answer can be.
        limits : Limits
            Its greatest size. Default: a few texts.

        Raises
        ------
        TargetDied
            If the process ends, does not answer in time, or writes anything but one
            such answer. It must be ended then.
        WireError
            If the message cannot be sent; the process has not seen it.
        """
        self.post(message, answers, limits)
        answer = self.take(timeout)
        if answer is None:
            reason = f"did not return within {timeout:g} s{self._last_line()}"
            raise TargetDied(reason, hung=True)
        return answer

    def post(
        self, message: Any, answers: tuple[type, ...], limits: Limits = SMALL
    ) -> None:
        """Send a message whose answer is taken later; parameters are those of `ask`.

        Raises
        ------
        WireError
            If the message cannot be sent; the process has not seen it.
        """
        ticket = new_ticket()
        request = packed(message, ticket)
        self._question = _Question(ticket, answers, limits)
        self._requests.put(request)

    def take(self, timeout: float) -> Any:
        """Wait for the answer to the message that was posted.

        Returns
        -------
        dataclass or None
            The answer; None if there is none within `timeout` seconds.

        Raises
        ------
        TargetDied
            If the process ends, or writes anything but one such answer.
        """
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            # Polled before the wait: an answer sent before the end is in the pipe.
            ended = self._process.poll() is not None
            try:
                answer = self._answers.get(timeout=min(left, PATIENCE))
            except queue.Empty:
                answer = _ENDED if ended else _NOTHING
            if isinstance(answer, WireError):
                raise crafted(answer)
            if answer is _ENDED:
                raise TargetDied(self._ending(), hung=False)
            if answer is not _NOTHING:
                return answer
        return None

    def interrupt(self, number: int) -> None:
        """Send a signal to the process, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    @property
    def printed(self) -> str:
        """The end of what the process has printed."""
        return b"".join(self._printed).decode(errors="replace")

    def _ending(self) -> str:
        """Return how the process ended, with the last line it wrote."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its pipe to the referee"
        self._threads[-1].join(timeout=PATIENCE)
        code = code if self._sandbox is None else code_inside(code)
        if code < 0:
            names = {known.value: known.name for known in signal.Signals}
            name = names.get(-code, f"signal {-code}")
            return f"crashed with {name}{self._last_line()}"
        return f"ended its process with exit code {code}{self._last_line()}"

    def _last_line(self) -> str:
        printed = b"".join(self._printed)[-2000:].decode(errors="replace").strip()
        if not printed:
            return ""
        return f"; it last wrote: {printable(printed.splitlines()[-1][:200])}"

    def end(self, patience: float = 0.0) -> None:
        """Kill the process, and whatever it started in its group.

        With `patience` it is first told to end, and has so many seconds to do so.
        """
        if patience:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        # A driver may keep it from dying; that need not keep us.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=PATIENCE)
        self._over = True
        self._requests.put(None)
        for thread in self._threads:
            thread.join(timeout=PATIENCE)


_ENDED, _NOTHING = object(), object()
