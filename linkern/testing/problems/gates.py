"""Making problems of operators with gates: decays, erases, slots, bonuses.

Each input is drawn for what it means: keys that erase have a length of one most of the
time, rates lie between 0 and 1, log-decays are never positive. How strong the gates are
is the kind of a problem: ``mild`` and ``typical`` decays; ``strong`` mixes of none and
of almost all; ``open`` gates, that forget nothing; ``long`` keys, that are not of
length one and erase more than there is.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.integers import integer_inputs, no_integers
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.tokens import per_token, real_values, uniform
from linkern.testing.spec.operators import Input
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "CALM",
    "KINDS",
    "altered",
    "extreme_problem",
    "integer_problem",
    "no_integers",
    "real_problem",
    "with_decays",
]

# Strong gates and long keys show the most, so they come twice.
KINDS = ("mild", "typical", "strong", "strong", "open", "long", "long")
# Gates under which the sums of all tokens stay as large as they are.
CALM = ("mild", "open")
# From nothing at all to less than float32 holds.
STRONG = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0)

Real = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...], str], Real]


def real_problem(
    scope: Scope, shape: Shape, kind: str, values: str, rng: np.random.Generator
) -> Problem:
    """Make inputs that round, under gates of a kind."""
    drawn: dict[str, Real] = {}
    for one in scope.operator.inputs:
        drawn[one.name] = _drawn(scope, one, shape, kind, values, rng)
    _related(scope, drawn)
    if "log_decay" in drawn:
        drawn["log_decay"] = as_declared(scope, drawn["log_decay"])
    dtype = numpy_dtype(scope.dtype)
    inputs = {name: x.astype(dtype) for name, x in drawn.items()}
    return Problem(scope, f"{kind} gates, {values} values", inputs)


def integer_problem(
    scope: Scope, shape: Shape, kind: str, present: float, rng: np.random.Generator
) -> Problem:
    """Make inputs whose sums are exact in any order, at the declared precision."""
    drawn = integer_inputs(scope, shape, kind, present, rng)
    if "log_decay" in drawn:
        drawn["log_decay"] = as_declared(scope, drawn["log_decay"])
    dtype = numpy_dtype(scope.dtype)
    inputs = {name: drawn[name].astype(dtype) for name in scope.operator.names}
    return Problem(scope, f"{kind} integers", inputs, exact=True)


def extreme_problem(
    scope: Scope, shape: Shape, kind: str, rng: np.random.Generator
) -> Problem:
    """Make values, or another input that the output is linear in, huge or tiny."""
    drawn = real_problem(scope, shape, "mild", "uniform", rng)
    # As far as the narrowest stage allows that a number goes through.
    stages = scope.stages | {scope.output_dtype}
    reach = 300 if stages == {"float64"} else 3 if "float16" in stages else 40
    name, exponent = {
        "huge": (scope.linear[0], reach),
        "large": (scope.linear[-1], reach),
        "tiny": (scope.linear[-1], -reach),
    }[kind]
    x = drawn.inputs[name]
    scaled = np.ldexp(x.astype(np.float64), exponent).astype(x.dtype)
    what = "tiny" if exponent < 0 else "huge"
    return replace(drawn.with_inputs(**{name: scaled}), kind=f"{what} {name}")


def with_decays(problem: Problem, decays: Real) -> Problem:
    """Return a problem with other natural log-decays."""
    x = problem.inputs["log_decay"]
    declared = as_declared(problem.scope, decays).astype(x.dtype)
    return problem.with_inputs(log_decay=np.broadcast_to(declared, x.shape).copy())


def as_declared(scope: Scope, decays: Real) -> Real:
    """Return natural log-decays as the target takes them."""
    contract = scope.contract
    kept = np.maximum(decays, contract.decay_floor)
    if contract.decay_form == "factor":
        return np.asarray(np.exp(kept))
    base = np.log(2.0) if contract.decay_log_base == "2" else 1.0
    return np.asarray(kept / base)


def altered(problem: Problem, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return other numbers that the same input may hold as well."""
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    if problem.scope.operator.feature_map:
        other = 2 * x[..., ::-1] + half
    elif name == "log_decay" and problem.scope.contract.decay_form == "factor":
        other = x * half
    elif name == "log_decay":
        floor = as_declared(problem.scope, np.full(1, -np.inf))
        other = np.maximum(x * half - half, floor.astype(x.dtype))
    elif name in _RATES:
        other = one - half * x
    elif name in _POSITIVE:
        other = half * x + half
    else:
        other = -x[..., ::-1]
    return np.asarray(other)


