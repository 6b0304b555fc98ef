"""`linkern verify --all`: one report, resumed, interrupted, and what is refused."""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from linkern.adapters.entry import Entry
from linkern.cli import campaigns, main, plans, verdicts
from linkern.testing.api import report_of
from linkern.testing.campaign import outcomes
from linkern.testing.campaign.engine import Engine
from linkern.testing.campaign.task import Unjudged
from linkern.testing.runner.results import CheckResult
from tests.waiting import eventually

KERNEL = "def kernel(query, key, value):\n    return value * {}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work beside a folder of three candidates."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some").mkdir()
    for i, name in enumerate("abc"):
        (tmp_path / "some" / f"{name}.py").write_text(KERNEL.format(i))
    return tmp_path / "some"


@pytest.fixture
def judged(monkeypatch):
    """Judge nothing: each verdict is that of a table, and "passed" otherwise."""
    monkeypatch.setattr(verdicts, "run_canaries", lambda seed: None)
    verdict_of, names = {}, []

    @contextmanager
    def engine_of(where, jobs, default):
        with ThreadPoolExecutor(1) as pool:
            yield Engine(pool.submit, (BrokenPipeError,))

    def judged(task):
        name = task.plan.target
        names.append(name)
        verdict = verdict_of.get(name, "passed")
        if isinstance(verdict, BaseException):
            raise verdict
        if verdict == "refused":
            return Unjudged(verdict, "it cannot be loaded")
        result = CheckResult("ranges", "outputs are in the range of values", verdict)
        return replace(report_of(task.plan), checks=(result,))

    monkeypatch.setattr(campaigns, "engine_of", engine_of)
    monkeypatch.setattr(outcomes, "judged", judged)
    judged.names, judged.verdict_of = names, verdict_of
    return judged


def verify(*words, code=0):
    command = ["verify", "--all", *words, "--json", "report.json"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == code, result.output
    return result.output


def report():
    return json.loads(Path("report.json").read_text())


GLA = ("some", "--op", "gla")


def test_a_folder_is_one_report_in_the_order_of_its_files(folder, judged):
    output = verify(*GLA)
    values = report()
    assert values["complete"]
    assert [one["target"] for one in values["reports"]] == [
        f"some/{name}.py:kernel" for name in "abc"
    ]
    assert {one["environment"]["seed"] for one in values["reports"]} == {values["seed"]}
    assert "3/3  passed some/c.py:kernel as gla" in output
    assert output.rstrip().endswith("wrote report.json")


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        ("failed", 1),
        ("refused", 1),
        (ValueError("bad"), 1),
        ("inconclusive", 3),
        (BrokenPipeError(), 3),
    ],
)
def test_one_kernel_that_is_not_right_ends_nothing(folder, judged, verdict, code):
    judged.verdict_of["some/b.py:kernel"] = verdict
    output = verify(*GLA, code=code)
    words = {"ValueError": "error", "BrokenPipeError": "lost"}
    word = words.get(type(verdict).__name__, verdict)
    assert [one["verdict"] for one in report()["reports"]] == ["passed", word, "passed"]
    assert word in output


def test_a_report_is_resumed(folder, judged):
    judged.verdict_of["some/b.py:kernel"] = BrokenPipeError()
    judged.verdict_of["some/a.py:kernel"] = "failed"
    verify(*GLA, code=1)
    seed = report()["seed"]
    judged.names.clear()
    judged.verdict_of.clear()
    (folder / "c.py").write_text(KERNEL.format(7))
    (folder / "d.py").write_text(KERNEL.format(8))

    output = verify(*GLA, "--resume", code=1)
    assert "1 of 4 are judged." in output
    assert judged.names == [f"some/{name}.py:kernel" for name in "bcd"]
    assert [one["verdict"] for one in report()["reports"]] == ["failed"] + 3 * [
        "passed"
    ]
    assert report()["seed"] == seed
    judged.names.clear()

    verify(*GLA, "--resume", code=1)
    assert not judged.names
    assert len(report()["reports"]) == 4
    verify(*GLA, "--resume", "--seed", "5")
    verify(*GLA, "--resume")
    assert len(judged.names) == 4
    assert report()["seed"] == 5
    verify(*GLA, "--seed", "5")
    assert len(judged.names) == 8


