"""`linkern grade`, and the JSON of `linkern verify` on standard output."""

import json

import pytest
from click.testing import CliRunner

from linkern.cli import grading, main, verdicts
from linkern.testing.report.grade import Grade

GOOD = "linkern:linear_attention"
QUICK = ("--op", "linear_attention", "--dtype", "float32", "--check", "causality")


@pytest.fixture(autouse=True)
def calm(monkeypatch):
    for module in (grading, verdicts):
        monkeypatch.setattr(module, "run_canaries", lambda seed: None)


def run(*words):
    return CliRunner().invoke(main, words)


def test_every_candidate_is_a_line_of_json_and_nothing_else_is_written():
    words = ("--profile", "smoke", "--seconds", "600", "--json", "-")
    result = run("grade", GOOD, "absent:kernel", *QUICK, *words)
    assert result.exit_code == 1
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert {line["target"]: line["verdict"] for line in lines} == {
        GOOD: "passed",
        "absent:kernel": "refused",
    }
    assert {line["schema"] for line in lines} == {1}
    assert len({line["seed"] for line in lines}) == 1


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["passed"], 0),
        (["passed", "failed"], 1),
        (["refused", "inconclusive"], 1),
        (["passed", "inconclusive"], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_candidate(
    monkeypatch, verdicts, code, tmp_path
):
    grades = [Grade(f"k.py:{i}", "gla", each) for i, each in enumerate(verdicts)]
    monkeypatch.setattr(grading, "grade_many", lambda *_, **__: iter(grades))
    result = run("grade", "k.py:0", "--op", "gla", "--json", str(tmp_path / "g.jsonl"))
    assert result.exit_code == code
    assert len((tmp_path / "g.jsonl").read_text().splitlines()) == len(verdicts)
    assert "k.py:0" in result.stdout
    # A file of an earlier run is replaced.
    monkeypatch.setattr(grading, "grade_many", lambda *_, **__: iter(grades[:1]))
    run("grade", "k.py:0", "--op", "gla", "--json", str(tmp_path / "g.jsonl"))
    assert len((tmp_path / "g.jsonl").read_text().splitlines()) == 1


def test_a_missing_folder_is_refused_before_anything_is_judged(monkeypatch, tmp_path):
    monkeypatch.setattr(grading, "grade_many", pytest.fail)
    path = tmp_path / "absent" / "g.jsonl"
    result = run("grade", "k.py:0", "--op", "gla", "--json", str(path))
    assert result.exit_code == 2
    assert "there is no folder" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--op"),
        (("--op", "nothing"), "nothing"),
        (("--op", "gla", "--seconds", "-1"), "`seconds` must be a positive number"),
        (("--op", "gla", "--declare", "x=1"), "declaration"),
    ],
)
def test_what_cannot_be_used_is_one_sentence(words, said):
    result = run("grade", "absent:kernel", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not result.stdout


def test_a_report_on_standard_output_has_its_grade_inside():
    words = ("--profile", "smoke", "--seconds", "600", "--json", "-", "--jobs", "1")
    result = run("verify", GOOD, *QUICK, *words)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["verdict"] == report["grade"]["verdict"] == "passed"
    assert report["seconds"] == 600.0


def test_seconds_are_for_one_target():
    result = run("verify", "--seconds", "5")
    assert result.exit_code == 2
    assert "--seconds is for one target" in result.stderr
