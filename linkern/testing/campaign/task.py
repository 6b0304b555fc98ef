"""Task of a campaign: one kernel, judged by whichever process takes it up."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from linkern._version import __version__
from linkern.testing.api import report_of, reports
from linkern.testing.errors import UsageError
from linkern.testing.report.report import Report
from linkern.testing.runner.plan import Plan
from linkern.testing.target.copies import copied, renamed

__all__ = ["Task", "Unjudged", "judged"]


@dataclass(frozen=True)
class Task:
    """Kernel of a campaign, as it is sent to a worker.

    Parameters
    ----------
    plan : Plan
        Its plan, with one job.
    files : mapping of str to str
        The files of a candidate, by their names; empty for a module that is installed.
    version : str
        The version of linkern that sends it.
    """

    plan: Plan
    files: Mapping[str, str] = field(default_factory=dict)
    version: str = __version__


@dataclass(frozen=True)
class Unjudged:
    """Reason why a kernel has no report.

    Parameters
    ----------
    verdict : {"refused", "error", "lost"}
        It cannot be loaded or called; its task raised an exception; its worker ended.
    message : str
        The same in one sentence.
    """

    verdict: str
    message: str


def judged(task: Task) -> Report | Unjudged:
    """Judge the kernel of a task in this process; nothing that it does is raised."""
    if task.version != __version__:
        return Unjudged(
            "error",
            f"the worker has linkern {__version__}, and the campaign {task.version}; "
            "install one version on both.",
        )
    original = task.plan.target.rpartition(":")[0]
    with copied(task.files) as folder:
        copy = str(folder / Path(original).name) if task.files else original
        target = task.plan.target.replace(original, copy, 1)
        return renamed(_outcome(replace(task.plan, target=target)), copy, original)


def _outcome(plan: Plan) -> Report | Unjudged:
    report = report_of(plan)
    try:
        for _, so_far in reports(plan):
            report = so_far
    except UsageError as error:
        return Unjudged("refused", str(error))
    except Exception as error:
        return Unjudged("error", f"{type(error).__name__}: {error}")
    return report
