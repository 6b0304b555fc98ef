"""The side of the fence where the target runs: a process that loads it and answers.

`main` takes requests on standard input and answers on standard output, so that whatever
the target does to its process happens to nobody else.
"""

import mmap
import os
import pickle
import traceback
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from linkern.testing.errors import UsageError
from linkern.testing.target.frameworks import framework_named, require_device
from linkern.testing.target.invoke import Caller
from linkern.testing.target.loading import Interface, load, resolve
from linkern.testing.target.protocol import Call, Environment, Reply

__all__ = ["describe", "main", "open_target"]

GIBIBYTE = 2**30
# Characters of an exception that are passed on.
MOST_SAID = 500


def open_target(
    environment: Environment, function: Any = None
) -> tuple[Interface, Caller]:
    """Return the interface of a target, and what calls it."""
    framework = framework_named(environment.framework)
    require_device(framework, environment.device)
    found = resolve(environment.target) if function is None else function
    loaded = load(
        found,
        environment.target,
        vjp=environment.vjp,
        interface=environment.interface,
        options=environment.options,
        op=environment.op,
    )
    return loaded.interface, Caller(loaded, environment, framework)


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Answer requests until they end: first an environment, then calls."""
    environment: Environment = pickle.load(requests)
    try:
        interface, caller = open_target(environment)
    except UsageError as error:
        _send(replies, error)
        return
    if environment.device == "cpu":
        _limit_memory(environment.memory_limit)
    _send(replies, interface)
    process, forked = os.getpid(), mmap.mmap(-1, 1)
    while True:
        try:
            call: Call = pickle.load(requests)
        except EOFError:
            return
        answer: Any
        try:
            answer = caller(call)
        except Exception as error:
            answer = describe(error)
            if environment.device == "cpu" and _is_refusal_of_memory(error):
                limit = f"more than {environment.memory_limit:g} GiB"
                answer = f"MemoryError: it wanted {limit} ({_first_line(error)})"
        if os.getpid() != process:
            # The target forked and came back twice; only one of the two may answer.
            forked[0] = 1
            os._exit(0)
        if forked[0] and isinstance(answer, Reply):
            answer = replace(answer, traces=(*answer.traces, "a copy of its process"))
        _send(replies, answer)


def _limit_memory(gibibytes: float) -> None:
    """Let the process allocate that much more than it has by now, and no more."""
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
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _is_refusal_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, in the words of NumPy, PyTorch or JAX."""
    words = ("allocate memory", "RESOURCE_EXHAUSTED", "out of memory")
    return isinstance(error, MemoryError) or any(w in str(error) for w in words)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:MOST_SAID] or type(error).__name__


def describe(error: BaseException) -> str:
    """Return an exception in one line, with the line of the target that raised it."""
    what = traceback.format_exception_only(error)[-1].strip()
    what = what.partition("\n")[0][:MOST_SAID]
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return what
    return f"{what} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def _send(replies: BinaryIO, message: Any) -> None:
    pickle.dump(message, replies, protocol=pickle.HIGHEST_PROTOCOL)
    replies.flush()


def main() -> None:
    """Serve on the standard streams, out of reach of what the target prints."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    # Whatever the target reads is empty, and whatever it prints goes to standard error.
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    serve(requests, replies)
