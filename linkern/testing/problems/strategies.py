"""Hypothesis strategies for problems; each says which defects it can reach."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from linkern.testing.problems import gates, reach
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import (
    extreme_problem,
    integer_problem,
    real_problem,
    with_cotangent,
)
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import (
    EDGES,
    FEW_LENGTHS,
    FEW_TILE_DIMS,
    LARGE,
    LONGEST,
    TILE_DIMS,
    kept,
    one_of,
    shapes,
    short_lengths,
)

__all__ = [
    "INTEGER_KINDS",
    "REAL_KINDS",
    "VALUE_KINDS",
    "batch_problems",
    "broadcast_heads",
    "busy_problems",
    "extreme_problems",
    "generators",
    "gradient_problems",
    "integer_problems",
    "long_problems",
    "no_integers",
    "random_problems",
    "real_problems",
    "repeated_problems",
    "short_problems",
    "tile_problems",
    "with_choice",
    "with_cut",
    "with_cuts",
    "with_scale",
]

_EVENLY = st.integers(0, 2**16 - 1)
# Tokens of a call that is made many times.
REPEATED_LENGTH = 70
# Where each shape is compiled, and each scale: those of a length, and where it is cut.
FEW_SCALES: dict[int, tuple[str, ...]] = {
    1: ("omitted",),
    2: ("halved",),
    17: ("declared",),
    65: ("omitted",),
    130: ("halved",),
}
FEW_CUTS = {17: (2,), 65: (1, 17), 130: (2, 65)}
# Tokens that are read far behind them.
FIRST_TOKENS = 16
# Independent draws: what the probabilistic tier may be used on.
RANDOM_KINDS = ("normal", "uniform")
INTEGER_KINDS = ("dense", "onehot", "wide", "cancelling")
REAL_KINDS = ("normal", "uniform", "wide", "constant", "bigfirst", "needle")
VALUE_KINDS = (
    "normal",
    "uniform",
    "alternating",
    "outlier",
    "gaps",
    "sorted",
    "alike",
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
    density = draw(one_of("zeros", "sparse", "dense"))
    kind = draw(one_of(*kinds))
    return integer_problem(scope, shape, kind, density, draw(generators(scope)))


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
    """Problems that round: reaches undeclared precision, instability, epsilons.

    Kinds are those of features; an operator without any has gates of several kinds.
    """
    shape = draw(shapes(scope, least=least, least_heads=least_heads))
    kind = draw(one_of(*_kinds(scope, kinds, shape)))
    value_kind = draw(one_of(*_value_kinds(scope, values)))
    return real_problem(scope, shape, kind, value_kind, draw(generators(scope)))


def _value_kinds(scope: Scope, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the kinds of values whose sums every stage can hold."""
    narrow = "float16" in scope.stages | {scope.output_dtype}
    return tuple(kind for kind in values if not (narrow and kind == "outlier"))


def _kinds(
    scope: Scope, kinds: tuple[str, ...], shape: Shape | None = None
) -> tuple[str, ...]:
    """Return the kinds to draw from: what features are, or else what gates are."""
    if scope.operator.feature_map:
        return kinds
    independent = set(kinds) <= {*RANDOM_KINDS, "constant"}
    gated = gates.CALM if independent else gates.KINDS
    most = reach.of_strong_gates(scope)
    if shape is None or most is None or shape.keys <= most:
        return gated
    return tuple(kind for kind in gated if not gates.RECORDS[kind].short)


def no_integers(scope: Scope) -> str | None:
    """Require inputs with integer features, or sums that are exact."""
    if not scope.operator.feature_map:
        return gates.no_integers(scope)
    for feature_map in (scope.query_map, scope.key_map):
        if feature_map.from_integers is None:
            return (
                f"no input of the feature map {feature_map.name} has integer features"
            )
    if scope.contract.shortest > 2**scope.narrowest_bits:
        return "sums over sequences that long are not exact at the declared precision"
    return None


def exact_integers(scope: Scope, shape: Shape) -> bool:
    """Return True if integers of that shape can have exact sums."""
    return no_integers(scope) is None and shape.keys <= 2**scope.narrowest_bits


@st.composite
def short_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """No token or one token: reaches empty grids, reshapes of nothing, first reads."""
    length = draw(st.sampled_from(short_lengths(scope)))
    shape = draw(shapes(scope, least=length, most=length))
    kind = draw(one_of(*_kinds(scope, ("normal",))))
    return real_problem(scope, shape, kind, "normal", draw(generators(scope)))


