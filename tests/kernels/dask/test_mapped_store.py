"""Chunks of Zarr that are mapped to memory are those that Zarr reads."""

import pickle
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

SHAPE, CHUNKS = (2, 50, 4), (1, 16, 4)  # the last chunk is cut
CODECS = {
    "plain": {"compressors": None},
    "compressed": {"compressors": "auto"},
    "shards": {"compressors": None, "shards": (2, 32, 4)},
}


@pytest.fixture
def mapped(dask, zarr, monkeypatch):
    """The module, which maps files of any size."""
    module = import_module("linkern.kernels.dask.mapped_store")
    monkeypatch.setattr(module, "_LEAST", 1)
    return module


@pytest.fixture
def numbers():
    return np.random.default_rng(0).normal(size=SHAPE)


@pytest.fixture
def read(mapped, zarr):
    """A function of a folder: its array, mapped."""

    def opened(folder):
        store = mapped.MappedStore(folder, read_only=True)
        return zarr.open_array(store, mode="r")

    return opened


def written(zarr, folder, numbers, **options):
    options = {"compressors": None} | options
    array = zarr.create_array(
        str(folder), shape=SHAPE, chunks=CHUNKS, dtype=numbers.dtype, **options
    )
    array[:] = numbers
    return array


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_mapped_is_what_zarr_reads(codec, zarr, read, numbers, tmp_path):
    written(zarr, tmp_path / "x", numbers, **CODECS[codec])
    array = read(tmp_path / "x")
    np.testing.assert_array_equal(array[:], numbers)
    np.testing.assert_array_equal(array[1:, 3:20:2], numbers[1:, 3:20:2])


def test_chunks_that_are_missing_hold_the_fill_value(zarr, read, numbers, tmp_path):
    numbers[0, :16] = 7.0
    written(zarr, tmp_path / "x", numbers, fill_value=7.0)
    assert not (tmp_path / "x" / "c" / "0" / "0").exists()
    np.testing.assert_array_equal(read(tmp_path / "x")[:], numbers)


def test_files_of_chunks_are_not_read(
    mapped, zarr, read, numbers, tmp_path, monkeypatch
):
    written(zarr, tmp_path / "x", numbers)
    array, names = read(tmp_path / "x"), []
    original = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: (names.append(path.name), original(path))[1]
    )
    np.testing.assert_array_equal(array[:], numbers)
    assert names == []
    monkeypatch.setattr(mapped, "_LEAST", 2**20)  # small files are read
    np.testing.assert_array_equal(array[:], numbers)
    assert len(names) == 8


def test_a_chunk_that_zarr_replaces_is_read_anew(zarr, read, numbers, tmp_path):
    target, array = written(zarr, tmp_path / "x", numbers), read(tmp_path / "x")
    before = array[:]
    target[:] = -numbers
    np.testing.assert_array_equal(array[:], -numbers)
    np.testing.assert_array_equal(before, numbers)


def test_dask_takes_the_array_to_other_processes(dask, zarr, read, numbers, tmp_path):
    written(zarr, tmp_path / "x", numbers)
    array = pickle.loads(pickle.dumps(read(tmp_path / "x")))
    assert type(array.store).__name__ == "MappedStore"
    blocks = import_module("dask.array").from_zarr(array)
    assert blocks.chunks[1] == (16, 16, 16, 2)
    np.testing.assert_array_equal(blocks.compute(), numbers)


def test_what_is_no_array_is_refused_as_by_zarr(mapped, zarr, tmp_path):
    (tmp_path / "x").mkdir()
    store = mapped.MappedStore(tmp_path, read_only=True)
    for path in ("x", "y"):
        with pytest.raises(FileNotFoundError):
            zarr.open_array(store, path=path, mode="r")
