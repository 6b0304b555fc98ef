"""One run of a command: a file of tensors in, one out, and nothing left behind.

Whatever goes wrong is one sentence about the command. What it prints, allocates, starts
and leaves running is contained here.
"""

import contextlib
import os
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save_file

from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["INPUTS", "OUTPUTS", "Tensors", "Written", "execute", "tensor", "useless"]

# What stands in a command for the paths of the two files.
INPUTS, OUTPUTS = "{inputs}", "{outputs}"
GIBIBYTE = 2**30
# What is kept of all that a command prints, in blocks of at most 64 KiB.
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
) -> Written:
    """Run a command on a file of tensors, and return what it wrote.

    Parameters
    ----------
    words : sequence of str
        Program and arguments, ``{inputs}`` and ``{outputs}`` among them: the paths of
        two files in a folder that exists for this run alone.
    tensors : mapping of str to array
        What it reads.
    metadata : mapping of str to str
        What the file says besides.
    timeout : float
        Seconds that it may take.
    memory_limit : float, optional
        GiB that it may allocate, and that its file may have.

    Returns
    -------
    mapping
        For `tensor`.

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
            # Of a view, other numbers than its own would be saved.
            {name: np.ascontiguousarray(x) for name, x in tensors.items()},
            paths[INPUTS],
            dict(metadata),
        )
        pattern = "|".join(re.escape(placeholder) for placeholder in paths)
        filled = [re.sub(pattern, lambda found: paths[found[0]], w) for w in words]
        _run(filled, timeout, memory_limit)
        return _read(Path(paths[OUTPUTS]))


def tensor(written: Written, name: str) -> NDArray[Any]:
    """Return one of the tensors that a command wrote, bit for bit."""
    if name not in written:
        there = ", ".join(f"`{known}`" for known in sorted(written)) or "none"
        useless(f"no tensor `{name}` (there are: {there})")
    found = written[name]
    if found["dtype"] not in DTYPES:
        known = ", ".join(DTYPES)
        useless(
            f"a tensor `{name}` of dtype {found['dtype']}, which is none of {known}"
        )
    dtype = numpy_dtype(DTYPES[found["dtype"]])
    return np.frombuffer(found["data"], dtype).reshape(found["shape"])


def useless(what: str) -> NoReturn:
    """Raise what is to be said of a run that reported no error and went wrong."""
    msg = f"nothing, but wrote {what}"
    raise TargetRaised(msg)


def _run(words: list[str], timeout: float, memory_limit: float | None) -> None:
    """Run a program to its end, or end it."""
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
    said: deque[bytes] = deque(maxlen=KEPT_BLOCKS)
    listener = threading.Thread(
        target=_listen, args=(process.stderr, said), daemon=True
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
    _require_success(code, timeout, b"".join(said))


def _listen(stderr: IO[bytes], said: deque[bytes]) -> None:
    """Keep the last of what a program prints, however much that is."""
    with stderr:
        while block := os.read(stderr.fileno(), 2**16):
            said.append(block)


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
            resource.prlimit(process_id, what, (soft, hard))


def _require_success(code: int | None, timeout: float, said: bytes) -> None:
    """Say how a program ended, with the last line it wrote, unless it ended well."""
    lines = said[-2000:].decode(errors="replace").strip().splitlines()
    last = f"; it last wrote: {lines[-1].strip()[:200]}" if lines else ""
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


def _read(path: Path) -> Written:
    try:
        data = path.read_bytes()
        return dict(deserialize(data))  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        what = "no file"
    except (OSError, SafetensorError) as error:
        what = f"no safetensors file ({error})"
    useless(f"{what} to {OUTPUTS}")
