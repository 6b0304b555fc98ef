"""A conventional test of a kernel: random inputs, results compared with exact ones.

Gradients and states are included where a kernel has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from other_rules import AVAILABLE, Comparison, accepts

from linkern.testing import OPERATORS, Contract
from linkern.testing.kernels.assembly import Kernel, elu_plus_one, slope_of_elu
from linkern.testing.problems.context import Scope
from linkern.testing.problems.problem import Problem
from linkern.testing.target.frameworks import numpy_dtype

__all__ = ["DIMS", "LENGTHS", "SEEDS", "Case", "cases", "comparisons", "rejected_by"]

LENGTHS = (64, 256, 1000)
SEEDS = (0, 1)
DIMS = {"B": 2, "H": 2, "K": 32, "V": 32}

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """One random input, and the arrays that a test compares results with.

    Parameters
    ----------
    problem : Problem
        Query, key, value and cotangent.
    exact, plain : tuple of array
        Output, memory, normalizer, and the gradients of query, key and value: exact,
        and those of an ordinary implementation.
    """

    problem: Problem
    exact: tuple[Array, ...]
    plain: tuple[Array, ...]


@cache
def cases(dtype: str) -> tuple[Case, ...]:
    """Return the inputs that every kernel is tested on."""
    return tuple(_case(dtype, length, seed) for length in LENGTHS for seed in SEEDS)


def _case(dtype: str, length: int, seed: int) -> Case:
    rng = np.random.default_rng([seed, length])
    batch, heads, key_dim, value_dim = DIMS.values()
    dims = (key_dim, key_dim, value_dim, value_dim)
    drawn = [rng.normal(size=(batch, heads, length, dim)) for dim in dims]
    query, key, value, cotangent = (x.astype(numpy_dtype(dtype)) for x in drawn)
    scope = Scope(OPERATORS["linear_attention"], Contract(), dtype)
    inputs = {"query": query, "key": key, "value": value}
    problem = Problem(scope, "normal", inputs, cotangent=cotangent)
    gradients = problem.solve_gradients().values()
    answers = (problem.solve(), *problem.solve_state(), *gradients)
    # States are kept in the precision of the sums, all else in that of the inputs.
    dtypes = (query.dtype, np.float32, np.float32, *[query.dtype] * 3)
    exact = tuple(x.output.astype(to) for x, to in zip(answers, dtypes, strict=True))
    return Case(problem, exact, _ordinary(query, key, value, cotangent))


def _ordinary(
    query: Array, key: Array, value: Array, cotangent: Array
) -> tuple[Array, ...]:
    """Form all scores at once, and round each step to the dtype; see `Case.plain`."""

    def rounded(x: Array) -> Array:
        return x.astype(query.dtype).astype(np.float32)

    def times(x: Array, y: Array) -> Array:
        return rounded(x @ y)

    def transposed(x: Array) -> Array:
        return np.swapaxes(x, -1, -2)

    x, y, v, g = (array.astype(np.float32) for array in (query, key, value, cotangent))
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
    """Yield the comparisons of a test, one call of the kernel after the other."""
    problem = case.problem
    arrays = (problem.query, problem.key, problem.value)
    expected = list(zip(case.exact, case.plain, strict=True))
    returned = kernel(*(x.copy() for x in arrays))
    if not isinstance(returned, tuple):
        yield Comparison(returned, *expected[0])
        return
    output, state = returned
    for result, pair in zip((output, *state), expected[:3], strict=True):
        yield Comparison(result, *pair)
    half = problem.length // 2
    first, state = kernel(*(x[..., :half, :].copy() for x in arrays))
    rest = (x[..., half:, :].copy() for x in arrays)
    second, _ = kernel(*rest, initial_state=state)
    yield Comparison(np.concatenate([first, second], axis=-2), *expected[0])
    if hasattr(kernel, "vjp"):
        gradients = kernel.vjp(*(x.copy() for x in (*arrays, problem.cotangent)))[:3]
        for result, pair in zip(gradients, expected[3:], strict=True):
            yield Comparison(result, *pair, multiple=3.0)


def rejected_by(kernel: Kernel, dtype: str) -> set[str]:
    """Return the rules by which a conventional test of a kernel fails."""
    rejected: set[str] = set()
    for case in cases(dtype):
        try:
            for pair in comparisons(kernel, case):
                rejected |= {
                    n for n, rule in AVAILABLE.items() if not accepts(rule, pair)
                }
        except Exception:  # the kernel raised, so every test of it fails
            return set(AVAILABLE)
    return rejected
