"""Graph of a call: blocks of tokens, each entered with the state the last one left.

Each block takes three tasks. In a chain these are the call of the operator, and one
each that takes the output and the state out of its result. In a scan they are the map
of its tokens, the call, and its output. Lanes, the blocks of heads, know nothing of
each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import dask.array as da
from dask.array.utils import meta_from_array
from dask.highlevelgraph import HighLevelGraph

from linkern.kernels.dask.layout import Chunks, Key, Lane, Layout
from linkern.kernels.dask.reading import Reading, readings
from linkern.kernels.dask.scan import entered, prefixes, span_tasks
from linkern.kernels.dask.spans import Span
from linkern.state import State

__all__ = ["PARTS", "Call", "Tasks", "array", "forward", "forward_and_states"]

Tasks = dict[Key, Any]

PARTS = ("memory", "normalizer")


@dataclass(frozen=True)
class Call:
    """One call of an operator on Dask arrays.

    Parameters
    ----------
    operator, token : str
        Name of the operator, and what tells its keys from those of other calls.
    span : Span
        The work of a task.
    layout : Layout
        Which blocks meet.
    letters : tuple of str
        Last axes of each input.
    batch : tuple of int
        Leading axes of the state.
    state_shapes : mapping of str to tuple of int
        Last axes of each part of the state.
    values : int
        Last axis of the output.
    dtype, wide : dtype
        Of the output and of the state.
    scan : bool
        Whether the states before blocks come from a scan over maps, not from a chain.
    """

    operator: str
    token: str
    span: Span
    layout: Layout
    letters: tuple[str, ...]
    batch: tuple[int, ...]
    state_shapes: Mapping[str, tuple[int, ...]]
    values: int
    dtype: Any
    wide: Any
    scan: bool

    def name(self, part: str) -> str:
        """Return the name of the tasks, or of the array, of one part of the call."""
        return f"{self.operator}-{part}-{self.token}"

    def readings(self, name: str, arrays: Sequence[Any]) -> dict[Key, Reading]:
        """Return how the tasks of a name read the inputs, and a cotangent after them.

        Parameters
        ----------
        name : str
            The keys of the tasks are this, the lane, and the number of the span.
        arrays : sequence of dask.array.Array or None
            All inputs; perhaps the cotangent of the output.
        """
        letters = (*self.letters, "tv")
        place = self.layout
        calls = {
            (name, *lane, n): [
                None if x is None else place.key(x, own, lane, n)
                for x, own in zip(arrays, letters, strict=False)
            ]
            for lane in place.lanes()
            for n in range(len(place.tokens))
        }
        return readings(arrays, calls)


def forward(call: Call, arrays: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return output, memory and normalizer, from the inputs and the initial state."""
    results, _ = forward_and_states(call, arrays)
    return results


def forward_and_states(
    call: Call, arrays: Sequence[Any]
) -> tuple[tuple[Any, Any, Any], dict[Lane, list[Any]]]:
    """Return the results of `forward`, and the states before the blocks of each lane.

    The states are arguments of tasks of graphs that go on from these results.
    """
    inputs, state = arrays[:-2], arrays[-2:]
    tasks, before = forward_tasks(call, inputs, state)
    below = [x for x in arrays if x is not None]
    run = call.name("run")
    graph = HighLevelGraph.from_collections(run, tasks, dependencies=below)
    as_array = partial(array, graph=graph, below=run, like=inputs[0])
    lead = call.layout.of_shape(call.batch)
    results: list[Any] = [None, None, None]
    chunks = (*call.layout.lead, call.layout.tokens, (call.values,))
    outputs = {
        (call.name("output"), *lane, n, 0): (itemgetter(0), (run, *lane, n))
        for lane in call.layout.lanes()
        for n in range(len(call.layout.tokens))
    }
    results[0] = as_array(call.name("output"), outputs, chunks, dtype=call.dtype)
    for i, part in enumerate(PARTS):
        if (core := call.state_shapes.get(part)) is not None:
            chunks = (*lead, *((size,) for size in core))
            parts = _last_states(call, part, chunks)
            results[i + 1] = as_array(call.name(part), parts, chunks, dtype=call.wide)
    output, memory, normalizer = results
    return (output, memory, normalizer), before


def _last_states(call: Call, part: str, chunks: tuple[Chunks, ...]) -> Tasks:
    """Return the tasks that take a part out of the last states of the lanes."""
    core = len(call.state_shapes[part])
    last = len(call.layout.tokens)
    return {
        (call.name(part), *call.layout.own(chunks, core, lane), *(0,) * core): (
            itemgetter(PARTS.index(part)),
            (call.name("state"), *lane, last),
        )
        for lane in call.layout.lanes()
        if call.layout.leads(chunks, core, lane)
    }


def forward_tasks(
    call: Call, inputs: Sequence[Any], state: Sequence[Any]
) -> tuple[Tasks, dict[Lane, list[Any]]]:
    """Return the tasks that run the blocks, and the states before those of each lane.

    A state is a key, or a task that becomes part of those that need it.
    """
    tasks: Tasks = {}
    before: dict[Lane, list[Any]] = {}
    run, after = call.name("run"), call.name("state")
    starts = call.layout.starts()
    reads = call.readings(run, inputs)
    if call.scan:
        tasks |= span_tasks(call, inputs)
    for lane in call.layout.lanes():
        first = (after, *lane, 0)
        tasks[first] = _initial(call, state, lane)
        if call.scan:
            composed, keys = prefixes(call, lane)
            tasks |= composed
            before[lane] = [first, *((entered, key, first) for key in keys)]
        else:
            before[lane] = [(after, *lane, n) for n in range(len(starts))]
        for n, start in enumerate(starts):
            read = reads[run, *lane, n]
            tasks[run, *lane, n] = (
                partial(call.span.forward, start, read),
                list(read.sources),
                before[lane][n],
            )
            if n == len(starts) - 1 or not call.scan:
                tasks[after, *lane, n + 1] = (itemgetter(1), (run, *lane, n))
    return tasks, before


def _initial(call: Call, state: Sequence[Any], lane: Lane) -> Any:
    """Return the task that makes the state before the first token; None for none."""
    if state[0] is None:
        return None
    keys = [
        None
        if x is None
        else call.layout.key(x, "." * len(call.state_shapes[part]), lane, 0)
        for part, x in zip(PARTS, state, strict=True)
    ]
    return (State, *keys)


def array(
    name: str,
    tasks: Tasks,
    chunks: tuple[Chunks, ...],
    *,
    graph: HighLevelGraph,
    below: str,
    like: Any,
    dtype: Any,
) -> Any:
    """Return the array of a name, whose tasks take parts of results of a layer."""
    layers = {**graph.layers, name: tasks}
    dependencies = {**graph.dependencies, name: {below}}
    meta = meta_from_array(like, len(chunks), dtype)
    return da.Array(HighLevelGraph(layers, dependencies), name, chunks, meta=meta)
