"""Hypothesis strategies for problems; each says which defects it can reach."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from linkern.testing.generators import integer_problem, real_problem
from linkern.testing.problem import Problem, Scope, Shape

__all__ = [
    "INTEGER_KINDS",
    "REAL_KINDS",
    "VALUE_KINDS",
    "integer_problems",
    "real_problems",
    "shapes",
    "short_lengths",
    "short_problems",
    "with_choice",
    "with_cut",
]

# Tiles and chunks are powers of two: these lengths leave a full one, an almost full one
# and a tail of one, up to a chunk of 512.
EDGES = (1, 2, 3, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256)
LONG = (200, 257, 300, 511, 513, 640, 1025)
LONGEST = 320
# Where each shape is compiled: around one chunk of 16, one of 64 and one of 128.
FEW_LENGTHS = (1, 2, 17, 65, 130)
FEW_DIMS = (4,)
DIMS = (1, 2, 3, 4, 5, 8, 16, 17, 33, 64, 65, 100, 128, 129)
# Beyond this many entries of all states together, one head is enough.
LARGE = 2**20

INTEGER_KINDS = ("dense", "onehot", "wide", "cancelling")
REAL_KINDS = ("normal", "uniform", "wide", "constant", "bigfirst", "needle")
VALUE_KINDS = ("normal", "uniform", "alternating")


def lengths(
    scope: Scope, *, least: int = 1, most: int | None = None
) -> st.SearchStrategy[int]:
    """Lengths that the contract allows, around every edge of a tile or chunk.

    Reaches: lost and doubled keys at chunk edges, tails not written, masks off by one
    in the last tile.
    """
    contract = scope.contract
    step = contract.length_multiple_of
    least = max(least, contract.min_length)
    limit = min(x for x in (most, contract.max_length, 10**9) if x is not None)

    def allowed(length: int) -> int:
        rounded = -(-length // step) * step
        largest = limit // step * step
        return max(min(rounded, largest), -(-least // step) * step)

    if scope.few_shapes:
        return st.sampled_from(FEW_LENGTHS).map(allowed)
    unbounded = st.one_of(
        st.integers(least, max(least, min(LONGEST, limit))),
        st.sampled_from(EDGES + LONG),
    )
    return unbounded.map(allowed)


def dims(
    allowed: tuple[int, ...], preferred: tuple[int, ...] = ()
) -> st.SearchStrategy[int]:
    """Dimensions that the contract allows, small ones most of the time.

    Reaches: swapped channels, tiles that assume K = V or a multiple of 8.
    """
    if allowed:
        return st.sampled_from(sorted(allowed))
    usual = st.one_of(st.integers(1, 8), st.sampled_from(DIMS))
    return st.sampled_from(preferred) | usual if preferred else usual


@st.composite
def shapes(
    draw: st.DrawFn,
    scope: Scope,
    *,
    least: int = 1,
    most: int | None = None,
    least_heads: int = 1,
    key_dims: tuple[int, ...] = (),
) -> Shape:
    """Shapes that the contract allows, K != V and several heads among them."""
    contract = scope.contract
    length = draw(lengths(scope, least=least, most=most))
    keys = length
    if not scope.operator.causal and not contract.equal_lengths and draw(st.booleans()):
        keys = draw(lengths(scope, least=max(least, 1), most=most))
    few = FEW_DIMS if scope.few_shapes else ()
    key_dim = draw(dims(contract.key_dims or few, key_dims))
    value_dim = key_dim
    if not contract.equal_dims:
        value_dim = draw(dims(contract.value_dims or tuple(n + 1 for n in few)))
    large = max(length, keys) * key_dim * value_dim > LARGE
    batch, heads = draw(leading_axes(scope, least_heads, large=large))
    return Shape(batch, heads, length, keys, key_dim, value_dim)


@st.composite
def leading_axes(
    draw: st.DrawFn, scope: Scope, least_heads: int, *, large: bool
) -> tuple[int, int]:
    """Batch and heads; as few as possible for large problems and compiled targets.

    Reaches: swapped heads, batches taken for heads, a last head that is left out.
    """
    batches, heads = [1, 2], [n for n in (1, 2, 3, 5) if n >= least_heads]
    if scope.few_shapes:
        batches, heads = [1], [2]
    elif large:
        batches, heads = [1], heads[:1]
    layout = scope.contract.layout
    return (
        draw(st.sampled_from(batches)) if "b" in layout else 1,
        draw(st.sampled_from(heads)) if "h" in layout else 1,
    )


@st.composite
def integer_problems(
    draw: st.DrawFn,
    scope: Scope,
    *,
    least: int = 1,
    kinds: tuple[str, ...] = INTEGER_KINDS,
) -> Problem:
    """Problems whose sums are exact: reaches structural defects, at any length."""
    most = 2 ** (scope.narrowest_bits - 3)
    # Where K is a power of 4, a factor K^-0.5 on the scores is exact too.
    shape = draw(shapes(scope, least=least, most=max(most, least), key_dims=(4, 16)))
    density = draw(st.sampled_from(("zeros", "sparse", "dense")))
    kind = draw(st.sampled_from(kinds))
    return integer_problem(scope, shape, kind, density, draw(generators()))


@st.composite
def real_problems(
    draw: st.DrawFn,
    scope: Scope,
    *,
    least: int = 1,
    least_heads: int = 1,
    kinds: tuple[str, ...] = REAL_KINDS,
    values: tuple[str, ...] = VALUE_KINDS,
) -> Problem:
    """Problems that round: reaches undeclared precision, instability, epsilons."""
    shape = draw(shapes(scope, least=least, least_heads=least_heads))
    kind = draw(st.sampled_from(kinds))
    value_kind = draw(st.sampled_from(values))
    return real_problem(scope, shape, kind, value_kind, draw(generators()))


def short_lengths(scope: Scope) -> list[int]:
    """Which of the lengths 1 and 0 the contract allows."""
    contract = scope.contract
    most = 1 if contract.max_length is None else min(contract.max_length, 1)
    step = contract.length_multiple_of
    return [n for n in range(most, contract.min_length - 1, -1) if n % step == 0]


@st.composite
def short_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """No token or one token: reaches empty grids, reshapes of nothing, first reads."""
    length = draw(st.sampled_from(short_lengths(scope)))
    shape = draw(shapes(scope, least=length, most=length))
    return real_problem(scope, shape, "normal", "normal", draw(generators()))


@st.composite
def with_cut(draw: st.DrawFn, problems: st.SearchStrategy[Problem]) -> Problem:
    """Add a cut of the tokens into past and future."""
    problem = draw(problems)
    last = max(problem.length - 1, 1)
    cuts = st.integers(1, last)
    if problem.scope.few_shapes:
        cuts = st.sampled_from([n for n in FEW_LENGTHS if n <= last])
    return _knob(problem, cut=draw(cuts))


@st.composite
def with_choice(
    draw: st.DrawFn, /, problems: st.SearchStrategy[Problem], **choices: tuple[Any, ...]
) -> Problem:
    """Add one value for each named knob."""
    problem = draw(problems)
    drawn = {name: draw(st.sampled_from(values)) for name, values in choices.items()}
    return _knob(problem, **drawn)


def generators() -> st.SearchStrategy[np.random.Generator]:
    """NumPy generators, by seed."""
    return st.integers(0, 2**16 - 1).map(np.random.default_rng)


def _knob(problem: Problem, **knobs: Any) -> Problem:
    return replace(problem, knobs={**problem.knobs, **knobs})
