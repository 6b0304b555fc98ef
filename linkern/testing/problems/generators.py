"""Making problems: each kind of input is named after what it does to the sums.

A problem is a draw of shape, kind and seed; its arrays follow from those. With the same
seed, a shorter sequence holds the first tokens of a longer one, so that Hypothesis can
shrink 600 tokens to the 17 that matter.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle import FeatureMap
from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.problems import gates
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.tokens import per_token, real_values, uniform
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "extreme_problem",
    "integer_problem",
    "real_problem",
    "tiny_feature_exponent",
    "with_cotangent",
]


def integer_problem(
    scope: Scope, shape: Shape, kind: str, density: str, rng: np.random.Generator
) -> Problem:
    """Make inputs whose sums are exact in any order, at the declared precision.

    Kinds, by the defect each can reach: ``dense`` small numbers everywhere, so that any
    key lost, doubled or misplaced shows; ``onehot`` few keys per query, so that weights
    stay large at the end of long sequences; ``wide`` values that fill every bit of the
    narrowest stage, so that one rounding shows; ``cancelling`` large values that are
    taken back later, so that what was rounded away while they were held shows.
    """
    present = {"zeros": 0.0, "sparse": 0.2, "dense": 1.0}[density]
    if not scope.operator.feature_map:
        return gates.integer_problem(scope, shape, kind, present, rng)
    a, b = _integer_features(scope, shape, kind, present, rng)
    room = 2 ** (scope.narrowest_bits - 1) // _reach(a, b)
    v = _integer_values(scope, shape.value, kind, room, max(present, 0.05), rng)
    return Problem(
        scope,
        f"{kind} integers",
        {
            "query": _inputs(scope.query_map, a, scope.dtype),
            "key": _inputs(scope.key_map, b, scope.dtype),
            "value": v.astype(numpy_dtype(scope.dtype)),
        },
        integers=(a, b, v),
    )


def _integer_features(
    scope: Scope, shape: Shape, kind: str, present: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return features whose denominators are powers of two, as far as that can be."""
    most = min(3, scope.query_map.largest_integer, scope.key_map.largest_integer)

    def features(size: tuple[int, ...], present: float) -> NDArray[np.int64]:
        drawn = per_token(rng, size, lambda r, s: r.integers(0, most, s, endpoint=True))
        drawn *= per_token(rng, size, lambda r, s: r.random(s) < present)
        if kind == "onehot" and present:
            one = per_token(
                rng, (*size[:-1], 1), lambda r, s: r.integers(0, size[-1], s)
            )
            drawn = (np.arange(size[-1]) == one).astype(np.int64)
        # Feature 0 is 1 in every query and key, so that no denominator is zero.
        drawn[..., 0] = 1
        return drawn

    a, b = features(shape.query, present), features(shape.key, present)
    # Twice: the filler at most doubles a denominator.
    if 2 * _reach(a, b) > 2 ** (scope.narrowest_bits - 1):
        a, b = features(shape.query, 0.0), features(shape.key, 0.0)
    largest = min(scope.query_map.largest_integer, 2**scope.input_bits)
    if shape.key_dim > 1 and shape.keys and 2 * _reach(a, b) <= largest:
        # The last feature of the first key is 1, and 0 in all others: what a query has
        # there is added to its denominator, and fills it up to a power of two.
        a[..., -1] = b[..., -1] = 0
        b[..., 0, -1] = 1
        seen = (
            np.cumsum(b, axis=-2) if scope.operator.causal else b.sum(-2)[..., None, :]
        )
        denominator = (a * seen).sum(axis=-1)
        a[..., -1] = 2 ** np.ceil(np.log2(denominator)).astype(np.int64) - denominator
    return a, b


