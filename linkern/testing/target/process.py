"""Targets in this process or in a child process.

Both kinds of target answer `call` with a `Reply`, or raise `TargetRaised` if the target
raised and `TargetDied` if it ended its process or did not return in time.
"""

import contextlib
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from typing import IO, Any, Protocol

from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.target import side_effects
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import Call, Reply, TargetConfig
from linkern.testing.target.worker import Opened, describe, open_target

__all__ = ["LOAD_TIMEOUT", "Child", "ChildProcess", "InProcess", "Target"]

# Importing a deep-learning framework from a cold disk can take this long.
LOAD_TIMEOUT = 120.0
# Most inputs are small: threads of BLAS and OpenMP would only wait for each other, and
# keep all cores busy with it. OpenMP keeps its threads, whose races a check may show.
CALM_THREADS = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# Blocks of the output of a target that are kept, of at most 64 KiB each.
KEPT_BLOCKS = 4
# Seconds to wait for something that is about to happen.
PATIENCE = 0.5


class Target(Protocol):
    """Something that can be called and closed; `opened` is what is known of it.

    `timeout` is the number of seconds that one call may take, of a target in a process
    of its own.
    """

    timeout: float

    @property
    def opened(self) -> Opened:
        """Facts about it."""

    @property
    def interface(self) -> Interface:
        """Its abilities."""

    def call(self, call: Call) -> Reply:
        """Call the target once."""

    def reopen(self, config: TargetConfig) -> None:
        """Load the target to be called in another way: layout, library, device.

        Raises
        ------
        UsageError
            If it cannot be called in that way; it must be opened again before a call.
        """

    def close(self) -> None:
        """Release the target."""


class InProcess:
    """A target called in this process: fast, easy to debug, and not isolated.

    Parameters
    ----------
    config : TargetConfig
        Name, layout and options of the target.
    function : callable, optional
        The target itself; otherwise it is imported by name.
    """

    def __init__(
        self, config: TargetConfig, function: Callable[..., Any] | None = None
    ) -> None:
        self._function = function
        self.timeout = math.inf
        self.reopen(config)

    def call(self, call: Call) -> Reply:
        """Call the target once."""
        try:
            # What a target warns of is no verdict, even where warnings are errors.
            with warnings.catch_warnings(), side_effects.generators_kept():
                warnings.simplefilter("ignore")
                return self._caller(call)
        except (Exception, GeneratorExit, SystemExit) as error:
            raise TargetRaised(describe(error)) from error

    def reopen(self, config: TargetConfig) -> None:
        """Load the target to be called in another way."""
        self.opened, self._caller = open_target(config, self._function)
        self.interface = self.opened.interface

    def close(self) -> None:
        """Do nothing: the target stays loaded."""


class ChildProcess:
    """A target in a child process, which is started again whenever it dies.

    Parameters
    ----------
    config : TargetConfig
        Name, layout and options of the target.
    timeout, load_timeout : float
        Seconds that one call may take, and loading.
    """

    def __init__(
        self, config: TargetConfig, timeout: float, load_timeout: float = LOAD_TIMEOUT
    ) -> None:
        self._config = config
        self.timeout, self._load_timeout = timeout, load_timeout
        self._child: Child | None = None
        self.reopen(config)

    def call(self, call: Call) -> Reply:
        """Call the target once."""
        if self._child is None:
            self._start()
        assert self._child is not None
        try:
            answer = self._child.ask(call, self.timeout)
        except TargetDied:
            self.close()
            raise
        if isinstance(answer, str):
            if answer.startswith("MemoryError"):
                self.close()  # the next call starts with what a process starts with
            raise TargetRaised(answer)
        assert isinstance(answer, Reply)
        return answer

    def reopen(self, config: TargetConfig) -> None:
        """Load the target to be called in another way, in the same process."""
        self._config = config
        self.opened = self._start()
        self.interface = self.opened.interface

    def close(self) -> None:
        """End the child process."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def _start(self) -> Opened:
        if self._child is None:
            self._child = Child("linkern.testing.target.worker")
        try:
            answer = self._child.ask(self._config, self._load_timeout)
        except TargetDied as death:
            self.close()
            msg = f'loading "{self._config.target}" failed: {death.reason}.'
            raise UsageError(msg) from None
        if isinstance(answer, UsageError):
            self.close()
            raise answer
        assert isinstance(answer, Opened)
        return answer


class Child:
    """One child process, and threads that write and read, so that waits can end.

    Processes that the target started may hold the pipes open for ever, so each thread
    closes its own pipe and nobody waits for them.

    Parameters
    ----------
    module : str
        Module whose `main` the process runs: it answers each request.
    """

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {module} as child; child.main()"],
            env=CALM_THREADS | os.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # A group of its own, to take along whatever it forks when it ends.
            start_new_session=True,
        )
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._printed: deque[bytes] = deque(maxlen=KEPT_BLOCKS)
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
                stdin.write(request)
                stdin.flush()

    def _read(self, stdout: IO[bytes]) -> None:
        with stdout:
            try:
                while True:
                    self._answers.put(pickle.load(stdout))
            except Exception:  # end of file, or bytes that the target wrote there
                self._answers.put(_ENDED)

    def _listen(self, stderr: Any) -> None:
        """Keep the end of the output of the target."""
        with stderr:
            while block := stderr.read1(2**16):
                self._printed.append(block)

    def ask(self, message: Any, timeout: float) -> Any:
        """Send a message and wait for its answer."""
        self._requests.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            # Polled before the wait: an answer sent before the end is in the pipe.
            ended = self._process.poll() is not None
            try:
                answer = self._answers.get(timeout=min(left, PATIENCE))
            except queue.Empty:
                answer = _ENDED if ended else _NOTHING
            if answer is _ENDED:
                raise TargetDied(self._ending(), hung=False)
            if answer is not _NOTHING:
                return answer
        reason = f"did not return within {timeout:g} s{self._last_line()}"
        raise TargetDied(reason, hung=True)

    def _ending(self) -> str:
        """Return how the process ended, with the last line it wrote."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its pipe to the referee"
        self._threads[-1].join(timeout=PATIENCE)
        if code < 0:
            names = {known.value: known.name for known in signal.Signals}
            name = names.get(-code, f"signal {-code}")
            return f"crashed with {name}{self._last_line()}"
        return f"ended its process with exit code {code}{self._last_line()}"

    def _last_line(self) -> str:
        printed = b"".join(self._printed)[-2000:].decode(errors="replace").strip()
        return f"; it last wrote: {printed.splitlines()[-1][:200]}" if printed else ""

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
        self._requests.put(None)
        for thread in self._threads:
            thread.join(timeout=PATIENCE)


_ENDED, _NOTHING = object(), object()
