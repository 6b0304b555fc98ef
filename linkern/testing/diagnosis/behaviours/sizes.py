"""Behaviours that depend on the size of one axis: refusals, and wrong outputs."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from linkern.testing.diagnosis.behaviours.histories import is_right
from linkern.testing.diagnosis.calm import calm_call
from linkern.testing.diagnosis.diagnosis import Diagnosis
from linkern.testing.diagnosis.sizes import in_words
from linkern.testing.errors import TargetRaised
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = ["REFUSED", "refused_sizes", "wrong_sizes"]

# Sizes of one axis each, which calls try one after the other; the first two alone
# where each shape is compiled.
LONG = (100, 128, 130, 192, 256)
TRIED = {
    "lengths": (2, (17, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 47, 48, 64, 65, 96, *LONG)),
    "key dimensions": (3, (4, 1, 2, 3, 8, 12, 16, 17, 24, 32, 48, 64, 65, 128, 136)),
    "value dimensions": (4, (5, 1, 2, 4, 8, 12, 16, 17, 24, 32, 48, 64, 65, 128, 136)),
    "numbers of heads": (1, (2, 1, 3, 4)),
    "batch sizes": (0, (1, 2, 3, 4)),
}
REFUSED = (1, 2, 17, 4, 5)
AXES = ("batch", "heads", "length", "key_dim", "value_dim")
# Keys of each token, of operators that take several.
MICRO_STEPS = "numbers of keys for each token"
NUMBERS = (2, 1, 3, 4, 5)
# The most features and numbers of the memory in a call that tries a size: of products
# of channels, a kernel or the oracle may hold many times as many.
MOST_NUMBERS = 2**20


def refused_sizes(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe the allowed sizes on which a target raises, or loses an axis."""
    observed = []
    for noun, problems in _tried(scope):
        raised: dict[int, str] = {}
        reshaped: dict[int, str] = {}
        for size, problem in problems.items():
            try:
                reply = target.call(Call(problem.inputs))
            except TargetRaised as error:
                raised[size] = str(error)
                continue
            if reply.output is not None and reply.shape != reply.expected_shape:
                reshaped[size] = f"{reply.shape} in place of {reply.expected_shape}"
        for failed, verb, name, on_one in (
            (raised, "raises", "raises", "raises_on_one_token"),
            (reshaped, "returns another shape", *("returns_other_shape",) * 2),
        ):
            if failed:
                where, declared = in_words(noun, failed, problems)
                sentence = f"{verb} on {where}: {failed[min(failed)]}"
                said = on_one if where == "one token" else name
                refusal = Diagnosis(said, sentence, np.inf, declared)
                observed.append((failed.keys() == problems.keys(), refusal))
    return min(observed, key=lambda one: one[0], default=(True, None))[1]


def wrong_sizes(target: Target, scope: Scope) -> Diagnosis | None:
    """Observe outputs that are wrong for some sizes of one axis, and right for others.

    Maps have few sizes of each.
    """
    for noun, problems in _tried(scope):
        wrong = [n for n, problem in problems.items() if not is_right(target, problem)]
        if 0 < len(wrong) < len(problems):
            where, _ = in_words(noun, wrong, problems)
            sentence = f"returns a wrong output for {where}, and the right one for "
            sentence += "others that were tried"
            return Diagnosis("depends_on_sizes", sentence, np.inf)
    return None


def _tried(scope: Scope) -> Iterator[tuple[str, dict[int, Problem]]]:
    """Yield, for each axis, its name and calm calls of several sizes of it."""
    few = 2 if scope.few_shapes else None
    for noun, (axis, sizes) in TRIED.items():
        problems = {}
        for size in sizes[:few]:
            b, h, t, k, v = (size if i == axis else n for i, n in enumerate(REFUSED))
            shape = nearest_shape(scope, (b, h, t, k, v))
            if not _too_large(scope, shape):
                problem = calm_call(scope, (b, h, t, k, v))
                problems[getattr(shape, AXES[axis])] = problem
        yield noun, problems
    if scope.operator.micro_steps:
        yield MICRO_STEPS, {n: _of_micro_steps(scope, n) for n in NUMBERS[:few]}


def _too_large(scope: Scope, shape: Shape) -> bool:
    """Return True if a call of this shape has very many features."""
    features, memory = shape.numbers_per_token(scope.operator)
    return max(shape.length, shape.keys) * features + memory > MOST_NUMBERS


@lru_cache(maxsize=32)
def _of_micro_steps(scope: Scope, number: int) -> Problem:
    """Return a calm call in which each token has so many keys."""
    shape = nearest_shape(scope, REFUSED)
    shape = replace(shape, keys=number * shape.length)
    rng = np.random.default_rng(0)
    return real_problem(scope, shape, "mild", "normal", rng)
