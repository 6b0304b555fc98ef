"""Dask arrays whose blocks are chunks of Zarr that are mapped to memory, not read.

Zarr reads the file of a chunk into new memory, and copies it to the array that it
returns. Where a chunk is stored as it is in memory, neither is needed: the pages of a
file that is mapped are those of the cache of the file system, and a block of the Dask
array is a view of them.
"""

import mmap
import sys
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import LocalStore

__all__ = ["from_zarr"]


def from_zarr(array: "str | PathLike[str] | zarr.Array") -> Any:
    """Return a Dask array of the chunks of a Zarr array on a local disk, mapped.

    It is for arrays that are stored as they are in memory. A file must not be made
    shorter while it is read; Zarr itself replaces files.

    Parameters
    ----------
    array : str, os.PathLike or zarr.Array
        The array or its folder, without compression, filters and shards.

    Returns
    -------
    dask.array.Array
        In the chunks of the array, of its shape and dtype. Blocks cannot be written to.

    Raises
    ------
    ValueError
        If chunks are not stored as they are in memory, or not as files of a folder.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import zarr
    >>> from linkern.kernels.dask.mapped_zarr import from_zarr
    >>> stored = {"shape": (2, 6), "chunks": (2, 4), "compressors": None}
    >>> with TemporaryDirectory() as folder:
    ...     zarr.create_array(folder, dtype="f8", **stored)[:] = 1.0
    ...     x = from_zarr(folder)
    ...     x.chunks, float(x.sum().compute())
    (((2,), (4, 2)), 12.0)
    """
    if not isinstance(array, zarr.Array):
        array = zarr.open_array(array, mode="r")
    obstacle = _obstacle(array)
    if obstacle is not None:
        msg = (
            f"`array` must be stored as it is in memory to be mapped, but {obstacle}. "
            "Read it by `dask.array.from_zarr`, or write it with `compressors=None`, "
            "without filters and shards, in the byte order of this machine."
        )
        raise ValueError(msg)
    return da.from_array(_MappedArray(array), chunks=array.chunks, fancy=False)


def _obstacle(array: Any) -> str | None:
    """Return why the files of an array are not its chunks as they are in memory."""
    for how in ("compressors", "filters", "shards"):
        if getattr(array, how):
            return f"its `{how}` are {getattr(array, how)!r}"
    if not isinstance(array.store, LocalStore):
        return f"its store is a {type(array.store).__name__}, not a folder of files"
    endian = getattr(array.serializer, "endian", None)
    stored = sys.byteorder if endian is None else endian.value
    if not array.dtype.isnative or stored != sys.byteorder:
        return "its bytes are in another order"
    if array.metadata.zarr_format == 2 and array.order != "C":
        return f"its `order` is {array.order!r}"
    return None


@dataclass(frozen=True)
class _MappedArray:
    """A Zarr array, of which what lies in one chunk is a view of a mapped file."""

    array: Any

    @property
    def shape(self) -> Any:
        return self.array.shape

    @property
    def ndim(self) -> Any:
        return self.array.ndim

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __getitem__(self, selection: tuple[slice, ...]) -> Any:
        """Return a part of a chunk, as Dask asks for it.

        Zarr answers where no file is, because all numbers are the fill value.
        """
        chunks, place, inside = self.array.chunks, [], []
        for one, size, length in zip(selection, self.shape, chunks, strict=True):
            start, stop, step = one.indices(size)
            place.append(start // length)
            first = place[-1] * length
            inside.append(slice(start - first, stop - first, step))
        folder = Path(self.array.store.root, self.array.path)
        mapped = _mapped(folder / self.array.metadata.encode_chunk_key(tuple(place)))
        if mapped is None:
            return self.array[selection]
        return mapped.view(self.dtype).reshape(chunks)[tuple(inside)]


def _mapped(path: Path) -> NDArray[np.uint8] | None:
    """Return the bytes of a file; None if there is none."""
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return None
    if hasattr(mmap, "MADV_WILLNEED"):  # the disk begins before the call does
        mapping.madvise(mmap.MADV_WILLNEED)
    return np.frombuffer(mapping, "uint8")
