"""A conventional test of a kernel: random inputs, results compared with exact ones.

Gradients and states are included where a kernel has them.
"""

import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from other_rules import AVAILABLE, Comparison, accepts

from linkern.testing import OPERATORS, Contract
from linkern.testing.kernels.assembly import Kernel, elu_plus_one, slope_of_elu
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import real_problem, with_cotangent
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "DIMS",
    "LENGTHS",
    "SEEDS",
    "SHORTER",
    "Case",
    "case",
    "cases",
    "comparisons",
    "rejected_by",
]

LINEAR = "linear_attention"
LENGTHS = (64, 256, 1000)
# Of other operators, whose correct kernels take longer: one token after the other.
SHORTER = LENGTHS[:2]
SEEDS = (0, 1)
DIMS = {"B": 2, "H": 2, "K": 32, "V": 32}
# A calibrated tolerance: the 95th percentile of errors of correct kernels, and a half.
PERCENTILE, MARGIN = 95, 1.5

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One random input, and the arrays that a test compares results with.

    Parameters
    ----------
    problem : Problem
        The inputs and a cotangent.
    output, states, gradients : array or tuple of array
        Exact results: the output, memory and normalizer, gradients of the inputs.
    plain : tuple of array
        The same of an ordinary implementation of linear attention, in one tuple; empty
        for other operators.
    """

    problem: Problem
    output: Array
    states: tuple[Array, ...]
    gradients: tuple[Array, ...]
    plain: tuple[Array, ...] = ()

    @property
    def exact(self) -> tuple[Array, ...]:
        """All exact arrays, in the order of `plain`."""
        return (self.output, *self.states, *self.gradients)


def cases(dtype: str, op: str = LINEAR) -> tuple[Case, ...]:
    """Return the inputs that every kernel of an operator is tested on."""
    lengths = LENGTHS if op == LINEAR else SHORTER
    return tuple(case(dtype, op, length, seed) for length in lengths for seed in SEEDS)


@cache
def case(dtype: str, op: str, length: int, seed: int) -> Case:
    """Return one input of an operator."""
    rng = np.random.default_rng([seed, length])
    scope = Scope(OPERATORS[op], Contract(), dtype)
    problem = (
        _normal(scope, length, rng) if op == LINEAR else _usual(scope, length, rng)
    )
    stored = numpy_dtype(dtype)
    # States are kept in the precision of the sums, all else in that of the inputs.
    assert problem.cotangent is not None
    wide = {name: x.astype(np.float64) for name, x in problem.inputs.items()}
    exact = scope.operator.evaluate(wide)
    slopes = scope.operator.gradients(wide, problem.cotangent.astype(np.float64))
    gradients = tuple(np.asarray(slopes[name]).astype(stored) for name in wide)
    plain = _ordinary(problem) if op == LINEAR else ()
    states = tuple(x.astype(np.float32) for x in exact.state)
    return Case(problem, exact.output.astype(stored), states, gradients, plain)


def _normal(scope: Scope, length: int, rng: np.random.Generator) -> Problem:
    """Draw query, key, value and cotangent from a normal distribution."""
    batch, heads, key_dim, value_dim = DIMS.values()
    dims = (key_dim, key_dim, value_dim, value_dim)
    drawn = [rng.normal(size=(batch, heads, length, dim)) for dim in dims]
    *arrays, cotangent = (x.astype(numpy_dtype(scope.dtype)) for x in drawn)
    inputs = dict(zip(scope.operator.names, arrays, strict=True))
    return Problem(scope, "normal", inputs, cotangent=cotangent)


def _usual(scope: Scope, length: int, rng: np.random.Generator) -> Problem:
    """Draw usual inputs: keys that erase of length one, gates of a logsigmoid."""
    batch, heads, key_dim, value_dim = DIMS.values()
    operator = scope.operator
    key_dim = min(key_dim, operator.largest_key_dim or key_dim)
    keys = length * (2 if operator.micro_steps else 1)
    shape = Shape(
        batch,
        heads,
        length,
        keys,
        key_dim,
        value_dim,
        slots=16,
        levels=length.bit_length() + 1,
        rank=1 + operator.ranks,
    )
    return with_cotangent(real_problem(scope, shape, "typical", "normal", rng), rng)


def _ordinary(problem: Problem) -> tuple[Array, ...]:
    """Form all scores at once, and round each step to the dtype; see `Case.plain`."""
    stored = problem.query.dtype

    def rounded(x: Array) -> Array:
        return x.astype(stored).astype(np.float32)

    def times(x: Array, y: Array) -> Array:
        return rounded(x @ y)

    def transposed(x: Array) -> Array:
        return np.swapaxes(x, -1, -2)

    assert problem.cotangent is not None
    arrays = (problem.query, problem.key, problem.value, problem.cotangent)
    x, y, v, g = (array.astype(np.float32) for array in arrays)
    a, b = rounded(elu_plus_one(x)), rounded(elu_plus_one(y))
    scores = np.tril(times(a, transposed(b)))
    total = rounded(scores.sum(-1, keepdims=True))
    weights = rounded(scores / total)
    output = times(weights, v)
    through = rounded((g * output).sum(-1, keepdims=True))
    of_scores = np.tril(rounded(rounded(times(g, transposed(v)) - through) / total))
    of_query = rounded(times(of_scores, b) * slope_of_elu(x))
    of_key = rounded(times(transposed(of_scores), a) * slope_of_elu(y))
    state = times(transposed(b), v), rounded(b.sum(-2))
    return output, *state, of_query, of_key, times(transposed(weights), g)


def comparisons(kernel: Kernel, case: Case) -> Iterator[Comparison]:
    """Yield the comparisons of a test, one call of the kernel after the other.

    Two halves are compared with the whole if the second can start from the state of the
    first; states and gradients are compared if they have the form of the exact ones.
    """
    problem = case.problem
    plain = dict(enumerate(case.plain))
    returned = kernel(*(x.copy() for x in problem.inputs.values()))
    if not isinstance(returned, tuple):
        yield Comparison(returned, case.output, plain.get(0))
        return
    output, state = returned
    yield Comparison(output, case.output, plain.get(0))
    parts = state if isinstance(state, tuple | list) else (state,)
    shapes = [getattr(x, "shape", None) for x in parts]
    if shapes == [x.shape for x in case.states]:
        for i, (part, exact) in enumerate(zip(parts, case.states, strict=True), 1):
            yield Comparison(part, exact, plain.get(i), kind="state")
    if "initial_state" in inspect.signature(kernel).parameters:
        half = problem.length // 2
        first, state = kernel(*_tokens(problem, 0, half))
        rest = _tokens(problem, half, problem.length)
        second, _ = kernel(*rest, initial_state=state)
        joined = np.concatenate([first, second], axis=-2)
        yield Comparison(joined, case.output, plain.get(0))
    if hasattr(kernel, "vjp"):
        arrays = (*problem.inputs.values(), problem.cotangent)
        gradients = kernel.vjp(*(x.copy() for x in arrays))
        for i, exact in enumerate(case.gradients):
            ordinary = plain.get(1 + len(case.states) + i)
            yield Comparison(gradients[i], exact, ordinary, 3.0, kind="gradient")


def _tokens(problem: Problem, first: int, last: int) -> list[Array]:
    part = problem.span(first, last)
    return [x.copy() for x in part.inputs.values()]


@cache
def calibrated(dtype: str, op: str = LINEAR) -> dict[str, float]:
    """Return tolerances from what correct kernels are off by on the same inputs."""
    errors = defaultdict[str, list[float]](list)
    for one in CORRECT.values():
        if one.op != op or one.contract:
            continue
        for each in cases(dtype, op):
            for pair in comparisons(one.kernel, each):
                result = np.asarray(pair.result).astype(np.float64)
                error = abs(result - pair.exact.astype(np.float64)).max()
                errors[pair.kind].append(float(error))
    return {
        kind: MARGIN * float(np.percentile(some, PERCENTILE))
        for kind, some in errors.items()
    }


def rejected_by(kernel: Kernel, dtype: str, op: str = LINEAR) -> set[str]:
    """Return the rules by which a conventional test of a kernel fails."""
    rejected: set[str] = set()
    tolerances = calibrated(dtype, op)
    for each in cases(dtype, op):
        try:
            for pair in comparisons(kernel, each):
                judged = replace(pair, tolerance=tolerances.get(pair.kind, 0.0))
                rejected |= {
                    n for n, rule in AVAILABLE.items() if not accepts(rule, judged)
                }
        except Exception:  # the kernel raised, so every test of it fails
            return set(AVAILABLE)
    return rejected
