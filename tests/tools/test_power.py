"""A measurement of the referee is resumed, and tells what is wrong."""

import importlib
import json
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
MUTANT, CORRECT = "gate_decays_its_own_token", "hgrn by tokens"


@pytest.fixture
def power(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("power")


def line(kernel, **fields):
    usual = {"op": "hgrn", "correct": kernel == CORRECT, "profile": "smoke", "seed": 0}
    results = {"verdicts": {"passed": 9}, "failed": [], "inconclusive": []}
    return {"kernel": kernel, **usual, **results, "seconds": 1.0} | fields


def test_a_measurement_goes_on_where_it_ended(power, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    seed_of_another_run = line(CORRECT, seconds=77.0)
    file.write_text(json.dumps(seed_of_another_run) + "\n")
    options = ["--profile", "smoke", "--seeds", "0", "--jobs", "1"]
    assert power.main([str(file), "--kernels", MUTANT, CORRECT, *options]) == 0
    assert "1/1 gate_decays_its_own_token" in capsys.readouterr().err
    lines = power.lines_of(file)
    assert [x["kernel"] for x in lines] == [CORRECT, MUTANT]
    assert lines[1]["failed"]
    assert power.main([str(file), "--report"]) == 0
    assert "| hgrn | 1 | 1 | 1 | 0 | 0 | 77.0 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (line(MUTANT), "survived:\n- `gate_decays_its_own_token` (hgrn), seed 0:"),
        (line(CORRECT, failed=["prefix: no"]), "failed though right:\n- `hgrn by tok"),
        (line(CORRECT, inconclusive=["prefix"]), "- prefix: 1"),
    ],
)
def test_what_is_wrong_is_told(power, wrong, words):
    text, good = power.report([wrong])
    assert not good
    assert words in text


def test_a_kernel_that_is_not_there_is_named(power):
    with pytest.raises(SystemExit, match="must be correct, mutants or names of them"):
        power.chosen(["stranger"])
    assert {*power.chosen([])} == {*power.CORRECT, *power.MUTANTS}
