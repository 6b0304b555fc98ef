"""Chunks of Zarr that are mapped are those that Zarr reads, and are not copied."""

import pickle
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import need_for_module

need_for_module("dask", "zarr")
from numcodecs import Delta
from zarr.codecs import BytesCodec

SHAPE, CHUNKS = (2, 50, 4), (1, 16, 4)  # the last chunk is cut
NOT_MAPPED = {
    "`compressors` are .*Zstd": {"compressors": "auto"},
    "`shards` are .*32": {"shards": (2, 32, 4)},
    "`filters` are .*Delta": {"zarr_format": 2, "filters": [Delta("f8")]},
    "`order` is 'F'": {"zarr_format": 2, "order": "F"},
    "bytes are in another order": {"zarr_format": 2, "dtype": ">f8"},
    "are in another order": {"serializer": BytesCodec(endian="big")},
}


@pytest.fixture(scope="module")
def mapped(dask, zarr):
    return import_module("linkern.kernels.dask.mapped_zarr")


@pytest.fixture
def numbers():
    return np.random.default_rng(0).normal(size=SHAPE)


def written(zarr, folder, numbers, **options):
    options = {"compressors": None, "dtype": numbers.dtype} | options
    array = zarr.create_array(str(folder), shape=SHAPE, chunks=CHUNKS, **options)
    array[:] = numbers
    return array


def blocks_of(array):
    blocks = []
    array.map_blocks(
        lambda block: (blocks.append(block), block)[1], meta=array._meta
    ).compute(scheduler="synchronous")
    return blocks


@pytest.fixture(params=[2, 3])
def folder(request, zarr, numbers, tmp_path):
    written(zarr, tmp_path / "x", numbers, zarr_format=request.param)
    return tmp_path / "x"


def test_what_is_mapped_is_what_was_written(mapped, numbers, folder):
    array = mapped.from_zarr(folder)
    assert array.chunks == ((1, 1), (16, 16, 16, 2), (4,))
    assert array.dtype == numbers.dtype
    np.testing.assert_array_equal(array.compute(), numbers)


def test_blocks_are_views_that_cannot_be_written_to(mapped, zarr, folder, monkeypatch):
    array, read = mapped.from_zarr(str(folder)), []
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda _, key: read.append(key))
    blocks = blocks_of(array)
    assert read == []
    assert len(blocks) == 8
    for block in blocks:
        assert not block.flags.owndata
        assert not block.flags.writeable


@given(data=st.data())
def test_any_part_is_that_of_the_array(mapped, zarr, tmp_path_factory, data):
    numbers = np.arange(np.prod(SHAPE), dtype="f8").reshape(SHAPE)
    folder = tmp_path_factory.mktemp("zarr")
    array = mapped.from_zarr(written(zarr, folder / "x", numbers))
    part = tuple(data.draw(st.slices(size)) for size in SHAPE)
    chunks = data.draw(st.sampled_from([CHUNKS, (2, 5, 3), (2, 50, 4), (1, 32, 2)]))
    np.testing.assert_array_equal(array[part].compute(), numbers[part])
    np.testing.assert_array_equal(array.rechunk(chunks).compute(), numbers)


def test_chunks_that_are_missing_hold_the_fill_value(mapped, zarr, numbers, tmp_path):
    numbers[0, :16] = 7.0
    array = written(zarr, tmp_path / "x", numbers, fill_value=7.0)
    assert not Path(tmp_path, "x", "c", "0", "0").exists()
    np.testing.assert_array_equal(mapped.from_zarr(array).compute(), numbers)


def test_a_chunk_that_zarr_replaces_is_read_anew(mapped, zarr, numbers, tmp_path):
    target = written(zarr, tmp_path / "x", numbers)
    array = mapped.from_zarr(target)
    before = array.compute()
    target[:] = -numbers
    np.testing.assert_array_equal(array.compute(), -numbers)
    np.testing.assert_array_equal(before, numbers)


def test_it_goes_to_other_processes(mapped, numbers, folder):
    array = pickle.loads(pickle.dumps(mapped.from_zarr(folder)))
    np.testing.assert_array_equal(array.compute(scheduler="processes"), numbers)


def test_an_array_in_a_group_is_read_from_its_folder(mapped, zarr, numbers, tmp_path):
    group = zarr.open_group(tmp_path, mode="w")
    array = group.create_array(
        "deep/x", shape=SHAPE, chunks=CHUNKS, dtype="f8", compressors=None
    )
    array[:] = numbers
    read = mapped.from_zarr(array)
    np.testing.assert_array_equal(read.compute(), numbers)
    assert not any(block.flags.writeable for block in blocks_of(read))


@pytest.mark.parametrize("why", NOT_MAPPED)
def test_what_is_not_stored_as_it_is_in_memory_is_refused(
    mapped, zarr, numbers, tmp_path, why
):
    written(zarr, tmp_path / "x", numbers, **NOT_MAPPED[why])
    with pytest.raises(ValueError, match=rf"as it is in memory.* {why}.*from_zarr"):
        mapped.from_zarr(tmp_path / "x")


def test_a_store_without_files_is_refused(mapped, zarr, numbers):
    array = zarr.create_array({}, shape=SHAPE, dtype="f8", compressors=None)
    with pytest.raises(ValueError, match="MemoryStore, not a folder"):
        mapped.from_zarr(array)


def test_a_folder_without_an_array_is_refused_as_by_zarr(mapped, tmp_path):
    for path in (tmp_path, tmp_path / "y"):
        with pytest.raises(FileNotFoundError):
            mapped.from_zarr(path)
