"""States that are read otherwise than they were returned: transposed, or in part.

What comes back through a state is a sum over its entries, so that no product of the
inputs says which of them a token has read. The oracle goes on from a state that is
changed as a kernel may change it; what it returns then is compared with the target.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from linkern.oracle.operator import Operator
from linkern.testing.diagnosis.alternatives.changes import Change
from linkern.testing.diagnosis.alternatives.limits import other_lengths
from linkern.testing.diagnosis.calm import calm_problem
from linkern.testing.diagnosis.factors.factor import Factor, by_rule, untold
from linkern.testing.errors import TargetRaised
from linkern.testing.influence.maps import Real
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import Sizes
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call, in_float64

__all__ = ["Seen", "fits", "state_read"]

State = tuple[Real, ...]
Read = Callable[[State, Problem], State]
PARTS = ("memory", "normalizer")
# Batch, heads, length, key and value dimension. A square state is transposed in
# silence; in others a transpose is told from the same numbers in another shape.
SIZES: tuple[Sizes, ...] = ((2, 3, 24, 4, 4), (2, 3, 24, 4, 6))
CUT = 8
# Features that lie side by side in one axis: of the terms of a series.
TERMS = {"features": "1+k+k^2"}
# Multiple of the bound by which outputs may be off, and the part of all errors.
SLACK, CLOSE = 16.0, 0.02
# Bits of the words.
COST = 12.0


@dataclass(frozen=True)
class Seen:
    """Outputs of a call, from a token on.

    Parameters
    ----------
    problem : Problem
        The call.
    first : int
        The token.
    measured : array (B, H, T - first, V)
        What came back.
    """

    problem: Problem
    first: int
    measured: Real


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


def _of_all(change: Callable[[Real], Real]) -> Read:
    return lambda state, _: tuple(change(x) for x in state)


def _of_memory(change: Callable[[Real], Real]) -> Read:
    return lambda state, _: (change(state[0]), *state[1:])


# States by the words of how they are read, the first that fits.
WAYS: dict[str, Read] = {
    "a state read as (V, K)": _of_memory(_transposed),
    "a state reshaped to (V, K)": _of_memory(_reshaped),
    "the state of head 0": _of_all(lambda x: np.broadcast_to(x[:, :1], x.shape)),
    "the memory of head 0": _of_memory(lambda x: np.broadcast_to(x[:, :1], x.shape)),
    "the state of batch entry 0": _of_all(lambda x: np.broadcast_to(x[:1], x.shape)),
    "the state of the next head": _of_all(lambda x: np.roll(x, -1, axis=1)),
    "a state of (batch, heads) read as (heads, batch)": _of_all(_folded),
}
# Positions that begin anew.
ANEW = "positions counted from the first token of a call"


def ways(operator: Operator) -> Iterator[tuple[str, Read]]:
    """Yield all ways to read a state of an operator, with their words."""
    yield from WAYS.items()
    yield ANEW, lambda state, _: state
    for part, axes in enumerate(operator.state):
        noun = PARTS[part]
        yield f"a state without its {noun}", partial(_without, part)
        yield f"a state with zeros for its {noun}", partial(_with_zeros, part, 0, [])
        names = [TERMS.get(name, name) for name in axes]
        for axis, name in enumerate(names, -len(names)):
            pieces = _pieces(name)
            for k, piece in enumerate(pieces) if len(pieces) > 1 else ():
                words = f"a state with zeros in {piece} of ({name}), its {noun}"
                chosen = [pieces[:k], pieces[: k + 1]]
                yield words, partial(_with_zeros, part, axis, chosen)


def _pieces(axis: str) -> list[str]:
    """Return the axes that lie side by side in one.

    Examples
    --------
    >>> _pieces("p+k+v"), _pieces("2k"), _pieces("k")
    (['p', 'k', 'v'], ['the first k', 'the second k'], ['k'])
    """
    if axis.startswith("2"):
        return [f"the first {axis[1:]}", f"the second {axis[1:]}"]
    return axis.split("+")


def _without(part: int, state: State, problem: Problem) -> State:
    """Return a state one part of which is that before the first token."""
    empty = problem.scope.operator.empty_state(problem.oracle_call.inputs)
    return tuple(empty[k] if k == part else x for k, x in enumerate(state))


def _with_zeros(
    part: int, axis: int, edges: Sequence[list[str]], state: State, problem: Problem
) -> State:
    """Return a state with zeros in one part, or between two edges along its axis."""
    changed = state[part].copy()
    sizes = {**problem.sizes, "1": 1, "k^2": problem.sizes["k"] ** 2}
    ends = [sum(sizes[x.split()[-1]] for x in pieces) for pieces in edges]
    np.moveaxis(changed, axis, 0)[slice(*ends) if ends else ...] = 0
    return tuple(changed if k == part else x for k, x in enumerate(state))


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
    seen: list[Seen] = []
    for sizes in SIZES:
        problem, cut = _problem(scope, sizes)
        try:
            output = target.call(Call(problem.inputs, cuts=(cut,))).output
        except TargetRaised:
            continue
        if output is not None and output.shape == problem.solve().output.shape:
            seen.append(Seen(problem, cut, in_float64(output)[..., cut:, :]))
    for words, read in ways(scope.operator):
        if seen and fits(partial(_after, read, words == ANEW), seen):
            return by_rule("replaced", words, untold, COST)
    for words, change in other_lengths(_cut_off(seen[0])) if seen else ():
        if fits(partial(_after_others, change), seen):
            return by_rule("replaced", f"a state with {words}", untold, COST)
    return None


@lru_cache(maxsize=8)
def _problem(scope: Scope, sizes: Sizes) -> tuple[Problem, int]:
    """Return calm inputs of about these sizes, and where they are cut."""
    problem = calm_problem(scope, sizes)
    step = scope.contract.length_multiple_of
    return problem, min(-(-CUT // step) * step, problem.length)


def fits(predict: Callable[[Seen], Real], seen: Sequence[Seen]) -> bool:
    """Return True if a prediction leaves nearly nothing of the errors of all calls."""
    errors = left = 0.0
    for one in seen:
        exact = one.problem.solve()
        bound = exact.once_stored(one.problem.scope.output_dtype)
        with np.errstate(all="ignore"):
            predicted = predict(one)
            difference = abs(one.measured - predicted)
            error = abs(one.measured - exact.output[..., one.first :, :]).sum()
            allowed = SLACK * bound[..., one.first :, :].max(initial=0.0)
            # Larger numbers round more.
            allowed *= max(1.0, _largest(predicted) / _largest(exact.output))
            if not ((difference <= allowed).all() and difference.sum() <= error):
                return False
        errors, left = errors + error, left + difference.sum()
    return bool(left < CLOSE * errors)


def _after_others(change: Change, seen: Seen) -> Real:
    """Return the outputs after a cut, of the state of other tokens before it."""
    problem, cut = seen.problem, seen.first
    state = change(_cut_off(seen)).evaluate().state
    return problem.span(cut, problem.length).oracle_call.evaluate(state, cut).output


def _cut_off(seen: Seen) -> OracleCall:
    return seen.problem.span(0, seen.first).oracle_call


def _largest(x: Real) -> float:
    return float(abs(x).max(initial=np.finfo(np.float64).tiny))


def _after(read: Read, anew: bool, seen: Seen) -> Real:
    """Return the outputs after a cut, of a state that is read in some way."""
    problem, cut = seen.problem, seen.first
    second = problem.span(cut, problem.length).oracle_call
    state = read(_cut_off(seen).evaluate().state, problem)
    return second.evaluate(state, 0 if anew else cut).output
