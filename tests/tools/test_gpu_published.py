"""Tests of `gpu_published.py` with a program in place of `linkern verify`."""

import importlib
import json
import sys

import pytest

from linkern import cli
from linkern.adapters.catalogue import PUBLISHED

# It ends as its target says, and writes a report with two laws or none.
PROGRAM = """
import json, os, sys, time
target, report = sys.argv[2], sys.argv[sys.argv.index("--json") + 1]
assert os.environ["TRITON_CACHE_DIR"]
if target.endswith("awake"):
    time.sleep(5)
    open(target, "w").close()
if target == "refused":
    sys.exit("linkern: torch has no device \\"cuda\\".")
verdict = "failed" if target == "wrong" else "passed"
law = {"name": "causality", "verdict": verdict, "message": "the future matters"}
other = {"name": "prefix", "verdict": "passed"}
last = {"name": "graph_replay", "verdict": "skipped"}
with open(report, "w") as file:
    json.dump({"verdict": verdict, "checks": [other, law, last]}, file)
sys.exit(verdict == "failed")
"""


@pytest.fixture
def tool():
    return importlib.import_module("gpu_published")


def judged(tool, folder, *names, seconds=30.0, jobs=2):
    chosen = [tool.Subject(name, "gla", "torch") for name in names]
    program = (sys.executable, "-c", PROGRAM)
    ended = tool.judge(chosen, folder, seconds, jobs, program)
    return {one.target: one for one in ended}


def test_each_subject_has_a_line(tool, tmp_path):
    ended = judged(tool, tmp_path, "right", "wrong", "refused")
    right, wrong = ended["right"], ended["wrong"]
    assert (right.verdict, right.ran, right.passed) == ("passed", 2, 2)
    assert right.failed == ()
    assert (wrong.verdict, wrong.ran, wrong.passed) == ("failed", 2, 1)
    assert wrong.failed == ("causality",)
    assert "(1 of 2 laws hold; causality: the future matters)" in wrong.line()
    assert ended["refused"].verdict == "none"
    assert 'torch has no device "cuda"' in ended["refused"].first
    written = (tmp_path / "published.jsonl").read_text().splitlines()
    assert {json.loads(line)["target"] for line in written} == {*ended}
    assert len((tmp_path / "published.txt").read_text().splitlines()) == 3


def test_it_ends_at_the_deadline_and_says_what_is_unfinished(tool, tmp_path):
    slow = tmp_path / "awake"
    ended = judged(tool, tmp_path, str(slow), "later", "last", seconds=1.0, jobs=1)
    assert [one.verdict for one in ended.values()] == ["unfinished"] * 3
    assert not slow.exists()
    assert (tmp_path / "published.txt").read_text().count("unfinished") == 3


def of_fla(tool):
    return [one for package, one in tool.published() if package == "fla"]


def test_packages_that_are_not_installed_are_said(tool, monkeypatch, tmp_path, capsys):
    chosen, missing = tool.subjects(lambda name: None)
    assert not chosen
    number = len(of_fla(tool))
    assert number >= 35
    assert any(text.startswith(f"fla is not installed: {number} ") for text in missing)
    assert any(text.startswith("cupy is not installed") for text in missing)
    monkeypatch.setattr(tool, "subjects", lambda: (chosen, missing))
    assert tool.main([str(tmp_path / "never")]) == 2
    assert "fla is not installed" in capsys.readouterr().out
    assert not (tmp_path / "never").exists()


def test_commands_are_understood(tool, tmp_path):
    chosen, missing = tool.subjects(lambda name: name)
    assert not missing
    targets = {one.target for one in chosen if one.framework == "torch"}
    assert targets >= {one.target for one in PUBLISHED if one.interpret}
    assert targets >= {kernel.name for kernel in tool.entry_points.kernels()}
    assert len({*chosen}) == len(chosen)
    for one in chosen:
        name, *words = one.command(60.0, tmp_path / "report.json")
        context = cli.main.get_command(None, name).make_context(name, words)
        assert context.params["device"] == "cuda"
        cli.options.contract_of(context.params)


def test_each_is_judged_in_a_dtype_that_it_takes(tool):
    """With no other precision declared than that of tensor cores."""
    chosen, _ = tool.subjects(str)
    judged = {(one.target, one.words[1]): one.words[2:] for one in chosen}
    assert ("fla.ops.delta_rule:chunk_delta_rule", "bfloat16") in judged
    assert judged["linkern:simple_gla", "float32"] == ()
    assert judged["linkern:simple_gla", "bfloat16"][1] == "operand_dtype=bfloat16"
    assert judged["linkern:gated_delta_rule", "bfloat16"] == ()


def test_the_exit_code_tells_of_subjects_without_a_verdict(
    tool, monkeypatch, tmp_path, capsys
):
    program = (sys.executable, "-c", PROGRAM)
    for names, code in ((("right", "wrong"), 0), (("right", "refused"), 1)):
        chosen = [tool.Subject(name, "gla", "torch") for name in names]
        monkeypatch.setattr(tool, "subjects", lambda chosen=chosen: (chosen, []))
        assert tool.main([str(tmp_path)], program) == code
    assert "2 subjects judged, 0 unfinished" in capsys.readouterr().out
    assert tool.main([str(tmp_path), "--only", "nothing of the kind"]) == 2
