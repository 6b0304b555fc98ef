"""Integers for operators with gates: sums that are exact in any order, and erases too.

Decays are none or all. What erases is a unit vector that leaves nothing behind: one
channel, or a row of a Hadamard matrix whose length is a power of two; so every state is
an integer, or one times a power of two, however it was computed.
"""

import numpy as np
from numpy.typing import NDArray

from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.draws import RATES
from linkern.testing.problems.tokens import per_token

__all__ = ["integer_inputs", "no_integers"]

Real = NDArray[np.float64]
# From here on, what is left of a number is below any rounding.
_ALL_BUT_NOTHING, _ALL_GONE = -150.0, -1024.0
_HELD = 0.85


def no_integers(scope: Scope) -> str | None:
    """Ask for an operator and a contract under which sums can be exact."""
    if scope.operator.inexact:
        return f"no input makes it exact: {scope.operator.inexact}"
    if scope.contract.l2norm is not None:
        return "it normalises queries and keys itself, so no input makes it exact"
    if scope.contract.shortest > 2**scope.narrowest_bits:
        return "sums over sequences that long are not exact at the declared precision"
    return None


def integer_inputs(
    scope: Scope, shape: Shape, kind: str, present: float, rng: np.random.Generator
) -> dict[str, Real]:
    """Draw inputs in float64; log-decays are natural logarithms.

    Parameters
    ----------
    scope, shape : Scope, Shape
        For which operator, and how large.
    kind : str
        As for linear attention: ``dense``, ``onehot``, ``wide``, ``cancelling``.
    present : float
        The share of entries that are not zero.
    rng : Generator
        Where they come from.
    """
    operator, drawn = scope.operator, dict[str, Real]()
    erases = operator.erases
    for one in operator.inputs:
        size = shape.of(one.axes)
        rows = size if len(one.axes) == 4 else (*size, 1)
        if not one.per_token:
            rows = (1, *size)
        drawn[one.name] = _small(rng, rows, present).reshape(size)
    kept = operator.erase_along
    written = "key" if kept == "value" else "value"
    if erases:
        # Decays of single channels leave a part of a direction that has many.
        whole = not any(
            one.name == "log_decay" and one.axes[-1] in "kv" for one in operator.inputs
        )
        drawn[kept] = _directions(drawn[kept].shape, rng, whole=whole)
    elif kind == "onehot" and "key" in drawn:
        drawn["key"] = _one_hot(drawn["key"].shape, rng)
    room = 2 ** (scope.narrowest_bits - 1) // _reach(shape, drawn)
    most = max(1, min(room, 2**scope.input_bits))
    if kind in ("dense", "onehot"):
        most = min(most, 9)
    drawn[written] = _values(drawn[written].shape, kind, most, max(present, 0.05), rng)
    _gates(scope, drawn, kept, rng)
    return drawn


def _reach(shape: Shape, drawn: dict[str, Real]) -> int:
    """Return how many times the largest value any sum can be, at most."""
    largest = 1.0
    factors = ("query", "key", "bonus", "level_scales", "skip")
    for name in (*factors, "value_mix", "output_mix"):
        if name in drawn:
            largest *= max(1.0, float(abs(drawn[name]).max(initial=0)))
    largest *= shape.rank  # of the queries of a token, each reads all of its keys
    # Every key, each read through all channels, and taken back once.
    if "momentum_beta" in drawn:  # in the memory, and beside it
        largest *= 2
    return int(2 * largest * max(shape.keys, 1) * max(shape.key_dim, 1))


