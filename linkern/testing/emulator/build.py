"""Kernels compiled for the CPU, with or without a sanitizer, and kept."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from linkern.testing.errors import UsageError

__all__ = [
    "COMMON",
    "MODES",
    "SOURCES",
    "CompileError",
    "compiled",
    "runtime_library",
]

SOURCES = Path(__file__).parent / "src"

# Flags of the kernels, and of the scheduler, which is never instrumented.
MODES = {
    "plain": (["-O1"], ["-O2"]),
    "thread": (["-O1", "-g1", "-fsanitize=thread"], ["-O2", "-DEMULATOR_TSAN"]),
    "address": (
        ["-O1", "-g1", "-fsanitize=address,undefined", "-fsanitize-recover=all"],
        ["-O2", "-DEMULATOR_ASAN"],
    ),
}
COMMON = ["-std=c++17", "-fPIC", f"-I{SOURCES}"]
_WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]


class CompileError(UsageError):
    """The compiler refused a source; the message is its output."""


def runtime_library(mode: str = "plain", more: Sequence[Path] = ()) -> Path:
    """Return the library of the scheduler; compile it if it does not exist.

    Parameters
    ----------
    mode : {"plain", "thread", "address"}
        Sanitizer of the kernels: none, ThreadSanitizer, or AddressSanitizer and UBSan.
    more : sequence of Path
        Further sources of it, beside the headers that they include.
    """
    _, uninstrumented = MODES[mode]
    folders = sorted({f"-I{path.parent}" for path in more})
    sources = [str(path) for path in (*sorted(SOURCES.glob("*.cpp")), *more)]
    options = [*COMMON, *folders, *_WARNINGS, *uninstrumented, "-shared", *sources]
    return compiled(options, {}, [SOURCES, *(path.parent for path in more)])


def compiled(
    options: Sequence[str], texts: Mapping[str, str], folders: Sequence[Path] = ()
) -> Path:
    """Return the result of a compilation that this user may have done before.

    Parameters
    ----------
    options : sequence of str
        Arguments of ``g++`` but the name of the result.
    texts : mapping of str to str
        Files that it reads, by name.
    folders : sequence of Path
        Folders of sources and headers that it reads as well.

    Raises
    ------
    UsageError
        If there is no compiler.
    CompileError
        If it refuses the files.
    """
    headers = [
        path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted(folder.rglob("*.[ch]pp"))
    ]
    key = repr((headers, list(options), sorted(texts.items()))).encode()
    folder = _cache()
    result = folder / hashlib.sha256(key).hexdigest()[:20]
    if result.exists():
        return result
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for name, text in texts.items():
            (Path(place) / name).write_text(text, encoding="utf-8")
        command = [_compiler(), *options, "-o", "result"]
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CompileError(done.stderr.strip())
        # Atomically, since other processes may look for it.
        (Path(place) / "result").rename(result)
    return result


def _compiler() -> str:
    if shutil.which("g++") is None:
        msg = (
            "`g++` must be there to run kernels on a CPU, but no folder of PATH has "
            "it; install it, such as by `apt install g++`."
        )
        raise UsageError(msg)
    return "g++"


def _cache() -> Path:
    """Return the folder of this user for what was compiled."""
    folder = Path(tempfile.gettempdir()) / f"linkern-emulator-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        msg = f"`{folder}` must be a folder for what is compiled, but: {error}."
        raise UsageError(msg) from None
    if folder.stat().st_uid != os.getuid():
        msg = (
            f"`{folder}` must belong to the user who compiles into it, but another "
            "one made it; remove it, or set TMPDIR."
        )
        raise UsageError(msg)
    return folder
