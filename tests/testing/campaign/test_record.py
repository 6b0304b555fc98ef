"""The record of a campaign: what it holds, and what of it is judged again."""

import json
from dataclasses import replace

import pytest

from linkern.testing import UsageError
from linkern.testing.api import plan_of, report_of
from linkern.testing.campaign import record
from linkern.testing.campaign.task import Task, Unjudged
from linkern.testing.runner.results import CheckResult

TASK = Task(plan_of("some/a.py:f", op="gla", seed=1), {"a.py": "f = 1", "b.py": ""})


def of_report(task, verdict):
    return replace(report_of(task.plan), checks=(CheckResult("ranges", "x", verdict),))


def write(path, *outcomes):
    entries = [record.entry(key, outcome) for key, outcome in outcomes]
    path.write_text(record.text(entries, seed=1, complete=False))


def changed(**settings):
    return replace(TASK, plan=replace(TASK.plan, **settings))


@pytest.mark.parametrize(
    "other",
    [
        changed(seed=2),
        changed(profile="quick"),
        changed(checks=("ranges",)),
        changed(options={"chunk_size": 16}),
        changed(target="some/a.py:g"),
        changed(op="simple_gla"),
        changed(timeout=7.0),
        changed(contract=plan_of("f", op="gla", contract={"layout": "bthd"}).contract),
        replace(TASK, files={"a.py": "f = 2", "b.py": ""}),
        replace(TASK, files={"a.py": "f = 1"}),
    ],
)
def test_a_setting_that_differs_is_another_key(other):
    assert record.key(other) != record.key(TASK)


def test_the_number_of_jobs_is_not_a_setting():
    assert record.key(changed(jobs=3)) == record.key(TASK)


def test_inputs_are_settings_by_their_content(tmp_path):
    path = tmp_path / "inputs.safetensors"
    path.write_bytes(b"one")
    before = record.key(changed(inputs=str(path)))
    path.write_bytes(b"two")
    assert record.key(changed(inputs=str(path))) != before


def test_versions_are_settings(monkeypatch):
    before = record.key(TASK)
    monkeypatch.setattr(record, "environment", lambda: {"libraries": {"numpy": "9.9"}})
    monkeypatch.setattr(record, "_versions", record._versions.__wrapped__)
    assert record.key(TASK) != before
    assert {*record._versions("pytest")} == {"numpy", "pytest"}


def test_what_was_judged_is_read_again(tmp_path):
    path = tmp_path / "report.json"
    tasks = {name: changed(target=f"some/a.py:{name}") for name in "pfrle"}
    write(
        path,
        (record.key(tasks["p"]), of_report(tasks["p"], "passed")),
        (record.key(tasks["f"]), of_report(tasks["f"], "failed")),
        (record.key(tasks["r"]), Unjudged("refused", "no such function")),
        (record.key(tasks["l"]), Unjudged("lost", "its worker ended")),
        (record.key(tasks["e"]), Unjudged("error", "ValueError")),
    )
    seed, entries = record.read(path)
    assert seed == 1
    assert [*entries] == [record.key(tasks[name]) for name in "pfr"]
    assert [one["verdict"] for one in entries.values()] == [
        "passed",
        "failed",
        "refused",
    ]
    values = json.loads(path.read_text())
    assert values["complete"] is False
    assert {one["op"] for one in values["reports"]} == {"gla"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "3",
        '{"schema": 3, "linkern": "1", "rules": "3", "verdict": "passed"}',
        '{"schema": 3, "linkern": "1", "rules": "3", "seed": 1, "reports": [1]}',
    ],
)
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"report.json is not the report of a campai"):
        record.read(path)


@pytest.mark.parametrize("name", ["schema", "linkern", "rules"])
def test_a_record_of_another_version_is_refused(tmp_path, name):
    path = tmp_path / "report.json"
    write(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), name: "0"}))
    with pytest.raises(UsageError, match=r"was written by linkern .*, and this is"):
        record.read(path)
