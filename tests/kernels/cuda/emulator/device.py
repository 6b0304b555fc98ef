"""The emulator as a device: launches under a schedule, and counters."""

import ctypes
import re
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from linkern.kernels.cuda.launch import Launch
from linkern.kernels.cuda.sources import source
from linkern.testing.emulator.ways import LANDINGS, SCHEDULES, Way
from tests.kernels.cuda.emulator.build import kernel_library, runtime_library

__all__ = ["Change", "Emulator", "LaunchFailed", "Way"]

COUNTED = (
    *("switches", "barriers", "meetings", "copies", "products"),
    *("matrix_loads", "matrix_passes", "accesses", "bank_passes", "least_bank_passes"),
)

# The scheduler runs one launch at a time, like a stream of a GPU.
_ALONE = Lock()


class LaunchFailed(Exception):
    """Undefined behaviour of a kernel, such as a deadlock or a misaligned row."""


class Change(NamedTuple):
    """A change of source text, such as a planted fault.

    Parameters
    ----------
    old, new : str
        Text and its replacement. If a part of the old text is between backquotes, only
        that part is replaced.
    place : int, optional
        Number of the occurrence, from zero. Default: the only one. A text without any
        occurrence belongs to another file.
    """

    old: str
    new: str
    place: int | None = None

    def span(self, text: str) -> tuple[int, int] | None:
        """Return the span to replace in a source; None if there is none."""
        before, *parts = self.old.split("`")
        whole = re.escape(before + "".join(parts))
        starts = [match.start() for match in re.finditer(whole, text)]
        if not starts:
            return None
        if self.place is None and len(starts) > 1:
            msg = f"{self.old!r} is there {len(starts)} times: say which one"
            raise ValueError(msg)
        start = starts[self.place or 0]
        if not parts:
            return start, start + len(before)
        return start + len(before), start + len(before + parts[0])


def planted(text: str, changed: Sequence[Change], faults: Sequence[Change]) -> str:
    """Return a source with changes, and with faults that a launch can switch on."""
    seams = [(x.span(text), x.new) for x in changed]
    for number, fault in enumerate(faults):
        span = fault.span(text)
        if span is not None:
            seams.append((span, _either(number, text[slice(*span)], fault.new)))
    parts, end = [], 0
    for (start, stop), new in sorted(seam for seam in seams if seam[0] is not None):
        if start < end:
            msg = f"{text[start:stop]!r} is changed twice"
            raise ValueError(msg)
        parts += [text[end:start], new]
        end = stop
    return "".join([*parts, text[end:]])


def _either(number: int, old: str, new: str) -> str:
    """Return code that is the new one if a launch has the fault of this number."""
    condition = f"emulator::planted({number})"
    if old.endswith(";"):
        return f"if ({condition}) {{ {new} }} else {{ {old} }}"
    return f"({condition} ? ({new}) : ({old}))"


class Emulator:
    """An implementation of `linkern.kernels.cuda.launch.Device` on NumPy arrays.

    Parameters
    ----------
    way : Way
        Order of threads and copies.
    mode : {"plain", "thread", "address"}
        Sanitizer; its library must be preloaded.
    changed : sequence of Change
        Changes of the source text.
    multiprocessors, shared : int
        Number of multiprocessors; bytes of shared memory that a block may have.
    faults : sequence of Change
        Statements and expressions, all of which are compiled in.
    file, fault : str and int, optional
        File of the faults, and number of the active one, from zero. Default: none.

    Attributes
    ----------
    counts : dict of str to int
        Counters of the last launch.
    launches : list of Launch
        All of them, in order.
    """

    library = "numpy"

    def __init__(
        self,
        way: Way | None = None,
        mode: str = "plain",
        changed: Sequence[Change] = (),
        multiprocessors: int = 2,
        shared: int = 99 << 10,
        *,
        faults: Sequence[Change] = (),
        file: str | None = None,
        fault: int | None = None,
    ) -> None:
        self.way, self._mode = way or Way(), mode
        self._changed, self._faults = changed, faults
        self._file, self._fault = file, fault
        self._runtime = ctypes.CDLL(str(runtime_library(mode)))
        self._runtime.emulator_launch.restype = ctypes.c_char_p
        self.counts: dict[str, int] = {}
        self.launches: list[Launch] = []
        self._recorded: list[Launch] | None = None
        self.multiprocessors, self.shared = multiprocessors, shared

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return a new array filled with NaN."""
        array = np.empty(shape, dtype)
        array.reshape(-1).view(np.uint8)[...] = 0xFF
        return array

    def address(self, x: Any) -> int:
        """Return the address of the first entry of an array."""
        address: int = x.__array_interface__["data"][0]
        return address

    def on_host(self, x: Any) -> Any:
        """Return a copy."""
        return x.copy()

    def launch(self, launch: Launch) -> None:
        """Run a kernel.

        Raises
        ------
        LaunchFailed
            If the kernel has undefined behaviour.
        """
        if self._recorded is not None:
            self._recorded.append(launch)
            return
        self.launches.append(launch)
        faults = self._faults if launch.file == self._file else ()
        path = kernel_library(
            planted(source(launch.file), self._changed, faults),
            launch.kernel,
            self._mode,
            faulty=bool(self._changed or faults),
        )
        with _ALONE:
            self._run(launch, ctypes.CDLL(str(path)).entry)

    def _run(self, launch: Launch, entry: Any) -> None:
        way = self.way
        self._runtime.emulator_configure(
            SCHEDULES.index(way.schedule),
            LANDINGS.index(way.landing),
            int(way.truncates),
            ctypes.c_ulonglong(way.seed),
            way.resident,
            0,  # all threads must reach all barriers, which is portable
            -1 if self._fault is None else self._fault,
        )
        parameters = (ctypes.c_void_p * 1)(launch.parameters.ctypes.data)
        dimensions = [
            (ctypes.c_uint * 3)(n, 1, 1) for n in (launch.blocks, launch.threads)
        ]
        failure = self._runtime.emulator_launch(
            entry, *dimensions, ctypes.c_ulonglong(launch.shared), parameters
        )
        if failure is not None:
            raise LaunchFailed(failure.decode())
        counts = (ctypes.c_longlong * len(COUNTED))()
        self._runtime.emulator_statistics(counts)
        self.counts = dict(zip(COUNTED, counts, strict=True))

    def captured(self, work: Callable[[], object]) -> Callable[[], None]:
        """Record launches without running them; return a function that runs them."""
        self._recorded = recorded = []
        try:
            work()
        finally:
            self._recorded = None

        def replay() -> None:
            for launch in recorded:
                self.launch(launch)

        return replay
