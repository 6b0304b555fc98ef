"""Memory of arguments: what lies outside of it, though in another one."""

import numpy as np
import pytest

from linkern.testing.target.interpreted.regions import Regions, plain

SIZE = 4


class Tensor:
    """The methods of a tensor that regions need, over an array of NumPy."""

    def __init__(self, start, count, offset=0):
        self.start, self.count, self.offset = start, count, offset

    def untyped_storage(self):
        return Storage(self.start, self.count * SIZE)

    def data_ptr(self):
        return self.start + self.offset * SIZE


class Storage:
    def __init__(self, start, size):
        self.data_ptr = lambda: start
        self.nbytes = lambda: size


def addresses(pointer, offsets):
    moved = np.array(offsets, np.int64).astype(np.uint64) * np.uint64(SIZE)
    return np.uint64(pointer) + moved


@pytest.fixture
def regions():
    return Regions()


def test_entries_outside_of_their_own_argument_are_told(regions):
    q = regions.tagged("q", Tensor(4096, 8))
    regions.tagged("k", Tensor(4096 + 8 * SIZE, 8))  # right after it
    everywhere = np.ones(4, bool)
    assert regions.outside(addresses(q, [0, 3, 5, 7]), everywhere, SIZE) is None
    wrong, region = regions.outside(addresses(q, [-1, 0, 7, 8]), everywhere, SIZE)
    assert wrong.tolist() == [True, False, False, True]
    assert region.name == "q"
    assert plain(addresses(q, [8]))[0] == 4096 + 8 * SIZE


def test_masked_entries_may_lie_anywhere(regions):
    q = regions.tagged("q", Tensor(4096, 8))
    mask = np.array([True, False])
    assert regions.outside(addresses(q, [0, 100]), mask, SIZE) is None
    assert regions.outside(addresses(q, [100, 200]), ~(mask | True), SIZE) is None


def test_an_entry_that_ends_outside_is_outside(regions):
    q = regions.tagged("q", Tensor(4096, 8))
    assert regions.outside(addresses(q, [7]), np.ones(1, bool), SIZE) is None
    assert regions.outside(addresses(q, [7]), np.ones(1, bool), 2 * SIZE)


def test_the_storage_of_a_view_is_its_memory(regions):
    view = regions.tagged("view", Tensor(4096, 8, offset=2))
    everywhere = np.ones(2, bool)
    assert regions.outside(addresses(view, [-2, 5]), everywhere, SIZE) is None
    assert regions.outside(addresses(view, [0, 6]), everywhere, SIZE)
    assert regions.name_of(view) == "view"


def test_entries_of_several_arguments_are_each_held_against_their_own(regions):
    pointers = [
        regions.tagged(name, Tensor(4096 * n, 8)) for n, name in ((1, "a"), (2, "b"))
    ]
    both = np.concatenate([addresses(x, [0, 7]) for x in pointers])
    assert regions.outside(both, np.ones(4, bool), SIZE) is None
    both = np.concatenate([addresses(pointers[0], [0]), addresses(pointers[1], [8])])
    wrong, region = regions.outside(both, np.ones(2, bool), SIZE)
    assert wrong.tolist() == [False, True]
    assert region.name == "b"


def test_an_unknown_tag_is_outside(regions):
    pointer = np.array([5 << 48 | 4096], np.uint64)
    wrong, region = regions.outside(pointer, np.ones(1, bool), SIZE)
    assert wrong.all()
    assert region.name == ""
