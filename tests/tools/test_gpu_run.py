"""Tests of `gpu_run.py` without a GPU: parts run and fail independently."""

import importlib
import json
import sys
from ctypes import memset
from pathlib import Path

import numpy as np
import pytest

from linkern import cli
from linkern.bench.cuda.machine import Accelerator
from linkern.testing import UsageError
from tests.kernels.cuda.emulator.device import Emulator

TOOLS = Path(__file__).parents[2] / "tools"
HERE = Accelerator("none", "1", 2, 3, 4, 5, "here", "3", "0", {"numpy": "2"})


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("gpu_run")


def python(tool, name, text, **more):
    return tool.Part(name, (sys.executable, "-c", text), **more)


def ran(tool, folder, *parts, which=lambda name: None):
    return tool.run_all(parts, folder, HERE, which)


def test_a_failure_does_not_stop_other_parts(tool, tmp_path):
    summary = ran(
        tool,
        tmp_path,
        python(tool, "fails", "print('so it is'); raise SystemExit(3)"),
        python(tool, "waits", "import time; time.sleep(99)", seconds=1),
        tool.Part("nobody", ("/no/such/program",)),
        tool.Part("watched", ("compute-sanitizer",), needs="compute-sanitizer"),
        python(tool, "works", "print('well')"),
    )
    ended = {part.name: part for part in summary.parts}
    verdicts = {name: part.verdict for name, part in ended.items()}
    failed = dict.fromkeys(["fails", "waits", "nobody"], "failed")
    assert verdicts == {**failed, "watched": "not run", "works": "well"}
    assert ended["fails"].why == "exit code 3; see fails.txt"
    assert ended["waits"].why == "not done after 1 s; see waits.txt"
    assert ended["watched"].why == "compute-sanitizer is not on PATH"
    assert not summary.good
    assert (tmp_path / "fails.txt").read_text() == "so it is\n"
    written = json.loads((tmp_path / "summary.json").read_text())
    assert [part["name"] for part in written["parts"]] == list(ended)
    assert written["machine"]["name"] == "none"
    lines = (tmp_path / "summary.txt").read_text().splitlines()
    assert lines[-1].split()[:2] == ["works", "well"]


def test_a_missing_program_does_not_fail_unless_nothing_runs(tool, tmp_path):
    absent = tool.Part("watched", ("x",), needs="x")
    assert ran(tool, tmp_path, python(tool, "works", ""), absent).good
    assert not ran(tool, tmp_path, absent).good
    there = python(tool, "watched", "", needs="x")
    assert ran(tool, tmp_path, there, which=lambda name: name).good


def test_the_short_run_is_right_first_then_fast_then_why(tool, tmp_path):
    parts = tool.short_parts(tmp_path)
    names = [part.name for part in parts]
    compilers = [f"compilers-{task}" for task in tool.TASKS]
    order = ["wrappers", "small", "calls", "shapes", "ncu", "verdicts"]
    assert names == [*compilers, *order]
    waited = [part.seconds for part in parts if not part.beside]
    assert sum(waited) <= tool.SHORT == 9 * 60
    ncu = {part.name: part for part in parts}["ncu"]
    assert ncu.needs == "ncu" == ncu.command[0]


def test_the_time_of_a_run_ends(tool, tmp_path):
    sleeps = "import time; print('begun', flush=True); time.sleep(99)"
    parts = [python(tool, "waits", sleeps), python(tool, "never", "")]
    summary = tool.run_all(parts, tmp_path, HERE, seconds=1.5)
    waits, never = summary.parts
    assert waits.why.startswith("not done after")
    assert (tmp_path / "waits.txt").read_text() == "begun\n"
    assert (never.verdict, never.why) == ("not run", "the 1.5 s were over")


def test_a_part_beside_others_ends_before_the_one_it_names(tool, tmp_path):
    mark = tmp_path / "mark"
    waits = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(99)"
    failed = tmp_path / "failed"
    fails = f"import os; os.symlink(str(os.getpid()), {str(failed)!r}); os._exit(4)"
    # The first part ends when one beside it waits and the other one has ended.
    sees = f"""
import os, time
while not (os.path.exists({str(mark)!r}) and os.path.islink({str(failed)!r})):
    time.sleep(0.01)
stat = "/proc/" + os.readlink({str(failed)!r}) + "/stat"
while os.path.exists(stat) and ") Z " not in open(stat).read():
    time.sleep(0.01)
"""
    parts = [
        python(tool, "beside", waits, beside="last"),
        python(tool, "fails", fails, beside="last"),
        python(tool, "first", sees),
        python(tool, "last", ""),
    ]
    summary = tool.run_all(parts, tmp_path, HERE)
    ended = {part.name: part for part in summary.parts}
    assert [*ended] == ["first", "beside", "fails", "last"]
    assert ended["beside"].verdict == "well"
    assert ended["beside"].why == "ended before last"
    assert ended["beside"].seconds < 90
    assert ended["fails"].why == "exit code 4; see fails.txt"
    # Alone, nothing comes after it.
    (alone,) = tool.run_all(parts[:1], tmp_path, HERE).parts
    assert alone.why == "ended before last"


