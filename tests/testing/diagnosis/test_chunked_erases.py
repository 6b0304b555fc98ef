"""Terms of a chunk of a delta rule: each change is named, and none if all are right."""

from functools import wraps

import numpy as np
import pytest

from linkern.testing.diagnosis.alternatives.chunked_erases import (
    SIZES,
    Rule,
    in_chunks,
    other_chunk,
    predicted,
    rules,
)
from linkern.testing.diagnosis.alternatives.states_read import Seen
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.kernels.assembly import recurrence
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.spec.operators import OPERATORS
from tests.marks import every
from tests.testing.diagnosis.test_observed import opened

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

# A momentum is a second memory, whose rows are no such system.
ERASING = [x for x, y in OPERATORS.items() if y.erases and x != "momentum_delta_rule"]
ROWS = {"gated_delta_product": 32}  # of 16 tokens
# Of a chunk of 16 tokens, a block of 16 is all; and eight terms leave out next to
# nothing under keys that are drawn here.
ALL = ("blocks of 16", "blocks of 32")
# Rows that erase write nothing of their own: all that they write is of what is erased.
UNTIED = ["rwkv7", "dplr", "iplr"]


def rules_of(op):
    """Return the rules that tell an operator from others, by their words."""
    left_out = [*ALL]
    left_out += ["of the inverse, of", "blocks of 8 that"] if op in UNTIED else []
    left_out += [] if "log_decay" in OPERATORS[op].names else ["decay"]
    every_one = dict(rules(ROWS.get(op, 16)))
    return {x: y for x, y in every_one.items() if not any(z in x for z in left_out)}


NAMED = [(op, words) for op in ERASING for words in rules_of(op)]
MUTANTS_CHUNKED = {
    "last_row_not_substituted": "an inverse without its last row, of what is erased",
    "inverse_cut_short": "2 terms of the series of the inverse, of what is erased",
    "inverse_of_four_terms": "4 terms of the series of the inverse, of what is erased",
}


def problem_of(op):
    _, scope = opened(recurrence(op), op)
    rng = np.random.default_rng(0)
    return real_problem(scope, nearest_shape(scope, SIZES), "mild", "normal", rng)


@pytest.mark.parametrize("op", ERASING)
@pytest.mark.parametrize("chunk", [16, 64])
def test_the_rule_is_that_of_the_operator(op, chunk):
    problem = problem_of(op)
    exact = problem.solve().output
    for right in (Rule(), Rule(of_erased=True)):
        output = predicted(right, in_chunks(chunk, Seen(problem, 0, exact)))
        np.testing.assert_allclose(output, exact, rtol=0, atol=1e-13)


def kernel_of(rule, op):
    """Return a kernel in chunks of 16 that follows a rule."""
    names = OPERATORS[op].names

    def kernel(*inputs):
        problem = problem_of(op).with_inputs(**dict(zip(names, inputs, strict=False)))
        output = predicted(
            rule, in_chunks(16, Seen(problem, 0, problem.solve().output))
        )
        return output.astype(inputs[2].dtype)

    return kernel


@pytest.mark.parametrize(("op", "words"), every(12, NAMED, slow=0.15))
def test_each_term_is_named(op, words):
    said = other_chunk(*opened(kernel_of(rules_of(op)[words], op), op))
    assert said.text == f"{words}, in chunks of 16"


@pytest.mark.parametrize("name", every(3, MUTANTS_CHUNKED))
def test_mutants_are_named(name):
    kernel = MUTANTS[name]
    diagnosis = diagnose(*opened(kernel.kernel, kernel.op, **kernel.contract))
    assert diagnosis.by_what == f"{MUTANTS_CHUNKED[name]}, in chunks of 16"
    assert "WY form" in diagnosis.hint


@pytest.mark.parametrize("op", ["delta_rule", "kda", "iplr", "rwkv7", "comba", "gla"])
def test_nothing_is_said_of_others(op):
    assert other_chunk(*opened(recurrence(op), op)) is None
    right = recurrence(op)

    @wraps(right)
    def kernel(**inputs):
        return 2 * right(**inputs)[0]

    assert other_chunk(*opened(kernel, op)) is None
