"""Run everything that needs a GPU, in one run.

    python tools/gpu_run.py FOLDER           # everything
    python tools/gpu_run.py FOLDER --quick   # less of everything

wrappers
    Each PTX wrapper against the PTX manual; how tensor cores round sums.
tests
    ``pytest -m gpu``, these tests and all others.
small
    Small calls of every kind, compared with NumPy (`gpu_small.py`).
published
    `linkern verify` of kernels that models and servers call (`gpu_published.py`).
verify
    `linkern verify` of some of our own operators on CuPy arrays.
memcheck, racecheck
    The small calls again under compute-sanitizer.
bench
    `linkern bench --device cuda`.

Each part is a process of its own, and a failure does not stop the others. FOLDER gets
the output of each part, `bench.json`, the reports of `linkern verify`, and
`summary.json` and `summary.txt` with the machine, the commit and the result of each
part. Exit code: 0 if all parts that ran succeeded, 1 if one failed, 2 without a GPU.
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
    """

    name: str
    command: tuple[str, ...]
    seconds: int = 600
    needs: str = ""


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


def parts(folder: Path, *, quick: bool) -> list[Part]:
    """Return all parts in order of importance."""
    small = str(TOOLS / "gpu_small.py")
    profile = "quick" if quick else "default"
    all_parts = [
        Part("wrappers", (*TESTS, "-rP", "-k", "wrappers")),
        Part("tests", TESTS, 1200),
        Part("small", (PYTHON, small)),
        Part("published", (PYTHON, str(TOOLS / "gpu_published.py"), str(folder))),
    ]
    for operator in OPERATORS:
        device = ("--framework", "cupy", "--device", "cuda", "--profile", profile)
        # First calls compile, and CUDA reserves more memory than it uses.
        limits = ("--timeout", "300", "--memory", "64")
        names = ("float32", "float16", "bfloat16", "float64")
        dtypes = tuple(word for name in names for word in ("--dtype", name))
        name = f"verify-{operator}"
        report = ("--json", str(folder / f"{name}.json"))
        target = ("verify", f"linkern:{operator}", "--op", operator)
        words = (*LINKERN, *target, *device, *limits, *dtypes, *report)
        all_parts.append(Part(name, words, 1200))
    for check in ("memcheck", "racecheck"):
        words = (SANITIZER, "--tool", check, "--error-exitcode", "1", PYTHON, small)
        all_parts.append(Part(check, words, 1800, needs=SANITIZER))
    report = ("--json", str(folder / "bench.json"))
    more = ("--quick",) if quick else ()
    words = (*LINKERN, "bench", "--device", "cuda", *report, *more)
    all_parts.append(Part("bench", words, 3600))
    return all_parts


def run(part: Part, folder: Path, which: Callable[[str], str | None]) -> Ended:
    """Run a part and write its output to a file.

    Parameters
    ----------
    part : Part
        Process to run.
    folder : Path
        Folder of output files.
    which : callable
        Returns the path of a program, or None.
    """
    if part.needs and which(part.needs) is None:
        return Ended(part.name, "not run", f"{part.needs} is not on PATH")
    start = time.monotonic()
    with (folder / f"{part.name}.txt").open("w", encoding="utf-8") as output:
        try:
            code = subprocess.run(
                part.command,
                cwd=ROOT,
                stdout=output,
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
) -> Summary:
    """Run parts in order; write the summary after each of them."""
    ended: list[Ended] = []
    summary = Summary(machine, commit())
    for part in parts_to_run:
        ended.append(run(part, folder, which))
        summary = Summary(machine, summary.commit, tuple(ended))
        sys.stdout.write(summary.lines()[-1] + "\n")
        write(folder / "summary.json", json.dumps(asdict(summary), indent=1))
        write(folder / "summary.txt", "\n".join(summary.lines()))
    return summary


def write(path: Path, text: str) -> None:
    """Write a text file with a final newline."""
    path.write_text(text + "\n", encoding="utf-8")


def main(words: Sequence[str] | None = None) -> int:
    """Run all parts, or those that were chosen."""
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
    unknown = sorted({*(options.part or ())} - {*by_name})
    if unknown:
        parser.error(f"--part must be one of {', '.join(by_name)}, got {unknown[0]}")
    chosen = [by_name[name] for name in by_name if name in (options.part or by_name)]
    return 0 if run_all(chosen, folder, machine).good else 1


if __name__ == "__main__":
    sys.exit(main())
