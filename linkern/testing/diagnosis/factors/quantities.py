"""Quantities at hand: the numbers of a problem that a weight can be a product of.

Each entry of an influence map has a row, a source, a head and perhaps channels. Every
input of the operator has a number at these places, and so have their neighbours, the
first and last tokens of their chunks, and the same places of another head. Log-decays
and factors of erasing also add up over ranges of tokens.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from linkern.testing.diagnosis.factors.logs import Logs, Made, at_least, log_of
from linkern.testing.diagnosis.factors.pairs import carried_sums, sums_of_pairs
from linkern.testing.diagnosis.factors.places import Places, level_of, places_of
from linkern.testing.influence.maps import PARTS_BACK, Index, InfluenceMap, Real

__all__ = ["SUMMED", "Quantity", "signed_quantities"]

# What another head costs more than that of the entry, and a factor than an input.
ANOTHER, COMPOSED = 2.0, 1.0
# Words of what an erase leaves of a whole key.
SUMMED = "over channels"
# Key channels of a tile, the first of which may be taken for those of all.
TILES = (16, 32, 64)
# The product that a token takes of a channel of the memory, or adds if it has an `a`:
# the first of which an operator has all inputs.
_ERASED = (
    "erase_gate key key",
    "beta key auxiliary_key",
    "a b",
    "removal_rate removal_key removal_key",
)


@dataclass(frozen=True, eq=False)
class Quantity:
    """One quantity, in all entries of a map.

    Parameters
    ----------
    log, sign : array (N,)
        The logarithm of its magnitude and its sign; NaN where there is none.
    cost : float
        How far it is to seek, in bits.
    """

    log: Real
    sign: Real
    cost: float = 0.0


@dataclass(frozen=True, eq=False)
class Field:
    """Logarithms of numbers of a problem along some axes."""

    name: str
    axes: str
    logs: Logs
    cost: float = 0.0
    total: str = ""  # words for its sum, or product, over tokens
    form: str = "{}"  # of its name at a token


def signed_quantities(
    entries: InfluenceMap, chunk: int | None, only: frozenset[str] | None = None
) -> dict[str, Quantity]:
    """Return the quantities at hand by their names.

    Parameters
    ----------
    entries : InfluenceMap
        The entries.
    chunk : int or None
        The size of chunks, if one is known.
    only : frozenset of str, optional
        The names that are asked for; all by default.
    """
    table: dict[str, Quantity] = {}
    places = places_of(entries, chunk)
    for made in (_counts, sums_of_pairs, carried_sums, _of_features, _of_inputs):
        for name, cost, make in made(places):
            if name not in table and (only is None or name in only):
                logs = make()
                log = np.where(np.isfinite(logs.real), logs.real, np.nan)
                if not np.isnan(log).all():
                    table[name] = Quantity(log, 1 - 2 * (logs.imag % 2), cost)
            if only == table.keys():
                return table
    return table


# -- constants and counts


def _counts(places: Places) -> Made:
    """Yield the numbers that entries of a map share, and numbers of tokens."""
    row, sizes, chunk = places.row.astype(float), places.sizes, places.chunk
    source = np.where(places.source < 0, np.nan, places.source)
    shared = {"scale": places.entries.problem.oracle_call.scale, "chunk": chunk}
    shared |= {letter.upper(): sizes[letter] for letter in "kvt"}
    if chunk is not None:
        shared["tokens of padding"] = -sizes["t"] % chunk
    shared["padded K"] = 1 << (sizes["k"] - 1).bit_length()
    numbers = [(x, 3.0, 0 * row + n) for x, n in shared.items() if n is not None]
    numbers += [(letter.upper(), 3.5, 0 * row + sizes[letter]) for letter in "bh"]
    numbers += [("(row + 1)", 3.0, row + 1), ("(row + 2)", 4.0, row + 2)]
    numbers += [("row", 4.0, row), ("(T - row)", 4.5, sizes["t"] - row)]
    powers = []
    if places.sourced:
        numbers += [("(source + 1)", 4.0, np.nan_to_num(source, nan=-1.0) + 1)]
        numbers += [("(row - source)", 4.0, row - source)]
        numbers += [("(row - source + 1)", 4.0, row - source + 1)]
        powers += [("e^(row - source)", 4.0, row - source)]
    if PARTS_BACK in places.entries.coordinates:
        apart = abs(places.entries.coordinates[PARTS_BACK])
        powers += [("e^(sequences apart)", 4.0, apart)]
    if chunk is not None:
        numbers += [("(place in the chunk + 1)", 5.0, row % chunk + 1)]
    if chunk is not None and places.sourced:
        edges = row // chunk - np.nan_to_num(source) // chunk
        powers += [("e^(chunk edges crossed)", 4.0, edges)]
    for name, cost, values in numbers:
        yield name, cost, partial(log_of, values)
    for name, cost, values in powers:
        yield name, cost, partial(np.asarray, values + 0j)


# -- inputs, and what is made of them


def _of_features(places: Places) -> Made:
    """Yield slope and value of the feature map in the input that a gradient is of."""
    scope = places.entries.problem.scope
    name = places.entries.tensor.removeprefix("gradient of ").split(" ")[0]
    if scope.operator.feature_map and name in ("query", "key"):
        x, token = places.inputs[name], places.row if name == "query" else places.key
        feature_map = scope.query_map if name == "query" else scope.key_map
        slope = feature_map.pullback(x, np.ones(x.shape))
        feature = feature_map.value(x)
        for words, cost, made in (
            ("slope of the feature map", 2.0, slope),
            (f"feature of the {name}", 2.0, feature),
            (f"(feature of the {name} - 1)", 4.0, feature - 1),
        ):
            values = places.at(made, places.axes[name], token)
            yield words, cost, partial(log_of, values)


def _of_inputs(places: Places) -> Made:
    """Yield inputs, and what erasing leaves, at tokens and over ranges of them."""
    fields = [
        Field(name, places.axes[name], x + 0j, total="sum of log_decay")
        if name == "log_decay"
        else Field(name, places.axes[name], log_of(x))
        for name, x in places.inputs.items()
    ]
    made = *_exponentials(places), *_inputs_of_steps(places), *_writes(places)
    for field in (*fields, *made, *_kept(places)):
        yield from _at_tokens(field, places)
        if field.total:
            yield from _over_ranges(field, places)
        if field.total and places.micro > 1 and places.sourced and "t" in field.axes:
            yield _over_micro_steps(field, places)


def _exponentials(places: Places) -> Iterator[Field]:
    """Yield e to the inputs that weigh tokens as exponents."""
    for one in places.entries.problem.scope.operator.inputs:
        if one.draw in ("exponent", "logit") and one.name in places.inputs:
            logs = places.inputs[one.name] + 0j
            yield Field(one.name, places.axes[one.name], logs, form="exp({})")


def _inputs_of_steps(places: Places) -> Iterator[Field]:
    """Yield weights of what is written that some kernels have beside a decay.

    Those are the mean decay of a step, by which zero-order hold differs from Euler's
    rule, and the part that is lost, which makes of a sum a mean.
    """
    if "log_decay" not in places.inputs:
        return
    log_decay, axes = places.inputs["log_decay"], places.axes["log_decay"]
    for text, x in (
        ("(exp(log decay) - 1) / log decay", _mean_decay(log_decay)),
        ("1 - exp(log decay)", -np.expm1(log_decay)),
        ("1 - exp(2 * log decay)", -np.expm1(2 * log_decay)),
    ):
        yield Field(f"({text})", axes, log_of(x), COMPOSED)


def _mean_decay(log_decay: Real) -> Real:
    small = np.where(log_decay == 0, 1.0, log_decay)
    return np.where(log_decay == 0, 1.0, np.expm1(small) / small)


def _writes(places: Places) -> Iterator[Field]:
    """Yield the two writes of a token by the trapezoidal rule, its own and the next.

    The next token decays the memory, then writes the token before it once more.
    """
    if not {"dt", "trapezoid"} <= places.inputs.keys():
        return
    dt, share = places.inputs["dt"], places.inputs["trapezoid"]
    log_decay = places.inputs.get("log_decay", 0.0 * dt)
    own, rest = dt * share, dt * (1 - share)
    with np.errstate(over="ignore", invalid="ignore"):
        late = rest * np.exp(-log_decay)
    again, undecayed = (_next(x) for x in (rest, late))
    for text, x in (
        ("dt trapezoid", own),
        ("(dt trapezoid + the next token's dt (1 - trapezoid))", own + again),
        (
            "(dt trapezoid + the next token's dt (1 - trapezoid) exp(-log decay))",
            own + undecayed,
        ),
    ):
        yield Field(text, places.axes["dt"], log_of(x), COMPOSED)


def _next(x: Real) -> Real:
    """Return the number of the next token at each one, 0 at the last."""
    return np.append(x[..., 1:], np.zeros_like(x[..., :1]), axis=-1)


def _kept(places: Places) -> Iterator[Field]:
    """Yield the factor that a token leaves of each channel, and along its key."""
    operator = places.entries.problem.scope.operator
    if places.micro > 1 or not operator.erases or operator.erase_along != "key":
        return

    def expanded(name: str) -> Real:
        x = places.inputs.get(name, np.ones((1, 1, 1)))
        x = x if x.ndim == 4 else x[..., None]
        return np.repeat(x, places.groups if "h" in places.axes.get(name, "") else 1, 1)

    known = (x for x in _ERASED if {*x.split()} <= {*operator.names})
    names = next(known, "beta key key").split()
    words = [name + "^2" * (names.count(name) > 1) for name in dict.fromkeys(names)]
    sign, minus = (-1, "+") if "a" in names else (1, "-")
    erased = sign * np.asarray(math.prod(expanded(name) for name in names))
    decays = operator.early_erase and "log_decay" in places.inputs
    left = np.exp(expanded("log_decay")) if decays else np.ones(())
    text = f"({'exp(log decay)' if decays else 1} {minus} {' '.join(words)})"
    logs = at_least(left - erased)
    yield Field(text, "bgtk", logs, COMPOSED, f"product of {text}")
    logs = at_least(1 - erased.sum(axis=-1))
    text = f"(1 {minus} sum of {' '.join(words)} {SUMMED})"
    yield Field(text, "bgt", logs, COMPOSED)


def _elsewhere(axes: str, places: Places) -> Iterator[tuple[str, Mapping[str, Index]]]:
    """Yield other places of entries than their own, after it, by their words."""
    yield "", {}
    if {"g", "h"} & {*axes} and places.sizes["g"] > 1:
        first = np.zeros_like(places.row)
        yield " of head 0", {"g": first, "h": first}
    if "l" in axes and places.sourced and "l" in places.index:
        level = places.index["l"]
        yield " of the level below", {"l": level - 1}
        yield " of the level above", {"l": level + 1}
        apart = level_of(places.row - places.source)
        yield " of the level of row - source", {"l": apart}
    if "k" in axes and "k" in places.index:
        channel = places.index["k"]
        for width in TILES:
            if channel.max(initial=0) >= width:
                yield f" of channel k % {width}", {"k": channel % width}


def _at_tokens(field: Field, places: Places) -> Made:
    """Yield a field at the tokens near an entry."""
    near: list[tuple[str, Index | None, float]] = [("", None, 2.0)]
    if {"t", "s"} & {*field.axes}:
        near = [(f"[{at}]", token, cost) for at, token, cost in places.tokens()]
    if "s" in field.axes:
        near = [
            (at, places.key if at == "[source]" else token * places.micro, cost)
            for at, token, cost in near
            if token is not None
        ]
    for at, token, cost in near:
        for label, other in _elsewhere(field.axes, places):
            if not other or at in ("", "[row]", "[source]"):
                more = field.cost + ANOTHER * bool(other)
                make = partial(places.at, field.logs, field.axes, token, other)
                name = field.form.format(field.name + at + label)
                yield name, cost + more, make


def _over_ranges(field: Field, places: Places) -> Made:
    """Yield a field over ranges of tokens: its logarithms add up."""
    axes, logs, padded = field.axes, field.logs, ""
    if "t" not in axes:  # Decays of heads have no end.
        axis = axes.index("g") + 1
        axes = axes.replace("g", "gt")
        length = places.sizes["t"] + (places.chunk or 0)
        logs = np.repeat(np.expand_dims(logs, axis), length, axis)
    elif places.chunk is not None and places.sizes["t"]:
        padded = ", as at the last token"
        width = [(0, places.chunk * (letter == "t")) for letter in axes]
        logs = np.pad(logs, width, "edge")
    axis = axes.index("t")
    count = logs.shape[axis]
    tokens = np.arange(count).reshape((-1,) + (1,) * (logs.ndim - axis - 1))
    marks = {"": tokens >= 0}
    if places.chunk is not None:
        for label, at in (("first", 0), ("last", places.chunk - 1)):
            marks[f"the {label} tokens of chunks in "] = tokens % places.chunk == at

    @cache
    def sums(label: str) -> Logs:
        return _sums_before(np.where(marks[label], logs, 0), axis)

    def make(label: str, first: Index, end: Index, other: Mapping[str, Index]) -> Logs:
        upto, before = (
            places.at(sums(label), axes, i.clip(0, count), other) for i in (end, first)
        )
        return np.where(end <= first, 0 * upto, upto - before)

    for label in marks:
        for name, first, end, cost in places.ranges():
            for ending, other in _elsewhere(axes, places):
                if not label or (name == "(source, row]" and not other):
                    more = field.cost + ANOTHER * (bool(other) + bool(label))
                    text = f"{field.total} over {label}{name}{ending}"
                    text += padded * name.startswith("the padding")
                    yield text, cost + more, partial(make, label, first, end, other)


def _over_micro_steps(field: Field, places: Places) -> tuple[str, float, Any]:
    """Return a field that counts at every micro-step after the source's, to the row."""
    axis = field.axes.index("t")

    def make() -> Logs:
        sums = _sums_before(np.repeat(field.logs, places.micro, axis), axis)
        upto, before = (
            places.at(sums, field.axes, i)
            for i in ((places.row + 1) * places.micro, np.maximum(places.key, -1) + 1)
        )
        return np.asarray(upto - before)

    return f"{field.total} over the micro-steps (source, row]", 3.5, make


def _sums_before(logs: Logs, axis: int) -> Logs:
    """Return sums over the entries before each one of an axis, and over all of them."""
    width = [(int(i == axis), 0) for i in range(logs.ndim)]
    return np.pad(np.cumsum(logs, axis=axis), width)
