"""Values of one input in place of others: by entry, by place, or of another input.

They are made of an operator's inputs and axes, so that they are the same for all.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import numpy as np

from linkern.testing.diagnosis.alternatives.changes import (
    Change,
    Values,
    axes_of,
    keys_per_query,
    present_in,
    with_defaults,
    with_values,
)
from linkern.testing.influence.maps import Index, Real
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.forms import Change as GateChange
from linkern.testing.problems.forms import form_of, is_raw

__all__ = ["other_values", "values_of"]

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


def other_values(
    call: OracleCall, name: str, *, places: bool = True
) -> Iterator[tuple[str, Change]]:
    """Yield calls in which an input is another one, of the same axes.

    Without places it is of the same entry, or of a token beside it.
    """
    for text, values in values_of(call, name, places):
        yield text, with_values(name, values)


def values_of(
    call: OracleCall, name: str, places: bool = True
) -> Iterator[tuple[str, Values]]:
    """Yield replacements of one input by other numbers, places and inputs."""
    present, axes = with_defaults(call), axes_of(call, name)
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
        if (index(every, keys_per_query(call)) != every).any():
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
    present, axes = present_in(call), axes_of(call, name).replace("g", "h")
    shape = with_defaults(call)[name].shape
    decays = [x for x in present if x.endswith("log_decay") and "log_decay" not in name]
    for decay in decays:
        along = axes_of(call, decay).replace("g", "h")
        sizes = zip(present[decay].shape, shape, strict=False)
        alike = axes.startswith(along) and all(x == y for x, y in sizes)
        for sign, words in SIGNS if alike else ():
            text = f"{name} exp({words}{decay}) in place of {name}"
            yield text, _with_decay(decay, sign)


def _with_decay(decay: str, sign: int) -> Values:
    def decayed(call: OracleCall, x: Real) -> Real:
        g = present_in(call)[decay]
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
        read = index(np.arange(x.shape[axis]), keys_per_query(call))
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