@st.composite
def gradient_problems(
    draw: st.DrawFn,
    scope: Scope,
    *,
    least: int = 1,
    random: bool = False,
    smooth: bool = False,
) -> Problem:
    """Problems with a cotangent, integers or reals: reaches defects of backwards.

    Gates that are `smooth` are not at the ends of what they may be.
    """
    shape = draw(shapes(scope, least=least, reach=reach.of_gradients(scope)))
    rng = draw(generators(scope))
    integers = not random and exact_integers(scope, shape) and draw(st.booleans())
    if integers:
        kind = draw(one_of("dense", "onehot"))
        problem = integer_problem(scope, shape, kind, "dense", rng)
        if "log_decay" in problem.inputs:
            # What a gradient is where nothing is left, is not for integers to tell.
            opened = gates.with_decays(problem, np.zeros(1))
            problem = replace(opened, exact=True)
    else:
        kinds = RANDOM_KINDS if random else ("uniform", "normal", "needle")
        kind = draw(one_of(*_kinds(scope, kinds, shape)))
        if smooth and not scope.operator.feature_map:
            kind = "smooth"
        problem = real_problem(scope, shape, kind, "normal", rng)
    return with_cotangent(problem, rng)


@st.composite
def random_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Independent draws, for the probabilistic tier: reaches undeclared precision."""
    values = ("normal", "uniform", "outlier")
    return draw(real_problems(scope, kinds=RANDOM_KINDS, values=values))


@st.composite
def long_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Thousands of tokens, few dimensions: reaches drift, narrow indices and sums.

    One channel of values has the first tokens alone: what is far is not lost in what is
    near, which rounds by more.
    """
    # The first is drawn in every run: a chunk of up to 256 behind 2,048 is full, and
    # what was lost of it shows in the next.
    lengths: tuple[int, ...] = (3000, 2305, 2049)
    far = reach.of_long_outputs(scope)
    if far.most is not None:
        lengths = (641, 600, 1025)
    shape = draw(
        shapes(
            scope,
            lengths=lengths,
            key_dims=(4,),
            pairs=((4, 2), (3, 5)),
            reach=far,
        )
    )
    kind = draw(one_of("random", "onehot"))
    rng = draw(generators(scope))
    if kind == "onehot" and exact_integers(scope, shape):
        return integer_problem(scope, shape, "onehot", "sparse", rng)
    # Decays would add up to more error than a sum of all has.
    calm = "uniform" if scope.operator.feature_map else "open"
    made = real_problem(scope, shape, calm, "positive", rng)
    value = made.value.copy()
    value[:, :, FIRST_TOKENS:, 0] = 0
    return made.with_inputs(value=value)


@st.composite
def tile_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Dimensions above one tile, and no powers of two: reaches masks of channels."""
    pairs: tuple[tuple[int, int], ...] = TILE_DIMS
    if scope.few_shapes:
        most = scope.operator.largest_key_dim
        pairs = tuple(x for x in FEW_TILE_DIMS if most is None or x[0] <= most)[:1]
    shape = draw(shapes(scope, lengths=(17, 1, 40, 66), pairs=pairs))
    rng = draw(generators(scope))
    if exact_integers(scope, shape) and draw(st.booleans()):
        return integer_problem(scope, shape, "dense", "sparse", rng)
    return real_problem(scope, shape, _kinds(scope, ("uniform",))[0], "normal", rng)


@st.composite
def busy_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Take calls long enough to meet each other: reaches shared scratch memory."""
    pairs = ((4, 5),) if scope.few_shapes else ((16, 17), (16, 33))
    shape = draw(shapes(scope, lengths=(513, 600), least_heads=2, pairs=pairs))
    calm = _kinds(scope, ("uniform",))[0]
    return real_problem(scope, shape, calm, "normal", draw(generators(scope)))


