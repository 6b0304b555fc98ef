"""Answer all questions to a GPU in one run of 9 minutes, or test it for hours.

    python tools/gpu_run.py FOLDER                # 9 minutes, on one card
    python tools/gpu_run.py FOLDER --part ncu     # one part alone; repeatable
    python tools/gpu_run.py FOLDER --long         # everything, as long as it takes

compilers-TASK
    The peers of one task of `linkern bench` compile, beside the parts before `calls`;
    it is then ended, and its times are of no use, nor the configurations that they
    choose meanwhile.
wrappers
    Each PTX wrapper against the PTX manual; how tensor cores round sums.
small
    Small calls of every kind, compared with NumPy (`gpu_small.py`).
calls
    Whole calls beside those of others, and copying in two ways: `linkern bench`.
shapes
    Each tile shape of the forward pass, beside what the model predicts
    (`gpu_shapes.py`).
ncu
    Figures of Nsight Compute for each kernel (`gpu_calls.py`).
verdicts
    `linkern verify` of published kernels and of our own operators
    (`gpu_published.py`).

With ``--long`` the last three take longer, and these come besides:

tests
    ``pytest -m gpu``.
verify-NAME
    `linkern verify` of our own operators on CuPy arrays, in four dtypes.
memcheck, racecheck
    The small calls again under compute-sanitizer.

Each part is a process of its own, and a failure does not stop the others. A part that
has its time used up is ended, and so are all at the end of the 9 minutes: what they
wrote so far stays. FOLDER gets the output of each part, `bench.json`, the reports of
`linkern verify`, and `summary.json` and `summary.txt` with the machine, the commit and
the result of each part. Exit code: 0 if all parts that ran succeeded, 1 if one failed,
2 without a GPU.
"""

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import linkern
from linkern.bench.cuda.machine import Accelerator, this_device
from linkern.testing import UsageError

ROOT = Path(__file__).parents[1]
TOOLS = Path(__file__).parent
PYTHON = sys.executable
LINKERN = (PYTHON, "-c", "from linkern.cli import main; main()")
# Without a GPU these tests would be skipped, which must count as a failure here.
TESTS = ("env", "LINKERN_REQUIRE=gpu", PYTHON, "-m", "pytest", "-n", "0", "-m", "gpu")
# Together they use every kind of decay, erasure and normalization of the kernels.
OPERATORS = (
    "linear_attention",
    "retention",
    "simple_gla",
    "gla",
    "delta_rule",
    "gated_delta_rule",
    "kda",
)
SANITIZER = "compute-sanitizer"
# Seconds of the short run.
SHORT = 540
# Tasks of `linkern bench` at one length.
TASKS = (
    *("causal", "wide", "float32", "delta", "delta-wide", "gradient", "decode-1024"),
    *("kda-wide", "delta-gradient-wide"),
)
KERNELS = "regex:chunk_|state_passing|recurrent|decode"
# Sections of Nsight Compute.
SECTIONS = (
    *("LaunchStats", "Occupancy", "SpeedOfLight", "InstructionStats"),
    *("WarpStateStats", "SchedulerStats", "MemoryWorkloadAnalysis"),
)


@dataclass(frozen=True)
class Part:
    """One process of the run.

    Parameters
    ----------
    name : str
        Also names the file of its output.
    command : tuple of str
        Command line.
    seconds : int
        Time limit.
    needs : str
        Program that it requires; empty for none.
    beside : str
        Name of the part before which it is ended: it runs beside those before that
        one. Empty for a part that others wait for.
    """

    name: str
    command: tuple[str, ...]
    seconds: int = 600
    needs: str = ""
    beside: str = ""


@dataclass(frozen=True)
class Ended:
    """Result of a part.

    Parameters
    ----------
    name : str
        Of the part.
    verdict : {"well", "failed", "not run"}
        Result in a word.
    why : str
        Reason of a failure, or what is missing; empty on success.
    seconds : int
        Duration.
    """

    name: str
    verdict: str
    why: str = ""
    seconds: int = 0


