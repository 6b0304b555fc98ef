"""Kernels under a sanitizer, in a process of its own, and what it had to report.

A sanitizer must be loaded before Python is. One process takes many runs, since starting
one costs more than most of them; a line on stderr tells where the next begins.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from tests.emulator.build import require_compiler
from tests.emulator.device import Change, Emulator, LaunchFailed, Way

__all__ = ["Run", "reports"]

ROOT = Path(__file__).parents[2]
_BEGINS = "=== run "
_LIBRARY = {"thread": "libtsan.so", "address": "libasan.so"}
_OPTIONS = {
    # A race is reported once, whichever of its sides was first; no stack is needed.
    "thread": {"TSAN_OPTIONS": "exitcode=0 report_signal_unsafe=0 history_size=2"},
    "address": {"ASAN_OPTIONS": "detect_leaks=0 halt_on_error=0 exitcode=0"},
}
_REPORTED = ("ThreadSanitizer: ", "AddressSanitizer: ", "runtime error: ")


class Run(NamedTuple):
    """A function that launches kernels on the device it is given.

    Parameters
    ----------
    function : str
        ``package.module:name``, or ``package.module:TABLE:key``.
    changed : sequence of Change
        Planted faults.
    way : Way
        Of what is left open.
    """

    function: str
    changed: Sequence[Change] = ()
    way: Way = Way()


def reports(mode: str, runs: Sequence[Run]) -> list[list[str]]:
    """Return what a sanitizer said about each run, a line for each finding.

    Parameters
    ----------
    mode : {"thread", "address"}
        ThreadSanitizer, or AddressSanitizer with the one for undefined behaviour.
    runs : sequence of Run
        What to run.
    """
    require_compiler()
    found = subprocess.run(
        ["gcc", f"-print-file-name={_LIBRARY[mode]}"],
        capture_output=True,
        text=True,
        check=True,
    )
    environment = {
        **os.environ,
        **_OPTIONS[mode],
        "LD_PRELOAD": found.stdout.strip(),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    command = [*_fixed(), sys.executable, "-m", __name__, mode]
    given = [run._replace(way=run.way.__dict__) for run in runs]
    done = subprocess.run(
        command,
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    first, *parts = done.stderr.split(_BEGINS)
    if done.returncode or first or len(parts) != len(runs):
        msg = (
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}"
        )
        raise RuntimeError(msg)
    return [
        [line for line in part.splitlines() if any(x in line for x in _REPORTED)]
        for part in parts
    ]


def _fixed() -> list[str]:
    """Return words before a command that give it addresses that are not random.

    ThreadSanitizer asks for room at some. Where a container forbids to ask for them,
    it may find it all the same.
    """
    words = ["setarch", "-R"]
    asked = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if asked.returncode == 0 else []


def main(mode: str) -> None:
    """Run what comes on stdin."""
    del os.environ["LD_PRELOAD"]  # compilers are not to be watched
    for number, given in enumerate(json.load(sys.stdin)):
        run = Run(*given)
        # The sanitizer writes to the same file, without a buffer.
        os.write(2, f"{_BEGINS}{number}\n".encode())
        module, *names = run.function.split(":")
        function = import_module(module)
        for name in names:
            table = isinstance(function, dict)
            function = function[name] if table else getattr(function, name)
        changes = [Change(*change) for change in run.changed]
        with suppress(LaunchFailed, AssertionError):  # that is for others to judge
            function(Emulator(Way(**run.way), mode, changes))


if __name__ == "__main__":
    main(*sys.argv[1:])
