"""Judge kernels that models and servers call on a GPU, several at once.

    python tools/gpu_published.py FOLDER                  # ends within 8 minutes
    python tools/gpu_published.py FOLDER --seconds 240 --jobs 4

The subjects are the kernels of `entry_points.toml` and the Triton kernels of the
catalogue whose package is installed, then linkern's own operators on CuPy. Each is
judged by `linkern verify --device cuda` in a process of its own, with its share of the
time. The compiled kernels of all are kept in one folder. What has not ended at the
deadline is stopped, and said to be unfinished.

FOLDER gets a line for each subject as it ends: `published.txt` for people, and
`published.jsonl` with the checks that ran and the smallest input of the first failure.
Exit code: 0 if every subject that was started in time has a verdict, 1 if one has none,
2 if there is no subject.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import entry_points

from linkern.adapters.catalogue import PUBLISHED

ROOT = Path(__file__).parents[1]
LINKERN = (sys.executable, "-c", "from linkern.cli import main; main()")
OPERATORS = (
    "linear_attention",
    "retention",
    "simple_gla",
    "gla",
    "delta_rule",
    "gated_delta_rule",
    "kda",
)
# Those of them whose 16-bit operands tensor cores multiply as they are.
NARROW = ("linear_attention", "retention", "simple_gla")
# What Triton multiplies, unless a kernel asks for more.
PRECISION = {
    "float32": "operand_dtype=tfloat32",
    "bfloat16": "operand_dtype=bfloat16",
}
# Share of the time of a run that is for laws; the rest is for imports and compilers.
SHARE = 0.8
# The least and the most seconds of one subject, and of one of its calls.
LEAST, MOST, CALL = 30.0, 240.0, 200.0
# Seconds between two looks at the processes.
PAUSE = 0.05
# Verdicts of a check that was judged.
JUDGED = ("passed", "failed", "xfailed", "error", "inconclusive")


@dataclass(frozen=True)
class Subject:
    """One kernel to judge.

    Parameters
    ----------
    target, op : str
        As for ``linkern verify``.
    framework : str
        Array library of its inputs.
    words : tuple of str
        Other options: dtypes, declarations, keyword arguments.
    """

    target: str
    op: str
    framework: str
    words: tuple[str, ...] = ()

    def command(self, seconds: float, report: Path) -> tuple[str, ...]:
        """Return the options of the command that judges it."""
        device = ("--framework", self.framework, "--device", "cuda")
        limits = ("--seconds", f"{seconds:.0f}", "--timeout", f"{CALL:.0f}")
        target = ("verify", self.target, "--op", self.op)
        return (*target, *device, *self.words, *limits, "--json", str(report))


@dataclass(frozen=True)
class Ended:
    """Result of one subject.

    Parameters
    ----------
    target, op : str
        Of the subject.
    verdict : str
        That of the report; ``none`` if there is no report, ``unfinished`` if the time
        was over.
    ran, passed : int
        The number of laws that were judged, and of those that hold.
    failed : tuple of str
        The laws that do not hold.
    first : str
        The first failure; or why there is no verdict.
    seconds : float
        Duration.
    example : dict
        The smallest input of the first failure.
    """

    target: str
    op: str
    verdict: str
    ran: int = 0
    passed: int = 0
    failed: tuple[str, ...] = ()
    first: str = ""
    seconds: float = 0.0
    example: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Return the result in one line."""
        laws = f"{self.passed} of {self.ran} laws hold" if self.ran else ""
        said = "; ".join(text for text in (laws, self.first) if text)
        return f"{self.verdict:12} {self.target} as {self.op} ({said})"


def published() -> Iterator[tuple[str, Subject]]:
    """Yield published Triton kernels, each with the package that it is in.

    As models and servers call them first, then the others of the catalogue.
    """
    names = set[str]()
    for kernel in entry_points.kernels():
        names.add(kernel.name)
        words = _words(kernel.dtype or "float32", kernel.declare, kernel.options)
        package = kernel.name.partition(".")[0].partition(":")[0]
        yield package, Subject(kernel.name, kernel.op, "torch", words)
    for entry in PUBLISHED:
        if entry.interpret and entry.target not in names:
            names.add(entry.target)
            told, passed = map(_texts, (entry.declare, entry.options))
            words = _words(entry.dtypes[0], told, passed)
            yield entry.package, Subject(entry.target, entry.op, "torch", words)


def _texts(pairs: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in pairs.items()]


def _words(
    dtype: str, declared: Iterable[str], options: Iterable[str]
) -> tuple[str, ...]:
    """Return the options of the command, with the precision of tensor cores."""
    told = (x for text in (*declared, PRECISION[dtype]) for x in _declare(text))
    passed = (word for text in options for word in ("--option", text))
    return ("--dtype", dtype, *told, *passed)


def subjects(
    known: Callable[[str], Any] = find_spec,
) -> tuple[list[Subject], list[str]]:
    """Return the subjects, and a sentence for each package that is missing."""
    chosen, missing = list[Subject](), dict[str, int]()
    for package, subject in published():
        if known(package) is None:
            missing[package] = missing.get(package, 0) + 1
        else:
            chosen.append(subject)
    if known("cupy") is None:
        missing["cupy"] = len(OPERATORS) * len(PRECISION)
    else:
        chosen += (on_cupy(op, dtype) for op in OPERATORS for dtype in PRECISION)
    return chosen, [
        f"{package} is not installed: {number} subjects are left out"
        for package, number in missing.items()
    ]


