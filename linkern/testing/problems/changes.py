"""Changes of one input by as little as its exact output still shows."""

import numpy as np

from linkern.oracle import Bounded
from linkern.testing.problems.gates import altered
from linkern.testing.problems.problem import Problem

__all__ = ["CHANGES", "shown_change"]

# One number of an input is another; or two of one row are swapped, which leaves sums,
# norms and whatever else does not know their order.
CHANGES = ("one number", "two swapped")
# Each try asks for an exact output.
TRIES = 3


def shown_change(
    problem: Problem,
    name: str,
    kind: str,
    rng: np.random.Generator,
    *,
    before: int | None = None,
) -> Problem | None:
    """Return a problem with a small change that no correct output can hide.

    Parameters
    ----------
    problem : Problem
        The inputs.
    name : str
        The input that is changed, anywhere.
    kind : str
        One of `CHANGES`.
    rng : Generator
        Decides where.
    before : int, optional
        Only tokens before this one are changed.

    Returns
    -------
    Problem or None
        None if no change that was tried moves the exact output out of its bound.
    """
    for _ in range(TRIES):
        x = problem.inputs[name].copy()
        if not x.size:
            return None
        early = problem.of_tokens(name, None, before)
        index = tuple(int(rng.integers(n)) for n in early.shape)
        if kind == "one number":
            x[index] = altered(problem, name, x[index].reshape(1))[0]
        else:
            other = (*index[:-1], int(rng.integers(early.shape[-1])))
            x[index], x[other] = x[other], x[index]
        if np.array_equal(x, problem.inputs[name]):
            continue
        changed = problem.with_inputs(**{name: x})
        if _apart(problem.solve(), changed.solve(), problem.scope.output_dtype):
            return changed
    return None


def _apart(one: Bounded, other: Bounded, stored: str) -> bool:
    """Return True if no number is right as an entry of both outputs.

    Of every other entry a bound has to be known, too.
    """
    both = one.once_stored(stored) + other.once_stored(stored)
    apart = abs(one.output - other.output) > both
    return bool(apart.any() and np.isfinite(both).all())
