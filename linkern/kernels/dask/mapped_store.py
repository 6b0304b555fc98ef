"""A Zarr store whose files are mapped to memory, not read.

Zarr reads the file of a chunk into new memory and then copies it to the array that it
returns. The pages of a file that is mapped are those of the cache of the file system:
the copy is all that is left, and is as fast as memory.
"""

import asyncio
import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore

__all__ = ["MappedStore"]

# Bytes below which a file is read: mapping it would cost as much.
_LEAST = 2**20


class MappedStore(LocalStore):  # type: ignore[misc]  # mypy does not read Zarr
    """A folder of Zarr, whose files of a MiB and more are mapped when they are read.

    It is a `zarr.storage.LocalStore` in all else, and takes its parameters. A file must
    not be made shorter while it is read. Zarr itself replaces files.

    Examples
    --------
    >>> store = MappedStore("key.zarr", read_only=True)  # doctest: +SKIP
    >>> key = dask.array.from_zarr(zarr.open_array(store))  # doctest: +SKIP
    """

    async def get(
        self, key: str, prototype: Any = None, byte_range: Any = None
    ) -> Any | None:
        """Return what is kept under a key, or a part of it; None if there is nothing.

        Parameters
        ----------
        key : str
            Path of the file below the folder.
        prototype : zarr.core.buffer.BufferPrototype, optional
            Classes of what is returned.
        byte_range : zarr.abc.store.ByteRequest, optional
            Part of the file. Parts are read.
        """
        if byte_range is None:
            data = await asyncio.to_thread(_mapped, self.root / key)
            if data is not None:
                prototype = prototype or default_buffer_prototype()
                return prototype.buffer.from_array_like(data)
        return await super().get(key, prototype, byte_range)


def _mapped(path: Path) -> NDArray[np.uint8] | None:
    """Return the bytes of a file; None if it is small, or none."""
    try:
        if path.stat().st_size < _LEAST:
            return None
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:  # among them "is a directory"; `LocalStore` says what it means
        return None
    if hasattr(mmap, "MADV_WILLNEED"):  # the disk begins before the copy does
        mapping.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapping, "uint8")
