"""Record of a campaign: one JSON report, from which it can be resumed."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from linkern._version import __version__
from linkern.testing.campaign.task import Task, Unjudged
from linkern.testing.errors import UsageError
from linkern.testing.report.grade import json_values
from linkern.testing.report.report import SCHEMA, Report
from linkern.testing.runner.results import RULES, environment

__all__ = ["entry", "key", "read", "text"]

_VERSIONS = {"schema": SCHEMA, "linkern": __version__, "rules": RULES}
# Fields of a plan on which no verdict depends.
_OF_NO_VERDICT = ("function", "jobs")


def key(task: Task) -> str:
    """Return all that a verdict depends on, as JSON: equal if the verdicts must be."""
    plan = task.plan
    values = {
        each.name: getattr(plan, each.name)
        for each in fields(plan)
        if each.name not in _OF_NO_VERDICT
    }
    files = {name: content.encode() for name, content in task.files.items()}
    if plan.inputs is not None:
        files[plan.inputs] = Path(plan.inputs).read_bytes()
    values |= {
        "contract": plan.contract.declared(),
        "files": {name: sha256(content).hexdigest() for name, content in files.items()},
        "versions": _versions(re.split("[.:]", plan.target)[0]),
    }
    return json.dumps(json_values(values), sort_keys=True, default=repr)


def entry(key: str, outcome: Report | Unjudged) -> dict[str, Any]:
    """Return a kernel's part of the record: its report, or why it has none."""
    settings = json.loads(key)
    if isinstance(outcome, Report):
        values = outcome.to_dict()
    else:
        values = {
            "target": settings["target"],
            "op": settings["op"],
            "verdict": outcome.verdict,
            "message": outcome.message,
        }
    return values | {"settings": settings}


def text(entries: Iterable[Mapping[str, Any]], *, seed: int, complete: bool) -> str:
    """Return the record as JSON."""
    values = {**_VERSIONS, "seed": seed, "complete": complete, "reports": [*entries]}
    return json.dumps(values, allow_nan=False) + "\n"


def read(path: Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Return the seed of a record, and its entries by the keys of their tasks.

    Entries of kernels that were not judged, because a worker ended or a task raised an
    exception, are left out.

    Raises
    ------
    UsageError
        If the file is no record, or that of another version.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        versions = {name: values[name] for name in _VERSIONS}
        seed, entries = int(values["seed"]), [*values["reports"]]
        settled = [one for one in entries if one["verdict"] not in ("lost", "error")]
        by_key = {json.dumps(one["settings"], sort_keys=True): one for one in settled}
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} is not the report of a campaign; leave --resume out."
        raise UsageError(msg) from error
    if versions != _VERSIONS:
        msg = (
            f"{path} was written by {_sentence(versions)}, and this is "
            f"{_sentence(_VERSIONS)}; leave --resume out, or name another file."
        )
        raise UsageError(msg)
    return seed, by_key


def _sentence(versions: Mapping[str, Any]) -> str:
    return (
        f"linkern {versions['linkern']} (rules {versions['rules']}, schema "
        f"{versions['schema']})"
    )


@cache
def _versions(package: str) -> dict[str, str]:
    """Return the versions of the libraries, and of what a package comes from."""
    names = _distributions().get(package, ())
    versions: dict[str, str] = environment()["libraries"]
    return versions | {name: metadata.version(name) for name in names}


@cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()
