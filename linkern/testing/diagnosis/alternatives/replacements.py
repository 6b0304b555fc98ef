"""Replacements: calls of the oracle in which an input is another one.

They are made of an operator's inputs and axes, so that they are the same for all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from linkern.testing.diagnosis.alternatives.changes import (
    Change,
    Values,
    axes_of,
    meaning,
    present_in,
    with_defaults,
    with_values,
)
from linkern.testing.diagnosis.alternatives.values import other_values, values_of
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import Real
from linkern.testing.problems.expected import OracleCall

__all__ = ["other_erases", "replacements", "scales"]

Padding = dict[str, Callable[[int], int]]


def _multiple(step: int, size: int) -> int:
    return -(-size // step) * step


# Other values of a rate or a gate at one token of each chunk, and the place of it.
VALUES: dict[str, float] = {"0": 0.0, "1": 1.0}
TOKENS_OF_CHUNKS: dict[str, Callable[[int], int]] = {
    "first": lambda _: 0,
    "last": lambda chunk: chunk - 1,
}
# Sizes that channels are padded to; tokens are to multiples alone.
POWERS: Padding = {
    "a power of two": lambda n: 1 << (n - 1).bit_length(),
    "a power of two from 16 on": lambda n: max(16, 1 << (n - 1).bit_length()),
}
MULTIPLES: Padding = {f"a multiple of {n}": partial(_multiple, n) for n in CHUNKS}


def replacements(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield the replacements that have no number in them, and their texts."""
    operator, present = call.operator, present_in(call)
    known = with_defaults(call)
    yield from scales(call)
    yield from _of_missing(call)
    yield from other_erases(call)
    for name, x in known.items():
        if name in present and operator.input(name).optional:
            yield f"{name} left out", with_values(name, lambda *_: None)
        yield from other_values(call, name)
        # A rate that is in writes and in erases may be wrong in one of them.
        if operator.erases and x.ndim == 3 and name != "log_decay":
            for text, values in values_of(call, name):
                yield f"{text} in the erase", with_values(name, values, erase=True)
    for one, other in combinations(present, 2):
        if present[one].shape == present[other].shape:
            yield f"{one} and {other} exchanged", _exchanged(one, other)
    if call.sizes["g"] > call.sizes["h"]:
        shared = [x for x in present if "h" in operator.input(x).axes]
        for names in (shared, *((x,) for x in shared)):
            text = f"{' and '.join(names)} of head h % H in place of h // (HV / H)"
            yield text, partial(_in_turns, names)
    yield from _paddings(call)
    yield from _spread(call)
    for name in present:
        if operator.input(name).axes[-1] == "t":
            yield from _at_chunks(name, call.sizes["t"])


