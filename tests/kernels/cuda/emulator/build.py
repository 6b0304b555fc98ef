"""Kernels of linkern compiled for the emulator, each as a library."""

import os
import shutil
from pathlib import Path

import pytest

from linkern.testing.emulator import build
from linkern.testing.emulator.build import COMMON, MODES, SOURCES, compiled

__all__ = ["kernel_library", "require_compiler", "runtime_library"]

HERE = Path(__file__).parent

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
    """Return the library of the scheduler, with the matrix operations of device.cuh."""
    require_compiler()
    return build.runtime_library(mode, [HERE / "matrices.cpp"])


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
    options = [*COMMON, f"-I{HERE}", "-DLINKERN_EMULATED", "-shared", *instrumented]
    options += ["-fvisibility-inlines-hidden", "-Wall", "-Wextra"]
    options += ["-Wno-unknown-pragmas", *([] if faulty else ["-Werror"])]
    texts = {"main.cpp": text + ENTRY.format(kernel=kernel)}
    options += ["main.cpp", str(runtime_library(mode))]
    return compiled(options, texts, [SOURCES, HERE])


def require_compiler() -> None:
    """Skip a test without a compiler, or fail if one is required."""
    if shutil.which("g++") is None:
        required = "g++" in os.environ.get("LINKERN_REQUIRE", "").split()
        (pytest.fail if required else pytest.skip)("g++ is not installed")
