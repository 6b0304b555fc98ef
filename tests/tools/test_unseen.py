"""A measurement on the unseen set tells right from silent and wrong, and is resumed."""

import json

import pytest
import unseen

from linkern.testing.diagnosis.diagnosis import Diagnosis
from tests.testing.diagnosis.unseen.kernels import UNSEEN

DIAGONAL, TAIL = "gradient_of_value_without_bonus", "tail_not_decayed"
TAIL_ROWS = "rows in the tail of chunks of 32 and sources 1 back or more"


@pytest.fixture
def outcomes(monkeypatch):
    """Where and by what, as outcomes, of what is said of a kernel."""
    truth = unseen.expectations(unseen.TRUTH)

    def of(name, **said):
        diagnosis = Diagnosis("output_product", "", **said) if said else None
        monkeypatch.setattr(unseen, "diagnosis_of", lambda mutant: diagnosis)
        line = unseen.measured(UNSEEN[name], truth[name])
        return line["where"], line["by"]

    return of


def test_outcomes_are_right_silent_or_wrong(outcomes):
    assert outcomes(DIAGONAL) == ("silent", "silent")
    assert outcomes(DIAGONAL, where="the diagonal", by_what="0") == ("right", "right")
    assert outcomes(DIAGONAL, where="head 1", by_what="2") == ("wrong", "wrong")
    numbers = "unlike any product that was tried: ratios 0 to 1"
    assert outcomes(DIAGONAL, where="the diagonal", by_what=numbers)[1] == "silent"


def test_where_no_factor_is_right_none_must_be_said(outcomes):
    assert outcomes(TAIL) == ("silent", "no product")
    assert outcomes(TAIL, where=TAIL_ROWS) == ("right", "no product")
    assert outcomes(TAIL, where=TAIL_ROWS, by_what="2") == ("right", "wrong")


def test_a_diagnosis_that_raises_is_recorded(monkeypatch):
    def raises(mutant):
        raise ArithmeticError(mutant.name)

    monkeypatch.setattr(unseen, "diagnosis_of", raises)
    line = unseen.measured(UNSEEN[TAIL], unseen.expectations(unseen.TRUTH)[TAIL])
    assert "ArithmeticError" in line["said"]["raised"]
    assert line["where"] == "silent"


def test_every_kernel_is_diagnosed_once(monkeypatch, tmp_path, capsys):
    met = []
    monkeypatch.setattr(unseen, "diagnosis_of", lambda mutant: met.append(mutant.name))
    file = tmp_path / "unseen.jsonl"
    monkeypatch.setattr("sys.argv", ["unseen.py", str(file)])
    assert unseen.main() == 0
    kept = file.read_text().splitlines()
    file.write_text("\n".join(kept[:-2]) + "\n")
    assert unseen.main() == 0
    assert sorted(met[:32]) == sorted(UNSEEN)
    assert sorted(met[32:]) == sorted(met[30:32])
    assert [json.loads(x)["kernel"] for x in kept] == met[:32]
    assert (
        "| where | 0 of 32 | 32 of 32 | 0 of 32 | 0 of 32 |" in capsys.readouterr().out
    )


def test_the_truth_is_told_of_every_kernel():
    truth = unseen.expectations(unseen.TRUTH)
    assert set(truth) == set(UNSEEN)
    assert all(one.stage and one.where and one.by for one in truth.values())
