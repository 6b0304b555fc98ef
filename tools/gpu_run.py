"""Do on a machine with a GPU all that can be done only there, in one run.

    python tools/gpu_run.py FOLDER           # everything
    python tools/gpu_run.py FOLDER --quick   # less of everything

wrappers
    Each wrapper of PTX against what the manual says of it; how sums are rounded.
tests
    ``pytest -m gpu``, those and all others.
small
    Every kind of call once, compared with NumPy (`gpu_small.py`).
verify
    `linkern verify` of our own operators on arrays of CuPy, each of some.
memcheck, racecheck
    The small calls again, watched by compute-sanitizer.
bench
    `linkern bench --device cuda`.

Each part is a process of its own: one that fails does not keep the others from
running. What each said is a file in FOLDER, beside `bench.json`, the reports of
`linkern verify`, and `summary.json` and `summary.txt`, which say on which machine, of
which commit, and how each part ended. Exit code: 0 if all that ran ended well, 1 if a
part failed, 2 without a GPU.
"""

import argparse
import json
import shutil
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
# Without a GPU they would be skipped, which is no success here.
TESTS = ("env", "LINKERN_REQUIRE=gpu", PYTHON, "-m", "pytest", "-n", "0", "-m", "gpu")
# One for each way in which kernels decay, erase and divide.
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


@dataclass(frozen=True)
class Part:
    """One process.

    Parameters
    ----------
    name : str
        Also of the file that keeps what it says.
    command : tuple of str
        What runs.
    seconds : int
        How long it may take.
    needs : str
        A program without which it cannot run; empty for none.
    """

    name: str
    command: tuple[str, ...]
    seconds: int = 600
    needs: str = ""


@dataclass(frozen=True)
class Ended:
    """How a part ended.

    Parameters
    ----------
    name : str
        Of the part.
    verdict : {"well", "failed", "not run"}
        In a word.
    why : str
        What went wrong, or what is missing; empty if it ended well.
    seconds : int
        How long it took.
    """

    name: str
    verdict: str
    why: str = ""
    seconds: int = 0


@dataclass(frozen=True)
class Summary:
    """The whole run."""

    machine: Accelerator
    commit: str
    parts: tuple[Ended, ...] = field(default=())

    @property
    def good(self) -> bool:
        """Whether nothing failed, and something ran."""
        verdicts = {part.verdict for part in self.parts}
        return "failed" not in verdicts and "well" in verdicts

    def lines(self) -> list[str]:
        """Return the same as lines of text."""
        width = max((len(part.name) for part in self.parts), default=0)
        return [
            *self.machine.lines(),
            f"commit {self.commit or 'unknown'}",
            *(
                f"{part.name:{width}}  {part.verdict:8} {part.seconds:5} s  {part.why}"
                for part in self.parts
            ),
        ]


def parts(folder: Path, *, quick: bool) -> list[Part]:
    """Return all parts, in the order in which they should be looked at."""
    small = str(TOOLS / "gpu_small.py")
    profile = "quick" if quick else "default"
    found = [
        Part("wrappers", (*TESTS, "-rP", "-k", "wrappers")),
        Part("tests", TESTS, 1200),
        Part("small", (PYTHON, small)),
    ]
    for operator in OPERATORS:
        given = ("--framework", "cupy", "--device", "cuda", "--profile", profile)
        # The first calls compile; CUDA reserves more than it uses.
        limits = ("--timeout", "300", "--memory", "64")
        dtypes = ("--dtype", "float32", "--dtype", "float16", "--dtype", "float64")
        name = f"verify-{operator}"
        report = ("--json", str(folder / f"{name}.json"))
        target = ("verify", f"linkern:{operator}", "--op", operator)
        words = (*LINKERN, *target, *given, *limits, *dtypes, *report)
        found.append(Part(name, words, 1200))
    for check in ("memcheck", "racecheck"):
        words = (SANITIZER, "--tool", check, "--error-exitcode", "1", PYTHON, small)
        found.append(Part(check, words, 1800, needs=SANITIZER))
    report = ("--json", str(folder / "bench.json"))
    more = ("--quick",) if quick else ()
    words = (*LINKERN, "bench", "--device", "cuda", *report, *more)
    found.append(Part("bench", words, 3600))
    return found


def run(part: Part, folder: Path, known: Callable[[str], str | None]) -> Ended:
    """Run a part; what it says goes to a file.

    Parameters
    ----------
    part : Part
        Which one.
    folder : Path
        Of files.
    known : callable
        From the name of a program to where it is, None for nowhere.
    """
    if part.needs and known(part.needs) is None:
        return Ended(part.name, "not run", f"{part.needs} is not on PATH")
    start = time.monotonic()
    with (folder / f"{part.name}.txt").open("w", encoding="utf-8") as said:
        try:
            code = subprocess.run(
                part.command,
                cwd=ROOT,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=part.seconds,
                check=False,
            ).returncode
            why = "" if code == 0 else f"exit code {code}; see {part.name}.txt"
        except subprocess.TimeoutExpired:
            why = f"not done after {part.seconds} s; see {part.name}.txt"
        except OSError as error:
            why = str(error)
    verdict = "failed" if why else "well"
    return Ended(part.name, verdict, why, round(time.monotonic() - start))


def commit() -> str:
    """Return the commit of the code, with a mark if it is changed."""
    words = ["git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def require_this_code() -> None:
    """Refuse to put the commit of one folder on what the code of another does."""
    where = Path(linkern.__file__).parents[1]
    if where != ROOT:
        msg = f"linkern is that of {where}; run `python -m pip install -e .` in {ROOT}."
        raise UsageError(msg)


def run_all(
    of: Sequence[Part],
    folder: Path,
    machine: Accelerator,
    known: Callable[[str], str | None] = shutil.which,
) -> Summary:
    """Run parts one after the other, and write after each how far it has come."""
    ended: list[Ended] = []
    summary = Summary(machine, commit())
    for part in of:
        ended.append(run(part, folder, known))
        summary = Summary(machine, summary.commit, tuple(ended))
        sys.stdout.write(summary.lines()[-1] + "\n")
        write(folder / "summary.json", json.dumps(asdict(summary), indent=1))
        write(folder / "summary.txt", "\n".join(summary.lines()))
    return summary


def write(path: Path, text: str) -> None:
    """Write a file of text that ends with its last line."""
    path.write_text(text + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for all files; made if not there")
    parser.add_argument("--quick", action="store_true", help="less of everything")
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
    by_name: Mapping[str, Part] = {
        part.name: part for part in parts(folder, quick=options.quick)
    }
    strangers = sorted({*(options.part or ())} - {*by_name})
    if strangers:
        parser.error(f"--part must be one of {', '.join(by_name)}, got {strangers[0]}")
    chosen = [by_name[name] for name in by_name if name in (options.part or by_name)]
    return 0 if run_all(chosen, folder, machine).good else 1


if __name__ == "__main__":
    sys.exit(main())
