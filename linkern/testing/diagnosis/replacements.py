"""Replacements: calls of the oracle in which an input is another one.

They are made of an operator's inputs and axes, so that they are the same for all.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, pairwise

import numpy as np

from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.forms import Change as GateChange
from linkern.testing.problems.forms import form_of, is_raw

__all__ = [
    "Change",
    "clamps",
    "meaning",
    "other_erases",
    "other_values",
    "replacements",
    "scales",
    "truncations",
    "with_defaults",
]

Inputs = Mapping[str, Real | None]
Change = Callable[[OracleCall], OracleCall]
Values = Callable[[OracleCall, Real], Real | None]
Sums = Callable[[Real, float], Real]
Padding = dict[str, Callable[[int], int]]


def _multiple(step: int, size: int) -> int:
    return -(-size // step) * step


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
# Entries of other places: letters of the axis, and the index that is read at each one,
# by the keys of a query; -1 reads 0.
PLACES: dict[str, tuple[str, Callable[[Index, int], Index]]] = {
    "head 0": ("hg", lambda i, _: 0 * i),
    "the head before": ("hg", lambda i, _: i - (i > 0)),
    "the next head": ("hg", lambda i, _: np.minimum(i + 1, i.max())),
    "the token before": ("ts", lambda i, _: i - (i > 0)),
    "the next token": ("ts", lambda i, _: np.minimum(i + 1, i.max())),
    "the token before, 0 at the first,": ("ts", lambda i, _: i - 1),
    "the next token, 0 at the last,": ("ts", lambda i, _: (i + 2) % (i.max() + 2) - 1),
    "the first micro-step": ("s", lambda i, each: i - i % each),
    "batch entry 0": ("b", lambda i, _: 0 * i),
    "channel 0": ("kvm", lambda i, _: 0 * i),
    "the first 16 channels": ("kvm", lambda i, _: i % 16),
    "the first 32 channels": ("kvm", lambda i, _: i % 32),
    "the first 64 channels": ("kvm", lambda i, _: i % 64),
}
# Signs of a decay by which an input is decayed, or is not, with the memory.
SIGNS = ((1, ""), (-1, "-"))
# Other heads, where several heads of values share one of keys: by how many do, and the
# number of heads of keys.
HEADS: dict[str, Callable[[Index, int, int], Index]] = {
    "head h // (HV / H)": lambda i, each, _: i // each,
    "head h % H": lambda i, _, keys: i % keys,
}
# Pairs of axes, letters and nouns, that are folded into one in either order.
FOLDS = ((("b", "batch"), ("hg", "heads")), (("hg", "heads"), ("ts", "tokens")))
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
# Parameters of raw gates that a kernel may take instead, by rate and bias.
GATES: dict[str, GateChange] = {
    "dt_bias left out": lambda rate, bias: (rate, 0 * bias),
    "-dt_bias in place of dt_bias": lambda rate, bias: (rate, -bias),
    "dt_bias of head 0 in place of dt_bias": lambda rate, bias: (rate, bias[:1]),
    "exp(A_log) left out": lambda rate, bias: (np.ones_like(rate), bias),
    "-exp(A_log) in place of exp(A_log)": lambda rate, bias: (-rate, bias),
    "A_log in place of exp(A_log)": lambda rate, bias: (np.log(rate), bias),
    "A_log of head 0 in place of A_log": lambda rate, bias: (rate[:1], bias),
}


def replacements(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield the replacements that have no number in them, and their texts."""
    operator, present = call.operator, _present(call)
    known = with_defaults(call)
    yield from scales(call)
    yield from _of_missing(call)
    yield from other_erases(call)
    for name, x in known.items():
        if name in present and operator.input(name).optional:
            yield f"{name} left out", _with(name, lambda *_: None)
        yield from other_values(call, name)
        # A rate that is in writes and in erases may be wrong in one of them.
        if operator.erases and x.ndim == 3 and name != "log_decay":
            for text, values in _values(call, name):
                yield f"{text} in the erase", _with(name, values, erase=True)
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


def other_values(
    call: OracleCall, name: str, *, places: bool = True
) -> Iterator[tuple[str, Change]]:
    """Yield calls in which an input is another one, of the same axes.

    Without places it is of the same entry, or of a token beside it.
    """
    for text, values in _values(call, name, places):
        yield text, _with(name, values)


