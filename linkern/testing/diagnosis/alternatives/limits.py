"""Calls with a limit: of the values of an input, or of the tokens that count.

A kernel that works in blocks of tokens may leave out those of the last one, or count
the zeros behind them as tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from linkern.testing.diagnosis.alternatives.changes import (
    Change,
    keys_per_query,
    present_in,
    with_values,
)
from linkern.testing.diagnosis.sizes import CHUNKS
from linkern.testing.influence.maps import Real
from linkern.testing.problems.expected import OracleCall

__all__ = ["clamps", "other_lengths"]

Sums = Callable[[Real, float], Real]


def clamps(
    call: OracleCall,
) -> Iterator[tuple[str, str, Callable[[float], Change], Real]]:
    """Yield inputs with a limit, the side of what it changes, and their entries."""

    def clamp(name: str, limited: np.ufunc) -> Callable[[float], Change]:
        return lambda limit: with_values(name, lambda _, x: limited(x, limit))

    present = present_in(call)
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
            return with_values(name, lambda _, x: sums(x, limit))

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


def other_lengths(call: OracleCall) -> Iterator[tuple[str, Change]]:
    """Yield calls without some of the last tokens, or with zeros behind them.

    The state may be that of such a call.
    """
    yield "the last token left out", _first_tokens(lambda length: max(length - 1, 0))
    for chunk in CHUNKS:
        if call.sizes["t"] % chunk:
            words = f"the tail of chunks of {chunk} left out"
            yield words, _first_tokens(partial(_whole_chunks, chunk))
            words = f"zeros counted as tokens, up to a multiple of {chunk}"
            yield words, partial(_with_zeros_behind, chunk)


def _first_tokens(kept: Callable[[int], int]) -> Change:
    """Return the change of a call that keeps so many of its first tokens."""

    def changed(call: OracleCall) -> OracleCall:
        tokens = kept(call.sizes["t"])
        return _along_tokens(
            call, lambda x, axis, each: np.split(x, [tokens * each], axis)[0]
        )

    return changed


def _whole_chunks(chunk: int, length: int) -> int:
    """Return the number of tokens in whole chunks."""
    return length // chunk * chunk


def _with_zeros_behind(chunk: int, call: OracleCall) -> OracleCall:
    """Return a call whose tokens are a multiple of a chunk, the last ones zeros."""
    more = -call.sizes["t"] % chunk

    def padded(x: Real, axis: int, each: int) -> Real:
        return np.pad(x, [(0, more * each * (n == axis)) for n in range(x.ndim)])

    return _along_tokens(call, padded)


def _along_tokens(
    call: OracleCall, changed: Callable[[Real, int, int], Real]
) -> OracleCall:
    """Return a call with other tokens, made by their axis and the keys of each."""
    inputs = dict(call.inputs)
    for name, x in call.inputs.items():
        one = call.operator.input(name)
        if one.token_axis is not None:
            each = keys_per_query(call) if one.axes[one.token_axis] == "s" else 1
            inputs[name] = changed(x, one.token_axis, each)
    return replace(call, inputs=inputs, meanings=None)
