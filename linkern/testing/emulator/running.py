"""Runs of a program in the emulator: its tensors, and faults of its threads."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from linkern.testing.emulator.calls import Prepared
from linkern.testing.emulator.ways import SCHEDULES, Way
from linkern.testing.errors import UsageError

__all__ = ["Outcome", "address_layout", "run"]

# Exit codes of `program.hpp`, and those that the sanitizers are told to use.
_USAGE, _REPORTED = 2, 66
# Words of a sanitizer that cannot reserve its addresses.
_NO_ADDRESSES = ("ReserveShadowMemoryRange failed", "Make sure to compile with -fPIE")
_ENVIRONMENT = {
    "plain": {},
    "thread": {
        # Idle fibers count as threads, for which it would wait.
        "TSAN_OPTIONS": f"exitcode={_REPORTED} report_signal_unsafe=0 atexit_sleep_ms=0"
    },
    "address": {
        "ASAN_OPTIONS": f"detect_leaks=0 halt_on_error=0 exitcode={_REPORTED}",
        "UBSAN_OPTIONS": "halt_on_error=0",
    },
}


@dataclass(frozen=True)
class Outcome:
    """Results of one run.

    Parameters
    ----------
    tensors : mapping
        Tensors that it wrote, each with its dtype, shape and bytes; none if it failed.
    faults : tuple of str
        Undefined behaviour, each in a sentence with the line of the source.
    """

    tensors: Mapping[str, Mapping[str, Any]]
    faults: tuple[str, ...]


def run(prepared: Prepared, way: Way, mode: str, seconds: float) -> Outcome:
    """Run a call in a process of its own.

    Parameters
    ----------
    prepared : Prepared
        The call.
    way : Way
        Order of its threads.
    mode : {"plain", "thread", "address"}
        Sanitizer.
    seconds : float
        Time after which it is ended.

    Raises
    ------
    UsageError
        If it cannot be compiled, or its arguments have other types.
    """
    program = prepared.program(mode)
    first = f"{SCHEDULES.index(way.schedule)} {way.seed} {way.resident}"
    with TemporaryDirectory(prefix="linkern-emulate-") as place:
        folder = Path(place)
        text = "\n".join([first, *prepared.lines])
        (folder / "call.txt").write_text(text, encoding="utf-8")
        for name, data in prepared.files.items():
            (folder / f"{name}.bin").write_bytes(data)
        prefix = address_layout() if mode == "thread" else []
        try:
            done = subprocess.run(
                [*prefix, str(program), place],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=seconds,
                env={**os.environ, **_ENVIRONMENT[mode]},
                check=False,
            )
        except subprocess.TimeoutExpired:
            fault = f"the launch did not end within {seconds:g} s"
            return Outcome({}, (fault,))
        said = done.stderr.decode(errors="replace")
        if any(sign in said for sign in _NO_ADDRESSES):
            msg = (
                f"`--sanitize {mode}` must have terabytes of addresses, which cost no "
                "memory, but a limit is in the way; lift it: `ulimit -d unlimited`, or "
                "`--memory 1000000` of `linkern verify`."
            )
            raise UsageError(msg)
        if done.returncode == _USAGE:
            raise UsageError(said.strip().removeprefix("emulator: "))
        faults = _faults(said, done.returncode)
        return Outcome({} if faults else _written(folder, prepared.names), faults)


def address_layout() -> list[str]:
    """Return a command prefix that turns address randomization off, if allowed.

    ThreadSanitizer needs certain addresses. Without the prefix they may be free too.
    """
    prefix = ["setarch", "-R"]
    try:
        trial = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return prefix if trial.returncode == 0 else []


def _written(folder: Path, names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the tensors that a program wrote."""
    tensors = {}
    for line in (folder / "results.txt").read_text(encoding="utf-8").splitlines():
        parameter, dtype, *shape = line.split()
        data = (folder / f"{parameter}.bin").read_bytes()
        stored = {"dtype": dtype, "shape": [int(n) for n in shape], "data": data}
        tensors[names.get(parameter, parameter)] = stored
    return tensors


# Reports.

_PLACE = r"([\w.+-]+\.(?:cu|cuh|h|hpp|inl|inc):\d+)"
_UNDEFINED = re.compile(rf"^{_PLACE}(?::\d+)?: runtime error: (.*)$", re.MULTILINE)
_ACCESS = re.compile(
    r"^ *(?:Previous |As if |Atomic )*(read|write) of size (\d+)", re.I | re.MULTILINE
)
_FRAME = re.compile(rf"^ *#\d+ .*?{_PLACE}\b", re.MULTILINE)
_ASAN = re.compile(r"AddressSanitizer: (?!CHECK)([\w-]+)")


def _faults(said: str, code: int) -> tuple[str, ...]:
    """Return the faults that a program reported, each once."""
    faults = [f"{place}: {what}" for place, what in _UNDEFINED.findall(said)]
    for block in re.split(r"\n=+\n", f"\n{said}"):
        if "WARNING: ThreadSanitizer: data race" in block:
            faults.append(_race(block))
        elif _ASAN.search(block):
            faults.append(_out_of_bounds(block))
    faults += re.findall(r"^emulator: (.*)$", said, re.MULTILINE)
    if code != 0 and not faults:
        end = f"signal {-code}" if code < 0 else f"exit code {code}"
        last = said.strip().splitlines()[-1:] or ["nothing said"]
        faults.append(f"the program ended with {end}: {last[0]}")
    return tuple(dict.fromkeys(faults))


def _race(block: str) -> str:
    """Return the sentence of a data race: two accesses and their lines."""
    sides = []
    starts = [match.start() for match in _ACCESS.finditer(block)]
    for start, end in pairwise([*starts, len(block)]):
        blank = block.find("\n\n", start, end)
        frame = _FRAME.search(block, start, blank if blank >= 0 else end)
        access = _ACCESS.match(block, start)
        if access is not None:
            sides.append(f"{access[1].lower()} at {frame[1] if frame else 'unknown'}")
    both = " and ".join(sides[:2])
    return f"data race: {both} are not ordered by a barrier"


_WHERE = {
    "heap-buffer-overflow": "outside of an array",
    "use-after-poison": "outside of the `__shared__` variables",
    "stack-buffer-overflow": "outside of an array of the thread",
    "global-buffer-overflow": "outside of a variable of the file",
}


def _out_of_bounds(block: str) -> str:
    kind = _ASAN.search(block)
    access, frame = _ACCESS.search(block), _FRAME.search(block)
    what = f"{access[1].lower()} of {access[2]} bytes" if access else "access"
    name = kind[1] if kind else ""
    where = _WHERE.get(name, f"({name})")
    return f"{frame[1] if frame else 'unknown line'}: {what} {where}"
