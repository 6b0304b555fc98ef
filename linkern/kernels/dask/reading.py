"""Blocks of inputs, made by the task that uses them.

Left to themselves, idle threads of a scheduler would load block after block ahead of
the calls that wait for them, and a backward pass would keep all of them. So the tasks
that make the blocks of one call, and nothing else, become part of it.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask
from dask._task_spec import DataNode, convert_legacy_graph
from dask.core import toposort

from linkern.kernels.dask.layout import Key

__all__ = ["Reading", "readings"]

# In place of a call: more than one user, none of which is a call.
_OUTSIDE: tuple[Key, Key] = (("outside", 0), ("outside", 1))


@dataclass(frozen=True, eq=False)
class Reading:
    """The tasks that make the blocks of one call.

    Parameters
    ----------
    tasks : mapping of key to task
        Tasks that serve this call alone.
    sources : tuple of keys
        What these need of other tasks, and what is data already.
    blocks : tuple of keys or None
        The blocks, in the order of the arrays.
    """

    tasks: Mapping[Hashable, Any]
    sources: tuple[Hashable, ...]
    blocks: tuple[Key | None, ...]

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        """Return the blocks, or None for none, from the values of the sources."""
        known = zip(self.sources, data, strict=True)
        graph = {**self.tasks, **{key: DataNode(key, x) for key, x in known}}
        keys = [key for key in self.blocks if key is not None]
        made = iter(dask.get(graph, keys))
        return [None if key is None else next(made) for key in self.blocks]


def readings(
    arrays: Sequence[Any], calls: Mapping[Key, Sequence[Key | None]]
) -> dict[Key, Reading]:
    """Return how each call makes its blocks.

    Parameters
    ----------
    arrays : sequence of dask.array.Array or None
        Where the blocks are from.
    calls : mapping of key to keys
        The blocks of each call.
    """
    graph: dict[Any, Any] = {}
    for x in arrays:
        if x is not None:
            graph.update(x.dask)
    nodes = convert_legacy_graph(graph)  # without the futures of a cluster
    needs = {key: node.dependencies & nodes.keys() for key, node in nodes.items()}
    callers: defaultdict[Any, set[Key]] = defaultdict(set)
    for call, blocks in calls.items():
        for block in blocks:
            callers[block].add(call)
    tasks: dict[Key, dict[Hashable, Any]] = {call: {} for call in calls}
    sources: dict[Key, dict[Hashable, None]] = {call: {} for call in calls}
    callers.pop(None, None)
    order = [*toposort(nodes, dependencies=needs)]
    for key in [*reversed(order), *graph.keys() - nodes.keys()]:
        users, node = callers[key], nodes.get(key)
        if not users:
            continue
        alone = len(users) == 1 and not isinstance(node, DataNode | None)
        if alone:
            tasks[next(iter(users))][key] = node
        else:
            for call in users & calls.keys():
                sources[call][key] = None
        # A task that stays outside reads what it needs outside too.
        for need in () if node is None else node.dependencies:
            callers[need].update(users if alone else _OUTSIDE)
    return {
        call: Reading(tasks[call], tuple(sources[call]), tuple(blocks))
        for call, blocks in calls.items()
    }
