"""Diagnoses of mutants are as right as on the page; correct kernels have none."""

from itertools import cycle

import kill_matrix
import pytest
from localised import HELD_OUT, cells, diagnosis_of, is_right, less_right
from truth import expectations

from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from tests.marks import in_turn

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

LINEAR = "linear_attention"
CLAIMS = kill_matrix.claimed_descriptions(kill_matrix.PAGE.read_text(encoding="utf-8"))
# By default, some that take about a second each.
CORRECT_CHOSEN = ("quadratic", "gsa", "gla by chunks")
CHOSEN = ("decays_left_out", "normalizer_of_last_row", "scale_left_out", "jitters")
# Others than that of the page; mutants take the first two in turns.
OTHERS = ("float64", "bfloat16", "float16")
# Places and factors that are right on the page, of those that can be, as measured: of
# mutants that the diagnosis was developed on and those that came later (selective_scan,
# power_retention, mlstm, mamba3 and its ranks, preconditioned delta rules, momentum),
# and of those that were set aside.
LEAST = {False: (191 / 198, 109 / 112), True: (73 / 81, 43 / 46)}
# Cells of both that may be wrong.
MOST_WRONG = {False: (2, 0), True: (1, 0)}


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(
        lambda name, dtype: dtype == "float32" and name in CORRECT_CHOSEN,
        ((name, dtype) for name in CORRECT for dtype in ("float32", *OTHERS)),
        step=18,
    ),
)
def test_no_correct_kernel_is_diagnosed(name, dtype):
    assert diagnosis_of(CORRECT[name], dtype) is None


# What is rounded in float32 may be hidden, or not round at all, in another dtype.
PLACED = [
    name
    for name, expected in expectations().items()
    if MUTANTS[name].op == LINEAR and expected.kind == "map"
]
# The dtypes of the page, and others.
ON_PAGE = {name: kill_matrix.dtype_of(mutant) for name, mutant in MUTANTS.items()}
ELSEWHERE = dict(zip(PLACED, cycle(OTHERS[:2]), strict=False))


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(
        lambda name, dtype: name in CHOSEN and dtype == ON_PAGE[name],
        dict.fromkeys((*ON_PAGE.items(), *ELSEWHERE.items())),
        step=18,
    ),
)
def test_what_is_said_of_a_mutant_is_right(name, dtype):
    where, by = measured = cells(name, diagnosis_of(MUTANTS[name], dtype))
    if dtype == ON_PAGE[name]:
        assert MUTANTS[name].by_chance or not less_right(CLAIMS[name], measured)
    else:
        assert "wrong: " not in where + by or CLAIMS[name][0].startswith("wrong: ")


def share(names, column):
    return sum(is_right(CLAIMS[name][column]) for name in names) / len(names)


@pytest.mark.parametrize("aside", [True, False])
def test_most_mutants_are_described_rightly(aside):
    names = [n for n in MUTANTS if (n in HELD_OUT) == aside]
    with_factor = [n for n in names if expectations()[n].by[:1] not in ((), ("none",))]
    places, factors = LEAST[aside]
    assert share(names, 0) >= places
    assert share(with_factor, 1) >= factors


@pytest.mark.parametrize("aside", [True, False])
def test_few_words_of_the_page_are_wrong(aside):
    cells = [CLAIMS[n] for n in MUTANTS if (n in HELD_OUT) == aside]
    for column, most in zip(zip(*cells, strict=True), MOST_WRONG[aside], strict=True):
        assert sum(cell.startswith("wrong: ") for cell in column) <= most
