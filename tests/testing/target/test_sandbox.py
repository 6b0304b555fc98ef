"""In a sandbox a target computes and replies; it reaches nothing else."""

import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from linkern.bench.cpu import CPU
from linkern.bench.tasks import OURS
from linkern.bench.workers import Process
from linkern.testing import Plan, UsageError, run, verify
from linkern.testing.api import plan_of
from linkern.testing.errors import TargetDied, TargetRaised
from linkern.testing.report import bundle
from linkern.testing.runner.loop import CheckFinished
from linkern.testing.runner.reproduce import command
from linkern.testing.target.process import ChildProcess
from linkern.testing.target.protocol import Call, TargetConfig
from linkern.testing.target.sandbox import Sandbox, paths_in
from tests.waiting import LONG, eventually

ROOT = Path(__file__).parents[3]
EXAMPLE = f"{ROOT}/examples/chunked_attention.py"
HELPER = "FACTOR = 1\n"
# Each raises unless the sandbox holds; `PLACE` is filled in.
KERNELS = f"""
import ctypes, os, socket, subprocess, sys, time
sys.path.insert(0, {str(ROOT)!r})
from beside_it import FACTOR
from tests.testing.targets import good

PLACE = os.environ["LINKERN_TEST_PLACE"]

def must_fail(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return
    raise AssertionError(function.__name__ + " did what it must not")

def connects(query, key, value):
    must_fail(socket.create_connection, ("127.0.0.1", int(PLACE)), 5)
    return good(query, key, value) * FACTOR

def writes(query, key, value):
    for folder in (os.path.dirname(__file__), "/", "/etc", os.path.expanduser("~")):
        must_fail(open, os.path.join(folder, "written"), "w")
    must_fail(os.remove, __file__)
    open("/tmp/its own", "w").close()
    return good(query, key, value)

def looks_around(query, key, value):
    assert not os.path.exists(PLACE), os.listdir("/tmp")
    assert not os.path.exists("/run/docker.sock")
    return good(query, key, value)

def looks_at_the_referee(query, key, value):
    must_fail(os.kill, int(PLACE), 0)
    must_fail(os.listdir, f"/proc/{{PLACE}}/fd")
    assert max(int(x) for x in os.listdir("/proc") if x.isdigit()) < 100
    return good(query, key, value)

def leaves_a_daemon(query, key, value):
    words = [sys.executable, "-c", "import time; time.sleep(600)", PLACE]
    subprocess.Popen(words, start_new_session=True)
    return good(query, key, value)

def segfaults(query, key, value):
    ctypes.string_at(0)

def wants_six_gib(query, key, value):
    import numpy
    return numpy.ones(6 * 2**30, numpy.uint8)
"""
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from safetensors.numpy import load_file, save_file
sys.path.insert(0, {root!r})
from tests.testing.targets import good

tensors = load_file(sys.argv[1])
for place in (Path(__file__).with_name("written"), Path("/etc/written")):
    try:
        place.touch()
    except OSError:
        continue
    sys.exit(f"wrote {{place}}")
names = ("query", "key", "value")
save_file({{"output": good(*(tensors[name] for name in names))}}, sys.argv[2])
"""


@pytest.fixture
def place(monkeypatch):
    """Return a function that tells targets where to look."""
    return lambda value: monkeypatch.setenv("LINKERN_TEST_PLACE", str(value))


@pytest.fixture
def child(tmp_path, place):
    (tmp_path / "beside_it.py").write_text(HELPER)
    (tmp_path / "kernels.py").write_text(KERNELS)
    opened = []

    def open_child(name, *, sandboxed=True, **options):
        target = f"{tmp_path}/kernels.py:{name}"
        sandbox = Sandbox(paths_in([f"{tmp_path}/kernels.py"])) if sandboxed else None
        config = TargetConfig(target, **options)
        opened.append(ChildProcess(config, LONG, sandbox=sandbox))
        return opened[-1]

    place(0)
    yield open_child
    for process in opened:
        process.close()


def call():
    x = np.ones((1, 1, 2, 1), np.float32)
    return Call({"query": x, "key": x, "value": x})


def test_no_network(bwrap, child, place):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place(server.getsockname()[1])
        assert child("connects").call(call()).output is not None


def test_no_file_is_written(bwrap, child, tmp_path):
    assert child("writes").call(call()).output is not None
    assert {path.name for path in tmp_path.iterdir()} <= {
        "beside_it.py",
        "kernels.py",
        "__pycache__",
    }
    assert not Path("/tmp/its own").exists()


def test_what_others_left_in_tmp_is_not_there(bwrap, child, place):
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        place(file.name)
        assert child("looks_around").call(call()).output is not None


def test_no_other_process_is_in_sight(bwrap, child, place):
    place(os.getpid())
    assert child("looks_at_the_referee").call(call()).output is not None


def test_outside_of_it_all_that_is_possible(child, place):
    """The kernels see a sandbox that does not hold: here there is none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place(server.getsockname()[1])
        process = child("connects", sandboxed=False)
        with pytest.raises(TargetRaised, match="create_connection did what it must"):
            process.call(call())


