"""The command `linkern bench`: measurements, comparisons and refused options."""

import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.bench.cpu import CPU
from linkern.bench.files import read_run
from linkern.bench.tasks import OURS


def invoke(*words):
    return CliRunner().invoke(cli.main, ["bench", *words])


def test_the_command_measures_and_compares(tmp_path, monkeypatch):
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    words = ("--quick", "--task", "noncausal", "--length", "16", "--threads", "1")
    words = (*words, "--peer", "linkern")
    result = invoke(*words, "--json", str(first))
    assert result.exit_code == 0, result.output
    for word in ("noncausal", "limits", "linkern", "of GEMM"):
        assert word in result.output
    measured = read_run(first, CPU).rows
    monkeypatch.setattr(
        "linkern.cli.benches.measuring.run", lambda *_, **options: iter([measured])
    )
    result = invoke(*words, "--json", str(second), "--compare", str(first))
    assert result.exit_code == 0, result.output
    assert "since commit" in result.output
    assert read_run(second, CPU).seconds("noncausal", 16, OURS).median > 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--task", "decoding"), "--task must be one of causal, wide"),
        (("--peer", "flash"), "--peer must be one of linkern"),
        (("--task", "decode-1", "--peer", "torch"), "has no part in decode-1"),
        (("--compare", "/no/such/file.json"), "No such file"),
        (("--compare", __file__), "was not written by `linkern bench --json`"),
        (("--json", "/no/such/folder/x.json"), "there is no folder /no/such/folder"),
        (("--length", "0"), "0 is not in the range x>=1"),
        (("--threads", "0"), "0 is not in the range x>=1"),
        (("--seed", "-1"), "-1 is not in the range"),
    ],
)
def test_bad_options_exit_with_2_before_anything_is_measured(
    monkeypatch, words, sentence
):
    monkeypatch.setattr("linkern.cli.benches.measuring.run", None)
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    assert sentence in result.output


def test_without_matplotlib_the_extra_is_named_before_anything_runs(monkeypatch):
    monkeypatch.setattr("linkern.cli.benches.measuring.run", None)
    monkeypatch.setattr("linkern.bench.figures.find_spec", lambda name: None)
    result = invoke("--plot", "picture.png")
    assert result.exit_code == 2
    assert "pip install linkern[plot]" in result.output


def test_default_tasks(monkeypatch):
    seen = []

    def told(tasks, peers, schedule, **options):
        seen.append(([task.name for task, _ in tasks], schedule.rounds, options))
        return iter(())

    monkeypatch.setattr("linkern.cli.benches.measuring.run", told)
    assert invoke().exit_code == 0
    assert invoke("--quick").exit_code == 0
    every, quick = seen
    assert every[0] == [task.name for task in CPU.tasks if task.default]
    assert "million" not in every[0]
    assert quick[0] == ["causal", "decode-1"]
    assert quick[1] < every[1]
