"""CUDA C++ compiled to machine code by NVRTC: no GPU and no driver needed.

    python -m pip install 'cuda-toolkit[nvrtc]==13.0.*' cuda-pathfinder

CuPy compiles with the same library and options when it first launches a kernel. What is
kept of it is the resource usage that the assembler reports, or the code of one kernel.
"""

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

__all__ = ["CompilationFailed", "Needs", "compiled", "machine_code", "version"]

# Options of CuPy, and a report of the assembler.
OPTIONS = ("-std=c++17", "-ftz=true", "-default-device", "--ptxas-options=-v")

_ENTRY = re.compile(r"Compiling entry function '(\S+)'")
_LOCAL = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_STATIC = re.compile(r"(\d+) bytes smem")


class CompilationFailed(Exception):  # noqa: N818 -- no error of ours
    """Messages of the compiler about a program that it rejects."""


class Needs(NamedTuple):
    """Resources that one kernel needs on one kind of GPU.

    Parameters
    ----------
    registers : int
        Registers of each thread.
    stack, spilled : int
        Bytes of local memory of each thread, which is as slow as global memory; how
        many of them hold spilled registers.
    static : int
        Bytes of static shared memory of a block.
    """

    registers: int
    stack: int
    spilled: int
    static: int


def compiled(text: str, target: str, kernels: Sequence[str]) -> dict[str, Needs]:
    """Return the resources that kernels of a program need.

    Parameters
    ----------
    text : str
        CUDA C++, without headers.
    target : str
        For example ``sm_90``.
    kernels : sequence of str
        Names with template arguments.

    Raises
    ------
    CompilationFailed
        With the messages of the compiler.
    """
    with _program(text, target, kernels) as (program, log):
        return _needs(log, {_lowered(program, kernel): kernel for kernel in kernels})


def machine_code(text: str, target: str, kernel: str) -> tuple[bytes, Needs]:
    """Return the machine code of a kernel, a file for NVIDIA's tools, and its needs.

    Parameters and errors are those of `compiled`.
    """
    with _program(text, target, [kernel]) as (program, log):
        size = ctypes.c_size_t()
        _check(_library().nvrtcGetCUBINSize(program, ctypes.byref(size)))
        code = ctypes.create_string_buffer(size.value)
        _check(_library().nvrtcGetCUBIN(program, code))
        return code.raw, _needs(log, {_lowered(program, kernel): kernel})[kernel]


@contextmanager
def _program(
    text: str, target: str, kernels: Sequence[str]
) -> Iterator[tuple[Any, str]]:
    """Compile a program; yield it and what the compiler says."""
    library, program = _library(), ctypes.c_void_p()
    _check(
        library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"kernels.cu", 0, None, None
        )
    )
    try:
        for kernel in kernels:
            _check(library.nvrtcAddNameExpression(program, kernel.encode()))
        options = [x.encode() for x in (f"-arch={target}", *OPTIONS)]
        array = (ctypes.c_char_p * len(options))(*options)
        code = library.nvrtcCompileProgram(program, len(options), array)
        log = _log(program)
        if code:
            raise CompilationFailed(log)
        yield program, log
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def version() -> str:
    """Return the version of the compiler, on which register counts depend."""
    numbers = ctypes.c_int(), ctypes.c_int()
    _check(_library().nvrtcVersion(*map(ctypes.byref, numbers)))
    return ".".join(str(x.value) for x in numbers)


@cache
def _library() -> Any:
    from cuda.pathfinder import load_nvidia_dynamic_lib  # noqa: PLC0415

    library = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)
    library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


def _check(code: int) -> None:
    if code:
        raise CompilationFailed(_library().nvrtcGetErrorString(code).decode())


def _log(program: Any) -> str:
    size = ctypes.c_size_t()
    _check(_library().nvrtcGetProgramLogSize(program, ctypes.byref(size)))
    log = ctypes.create_string_buffer(size.value)
    _check(_library().nvrtcGetProgramLog(program, log))
    return log.value.decode()


def _lowered(program: Any, kernel: str) -> str:
    name = ctypes.c_char_p()
    _check(_library().nvrtcGetLoweredName(program, kernel.encode(), ctypes.byref(name)))
    assert name.value is not None
    return name.value.decode()


def _needs(log: str, kernels: dict[str, str]) -> dict[str, Needs]:
    """Return the resources in a log, which has a part for each lowered name."""
    _, *parts = _ENTRY.split(log)
    needs = {}
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        local, used, static = (x.search(text) for x in (_LOCAL, _USED, _STATIC))
        if local is None or used is None:
            msg = f"the assembler does not say what {kernels[name]} needs:\n{text}"
            raise CompilationFailed(msg)
        stack, spilled = map(int, local.groups())
        shared = 0 if static is None else int(static[1])
        needs[kernels[name]] = Needs(int(used[1]), stack, spilled, shared)
    if len(needs) != len(kernels):
        msg = f"the assembler says nothing of {sorted({*kernels.values()} - {*needs})}"
        raise CompilationFailed(msg)
    return needs