def _of_missing(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield inputs in place of optional ones that are left out, and mean another."""
    operator, present = call.operator, _present(call)
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
            yield text, _with(name, lambda c, x: x * c.scale)
    elif operator.has_scale:
        yield "1 in place of scale", _with("query", lambda c, x: x / c.scale)
        yield "scale^2 in place of scale", _with("query", lambda c, x: x * c.scale)
        yield "K^-0.5 in place of scale", _with("query", _of_key_size)


def _of_key_size(call: OracleCall, x: Real) -> Real:
    return np.asarray(x * call.sizes["k"] ** -0.5 / call.scale)


def other_erases(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield calls whose erase reads another state, or has its rate on another side."""
    operator, present = call.operator, _present(call)
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
    present, sizes = {*_present(call)}, {**POWERS, **MULTIPLES}
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
            x = _present(call)[name]
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
    names = [x for x in with_defaults(call) if _axes(call, x)[0] == "g"]
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
                yield text, _with(name, changed(token(chunk), chunk, value))


def truncations(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield calls without some of the last tokens, of which the state may be that."""
    yield "the last token left out", _first(lambda length: max(length - 1, 0))
    for chunk in CHUNKS:
        if call.sizes["t"] % chunk:
            words = f"the tail of chunks of {chunk} left out"
            yield words, _first(partial(_whole_chunks, chunk))


def clamps(
    call: OracleCall,
) -> Iterator[tuple[str, str, Callable[[float], Change], Real]]:
    """Yield inputs with a limit, the side of what it changes, and their entries."""

    def clamp(name: str, limited: np.ufunc) -> Callable[[float], Change]:
        return lambda limit: _with(name, lambda _, x: limited(x, limit))

    present = _present(call)
    for name, x in present.items():
        if name != "value":
            yield name, "above", clamp(name, np.minimum), x
            yield name, "below", clamp(name, np.maximum), x
    name = "log_decay"
    axis = call.operator.input(name).token_axis if name in present else None
    if axis is None:
        return
    length = present[name].shape[axis]
    for chunk in (*(n for n in CHUNKS if n < length), None):
        every = f"chunks of {chunk}" if chunk else "all tokens"
        sums = partial(_sums, axis=axis, chunk=chunk)

        def limited(limit: float, sums: Sums = sums) -> Change:
            return _with(name, lambda _, x: sums(x, limit))

        yield f"the sum of {name} over {every}", "below", limited, sums(present[name])


def _sums(x: Real, limit: float | None = None, *, axis: int, chunk: int | None) -> Real:
    """Return sums from the start of each chunk; with a limit, terms of limited sums."""
    at = range(chunk, x.shape[axis], chunk) if chunk else ()
    sums = [np.cumsum(part, axis=axis) for part in np.split(x, at, axis=axis)]
    if limit is None:
        return np.concatenate(sums, axis=axis)
    limited = (np.maximum(part, limit) for part in sums)
    terms = [np.diff(part, axis=axis, prepend=0.0) for part in limited]
    return np.concatenate(terms, axis=axis)


def _present(call: OracleCall) -> dict[str, Real]:
    return {name: x for name, x in call.meant.items() if x is not None}


def with_defaults(call: OracleCall) -> dict[str, Real]:
    """Return the inputs of a call, those by default among them."""
    made = {name: make(call.meant) for name, make in call.operator.defaults.items()}
    return {**made, **_present(call)}


def _axes(call: OracleCall, name: str) -> str:
    """Return the axes of an input; one that is no parameter has a number a head."""
    return call.operator.input(name).axes if name in call.operator.names else "g"


def _values(
    call: OracleCall, name: str, places: bool = True
) -> Iterator[tuple[str, Values]]:
    """Yield replacements of one input by other numbers, places and inputs."""
    present, axes = with_defaults(call), _axes(call, name)
    shape = present[name].shape
    if name in call.operator.names:
        yield from _gates(call, name)
    for text, change in ENTRIES.items():
        yield text.format(name), _changed(change)
    yield from _decayed(call, name)
    for words, (letters, index) in PLACES.items():
        axis = next((axes.index(a) for a in letters if a in axes), None)
        if axis is None or not (places or axes[axis] in "ts"):
            continue
        every = np.arange(shape[axis])
        if (index(every, _keys_per_query(call)) != every).any():
            yield f"{name} of {words} in place of {name}", _taken(axis, index)
    if not places:
        return
    if "g" in axes and call.sizes["g"] > call.sizes["h"]:
        for words, other_head in HEADS.items():
            taken = _of_other_heads(axes.index("g"), other_head)
            yield f"{name} of {words} in place of {name}", taken
    yield from _folds(name, axes, shape)
    for other, y in present.items():
        if other != name and y.shape == shape:
            yield f"{other} in place of {name}", _another(other)
    if call.contract.l2norm is not None and name in ("query", "key"):
        yield (
            f"{name} that is not normalised",
            lambda c, _: c.inputs[name].astype(float),
        )


def _decayed(call: OracleCall, name: str) -> Iterator[tuple[str, Values]]:
    """Yield an input that is decayed with the memory, or before it is.

    A kernel that writes before the memory decays also decays what it writes.
    """
    present, axes = _present(call), _axes(call, name).replace("g", "h")
    shape = with_defaults(call)[name].shape
    decays = [x for x in present if x.endswith("log_decay") and "log_decay" not in name]
    for decay in decays:
        along = _axes(call, decay).replace("g", "h")
        sizes = zip(present[decay].shape, shape, strict=False)
        alike = axes.startswith(along) and all(x == y for x, y in sizes)
        for sign, words in SIGNS if alike else ():
            text = f"{name} exp({words}{decay}) in place of {name}"
            yield text, _with_decay(decay, sign)


def _with_decay(decay: str, sign: int) -> Values:
    def decayed(call: OracleCall, x: Real) -> Real:
        g = _present(call)[decay]
        return x * np.exp(sign * np.expand_dims(g, (*range(g.ndim, x.ndim),)))

    return decayed


def _of_other_heads(axis: int, index: Callable[[Index, int, int], Index]) -> Values:
    """Return the change of an input of heads of values to that of other heads."""

    def taken(call: OracleCall, x: Real) -> Real:
        heads, keys = call.sizes["g"], call.sizes["h"]
        return np.take(x, index(np.arange(heads), heads // keys, keys), axis)

    return taken


def _folds(name: str, axes: str, shape: Sequence[int]) -> Iterator[tuple[str, Values]]:
    """Yield an input whose numbers lie in another order than that of its axes."""
    for (letters, one), (others, other) in FOLDS:
        for at, pair in enumerate(pairwise(axes)):
            if pair[0] in letters and pair[1] in others and 1 not in shape[at : at + 2]:
                words = "{} stored as ({}, {}) and read as ({}, {})"
                yield words.format(name, other, one, one, other), _stored(at)
                if shape[at] != shape[at + 1]:
                    yield words.format(name, one, other, other, one), _read(at)


def _gates(call: OracleCall, name: str) -> Iterator[tuple[str, Values]]:
    """Yield replacements of a gate that a kernel makes of a raw one."""
    one = call.operator.input(name)
    if not is_raw(call.contract, one):
        return
    yield f"raw {name} in place of {name}", lambda c, _: c.inputs[name].astype(float)
    for text, changed in GATES.items() if name == "log_decay" else ():
        form = form_of(call.contract, one, changed)
        assert form is not None
        yield text, partial(_made, form.meaning, name)


def _made(
    meaning: Callable[[Real], Real], name: str, call: OracleCall, _: Real
) -> Real:
    return meaning(call.inputs[name].astype(float))


def _changed(change: Callable[[Real], Real]) -> Values:
    return lambda _, x: change(x)


def _another(name: str) -> Values:
    return lambda call, _: call.meant[name]


def _taken(axis: int, index: Callable[[Index, int], Index]) -> Values:
    def taken(call: OracleCall, x: Real) -> Real:
        read = index(np.arange(x.shape[axis]), _keys_per_query(call))
        there = np.expand_dims(read >= 0, [*range(1, x.ndim - axis)])
        return np.where(there, np.take(x, read, axis=axis), 0.0)

    return taken


def _stored(axis: int) -> Values:
    return lambda _, x: x.swapaxes(axis, axis + 1).reshape(x.shape)


def _read(axis: int) -> Values:
    def read(_: OracleCall, x: Real) -> Real:
        swapped = x.swapaxes(axis, axis + 1)
        return x.reshape(swapped.shape).swapaxes(axis, axis + 1)

    return read


def _keys_per_query(call: OracleCall) -> int:
    """Return 1 but for operators of micro-steps: others may have fewer keys."""
    steps = call.sizes["s"] // max(call.sizes["t"], 1)
    return steps if call.operator.micro_steps else 1


def _with(name: str, values: Values, *, erase: bool = False) -> Change:
    """Return the change of a call that changes an input, or in erases alone."""

    def changed(call: OracleCall) -> OracleCall:
        known = with_defaults(call)
        with np.errstate(all="ignore"):
            inputs = {name: values(call, known[name])} if name in known else {}
            if erase and inputs:  # What is written is as before.
                ratio = known[name] / np.asarray(inputs[name])
                inputs["value"] = known["value"] * ratio[..., None]
        return meaning(call, inputs)

    return changed


def _first(kept: Callable[[int], int]) -> Change:
    """Return the change of a call that keeps so many of its first tokens."""

    def changed(call: OracleCall) -> OracleCall:
        each, inputs = _keys_per_query(call), {}
        for name, x in call.inputs.items():
            one = call.operator.input(name)
            axis = one.token_axis
            if axis is not None:
                stop = kept(call.sizes["t"]) * (each if one.axes[axis] == "s" else 1)
                inputs[name] = x[(*(slice(None),) * axis, slice(stop))]
            else:
                inputs[name] = x
        return replace(call, inputs=inputs, meanings=None)

    return changed


def _whole_chunks(chunk: int, length: int) -> int:
    """Return the number of tokens in whole chunks."""
    return length // chunk * chunk


def _exchanged(one: str, other: str) -> Change:
    return lambda call: meaning(call, {one: call.meant[other], other: call.meant[one]})


def _in_turns(names: Sequence[str], call: OracleCall) -> OracleCall:
    """Return the call in which heads of values take those of keys in turns."""
    times, inputs = call.sizes["g"] // call.sizes["h"], {}
    for name, x in _present(call).items():
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
    present = _present(call)
    rate, key = present["removal_rate"], present["removal_key"]
    with np.errstate(divide="ignore"):
        return meaning(call, {"removal_key": rate * key, "removal_rate": 1 / rate})


def meaning(call: OracleCall, inputs: Inputs) -> OracleCall:
    """Return a call in which some inputs mean something else."""
    return replace(call, meanings={**call.meant, **inputs})
