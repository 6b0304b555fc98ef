"""Record of a diagnosis: the place of a deviation, its factor, its sentence and map."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["UNEXPLAINED", "Diagnosis", "Picture"]

# The name of a diagnosis that says what was not measured, and nothing else.
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Picture:
    """Influence map in few cells: one letter each, and the entry that is worst in it.

    Parameters
    ----------
    tensor : str
        The result that the map belongs to: ``output``, ``gradient of key``, ...
    axes : tuple of str
        Coordinates that go down and across: ``row`` and ``source`` in most maps.
    rows, columns : tuple of int
        First coordinate of each row and column of cells.
    cells : tuple of str
        A text per row, a letter per cell: ``.`` right, ``0`` lost, ``<`` too small,
        ``>`` too large, ``-`` of the other sign, ``+`` where nothing belongs, ``!`` not
        finite, a blank where there is no entry.
    measured, exact : tuple of tuple of float
        The entry of each cell that is furthest beyond its bound; the largest one if
        none is; NaN where there is none.
    chunk : int or None
        Tokens from rule to rule, where the place of the deviation names chunks.
    part : str
        The batch entry, head, ... that is shown, where there are several.
    """

    tensor: str
    axes: tuple[str, str]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    cells: tuple[str, ...]
    measured: tuple[tuple[float, ...], ...]
    exact: tuple[tuple[float, ...], ...]
    chunk: int | None = None
    part: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the letters and their places; the numbers are left to the page."""
        names = ("tensor", "axes", "rows", "columns", "cells", "chunk", "part")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Diagnosis:
    """Deviation of a target from its operator, as far as it was measured.

    Parameters
    ----------
    name : str
        Short name for programs: of a behaviour (``not_deterministic``), or of the
        tensor and kind of factor of a map (``output_product``); `UNEXPLAINED` where
        nothing shows.
    sentence : str
        The same for people.
    ratio : float
        Largest difference between the target and what is said of it, as a multiple of
        what rounding allows; infinite for a behaviour, NaN where nothing is said in
        numbers.
    declaration : tuple of str
        ``KEY=VALUE`` of the contract under which it is right; empty if there is none.
    stage : str
        The result in which it shows first: ``output``, ``final state``, ...
    where : str
        The entries that are wrong: ``pairs across edges of chunks of 16``, ...
    by_what : str
        The measured entries as a multiple of the exact ones, or as another function of
        them: ``0``, ``exp(-log_decay[row])``, ...; empty if no product fits.
    alternatives : tuple of str
        Places in as few words that the measurements do not tell from `where`.
    hint : str
        The usual line of code at fault.
    picture : Picture or None
        The map in which it shows.
    not_measured : tuple of str
        Parts of the calls that could not be measured, and the reasons.
    places : tuple of tuple of mapping
        `where` for programs: a conjunction of statements, or two of which one holds;
        empty if `where` is no set of entries that was searched for.
    factor : mapping or None
        `by_what` for programs: the kind of the formula, its constant, the exponents of
        quantities, the chunk size that they refer to; or its words; or bits.
    """

    name: str
    sentence: str
    ratio: float = math.nan
    declaration: tuple[str, ...] = ()
    stage: str = ""
    where: str = ""
    by_what: str = ""
    alternatives: tuple[str, ...] = ()
    hint: str = ""
    picture: Picture | None = None
    not_measured: tuple[str, ...] = ()
    places: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    factor: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, the picture as its letters."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return fields | {"picture": self.picture and self.picture.to_dict()}