def _reach(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """Return the largest sum of weights of a row, or of features of the keys."""
    total = b.sum(axis=-2, keepdims=True)
    return max(int((a * total).sum(axis=-1).max(initial=1)), int(total.max(initial=1)))


def _integer_values(
    scope: Scope,
    shape: tuple[int, ...],
    kind: str,
    room: int,
    present: float,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    most = max(1, min(room, 2**scope.input_bits))
    if kind in ("dense", "onehot"):
        most = min(most, 9)
    v = per_token(rng, shape, lambda r, s: r.integers(-most, most, s, endpoint=True))
    v *= per_token(rng, shape, lambda r, s: r.random(s) < present)
    if kind == "cancelling":
        held = shape[-2] // 2
        v[..., held : 2 * held, :] = -v[..., :held, :]
        v += per_token(rng, shape, lambda r, s: r.integers(-1, 1, s, endpoint=True))
        v = np.clip(v, -most, most)
    return v


def _inputs(
    feature_map: FeatureMap, features: NDArray[Any], dtype: str
) -> NDArray[Any]:
    assert feature_map.from_integers is not None
    return feature_map.from_integers(features).astype(numpy_dtype(dtype))


def tiny_feature_exponent(scope: Scope) -> int:
    """Return how small ``2^-n`` features can be and still be right.

    The textbook evaluation of ``elu(x) + 1`` has an absolute error of one unit
    roundoff, so features of at least its 0.8th power keep some relative accuracy. Maps
    without such an error, or declared to have none, can go down to ``2^-40``.
    """
    stages = scope.contract.precisions(scope.dtype)
    sums = (stages.accumulator, stages.score, stages.state, stages.normalizer)
    # Products of two features are among the normal numbers of float16 down to here.
    lowest = 5 if "float16" in (*sums, stages.feature, stages.operand) else 40
    absolute = scope.contract.feature_error == "absolute"
    maps = {scope.query_map.name, scope.key_map.name}
    if not (absolute and "elu_plus_one" in maps) and scope.dtype != "float16":
        return lowest
    names = (stages.accumulator, stages.feature)
    bits = min(SIGNIFICAND_BITS[name] for name in names if name)
    return min(lowest, int(0.8 * bits))


def real_problem(
    scope: Scope, shape: Shape, kind: str, values: str, rng: np.random.Generator
) -> Problem:
    """Make inputs that round.

    Kinds of features: ``normal`` inputs; ``uniform`` features; ``wide`` features over
    twelve powers of two; ``constant``, whose rounding errors add up; ``bigfirst``, a
    first key that swamps the rest; ``needle``, one key that outweighs all; ``tiny``, as
    small as an honest ``elu(x) + 1`` can be, where any epsilon shows. Values:
    ``normal``, ``uniform``, ``positive`` and far from zero, ``constant`` per channel,
    ``alternating`` in sign.
    """
    if not scope.operator.feature_map:
        return gates.real_problem(scope, shape, kind, values, rng)
    a = _real_features(scope, shape.query, kind, rng)
    b = _real_features(scope, shape.key, kind, rng)
    if kind == "bigfirst" and shape.keys:
        b[..., 0, :] *= 2.0**10
    if kind == "needle" and shape.keys:
        b[..., rng.integers(shape.keys), :] *= 2.0**6
    dtype = numpy_dtype(scope.dtype)
    query = scope.query_map.preimage(a).astype(dtype)
    key = scope.key_map.preimage(b).astype(dtype)
    value = real_values(shape.value, values, rng).astype(dtype)
    inputs = {"query": query, "key": key, "value": value}
    return Problem(scope, f"{kind} features, {values} values", inputs)


def with_cotangent(problem: Problem, rng: np.random.Generator) -> Problem:
    """Add a cotangent of the output: small integers to integers, normal ones else."""
    shape = problem.shape.of("bgtv")
    if problem.has_exact_sums:
        drawn = per_token(rng, shape, lambda r, s: r.integers(-3, 3, s, endpoint=True))
    else:
        drawn = per_token(rng, shape, lambda r, s: r.normal(size=s))
    return replace(
        problem, cotangent=drawn.astype(numpy_dtype(problem.scope.output_dtype))
    )


# The largest exponents of the formats that sums are formed in, and of inputs.
_LARGEST = {
    "float16": 15,
    "bfloat16": 127,
    "tfloat32": 127,
    "float32": 127,
    "float64": 1023,
}


def extreme_problem(
    scope: Scope, shape: Shape, kind: str, rng: np.random.Generator
) -> Problem:
    """Make inputs at the ends of what the declared arithmetic can hold.

    Kinds: ``huge`` features, as large as their sums allow; ``large`` values; ``tiny``
    features, as small as the feature map allows. No sum overflows or leaves the normal
    numbers in the declared accumulator.
    """
    if not scope.operator.feature_map:
        return gates.extreme_problem(scope, shape, kind, rng)
    precisions = scope.contract.precisions(scope.dtype)
    sums = (precisions.accumulator, precisions.score, precisions.state)
    stages = [_LARGEST[name] for name in (*sums, precisions.normalizer) if name]
    terms = int(np.ceil(np.log2(max(shape.keys * shape.key_dim, 1))))
    # A sum holds terms * feature^2 * value; two bits to spare.
    room = min(stages) - terms - 2
    inputs_of = (scope.dtype, precisions.feature, precisions.operand)
    held = min(_LARGEST[name] for name in inputs_of if name) - 1
    reached = (m.largest_exponent for m in (scope.query_map, scope.key_map))
    largest = min(held, max(room // 2 - 2, 1), *reached)
    exponent, of_values = {
        "huge": (largest, 0),
        "large": (0, min(held, room - 2)),
        "tiny": (-tiny_feature_exponent(scope), 0),
    }[kind]
    drawn = real_problem(scope, shape, "uniform", "uniform", rng)
    dtype = numpy_dtype(scope.dtype)
    inputs = {
        name: feature_map.preimage(
            np.ldexp(uniform(rng, getattr(shape, name), 0.25, 1.0), exponent)
        ).astype(dtype)
        for name, feature_map in (("query", scope.query_map), ("key", scope.key_map))
    }
    value = np.ldexp(drawn.value.astype(np.float64), of_values).astype(dtype)
    made = drawn.with_inputs(value=value, **inputs)
    return replace(made, kind=f"{kind} features" if of_values == 0 else "large values")


def _real_features(
    scope: Scope, shape: tuple[int, ...], kind: str, rng: np.random.Generator
) -> NDArray[np.float64]:
    if kind == "normal":
        x = per_token(rng, shape, lambda r, s: r.normal(size=s))
        return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    if kind == "wide":
        return np.exp2(uniform(rng, shape, -6, 6))
    if kind == "tiny":
        lowest = -tiny_feature_exponent(scope)
        return np.exp2(uniform(rng, shape, lowest, lowest / 2))
    if kind == "constant":
        return np.full(shape, rng.uniform(0.5, 1.5))
    return uniform(rng, shape, 0.1, 1.0)
