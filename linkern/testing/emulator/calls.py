"""Calls of a function of CUDA C++: source, launch and arguments as data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from linkern.testing.emulator.arguments import (
    Binding,
    Entry,
    Number,
    entry_of,
    evaluated,
    named_axes,
)
from linkern.testing.emulator.build import (
    COMMON,
    MODES,
    SOURCES,
    CompileError,
    compiled,
    runtime_library,
)
from linkern.testing.emulator.source import blanked, pieces, rewritten
from linkern.testing.errors import UsageError

__all__ = ["Call", "Prepared", "Stored", "prepared"]

# The tensors of a file by name, each with its dtype, shape and bytes.
Stored = Mapping[str, Mapping[str, Any]]
# Parts of CUDA that the emulator lacks, and what a source with them contains.
_BEYOND = {
    "inline PTX": r"\basm\b",
    "tensor cores by `wmma`": r"\bwmma::",
    "CUB": r"\bcub::",
    "cooperative groups": r"\bcooperative_groups\b",
    "CuTe or CUTLASS": r"\b(?:cute|cutlass)::",
    "ThunderKittens": r"\bkittens\b",
    "asynchronous copies": r"\b__pipeline_|\bcuda::(?:memcpy_async|barrier|pipeline)",
}
_MAIN = """
#line 1 "emulator"
int main(int, char** words) {{ emulator::run_{kind}(words[1], {entry}); }}
"""


@dataclass(frozen=True)
class Call:
    """A function of a file, and the rules by which inputs become its arguments.

    Parameters
    ----------
    path : Path
        File of CUDA C++.
    entry : str
        A kernel, or a function of the host that launches.
    reads, writes, zeros : sequence of Binding
        Parameters that are arrays: read, written from NaN, written from zeros. One
        that is read and written is changed in place.
    numbers : sequence of (str, str)
        Parameters that are numbers, with their values: arithmetic on sizes of axes.
    grid, block : str or None
        Numbers of blocks and of threads, as arithmetic, for a kernel.
    shared : str
        Bytes of dynamic shared memory.
    defines : sequence of (str, str)
        Macros: arithmetic on sizes, or text.
    returns : sequence of str
        Names of the tensors that the function returns.
    """

    path: Path
    entry: str
    reads: Sequence[Binding] = ()
    writes: Sequence[Binding] = ()
    zeros: Sequence[Binding] = ()
    numbers: Sequence[tuple[str, str]] = ()
    grid: str | None = None
    block: str | None = None
    shared: str = "0"
    defines: Sequence[tuple[str, str]] = ()
    returns: Sequence[str] = ()


@dataclass(frozen=True)
class Prepared:
    """A call for certain inputs.

    Parameters
    ----------
    text : str
        The program as C++.
    options : tuple of str
        Options of the compiler.
    lines : tuple of str
        Description of the launch and of each argument, for the program.
    files : mapping of str to bytes
        Contents of the arrays that it reads, by parameter.
    names : mapping of str to str
        Tensors that it writes, by parameter or by the number of a result.
    """

    text: str
    options: tuple[str, ...]
    lines: tuple[str, ...]
    files: Mapping[str, bytes]
    names: Mapping[str, str]

    def program(self, mode: str) -> Path:
        """Return the program, compiled; `mode` is a key of `build.MODES`."""
        instrumented, _ = MODES[mode]
        library = runtime_library(mode)
        options = [*COMMON, *self.options, *instrumented, "main.cpp", str(library)]
        try:
            return compiled(options, {"main.cpp": self.text}, [SOURCES])
        except CompileError as error:
            raise UsageError(_refusal(str(error), self.text)) from None


def _refusal(said: str, text: str) -> str:
    """Return the sentence for a source that does not compile: first error, cause."""
    errors = re.findall(r"^(\S+?:\d+):(?:\d+:)? (?:fatal )?error: (.*)$", said, re.M)
    place, what = errors[0] if errors else ("the source", said.splitlines()[-1])
    code = blanked(text)
    beyond = [name for name, sign in _BEYOND.items() if re.search(sign, code)]
    cause = f"; it uses {', '.join(beyond)}, which the emulator lacks" if beyond else ""
    return f"`{place}` cannot be compiled for a CPU: {what}{cause}."


def prepared(call: Call, tensors: Stored) -> Prepared:
    """Return a call for the tensors of a file.

    Raises
    ------
    UsageError
        If an argument is not there, or no number can be made of an expression.
    """
    text = rewritten(call.path)
    entry = entry_of(text, call.entry)
    shapes = {name: stored["shape"] for name, stored in tensors.items()}
    sizes = named_axes(call.reads, shapes)
    for name, value in call.numbers:
        sizes[name] = evaluated(value, sizes)
    arguments = _Arguments(call, tensors, sizes)
    described = [arguments.line(name) for name in entry.parameters]
    _require_known(call, entry)
    main = _MAIN.format(kind="kernel" if entry.kernel else "host", entry=entry.name)
    return Prepared(
        text=f'#include "program.hpp"\n{text}{main}',
        options=(
            *("-w", "-fno-strict-aliasing", f"-iquote{call.path.parent.resolve()}"),
            *(_macro(name, value, sizes) for name, value in call.defines),
        ),
        lines=(*_launch(call, entry, sizes), str(len(described)), *described),
        files=arguments.files(entry.parameters),
        names={one.parameter: one.tensor for one in (*call.writes, *call.zeros)}
        | {f"result{i}": name for i, name in enumerate(call.returns)},
    )


def _macro(name: str, value: str, sizes: Mapping[str, Number]) -> str:
    try:
        return f"-D{name}={evaluated(value, sizes)}"
    except UsageError:
        return f"-D{name}={value}"


def _launch(call: Call, entry: Entry, sizes: Mapping[str, Number]) -> list[str]:
    """Return three lines: blocks, threads and bytes of shared memory of a kernel."""
    sized = call.grid is not None and call.block is not None
    if entry.kernel and not sized:
        msg = (
            f"`--grid` and `--block` must say how to launch the kernel "
            f"`{entry.name}`, such as --grid B*H --block 64."
        )
        raise UsageError(msg)
    if not entry.kernel and (call.grid is not None or call.block is not None):
        msg = (
            f"`--grid` and `--block` are for kernels, and `{entry.name}` is a function "
            "of the host: leave them out."
        )
        raise UsageError(msg)
    lines = []
    for extent in (call.grid, call.block):
        texts = [] if extent is None else pieces(extent)
        parts = [int(evaluated(text, sizes)) for text in texts]
        lines.append(" ".join(map(str, [*parts, 1, 1, 1][:3])))
    return [*lines, str(int(evaluated(call.shared, sizes)))]


def _require_known(call: Call, entry: Entry) -> None:
    """Refuse a binding of no parameter; other numbers may be names for expressions."""
    for one in (*call.reads, *call.writes, *call.zeros):
        if one.parameter not in entry.parameters:
            known = ", ".join(entry.parameters)
            msg = (
                f"`--read` and `--write` must name parameters of `{entry.name}` "
                f"({known}), got `{one.parameter}`."
            )
            raise UsageError(msg)


class _Arguments:
    """Arguments of one call, each found by the name of its parameter."""

    def __init__(
        self, call: Call, tensors: Stored, sizes: Mapping[str, Number]
    ) -> None:
        self._reads = {one.parameter: one for one in call.reads}
        self._zeros = {one.parameter for one in call.zeros}
        self._writes = {one.parameter: one for one in (*call.writes, *call.zeros)}
        self._tensors, self._sizes = tensors, sizes
        dtypes = [tensors[x.tensor]["dtype"] for x in call.reads if x.tensor in tensors]
        self._dtype = dtypes[0] if dtypes else "F32"

    def line(self, name: str) -> str:
        """Return the line of a parameter: name, kind, dtype, number, axes."""
        one = self._reads.get(name)
        if one is None and name in self._tensors and name not in self._writes:
            one = Binding(name, name, None)
        if one is not None and one.tensor in self._tensors:
            stored = self._tensors[one.tensor]
            kind = "both" if name in self._writes else "read"
            return _line(name, kind, stored["dtype"], "-", stored["shape"])
        if name in self._writes:
            return self._written(name)
        if one is not None and one.optional:
            return _line(name, "null", "-", "-", ())
        if one is None and name in self._sizes:
            return _line(name, "number", "-", repr(self._sizes[name]), ())
        wanted = one.tensor if one is not None else name
        known = ", ".join(f"`{tensor}`" for tensor in self._tensors)
        msg = (
            f"the parameter `{name}` must have a value, but there is neither a tensor "
            f"`{wanted}` (there are: {known}) nor a size or number of that name; add "
            "--read, --write or --number."
        )
        raise UsageError(msg)

    def _written(self, name: str) -> str:
        axes = self._writes[name].axes
        if axes is None:
            msg = f"`--write {name}` must say the axes, such as {name}=output[B,H,T,V]."
            raise UsageError(msg)
        shape = [int(evaluated(axis, self._sizes)) for axis in axes]
        kind = "zeros" if name in self._zeros else "write"
        return _line(name, kind, self._dtype, "-", shape)

    def files(self, parameters: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of every parameter that is read."""
        tensors = {
            name: self._reads[name].tensor if name in self._reads else name
            for name in parameters
        }
        return {
            name: bytes(self._tensors[tensor]["data"])
            for name, tensor in tensors.items()
            if tensor in self._tensors
        }


def _line(name: str, kind: str, dtype: str, number: str, shape: Sequence[int]) -> str:
    return " ".join(map(str, (name, kind, dtype, number, len(shape), *shape)))
