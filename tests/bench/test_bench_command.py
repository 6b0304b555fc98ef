"""The command `linkern bench`: measurements, comparisons and refused options."""

import pytest
from click.testing import CliRunner

from linkern import cli
from linkern.bench.cpu import CPU
from linkern.bench.files import read_run
from linkern.bench.records import Row
from linkern.bench.tasks import OURS
from linkern.bench.timing import Spread


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


def interrupted_after(*parts):
    yield from parts
    raise KeyboardInterrupt


def test_an_interrupted_run_shows_and_keeps_what_was_measured(tmp_path, monkeypatch):
    seconds = Spread(1e-3, 1e-3, 1e-3, 1)
    parts = [
        (Row(task, length, OURS, "linkern", seconds=seconds),)
        for task, length in (("causal", 512), ("causal", 1024), ("decode-1", 512))
    ]
    monkeypatch.setattr(
        "linkern.cli.benches.measuring.run", lambda *_, **__: interrupted_after(*parts)
    )
    path = tmp_path / "run.json"
    result = invoke("--quick", "--json", str(path))
    assert result.exit_code == 130
    assert read_run(path, CPU).rows == tuple(row for part in parts for row in part)
    for word in ("causal: ", "1024", "decode-1: ", "interrupted: all lengths"):
        assert word in result.output
    assert str(path) in "".join(result.output.split())


def test_a_quick_run_names_the_peers_that_it_leaves_out(monkeypatch):
    seen = []

    def told(tasks, peers, *_, **__):
        seen.append({peer.name for peer in peers})
        return iter(())

    monkeypatch.setattr("linkern.cli.benches.measuring.run", told)
    monkeypatch.setattr("linkern.bench.peers.find_spec", lambda name: name)
    assert "left out by --quick: torch-loop-64, " in invoke("--quick").output
    assert "left out" not in invoke("--quick", "--peer", "torch-compile").output
    assert "left out" not in invoke().output
    few, named, every = seen
    assert {OURS, "torch-sdpa"} < {*CPU.quick_peers} < every
    ours = {x.name for x in CPU.peers if x.name.startswith(OURS)} - {OURS}
    assert few - {*CPU.quick_peers} == ours
    assert "torch-compile" in named - few


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
    assert not {"million", "jax-run", "jax-compile"} & {*every[0]}
    assert quick[0] == ["causal", "decode-1"]
    assert quick[1] < every[1]
