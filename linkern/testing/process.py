"""The side of the fence where the judge sits: a target behind a child process, or not.

Both kinds of target answer `call` with a `Reply`, or raise `TargetRaised` if the target
did and `TargetDied` if it took its process with it or did not come back.
"""

import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol

from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.frameworks import framework_named
from linkern.testing.loading import load, resolve
from linkern.testing.worker import (
    Buffers,
    Call,
    Environment,
    Reply,
    describe,
    execute,
)

__all__ = ["ChildProcess", "InProcess", "Target"]

# Importing a deep-learning framework from a cold disk can take this long.
LOAD_TIMEOUT = 120.0


class Target(Protocol):
    """Something that can be called and closed."""

    exposes: frozenset[str]

    def call(self, call: Call) -> Reply:
        """Call the target once."""

    def close(self) -> None:
        """Let go of it."""


class InProcess:
    """A target called in this process: fast, easy to debug, and not protected against.

    Parameters
    ----------
    environment : Environment
        Where the target is, and how to call it.
    function : callable, optional
        The target itself, if it is at hand.
    """

    def __init__(
        self, environment: Environment, function: Callable[..., Any] | None = None
    ) -> None:
        self._environment = environment
        self._framework = framework_named(environment.framework)
        found = resolve(environment.target) if function is None else function
        self._loaded = load(found, environment.target)
        self._buffers = Buffers()
        self.exposes = self._loaded.exposes

    def call(self, call: Call) -> Reply:
        """Call the target once."""
        try:
            # What a target warns of is no verdict, even where warnings are errors.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return execute(
                    self._loaded,
                    call,
                    self._environment,
                    self._framework,
                    self._buffers,
                )
        except Exception as error:
            raise TargetRaised(describe(error)) from error

    def close(self) -> None:
        """Nothing to let go of."""


class ChildProcess:
    """A target in a process of its own, which is started again whenever it dies.

    Parameters
    ----------
    environment : Environment
        Where the target is, and how to call it.
    timeout : float
        Seconds that one call may take.
    """

    def __init__(self, environment: Environment, timeout: float) -> None:
        self._environment = environment
        self._timeout = timeout
        self._child: _Child | None = None
        self.exposes = self._start()

    def call(self, call: Call) -> Reply:
        """Call the target once."""
        if self._child is None:
            self._start()
        assert self._child is not None
        try:
            answer = self._child.ask(call, self._timeout)
        except TargetDied:
            self.close()
            raise
        if isinstance(answer, str):
            raise TargetRaised(answer)
        assert isinstance(answer, Reply)
        return answer

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _start(self) -> frozenset[str]:
        child = _Child()
        try:
            answer = child.ask(self._environment, LOAD_TIMEOUT)
        except TargetDied as death:
            child.end()
            msg = f'loading "{self._environment.target}" failed: {death.reason}.'
            raise UsageError(msg) from None
        if isinstance(answer, UsageError):
            child.end()
            raise answer
        self._child = child
        assert isinstance(answer, frozenset)
        return answer


class _Child:
    """One child process with a thread that reads its answers, so that waits can end."""

    def __init__(self) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed in `end`
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from linkern.testing import worker; worker.main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._answers: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                self._answers.put(pickle.load(self._process.stdout))
            except Exception:  # end of file, or bytes that the target wrote there
                self._answers.put(_ENDED)
                return

    def ask(self, message: Any, timeout: float) -> Any:
        """Send a message and wait for its answer."""
        assert self._process.stdin is not None
        try:
            pickle.dump(message, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            answer = self._answers.get(timeout=timeout)
        except queue.Empty:
            reason = f"did not return within {timeout:g} s"
            raise TargetDied(reason, hung=True) from None
        except OSError:
            answer = _ENDED
        if answer is _ENDED:
            raise TargetDied(self._epitaph(), hung=False)
        return answer

    def _epitaph(self) -> str:
        """Say how the process ended, with the last line it wrote."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its pipe to the referee"
        self._stderr.seek(0)
        said = self._stderr.read()[-2000:].decode(errors="replace").strip()
        last = f"; it last wrote: {said.splitlines()[-1][:200]}" if said else ""
        if code < 0:
            return f"crashed with {signal.Signals(-code).name}{last}"
        return f"ended its process with exit code {code}{last}"

    def end(self) -> None:
        """Kill the process and release what it held."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # a half-written message to a dead process
                    continue
        self._stderr.close()


_ENDED = object()
