"""The fixed problems that a target is asked, each made to show some defects.

Lengths that leave other tails for every power of two up to 256, and for 100; integers
whose sums show every defect of structure, reals that show what rounds, features so
small that any epsilon shows, dimensions above one tile.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any

import numpy as np

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import (
    integer_problem,
    real_problem,
    with_cotangent,
)
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import fitted, short_lengths
from linkern.testing.problems.strategies import no_integers
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "asked_again",
    "far",
    "in_spans",
    "placed",
    "spans_to_differentiate",
    "to_differentiate",
    "whole",
    "with_nan",
]

# Batch, heads, length, key and value dimension.
SMALL = (2, 3, 47, 4, 5)
MIDDLE = (1, 2, 113, 18, 20)
LONG = (1, 1, 393, 4, 5)
TILES = (1, 1, 65, 136, 140)
SQUARE = (1, 2, 47, 5, 5)
FAR = (1, 1, 2100, 4, 5)


Questions = Callable[[Scope], Iterator[Problem]]


def asked_again(questions: Questions) -> Callable[[Scope], tuple[Problem, ...]]:
    """Ask the next target of a scope the same, with answers that are known by then."""

    @lru_cache(maxsize=8)
    @wraps(questions)
    def made(scope: Scope) -> tuple[Problem, ...]:
        problems = tuple(questions(scope))
        for problem in problems:
            for x in problem.inputs.values():
                x.flags.writeable = False
        return problems

    return made


@asked_again
def whole(scope: Scope) -> Iterator[Problem]:
    """Yield problems; neighbours of one shape show what is kept between calls."""
    rng = np.random.default_rng(0)
    small, middle, long, tiles = (
        _shape(scope, sizes) for sizes in (SMALL, MIDDLE, LONG, TILES)
    )
    normal = real_problem(scope, small, "normal", "normal", rng)
    other = real_problem(scope, small, "normal", "normal", rng)
    yield normal
    yield other
    yield normal
    yield normal.with_inputs(value=normal.value * normal.value.dtype.type(-2))
    yield normal.with_inputs(key=_after_first(normal.key, other.key))
    yield real_problem(scope, small, "tiny", "constant", rng)
    yield real_problem(scope, middle, "normal", "normal", rng)
    yield real_problem(scope, long, "normal", "normal", rng)
    yield real_problem(scope, tiles, "normal", "normal", rng)
    if no_integers(scope) is None:
        for kind in ("dense", "wide"):
            yield integer_problem(scope, small, kind, "dense", rng)
        yield _large_first_value(integer_problem(scope, small, "dense", "dense", rng))
        for of in ("query", "key"):
            yield from _large_features(scope, small, of, rng)
        yield integer_problem(scope, middle, "wide", "dense", rng)
        yield _large_first_value(integer_problem(scope, middle, "dense", "dense", rng))
        yield integer_problem(scope, long, "dense", "dense", rng)
        yield integer_problem(scope, long, "cancelling", "dense", rng)
    yield from _one_token(scope)


def _one_token(scope: Scope) -> Iterator[Problem]:
    """Yield one token, whose output is its value: from tiny to huge ones."""
    if 1 not in short_lengths(scope):
        return
    shape = replace(_shape(scope, SMALL), length=1, keys=1)
    rng = np.random.default_rng(1)
    drawn = real_problem(scope, shape, "uniform", "normal", rng)
    sizes = np.geomspace(2.0**-6, 2.0**14, drawn.value.size).reshape(shape.value)
    signs = np.where(drawn.value.astype(np.float64) < 0, -1.0, 1.0)
    yield drawn.with_inputs(value=(signs * sizes).astype(drawn.value.dtype))


@asked_again
def with_nan(scope: Scope) -> Iterator[Problem]:
    """Yield values of which one is NaN."""
    if scope.contract.nan_policy != "any":
        rng = np.random.default_rng(6)
        made = real_problem(scope, _shape(scope, SMALL), "normal", "normal", rng)
        value = made.value.copy()
        value[..., made.length // 3, 0] = np.nan
        yield made.with_inputs(value=value)


@asked_again
def placed(scope: Scope) -> Iterator[Problem]:
    """Yield integers that lie in memory in every way that there is."""
    if scope.contract.strides == "contiguous" or no_integers(scope) is not None:
        return
    rng = np.random.default_rng(7)
    made = integer_problem(scope, _shape(scope, SMALL), "dense", "dense", rng)
    for style in scope.styles:
        # Heads that share their memory are another problem.
        if style != "broadcast":
            yield made.told(memory=style)


@asked_again
def far(scope: Scope) -> Iterator[Problem]:
    """Yield a sequence beyond the lengths that tests usually try."""
    shape = _shape(scope, FAR)
    if shape.length == FAR[2] and no_integers(scope) is None:
        yield integer_problem(scope, shape, "dense", "dense", np.random.default_rng(2))


@asked_again
def in_spans(scope: Scope) -> Iterator[Problem]:
    """Yield problems to be cut: inside a chunk, between chunks, more than once."""
    rng = np.random.default_rng(3)
    for sizes, cuts in ((SMALL, (21,)), (SQUARE, (16, 40)), (MIDDLE, (50,))):
        step = scope.contract.length_multiple_of
        shape = _shape(scope, sizes)
        fitting = tuple(
            dict.fromkeys(
                n for cut in cuts if 0 < (n := cut // step * step) < shape.length
            )
        )
        made = [real_problem(scope, shape, "normal", "normal", rng)]
        if no_integers(scope) is None:
            for kind in ("dense", "wide"):
                made.append(integer_problem(scope, shape, kind, "dense", rng))
        for problem in made if fitting else ():
            yield problem.told(cuts=fitting)


@asked_again
def to_differentiate(scope: Scope) -> Iterator[Problem]:
    """Yield problems with a cotangent."""
    rng = np.random.default_rng(4)
    for sizes in (SMALL, SQUARE, MIDDLE):
        shape = _shape(scope, sizes)
        yield with_cotangent(real_problem(scope, shape, "normal", "normal", rng), rng)
        if no_integers(scope) is None:
            made = integer_problem(scope, shape, "dense", "dense", rng)
            yield with_cotangent(made, rng)


@asked_again
def spans_to_differentiate(scope: Scope) -> Iterator[Problem]:
    """Yield problems to be cut, with a cotangent."""
    rng = np.random.default_rng(5)
    for problem in in_spans(scope):
        if "wide" not in problem.kind:
            yield with_cotangent(problem, rng)


def _shape(scope: Scope, sizes: tuple[int, int, int, int, int]) -> Shape:
    """Return the shape nearest to `sizes` that the contract allows."""
    batch, heads, length, key_dim, value_dim = sizes
    contract = scope.contract
    length = fitted(scope)(length)
    keys = length
    if not scope.operator.causal and not contract.equal_lengths:
        keys = fitted(scope)(length - length // 5)
    key_dim = _nearest(key_dim, contract.key_dims)
    value_dim = (
        key_dim if contract.equal_dims else _nearest(value_dim, contract.value_dims)
    )
    batch = batch if "b" in contract.layout else 1
    heads = heads if "h" in contract.layout else 1
    return Shape(batch, heads, length, keys, key_dim, value_dim)


def _nearest(wanted: int, allowed: tuple[int, ...]) -> int:
    return min(allowed, key=lambda n: abs(n - wanted)) if allowed else wanted


def _after_first(first: Any, rest: Any) -> Any:
    """Return the first token of one array and the other tokens of another."""
    return np.concatenate([first[..., :1, :], rest[..., 1:, :]], axis=-2)


def _large_first_value(problem: Problem) -> Problem:
    """Return the problem with a first value beyond the range of float16.

    Its sums are too large for narrow stages, declared ones among them.
    """
    narrow = problem.scope.narrowest_bits < SIGNIFICAND_BITS["float32"]
    if narrow or problem.scope.dtype == "float16":
        return problem
    assert problem.integers is not None
    a, b, v = problem.integers
    v = v.copy()
    v[..., 0, :] = np.where(v[..., 0, :] == 0, 1, v[..., 0, :]) * 2**17
    changed = problem.with_inputs(value=v.astype(problem.value.dtype))
    return replace(changed, integers=(a, b, v))


def _large_features(
    scope: Scope, shape: Shape, of: str, rng: np.random.Generator
) -> Iterator[Problem]:
    """Yield a problem whose queries, or keys, have features of up to 13 bits.

    The inputs are rounded to their dtype first: ``elu(x) + 1`` of a bfloat16 has more
    bits than a bfloat16. The other features and the values are small.
    """
    maps = {"query": scope.query_map, "key": scope.key_map}
    most = min(2**13, maps[of].largest_integer)
    if most < 2**8 or scope.narrowest_bits < SIGNIFICAND_BITS["float32"]:
        return
    made = integer_problem(scope, shape, "onehot", "dense", rng)
    assert made.integers is not None
    a, b, v = made.integers
    features = {"query": np.minimum(a, 1), "key": np.minimum(b, 1)}
    # Of all sizes, since rounding to a bfloat16 hides in the largest of them.
    sizes = rng.uniform(0, np.log2(most), getattr(shape, of))
    features[of] = np.exp2(sizes).astype(np.int64)
    dtype = numpy_dtype(scope.dtype)
    inputs: dict[str, Any] = {}
    for name, feature_map in maps.items():
        assert feature_map.from_integers is not None
        inputs[name] = feature_map.from_integers(features[name]).astype(dtype)
        held = feature_map.value(inputs[name].astype(np.float64))
        features[name] = held.astype(np.int64)
    v = np.clip(v, -3, 3)
    integers = features["query"], features["key"], v
    kind = f"integers, large {of} features"
    inputs["value"] = v.astype(dtype)
    yield Problem(scope, kind, inputs, integers=integers)