def _drawn(
    scope: Scope,
    one: Input,
    shape: Shape,
    kind: str,
    values: str,
    rng: np.random.Generator,
) -> Real:
    """Draw one input, token by token."""
    size = shape.of(one.axes)
    # As if every token had a row of its own: those that have but a number, too.
    rows = size if len(one.axes) == 4 else (*size, 1)
    if not one.per_token:
        rows = (1, *size)
    if one.name == "value":
        return real_values(size, values, rng)
    draw = _DRAWS.get(one.draw or one.name, _normal)
    if one.name == "key" and scope.operator.erases:
        draw = _key
    drawn = draw(rng, rows, kind)
    if one.name in ("query", "key") and scope.contract.l2norm is not None:
        drawn = drawn * _lengths(rng, (*rows[:-1], 1), scope.contract.l2norm)
    return drawn.reshape(size)


def _lengths(rng: np.random.Generator, rows: tuple[int, ...], epsilon: float) -> Real:
    """Draw how long rows are that will be normalised: some as short as their epsilon.

    A longer row does not show where under the root an epsilon is, or whether there is.
    """
    short = np.sqrt(epsilon) or 2.0**-10
    return per_token(rng, rows, lambda r, s: r.choice((1.0, 1.0, 4.0, short), s))


def _related(scope: Scope, drawn: dict[str, Real]) -> None:
    """Make inputs that belong together fit each other, so that nothing explodes."""
    names = drawn.keys()
    if "auxiliary_key" in names:
        drawn["auxiliary_key"] = _unit(drawn["key"] + 0.3 * drawn["auxiliary_key"])
    if {"a", "b"} <= names:
        direction = _unit(drawn["a"])
        rate = 0.5 + 0.5 * np.tanh(drawn["b"][..., :1])
        drawn["a"] = -rate * direction
        drawn["b"] = _unit(direction + 0.1 * drawn["b"])
    if scope.operator.erase_along == "value":
        # Here values erase.
        drawn["value"] = _unit(drawn["value"])


def _unit(x: Real) -> Real:
    norm = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return np.asarray(x / np.where(norm == 0, 1.0, norm))


def _normal(rng: np.random.Generator, rows: tuple[int, ...], kind: str) -> Real:
    del kind
    return per_token(rng, rows, lambda r, s: r.normal(size=s))


def _key(rng: np.random.Generator, rows: tuple[int, ...], kind: str) -> Real:
    key = _unit(_normal(rng, rows, kind))
    if kind == "long":
        key = key * uniform(rng, (*rows[:-1], 1), 0.2, 1.1)
    return key


def _log_decay(rng: np.random.Generator, rows: tuple[int, ...], kind: str) -> Real:
    if kind == "open":
        return np.zeros(rows)
    if kind == "typical":
        drawn = per_token(rng, rows, lambda r, s: r.normal(2, 1, s))
        return np.asarray(-np.logaddexp(0.0, -drawn))
    if kind == "strong":
        return per_token(rng, rows, lambda r, s: r.choice(STRONG, s))
    if kind == "smooth":
        return -uniform(rng, rows, 0.01, 1.0)
    return np.asarray(-abs(_normal(rng, rows, kind)) / 10)


def _rate(rng: np.random.Generator, rows: tuple[int, ...], kind: str) -> Real:
    low, high = (0.1, 0.9) if kind == "smooth" else (0.0, 1.0)
    return uniform(rng, rows, low, 1.6 if kind == "long" else high)


def _weight(rng: np.random.Generator, rows: tuple[int, ...], kind: str) -> Real:
    del kind
    return uniform(rng, rows, 0.25, 1.25)


_RATES = ("beta", "removal_rate", "erase_gate", "write_gate")
_POSITIVE = ("slots", "level_scales", "ridge")
_DRAWS: dict[str, Draw] = {
    "log_decay": _log_decay,
    "removal_key": _key,
    "unit": _key,
    "positive": _weight,
    **dict.fromkeys(_RATES, _rate),
    **dict.fromkeys(_POSITIVE, _weight),
}
