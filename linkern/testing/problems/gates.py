"""Making problems of operators with gates: decays, erases, slots, bonuses.

Each input is drawn for its role, as the kind of the problem says
(`linkern.testing.problems.kinds`).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.draws import (
    DRAWS,
    POSITIVE,
    RATES,
    erasing_vectors,
    normal,
    unit,
)
from linkern.testing.problems.forms import form_of, is_raw
from linkern.testing.problems.integers import integer_inputs, no_integers
from linkern.testing.problems.kinds import CALM, RECORDS, Kind
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.tokens import per_token, real_values
from linkern.testing.spec.operators import Input
from linkern.testing.target.frameworks import numpy_dtype

__all__ = [
    "CALM",
    "KINDS",
    "RECORDS",
    "altered",
    "extreme_problem",
    "integer_problem",
    "no_integers",
    "real_problem",
    "with_decays",
    "with_numbers",
]

# Strong gates and long keys show the most, so they come twice.
KINDS = (*(name for name in RECORDS if name != "smooth"), "strong", "long")

# Kernels may refuse a rate beyond it: with a key of length one, it reflects.
LARGEST_RATE = 2.0

# Log-decays other than `log_decay`, which contracts declare forms of.
_HALVED = ("log_decay_rate", "preconditioner_log_decay", "momentum_log_decay")

Real = NDArray[np.float64]


def real_problem(
    scope: Scope, shape: Shape, kind: str, values: str, rng: np.random.Generator
) -> Problem:
    """Make inputs that round, under gates of a kind."""
    drawn: dict[str, Real] = {}
    record = RECORDS[kind]
    for one in scope.operator.inputs:
        drawn[one.name] = _drawn(scope, one, shape, record, values, rng)
    _related(scope, drawn, record, rng)
    if record.scaled:
        _scale(scope, drawn, rng)
    drawn = {name: as_declared(scope, x, name) for name, x in drawn.items()}
    dtype = numpy_dtype(scope.dtype)
    inputs = {name: x.astype(dtype) for name, x in drawn.items()}
    return Problem(scope, f"{kind} gates, {values} values", inputs)


def integer_problem(
    scope: Scope, shape: Shape, kind: str, present: float, rng: np.random.Generator
) -> Problem:
    """Make inputs whose sums are exact in any order, at the declared precision."""
    drawn = integer_inputs(scope, shape, kind, present, rng)
    drawn = {name: as_declared(scope, x, name) for name, x in drawn.items()}
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
    return with_numbers(problem, "log_decay", decays)


def with_numbers(problem: Problem, name: str, meant: Real) -> Problem:
    """Return a problem in which an input means other numbers."""
    x = problem.inputs[name]
    whole = np.broadcast_to(np.asarray(meant, dtype=np.float64), x.shape)
    declared = as_declared(problem.scope, whole, name).astype(x.dtype)
    return problem.with_inputs(**{name: declared.copy()})


def as_declared(scope: Scope, meant: Real, name: str = "log_decay") -> Real:
    """Return natural log-decays, or another input, as the target takes them."""
    if name == "log_decay":
        meant = np.maximum(meant, scope.contract.decay_floor)
    form = form_of(scope.contract, scope.operator.input(name))
    return meant if form is None else form.taken(meant)


def altered(problem: Problem, name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return other numbers that the same input may hold as well."""
    one, half = x.dtype.type(1), x.dtype.type(0.5)
    if problem.scope.operator.feature_map:
        other = 2 * x[..., ::-1] + half
    elif name == "log_decay" and problem.scope.contract.decay_form == "factor":
        other = x * half
    elif name in _HALVED or is_raw(
        problem.scope.contract, problem.scope.operator.input(name)
    ):
        other = half * x - half
    elif name == "log_decay":
        floor = as_declared(problem.scope, np.full(1, -np.inf))
        other = np.maximum(x * half - half, floor.astype(x.dtype))
    elif name in RATES:
        other = one - half * x
    elif name in POSITIVE:
        other = half * x + half
    else:
        other = -x[..., ::-1]
    # Older versions of ml_dtypes widen what is multiplied by a number.
    return np.asarray(other, x.dtype)


