"""Findings about loads and stores: out of bounds, or of memory that nothing wrote."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linkern.testing.target.interpreted.allocations import fill_with
from linkern.testing.target.interpreted.regions import Region, Regions, plain

__all__ = ["Accesses", "kernel_place"]

# Sentences that are kept of one call.
MOST = 12
# Python files of the interpreter and of these patches, whose frames are no kernel's.
_OURS = str(Path(__file__).parent)


class Accesses:
    """Findings about the memory of all launches of one call.

    Attributes
    ----------
    regions : Regions
        Memory of the launch at hand.
    kernel : str
        Its kernel.
    """

    def __init__(self) -> None:
        self.regions = Regions()
        self.kernel = ""
        self._out_of_bounds: dict[tuple[str, str, str], str] = {}
        self._unwritten: dict[tuple[str, str, str], str] = {}

    def launch(self, kernel: str) -> None:
        """Begin a launch."""
        self.kernel, self.regions = kernel, Regions()

    def begin(self, fill: str) -> None:
        """Begin a call, in which new memory is filled with one of `FILLS`."""
        fill_with(fill)
        self._out_of_bounds.clear()
        self._unwritten.clear()

    @property
    def out_of_bounds(self) -> tuple[str, ...]:
        """Accesses outside of their arguments: a sentence for each line."""
        return tuple(self._out_of_bounds.values())

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Loads of memory that nothing wrote."""
        return tuple(self._unwritten.values())

    def checked(
        self, pointers: Any, mask: NDArray[np.bool_], action: str, program: Any
    ) -> NDArray[np.bool_] | None:
        """Return the entries out of bounds, which are recorded; None if there are none.

        Parameters
        ----------
        pointers : TensorHandle
            Tagged addresses.
        mask : array of bool
            Entries that are accessed.
        action : {"load", "store", "atomic"}
            The access.
        program : tuple of int
            Indices of the program in its grid.
        """
        addresses = pointers.data
        if not addresses.size:
            return None
        size = max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)
        wrong = self.regions.outside(addresses, mask, size)
        if wrong is None:
            return None
        entries, region = wrong
        where = self._place()
        key = (action, where, region.name)
        if key not in self._out_of_bounds and len(self._out_of_bounds) < MOST:
            places = plain(addresses)[entries]
            low, high = int(places.min()), int(places.max())
            self._out_of_bounds[key] = (
                f"the `tl.{action}` at {where} {_direction(region, low, high, size)} "
                f"(program {', '.join(map(str, program))})"
            )
        return entries

    def note_unwritten(self, addresses: NDArray[np.uint64]) -> None:
        """Record a load from addresses that nothing wrote to."""
        where = self._place()
        name = self.regions.name_of(int(addresses[0]))
        key = ("load", where, name)
        if key not in self._unwritten and len(self._unwritten) < MOST:
            count = len(addresses)
            numbers = "1 number" if count == 1 else f"{count} numbers"
            self._unwritten[key] = (
                f"the `tl.load` at {where} reads {numbers} of `{name}` that nothing "
                "wrote"
            )

    def _place(self) -> str:
        """Return the line of the kernel that is running, and the kernel."""
        place = kernel_place(sys._getframe())
        return f"{place} in {self.kernel}" if place else self.kernel


def kernel_place(frame: Any) -> str:
    """Return file and line of the innermost frame outside of Triton and of here."""
    triton = str(Path(import_module("triton").__file__ or "").parent)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((triton, _OURS)):
            return f"{Path(file).name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _direction(region: Region, low: int, high: int, size: int) -> str:
    """Return how far an access lies from its memory, in words."""
    if not region.name:
        return "goes to an address that is in no tensor"
    if high + size > region.end:
        past = high + size - region.end
        return f"goes {past} bytes past the end of `{region.name}`"
    return f"goes {region.start - low} bytes before the beginning of `{region.name}`"
