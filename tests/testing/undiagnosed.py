"""Judge a target without what follows a failed check, which takes most of the time."""

from linkern.testing.api import plan_of, reports

__all__ = ["undiagnosed"]


def undiagnosed(target, **options):
    """Return the report of a target whose failures are neither shrunk nor diagnosed."""
    plan = plan_of(target, diagnose=False, shrink=False, **options)
    *_, (_, report) = reports(plan)
    return report