def test_every_kernel_is_in_the_report_as_it_ends(folder, judged, monkeypatch):
    sizes = []
    write = campaigns.write_whole

    def watched(path, text):
        write(path, text)
        sizes.append((len(report()["reports"]), report()["complete"]))

    monkeypatch.setattr(campaigns, "write_whole", watched)
    verify(*GLA)
    assert sizes == [(0, False), (1, False), (2, False), (3, True)]


def test_an_interruption_leaves_a_report(folder, judged, monkeypatch):
    def interrupted(console, campaign, values):
        raise KeyboardInterrupt

    monkeypatch.setattr(campaigns, "_show", interrupted)
    output = verify(*GLA, code=130)
    assert "interrupted: 2 kernels are not judged." in output
    assert not report()["complete"]
    assert len(report()["reports"]) == 1


def test_the_catalogue_with_and_without_all(judged, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    entries = [
        Entry("numpy", "linkern:gla", "gla", "numpy", options={"form": form})
        for form in ("recurrent", "parallel")
    ]
    monkeypatch.setattr(plans, "installed", lambda op: entries)
    output = verify("--op", "gla")
    assert "(numpy, form=parallel)" in output
    result = CliRunner().invoke(main, ["verify", "--op", "gla", "--json", "-"])
    assert result.exit_code == 0, result.output
    values = [json.loads(result.stdout), report()]
    targets = [[one["target"] for one in each["reports"]] for each in values]
    assert targets == [["linkern:gla", "linkern:gla"]] * 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--all", "absent", "--op", "gla"), '--all takes a folder, "folder" or'),
        (("--all", "some"), "say which operator"),
        (("--all", *GLA, "--resume"), "--resume needs --json FILE"),
        (("--all", *GLA, "--html", "x.html"), "--html is for one target"),
        (("--all", *GLA, "--bundle", "x"), "--bundle is for one target"),
        (("--all", *GLA, "--command", "x"), "--all and --command exclude each other"),
        (("--all", *GLA, "--executor", "ray://x"), "the executor must be"),
        (("--all", *GLA, "--inputs", "absent"), "absent"),
        (("--all", "--seconds", "3"), "--seconds is for one target"),
        (("--all", "--declare", "eps=1e-6"), "--declare is for one target"),
        (("--dtype", "float32"), "--dtype is for one target"),
        (
            ("--all", "--expect-failure", "causality=x"),
            "--expect-failure is for one target",
        ),
        (("k.py:f", "--op", "gla", "--resume"), "--resume is for several kernels"),
        (
            ("k.py:f", "--op", "gla", "--executor", "processes"),
            "--executor is for several kernels",
        ),
    ],
)
def test_what_cannot_be_used_is_one_sentence(folder, monkeypatch, words, sentence):
    monkeypatch.setattr(verdicts, "run_canaries", lambda seed: None)
    result = CliRunner().invoke(main, ["verify", *words])
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not [*folder.parent.glob("report.json")]


def test_an_engine_that_cannot_be_used_spoils_no_report(folder, judged, monkeypatch):
    verify(*GLA)
    monkeypatch.undo()
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(verdicts, "run_canaries", lambda seed: None)
    verify(*GLA, "--executor", "ray://", code=2)
    assert len(report()["reports"]) == 3


def started(where):
    """Start a command whose interrupt is not ignored, as it is in the background."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from linkern.cli import main; main()"
    )
    words = ["some", "--op", "linear_attention", "--profile", "smoke", "--jobs", "1"]
    words += ["--dtype", "float32", "--json", "report.json", "--executor", where]
    return subprocess.Popen([sys.executable, "-c", code, "verify", "--all", *words])


@pytest.mark.slow
def test_ctrl_c_ends_local_processes(folder):
    (folder / "b.py").write_text("import time\ntime.sleep(600)\n" + KERNEL)
    process = started("processes")
    assert eventually(lambda: Path("report.json").exists() and report()["reports"])
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert [one["target"] for one in report()["reports"]] == ["some/a.py:kernel"]


@pytest.mark.slow
def test_ctrl_c_ends_a_cluster(folder, distributed):
    (folder / "b.py").write_text("import time\ntime.sleep(600)\n" + KERNEL)
    process = started("dask://")
    assert eventually(lambda: Path("report.json").exists() and report()["reports"])
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert [one["verdict"] for one in report()["reports"]] == ["failed"]
