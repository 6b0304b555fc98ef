"""The cells that a diagnosis has in the kill matrix, and how many of them are right."""

import localised

from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.kernels.mutants import MUTANTS

EDGE = "pairs across edges of chunks of 16 and the last source of every chunk of 16"


def said(name="output_product", **fields):
    return Diagnosis(name, "", **fields)


def test_a_cell_says_if_it_is_wrong_or_silent():
    cells, lost = localised.cells, "key_lost_at_chunk_edge"
    assert cells(lost, said(where=EDGE, by_what="0")) == (EDGE, "0")
    assert cells(lost, said(where="head 1", by_what="2")) == (
        "wrong: head 1",
        "wrong: 2",
    )
    assert cells(lost, said(where=EDGE)) == (EDGE, "—")
    numbers = "unlike any product that was tried: ratios 0 to 1"
    assert cells(lost, said(where=EDGE, by_what=numbers)) == (EDGE, "—")
    assert cells(lost, None) == ("—", "—")
    assert cells(lost, said(stage="output", by_what="0")) == ("—", "0")
    assert cells("jitters", said("not_deterministic"))[0] == "not_deterministic"
    assert cells("delta_rule_in_place_of_oja", said(where="head 1"))[1] == "no product"


def test_a_rounding_is_shown_by_its_sentence():
    sentence = "the state is rounded to 8 bits"
    rounded = Diagnosis("state_rounded", sentence)
    assert localised.cells("bfloat16_state", rounded) == ("state_rounded", sentence)


def test_words_fit_in_a_table():
    where, _ = localised.cells("values_clipped", said(where="where |value| is above 9"))
    assert where == "wrong: where \\|value\\| is above 9"


def test_less_is_right_if_a_cell_was_right_before():
    right, wrong, silent = ("a", "0"), ("a", "wrong: 0"), ("—", "—")
    assert localised.less_right(right, wrong)
    assert localised.less_right(right, silent)
    assert not localised.less_right(wrong, right)
    assert not localised.less_right(right, right)


def test_less_is_right_if_a_cell_says_something_newly_wrong():
    silent, wrong, without = ("—", "no product"), ("wrong: a", "no product"), ("—", "—")
    assert localised.less_right(silent, wrong)
    assert localised.less_right(without, ("—", "wrong: 2"))
    assert not localised.less_right(wrong, ("wrong: b", "no product"))
    assert not localised.less_right(wrong, silent)


def test_the_page_tells_how_many_mutants_are_diagnosed_again():
    text = " ".join(localised.summary(dict.fromkeys(MUTANTS, ("—", "—")))[0].split())
    assert f"diagnoses one mutant in {localised.DIAGNOSED_AGAIN} again" in text


def test_the_summary_counts_right_and_wrong_cells():
    described = dict.fromkeys(MUTANTS, ("—", "—"))
    before = localised.summary(described)
    described["eps_1e-6"] = ("everywhere", "wrong: 0")
    described["inverse_of_four_terms"] = ("wrong: head 1", "wrong: 2")
    lines = localised.summary(described)
    changed = {line for line in lines if line not in before}
    aside = len(localised.HELD_OUT)
    assert any(f"| set aside | 1 of {aside} | 1 |" in line for line in changed)
    assert all(line.rstrip(" |").endswith("2") for line in changed)
    assert len(changed) == 2  # the line of maps, and that of all


def test_mutants_that_were_set_aside_exist_and_were_a_third():
    assert set(MUTANTS) > localised.HELD_OUT
    mutants_of_the_draw = 244  # later ones were never drawn from
    assert abs(len(localised.HELD_OUT) - mutants_of_the_draw / 3) < 1
