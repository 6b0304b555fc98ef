"""Public strategies: problems that fit, of every kind, and refusals that help."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.testing import OPERATORS, strategies
from linkern.testing.errors import UsageError


@pytest.mark.parametrize("kind", strategies.KINDS)
@settings(max_examples=5)
@given(data=st.data(), op=st.sampled_from(["linear_attention", "gla", "delta_rule"]))
def test_problems_fit_the_operator(kind, data, op):
    problem = data.draw(strategies.problems(op, kind=kind, dtype="float64"))
    assert set(problem.inputs) <= set(OPERATORS[op].names)
    assert {x.dtype.name for x in problem.inputs.values()} == {"float64"}
    assert (problem.cotangent is not None) == (kind == "gradients")


@given(problem=strategies.problems("gla", contract={"length_multiple_of": 16}))
@settings(max_examples=5)
def test_declarations_are_kept(problem):
    assert problem.length % 16 == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"op": "glaa"}, 'unknown operator "glaa"; did you mean "gla"'),
        ({"op": "gla", "kind": "real"}, 'unknown kind "real"; did you mean "reals"'),
        ({"op": "gla", "contract": {"eps": 1e-6}}, "`eps` means nothing for gla"),
        ({"op": "mesa", "kind": "integers"}, "does not exist for mesa"),
    ],
)
def test_what_is_typed_wrong_gets_a_sentence(options, sentence):
    with pytest.raises(UsageError, match=sentence):
        strategies.problems(**options)
