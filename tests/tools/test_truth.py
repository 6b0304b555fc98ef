"""The table of what is wrong with each mutant, and the comparison with a diagnosis."""

import pytest
import truth

from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.kernels.mutants import MUTANTS

EDGES = "pairs across edges of chunks of 16"
DECAY = "sum of log_decay over (source, row]"


def test_every_mutant_has_an_entry():
    assert truth.expectations().keys() == MUTANTS.keys()
    for expected in truth.expectations().values():
        assert expected.where or expected.name or expected.says
        assert bool(expected.where) == bool(expected.by)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"{EDGES} and source 31", f"source 31 and {EDGES}"),
        (
            f"{EDGES} and the last source of every chunk of 16",
            "sources 1 back or more and the last source of every chunk of 16",
        ),
        (
            f"{EDGES} and sources from 32 on and sources before 48",
            "rows from 48 on and sources from 32 on and sources before 48",
        ),
        ("everywhere", "sources 0 back or more"),
        ("heads 1, 2, 3", "heads from 1 on"),
        ("heads other than head 0", "heads from 1 on"),
        ("where denominator is below 0.3", "where denominator is below *"),
        ("sequence 2", "sequence *"),
        ("where key[source] is above 88", "where key[source] is above *"),
        ("lengths before 2", "lengths of 1"),
    ],
)
def test_the_same_places_are_the_same_set(one, other):
    assert truth.same_set(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EDGES, "pairs across edges of chunks of 32"),
        (EDGES, "sources 16 back or more"),
        (EDGES, f"{EDGES} and sources after the initial state"),
        ("everywhere", "sources 1 back or more"),
        ("everywhere", "the initial state"),
        ("head 1", "heads from 1 on"),
        ("the diagonal", "the diagonal and rows after the first of every chunk of 16"),
        ("pairs across edges of chunks of 4096", "sources before 4096"),
        ("where beta is below 0.3", "where denominator is below *"),
        ("head 2", "sequence *"),
        ("rows from 15 on", "rows from 16 on"),
        ("in the state of Denmark", "everywhere"),
    ],
)
def test_other_places_are_another_set(one, other):
    assert not truth.same_set(one, other)
    assert truth.same_set(one, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"exp(-{DECAY})", f"1 / exp({DECAY})"),
        ("0.5", "1/2"),
        ("denominator / (denominator + 1e-06)", "denominator / (1e-6 + denominator)"),
        ("exp(-log_decay[row]) * beta[source]", "beta[source] / exp(log_decay[row])"),
        ("2 * K^-0.5", "2 / K^0.5"),
        (f"exp(-(1 - ln 2) * {DECAY})", f"exp(-0.306853 * {DECAY})"),
        ("1 / (row + 1) in its place", "(row + 1)^-1 in its place"),
        ("that of head 0", "that of head 0"),
    ],
)
def test_equal_formulas_are_the_same_factor(one, other):
    assert truth.same_factor(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("K^-0.5", "scale"),
        ("0", "1e-9"),
        ("denominator / (denominator + 1e-6)", "denominator / (denominator + 1e-10)"),
        ("denominator / (denominator + 1e-6)", "1"),
        ("exp(-log_decay[row])", "exp(-log_decay[source])"),
        (f"exp(-{DECAY})", "exp(-sum of log_decay over the chunk)"),
        ("that of head 0", "that of head 1"),
        ("K^-0.5 in its place", "K^-0.5"),
        ("exp(0.45 * log_decay[row])", "exp(0.44 * log_decay[row])"),
    ],
)
def test_other_formulas_are_another_factor(one, other):
    assert not truth.same_factor(one, other)


def said(name="output_product", sentence="", **fields):
    return Diagnosis(name, sentence, **fields)


def test_place_and_factor_are_judged_apart():
    lost = truth.expectations()["key_lost_at_chunk_edge"]
    place = f"the last source of every chunk of 16 and {EDGES}"
    judge = truth.described_rightly
    assert judge(said(where=place, by_what="0"), lost) == (True, True)
    assert judge(said(where=place, by_what="2"), lost) == (True, False)
    assert judge(said(where=place), lost) == (True, False)
    assert judge(said(where=EDGES, by_what="0"), lost) == (False, True)
    ties = said(where=EDGES, by_what="0", alternatives=(place,))
    assert judge(ties, lost) == (True, True)
    many = said(where=EDGES, by_what="0", alternatives=("source 3", "row 3", place))
    assert judge(many, lost) == (False, True)
    assert judge(None, lost) == (False, False)


def test_a_result_may_name_a_part_of_the_place():
    lost, judge = truth.expectations()["initial_state_ignored"], truth.described_rightly
    for stage, right in (("output", False), ("output of the initial state", True)):
        assert judge(said(where="everywhere", stage=stage), lost)[0] is right


def test_where_no_product_is_right_silence_is_no_error_and_a_product_is():
    cut = truth.expectations()["delta_rule_in_place_of_oja"]
    place = "sources 1 back or more"
    judge = truth.described_rightly
    assert judge(said(where=place), cut) == (True, None)
    assert judge(said(where=place, by_what="unlike any product"), cut) == (True, None)
    assert judge(said(where=place, by_what="2"), cut) == (True, False)


def test_roundings_are_named_with_their_bits():
    rounded = truth.expectations()["bfloat16_state"]
    judge = truth.described_rightly
    sentence = "the state is rounded to 8 bits every 16 tokens"
    assert judge(said("state_rounded", sentence), rounded) == (True, True)
    assert judge(said("values_rounded", sentence), rounded) == (False, True)
    assert judge(said("state_rounded", "rounded to 11 bits"), rounded) == (True, False)


def test_behaviours_are_named():
    jitters = truth.expectations()["jitters"]
    assert truth.described_rightly(said("not_deterministic"), jitters) == (True, None)
    assert truth.described_rightly(said("stale_input"), jitters) == (False, None)
    assert truth.described_rightly(None, jitters) == (False, None)