def _gates(
    scope: Scope, drawn: dict[str, Real], kept: str, rng: np.random.Generator
) -> None:
    """Replace what are rates and directions by those that leave integers."""
    for name in (*RATES, "dt"):
        if name in drawn:
            drawn[name] = _coin(drawn[name].shape, rng)
    if "angle" in drawn:  # a rotation leaves no integers
        drawn["angle"] = np.zeros(drawn["angle"].shape)
    if "log_decay" in drawn:
        floor = scope.contract.decay_floor
        least = floor if floor < _ALL_BUT_NOTHING else 0.0
        held = _coin(drawn["log_decay"].shape, rng)
        drawn["log_decay"] = np.where(held == 1, 0.0, least)
    if "log_decay_rate" in drawn:  # finite: a step of zero times it is zero
        held = _coin(drawn["log_decay_rate"].shape, rng)
        drawn["log_decay_rate"] = np.where(held == 1, 0.0, _ALL_GONE)
    if "log_range" in drawn:  # keys are written as they are
        held = _coin(drawn["preconditioner_log_decay"].shape, rng)
        drawn["preconditioner_log_decay"] = np.where(held == 1, 0.0, _ALL_GONE)
        drawn["log_range"] = np.zeros_like(drawn["log_range"])
    if "momentum_log_decay" in drawn:
        # A correction is made twice at most: a momentum that stays runs away.
        held = _coin(drawn["momentum_log_decay"].shape, rng)
        held[..., ::2] = 0
        gone = -np.inf if np.isinf(scope.contract.decay_floor) else _ALL_GONE
        drawn["momentum_log_decay"] = np.where(held == 1, 0.0, gone)
    if "auxiliary_key" in drawn:
        # Another direction would take away what was never there, again and again.
        drawn["auxiliary_key"] = drawn[kept].copy()
    if "removal_key" in drawn:
        drawn["removal_key"] = _one_hot(drawn["removal_key"].shape, rng)
    if {"a", "b"} <= drawn.keys():
        drawn["b"] = _one_hot(drawn["b"].shape, rng)
        drawn["a"] = -drawn["b"] * _coin((*drawn["b"].shape[:-1], 1), rng)
    for name in ("key",) if {"a", "removal_key"} & drawn.keys() else ():
        drawn[name] = _one_hot(drawn[name].shape, rng)
    if "erase_gate" in drawn:
        # Of a direction that is only partly erased, something is left.
        drawn["key"] = _one_hot(drawn["key"].shape, rng)


def _small(rng: np.random.Generator, rows: tuple[int, ...], present: float) -> Real:
    drawn = per_token(rng, rows, lambda r, s: r.integers(0, 3, s, endpoint=True))
    there = per_token(rng, rows, lambda r, s: r.random(s) < max(present, 0.2))
    return np.asarray(drawn * there, dtype=np.float64)


def _coin(shape: tuple[int, ...], rng: np.random.Generator) -> Real:
    rows = shape if len(shape) == 4 else (*shape, 1)
    drawn = per_token(rng, rows, lambda r, s: r.random(s) < _HELD)
    return drawn.reshape(shape).astype(np.float64)


def _one_hot(shape: tuple[int, ...], rng: np.random.Generator) -> Real:
    one = per_token(rng, (*shape[:-1], 1), lambda r, s: r.integers(0, shape[-1], s))
    return np.asarray(np.arange(shape[-1]) == one, dtype=np.float64)


def _directions(
    shape: tuple[int, ...], rng: np.random.Generator, *, whole: bool
) -> Real:
    """Draw one vector of an orthonormal basis for each token."""
    chosen = _one_hot(shape, rng)
    dim = shape[-1]
    power_of_four = dim & (dim - 1) == 0 and dim.bit_length() % 2 == 1
    if not (whole and power_of_four) or rng.random() < 0.5:
        return chosen
    basis = np.ones((1, 1))
    while len(basis) < dim:
        basis = np.block([[basis, basis], [basis, -basis]])
    return np.asarray(chosen @ basis * dim**-0.5)


def _values(
    shape: tuple[int, ...],
    kind: str,
    most: int,
    present: float,
    rng: np.random.Generator,
) -> Real:
    v = per_token(rng, shape, lambda r, s: r.integers(-most, most, s, endpoint=True))
    v *= per_token(rng, shape, lambda r, s: r.random(s) < present)
    if kind == "cancelling":
        held = shape[-2] // 2
        v[..., held : 2 * held, :] = -v[..., :held, :]
    return v.astype(np.float64)
