"""States that are read otherwise than they were returned: transposed, of another head.

What comes back through a state is a sum over its entries, so that no product of the
inputs says which of them a token has read. The oracle goes on from a state that is
changed as a kernel may change it; what it returns then is compared with the target.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from linkern.testing.diagnosis.factors.factor import Factor
from linkern.testing.errors import TargetRaised
from linkern.testing.influence.maps import InfluenceMap, Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes, nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["state_read"]

State = tuple[Real, ...]
# Batch, heads, length, key and value dimension. A square state is transposed in
# silence; in others a transpose is told from the same numbers in another shape.
SIZES: tuple[Sizes, ...] = ((2, 3, 24, 4, 4), (2, 3, 24, 4, 6))
CUT = 8
# Multiple of rounding by which outputs may be off, and by which a change has to show.
SLACK, SHOWN = 16.0, 8.0
# Bits of the words.
COST = 12.0


def _transposed(memory: Real) -> Real:
    square = memory.shape[-1] == memory.shape[-2]
    return memory.swapaxes(-1, -2) if square else memory


def _reshaped(memory: Real) -> Real:
    rows, columns = memory.shape[-2:]
    other = memory.reshape(*memory.shape[:-2], columns, rows)
    return other.swapaxes(-1, -2)


def _folded(x: Real) -> Real:
    batch, heads, *rest = x.shape
    return x.reshape(heads, batch, *rest).swapaxes(0, 1)


def _every(change: Callable[[Real], Real]) -> Callable[[State], State]:
    return lambda state: tuple(change(x) for x in state)


# States by the words of how they are read, the first that fits.
READ: dict[str, Callable[[State], State]] = {
    "a state read as (V, K)": lambda state: (_transposed(state[0]), *state[1:]),
    "a state reshaped to (V, K)": lambda state: (_reshaped(state[0]), *state[1:]),
    "the state of head 0": _every(lambda x: x[:, :1] + 0 * x),
    "the state of batch entry 0": _every(lambda x: x[:1] + 0 * x),
    "the state of the next head": _every(lambda x: np.roll(x, -1, axis=1)),
    "a state of (batch, heads) read as (heads, batch)": _every(_folded),
    "a memory without its normalizer": lambda state: (
        state[0],
        *(0 * x for x in state[1:]),
    ),
    "a normalizer without its memory": lambda state: (0 * state[0], *state[1:]),
}


def state_read(target: Target, scope: Scope) -> Factor | None:
    """Return how a target reads the states that it has returned.

    Parameters
    ----------
    target : Target
        Loaded; it is called twice, with a cut.
    scope : Scope
        What it claims and declares.

    Returns
    -------
    Factor or None
        None if none of the changes gives the outputs after the cut.

    Raises
    ------
    TargetDied
        If the target crashed or hung.
    """
    seen = []
    for sizes in SIZES:
        problem, cut = _problem(scope, sizes)
        try:
            output = target.call(Call(problem.inputs, cuts=(cut,))).output
        except TargetRaised:
            continue
        if output is not None and output.shape == problem.solve().output.shape:
            seen.append((problem, cut, in_float64(output)[..., cut:, :]))
    for words, change in READ.items():
        if seen and _fits(change, seen):
            return Factor("replaced", 1.0, {}, words, cost=COST, rule=_untold)
    return None


def _untold(entries: InfluenceMap) -> Real:
    """Return no number: the map of a part does not hold the state before it."""
    return np.full(entries.exact.shape, np.nan)


@lru_cache(maxsize=8)
def _problem(scope: Scope, sizes: Sizes) -> tuple[Problem, int]:
    """Return calm inputs of about these sizes, and where they are cut."""
    kind = "normal" if scope.operator.feature_map else "mild"
    rng = np.random.default_rng(0)
    problem = real_problem(scope, nearest_shape(scope, sizes), kind, "normal", rng)
    step = scope.contract.length_multiple_of
    return problem, min(-(-CUT // step) * step, problem.length)


def _fits(
    change: Callable[[State], State], seen: list[tuple[Problem, int, Real]]
) -> bool:
    """Return True if outputs after a cut are as with a changed state, and it shows."""
    shown = False
    for problem, cut, measured in seen:
        predicted = _after(change, problem, cut)
        exact = problem.solve()
        bound = exact.once_stored(problem.scope.output_dtype)
        with np.errstate(all="ignore"):
            allowed = SLACK * bound[..., cut:, :].max(initial=0.0)
            if not (abs(measured - predicted) <= allowed).all():
                return False
            shown |= bool(
                (abs(predicted - exact.output[..., cut:, :]) > SHOWN * allowed).any()
            )
    return shown


def _after(change: Callable[[State], State], problem: Problem, cut: int) -> Real:
    """Return the outputs after a cut at which the state is changed."""
    first = problem.span(0, cut)._oracle_call
    second = problem.span(cut, problem.length)._oracle_call
    operator, options = first.operator, first.options()
    state = operator.evaluate(first.meant, first.scale, options=options).state
    after = operator.evaluate(
        second.meant, second.scale, change(state), cut, options=options
    )
    return after.output
