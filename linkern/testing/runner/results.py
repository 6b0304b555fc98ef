"""What a run found, as data; and its rendering as JSON. No check is run here."""

import json
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from linkern._version import __version__
from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.diagnosis.diagnose import Diagnosis
from linkern.testing.diagnosis.fingerprint import Fingerprint
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import Call

__all__ = [
    "RULES",
    "SCHEMA",
    "CheckResult",
    "Counterexample",
    "Report",
    "environment",
    "write_json",
]

# Version of the rules: a verdict can change with it, and with nothing else of ours.
RULES = "2"
# Version of the JSON report: names are added within one, and never changed.
SCHEMA = 2

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
    errors : tuple of tuple of float, optional
        Error as a multiple of the bound, ``(T, V)``, in the head of the first wrong
        entry.
    allowed : tuple of float, optional
        The least and the greatest number that the entry of an output may be.
    outputs : tuple of array or None
        What the calls returned, in ``(B, H, T, V)``.
    interface : Interface
        How the target is called.
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
    errors: tuple[tuple[float, ...], ...] | None = None
    allowed: tuple[float, float] | None = None
    outputs: tuple[NDArray[Any] | None, ...] = ()
    interface: Interface = field(default_factory=Interface)
    died: bool = False

    @classmethod
    def of(
        cls,
        violation: Violation,
        tally: Tally,
        interface: Interface,
        *,
        died: bool = False,
    ) -> "Counterexample":
        """Return the counterexample that a violation and its calls make."""
        return cls(
            repr(violation.problem),
            tuple(tally.calls),
            None if violation.index is None else list(violation.index),
            violation.got,
            violation.exact,
            violation.bound,
            violation.ratio,
            violation.errors,
            violation.allowed,
            tuple(tally.outputs),
            interface,
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
    again : str
        The command that runs it again.
    curve : tuple of float
        The largest error as a multiple of its bound by position in the sequence, in the
        worst example.
    ratios : tuple of float
        The same, the largest of each comparison.
    """

    name: str
    statement: str
    verdict: str
    examples: int = 0
    worst_ratio: float | None = None
    counterexample: Counterexample | None = None
    message: str = ""
    seconds: float = 0.0
    again: str = ""
    curve: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True)
class Report:
    """The verdict of a run, with everything needed to understand and repeat it.

    Parameters
    ----------
    target, op : str
        What was judged, as what.
    contract, environment : dict
        What it declared; the machine, the libraries and the options of the run.
    checks : tuple of CheckResult
        In the order in which they ran.
    diagnosis : Diagnosis or None
        The named cause of the failures, if one was found.
    fingerprint : Fingerprint or None
        What integers measured of its arithmetic, if that was asked for.
    complete : bool
        Whether the run came to its end.
    """

    target: str
    op: str
    contract: dict[str, Any]
    environment: dict[str, Any]
    checks: tuple[CheckResult, ...]
    diagnosis: Diagnosis | None = None
    fingerprint: Fingerprint | None = None
    complete: bool = True

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
                shown = _fields(check.counterexample)
                for hidden in ("calls", "outputs", "interface"):
                    del shown[hidden]
                entry["counterexample"] = shown
            checks.append(entry)
        values = {
            "schema": SCHEMA,
            "linkern": __version__,
            "rules": RULES,
            "target": self.target,
            "op": self.op,
            "contract": self.contract,
            "environment": self.environment,
            "complete": self.complete,
            "verdict": self.verdict,
            "checks": checks,
            "diagnosis": self.diagnosis and _fields(self.diagnosis),
            "fingerprint": self.fingerprint and self.fingerprint.to_json(),
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
        values = {
            "schema": SCHEMA,
            "linkern": __version__,
            "rules": RULES,
            "reports": listed,
        }
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
    if isinstance(value, list | tuple | frozenset):
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
