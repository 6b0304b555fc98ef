"""A template process with libraries imported, from which processes are forked.

Importing PyTorch takes longer than judging a small kernel. A template imports libraries
once and runs nothing of a target. It has one thread and one socket, on which it is
asked to fork, how a fork ended, and to end whatever its forks have left behind: it is
their reaper, so a process that leaves its group and its session does not leave it.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from linkern.testing.errors import TargetDied

__all__ = ["PRELOADABLE", "Forked", "Template", "can_fork", "main", "scrubbed"]

# Libraries that start no thread when they are imported, so that they can be forked.
PRELOADABLE = ("numpy", "torch", "jax")
WORKER = "linkern.testing.target.worker"
# Variables that a library may need; no other one reaches a candidate.
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
KEPT_PREFIXES = ("LC_", "PYTHON", "OMP_", "OPENBLAS_", "MKL_", "CUDA_", "NVIDIA_")
MESSAGE = 2**16
# Seconds for an answer, and for the import of all libraries.
ANSWER, IMPORTS = 10.0, 120.0
GONE = -signal.SIGKILL
_PR_SET_CHILD_SUBREAPER = 36


def can_fork() -> bool:
    """Return True on Linux: elsewhere each process is started from nothing."""
    return sys.platform == "linux"


def scrubbed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the process of a candidate sees.

    Examples
    --------
    >>> scrubbed({"PATH": "/bin", "OMP_NUM_THREADS": "2", "API_TOKEN": "secret"})
    {'PATH': '/bin', 'OMP_NUM_THREADS': '2'}
    """
    return {
        name: value
        for name, value in environment.items()
        if name in KEPT_VARIABLES or name.startswith(KEPT_PREFIXES)
    }


class Template:
    """A template process, from the side of who asks it.

    Parameters
    ----------
    libraries : sequence of str
        Those to import, of `PRELOADABLE`; one that is not installed is left out.
    environment : mapping of str to str
        Environment of the template and of its forks.
    """

    def __init__(
        self, libraries: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.libraries = tuple(libraries)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        start = (
            f"from {__name__} import main; main({theirs.fileno()}, {self.libraries})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._socket.settimeout(IMPORTS)
        self._answer()
        self._socket.settimeout(ANSWER)

    @property
    def alive(self) -> bool:
        """True while it can be asked."""
        return self._process.poll() is None and self._socket.fileno() >= 0

    def fork(self, module: str, folder: Path, path: Sequence[str] = ()) -> "Forked":
        """Fork a process that runs `main` of a module.

        Parameters
        ----------
        module : str
            The module, which answers requests on its standard streams.
        folder : Path
            Working directory of the process, and its folder of temporary files.
        path : sequence of str
            Folders of further modules.
        """
        inner, outer = [], []
        for writes in (False, True, True):
            read, write = os.pipe()
            inner.append(write if writes else read)
            outer.append(read if writes else write)
        try:
            words = {"fork": module, "folder": str(folder), "path": [*path]}
            number = self.ask(words, inner)["pid"]
        except BaseException:
            for end in outer:
                os.close(end)
            raise
        finally:
            for end in inner:
                os.close(end)
        return Forked(self, number, outer)

    def ask(self, words: dict[str, Any], ends: Sequence[int] = ()) -> dict[str, Any]:
        """Send a request, with ends of pipes, and return its answer.

        Raises
        ------
        TargetDied
            If the template is gone, or stopped: a fork has done that.
        """
        try:
            socket.send_fds(self._socket, [json.dumps(words).encode()], [*ends])
            return self._answer()
        except OSError:
            self.end()
            reason = "ended the process that it was started from"
            raise TargetDied(reason, hung=False) from None

    def _answer(self) -> dict[str, Any]:
        answer = self._socket.recv(MESSAGE)
        if not answer:
            raise ConnectionResetError
        values: dict[str, Any] = json.loads(answer)
        return values

    def sweep(self) -> None:
        """End all processes that its forks have left behind."""
        with contextlib.suppress(TargetDied):
            self.ask({"sweep": True})

    def end(self) -> None:
        """End the process, and all of its forks."""
        self._socket.close()  # it sweeps, and ends
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        self._process.kill()
        self._process.wait()


class Forked:
    """One forked process, with the methods of `subprocess.Popen` that are needed."""

    def __init__(self, template: Template, number: int, ends: Sequence[int]) -> None:
        self.pid = number
        self._template = template
        self.stdin: IO[bytes] = os.fdopen(ends[0], "wb")
        self.stdout: IO[bytes] = os.fdopen(ends[1], "rb")
        self.stderr: IO[bytes] = os.fdopen(ends[2], "rb")
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; negative for a signal, None while it runs."""
        if self._code is None:
            try:
                self._code = self._template.ask({"poll": self.pid})["code"]
            except TargetDied:
                self._code = GONE
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises
        ------
        subprocess.TimeoutExpired
            If it does not end in time.
        """
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.005)
        return code

    def terminate(self) -> None:
        """Tell it to end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)


def main(number: int, libraries: Sequence[str]) -> None:
    """Import libraries, then answer requests on a socket until it is closed.

    Parameters
    ----------
    number : int
        File descriptor of the socket.
    libraries : sequence of str
        The libraries to import.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sys.path[:] = [str(Path.cwd()) if place == "" else place for place in sys.path]
    import_module(WORKER)
    for library in libraries:
        with contextlib.suppress(ImportError):
            import_module(library)
    threads = len([*Path("/proc/self/task").iterdir()])
    if threads > 1:
        sys.exit(f"{threads} threads after importing {libraries}: it cannot fork.")
    asked, codes = socket.socket(fileno=number), dict[int, int]()
    asked.send(b"{}")
    while True:
        words, ends, _, _ = socket.recv_fds(asked, MESSAGE, 3)
        if not words:
            break
        asked.send(
            json.dumps(_answered(asked, json.loads(words), ends, codes)).encode()
        )
    _sweep(codes)


def _answered(
    asked: socket.socket, words: dict[str, Any], ends: list[int], codes: dict[int, int]
) -> dict[str, Any]:
    if "fork" in words:
        child = os.fork()
        if not child:
            asked.close()
            _become(words, ends)
        for end in ends:
            os.close(end)
        return {"pid": child}
    if "poll" in words:
        return {"code": _code_of(words["poll"], codes)}
    _sweep(codes)
    return {}


def _become(words: dict[str, Any], ends: list[int]) -> NoReturn:
    """Run a module in this process, which was forked, and end it."""
    code = 1
    try:
        os.setsid()  # a group of its own, which ends as one
        for number, end in enumerate(ends):
            os.dup2(end, number)
            os.close(end)
        folder = words["folder"]
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        sys.path += words["path"]
        import_module(words["fork"]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _code_of(child: int, codes: dict[int, int]) -> int | None:
    if child not in codes:
        try:
            ended, status = os.waitpid(child, os.WNOHANG)
        except ChildProcessError:
            return GONE
        if not ended:
            return None
        codes[child] = os.waitstatus_to_exitcode(status)
    return codes[child]


def _sweep(codes: dict[int, int]) -> None:
    """Kill all children, and theirs, which become children then."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while names := children.read_text(encoding="ascii").split():
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(name), signal.SIGKILL)
        for name in names:
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(int(name), 0)
                codes[int(name)] = os.waitstatus_to_exitcode(status)
