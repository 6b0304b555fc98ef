"""Memory that a launch may touch, told apart by tags in the addresses.

Addresses have 48 bits. The pointer of each argument carries its number in the other 16,
which pointer arithmetic keeps: an address past the end of one tensor is known as that,
though another tensor may lie there.
"""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Region", "Regions", "plain"]

_SHIFT = np.uint64(48)
_LOW = np.uint64(2**48 - 1)
# Tag of an address that belongs to no argument: an integer that became a pointer.
UNKNOWN = 0


@dataclass(frozen=True)
class Region:
    """Memory of one argument.

    Parameters
    ----------
    name : str
        Name of the argument.
    start, end : int
        Its first address, and that after its last one.
    """

    name: str
    start: int
    end: int

    def holds(self, low: int, high: int, size: int) -> bool:
        """Return True if entries of so many bytes from `low` to `high` lie inside."""
        return self.start <= low and high + size <= self.end


def plain(addresses: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return addresses without their tags."""
    return addresses & _LOW


class Regions:
    """Regions of the arguments of one launch."""

    def __init__(self) -> None:
        self._regions: list[Region | None] = [None]
        self._others: list[Region] | None = None

    def tagged(self, name: str, tensor: Any) -> int:
        """Return the address of an argument with its tag, and remember its memory."""
        storage = tensor.untyped_storage()
        start = int(storage.data_ptr())
        self._regions.append(Region(name, start, start + storage.nbytes()))
        return int(tensor.data_ptr()) | (len(self._regions) - 1) << int(_SHIFT)

    def name_of(self, address: int) -> str:
        """Return the name of the argument that a tagged address comes from."""
        tag = address >> int(_SHIFT)
        region = self._regions[tag] if tag < len(self._regions) else None
        return region.name if region is not None else "an address"

    def outside(
        self, addresses: NDArray[np.uint64], mask: NDArray[np.bool_], size: int
    ) -> tuple[NDArray[np.bool_], Region] | None:
        """Return the masked entries outside of their memory, and that memory.

        None if there are none. Entries have `size` bytes.
        """
        low, high = int(addresses.min()), int(addresses.max())
        tag = low >> int(_SHIFT)
        region = self._regions[tag] if tag < len(self._regions) else None
        if region is not None and tag == high >> int(_SHIFT):
            clear = int(_LOW)
            if region.holds(low & clear, high & clear, size):
                return None
        if not mask.any():
            return None
        return self._entry_by_entry(addresses, mask, size)

    def _entry_by_entry(
        self, addresses: NDArray[np.uint64], mask: NDArray[np.bool_], size: int
    ) -> tuple[NDArray[np.bool_], Region] | None:
        tags, places = addresses >> _SHIFT, plain(addresses)
        wrong = np.zeros(addresses.shape, bool)
        culprit: Region | None = None
        for tag in np.unique(tags[mask]).tolist():
            here = mask & (tags == np.uint64(tag))
            regions = self._of(tag)
            inside = np.zeros(addresses.shape, bool)
            for region in regions:
                last = max(region.end - size, 0)
                inside |= (places >= region.start) & (places <= last)
            if (here & ~inside).any():
                wrong |= here & ~inside
                culprit = regions[0] if tag != UNKNOWN and regions else culprit
        if not wrong.any():
            return None
        return wrong, culprit or Region("", 0, 0)

    def _of(self, tag: int) -> list[Region]:
        """Return the memory that addresses with a tag may lie in."""
        if tag != UNKNOWN:
            region = self._regions[tag] if tag < len(self._regions) else None
            return [region] if region is not None else []
        if self._others is None:
            self._others = [*_living()]
        return self._others


def _living() -> Iterator[Region]:
    """Yield the memory of all tensors of the process."""
    torch = import_module("torch")
    for x in gc.get_objects():
        if type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu":
            storage = x.untyped_storage()
            start = int(storage.data_ptr())
            yield Region("", start, start + storage.nbytes())
