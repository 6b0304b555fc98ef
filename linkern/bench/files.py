"""Runs as files of JSON: times in seconds, memory in bytes."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from linkern.bench.cuda.machine import Accelerator
from linkern.bench.goals import Outcome, outcomes
from linkern.bench.machine import Machine
from linkern.bench.records import Row, Run
from linkern.bench.suites import Suite
from linkern.bench.timing import Spread

__all__ = ["read_run", "to_json", "write", "write_run"]

_ROW = ("task", "length", "peer", "summary", "seconds", "error", "remark")
_FIELDS = {
    "cpu": (*_ROW[:4], "threads", *_ROW[4:], "extra_bytes", "extra_by", "foreign"),
    "cuda": (*_ROW, "timed_by"),
}


def write(data: Mapping[str, Any], path: Path) -> None:
    """Write values that JSON can hold."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    path.write_text(text, encoding="utf-8")


def write_run(run: Run, path: Path) -> None:
    """Write a run of peers on a CPU or a GPU."""
    write(to_json(run), path)


def to_json(run: Run) -> dict[str, Any]:
    """Return a run as values that JSON can hold."""
    cuda = run.suite.name == "cuda"
    return {
        "schema": run.suite.schema,
        "machine": asdict(run.machine),
        "commit": run.commit,
        **({} if cuda else {"threads": run.threads}),
        "seed": run.seed,
        "rows": [_row(run, row) for row in run.rows],
        **(_bandwidths(run) if cuda else _scaling(run)),
        "goals": [(_share if cuda else _goal)(x) for x in outcomes(run)],
    }


def _row(run: Run, row: Row) -> dict[str, Any]:
    ratio, fraction = run.ratio(row), run.fraction(row)
    values = asdict(row)
    fields = {name: values[name] for name in _FIELDS[run.suite.name]}
    to_linkern = {"ratio_to_linkern": None if ratio is None else asdict(ratio)}
    if run.suite.name == "cuda":
        return {**fields, "share_of_copying": run.floor(row), **to_linkern}
    of_gemm = None if fraction is None else asdict(fraction)
    return {**fields, **to_linkern, "fraction_of_gemm_peak": of_gemm}


def _scaling(run: Run) -> dict[str, Any]:
    tasks = {
        task.name: {
            "summary": task.summary,
            "exponents": {
                peer: run.exponent(task.name, peer) for peer in run.names(task.name)
            },
            "overtakes_softmax_at": run.crossover(task.name),
        }
        for task in run.tasks()
    }
    return {"tasks": tasks}


def _bandwidths(run: Run) -> dict[str, Any]:
    def at(task: str, length: int) -> float | None:
        bandwidth = run.bandwidth(task, length)
        return None if bandwidth is None else bandwidth.median

    rates = {
        task.name: {str(x): at(task.name, x) for x in run.lengths(task.name)}
        for task in run.tasks()
    }
    return {"bytes_per_second": rates}


def _goal(x: Outcome) -> dict[str, Any]:
    return {
        "task": x.goal.task,
        "tokens": x.length,
        "goal": x.goal.text(),
        "reached": x.value,
        "compared_with": x.peer,
        "verdict": x.verdict,
    }


def _share(x: Outcome) -> dict[str, Any]:
    return {
        "task": x.goal.task,
        "length": x.length,
        "goal": x.goal.least,
        "reached": x.value,
        "verdict": x.verdict,
    }


def read_run(path: Path, suite: Suite) -> Run:
    """Return a run of a suite that `write_run` wrote.

    Raises `OSError` if the file cannot be read, and `ValueError` if it has another
    schema or is damaged.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != suite.schema:
            msg = f"{path} has schema {data['schema']}, not {suite.schema}."
            raise ValueError(msg)
        machine = Accelerator if suite.name == "cuda" else Machine
        return Run(
            suite,
            machine(**data["machine"]),
            data["commit"],
            data["seed"],
            tuple(_read_row(suite, row) for row in data["rows"]),
            *([] if suite.name == "cuda" else [data["threads"]]),
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        msg = f"{path} was not written by `{suite.command}`."
        raise ValueError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path} is not text."
        raise ValueError(msg) from error


def _read_row(suite: Suite, row: Mapping[str, Any]) -> Row:
    """Return a row without the numbers that follow from others."""
    fields = {name: row[name] for name in _FIELDS[suite.name] if name in row}
    if fields["seconds"] is not None:
        fields["seconds"] = Spread(**fields["seconds"])
    return Row(**fields)
