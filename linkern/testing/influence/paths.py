"""Bits of a number that survive on its way from an input to the output.

One quantity at a time has a full significand: a value, a key, a gate, a product of the
two. All others have few bits, and tokens besides are neutral where the operator has
neutral tokens. The value of one more token, chosen by the exact weights, takes back
nearly all of the output, so that an output of few bits shows what was lost before it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.oracle.bounds import SIGNIFICAND_BITS
from linkern.testing.errors import TargetRaised
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import real_problem
from linkern.testing.problems.problem import Problem
from linkern.testing.problems.shapes import nearest_shape
from linkern.testing.problems.sparse import neutral_inputs, no_neutral
from linkern.testing.target.frameworks import numpy_dtype
from linkern.testing.target.process import Target
from linkern.testing.target.protocol import Call

__all__ = [
    "DISTANCES",
    "LENGTH",
    "SIZES",
    "Survival",
    "ask",
    "few_bits",
    "survivals",
    "tokens_of",
    "usual_bits",
]

Real = NDArray[np.float64]
Only = tuple[str, tuple[tuple[int, int], ...]] | None
# Length, key and value dimension: the later ones for kernels that take whole tiles.
SIZES = ((140, 4, 5), (128, 16, 16), (128, 64, 64))
HEADS, LENGTH = 8, SIZES[0][0]
# Distances from the source to the row: at the first that is rounded, a state was.
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
# Significand bits of rows that have few. Gates have one: what a token writes is a
# product of both, and of the value that takes back.
FEW = 3
# Bits of the value that takes back: fewer than any format has. Sums in float64 need
# more to show in outputs of float32.
BACK = 7
# The log-decay of tokens whose log-decays have a full significand.
CALM = -0.75
# Inputs whose significands are no path of their own.
NO_PATH = {"value", "query", "key"}


@dataclass(frozen=True)
class Survival:
    """Bits of one path.

    Parameters
    ----------
    path : str
        The quantity with a full significand: ``value key query score state
        normalizer``, ``erase`` for what a row erases of it, or the name of another
        input.
    distance : int
        Tokens from the source to the row.
    bits : int
        How many survived.
    limit : int
        How many the inputs held; what survived is no less if `lost` is False.
    lost : bool
        True if more was lost than rounding as declared explains.
    errors : tuple of float
        Relative errors of all numbers that were read.
    scaled : bool
        True if each head is a multiple of what it should be, which no rounding makes.
    """

    path: str
    distance: int
    bits: int
    limit: int
    lost: bool
    errors: tuple[float, ...] = ()
    scaled: bool = False


@dataclass(frozen=True)
class _Entry:
    """A batch entry: its path, the row that is read, bits of each input at its source.

    Inputs that are not in `bits` have few.
    """

    path: str
    row: int
    bits: Mapping[str, int]
    source: int = 0


def survivals(
    target: Target, scope: Scope, only: Only = None, length: int = LENGTH
) -> tuple[Survival, ...]:
    """Return the bits that survive on each path, in one call of many batch entries.

    The sizes are the first that the target takes.

    Parameters
    ----------
    target : Target
        Loaded.
    scope : Scope
        What it claims and declares.
    only : (str, tuple of (int, int)), optional
        A path, and the source and row of each pair of tokens that it is taken between;
        by default, all paths from the first token.
    length : int
        Tokens of a sequence.

    Raises
    ------
    DoesNotApply
        If the contract allows no sequence of a few tokens.
    TargetRaised, TargetDied
        If the target does not answer.
    """
    dims = _dims(target, scope)
    if length != LENGTH:
        dims = (length, *dims[1:])
    entries, problem, sizes = _problem(scope, only, dims)
    measured = ask(target, problem)
    exact = problem.solve()
    unit = 2.0 ** -SIGNIFICAND_BITS[scope.output_dtype]
    smallest = 2.0**-25 if scope.output_dtype == "float16" else 0.0
    allowed = exact.bound + unit * abs(exact.output) + smallest
    survived = []
    for at, entry in enumerate(entries):
        place = (at, slice(None), entry.row)
        size = abs(sizes[place])
        least = 2.0**-10 if scope.output_dtype == "float16" else 2.0**-60
        known = (size > least) & np.isfinite(allowed[place])
        if not known.any():
            continue
        away = measured[place] - exact.output[place]
        lost = bool((abs(away) > allowed[place])[known].any())
        errors = away[known] / sizes[place][known]
        if entry.path == "normalizer":
            errors = _common(measured[place], exact.output[place], unit)[known]
        relative = np.max(abs(errors))
        limit = min(sum(entry.bits.values()), SIGNIFICAND_BITS["float64"])
        bits = limit if relative == 0 else int(min(limit, np.floor(-np.log2(relative))))
        # What is erased is the same part of all channels.
        told = entry.row > entry.source or entry.path == "value"
        told &= lost and entry.path not in ("normalizer", "erase")
        scaled = told and _is_scaled(away, exact.output[place])
        shown = tuple(errors.tolist())
        survived.append(
            Survival(
                entry.path,
                entry.row - entry.source,
                max(bits, 0),
                limit,
                lost,
                shown,
                scaled,
            )
        )
    return tuple(survived)


def tokens_of(scope: Scope, length: int) -> int:
    """Return the tokens between which paths are measured at a length.

    A contract may allow no sequence of that many.
    """
    shape = _shape(scope, (length, 1, 1))
    return min(shape.length, shape.keys)


def usual_bits(bits: int) -> int:
    """Return the bits of a dtype that are one apart or less, or the bits themselves.

    The largest of a few errors is somewhat smaller than half of a unit, and two
    roundings make one that is somewhat larger.
    """
    near = [n for n in SIGNIFICAND_BITS.values() if abs(n - bits) <= 1]
    return min(near, key=lambda n: abs(n - bits), default=bits)


def _dims(target: Target, scope: Scope) -> tuple[int, int, int]:
    """Return the first sizes that the target takes."""
    kind = "uniform" if scope.operator.feature_map else "mild"
    for dims in SIZES:
        shape = _shape(scope, dims)
        made = real_problem(scope, shape, kind, "normal", np.random.default_rng(0))
        try:
            target.call(Call(made.inputs))
        except TargetRaised:
            if dims == SIZES[-1]:
                raise
        else:
            break
    return dims


def _shape(scope: Scope, dims: tuple[int, int, int]) -> Shape:
    """Return the allowed shape of one batch entry that is nearest to some sizes."""
    length, key_dim, value_dim = dims
    shape = nearest_shape(scope, (1, HEADS, length, key_dim, value_dim))
    each = shape.keys // shape.length if scope.operator.micro_steps else 1
    return nearest_shape(scope, (1, HEADS, each * length, key_dim, value_dim))


def ask(target: Target, problem: Problem) -> Real:
    """Return the output, of one batch entry after the other if there is no batch.

    It is NaN if the target returns none of its shape.
    """
    shape = problem.shape
    whole = "b" in problem.scope.contract.layout
    parts = [problem] if whole else [problem.of_batch([n]) for n in range(shape.batch)]
    outputs = [target.call(Call(part.inputs)).output for part in parts]
    sizes = shape.of("bgtv")
    if any(x is None for x in outputs):
        return np.full(sizes, np.nan)
    joined = np.concatenate([np.asarray(x, np.float64) for x in outputs])
    return joined if joined.shape == sizes else np.full(sizes, np.nan)


def _is_scaled(away: Real, exact: Real) -> bool:
    """Return True if the errors of each head are proportional to its outputs."""
    with np.errstate(all="ignore"):
        factors = (away * exact).sum(-1) / (exact * exact).sum(-1)
        rest = away - factors[..., None] * exact
    return bool(abs(rest).max() < abs(away).max() / 8)


def _common(measured: Real, exact: Real, unit: float) -> Real:
    """Return the relative error that all channels of a row have in common.

    Each channel confines it to the rounding of its own output.
    """
    with np.errstate(all="ignore"):
        low, high = ((measured + side * unit * abs(exact)) / exact for side in (-1, 1))
        low, high = np.minimum(low, high), np.maximum(low, high)
        least, most = np.fmax.reduce(low, -1), np.fmin.reduce(high, -1)
    error = np.maximum(least - 1, 0.0) - np.maximum(1 - most, 0.0)
    return np.broadcast_to(error[..., None], measured.shape)


def _entries(scope: Scope, length: int, only: Only) -> list[_Entry]:
    """Return the batch entries of all paths that an operator has, or of one path."""
    whole = SIGNIFICAND_BITS[scope.dtype]
    # A product of two numbers of half of the bits of a sum is exact.
    declared = scope.contract.precisions(scope.dtype).accumulator
    half = min(whole, max(SIGNIFICAND_BITS[declared], whole) // 2)
    names = scope.operator.names
    state = {"key": half, "value": half} if "key" in names else {"value": whole}
    far = max((n for n in DISTANCES if n < length), default=1)
    paths: dict[str, tuple[dict[str, int], tuple[int, ...]]]
    paths = {"value": ({"value": whole}, (0,))}
    paths |= {n: ({n: whole}, (1,)) for n in ("key", "query") if n in names}
    if {"query", "key"} <= {*names}:
        paths["score"] = {"query": half, "key": half}, (1,)
    if not scope.operator.erases:
        paths["sum"] = {"value": whole}, (2,)
    paths["state"] = state, DISTANCES
    if scope.operator.erases and scope.operator.erase_along == "key":
        paths["erase"] = {"key": whole - FEW}, (1, far)
    if scope.normalised and "key" in names:
        paths["normalizer"] = {"key": whole}, (1, far)
    for one in scope.operator.inputs:
        if one.token_axis is not None and one.name not in NO_PATH:
            paths[one.name] = {one.name: whole}, (2,)
    if only is not None:
        path, pairs = only
        entries = [_Entry(path, row, paths[path][0], source) for source, row in pairs]
    else:
        entries = [
            _Entry(path, row, bits)
            for path, (bits, rows) in paths.items()
            for row in rows
        ]
    return [one for one in entries if one.row < length]


@lru_cache(maxsize=8)
def _problem(
    scope: Scope, only: Only, dims: tuple[int, int, int]
) -> tuple[list[_Entry], Problem, Real]:
    """Return the entries, their problem, and the outputs before any is taken back."""
    shape = _shape(scope, dims)
    entries = _entries(scope, min(shape.length, shape.keys), only)
    shape = replace(shape, batch=len(entries))
    kind = "uniform" if scope.operator.feature_map else "mild"
    rng = np.random.default_rng(0)
    problem = real_problem(scope, shape, kind, "normal", rng)
    each = shape.keys // shape.length if scope.operator.micro_steps else 1
    inputs = {
        name: few_bits(np.asarray(x, np.float64), FEW if name in NO_PATH else 1)
        for name, x in problem.inputs.items()
    }
    for at, entry in enumerate(entries):
        _arrange(scope, inputs, at, entry, each, rng)
    dtype = numpy_dtype(scope.dtype)
    made = problem.with_inputs(**{n: x.astype(dtype) for n, x in inputs.items()})
    sizes = made.solve().output
    return entries, _taken_back(made, entries, each), sizes


def few_bits(x: Real, bits: int) -> Real:
    """Return numbers of few significand bits near the ones passed."""
    mantissa, exponent = np.frexp(x)
    kept = np.rint(np.ldexp(mantissa, bits))
    return np.asarray(np.ldexp(kept, exponent - bits), dtype=np.float64)


def _full(x: Real, bits: int, rng: np.random.Generator) -> Real:
    """Return numbers of the same sign and power of two that have so many bits."""
    _, exponent = np.frexp(x)
    drawn = rng.integers(2 ** (bits - 1), 2**bits, x.shape) | 1
    made = np.copysign(np.ldexp(drawn.astype(np.float64), exponent - bits), x)
    return np.asarray(made, dtype=np.float64)


def _arrange(
    scope: Scope,
    inputs: dict[str, Any],
    at: int,
    entry: _Entry,
    each: int,
    rng: np.random.Generator,
) -> None:
    """Make one batch entry: neutral tokens, a source, a token that takes back."""
    neutral = neutral_inputs(scope) if no_neutral(scope) is None else {}
    for name, x in inputs.items():
        one = scope.operator.input(name)
        axis = one.token_axis
        if axis is None or "b" not in one.axes:
            continue
        tokens = np.moveaxis(x[at], axis - 1, 0)  # a view: token, head, channel
        steps = each if "s" in one.axes else 1
        source, row = entry.source * steps, entry.row * steps
        idle = np.delete(np.arange(len(tokens)), [source, row])
        if name in neutral and entry.path != "sum":
            tokens[idle] = neutral[name]
        if name == "value":
            tokens[np.arange(len(tokens)) != source] = 0.0
            if entry.path == "sum":
                precisions = scope.contract.precisions(scope.dtype)
                apart = SIGNIFICAND_BITS[precisions.accumulator] - 2 * FEW
                tokens[steps] = np.ldexp(tokens[source], -apart)
        if name in ("query", "key") and one.axes[-1] == "k":
            _directions(scope, name, tokens, (source, row), entry.path)
            if entry.path == "sum" and name == "key":
                tokens[steps] = tokens[source]
        if name in entry.bits:
            place = row if name == "query" else source
            span = slice(place, place + 1)
            if name not in NO_PATH:
                span = slice(source, row + 1)  # gates act at or between the two
            if name == "log_decay" and scope.contract.decay_form == "log":
                tokens[span] = max(CALM, scope.contract.decay_floor)
            if entry.path != "sum":
                made = _full(tokens[span], entry.bits[name], rng)
                # What is written in other channels would be erased by the row.
                kept = scope.operator.erases & (tokens[span] == 0)
                tokens[span] = np.where(kept, 0.0, made)
    if entry.path == "normalizer":
        # Values of the other token alone, so that the numerator has few bits.
        value = np.moveaxis(inputs["value"][at], 1, 0)
        value[entry.row * each] = few_bits(rng.uniform(1, 2, value[0].shape), FEW + 3)
        value[entry.source * each] = 0.0


def _directions(
    scope: Scope, name: str, tokens: Real, ends: tuple[int, int], path: str
) -> None:
    """Lay keys of source and other token apart, and queries along both.

    Where an erase is the path, the key of the row is along both, and the query reads
    what is erased there and not what was written.
    """
    features = {"query": scope.query_map, "key": scope.key_map}[name]
    if scope.operator.feature_map and features.from_integers is None:
        return
    (source, row), erase = ends, path == "erase"
    chosen = np.zeros(tokens.shape)
    last = min(1, tokens.shape[-1] - 1)
    if name == "query":
        chosen[..., last * erase : last + 1] = 1.0
    else:
        chosen[row, :, last * (not erase) : last + 1], chosen[source, :, 0] = 1.0, 1.0
    if scope.operator.feature_map and features.from_integers is not None:
        chosen = np.asarray(features.from_integers(chosen.astype(np.int64)), np.float64)
        if not features.homogeneous and name == "key":
            # A feature of 1 has no bits to fill, and one near 1 hides those of its key.
            chosen[source, :, 0] = 2.5
    tokens[...] = chosen


def _taken_back(problem: Problem, entries: list[_Entry], each: int) -> Problem:
    """Return the problem in which the last token takes back most of each row read."""
    if "value" not in problem.scope.linear:
        return problem
    value, ones = problem.value.astype(np.float64), np.zeros(problem.value.shape)
    for at, entry in enumerate(entries):
        if entry.path != "normalizer":
            ones[at, :, entry.row * each] = 1.0
    dtype, scope = problem.value.dtype, problem.scope
    summed = SIGNIFICAND_BITS[scope.contract.precisions(scope.dtype).accumulator]
    outputs = max(SIGNIFICAND_BITS[x] for x in (scope.output_dtype, "float32"))
    bits = max(BACK, min(summed - outputs, SIGNIFICAND_BITS[scope.dtype]))
    weights = problem.with_inputs(value=ones.astype(dtype)).solve().output
    output = problem.solve().output
    for at, entry in enumerate(entries):
        if entry.row == entry.source or entry.path == "normalizer":
            continue
        weight, size = weights[at, :, entry.row], output[at, :, entry.row]
        with np.errstate(all="ignore"):
            back = np.where(abs(weight) > 2.0**-6, -size / weight, 0.0)
        value[at, :, entry.row * each] = few_bits(back, bits)
    return problem.with_inputs(value=value.astype(dtype))