@dataclass(frozen=True)
class Summary:
    """Results of a run."""

    machine: Accelerator
    commit: str
    parts: tuple[Ended, ...] = field(default=())

    @property
    def good(self) -> bool:
        """True if something ran and nothing failed."""
        verdicts = {part.verdict for part in self.parts}
        return "failed" not in verdicts and "well" in verdicts

    def lines(self) -> list[str]:
        """Return the summary as lines of text."""
        width = max((len(part.name) for part in self.parts), default=0)
        return [
            *self.machine.lines(),
            f"commit {self.commit or 'unknown'}",
            *(
                f"{part.name:{width}}  {part.verdict:8} {part.seconds:5} s  {part.why}"
                for part in self.parts
            ),
        ]


def short_parts(folder: Path) -> list[Part]:
    """Return the parts of the 9 minutes: right first, then fast, then why."""
    bench = (*LINKERN, "bench", "--device", "cuda", "--length", "4096")
    tasks = [word for name in TASKS for word in ("--task", name)]
    # On a busy machine FLA would choose configurations that later processes read.
    apart = ("env", "FLA_CACHE_RESULTS=0", *bench, "--seconds", "600")
    sections = [word for name in SECTIONS for word in ("--section", name)]
    ncu = (
        "ncu",
        "--kernel-name",
        KERNELS,
        *sections,
        PYTHON,
        str(TOOLS / "gpu_calls.py"),
    )
    return [
        *(
            Part(f"compilers-{name}", (*apart, "--task", name), SHORT, beside="calls")
            for name in TASKS
        ),
        Part("wrappers", (*TESTS, "-rP", "-k", "wrappers"), 40),
        Part("small", (PYTHON, str(TOOLS / "gpu_small.py")), 110),
        Part(
            "calls",
            (*bench, *tasks, "--seconds", "240", "--json", str(folder / "bench.json")),
            255,
        ),
        Part("shapes", (PYTHON, str(TOOLS / "gpu_shapes.py")), 35),
        Part("ncu", ncu, 45, needs="ncu"),
        Part(
            "verdicts",
            (PYTHON, str(TOOLS / "gpu_published.py"), str(folder), "--seconds", "50"),
            55,
        ),
    ]


def long_parts(folder: Path) -> list[Part]:
    """Return all parts in order of importance, as long as they take."""
    short = {part.name: part for part in short_parts(folder)}
    small = short["small"].command
    verdicts = (PYTHON, str(TOOLS / "gpu_published.py"), str(folder))
    all_parts = [
        short["wrappers"],
        Part("tests", TESTS, 1200),
        Part("small", small),
        short["shapes"],
        Part("ncu", short["ncu"].command, needs="ncu"),
        Part("verdicts", verdicts),
        *(verify(folder, operator) for operator in OPERATORS),
    ]
    for check in ("memcheck", "racecheck"):
        words = (SANITIZER, "--tool", check, "--error-exitcode", "1", *small)
        all_parts.append(Part(check, words, 1800, needs=SANITIZER))
    report = ("--json", str(folder / "bench.json"))
    words = (*LINKERN, "bench", "--device", "cuda", *report)
    return [*all_parts, Part("calls", words, 3600)]


def verify(folder: Path, operator: str) -> Part:
    """Return the part that judges one of our operators on CuPy arrays."""
    device = ("--framework", "cupy", "--device", "cuda", "--profile", "default")
    # First calls compile, and CUDA reserves more memory than it uses.
    limits = ("--timeout", "300", "--memory", "64")
    names = ("float32", "float16", "bfloat16", "float64")
    dtypes = tuple(word for name in names for word in ("--dtype", name))
    name = f"verify-{operator}"
    report = ("--json", str(folder / f"{name}.json"))
    target = ("verify", f"linkern:{operator}", "--op", operator)
    words = (*LINKERN, *target, *device, *limits, *dtypes, *report)
    return Part(name, words, 1200)


