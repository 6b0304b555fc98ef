"""What a run found, as data; and its rendering as JSON. No check is run here."""

import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np

from linkern._version import __version__
from linkern.testing.judging import Violation
from linkern.testing.worker import Call

__all__ = [
    "RULES",
    "CheckResult",
    "Counterexample",
    "Report",
    "environment",
    "write_json",
]

# Version of the rules: a verdict can change with it, and with nothing else of ours.
RULES = "1"

# From best to worst; the verdict of a run is its worst, inapplicable checks aside.
_SEVERITY = ("passed", "xfailed", "inconclusive", "error", "failed")


@dataclass(frozen=True)
class Counterexample:
    """The smallest input found that breaks a law.

    Parameters
    ----------
    input : str
        Its sizes, kind and knobs.
    calls : tuple of Call
        The calls that show it, with their inputs; the last one is the odd one out.
    index : list of int or None
        First wrong entry in ``(B, H, T, V)``.
    died : bool
        Whether the target crashed or hung: the input is not the smallest then.
    got, exact, bound, ratio : float or None
        The entry, the exact one, what a correct kernel may be off by, and the error as
        a multiple of that.
    """

    input: str
    calls: tuple[Call, ...]
    index: list[int] | None = None
    got: float | None = None
    exact: float | None = None
    bound: float | None = None
    ratio: float | None = None
    died: bool = False

    @classmethod
    def of(
        cls, violation: Violation, calls: tuple[Call, ...], *, died: bool = False
    ) -> "Counterexample":
        """Return the counterexample that a violation and its calls make."""
        return cls(
            repr(violation.problem),
            calls,
            None if violation.index is None else list(violation.index),
            violation.got,
            violation.exact,
            violation.bound,
            violation.ratio,
            died,
        )


@dataclass(frozen=True)
class CheckResult:
    """The verdict of one check.

    Parameters
    ----------
    name, statement : str
        The law.
    verdict : {"passed", "failed", "xfailed", "unsupported", "inconclusive", "error"}
        "unsupported": the law does not apply; "inconclusive": no bound could be proved
        or no example was run; "error": it could not be run to its end.
    examples : int
        Inputs tried.
    worst_ratio : float or None
        Largest error as a multiple of its bound.
    counterexample : Counterexample or None
        The smallest failing input.
    message : str
        What was observed, or why the check does not apply.
    seconds : float
        Wall time.
    """

    name: str
    statement: str
    verdict: str
    examples: int = 0
    worst_ratio: float | None = None
    counterexample: Counterexample | None = None
    message: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Report:
    """The verdict of a run, with everything needed to understand and repeat it."""

    target: str
    op: str
    contract: dict[str, Any]
    environment: dict[str, Any]
    checks: tuple[CheckResult, ...]

    @property
    def verdict(self) -> str:
        """The worst verdict of all checks that apply; inconclusive if none does."""
        ran = [c.verdict for c in self.checks if c.verdict != "unsupported"]
        return max(ran, key=_SEVERITY.index, default="inconclusive")

    @property
    def exit_code(self) -> int:
        """0 all passed, 1 a check failed, 3 nothing or not everything was concluded."""
        codes = {"passed": 0, "xfailed": 0, "failed": 1, "error": 1, "inconclusive": 3}
        return codes[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; numbers that JSON lacks become strings."""
        checks = []
        for check in self.checks:
            entry = _fields(check)
            if check.counterexample is not None:
                entry["counterexample"] = _fields(check.counterexample)
                del entry["counterexample"]["calls"]
            checks.append(entry)
        values = {
            "linkern": __version__,
            "rules": RULES,
            "target": self.target,
            "op": self.op,
            "contract": self.contract,
            "environment": self.environment,
            "verdict": self.verdict,
            "checks": checks,
        }
        finite: dict[str, Any] = _finite(values)
        return finite


def write_json(reports: Sequence[Report], path: Path) -> None:
    """Write one report as it is, several as a list under `reports`.

    The file appears whole or not at all.
    """
    values: dict[str, Any]
    if len(reports) == 1:
        values = reports[0].to_json()
    else:
        listed = [report.to_json() for report in reports]
        values = {"linkern": __version__, "rules": RULES, "reports": listed}
    draft = path.with_name(path.name + ".part")
    text = json.dumps(values, indent=2, allow_nan=False) + "\n"
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, without copying the arrays inside them."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def environment(**run: Any) -> dict[str, Any]:
    """Describe the machine, the libraries and the options of a run."""
    libraries = ("numpy", "hypothesis", "torch", "jax", "cupy", "array-api-strict")
    versions = {}
    for name in libraries:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    blas = cast(dict[str, Any], np.show_config(mode="dicts"))
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libraries": versions,
        "blas": blas.get("Build Dependencies", {}).get("blas", {}).get("name", ""),
        "executable": Path(sys.executable).name,
        **run,
    }
