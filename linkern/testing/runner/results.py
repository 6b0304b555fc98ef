"""Results of the checks of a run, and the machine that ran them."""

import platform
import sys
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from linkern.testing.checks.findings import Tally, Violation
from linkern.testing.errors import INAPPLICABLE
from linkern.testing.target.loading import Interface
from linkern.testing.target.protocol import Call

__all__ = ["RULES", "SEVERITY", "CheckResult", "Counterexample", "environment"]

# Version of the rules: a verdict can change with it, and with nothing else of ours.
RULES = "3"

# Verdicts of one check from best to worst; that of a run is its worst, and those of
# checks that were not judged do not count.
SEVERITY = (*INAPPLICABLE, "passed", "xfailed", "inconclusive", "error", "failed")


@dataclass(frozen=True)
class Counterexample:
    """The smallest input found that breaks a law.

    Parameters
    ----------
    input : str
        Its sizes, kind and drawn parameters.
    calls : tuple of Call
        The calls that show it, with their inputs; the last one is the wrong one.
    index : list of int or None
        First wrong entry.
    errors : tuple of tuple of float, optional
        Error as a multiple of the bound, ``(T, V)``, in the head of the first wrong
        entry.
    allowed : tuple of float, optional
        The least and the greatest number that the entry of an output may be.
    outputs : tuple of array or None
        Outputs of the calls, in ``(B, H, T, V)``.
    interface : Interface
        Signature of the target.
    died : bool
        True if the target crashed or hung: the input is then not shrunk.
    repeats : bool or None
        True if the last call is wrong in a new process as well; False if it is right
        there, so that it depends on earlier calls; None if that was not tried.
    axes : str
        Axes of what is wrong, as in ``(B, H, T, V)``: those of an output, or those of
        an input for its gradient; empty for a state.
    got, expected, bound, ratio : float or None
        The entry, what it is compared with (the exact entry, or that of another call),
        the error bound of a correct kernel, and the error as a multiple of it.
    """

    input: str
    calls: tuple[Call, ...]
    index: list[int] | None = None
    got: float | None = None
    expected: float | None = None
    bound: float | None = None
    ratio: float | None = None
    errors: tuple[tuple[float, ...], ...] | None = None
    allowed: tuple[float, float] | None = None
    outputs: tuple[NDArray[Any] | None, ...] = ()
    interface: Interface = field(default_factory=Interface)
    died: bool = False
    repeats: bool | None = None
    axes: str = ""

    @property
    def entry(self) -> str:
        """The first wrong entry, and the axes that it is counted along."""
        return f"{self.index} of {self.axes}" if self.axes else str(self.index)

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
        letters = violation.axes.upper().replace("G", "H")
        return cls(
            repr(violation.problem),
            tuple(tally.calls),
            None if violation.index is None else list(violation.index),
            violation.got,
            violation.expected,
            violation.bound,
            violation.ratio,
            violation.errors,
            violation.allowed,
            tuple(tally.outputs),
            interface,
            died,
            axes=f"({', '.join(letters)})" if letters else "",
        )


@dataclass(frozen=True)
class CheckResult:
    """The verdict of one check.

    Parameters
    ----------
    name, statement : str
        The law.
    verdict : str
        "passed", "failed", "xfailed"; "inconclusive": no bound could be proved or no
        example was run; "error": it could not be run to its end; "not_applicable": the
        law says nothing of this operator; "skipped": the target or its declarations
        leave it out; "covered": another check judges it.
    examples : int
        Inputs tried.
    worst_ratio : float or None
        Largest error as a multiple of its bound.
    counterexample : Counterexample or None
        The smallest failing input.
    message : str
        Observation, or the reason why the law was not judged.
    seconds : float
        Wall time.
    again : str
        The command that runs it again.
    curve : tuple of float
        The largest error as a multiple of its bound by position in the sequence, in the
        worst example.
    ratios : tuple of float
        The same, the largest of each comparison.
    remedies : tuple of str
        What to do, all of it, to have a skipped law judged.
    dtypes : tuple of str
        The dtypes in which a law that was kept was judged.
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
    remedies: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    @property
    def applies(self) -> bool:
        """True if the law was judged, or should have been."""
        return self.verdict not in INAPPLICABLE


# Distributions whose versions a report names.
LIBRARIES = (
    "numpy",
    "hypothesis",
    "torch",
    "triton",
    "jax",
    "cupy",
    "array-api-strict",
)


def environment(**run: Any) -> dict[str, Any]:
    """Describe the machine, the libraries and the options of a run."""
    versions = {}
    for name in LIBRARIES:
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
