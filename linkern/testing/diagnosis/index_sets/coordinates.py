"""Coordinates of the entries of maps: their words, and where their sizes are."""

from dataclasses import dataclass

from linkern.testing.influence.maps import SPANS_BETWEEN

__all__ = [
    "BOUNDED",
    "CHANNELS",
    "COORDINATES",
    "DISTANCES",
    "IN_GROUP",
    "TOKENS",
    "UNKNOWN",
    "Coordinate",
    "noun_of",
]

UNKNOWN = -(2**40)
# The place of a head of values among those that share a head of queries.
IN_GROUP = "head of the group"


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of entries.

    Parameters
    ----------
    name : str
        Its name in a map.
    noun : str
        One place of it in words; its name if empty.
    plural : str
        Several places of it; the noun with an s if empty.
    size : str
        The field of a `Shape` that says how many there are; empty if none does.
    tokens : bool
        Whether it counts tokens; the initial state comes before the first.
    single : bool
        Whether a map without it has one place of it only.
    ended : bool
        Whether it is also counted from its end.
    """

    name: str
    noun: str = ""
    plural: str = ""
    size: str = ""
    tokens: bool = False
    single: bool = False
    ended: bool = False


COORDINATES = {
    x.name: x
    for x in (
        Coordinate("row", size="length", tokens=True, ended=True),
        Coordinate("source", size="keys", tokens=True, ended=True),
        Coordinate("written", "written token", tokens=True),
        Coordinate("batch", "batch entry", "batch entries", single=True),
        Coordinate("head", single=True, ended=True),
        Coordinate(
            IN_GROUP, "head of every group", "heads of every group", single=True
        ),
        Coordinate("sequence", single=True, ended=True),
        Coordinate("span", single=True, ended=True),
        Coordinate(SPANS_BETWEEN, single=True),
        Coordinate("micro-step", single=True),
        Coordinate("key channel", size="key_dim"),
        Coordinate("value channel", size="value_dim"),
    )
}
TOKENS = tuple(x.name for x in COORDINATES.values() if x.tokens)
# Sizes of calls, and their names.
BOUNDED = {"length": "lengths", "key dimension": "K", "value dimension": "V"}
CHANNELS = {"key channel": "key dimension", "value channel": "value dimension"}
# Differences of coordinates.
DISTANCES = {"back": ("row", "source"), "after": ("source", "written")}


def noun_of(name: str, *, several: bool) -> str:
    """Return the words of one place of a coordinate, or of several.

    Examples
    --------
    >>> noun_of("written", several=True), noun_of("batch", several=True)
    ('written tokens', 'batch entries')
    """
    known = COORDINATES.get(name, Coordinate(name))
    noun = known.noun or name
    return (known.plural or f"{noun}s") if several else noun
