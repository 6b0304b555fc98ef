"""The fixed problems that every target is asked, each made to show some defects.

Lengths that leave other tails for every power of two up to 256, and for 100; integers
whose sums show every defect of structure, reals that show what rounds, features so
small that any epsilon shows, gates of every strength, dimensions above one tile.
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
from linkern.testing.problems.shapes import Sizes, nearest_shape, short_lengths
from linkern.testing.problems.strategies import no_integers
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "far",
    "in_spans",
    "packed",
    "placed",
    "spans_to_differentiate",
    "to_differentiate",
    "whole",
    "with_nan",
    "without_gates",
]

# Batch, heads, length, key and value dimension.
SMALL = (2, 3, 47, 4, 5)
MIDDLE = (1, 2, 113, 18, 20)
LONG = (1, 1, 393, 4, 5)
TILES = (1, 1, 65, 136, 140)
SQUARE = (1, 2, 47, 5, 5)
FAR = (1, 1, 2100, 4, 5)
# The oracle of operators with gates takes more time for each token and channel.
GATED_MIDDLE = (1, 2, 113, 6, 5)
PACKED = (1, 2, 40, 4, 5)

Inputs = Callable[[Scope], Iterator[Problem]]


def _kept(inputs: Inputs) -> Callable[[Scope], tuple[Problem, ...]]:
    """Make the problems of a scope once, so that their solutions are found once."""

    @lru_cache(maxsize=8)
    @wraps(inputs)
    def made(scope: Scope) -> tuple[Problem, ...]:
        problems = tuple(inputs(scope))
        for problem in problems:
            for x in problem.inputs.values():
                x.flags.writeable = False
        return problems

    return made


def _gates(scope: Scope) -> tuple[str, ...]:
    """Return the kinds of reals that spans and gradients are asked for."""
    return ("normal",) if scope.operator.feature_map else ("mild", "typical")


@_kept
def whole(scope: Scope) -> Iterator[Problem]:
    """Yield problems; neighbours of one shape show what is kept between calls."""
    rng = np.random.default_rng(0)
    small, kind = nearest_shape(scope, SMALL), _gates(scope)[0]
    normal = real_problem(scope, small, kind, "normal", rng)
    other = real_problem(scope, small, kind, "normal", rng)
    last = scope.operator.inputs[1 if scope.operator.feature_map else -1].name
    value = normal.inputs["value"]
    yield normal
    yield other
    yield normal
    yield normal.with_inputs(value=value * value.dtype.type(-2))
    if normal.scope.operator.input(last).token_axis is not None:
        yield normal.with_inputs(**{last: _after_first(normal, other, last)})
    yield from (_of_features if scope.operator.feature_map else _of_gates)(scope, rng)


def _of_gates(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    small = nearest_shape(scope, SMALL)
    for kind in ("typical", "long", "strong"):
        yield real_problem(scope, small, kind, "normal", rng)
    yield real_problem(scope, nearest_shape(scope, GATED_MIDDLE), "mild", "normal", rng)
    if no_integers(scope) is None:
        yield integer_problem(scope, small, "dense", "dense", rng)
    yield _small_values(real_problem(scope, small, "typical", "normal", rng))


def _small_values(problem: Problem) -> Problem:
    """Return the problem with outputs that are subnormal in float16 alone."""
    value = np.ldexp(problem.value.astype(np.float64), -14)
    return problem.with_inputs(value=value.astype(problem.value.dtype))


def _of_features(scope: Scope, rng: np.random.Generator) -> Iterator[Problem]:
    small, middle, long, tiles = (
        nearest_shape(scope, sizes) for sizes in (SMALL, MIDDLE, LONG, TILES)
    )
    yield real_problem(scope, small, "tiny", "constant", rng)
    for shape in (middle, long, tiles):
        yield real_problem(scope, shape, "normal", "normal", rng)
    if no_integers(scope) is None:
        for kind in ("dense", "wide"):
            yield integer_problem(scope, small, kind, "dense", rng)
        yield _large_first_value(integer_problem(scope, small, "dense", "dense", rng))
        for name in ("query", "key"):
            yield from _large_features(scope, small, name, rng)
        yield integer_problem(scope, middle, "wide", "dense", rng)
        yield _large_first_value(integer_problem(scope, middle, "dense", "dense", rng))
        yield integer_problem(scope, long, "dense", "dense", rng)
        yield integer_problem(scope, long, "cancelling", "dense", rng)
    yield from _one_token(scope)


def _one_token(scope: Scope) -> Iterator[Problem]:
    """Yield one token, whose output is its value: from tiny to huge ones."""
    if 1 not in short_lengths(scope):
        return
    shape = replace(nearest_shape(scope, SMALL), length=1, keys=1)
    rng = np.random.default_rng(1)
    drawn = real_problem(scope, shape, "uniform", "normal", rng)
    sizes = np.geomspace(2.0**-6, 2.0**14, drawn.value.size).reshape(shape.value)
    signs = np.where(drawn.value.astype(np.float64) < 0, -1.0, 1.0)
    yield drawn.with_inputs(value=(signs * sizes).astype(drawn.value.dtype))


@_kept
def with_nan(scope: Scope) -> Iterator[Problem]:
    """Yield values of which one is NaN."""
    if scope.operator.feature_map and scope.contract.nan_policy != "any":
        rng = np.random.default_rng(6)
        made = real_problem(scope, nearest_shape(scope, SMALL), "normal", "normal", rng)
        value = made.value.copy()
        value[..., made.length // 3, 0] = np.nan
        yield made.with_inputs(value=value)


@_kept
def placed(scope: Scope) -> Iterator[Problem]:
    """Yield integers that lie in memory in every way that there is."""
    if scope.contract.strides == "contiguous" or no_integers(scope) is not None:
        return
    rng = np.random.default_rng(7)
    made = integer_problem(scope, nearest_shape(scope, SMALL), "dense", "dense", rng)
    for style in scope.styles:
        # Heads that share their memory are another problem.
        if style != "broadcast":
            yield made.told(memory=style)


@_kept
def far(scope: Scope) -> Iterator[Problem]:
    """Yield a sequence beyond the lengths that tests usually try."""
    if not scope.operator.feature_map:
        return  # its oracle takes minutes for as many tokens
    shape = nearest_shape(scope, FAR)
    if shape.length == FAR[2] and no_integers(scope) is None:
        yield integer_problem(scope, shape, "dense", "dense", np.random.default_rng(2))


@_kept
def without_gates(scope: Scope) -> Iterator[Problem]:
    """Yield problems without one of the gates, then without another."""
    rng = np.random.default_rng(1)
    made = real_problem(
        scope, nearest_shape(scope, SMALL), _gates(scope)[0], "normal", rng
    )
    taken = dict(zip(scope.operator.names, scope.interface.inputs, strict=False))
    for one in scope.operator.inputs:
        name = taken.get(one.name)
        if one.optional and name is not None and name not in scope.interface.needed:
            yield made.without(one.name)


@_kept
def in_spans(scope: Scope) -> Iterator[Problem]:
    """Yield problems to be cut: inside a chunk, between chunks, more than once."""
    rng = np.random.default_rng(3)
    cut_at: tuple[tuple[Sizes, tuple[int, ...]], ...] = (
        (SMALL, (21,)),
        (SQUARE, (16, 40)),
        (MIDDLE, (50,)),
    )
    for sizes, cuts in cut_at if scope.operator.feature_map else cut_at[:2]:
        step, shape = scope.contract.length_multiple_of, nearest_shape(scope, sizes)
        inner = {cut // step * step for cut in cuts}
        fitting = tuple(sorted(n for n in inner if 0 < n < shape.length))
        made = [real_problem(scope, shape, k, "normal", rng) for k in _gates(scope)]
        if scope.operator.feature_map and no_integers(scope) is None:
            for kind in ("dense", "wide"):
                made.append(integer_problem(scope, shape, kind, "dense", rng))
        for problem in made if fitting else ():
            yield problem.told(cuts=fitting)


@_kept
def packed(scope: Scope) -> Iterator[Problem]:
    """Yield packed sequences, an empty one among them."""
    rng = np.random.default_rng(4)
    shape = replace(nearest_shape(scope, PACKED), batch=1)
    for edges in ((0, 7, 33), (0, 5, 5, 21), (0, 16)):
        made = real_problem(scope, shape, _gates(scope)[0], "normal", rng)
        ends = (*(n for n in edges if n < made.length), made.length)
        yield made.told(segments=ends)


@_kept
def to_differentiate(scope: Scope) -> Iterator[Problem]:
    """Yield problems with a cotangent."""
    rng = np.random.default_rng(4)
    for sizes in (SMALL, SQUARE, MIDDLE)[: 3 if scope.operator.feature_map else 2]:
        shape = nearest_shape(scope, sizes)
        made = [real_problem(scope, shape, k, "normal", rng) for k in _gates(scope)]
        if scope.operator.feature_map and no_integers(scope) is None:
            made.append(integer_problem(scope, shape, "dense", "dense", rng))
        yield from (with_cotangent(problem, rng) for problem in made)


@_kept
def spans_to_differentiate(scope: Scope) -> Iterator[Problem]:
    """Yield problems to be cut, with a cotangent."""
    rng = np.random.default_rng(5)
    for problem in in_spans(scope):
        if "wide" not in problem.kind:
            yield with_cotangent(problem, rng)


def _after_first(first: Problem, rest: Problem, name: str) -> Any:
    """Return an input with the first token of one problem, then those of another."""
    axis = first.scope.operator.input(name).token_axis
    parts = first.of_tokens(name, 0, 1), rest.of_tokens(name, 1, None)
    return np.concatenate(parts, axis=axis)


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
    scope: Scope, shape: Shape, name: str, rng: np.random.Generator
) -> Iterator[Problem]:
    """Yield a problem whose queries, or keys, have features of up to 13 bits.

    The inputs are rounded to their dtype first: ``elu(x) + 1`` of a bfloat16 has more
    bits than a bfloat16. The other features and the values are small.
    """
    maps = {"query": scope.query_map, "key": scope.key_map}
    most = min(2**13, maps[name].largest_integer)
    if most < 2**8 or scope.narrowest_bits < SIGNIFICAND_BITS["float32"]:
        return
    made = integer_problem(scope, shape, "onehot", "dense", rng)
    assert made.integers is not None
    a, b, v = made.integers
    features = {"query": np.minimum(a, 1), "key": np.minimum(b, 1)}
    # Of all sizes, since rounding to a bfloat16 hides in the largest of them.
    sizes = rng.uniform(0, np.log2(most), getattr(shape, name))
    features[name] = np.exp2(sizes).astype(np.int64)
    dtype = numpy_dtype(scope.dtype)
    inputs: dict[str, Any] = {}
    for one, feature_map in maps.items():
        assert feature_map.from_integers is not None
        inputs[one] = feature_map.from_integers(features[one]).astype(dtype)
        held = feature_map.value(inputs[one].astype(np.float64))
        features[one] = held.astype(np.int64)
    v = np.clip(v, -3, 3)
    integers = features["query"], features["key"], v
    kind = f"integers, large {name} features"
    inputs["value"] = v.astype(dtype)
    yield Problem(scope, kind, inputs, integers=integers)