@st.composite
def batch_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Batches of two to nine: reaches tiles and splits that are chosen by the batch."""
    shape = draw(shapes(scope, least=2, most=LONGEST))
    most = max(2, min(9, LARGE // max(1, shape.length * shape.value_dim)))
    if not scope.few_shapes:
        shape = replace(shape, batch=draw(st.integers(2, most)))
    kind = draw(one_of(*_kinds(scope, RANDOM_KINDS)))
    return real_problem(scope, shape, kind, "normal", draw(generators(scope)))


@st.composite
def repeated_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Take calls that are made many times: reaches what is kept from call to call."""
    shape = draw(shapes(scope, least=2, most=REPEATED_LENGTH))
    rng = draw(generators(scope))
    if exact_integers(scope, shape) and draw(st.booleans()):
        return integer_problem(scope, shape, "dense", "dense", rng)
    kind = draw(one_of(*_kinds(scope, RANDOM_KINDS)))
    return real_problem(scope, shape, kind, "normal", rng)


@st.composite
def extreme_problems(draw: st.DrawFn, scope: Scope) -> Problem:
    """Features and values at the ends of their range: reaches silent overflow."""
    kind = draw(st.sampled_from(("huge", "large", "tiny")))
    return extreme_problem(scope, draw(shapes(scope)), kind, draw(generators(scope)))


@st.composite
def broadcast_heads(draw: st.DrawFn, problems: st.SearchStrategy[Problem]) -> Problem:
    """Make all heads equal, so that one can stand for all of them in memory."""
    problem = draw(problems)
    equal = dict(problem.inputs)
    for name, x in problem.inputs.items():
        axis = problem.scope.operator.input(name).head_axis
        if axis is not None:
            equal[name] = np.repeat(np.take(x, [0], axis), x.shape[axis], axis)
    return problem.with_inputs(**equal)


@st.composite
def with_cuts(
    draw: st.DrawFn, problems: st.SearchStrategy[Problem], *, most: int = 3
) -> Problem:
    """Add cuts of the tokens into spans, at the edges of tiles most of the time."""
    problem = draw(problems)
    last = max(problem.length - 1, 1)
    step = problem.scope.contract.length_multiple_of
    near = [n for n in EDGES if n <= last] or [1]
    one = st.integers(1, last) | st.sampled_from(near)
    if problem.scope.few_shapes:
        few = FEW_CUTS.get(problem.length, FEW_LENGTHS)
        one, most = st.sampled_from([n for n in few if n <= last] or [1]), 1
    drawn = draw(st.lists(one, min_size=1, max_size=most))
    rounded = {-(-n // step) * step for n in drawn}
    cuts = sorted(n for n in rounded if n < problem.length)
    return problem.told(cuts=tuple(cuts))


@st.composite
def with_cut(draw: st.DrawFn, problems: st.SearchStrategy[Problem]) -> Problem:
    """Add a cut of the tokens into past and future."""
    problem = draw(problems)
    last = max(problem.length - 1, 1)
    cuts = st.integers(1, last)
    if problem.scope.few_shapes:
        cuts = st.sampled_from([n for n in FEW_LENGTHS if n <= last])
    return problem.told(cut=draw(cuts))


@st.composite
def with_choice(
    draw: st.DrawFn, /, problems: st.SearchStrategy[Problem], **choices: tuple[Any, ...]
) -> Problem:
    """Add one value for each named knob."""
    problem = draw(problems)
    # Hypothesis draws one of few values unevenly, and one of many evenly.
    drawn = {
        name: values[draw(_EVENLY) % len(values)] for name, values in choices.items()
    }
    return problem.told(**drawn)


@st.composite
def with_scale(draw: st.DrawFn, problems: st.SearchStrategy[Problem]) -> Problem:
    """Leave the scale to the default of the target, or pass half of it, now and then.

    Reaches: defaults of the wrong value, scales that are ignored or applied twice.
    """
    problem = draw(problems)
    scales = problem.scope.scales
    if len(scales) == 1:
        return problem
    # Hypothesis draws one of few values unevenly, and one of many evenly.
    shares: tuple[str, ...] = ("declared", "omitted", "halved", "omitted", "declared")
    if problem.length == 1:  # few problems have one token, which may take its own path
        shares = ("declared", "omitted", "omitted", "omitted", "omitted")
    if problem.scope.few_shapes:
        shares = FEW_SCALES.get(problem.length, shares)
    scale = shares[draw(_EVENLY) % len(shares)]
    if scale == "declared" or scale not in scales:
        return problem
    return problem.scaled(scale)


@kept
def generators(scope: Scope) -> st.SearchStrategy[np.random.Generator]:
    """NumPy generators, by the seed of the run and a small number that shrinks well."""
    small = st.integers(0, 2**16 - 1)
    return small.map(lambda drawn: np.random.default_rng((scope.seed, drawn)))
