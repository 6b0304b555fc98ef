"""Replacements: calls of the oracle in which an input is another one.

They are made of an operator's inputs and axes, so that they are the same for all.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.expected import OracleCall
from linkern.testing.spec.operators import Input

__all__ = ["Change", "at_edges", "clamps", "constants", "replacements"]

Change = Callable[[OracleCall], OracleCall | None]
Move = Callable[[Index], Index]
Values = Callable[[OracleCall, Real], Real | None]

# Other values of an input, entry by entry.
ENTRIES: dict[str, Callable[[Real], Real]] = {
    "0 in place of {}": np.zeros_like,
    "1 in place of {}": np.ones_like,
    "-{0} in place of {0}": np.negative,
    "|{0}| in place of {0}": np.abs,
    "{0}^2 in place of {0}": np.square,
    "{0} / 2 in place of {0}": lambda x: x / 2,
    "2 * {0} in place of {0}": lambda x: 2 * x,
    "ln 2 * {0} in place of {0}": lambda x: np.log(2.0) * x,
    "{0} / ln 2 in place of {0}": lambda x: x / np.log(2.0),
    "1 - {0} in place of {0}": lambda x: 1 - x,
    "{0} divided by its length in place of {0}": lambda x: (
        x / np.sqrt(np.square(x).sum(-1, keepdims=True))
    ),
}
# Entries of other places: letters of the axis, and the index that is read at each one.
PLACES: dict[str, tuple[str, Move]] = {
    "head 0": ("hg", np.zeros_like),
    "the head before": ("hg", lambda i: np.maximum(i - 1, 0)),
    "the next head": ("hg", lambda i: np.minimum(i + 1, i.max())),
    "the token before": ("ts", lambda i: np.maximum(i - 1, 0)),
    "the next token": ("ts", lambda i: np.minimum(i + 1, i.max())),
    "batch entry 0": ("b", np.zeros_like),
    "channel 0": ("kvm", np.zeros_like),
}
# Channels of a tile, where a place begins behind the first one.
_TILE = re.compile(r"(key|value) channels from (\d+) on")


def replacements(call: OracleCall, place: str) -> Iterator[tuple[str, Change]]:
    """Yield the replacements that have no number in them, and their texts."""
    operator = call.operator
    if operator.has_scale:
        yield "1 in place of scale", _scores(lambda scale: 1 / scale)
        yield "scale^2 in place of scale", _scores(lambda scale: scale)
    for one in operator.inputs:
        x, name = call.meant[one.name], one.name
        if x is None:
            continue
        if one.optional:
            yield f"{name} left out", _with(name, lambda *_: None)
        # A rate that is in writes and in erases may be wrong in one of them.
        twofold = operator.erases and x.ndim == 3 and name != "log_decay"
        for text, values in _of_one(call, one, x, place):
            yield text, _with(name, values)
            if twofold:
                yield f"{text} in the erase", _in_the_erase(name, values)
    present = {name: x.shape for name, x in call.meant.items() if x is not None}
    for one_name, other in combinations(present, 2):
        if present[one_name] == present[other]:
            yield f"{one_name} and {other} exchanged", _exchanged(one_name, other)
    if call.sizes["g"] > call.sizes["h"]:
        yield "heads of keys in turns in place of groups", _in_turns
    if operator.erases and "log_decay" in present:
        side = "after" if operator.early_erase else "before"
        yield f"an erase that reads the state {side} its decay", _other_erase


def constants(call: OracleCall) -> Iterator[tuple[str, Callable[[float], Change]]]:
    """Yield numbers in place of inputs that the call left out."""
    for name, x in call.meant.items():
        axes = call.operator.input(name).axes

        def constant(number: float, name: str = name, axes: str = axes) -> Change:
            def changed(call: OracleCall) -> OracleCall:
                shape = tuple(call.sizes[axis] for axis in axes)
                return _meaning(call, {name: np.full(shape, number)})

            return changed

        if x is None:
            yield f"{{}} in place of {name} where it is left out", constant


def clamps(
    call: OracleCall,
) -> Iterator[tuple[str, Callable[[float], Change], Real]]:
    """Yield inputs with an upper limit and with a lower one, and their entries."""
    for name, x in call.meant.items():
        for side, limited in (("above", np.minimum), ("below", np.maximum)):

            def clamp(
                limit: float, name: str = name, limited: np.ufunc = limited
            ) -> Change:
                return _with(name, lambda _, y: limited(y, limit))

            if name != "value" and x is not None:
                yield f"{name} clamped at {{}} from {side}", clamp, x


def at_edges(change: Change, chunk: int, token: str) -> Change:
    """Return a change of the first token of each chunk alone, or of the last."""
    edge = 0 if token == "first" else chunk - 1

    def changed(call: OracleCall) -> OracleCall | None:
        other = change(call)
        inputs: dict[str, Real | None] = {}
        for one in call.operator.inputs if other else ():
            x, y = call.meant[one.name], other.meant[one.name] if other else None
            if x is None or y is None or x is y or one.token_axis is None:
                continue
            shape = [1] * x.ndim
            shape[one.token_axis] = -1
            edges = np.arange(x.shape[one.token_axis]) % chunk == edge
            inputs[one.name] = np.where(edges.reshape(shape), y, x)
        return _meaning(call, inputs) if inputs else None

    return changed


def _of_one(
    call: OracleCall, one: Input, x: Real, place: str
) -> Iterator[tuple[str, Values]]:
    """Yield replacements of one input by other numbers, places and inputs."""
    name, places = one.name, dict(PLACES)
    tile = _TILE.search(place)
    if tile is not None:
        count = int(tile[2])
        before: Move = lambda i: np.where(i < count, i, i - count)  # noqa: E731
        places[f"{count} channels before"] = (tile[1][0], before)
    each = call.sizes["s"] // max(call.sizes["t"], 1)
    if call.operator.micro_steps and each > 1:
        places["the first micro-step"] = ("s", lambda i: i - i % each)
    for text, change in ENTRIES.items():
        yield text.format(name), _changed(change)
    for words, (letters, index) in places.items():
        axis = next((one.axes.index(a) for a in letters if a in one.axes), None)
        if axis is not None and x.shape[axis] > 1:
            yield f"{name} of {words} in place of {name}", _taken(axis, index)
    for other, y in call.meant.items():
        if other != name and y is not None and y.shape == x.shape:
            yield f"{other} in place of {name}", _another(other)
    if call.contract.l2norm is not None and name in ("query", "key"):
        yield f"{name} that is not normalised", _raw(name)


def _changed(change: Callable[[Real], Real]) -> Values:
    return lambda _, x: change(x)


def _another(name: str) -> Values:
    return lambda call, _: call.meant[name]


def _raw(name: str) -> Values:
    return lambda call, _: np.asarray(call.inputs[name].astype(np.float64))


def _meaning(call: OracleCall, inputs: Mapping[str, Real | None]) -> OracleCall:
    """Return a call in which some inputs mean something else."""
    other = replace(call)
    vars(other)["meant"] = {**call.meant, **inputs}
    return other


def _with(name: str, values: Values) -> Change:
    """Return the change of a call that changes one of its inputs."""

    def changed(call: OracleCall) -> OracleCall | None:
        x = call.meant[name]
        with np.errstate(all="ignore"):
            return None if x is None else _meaning(call, {name: values(call, x)})

    return changed


def _scores(factor: Callable[[float], float]) -> Change:
    return _with("query", lambda call, x: x * factor(call.scale))


def _in_the_erase(name: str, values: Values) -> Change:
    """Return the change of a rate where values are written as if it were none."""

    def changed(call: OracleCall) -> OracleCall | None:
        rate, value = call.meant[name], call.meant["value"]
        if rate is None or value is None:
            return None
        with np.errstate(all="ignore"):
            other = np.asarray(values(call, rate))
            written = value * (rate / other)[..., None]
        return _meaning(call, {name: other, "value": written})

    return changed


def _taken(axis: int, index: Move) -> Values:
    return lambda _, x: np.take(x, index(np.arange(x.shape[axis])), axis=axis)


def _exchanged(one: str, other: str) -> Change:
    return lambda call: _meaning(call, {one: call.meant[other], other: call.meant[one]})


def _in_turns(call: OracleCall) -> OracleCall:
    """Return the call in which heads of values take those of keys in turns."""
    times = call.sizes["g"] // call.sizes["h"]
    few = {one.name for one in call.operator.inputs if "h" in one.axes}
    return _meaning(
        call,
        {
            name: np.tile(x, (1, times, *(1,) * (x.ndim - 2)))
            for name, x in call.meant.items()
            if name in few and x is not None
        },
    )


def _other_erase(call: OracleCall) -> OracleCall:
    operator = call.operator
    other = replace(operator, early_erase=not operator.early_erase)
    return replace(call, operator=other)
