"""Run a command once: a file of tensors in, one out, and no process left running.

Every failure becomes one sentence about the command. Its output, memory and child
processes are limited here.
"""

import contextlib
import os
import re
import signal
import stat
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.target.child import printable
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.sandbox import Sandbox, code_inside

__all__ = ["INPUTS", "OUTPUTS", "Tensors", "Written", "execute", "tensor", "useless"]

# Placeholders in a command for the paths of the two files.
INPUTS, OUTPUTS = "{inputs}", "{outputs}"
GIBIBYTE = 2**30
# Blocks of the output of a command that are kept, of at most 64 KiB each.
KEPT_BLOCKS = 4
# `safetensors.numpy` writes bfloat16 but cannot read it, so dtypes are looked up here.
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}

# Flags that Windows does not have.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)

Tensors = Mapping[str, NDArray[Any]]
# The tensors of a file by name, each with its dtype, shape and bytes.
Written = Mapping[str, Mapping[str, Any]]


def execute(
    words: Sequence[str],
    tensors: Tensors,
    metadata: Mapping[str, str],
    *,
    timeout: float,
    memory_limit: float | None = None,
    most_bytes: int = 2**32,
    sandbox: Sandbox | None = None,
) -> Written:
    """Run a command on a file of tensors, and return the tensors that it wrote.

    Parameters
    ----------
    words : sequence of str
        Program and arguments, ``{inputs}`` and ``{outputs}`` among them: the paths of
        two files in a folder that exists for this run alone.
    tensors : mapping of str to array
        Its inputs.
    metadata : mapping of str to str
        Metadata of the file of inputs.
    timeout : float
        Seconds that it may take.
    memory_limit : float, optional
        GiB that it may allocate, and that its file may have.
    most_bytes : int
        Size of its file above which nothing of it is read.
    sandbox : Sandbox, optional
        What it runs in.

    Returns
    -------
    mapping
        Written tensors, for `tensor`.

    Raises
    ------
    TargetRaised
        If it ended with an exit code, or without a file that can be read.
    TargetDied
        If it crashed, or did not end in time.
    """
    with TemporaryDirectory(prefix="linkern-", ignore_cleanup_errors=True) as folder:
        paths = {
            INPUTS: str(Path(folder, "inputs.safetensors")),
            OUTPUTS: str(Path(folder, "outputs.safetensors")),
        }
        save_file(
            # A view would be saved with the numbers of its whole buffer.
            {name: np.ascontiguousarray(x) for name, x in tensors.items()},
            paths[INPUTS],
            dict(metadata),
        )
        pattern = "|".join(re.escape(placeholder) for placeholder in paths)
        filled = [re.sub(pattern, lambda match: paths[match[0]], w) for w in words]
        if sandbox is not None:
            filled = replace(sandbox, writable=(Path(folder),)).words(filled)
            filled = _limited(filled, memory_limit)
        code, printed = _run(filled, timeout, memory_limit)
        if code is not None and sandbox is not None:
            code = code_inside(code)
        _require_success(code, timeout, printed)
        return _read(Path(paths[OUTPUTS]), most_bytes)


def tensor(written: Written, name: str) -> NDArray[Any]:
    """Return one of the tensors that a command wrote, bit for bit."""
    if name not in written:
        known_names = ", ".join(f"`{known}`" for known in sorted(written)) or "none"
        useless(f"no tensor `{name}` (there are: {known_names})")
    stored = written[name]
    if stored["dtype"] not in DTYPES:
        known = ", ".join(DTYPES)
        useless(
            f"a tensor `{name}` of dtype {stored['dtype']}, which is none of {known}"
        )
    dtype = numpy_dtype(DTYPES[stored["dtype"]])
    return np.frombuffer(stored["data"], dtype).reshape(stored["shape"])


def useless(what: str) -> NoReturn:
    """Raise the error of a run that ended well and wrote something unusable."""
    msg = f"nothing, but wrote {what}"
    raise TargetRaised(msg)


def _limited(words: list[str], memory_limit: float | None) -> list[str]:
    """Return the command that runs another under limits, which all below it inherit.

    What a sandbox starts is not the process whose limits `prlimit` changes.
    """
    if memory_limit is None:
        return words
    kibibytes = int(memory_limit * 2**20)
    limits = f"ulimit -d {kibibytes}; ulimit -f {2 * kibibytes}"
    return ["sh", "-c", f'{limits}; exec "$@"', "sh", *words]


def _run(
    words: list[str], timeout: float, memory_limit: float | None
) -> tuple[int | None, bytes]:
    """Run a program, and kill it at the timeout.

    Return its exit code, None if it did not end in time, and the end of its output.
    """
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # A group of its own, to take along whatever it starts when it ends.
            start_new_session=True,
        )
    except OSError as error:
        raise TargetRaised(str(error)) from error
    printed: deque[bytes] = deque(maxlen=KEPT_BLOCKS)
    listener = threading.Thread(
        target=_listen, args=(process.stderr, printed), daemon=True
    )
    listener.start()
    code = None
    try:
        if memory_limit is not None:
            _limit_memory(process.pid, memory_limit)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # What has left the group may still hold the pipe, and need not end.
    listener.join(timeout=1)
    return code, b"".join(printed)


def _listen(stderr: IO[bytes], printed: deque[bytes]) -> None:
    """Keep the end of the output of a program."""
    with stderr:
        while block := os.read(stderr.fileno(), 2**16):
            printed.append(block)


def _limit_memory(process_id: int, gibibytes: float) -> None:
    resource = import_module("resource")  # there is none on Windows
    if not hasattr(resource, "prlimit"):  # not Linux
        return
    for what in (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        # It may have ended by now, or belong to another user.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _, hard = resource.prlimit(process_id, what)
            soft = int(gibibytes * GIBIBYTE)
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.prlimit(process_id, what, (soft, soft))


def _require_success(code: int | None, timeout: float, printed: bytes) -> None:
    """Raise with the last line of the program, unless it ended with exit code 0."""
    lines = printed[-2000:].decode(errors="replace").strip().splitlines()
    last = f"; it last wrote: {printable(lines[-1].strip()[:200])}" if lines else ""
    if code is None:
        msg = f"did not return within {timeout:g} s{last}"
        raise TargetDied(msg, hung=True)
    if code < 0:
        names = {known.value: known.name for known in signal.Signals}
        msg = f"crashed with {names.get(-code, f'signal {-code}')}{last}"
        raise TargetDied(msg, hung=False)
    if code > 0:
        msg = f"exit code {code}{last}"
        raise TargetRaised(msg)


def _read(path: Path, most_bytes: int) -> Written:
    """Return the tensors of a file, if it is one and no larger than it can be."""
    try:
        with open(path, "rb", opener=_without_link) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                what = "something else than a file"
            elif status.st_size > most_bytes:
                what = f"{status.st_size} bytes, where {most_bytes} are enough,"
            else:
                data = file.read(most_bytes)
                return dict(deserialize(data))  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        what = "no file"
    except (OSError, SafetensorError) as error:
        what = f"no safetensors file ({printable(str(error))})"
    useless(f"{what} to {OUTPUTS}")


def _without_link(path: str, flags: int) -> int:
    """Open a file: neither one that a link names, nor waiting for a pipe's writer."""
    return os.open(path, flags | _NO_LINK | _NO_WAIT)
