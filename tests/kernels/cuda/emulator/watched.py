"""Kernels under a sanitizer, in a process of its own, and its reports.

A sanitizer must be loaded before Python. One process takes many runs, since starting
one costs more than most runs; a line on stderr marks the beginning of each. Each run is
in a forked child that ends with the first report: a fault may corrupt the process, and
a sanitizer reports the same fault only once.
"""

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, NoReturn

from linkern.testing.emulator.running import address_layout
from tests.kernels.cuda.emulator.build import require_compiler
from tests.kernels.cuda.emulator.device import Change, Emulator, LaunchFailed, Way

__all__ = ["Run", "reports"]

ROOT = Path(__file__).parents[4]
_BEGINS = "=== run "
_LIBRARY = {"thread": "libtsan.so", "address": "libasan.so"}
_OPTIONS = {
    "thread": {
        # Idle fibers count as threads, for which it would wait.
        "TSAN_OPTIONS": "exitcode=0 halt_on_error=1 report_signal_unsafe=0"
        " atexit_sleep_ms=0"
    },
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0 exitcode=0",
        "UBSAN_OPTIONS": "halt_on_error=1 exitcode=0",
    },
}
_REPORTED = ("ThreadSanitizer: ", "AddressSanitizer: ", "runtime error: ", "failed: ")


class Run(NamedTuple):
    """A function that launches kernels on an emulator with these options.

    Parameters
    ----------
    function : str
        ``package.module:name``, or ``package.module:TABLE:key``.
    changed : sequence of Change
        Changes of the source text.
    way : Way
        Order of threads and copies.
    faults : sequence of Change
        Planted faults, all of which are compiled in.
    file, fault : str and int, or None
        File of the faults, and number of the active one.
    """

    function: str
    changed: Sequence[Change] = ()
    way: Way = Way()
    faults: Sequence[Change] = ()
    file: str | None = None
    fault: int | None = None

    def do(self, mode: str) -> None:
        """Call the function on a new emulator."""
        module, *names = self.function.split(":")
        function = import_module(module)
        for name in names:
            table = isinstance(function, dict)
            function = function[name] if table else getattr(function, name)
        changes = [Change(*x) for x in self.changed]
        faults = [Change(*x) for x in self.faults]
        planted = {"faults": faults, "file": self.file, "fault": self.fault}
        function(Emulator(self.way, mode, changes, **planted))


def reports(mode: str, runs: Sequence[Run]) -> list[list[str]]:
    """Return the reports of each run: of the sanitizer, or of a failed assertion.

    Parameters
    ----------
    mode : {"thread", "address"}
        ThreadSanitizer, or AddressSanitizer with the one for undefined behaviour.
    runs : sequence of Run
        Runs, in order.
    """
    require_compiler()
    library = subprocess.run(
        ["gcc", f"-print-file-name={_LIBRARY[mode]}"],
        capture_output=True,
        text=True,
        check=True,
    )
    environment = {
        **os.environ,
        **_OPTIONS[mode],
        "LD_PRELOAD": library.stdout.strip(),
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
    }
    command = [*address_layout(), sys.executable, "-m", __name__, mode]
    serialized = [run._replace(way=run.way.__dict__) for run in runs]
    done = subprocess.run(
        command,
        input=json.dumps(serialized),
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


def main(mode: str) -> None:
    """Run the runs that come on stdin as JSON."""
    del os.environ["LD_PRELOAD"]  # not for compilers
    runs = [Run(*fields) for fields in json.load(sys.stdin)]
    for module in {run.function.split(":")[0] for run in runs}:
        import_module(module)  # once, and not in each child
    for number, run in enumerate(runs):
        # Unbuffered, as the sanitizer writes to the same file.
        _write(f"{_BEGINS}{number}")
        child = os.fork()
        if child == 0:
            _end(run._replace(way=Way(**run.way)), mode)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            _write(f"failed: signal {os.WTERMSIG(status)}")
        elif status:
            sys.exit(1)


def _end(run: Run, mode: str) -> NoReturn:
    """Do a run, and end the process."""
    status = 0
    try:
        run.do(mode)
    except (AssertionError, LaunchFailed) as e:
        _write(f"failed: {type(e).__name__}")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _write(line: str) -> None:
    os.write(2, f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