def _drawn(
    scope: Scope,
    one: Input,
    shape: Shape,
    kind: Kind,
    values: str,
    rng: np.random.Generator,
) -> Real:
    """Draw one input, token by token."""
    size = shape.of(one.axes)
    # As if every token had a row of its own: those that have but a number, too.
    rows = size if len(one.axes) == 4 else (*size, 1)
    if not one.per_token:
        rows = (1, *size)
    draw = DRAWS.get(one.draw or one.name, normal)
    if scope.operator.erases and one.name == scope.operator.erase_along:
        draw = erasing_vectors
    elif one.name == "value":
        return real_values(size, values, rng)
    drawn = draw(scope, rng, rows, kind)
    if one.name in ("query", "key") and scope.contract.l2norm is not None:
        drawn = drawn * _lengths(rng, (*rows[:-1], 1), scope.contract.l2norm)
    return drawn.reshape(size)


def _lengths(rng: np.random.Generator, rows: tuple[int, ...], epsilon: float) -> Real:
    """Draw how long rows are that will be normalised: some as short as their epsilon.

    A longer row does not show where under the root an epsilon is, or whether there is.
    """
    short = np.sqrt(epsilon) or 2.0**-10
    return per_token(rng, rows, lambda r, s: r.choice((1.0, 1.0, 4.0, short), s))


def _related(
    scope: Scope, drawn: dict[str, Real], kind: Kind, rng: np.random.Generator
) -> None:
    """Make inputs that belong together fit each other, so that nothing explodes."""
    names = drawn.keys()
    if "auxiliary_key" in names:
        length = np.sqrt((drawn["key"] ** 2).sum(axis=-1, keepdims=True))
        other = unit(drawn["key"]) + 0.3 * drawn["auxiliary_key"]
        drawn["auxiliary_key"] = length * unit(other)
    if {"a", "b"} <= names:
        direction, free = drawn["a"], drawn["b"]
        rate = DRAWS["beta"](scope, rng, (*free.shape[:-1], 1), kind)
        # A reflection is one along its own direction only.
        apart = 0.0 if kind.rates == "ends" else 0.1
        drawn["a"] = -rate * direction
        drawn["b"] = unit(direction + apart * free)
    if "log_range" in names:
        # What is written may be longer than the key: by no more than this.
        drawn["beta"] = drawn["beta"] * np.exp(-drawn["log_range"])[:, None]
    if {"momentum_beta", "momentum_log_decay"} <= names:
        # A momentum that takes more than it loses runs away, and the memory with it.
        drawn["momentum_beta"] = -drawn["momentum_beta"] * np.expm1(
            drawn["momentum_log_decay"]
        )
    if kind.keys == "short" and scope.contract.l2norm is None:
        _make_up(scope, drawn)


def _make_up(scope: Scope, drawn: dict[str, Real]) -> None:
    """Raise rates of erases along short vectors, as far as kernels take them."""
    for rate, key in (
        ("beta", scope.operator.erase_along),
        ("erase_gate", "key"),
        ("removal_rate", "removal_key"),
    ):
        if rate in drawn and key in drawn:
            squares = (drawn[key] ** 2).sum(axis=-1)
            # Heads of values may be several for each head of keys.
            groups = drawn[rate].shape[1] // max(squares.shape[1], 1)
            squares = np.repeat(squares, groups, axis=1)
            wide = drawn[rate].ndim > squares.ndim
            raised = drawn[rate] / (squares[..., None] if wide else squares)
            drawn[rate] = np.minimum(raised, LARGEST_RATE)


def _scale(scope: Scope, drawn: dict[str, Real], rng: np.random.Generator) -> None:
    """Scale what the output is linear in, but for what erases, by powers of two."""
    most = 3 if "float16" in scope.stages | {scope.output_dtype} else 20
    fixed = scope.operator.erase_along if scope.operator.erases else ""
    for name in scope.linear:
        if name in drawn and name != fixed:
            drawn[name] = np.ldexp(drawn[name], rng.integers(-most, most + 1))