@pytest.mark.parametrize("which", ["short_parts", "long_parts"])
def test_commands_are_understood(tool, tmp_path, which):
    """Every option of every command exists."""
    parts = getattr(tool, which)(tmp_path)
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)
    assert {"wrappers", "small", "calls", "ncu", "verdicts"} <= {*names}
    if which == "long_parts":
        assert {"tests", "memcheck", "racecheck", "verify-gla"} < {*names}
    for part in parts:
        words = list(part.command)
        assert all((TOOLS / Path(x).name).exists() for x in words if x.endswith(".py"))
        if words[:1] == ["env"]:
            words = [x for x in words[1:] if "=" not in x or " " in x]
        if words[: len(tool.LINKERN)] == list(tool.LINKERN):
            name, *given = words[len(tool.LINKERN) :]
            context = cli.main.get_command(None, name).make_context(name, given)
            assert context.params["device"] == "cuda"
            if name == "verify":
                assert context.params["framework"] == "cupy"


def test_without_a_gpu_it_says_so_and_exits_with_2(tool, monkeypatch, tmp_path, capsys):
    def none():
        raise UsageError("no GPU here")  # noqa: EM101

    monkeypatch.setattr(tool, "this_device", none)
    monkeypatch.setattr(tool, "require_this_code", lambda: None)
    assert tool.main([str(tmp_path / "never")]) == 2
    assert "no GPU here" in capsys.readouterr().out
    assert not (tmp_path / "never").exists()


def test_the_code_of_another_folder_is_refused(tool, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(tool, "ROOT", tmp_path)
    assert tool.main([str(tmp_path / "never")]) == 2
    assert "python -m pip install -e ." in capsys.readouterr().out


def test_one_part_alone(tool, monkeypatch, tmp_path):
    monkeypatch.setattr(tool, "this_device", lambda: HERE)
    monkeypatch.setattr(tool, "require_this_code", lambda: None)
    parts = [python(tool, "a", ""), python(tool, "b", "raise SystemExit(1)")]
    monkeypatch.setattr(tool, "short_parts", lambda folder: parts)
    assert tool.main([str(tmp_path), "--part", "a"]) == 0
    assert tool.main([str(tmp_path)]) == 1
    with pytest.raises(SystemExit):
        tool.main([str(tmp_path), "--part", "c"])


def test_small_calls_are_right_on_numpy_and_a_wrong_one_is_noticed(tool):
    small = importlib.import_module("gpu_small")
    seen = set()
    for name, call, given in small.calls():
        if not name.startswith("vjp") and given["query"].shape[2] > 80:
            continue
        seen.add(name.partition(",")[0])
        exact = call(**{key: x.astype(np.float64) for key, x in given.items()})
        results = call(**given)
        limit = small.TOLERANCE[given["query"].dtype.name]
        worst = [small.error(x, y) for x, y in zip(results, exact, strict=True)]
        assert max(worst) <= limit, name
        assert small.error(np.roll(results[0], 1, axis=-1), exact[0]) > limit
    assert {"linear_attention", "gla", "vjp of simple_gla"} <= seen


@pytest.mark.slow
def test_shapes_are_timed_and_compared(tool, monkeypatch):
    shapes = importlib.import_module("gpu_shapes")
    monkeypatch.setattr(shapes, "LEAD", (1, 2))
    monkeypatch.setattr(shapes, "TOKENS", 70)
    device = Emulator(multiprocessors=132, shared=227 << 10)

    def timed(call):
        call()
        return 1e-6 * len(device.launches)

    lines = [*shapes.forward_rows(np, device, timed)]
    assert lines[0].startswith("bfloat16, K = V = 64, 64, 64, 4: 1 us (predicted ")
    assert [line for line in lines if "64, 64, 16: 4 us" in line]
    assert sum("picked" in line for line in lines) == len(shapes.FORWARD)
    assert not [line for line in lines if "WRONG" in line]
    delta = [*shapes.delta_rows(np, device, timed)]
    assert delta[0].startswith("delta, bfloat16, K = 64, V = 64, 64, 32, 8: ")
    cases = (*shapes.DELTA, *shapes.KDA)
    assert len(delta) == sum(len(x) for _, _, _, x in cases)
    # With two heads, no blocks of 128 columns are picked.
    assert sum("picked" in line for line in delta) == len(cases)
    assert not [line for line in delta if "WRONG" in line]
    monkeypatch.setattr(shapes, "FORWARD", shapes.FORWARD[:1])

    def spoiling(call):
        call()
        launch = device.launches[-1]
        if launch.threads == 256:  # the first rows of two shapes
            memset(int(launch.parameters["output"]["data"]), 0, 1024)
        return 1.0

    wrong = ["WRONG" in line for line in shapes.forward_rows(np, device, spoiling)]
    assert wrong == [False, True, True, False]


def test_calls_for_a_profiler_are_calls(tool, monkeypatch):
    """The smallest of each kind, with NumPy in place of CuPy."""
    calls = importlib.import_module("gpu_calls")
    small = {(op, dtype, 20, 8, more) for op, dtype, _, _, more in calls.CALLS}
    monkeypatch.setattr(calls, "CALLS", tuple(sorted(small)))
    monkeypatch.setattr(calls, "BATCH", 1)
    monkeypatch.setattr(calls, "HEADS", 2)
    names = []
    for name, call in calls.calls(np):
        names.append(name)
        result = call()
        arrays = result.values() if isinstance(result, dict) else [result.output]
        assert all(np.isfinite(np.asarray(x, float)).all() for x in arrays)
    assert any("and its gradients" in name for name in names)
    assert {name.partition(",")[0] for name in names} > {"gla", "kda"}
