"""Commands of bubblewrap: a process that can read, compute and reply, and no more.

It has no network, no other process in sight, a file system that it cannot write to, and
private temporary folders. All of it ends with the process that started it.
"""

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from linkern.testing.errors import UsageError

__all__ = ["Sandbox", "code_inside", "paths_in"]

PROGRAM = "bwrap"
# Folders of which it gets an empty one of its own: what others leave there, and the
# sockets of services.
_PRIVATE = tuple(map(Path, ("/tmp", "/var/tmp", "/run")))
_OPTIONS = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
)
# Bytes of each folder of its own, which take memory.
_ROOM = str(2**30)
# Where libraries compile to, which is below a home folder otherwise.
_CACHES = {
    "TMPDIR": "/tmp",
    "XDG_CACHE_HOME": "/tmp/cache",
    "TRITON_CACHE_DIR": "/tmp/triton",
    "NUMBA_CACHE_DIR": "/tmp/numba",
    "CUDA_CACHE_PATH": "/tmp/cuda",
    "CUPY_CACHE_DIR": "/tmp/cupy",
}
# Devices of accelerators, which it gets for a target that runs on one.
_DEVICES = ("nvidia*", "kfd", "dri")


@dataclass(frozen=True)
class Sandbox:
    """One way to run a process by bubblewrap.

    Parameters
    ----------
    shown : tuple of Path
        Files and folders that it must be able to read, if they are in a folder of which
        it gets an empty one of its own.
    writable : tuple of Path
        Folders that it can write to.
    device : str
        Device of a target: the files of accelerators are there unless it is ``cpu``.
    """

    shown: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    device: str = "cpu"

    def words(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs a command.

        Raises
        ------
        UsageError
            If bubblewrap is not installed.
        """
        program = shutil.which(PROGRAM)
        if program is None:
            msg = (
                f"`sandbox` needs bubblewrap, but there is no program `{PROGRAM}` on "
                "the PATH; install it (`apt-get install bubblewrap`, on Linux only), "
                "or leave `--sandbox` out."
            )
            raise UsageError(msg)
        arguments = [*_OPTIONS]
        for folder in filter(Path.is_dir, (*_PRIVATE, Path("/dev/shm"))):
            arguments += ["--size", _ROOM, "--tmpfs", str(folder)]
        for path in _hidden((*self.shown, *_python())):
            arguments += ["--ro-bind", str(path), str(path)]
        for path in self.writable:
            arguments += ["--bind", str(path), str(path)]
        if self.device != "cpu":
            for path in (p for name in _DEVICES for p in Path("/dev").glob(name)):
                arguments += ["--dev-bind", str(path), str(path)]
        for name, value in _CACHES.items():
            arguments += ["--setenv", name, value]
        return [program, *arguments, "--", *words]


def code_inside(code: int) -> int:
    """Return the exit code of what ran in a sandbox: negative if a signal ended it.

    Examples
    --------
    >>> code_inside(139), code_inside(3)
    (-11, 3)
    """
    return 128 - code if code > 128 else code


def paths_in(words: Iterable[str]) -> tuple[Path, ...]:
    """Return the files that words name, and the folders of those files.

    Examples
    --------
    >>> paths_in(["no/such/file.py", "--option"])
    ()
    """
    files = [path for path in map(_found, words) if path.is_file()]
    return tuple(p for path in files for p in (path, path.parent))


def _found(word: str) -> Path:
    return Path(shutil.which(word) or word)


def _python() -> tuple[Path, ...]:
    """Return the folders of this interpreter and of all that it imports from."""
    folders = (sys.prefix, sys.base_prefix, *sys.path, os.curdir)
    return tuple(map(Path, folders))


def _hidden(paths: Iterable[Path]) -> list[Path]:
    """Return those below the private folders, without those inside of another one.

    A private folder itself is none of them: what else is in it stays out of sight.
    """
    both = {one for path in paths for one in (path.absolute(), path.resolve())}
    below = {
        path
        for path in both
        if path.exists() and any(folder in path.parents for folder in _PRIVATE)
    }
    return sorted(path for path in below if below.isdisjoint(path.parents))