def _of_missing(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield inputs in place of optional ones that are left out, and mean another."""
    operator, present = call.operator, present_in(call)
    for one in operator.inputs:
        for other in present if one.name not in present else ():
            if operator.input(other).axes == one.axes:
                yield f"{other} in place of no {one.name}", _given(one.name, other)


def _given(name: str, other: str) -> Change:
    return lambda call: meaning(call, {name: call.meant[other]})


def scales(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield other scales, and those that are inside of a feature map."""
    operator = call.operator
    if operator.has_scale and operator.feature_map:
        for name in ("query", "key"):
            text = f"phi(scale * {name}) in place of phi({name})"
            yield text, with_values(name, lambda c, x: x * c.scale)
    elif operator.has_scale:
        yield "1 in place of scale", with_values("query", lambda c, x: x / c.scale)
        yield (
            "scale^2 in place of scale",
            with_values("query", lambda c, x: x * c.scale),
        )
        yield "K^-0.5 in place of scale", with_values("query", _of_key_size)


def _of_key_size(call: OracleCall, x: Real) -> Real:
    return np.asarray(x * call.sizes["k"] ** -0.5 / call.scale)


def other_erases(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield calls whose erase reads another state, or has its rate on another side."""
    operator, present = call.operator, present_in(call)
    if operator.erases and "log_decay" in present:
        side = "after" if operator.early_erase else "before"
        yield f"an erase that reads the state {side} its decay", _other_erase
    if {"removal_rate", "removal_key"} <= present.keys():
        yield "removal_rate in what is read in place of what is removed", _other_side


def _paddings(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield calls with zeros behind an axis, of which the feature map makes features.

    A tile of a kernel holds them where its mask is applied to what is loaded alone.
    """
    mapped, causal = bool(call.operator.feature_map), call.operator.causal
    present, sizes = {*present_in(call)}, {**POWERS, **MULTIPLES}
    slots = tuple(present & {"slots", "log_decay"})
    for noun, made, axis, names, widths, there in (
        ("channels", "features", -1, ("query", "key"), sizes, mapped),
        ("keys", "features", -2, ("key", "value"), MULTIPLES, mapped and not causal),
        ("slots", "scores", -1, slots, sizes, "slots" in present),
    ):
        for words, size in widths.items() if there and {*names} <= present else ():
            text = f"{noun} padded with zeros, whose {made} count, to {words}"
            yield text, _padded(names, axis, size)


def _padded(names: Sequence[str], axis: int, size: Callable[[int], int]) -> Change:
    """Return the change of a call whose inputs have zeros behind one of their axes."""

    def changed(call: OracleCall) -> OracleCall:
        inputs: dict[str, Real | None] = {}
        for name in names:
            x = present_in(call)[name]
            width = [(0, 0)] * x.ndim
            width[axis] = (0, size(x.shape[axis]) - x.shape[axis])
            inputs[name] = np.pad(x, width)
        return meaning(call, inputs)

    return changed


def _spread(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield numbers of heads that are spread over all batch entries in another order.

    Each is repeated for the batch, where all of them are to be.
    """
    batch = call.sizes["b"]
    names = [x for x in with_defaults(call) if axes_of(call, x)[0] == "g"]
    for chosen in dict.fromkeys([*((x,) for x in names), tuple(names)]):
        if batch > 1 and chosen:
            words = " and ".join(chosen)
            text = f"{words} of head (b H + h) // B in place of head h"
            yield text, partial(_spread_over_batch, chosen)


def _spread_over_batch(names: Sequence[str], call: OracleCall) -> OracleCall:
    batch, known = call.sizes["b"], with_defaults(call)
    spread = {name: np.repeat(known[name], batch, axis=0) for name in names}
    return meaning(
        call,
        {name: x.reshape(batch, *known[name].shape) for name, x in spread.items()},
    )


def _at_chunks(name: str, whole: int) -> Iterator[tuple[str, Change]]:
    """Yield an input with another value at one token of each chunk.

    The first token of all has nothing before it.
    """

    def changed(at: int, chunk: int, value: float) -> Values:
        def values(_: OracleCall, x: Real) -> Real:
            token = np.arange(x.shape[-1])
            there = (token % chunk == at) & (token > 0)
            return np.where(there, value, x)

        return values

    for chunk in reversed(CHUNKS):  # what holds at all of its edges
        for which, token in TOKENS_OF_CHUNKS.items() if chunk < whole else ():
            for words, value in VALUES.items():
                text = f"{words} in place of {name} at the {which} token of "
                text += f"chunks of {chunk}"
                yield text, with_values(name, changed(token(chunk), chunk, value))


def _exchanged(one: str, other: str) -> Change:
    return lambda call: meaning(call, {one: call.meant[other], other: call.meant[one]})


def _in_turns(names: Sequence[str], call: OracleCall) -> OracleCall:
    """Return the call in which heads of values take those of keys in turns."""
    times, inputs = call.sizes["g"] // call.sizes["h"], {}
    for name, x in present_in(call).items():
        if "h" in call.operator.input(name).axes:
            in_order = np.repeat(x, times, axis=1)
            turns = np.tile(x, (1, times, *(1,) * (x.ndim - 2)))
            inputs[name] = turns if name in names else in_order
    return meaning(call, inputs)


def _other_erase(call: OracleCall) -> OracleCall:
    early = not call.operator.early_erase
    return replace(call, operator=replace(call.operator, early_erase=early))


def _other_side(call: OracleCall) -> OracleCall:
    """Return the call in which what is read is weighed, and not what is removed."""
    present = present_in(call)
    rate, key = present["removal_rate"], present["removal_key"]
    with np.errstate(divide="ignore"):
        return meaning(call, {"removal_key": rate * key, "removal_rate": 1 / rate})
