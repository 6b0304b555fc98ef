"""Kernels compiled for the CPU, with or without a sanitizer."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["MODES", "kernel_library", "require_compiler", "runtime_library"]

HERE = Path(__file__).parent

# Flags of the kernels, and of the scheduler, which is never instrumented.
MODES = {
    "plain": (["-O1"], ["-O2"]),
    "thread": (["-O1", "-g1", "-fsanitize=thread"], ["-O2", "-DEMULATOR_TSAN"]),
    "address": (
        ["-O1", "-g1", "-fsanitize=address,undefined", "-fsanitize-recover=all"],
        ["-O2", "-DEMULATOR_ASAN"],
    ),
}
COMMON = ["-std=c++17", "-fPIC", "-shared", "-DLINKERN_EMULATED", f"-I{HERE}"]
COMMON += ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]

ENTRY = """
#include <utility>

template <class... Given, std::size_t... I>
void call(void (*kernel)(Given...), void** given, std::index_sequence<I...>) {{
  kernel(*static_cast<Given*>(given[I])...);
}}
template <class... Given> void call(void (*kernel)(Given...), void** given) {{
  call(kernel, given, std::index_sequence_for<Given...>());
}}
extern "C" void entry(void** given) {{ call(&{kernel}, given); }}
"""


def runtime_library(mode: str = "plain") -> Path:
    """Return the library of the scheduler; compile it if it does not exist."""
    parts = sorted(HERE.glob("*.cpp"))
    _, uninstrumented = MODES[mode]
    return _compiled(_own_texts(), [*COMMON, *uninstrumented, *map(str, parts)], {})


def kernel_library(
    text: str, kernel: str, mode: str = "plain", *, faulty: bool = False
) -> Path:
    """Return a library with one kernel as ``entry``; compile it if it does not exist.

    Parameters
    ----------
    text, kernel : str
        Source, and the name of the kernel with template arguments.
    mode : {"plain", "thread", "address"}
        Sanitizer: none, ThreadSanitizer, or AddressSanitizer and UBSan.
    faulty : bool
        True if faults are planted: then warnings are not errors.
    """
    instrumented, _ = MODES[mode]
    options = [*COMMON, "-fvisibility-inlines-hidden", *instrumented, "main.cpp"]
    if faulty:
        options.append("-Wno-error")
    texts = {"main.cpp": text + ENTRY.format(kernel=kernel)}
    return _compiled(_own_texts(), [*options, str(runtime_library(mode))], texts)


def require_compiler() -> None:
    """Skip a test without a compiler, or fail if one is required."""
    if shutil.which("g++") is None:
        required = "g++" in os.environ.get("LINKERN_REQUIRE", "").split()
        (pytest.fail if required else pytest.skip)("g++ is not installed")


def _own_texts() -> str:
    return repr([p.read_text(encoding="utf-8") for p in sorted(HERE.glob("*.[ch]pp"))])


def _compiled(key_text: str, options: list[str], texts: Mapping[str, str]) -> Path:
    """Return a library; compile it unless this user has compiled the same before."""
    folder = Path(tempfile.gettempdir()) / f"linkern-emulator-{os.getuid()}"
    key = repr((key_text, options, sorted(texts.items()))).encode()
    library = folder / f"{hashlib.sha256(key).hexdigest()[:20]}.so"
    if library.exists():
        return library
    require_compiler()
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for name, text in texts.items():
            (Path(place) / name).write_text(text, encoding="utf-8")
        command = ["g++", *options, "-o", "library.so"]
        done = subprocess.run(
            command, cwd=place, capture_output=True, text=True, check=False
        )
        if done.returncode:
            msg = f"{' '.join(command)} failed:\n{done.stderr}"
            raise RuntimeError(msg)
        # Atomically, since other processes may look for it.
        (Path(place) / "library.so").rename(library)
    return library
