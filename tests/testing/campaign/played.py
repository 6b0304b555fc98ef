"""Functions that a campaign calls in the place of the referee."""

import os
import signal
import time
from pathlib import Path

from linkern.testing.campaign.task import Task, Unjudged
from linkern.testing.runner.plan import Plan

__all__ = ["judged", "sleeps", "task_of"]


def task_of(text):
    """Return a task whose target says what to do."""
    return Task(Plan(text, "linear_attention"))


def judged(task):
    """Do what a task says, the first time only if it says so, and say who did it."""
    act, _, path = task.plan.target.partition(" ")
    if act == "ends":
        os._exit(7)
    if path and not Path(path).exists():
        Path(path).touch()
        if act == "ends_once":
            os._exit(7)
        if act == "kills_its_worker_once":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
    return Unjudged("refused", f"{act} in {os.getpid()}")


def sleeps(task):
    """Write the number of this process to a file, and another as it is interrupted."""
    path = task.plan.target
    Path(path).write_text(str(os.getpid()), encoding="utf-8")
    try:
        time.sleep(600)
    finally:
        Path(f"{path}.closed").touch()
