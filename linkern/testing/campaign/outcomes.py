"""Outcomes of the tasks of a campaign, as they come, with one retry after a loss."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, as_completed

from linkern.testing.campaign.engine import Engine
from linkern.testing.campaign.task import Task, Unjudged, judged
from linkern.testing.report.report import Report

__all__ = ["outcomes"]


def outcomes(
    engine: Engine, tasks: Mapping[str, Task]
) -> Iterator[tuple[str, Report | Unjudged]]:
    """Yield the key of each task once, with its report or why there is none.

    A task whose worker ended is tried again after all others, and alone: no other
    kernel can be what ends its worker then.
    """
    lost = set()
    for key, outcome in _completed(engine, tasks):
        if isinstance(outcome, Unjudged) and outcome.verdict == "lost":
            lost.add(key)
        else:
            yield key, outcome
    for key, task in tasks.items():
        if key in lost:
            yield from _completed(engine, {key: task})


def _completed(
    engine: Engine, tasks: Mapping[str, Task]
) -> Iterator[tuple[str, Report | Unjudged]]:
    futures = {engine.submit(judged, task): key for key, task in tasks.items()}
    for future in as_completed(futures):
        yield futures[future], _outcome(engine, future)


def _outcome(engine: Engine, future: Future[Report | Unjudged]) -> Report | Unjudged:
    try:
        return future.result()
    except engine.lost:
        return Unjudged("lost", "not judged: its worker ended twice.")
    except Exception as error:
        return Unjudged("error", f"{type(error).__name__}: {error}")
