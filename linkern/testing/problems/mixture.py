"""The mixture of problems from which all laws draw.

A kernel that knows which law asks can be right where values are compared and wrong
elsewhere. So all laws draw from one mixture. A law that can judge few of its problems
draws a share of its own beside them, and what it cannot judge is a call like any other,
whose output nobody looks at.
"""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from linkern.testing.problems import strategies as draws
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import kept, one_of

__all__ = [
    "GRADIENTS",
    "MIXTURE",
    "OWN",
    "any_gradient",
    "any_problem",
    "exact",
    "of_sort",
    "provable",
]

# Of 100 even draws of a law, those of its own sort; all others are of the mixture.
# Hypothesis prefers small numbers, so a search has more: `docs/recognition.md`.
OWN = 18
# The sorts of the mixture, as often as they stand here.
MIXTURE = (
    *("reals",) * 24,
    *("integers",) * 24,
    *("random",) * 20,
    *("averages",) * 8,
    *("extremes",) * 4,
    *("tiles",) * 3,
    *("equal heads",) * 2,
    "long",
    "busy",
)
GRADIENTS = (*("gradients",) * 3, "random gradients")
# The sorts for whose outputs a bound is proved, at no great cost.
_BOUNDED = ("reals", "integers", "random", "tiles", "equal heads")

Draw = Callable[[Scope], st.SearchStrategy[Problem]]
Judges = Callable[[Problem], bool]

_SORTS: dict[str, Draw] = {
    "reals": draws.real_problems,
    "integers": draws.integer_problems,
    "random": draws.random_problems,
    # Equal values over tiny denominators are what shows an epsilon or a clamp.
    "averages": lambda scope: draws.real_problems(
        scope,
        kinds=(*draws.REAL_KINDS, *("tiny",) * 6),
        values=("constant", "normal", "constant", "uniform", "constant"),
    ),
    "extremes": draws.extreme_problems,
    "tiles": draws.tile_problems,
    "equal heads": lambda scope: draws.broadcast_heads(draws.random_problems(scope)),
    "long": draws.long_problems,
    "busy": draws.busy_problems,
    "short": draws.short_problems,
    "repeated": draws.repeated_problems,
    "batches": draws.batch_problems,
    # Averages of both signs come out subnormal where a format has little range.
    "positive": lambda scope: draws.real_problems(
        scope, kinds=("normal", "uniform", "constant"), values=("positive",)
    ),
    "gradients": draws.gradient_problems,
    "random gradients": lambda scope: draws.gradient_problems(scope, random=True),
    "smooth gradients": lambda scope: draws.gradient_problems(
        scope, random=True, smooth=True
    ),
}


def any_problem(scope: Scope, own: str = "") -> st.SearchStrategy[Problem]:
    """Any problem, and some of a law's own sort."""
    return _mixed(scope, MIXTURE, own)


def any_gradient(scope: Scope, own: str = "") -> st.SearchStrategy[Problem]:
    """Any problem with a cotangent, and some of a law's own sort."""
    return _mixed(scope, GRADIENTS, own)


@kept
@st.composite
def _mixed(
    draw: st.DrawFn, scope: Scope, mixture: tuple[str, ...], own: str
) -> Problem:
    sort = draw(one_of(*mixture))
    # Smaller numbers are simpler: a counterexample shrinks to one of the law's own.
    if own and draw(_PERCENT) < OWN:
        sort = own
    sort = _drawable(scope, sort)
    return replace(draw(_SORTS[sort](scope)), sort=sort)


_PERCENT = st.integers(0, 99)


def _drawable(scope: Scope, sort: str) -> str:
    """Return the sort, or one that takes its place where it does not exist."""
    if sort == "integers" and draws.no_integers(scope):
        return "reals"
    if sort == "averages" and not (scope.normalised or scope.operator.feature_map):
        return "random"
    return sort


def of_sort(*sorts: str) -> Judges:
    """Return what is True of the problems of some sorts."""
    return lambda problem: problem.sort in sorts


def provable(problem: Problem) -> bool:
    """Return True if a bound is proved for outputs of problems of this sort."""
    return problem.sort in _BOUNDED


def exact(problem: Problem) -> bool:
    """Return True if all sums of a problem are exact in any order."""
    return problem.has_exact_sums