def on_cupy(op: str, dtype: str) -> Subject:
    """Return an operator of linkern on CuPy; in float32 it needs no declaration."""
    narrow = dtype == "bfloat16" and op in NARROW
    told = _declare(PRECISION[dtype]) if narrow else ()
    return Subject(f"linkern:{op}", op, "cupy", ("--dtype", dtype, *told))


def _declare(text: str) -> tuple[str, str]:
    return "--declare", text


@dataclass
class _Running:
    subject: Subject
    process: subprocess.Popen[bytes]
    start: float
    report: Path
    log: Path

    def ended(self, *, over: bool) -> Ended | None:
        """Return its result; None while it runs and the time is not over."""
        code = self.process.poll()
        if code is None and not over:
            return None
        seconds = round(time.monotonic() - self.start, 1)
        if code is None:
            # It leads a group with all that it has started.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            name = self.subject
            return Ended(name.target, name.op, "unfinished", seconds=seconds)
        return result(self.subject, code, self.report, self.log, seconds)


def result(
    subject: Subject, code: int, report: Path, log: Path, seconds: float
) -> Ended:
    """Return the result of a subject from its report, or from its last words."""
    if not report.exists():
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        words = " ".join(line.strip() for line in lines[-6:]).strip()
        first = f"exit code {code}: {words}"
        return Ended(subject.target, subject.op, "none", first=first, seconds=seconds)
    read = json.loads(report.read_text(encoding="utf-8"))
    checks = [check for check in read["checks"] if check["verdict"] in JUDGED]
    failed = [check for check in checks if check["verdict"] in ("failed", "error")]
    held = [check for check in checks if check["verdict"] == "passed"]
    return Ended(
        subject.target,
        subject.op,
        read["verdict"],
        len(checks),
        len(held),
        tuple(check["name"] for check in failed),
        f"{failed[0]['name']}: {failed[0]['message']}" if failed else "",
        seconds,
        (failed[0].get("counterexample") or {}) if failed else {},
    )


def judge(
    chosen: Sequence[Subject],
    folder: Path,
    seconds: float,
    jobs: int,
    program: Sequence[str] = LINKERN,
) -> list[Ended]:
    """Judge subjects side by side; write a line for each as it ends.

    Parameters
    ----------
    chosen : sequence of Subject
        In order of importance.
    folder : Path
        Folder of the two files.
    seconds : float
        Time of all of them together.
    jobs : int
        Number of processes.
    program : sequence of str
        Program that takes the options of `Subject.command`.
    """
    deadline = time.monotonic() + seconds
    each = min(MOST, max(LEAST, SHARE * seconds * jobs / max(len(chosen), 1)))
    waiting, running, ended = [*enumerate(chosen)], list[_Running](), list[Ended]()
    with tempfile.TemporaryDirectory() as scratch:
        while waiting or running:
            left = deadline - time.monotonic()
            while waiting and len(running) < jobs and left > 0:
                number, subject = waiting.pop(0)
                budget = min(each, SHARE * left)
                running.append(_start(subject, number, budget, Path(scratch), program))
            for one in [*running]:
                outcome = one.ended(over=left <= 0)
                if outcome is not None:
                    running.remove(one)
                    ended.append(outcome)
                    _write(folder, outcome)
            if left <= 0:
                for _, subject in waiting:
                    outcome = Ended(subject.target, subject.op, "unfinished")
                    ended.append(outcome)
                    _write(folder, outcome)
                return ended
            time.sleep(PAUSE)
    return ended


def _start(
    subject: Subject, number: int, seconds: float, scratch: Path, program: Sequence[str]
) -> _Running:
    report, log = scratch / f"{number}.json", scratch / f"{number}.txt"
    kept = {
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "CUPY_CACHE_DIR": str(scratch / "cupy"),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*program, *subject.command(seconds, report)],
            cwd=ROOT,
            env={**os.environ, **kept},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return _Running(subject, process, time.monotonic(), report, log)


def _write(folder: Path, outcome: Ended) -> None:
    for name, text in (
        ("published.txt", outcome.line()),
        ("published.jsonl", json.dumps(asdict(outcome))),
    ):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
    sys.stdout.write(f"{outcome.line()}\n")
    sys.stdout.flush()


def main(words: Sequence[str] | None = None, program: Sequence[str] = LINKERN) -> int:
    """Judge all subjects that can be judged here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for the two files; made if needed")
    parser.add_argument("--seconds", type=float, default=450, help="default: 450")
    parser.add_argument("--jobs", type=int, default=8, help="processes; default: 8")
    parser.add_argument("--only", default="", help="subjects whose name contains it")
    options = parser.parse_args(words)
    chosen, missing = subjects()
    chosen = [one for one in chosen if options.only in one.target]
    for sentence in missing:
        sys.stdout.write(f"{sentence}\n")
    if not chosen:
        sys.stdout.write("there is no subject to judge\n")
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    ended = judge(chosen, options.folder, options.seconds, options.jobs, program)
    late = sum(one.verdict == "unfinished" for one in ended)
    sys.stdout.write(f"{len(ended) - late} subjects judged, {late} unfinished\n")
    return 1 if any(one.verdict == "none" for one in ended) else 0


if __name__ == "__main__":
    sys.exit(main())
