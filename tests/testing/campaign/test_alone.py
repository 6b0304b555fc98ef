"""A function in a process of its own: its answer, its end, and that of its caller."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from linkern.testing.campaign.alone import ProcessEndedError, call_alone
from tests.testing.campaign import played
from tests.waiting import LONG, eventually


def test_a_call_is_answered_by_another_process():
    answer = call_alone(played.judged, played.task_of("answers")).message
    assert answer.startswith("answers in ")
    assert answer != f"answers in {os.getpid()}"


def test_a_process_that_ends_is_no_answer():
    with pytest.raises(ProcessEndedError, match="exit code 7"):
        call_alone(played.judged, played.task_of("ends"))


def runs(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_runs_ends_as_its_input_is_closed_and_is_cleaned_up(tmp_path):
    file, running, raised = tmp_path / "number", set(), []

    def call():
        try:
            call_alone(played.sleeps, played.task_of(str(file)), running)
        except ProcessEndedError as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    assert eventually(lambda: file.exists() and file.read_text())
    for process in {*running}:
        process.stdin.close()
    thread.join(LONG)
    assert len(raised) == 1
    assert not running
    assert Path(f"{file}.closed").exists()
    assert not runs(int(file.read_text()))


def test_it_ends_with_its_caller(tmp_path):
    file = tmp_path / "number"
    code = (
        "from linkern.testing.campaign.alone import call_alone\n"
        "from tests.testing.campaign import played\n"
        f"call_alone(played.sleeps, played.task_of({str(file)!r}))"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    assert eventually(lambda: file.exists() and file.read_text())
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert eventually(Path(f"{file}.closed").exists)
    assert eventually(lambda: not runs(int(file.read_text())))
