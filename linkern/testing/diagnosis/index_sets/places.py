"""Places of entries: their coordinates, the sizes of their axes, and distances."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.diagnosis.index_sets.columns import Columns
from linkern.testing.diagnosis.index_sets.coordinates import (
    BOUNDED,
    CHANNELS,
    COORDINATES,
    DISTANCES,
    IN_GROUP,
    TOKENS,
    UNKNOWN,
)
from linkern.testing.influence.maps import OF_OTHERS, Index, InfluenceMap

__all__ = ["Places", "anywhere", "places"]

Places = Mapping[str, NDArray[Any]]
# Places by which sets are compared, and the share of them that are near each other.
ANYWHERE, NEAR = 20_000, 0.5
# The result that is square in some calls.
MEMORY = "final state"


def places(influence: InfluenceMap) -> Columns:
    """Return the coordinates of the entries of a map, and the sizes of its axes."""
    count = len(influence.exact)
    shape, knobs = influence.problem.shape, influence.problem.knobs
    coordinates = {
        name: partial(_of_its_own, x, -int(name in TOKENS))
        for name, x in influence.coordinates.items()
        if name not in (*OF_OTHERS, "earlier token")
    }
    numbers = {x.name: 0 for x in COORDINATES.values() if x.single}
    for name, size in zip(BOUNDED, ("length", "key_dim", "value_dim"), strict=True):
        numbers[name] = getattr(shape, size)
    for one in COORDINATES.values():
        if one.size:
            numbers[f"end of {one.name}"] = getattr(shape, one.size)
    heads = shape.heads * shape.groups if "head" in influence.coordinates else 1
    numbers["end of head"] = heads
    for name in ("sequence", "span"):
        if f"{name}s" in knobs:
            numbers[f"end of {name}"] = knobs[f"{name}s"]
    # A state was handed over, or returned.
    if "span" in influence.coordinates or influence.tensor == MEMORY:
        numbers["not square"] = int(shape.key_dim != shape.value_dim)
    constant = {
        name: partial(np.full, count, n, np.int64)
        for name, n in numbers.items()
        if name not in coordinates
    }
    known = Columns({**coordinates, **constant})
    made: dict[str, Callable[[], Index]] = {}
    if shape.groups > 1 and _has_heads_of_values(influence):
        made[IN_GROUP] = lambda: _in_group(known["head"], shape.groups)
    if "source" in known:
        made["beyond"] = lambda: (known["source"] >= shape.length).astype(np.int64)
    if "row" in known:
        made["behind"] = lambda: (known["row"] >= shape.keys).astype(np.int64)
    return known | made | _distances(known)


def _of_its_own(at: Index, least: int) -> Index:
    """Return places; of a state or of another sequence there are none."""
    return np.where(at < least, UNKNOWN, at)


def _in_group(head: Index, groups: int) -> Index:
    return np.where(head == UNKNOWN, UNKNOWN, head % groups)


def _has_heads_of_values(influence: InfluenceMap) -> bool:
    """Return True for results with heads of values, which share those of queries."""
    axes = {x.name: x.axes for x in influence.problem.scope.operator.inputs}
    name = influence.tensor.removeprefix("gradient of ").split(" ")[0]
    return "head" in influence.coordinates and "h" not in axes.get(name, "g")


def _distances(known: Places) -> dict[str, Callable[[], Index]]:
    """Return what counts the tokens between those of a place."""
    return {
        name: partial(_apart, known, *ends)
        for name, ends in DISTANCES.items()
        if all(end in known for end in ends)
    }


def _apart(known: Places, later: str, earlier: str) -> Index:
    whole = (known[later] != UNKNOWN) & (known[earlier] != UNKNOWN)
    return np.where(whole, known[later] - known[earlier], UNKNOWN)


@cache
def anywhere() -> Places:
    """Return places in calls of any sizes, no source of them ahead of its row."""
    rng = np.random.default_rng(0)
    length, *sizes = (2 ** rng.uniform(0, 12, (6, ANYWHERE))).astype(np.int64)
    row = rng.integers(0, length)
    source = np.where(rng.random(ANYWHERE) < NEAR, row - sizes[0] % 32, row // sizes[1])
    known = {"row": row, "source": source.clip(-1), "length": length}
    known["written"] = rng.integers(-1, known["source"] + 1)
    known |= {f"end of {name}": length for name in TOKENS}
    for name, end, size in zip(CHANNELS, sizes[2:], CHANNELS.values(), strict=False):
        known |= {name: rng.integers(0, end), f"end of {name}": end, size: end}
    known["not square"] = (sizes[2] != sizes[3]).astype(np.int64)
    for name in (x.name for x in COORDINATES.values() if x.single):
        known |= {name: rng.integers(0, 4, ANYWHERE), f"end of {name}": length * 0 + 4}
    return known | {name: apart() for name, apart in _distances(known).items()}
