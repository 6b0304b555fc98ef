"""Shards of a call, one for each rank, and the reply that all ranks make together."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.spec.operators import OPERATORS, Operator
from linkern.testing.target.protocol import Call, Reply, TargetConfig
from linkern.testing.target.ranks.sharding import Sharding
from linkern.testing.target.segments import output_shape

__all__ = ["joined", "shards"]

Indices = list[NDArray[np.intp]]


def shards(call: Call, sharding: Sharding, config: TargetConfig) -> list[Call]:
    """Return the call of each rank: its shard of each span of the sequence.

    Inputs without tokens are whole. So are the offsets of packed sequences, unless the
    target takes those of its shard.
    """
    operator = OPERATORS[config.op]
    sizes = operator.sizes(call.inputs)
    queries, spans = _tokens(call, sharding, sizes["t"])
    keys = _keys(call, sharding, operator, queries)
    return [
        replace(
            call,
            inputs={
                name: _taken(operator, name, x, queries[rank], keys[rank])
                for name, x in call.inputs.items()
            },
            cuts=tuple(accumulate(len(span[rank]) for span in spans[:-1])),
            cotangent=None
            if call.cotangent is None
            else np.take(call.cotangent, queries[rank], 2),
            segments=_segments(call, spans, rank, config),
            sharding=None,
        )
        for rank in range(sharding.ranks)
    ]


def joined(
    replies: Sequence[Reply],
    call: Call,
    sharding: Sharding,
    config: TargetConfig,
) -> Reply:
    """Return the reply to a call, of the replies of all ranks to their shards.

    A rank whose output has another form than it must have replies for all.
    """
    for rank, reply in enumerate(replies):
        if reply.output is None or reply.shape != reply.expected_shape:
            return replace(reply, place=f" on rank {rank} of {sharding.ranks}")
    operator = OPERATORS[config.op]
    sizes = operator.sizes(call.inputs)
    queries, _ = _tokens(call, sharding, sizes["t"])
    keys = _keys(call, sharding, operator, queries)
    outputs = [reply.output for reply in replies if reply.output is not None]
    shape = output_shape(sizes, config.layout, sizes["t"])
    last, fault = replies[sharding.last], _state_fault(replies, call, config)
    return replace(
        last,
        output=_scattered(outputs, queries, 2),
        shape=shape,
        expected_shape=shape,
        changed=_all(reply.changed for reply in replies),
        aliased=_all(reply.aliased for reply in replies),
        overwritten=next((x.overwritten for x in replies if x.overwritten), ""),
        traces=_all(reply.traces for reply in replies),
        out_of_bounds=_all(reply.out_of_bounds for reply in replies),
        unwritten=_all(reply.unwritten for reply in replies),
        states=_states(replies, last, config),
        dtypes=tuple(reply.dtype for reply in replies),
        state_fault=fault,
        collective=any(reply.collective for reply in replies),
        **_gradients(replies, call, operator, (queries, keys)),
    )


def _tokens(
    call: Call, sharding: Sharding, length: int
) -> tuple[Indices, list[Indices]]:
    """Return the tokens of each rank in the call, and in each of its spans."""
    spans = [
        [start + tokens for tokens in sharding.tokens(end - start)]
        for start, end in pairwise((0, *call.cuts, length))
    ]
    return [np.concatenate(parts) for parts in zip(*spans, strict=True)], spans


def _keys(
    call: Call, sharding: Sharding, operator: Operator, queries: Indices
) -> Indices:
    """Return the keys of each rank: those of its tokens, or a part of all keys."""
    sizes = operator.sizes(call.inputs)
    if not operator.micro_steps:
        same = sizes["s"] == sizes["t"]
        return queries if same else sharding.tokens(sizes["s"])
    each = sizes["s"] // max(sizes["t"], 1)
    return [(x[:, None] * each + np.arange(each)).ravel() for x in queries]


def _taken(
    operator: Operator,
    name: str,
    x: NDArray[Any],
    queries: NDArray[np.intp],
    keys: NDArray[np.intp],
) -> NDArray[Any]:
    """Return the shard of an input."""
    declared = operator.input(name)
    if declared.token_axis is None:
        return x
    return np.take(x, keys if "s" in declared.axes else queries, declared.token_axis)


def _segments(
    call: Call,
    spans: list[Indices],
    rank: int,
    config: TargetConfig,
) -> tuple[tuple[int, ...], ...]:
    """Return the offsets of packed sequences that a rank is passed, span by span."""
    if config.ranks_cu_seqlens == "whole" or not call.segments:
        return call.segments
    clipped = []
    for edges, span in zip(call.segments, spans, strict=True):
        first = sum(len(x) for x in span[:rank])
        inside = np.clip(np.asarray(edges) - first, 0, len(span[rank]))
        clipped.append(tuple(inside.tolist()))
    return tuple(clipped)


def _scattered(
    parts: Sequence[NDArray[Any]], indices: Indices, axis: int
) -> NDArray[Any]:
    """Return an array of which each rank has some entries along an axis."""
    shape = [*parts[0].shape]
    shape[axis] = sum(map(len, indices))
    whole = np.empty(shape, np.result_type(*parts))
    for index, part in zip(indices, parts, strict=True):
        entries: tuple[Any, ...] = (*(slice(None),) * axis, index)
        whole[entries] = part
    return whole


def _all(texts: Any) -> tuple[str, ...]:
    """Return the texts of all ranks, each once."""
    return tuple(dict.fromkeys(text for several in texts for text in several))


def _states(
    replies: Sequence[Reply], last: Reply, config: TargetConfig
) -> tuple[NDArray[Any], ...] | None:
    """Return the final state: that of the last rank.

    Where every rank promises it, an entry is the one that is furthest from that of the
    last rank: if it is right, all are. Where some return none, see `_state_fault`.
    """
    forms = {_form(reply) for reply in replies}
    if config.ranks_final == "last" or last.states is None or len(forms) > 1:
        return last.states
    furthest, states = [], [reply.states or () for reply in replies]
    for ours, *others in zip(last.states, *states, strict=True):
        several = np.stack([ours, *others])
        distance = np.nan_to_num(abs(several - ours), nan=np.inf)
        chosen = distance.argmax(axis=0)[None]
        furthest.append(np.take_along_axis(several, chosen, 0)[0])
    return tuple(furthest)


def _state_fault(replies: Sequence[Reply], call: Call, config: TargetConfig) -> str:
    """Return the rank whose final state lacks what another returns, in words.

    No text if none does, or if the last rank alone promises a state.
    """
    if config.ranks_final == "last" or not (call.wants_state or call.cuts):
        return ""
    forms = [_form(reply) for reply in replies]
    least, most = min(forms), max(forms)
    if least == most:
        return ""
    rank, other, ranks = forms.index(least), forms.index(most), len(replies)
    returned = "no final state"
    if least[0]:
        counts = f"{least[1]} of the {most[1]} arrays"
        returned = f"{counts} that rank {other} has as its final state"
    promised = "`ranks_final=every` promises the same of all"
    return f"rank {rank} of {ranks} returned {returned}, and {promised}"


def _form(reply: Reply) -> tuple[bool, int]:
    """Return True for a final state of any form, and its number of right arrays."""
    return bool(reply.state_kind), len(reply.states or ())


def _gradients(
    replies: Sequence[Reply],
    call: Call,
    operator: Operator,
    indices: tuple[Indices, Indices],
) -> dict[str, Any]:
    """Return the gradients of the inputs: of tokens, joined; of the rest, added up."""
    if call.cotangent is None:
        return {}
    for rank, reply in enumerate(replies):
        if reply.gradients is None:
            reason = f"{reply.not_differentiable} (rank {rank} of {len(replies)})"
            return {"gradients": None, "not_differentiable": reason}
    gradients, dtypes = [], []
    for i, (name, x) in enumerate(call.inputs.items()):
        parts = [
            reply.gradients[i] if reply.gradients and reply.gradient_dtypes[i] else None
            for reply in replies
        ]
        gradients.append(_gradient(operator, name, x, parts, indices))
        reached = {reply.gradient_dtypes[i] for reply in replies} - {""}
        other = reached - {x.dtype.name}
        dtypes.append(next(iter(other or reached), ""))
    if not any(dtypes):
        reason = "its output carries no gradient"
        return {"gradients": None, "not_differentiable": reason}
    return {"gradients": tuple(gradients), "gradient_dtypes": tuple(dtypes)}


def _gradient(
    operator: Operator,
    name: str,
    x: NDArray[Any],
    parts: Sequence[NDArray[Any] | None],
    indices: tuple[Indices, Indices],
) -> NDArray[Any]:
    """Return the gradient of an input, of those of all ranks; None is zero.

    One that has not the shape of its shard makes a gradient of another shape.
    """
    queries, keys = indices
    shards = [_taken(operator, name, x, *place) for place in zip(*indices, strict=True)]
    pairs = zip(parts, shards, strict=True)
    whole = [np.zeros(own.shape) if part is None else part for part, own in pairs]
    for part, own in zip(whole, shards, strict=True):
        if part.shape != own.shape:
            return np.zeros(()) if part.shape == x.shape else part
    declared = operator.input(name)
    if declared.token_axis is None:
        return np.asarray(np.sum(whole, axis=0, dtype=np.float64))
    where = keys if "s" in declared.axes else queries
    return _scattered(whole, where, declared.token_axis)
