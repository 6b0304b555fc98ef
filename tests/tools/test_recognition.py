"""A classifier cannot tell which law draws, and can where a law draws its own alone."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import recognition

from linkern.testing.checks import CHECKS
from linkern.testing.problems import mixture, strategies

SCOPE = recognition.scope_of("linear_attention")
# One forest per seed, 120 problems: of 60, chance moves a score by 0.05, and so over
# the limit.
COUNT, SEEN, HIDDEN = 60, 0.85, 0.72


def tables(problems, first):
    return [recognition.drawn(problems, COUNT, first + n) for n in range(3)]


@pytest.mark.usefixtures("sklearn")
def test_laws_draw_what_cannot_be_told_apart():
    laws = ("value_on_integers", "ranges", "value_on_random_reals")
    drawn = [tables(CHECKS[law].problems(SCOPE), 3 * i) for i, law in enumerate(laws)]
    assert recognition.accuracy(drawn[0], drawn[1]) < HIDDEN
    assert recognition.accuracy(drawn[0], drawn[2]) < HIDDEN


@pytest.mark.usefixtures("sklearn")
def test_a_law_that_draws_its_own_alone_is_told_at_once():
    integers = tables(strategies.integer_problems(SCOPE), 0)
    extremes = tables(strategies.extreme_problems(SCOPE), 3)
    assert recognition.accuracy(integers, extremes) > SEEN


def test_a_law_draws_no_more_of_its_own_than_is_said():
    sorts = []
    problems = mixture.any_problem(SCOPE, "short")
    recognition.drawn(problems.map(lambda p: sorts.append(p.sort) or p), 300, 0)
    share = sorts.count("short") / len(sorts)
    assert 0 < share < 2 * mixture.OWN / 100


@pytest.mark.parametrize(
    "name", [name for name in CHECKS if name not in recognition.LEFT_OUT]
)
def test_every_law_draws_from_a_mixture(name):
    """The inputs of a law that draws one sort alone would give it away."""
    check, sorts = CHECKS[name], set()
    if check.unless(SCOPE):
        pytest.skip("the law does not apply to linear attention")
    problems = check.problems(SCOPE).map(lambda p: sorts.add(p.sort) or p)
    recognition.drawn(problems, 40, 1)
    assert len(sorts) > 1