def processes(word):
    """Return the processes that were started with a word."""
    number = 0
    for entry in Path("/proc").iterdir():
        try:
            number += word.encode() in (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
    return number


def test_what_it_started_ends_with_it(bwrap, child, place, tmp_path):
    place(tmp_path / "daemon")
    process = child("leaves_a_daemon")
    process.call(call())
    assert eventually(lambda: processes(str(tmp_path / "daemon")) == 1)
    process.close()
    assert eventually(lambda: processes(str(tmp_path / "daemon")) == 0)


def test_a_crash_is_named(bwrap, child):
    with pytest.raises(TargetDied, match="crashed with SIGSEGV"):
        child("segfaults").call(call())


def test_memory_is_limited(bwrap, child):
    with pytest.raises(TargetRaised, match=r"it wanted more than 0\.5 GiB"):
        child("wants_six_gib", memory_limit=0.5).call(call())


def verdicts(plan):
    events = [e.result for e in run(plan) if isinstance(e, CheckFinished)]
    return {result.name: (result.verdict, result.message) for result in events}


CHECKS = ("shape_and_dtype", "causality", "prefix")
OPTIONS = {"op": "linear_attention", "dtypes": ("float32",), "checks": CHECKS}


def test_a_run_is_judged_as_without_it(bwrap):
    plans = [
        plan_of(f"{EXAMPLE}:attention", sandbox=sandbox, **OPTIONS, profile="quick")
        for sandbox in (False, True)
    ]
    assert verdicts(plans[0]) == verdicts(plans[1])
    assert command(plans[1]).split().count("--sandbox") == 1


def test_a_program_writes_its_output_and_nothing_else(bwrap, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(root=str(ROOT)))
    words = f"{sys.executable} {program} {{inputs}} {{outputs}}"
    plan = Plan(words, command=words, sandbox=True, profile="smoke", **OPTIONS)
    assert {verdict for verdict, _ in verdicts(plan).values()} <= {"passed", "skipped"}
    open_plan = Plan(words, command=words, profile="smoke", **OPTIONS)
    with pytest.raises(UsageError, match=r"wrote .*written"):
        verdicts(open_plan)


def test_a_peer_is_timed_in_it(bwrap):
    task = CPU.task("causal")
    worker = Process(1, Sandbox())
    try:
        assert worker.ask("prepare", CPU.peer(OURS), task, 8, 0, [7])[0].shape
        assert worker.ask("turn", 0.0).seconds > 0
    finally:
        worker.close()


def test_a_bundle_is_run_in_it(bwrap, tmp_path):
    report = verify(
        f"{EXAMPLE}:with_epsilon", **OPTIONS | {"checks": ()}, fail_fast=True
    )
    bundle.write(report, tmp_path / "bundle")
    again = bundle.check(tmp_path / "bundle", sandbox=True)
    assert [one.outcome for one in again] == ["reproduced"]
    script = next((tmp_path / "bundle/reproducers").glob("*.py"))
    script.write_text(f"open({str(tmp_path / 'written')!r}, 'w')")
    bundle.check(tmp_path / "bundle", sandbox=True)
    assert not (tmp_path / "written").exists()


def test_without_bubblewrap_nothing_is_run(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="`sandbox` needs bubblewrap, but there is no"):
        verify(f"{EXAMPLE}:attention", sandbox=True, **OPTIONS)


@pytest.mark.parametrize("options", [{"in_process": True}, {"function": len}])
def test_it_is_for_a_process_of_its_own(options):
    with pytest.raises(UsageError, match="`sandbox` is for a process of the target's"):
        Plan("f", "gla", sandbox=True, **options)