class Running:
    """A part that has been started, and the file of its output.

    Parameters
    ----------
    part : Part
        Process to run.
    folder : Path
        Folder of output files.
    which : callable
        Returns the path of a program, or None.
    """

    def __init__(
        self, part: Part, folder: Path, which: Callable[[str], str | None]
    ) -> None:
        self.part, self._start, self._process = part, time.monotonic(), None
        self._missing = self._failure = ""
        if part.needs and which(part.needs) is None:
            self._missing = f"{part.needs} is not on PATH"
            return
        with (folder / f"{part.name}.txt").open("w", encoding="utf-8") as output:
            try:
                self._process = subprocess.Popen(
                    part.command,
                    cwd=ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # ended together with all that it started
                )
            except OSError as error:
                self._failure = str(error)

    def ended(self, seconds: float) -> Ended:
        """Wait for so many seconds, end the part, and return its result."""
        name, why = self.part.name, self._failure
        if self._missing:
            return Ended(name, "not run", self._missing)
        if self._process is not None:
            try:
                code = self._process.wait(max(0.0, seconds))
                why = "" if code == 0 else f"exit code {code}; see {name}.txt"
            except subprocess.TimeoutExpired:
                self._kill()
                why = f"not done after {seconds:.0f} s; see {name}.txt"
        verdict = "failed" if why else "well"
        return Ended(name, verdict, why, round(time.monotonic() - self._start))

    def stopped(self) -> Ended:
        """End a part that ran beside others: that it had no more time is no failure."""
        if self._process is not None and self._process.poll() is None:
            self._kill()
            taken = round(time.monotonic() - self._start)
            return Ended(
                self.part.name, "well", f"ended before {self.part.beside}", taken
            )
        return self.ended(0)

    def _kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def commit() -> str:
    """Return the commit of the code, marked if there are changes."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def require_this_code() -> None:
    """Fail if the imported linkern is not that of this checkout."""
    where = Path(linkern.__file__).parents[1]
    if where != ROOT:
        msg = f"linkern is that of {where}; run `python -m pip install -e .` in {ROOT}."
        raise UsageError(msg)


def run_all(
    parts_to_run: Sequence[Part],
    folder: Path,
    machine: Accelerator,
    which: Callable[[str], str | None] = shutil.which,
    seconds: float = math.inf,
) -> Summary:
    """Run parts in order, within some seconds; write the summary after each of them."""
    deadline = time.monotonic() + seconds
    ended: list[Ended] = []
    summary = Summary(machine, commit())
    beside: list[Running] = []
    for part in parts_to_run:
        ending = [x for x in beside if x.part.beside == part.name]
        beside = [x for x in beside if x not in ending]
        ended += [x.stopped() for x in ending]
        if time.monotonic() >= deadline:
            ended.append(Ended(part.name, "not run", f"the {seconds:g} s were over"))
        elif part.beside:
            beside.append(Running(part, folder, which))
        else:
            left = min(part.seconds, deadline - time.monotonic())
            ended.append(Running(part, folder, which).ended(left))
        summary = Summary(machine, summary.commit, tuple(ended))
        if ended:
            sys.stdout.write(summary.lines()[-1] + "\n")
        keep(summary, folder)
    summary = Summary(machine, summary.commit, (*ended, *(x.stopped() for x in beside)))
    keep(summary, folder)
    return summary


def keep(summary: Summary, folder: Path) -> None:
    """Write the summary for programs and for people."""
    write(folder / "summary.json", json.dumps(asdict(summary), indent=1))
    write(folder / "summary.txt", "\n".join(summary.lines()))


def write(path: Path, text: str) -> None:
    """Write a text file with a final newline."""
    path.write_text(text + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Run all parts, or those that were chosen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for all files; made if not there")
    parser.add_argument("--long", action="store_true", help="everything: hours")
    parser.add_argument("--part", action="append", help="only this one; repeatable")
    options = parser.parse_args(words)
    try:
        require_this_code()
        machine = this_device()
    except UsageError as reason:
        sys.stdout.write(f"{reason}\n")
        return 2
    folder = options.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    all_parts = (long_parts if options.long else short_parts)(folder)
    by_name: Mapping[str, Part] = {part.name: part for part in all_parts}
    unknown = sorted({*(options.part or ())} - {*by_name})
    if unknown:
        parser.error(f"--part must be one of {', '.join(by_name)}, got {unknown[0]}")
    chosen = [by_name[name] for name in by_name if name in (options.part or by_name)]
    seconds = math.inf if options.long else SHORT
    return 0 if run_all(chosen, folder, machine, seconds=seconds).good else 1


if __name__ == "__main__":
    sys.exit(main())
