"""Child process of a target: load it, answer requests.

`main` takes requests on standard input and answers on standard output, so that what the
target does to its process harms no other process.
"""

import mmap
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from linkern.testing.errors import UsageError
from linkern.testing.target.compiled import Compiled
from linkern.testing.target.framework import Framework, Library
from linkern.testing.target.frameworks import (
    framework_named,
    keep_compiled,
    require_device,
)
from linkern.testing.target.inference import Inferred, infer
from linkern.testing.target.interpreted.launches import LaunchFailed
from linkern.testing.target.invoke import Caller
from linkern.testing.target.loading import (
    Interface,
    Loaded,
    load,
    reloaded,
    resolve,
)
from linkern.testing.target.protocol import (
    Call,
    Raised,
    Refused,
    Reply,
    TargetConfig,
)
from linkern.testing.target.segments import SegmentRunner
from linkern.testing.target.signatures import GROUP_NAMES_OF
from linkern.testing.target.wire import OWN, read_message, read_prefix, write

__all__ = [
    "Opened",
    "describe",
    "main",
    "open_target",
    "serve",
    "streams",
    "until_ended",
]

GIBIBYTE = 2**30
INTERPRETER = "linkern.testing.target.interpreted.start"
# Characters of an exception that are passed on.
MESSAGE_LENGTH = 500


@dataclass(frozen=True)
class Opened:
    """Facts about a target that was loaded.

    Parameters
    ----------
    interface : Interface
        Abilities of the target.
    library : Library
        The array library that it is called with.
    inferred : Inferred
        The library that it seems to take, which is that one unless another is named.
    """

    interface: Interface
    library: Library
    inferred: Inferred


Runner = Callable[[Loaded, TargetConfig, Framework], SegmentRunner]
Opener = Callable[[TargetConfig], tuple[Opened, Caller]]


def open_target(
    config: TargetConfig, function: Any = None, runner: Runner = SegmentRunner
) -> tuple[Opened, Caller]:
    """Return the interface of a target, and the function that calls it.

    `runner` makes of the target what calls it in its own interface.
    """
    accesses = None
    if config.interpret:  # before anything imports Triton
        accesses = import_module(INTERPRETER).start()
    if config.framework is not None:  # the cheapest refusal first
        framework_named(config.framework)
    target = resolve(config.target) if function is None else function
    inferred = infer(target)
    framework = framework_named(config.framework or inferred.name)
    if config.interpret and framework.name != "torch":
        msg = (
            f'`interpret` is for Triton kernels on arrays of torch; "{config.target}" '
            f"takes those of {framework.name}."
        )
        raise UsageError(msg)
    require_device(framework, config.device)
    loaded = load(
        target,
        config.target,
        vjp=config.vjp,
        interface=config.interface,
        options=config.options,
        op=config.op,
        decay_form=config.decay_form,
        gate_parameters=config.gate_parameters,
        takes_state=config.takes_state,
        groups=GROUP_NAMES_OF[framework.name] if config.ranks else (),
    )
    opened = Opened(loaded.interface, framework.library, inferred)
    # In the process of a user there may be what a function is not to forget.
    isolated = bool(config.compiled) and function is None
    if framework.name == "jax" and isolated and not (inferred.compiled or config.ranks):
        again = partial(reloaded, config.target)
        loaded = replace(loaded, function=Compiled(loaded.function, again))
    return opened, Caller(runner(loaded, config, framework), accesses)


def serve(requests: BinaryIO, replies: BinaryIO, opener: Opener = open_target) -> None:
    """Answer requests until they end: a config opens the target, then it is called."""
    process, forked = os.getpid(), mmap.mmap(-1, 1)
    config, caller = TargetConfig(""), None
    while True:
        try:
            prefix = read_prefix(requests)
            request = read_message(requests, prefix, (TargetConfig, Call), OWN)
        except EOFError:
            return
        answer: Opened | Refused | Reply | Raised
        if isinstance(request, TargetConfig):
            config = request
            answer, caller = _opened(config, opener)
        else:
            assert caller is not None
            answer = _called(caller, request, config)
        if os.getpid() != process:
            # The target forked and came back twice; only one of the two may answer.
            forked[0] = 1
            os._exit(0)
        if forked[0] and isinstance(answer, Reply):
            answer = replace(answer, traces=(*answer.traces, "a copy of its process"))
        write(replies, answer, prefix.ticket)


def _opened(
    config: TargetConfig, opener: Opener
) -> tuple[Opened | Refused, Caller | None]:
    """Open a target in this process, and limit what it may allocate from now on."""
    if config.compiled:  # before the target, which may compile while it is imported
        keep_compiled(config.compiled)
    try:
        opened, caller = opener(config)
    except UsageError as error:
        return Refused(str(error)), None
    if config.device == "cpu":
        _limit_memory(config.memory_limit)
    return opened, caller


def _called(caller: Caller, call: Call, config: TargetConfig) -> Reply | Raised:
    """Call a target; return its reply, or what it raised in one line."""
    try:
        return caller(call)
    except Exception as error:
        if config.device == "cpu" and _is_refusal_of_memory(error):
            limit = f"more than {config.memory_limit:g} GiB"
            return Raised(f"MemoryError: it wanted {limit} ({_first_line(error)})")
        return Raised(describe(error))


def _limit_memory(gibibytes: float) -> None:
    """Limit what the process may allocate beyond its present size."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:  # not Linux
        return
    held = next(
        int(line.split()[1]) * 1024
        for line in status.splitlines()
        if line.startswith("VmData:")
    )
    resource = import_module("resource")  # there is none on Windows
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = held + int(gibibytes * GIBIBYTE)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    # The hard limit too, so that the process cannot lift it.
    resource.setrlimit(resource.RLIMIT_DATA, (soft, soft))


def _is_refusal_of_memory(error: Exception) -> bool:
    """Return True for a failed allocation of NumPy, PyTorch or JAX."""
    words = ("allocate memory", "RESOURCE_EXHAUSTED", "out of memory")
    return isinstance(error, MemoryError) or any(w in str(error) for w in words)


def _first_line(error: Exception) -> str:
    return (
        str(error).strip().partition("\n")[0][:MESSAGE_LENGTH] or type(error).__name__
    )


def describe(error: BaseException) -> str:
    """Return an exception in one line, with the line of the target that raised it."""
    if isinstance(error, LaunchFailed):  # it names the line of the kernel itself
        return str(error)
    raised = traceback.TracebackException(type(error), error, None)
    raised.__notes__ = None  # those of JAX are about its tracebacks
    what = [*raised.format_exception_only()][-1].strip()
    what = what.partition("\n")[0][:MESSAGE_LENGTH]
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return what
    return f"{what} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def main() -> None:
    """Answer the requests on standard input."""
    serve(*streams())


def until_ended(answer: Callable[[BinaryIO, BinaryIO], None]) -> None:
    """Answer requests until they end, or until the process is told to end.

    That is an interrupt, so that a process of this one is closed first.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    requests, replies = streams()
    try:
        answer(requests, replies)
    except (EOFError, KeyboardInterrupt):
        return


def streams() -> tuple[BinaryIO, BinaryIO]:
    """Return copies of the standard streams, so that prints do not mix in."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever the target reads is empty, and whatever it prints goes to standard error.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    return requests, replies
