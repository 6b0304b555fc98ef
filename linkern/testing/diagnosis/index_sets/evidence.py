"""Evidence of a set: what it says is seen in every call, and up to its ends.

A set is the shortest description of some entries, and may be one by chance. Then it
takes in whole calls that are right, or ends where wrong entries become rare.
"""

from collections.abc import Sequence

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import Atom
from linkern.testing.diagnosis.index_sets.coordinates import TOKENS, UNKNOWN
from linkern.testing.diagnosis.index_sets.search import Table, inside_of
from linkern.testing.influence.maps import Flags

__all__ = ["holds_throughout"]

# Entries of a call, and at an end, that tell; the share of these that must be wrong.
TELLING, AT_END = 20, 0.5


def holds_throughout(table: Table, atoms: Sequence[Atom], *, each_call: bool) -> bool:
    """Return True if most entries at the ends of a set are wrong.

    Parameters
    ----------
    table : Table
        Entries of which a deviation would show.
    atoms : sequence of Atom
        The statements of the set.
    each_call : bool
        Whether some must be wrong in each call, too.
    """
    inside = inside_of(table, atoms)
    count = np.bincount(table.call[inside])
    wrong = np.bincount(table.call[inside], table.wrong[inside])
    if each_call and (wrong == 0)[count >= TELLING].any():
        return False
    return all(_ends(table, atom, inside) for atom in atoms)


def _ends(table: Table, atom: Atom, inside: Flags) -> bool:
    """Return True if most entries at the end of a range of tokens are wrong."""
    sign = 1 if "at_least" in atom.data else -1 if "below" in atom.data else 0
    name = next(iter(atom.axes), "")
    if not sign or name not in TOKENS:
        return True
    inside = inside & (table.known[name] != UNKNOWN)
    x = table.known[name]
    if "counted" in atom.data:  # from the end
        x = table.known[f"end of {name}"] - x
    x = sign * x
    at_end = np.sort(x[inside])[:TELLING]
    return not len(at_end) or bool(
        table.wrong[inside & (x <= at_end[-1])].mean() >= AT_END
    )
