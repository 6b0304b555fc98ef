"""Targets in this process or in a child process.

Both kinds of target answer `call` with a `Reply`, or raise `TargetRaised` if the target
raised and `TargetDied` if it ended its process or did not return in time.
"""

import math
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from linkern.testing.errors import TargetDied, TargetRaised, UsageError
from linkern.testing.target import side_effects
from linkern.testing.target.answers import limits_of, usable_opened, usable_reply
from linkern.testing.target.child import Child, printable
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import (
    Call,
    Raised,
    Refused,
    Reply,
    TargetConfig,
)
from linkern.testing.target.sandbox import Sandbox
from linkern.testing.target.wire import WireError
from linkern.testing.target.worker import Opened, describe, open_target

__all__ = ["LOAD_TIMEOUT", "ChildProcess", "InProcess", "Target"]

WORKER = "linkern.testing.target.worker"
# Importing a deep-learning framework from a cold disk can take this long.
LOAD_TIMEOUT = 120.0
# Errors of CUDA after which every call of the process fails.
_STICKY = re.compile(r"(?i)cuda.*(illegal|misaligned|assert|launch ?fail|ecc)")


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

    def restart(self) -> bool:
        """Have the next call run in a new process; return False if none can be had."""

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

    def restart(self) -> bool:
        """Return False: the target stays loaded."""
        return False

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
    sandbox : Sandbox, optional
        What the process runs in.
    worker : str
        Module whose `main` the process runs.
    """

    def __init__(
        self,
        config: TargetConfig,
        timeout: float,
        load_timeout: float = LOAD_TIMEOUT,
        sandbox: Sandbox | None = None,
        worker: str = WORKER,
    ) -> None:
        self._config = config
        self._worker = worker
        self._sandbox = sandbox
        self.timeout, self._load_timeout = timeout, load_timeout
        self._child: Child | None = None
        self._compiled = TemporaryDirectory(
            prefix="linkern-compiled-", ignore_cleanup_errors=True
        )
        try:
            self.reopen(config)
        except BaseException:
            self.close()
            raise

    def call(self, call: Call) -> Reply:
        """Call the target once."""
        if self._child is None:
            self._start()
        assert self._child is not None
        limits = limits_of(call, self._config)
        try:
            answer = self._child.ask(call, self.timeout, (Reply, Raised), limits)
            if isinstance(answer, Reply):
                return usable_reply(answer, call, self._config)
        except TargetDied:
            self._end()
            raise
        message = printable(answer.message)
        if message.startswith("MemoryError") or _STICKY.search(message):
            self._end()  # the next call starts with what a process starts with
        raise TargetRaised(message)

    def reopen(self, config: TargetConfig) -> None:
        """Load the target to be called in another way, in the same process."""
        self._config = replace(config, compiled=self._compiled.name)
        self.opened = self._start()
        self.interface = self.opened.interface

    def restart(self) -> bool:
        """Have the next call run in a new process."""
        self._end()
        return True

    def close(self) -> None:
        """End the child process, and forget what it compiled."""
        self._end()
        self._compiled.cleanup()

    def _end(self) -> None:
        if self._child is not None:
            self._child.end()
            self._child = None

    def _start(self) -> Opened:
        if self._child is None:
            self._child = Child(self._worker, sandbox=self._sandbox)
        try:
            answer = self._child.ask(
                self._config, self._load_timeout, (Opened, Refused)
            )
            if isinstance(answer, Opened):
                return usable_opened(answer)
            refusal = printable(answer.message)
        except TargetDied as death:
            refusal = f'loading "{self._config.target}" failed: {death.reason}.'
        except WireError as error:
            refusal = (
                f"an argument does not cross to the process of the target ({error}); "
                "take numbers, texts, NumPy arrays, or lists and dicts of them, or "
                "call the target in this process."
            )
        self.close()
        raise UsageError(refusal)
