"""Condition numbers of operators: the growth of relative changes of their inputs."""

import numpy as np

from linkern.oracle.operator import Inputs, Operator, Real, State

__all__ = ["condition"]


def condition(
    operator: Operator,
    inputs: Inputs,
    cotangent: Real,
    scale: float | None = None,
    state: State | None = None,
    *,
    draws: int = 3,
    seed: int = 0,
) -> dict[str, float]:
    """Measure the largest growth of relative changes of the inputs.

    Every entry of every input is changed by a relative 1e-7, up or down at random;
    the largest change of a result, relative to its largest entry and to 1e-7, is
    the number. A kernel in float32 loses about this factor of its digits, however
    it is written.

    Parameters
    ----------
    operator : Operator
        The operator.
    inputs, cotangent, scale, state
        As for `Operator.gradients`.
    draws : int
        The number of random draws of signs.
    seed : int
        Seed of the draws.

    Returns
    -------
    dict of str to float
        Under ``"output"``, and under the names of the inputs for their gradients.
    """
    rng = np.random.default_rng(seed)
    step = 1e-7

    def results(at: Inputs) -> dict[str, Real]:
        gradients = operator.gradients(at, cotangent, scale, state)
        named = {name: x for name, x in gradients.items() if not isinstance(x, tuple)}
        return {"output": operator.evaluate(at, scale, state).output, **named}

    exact = results(inputs)
    largest = dict.fromkeys(exact, 0.0)
    for _ in range(draws):
        moved = {
            name: None
            if x is None
            else x * (1 + step * rng.choice([-1.0, 1.0], x.shape))
            for name, x in inputs.items()
        }
        for name, x in results(moved).items():
            size = abs(exact[name]).max(initial=0.0)
            change = abs(x - exact[name]).max(initial=0.0)
            if size > 0:
                largest[name] = max(largest[name], float(change / (step * size)))
    return largest
