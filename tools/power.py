"""Measure the power of the referee: mutants caught, correct kernels failed, and time.

    python tools/power.py RESULTS.jsonl                    # all kernels, three seeds
    python tools/power.py RESULTS.jsonl --kernels correct  # or: mutants, or some names
    python tools/power.py RESULTS.jsonl --report           # tables of what is there

A run is one kernel with one seed: all checks, in float32 and float64, in the profile
default. A run of a mutant ends at the first check that fails. Each run is a line of the
file as soon as it has ended, and runs that are in the file are not repeated, so a
measurement can be interrupted and resumed. It exits with 1 if a mutant has survived a
seed, if a correct kernel has failed, or if too many of its checks are inconclusive.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# Two processes on two cores; threads of BLAS would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from linkern.testing import Plan, run
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.spec.contract import Contract

DTYPES = ("float32", "float64")
SEEDS = (0, 1, 2)
# The largest share of checks of correct kernels that may be inconclusive.
INCONCLUSIVE = 0.02

HEAD = (
    "| operator | mutants | caught | correct | failed | inconclusive | seconds |",
    "|---|---|---|---|---|---|---|",
)

Run = tuple[str, int]
Line = dict[str, Any]


def judged(name: str, seed: int, profile: str) -> Line:
    """Return the line of one run."""
    correct = name in CORRECT
    kernel = CORRECT[name] if correct else MUTANTS[name]
    plan = Plan(
        target=f"kernel:{name}",
        op=kernel.op,
        contract=Contract(**kernel.contract),
        dtypes=DTYPES,
        profile=profile,
        seed=seed,
        shrink=False,
        diagnose=False,
        fail_fast=not correct,
        function=kernel.kernel,
    )
    began = time.process_time()
    results = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    by_verdict = Counter(x.verdict for x in results if x.verdict not in INAPPLICABLE)
    silent = ("passed", "inconclusive")
    return {
        "kernel": name,
        "op": kernel.op,
        "correct": correct,
        "profile": profile,
        "seed": seed,
        "verdicts": dict(by_verdict),
        "failed": [
            f"{x.name}: {x.message}"
            for x in results
            if x.verdict not in (*silent, *INAPPLICABLE)
        ],
        "inconclusive": [x.name for x in results if x.verdict == "inconclusive"],
        "seconds": round(time.process_time() - began, 1),
    }


def chosen(kernels: Sequence[str]) -> list[str]:
    """Return the names of kernels, of ``correct``, of ``mutants``; of all if empty."""
    groups = {"correct": [*CORRECT], "mutants": [*MUTANTS]}
    names = [n for x in kernels or groups for n in groups.get(x, [x])]
    unknown = {*names} - {*CORRECT, *MUTANTS}
    if unknown:
        msg = f"`--kernels` must be correct, mutants or names of them, got {unknown}."
        raise SystemExit(msg)
    return names


def lines_of(file: Path) -> list[Line]:
    """Return the lines of a file, those of kernels that there are."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return [x for x in lines if x["kernel"] in {*CORRECT, *MUTANTS}]


def measure(file: Path, runs: Iterable[Run], profile: str, jobs: int) -> None:
    """Add the lines of the runs that a file does not have."""
    there = {(x["kernel"], x["seed"], x["profile"]) for x in lines_of(file)}
    missing = [(n, seed) for n, seed in runs if (n, seed, profile) not in there]
    # A fork would copy the locks of threads that other libraries started.
    fresh = get_context("spawn")
    with (
        ProcessPoolExecutor(jobs, fresh) as pool,
        file.open("a", encoding="utf-8") as out,
    ):
        waiting = [pool.submit(judged, *one, profile) for one in missing]
        for number, future in enumerate(as_completed(waiting), start=1):
            line = future.result()
            out.write(json.dumps(line) + "\n")
            out.flush()
            what = line["failed"][:1] or ["passed"]
            head = f"{number}/{len(missing)} {line['kernel']} seed {line['seed']}"
            sys.stderr.write(f"{head}: {what[0]} ({line['seconds']} s)\n")


def report(lines: Sequence[Line]) -> tuple[str, bool]:
    """Return the tables, and whether all is as it should be."""
    mutants = [x for x in lines if not x["correct"]]
    correct = [x for x in lines if x["correct"]]
    survived = [x for x in mutants if not x["failed"]]
    failed = [x for x in correct if x["failed"]]
    checks = sum(sum(x["verdicts"].values()) for x in correct)
    unproved = sum(len(x["inconclusive"]) for x in correct)
    share = unproved / max(checks, 1)
    text = [
        f"runs of mutants: {len(mutants)}, caught {len(mutants) - len(survived)}",
        f"runs of correct kernels: {len(correct)}, failed {len(failed)}",
        f"checks of correct kernels: {checks}, inconclusive {unproved} ({share:.1%})",
        "",
        *HEAD,
        *_rows(lines),
    ]
    for title, these in (("survived", survived), ("failed though right", failed)):
        text += ["", f"{title}:"] * bool(these)
        text += [f"- {_named(x)} {'; '.join(x['failed'])}".rstrip() for x in these]
    where = Counter(name for x in correct for name in x["inconclusive"])
    text += ["", "inconclusive on correct kernels:"] * bool(where)
    text += [f"- {name}: {count}" for name, count in where.most_common()]
    good = not survived and not failed and share <= INCONCLUSIVE
    return "\n".join(text) + "\n", good


def _named(line: Line) -> str:
    return f"`{line['kernel']}` ({line['op']}), seed {line['seed']}:"


def _rows(lines: Sequence[Line]) -> list[str]:
    rows = []
    ordered = sorted(lines, key=lambda x: (x["op"], x["kernel"]))
    for op, of_op in groupby(ordered, key=lambda x: x["op"]):
        by_kernel = [[*x] for _, x in groupby(of_op, key=lambda x: x["kernel"])]
        mutants = [x for x in by_kernel if not x[0]["correct"]]
        correct = [x for x in by_kernel if x[0]["correct"]]
        caught = sum(all(line["failed"] for line in x) for x in mutants)
        failed = sum(any(line["failed"] for line in x) for x in correct)
        unproved = sum(len(line["inconclusive"]) for x in correct for line in x)
        seconds = max((line["seconds"] for x in correct for line in x), default=0.0)
        cells = (op, len(mutants), caught, len(correct), failed, unproved, seconds)
        rows.append(f"| {' | '.join(str(x) for x in cells)} |")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing and print the tables; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--kernels", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--profile", default="default")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args(arguments)
    if not options.report:
        names = chosen(options.kernels)
        runs = [(name, seed) for seed in options.seeds for name in names]
        measure(options.file, runs, options.profile, options.jobs)
    text, good = report(lines_of(options.file))
    sys.stdout.write(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
