"""Terms of a chunk of a delta rule: each change is named, and none if all are right."""

import numpy as np
import pytest

from linkern.testing.diagnosis.chunked_erases import (
    OPERATORS,
    SIZES,
    _output,
    _Rule,
    _rules,
    other_chunk,
)
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.diagnosis.states_read import Seen
from linkern.testing.kernels.assembly import recurrence
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.shapes import nearest_shape
from tests.marks import every
from tests.testing.diagnosis.test_behaviour import opened

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

RULES = dict(_rules(16))
# Of a chunk of 16 tokens, a block of 16 is all; and eight terms leave out next to
# nothing under keys that are drawn here.
SEEN = [x for x in RULES if "blocks of 16" not in x and "blocks of 32" not in x]
SEEN = [x for x in SEEN if not x.startswith("8 terms")]
MUTANTS_CHUNKED = {
    "last_row_not_substituted": "an inverse without its last row, of what is erased",
    "inverse_cut_short": "2 terms of the series of the inverse, of what is erased",
    "inverse_of_four_terms": "4 terms of the series of the inverse, of what is erased",
}


def problem_of(op):
    _, scope = opened(recurrence(op), op)
    rng = np.random.default_rng(0)
    return real_problem(scope, nearest_shape(scope, SIZES), "mild", "normal", rng)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("chunk", [16, 64])
def test_the_rule_is_that_of_the_operator(op, chunk):
    problem = problem_of(op)
    exact = problem.solve().output
    for right in (_Rule(), _Rule(of_erased=True)):
        output = _output(right, chunk, Seen(problem, 0, exact))
        np.testing.assert_allclose(output, exact, rtol=0, atol=1e-13)


def kernel_of(rule):
    """Return a gated delta rule in chunks of 16 that follows a rule."""

    def kernel(query, key, value, log_decay, beta):
        named = {"query": query, "key": key, "value": value}
        problem = problem_of("gated_delta_rule")
        problem = problem.with_inputs(**named, log_decay=log_decay, beta=beta)
        return _output(rule, 16, Seen(problem, 0, value)).astype(value.dtype)

    return kernel


@pytest.mark.parametrize("words", SEEN)
def test_each_term_is_named(words):
    said = other_chunk(*opened(kernel_of(RULES[words]), "gated_delta_rule"))
    assert said.text == f"{words}, in chunks of 16"


@pytest.mark.parametrize("name", every(3, MUTANTS_CHUNKED))
def test_mutants_are_named(name):
    kernel = MUTANTS[name]
    diagnosis = diagnose(*opened(kernel.kernel, kernel.op, **kernel.contract))
    assert diagnosis.by_what == f"{MUTANTS_CHUNKED[name]}, in chunks of 16"
    assert "WY form" in diagnosis.hint


@pytest.mark.parametrize("op", [*OPERATORS, "gla"])
def test_nothing_is_said_of_others(op):
    assert other_chunk(*opened(recurrence(op), op)) is None
    kernel = recurrence(op)
    assert other_chunk(*opened(lambda *x: 2 * kernel(*x)[0], op)) is None
