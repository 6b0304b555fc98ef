"""Graph of the gradients of a call: the same blocks, the last one first.

The states between blocks come from the forward graph, a chain or a scan; their
cotangents go from block to block in either. Inputs are read a second time, so
that no block waits in memory from one pass to the other.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from dask.highlevelgraph import HighLevelGraph

from linkern import validate
from linkern.kernels.dask.forward import (
    PARTS,
    Call,
    Tasks,
    array,
    forward_and_states,
)
from linkern.kernels.dask.layout import Key, Lane
from linkern.kernels.dask.spans import Carried, total
from linkern.state import State

__all__ = ["backward"]


def backward(
    call: Call,
    arrays: Sequence[Any],
    varying: Sequence[int],
    cotangents: Mapping[int, Any],
) -> list[Any]:
    """Return the gradients of the arrays at the positions `varying`.

    Parameters
    ----------
    call : Call
        What was called.
    arrays : sequence of dask.array.Array
        Inputs, memory and normalizer.
    varying : sequence of int
        Positions to differentiate by.
    cotangents : mapping of int to dask.array.Array
        Those of output, memory and normalizer by position; what is missing is zero.
    """
    (output, memory, normalizer), before = forward_and_states(call, arrays)
    for i, result in enumerate((output, memory, normalizer)):
        if (x := cotangents.get(i)) is not None:
            name = "state_cotangent" if i else "output_cotangent"
            for axis in range(-x.ndim, 0):
                chunks = result.chunks[axis]
                validate.chunks_alike(name, axis, x.chunks[axis], "the result", chunks)
    tasks = _tasks(call, arrays[:-2], before, _kept(call, varying), cotangents)
    pull = call.name("pull")
    below = [memory, *arrays[:-2], *cotangents.values()]
    graph = HighLevelGraph.from_collections(pull, tasks, dependencies=below)
    return [_gradient(call, arrays, i, graph, varying) for i in varying]


def _kept(call: Call, varying: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the inputs to differentiate by, without and with an axis of tokens."""
    inputs = [i for i in varying if i < len(call.letters)]
    constant = [i for i in inputs if call.letters[i][:1] not in ("t", "s")]
    return constant, [i for i in inputs if i not in constant]


def _tasks(
    call: Call,
    inputs: Sequence[Any],
    before: Mapping[Lane, Sequence[Any]],
    kept: tuple[list[int], list[int]],
    cotangents: Mapping[int, Any],
) -> Tasks:
    """Return the tasks that run the pullbacks of every lane, the last block first."""
    tasks: Tasks = {}
    pull, carried = call.name("pull"), call.name("carried")
    starts = call.layout.starts()
    reads = call.readings(pull, [*inputs, cotangents.get(0)])
    for lane in call.layout.lanes():
        last = _after_the_last(call, cotangents, lane)
        tasks[carried, *lane, len(starts)] = (_carried, len(kept[0]), *last)
        for n in reversed(range(len(starts))):
            read = reads[pull, *lane, n]
            tasks[pull, *lane, n] = (
                partial(call.span.backward, starts[n], kept, read),
                list(read.sources),
                before[lane][n],
                (carried, *lane, n + 1),
            )
            tasks[carried, *lane, n] = (itemgetter(0), (pull, *lane, n))
    return tasks


def _after_the_last(
    call: Call, cotangents: Mapping[int, Any], lane: Lane
) -> list[Key | None]:
    """Return the keys of the cotangent of the last state.

    Lanes that share a state have computed it several times; one of them gets it.
    """
    keys: list[Key | None] = []
    for i, part in enumerate(PARTS, start=1):
        x = cotangents.get(i)
        core = len(call.state_shapes.get(part, ()))
        if x is None or not call.layout.leads(x.chunks, core, lane):
            keys.append(None)
        else:
            keys.append(call.layout.key(x, "." * core, lane, 0))
    return keys


def _carried(constant: int, memory: Any, normalizer: Any) -> Carried:
    """Return what the last block starts from."""
    return State(memory, normalizer), (None,) * constant


def _gradient(
    call: Call,
    arrays: Sequence[Any],
    position: int,
    graph: HighLevelGraph,
    varying: Sequence[int],
) -> Any:
    """Return the gradient of one array, in its chunks."""
    x, layout = arrays[position], call.layout
    constant, by_token = _kept(call, varying)
    spans = range(len(layout.tokens))
    path: tuple[int, ...]
    pull, carried = call.name("pull"), call.name("carried")
    if position >= len(call.letters):
        part = position - len(call.letters)
        letters = "." * len(call.state_shapes[PARTS[part]])
        source, path, spans = carried, (0, part), range(1)
    elif position in constant:
        letters = call.letters[position]
        source, path, spans = carried, (1, constant.index(position)), range(1)
    else:
        letters = call.letters[position]
        source, path = pull, (1 + by_token.index(position),)
    name = call.name(f"gradient-{position}")
    parts: dict[Key, list[Key]] = {}
    tasks: Tasks = {}
    for lane in layout.lanes():
        for n in spans:
            own = (name, *layout.key(x, letters, lane, n)[1:])
            part_key = (f"{name}-part", *lane, n)
            tasks[part_key] = (_item, path, (source, *lane, n))
            parts.setdefault(own, []).append(part_key)
    for own, keys in parts.items():
        if len(keys) == 1:
            tasks[own] = tasks.pop(keys[0])
        else:
            tasks[own] = (total, keys)
    return array(name, tasks, x.chunks, graph=graph, below=pull, like=x, dtype=x.dtype)


def _item(path: Sequence[int], x: Any) -> Any:
    for i in path:
        x = x[i]
    return x
