"""Atoms about the token of a gradient and the token of the one value it depends on."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis.index_sets.atoms import UNKNOWN, Atom, Places, Rated
from linkern.testing.diagnosis.index_sets.chunks import chunk_atoms
from linkern.testing.influence.maps import Flags, Index, Real

__all__ = ["value_atoms"]

AXES = ("source", "written")


def value_atoms(known: Places, weight: Real) -> Iterator[Rated]:
    """Yield statements about gradients of which the token of the value is known.

    Parameters
    ----------
    known : mapping of str to array (N,)
        Places of entries.
    weight : array (N,)
        The gain of excluding each entry: negative of wrong ones.
    """
    if any(axis not in known or (known[axis] == UNKNOWN).all() for axis in AXES):
        return
    for gain, atom in chunk_atoms(_pairs(known), weight):
        if atom.text.startswith("pairs"):
            yield gain, _of_value(atom)
    for text, test in (
        ("the token of the value", _at_value),
        ("tokens after that of the value", _after_value),
    ):
        gain = float(weight.sum() - test(known) @ weight)
        yield gain, Atom(text, 2.5, test, AXES)


def _pairs(known: Places) -> dict[str, Index]:
    """Return places in which the token is the row, and that of the value the source."""
    ends = {f"end of {axis}": known["end of source"] for axis in ("row", "source")}
    return {"row": known["source"], "source": known["written"], **ends}


def _of_value(atom: Atom) -> Atom:
    """Return the atom of a pair, of the token and the value."""
    text = atom.text.replace("pairs", "values")
    cost, test = atom.cost + 1, atom.test
    return replace(
        atom, text=text, cost=cost, test=lambda p: test(_pairs(p)), axes=AXES
    )


def _at_value(known: Places) -> Flags:
    return np.asarray(known["source"] == known["written"])


def _after_value(known: Places) -> Flags:
    return np.asarray(known["source"] > known["written"])
