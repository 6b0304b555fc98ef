"""Packed sequences: several in one array, one after the other, each with its own state.

Sequence ``n`` is the tokens from ``cu_seqlens[n]`` to before ``cu_seqlens[n + 1]``. It
is computed by a call of its own, so nothing can leak from one into the next, not even a
NaN. Rows behind the last offset belong to no sequence: their output is zero.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from linkern import validate
from linkern.array import concat, zeros
from linkern.state import AttentionResult, State, mapped
from linkern.typing import Array

__all__ = ["run_packed"]


def run_packed(
    cu_seqlens: Any,
    length: int,
    states: State | None,
    call: Callable[[slice, State | None], AttentionResult],
) -> AttentionResult:
    """Run one call for each packed sequence and put their results together.

    Parameters
    ----------
    cu_seqlens : sequence or array of int
        Offsets; ``N + 1`` of them for ``N`` sequences.
    length : int
        Of the arrays; rows behind the last offset are slack.
    states : State or None
        Initial states, with the sequences as first axis.
    call : callable
        From a span of tokens and its initial state to its result.
    """
    ends = validate.offsets(cu_seqlens, length)
    if states is not None:
        validate.packed_state(states, len(ends) - 1)
    results = [
        call(slice(start, stop), _entry(states, n))
        for n, (start, stop) in enumerate(pairwise(ends))
    ]
    if not results:  # no sequence at all: the shapes are those of an empty one
        empty = call(slice(0, 0), None)
        state = mapped(lambda x: x[None, ...][:0, ...], empty.state)
        return AttentionResult(_with_slack([empty.output], length), state)
    memory = _stacked([result.state.memory for result in results])
    normalizer = None
    if results[0].state.normalizer is not None:
        normalizer = _stacked([result.state.normalizer for result in results])
    outputs = [result.output for result in results]
    return AttentionResult(
        _with_slack(outputs, length - ends[-1]), State(memory, normalizer)
    )


def _entry(states: State | None, n: int) -> State | None:
    return None if states is None else mapped(lambda x: x[n, ...], states)


def _stacked(arrays: list[Any]) -> Array:
    return concat([x[None, ...] for x in arrays], axis=0)


def _with_slack(outputs: list[Array], rows: int) -> Array:
    if rows:
        like = outputs[0]
        shape = (*like.shape[:-2], rows, like.shape[-1])
        outputs = [*outputs, zeros(shape, like=like)]
    return outputs[0] if len(outputs) == 1 else concat(outputs, axis=-2)
