"""The kernel that copies, in the emulator."""

import numpy as np
import pytest

from linkern.kernels.cuda.plan import copy
from tests.kernels.cuda.emulator.device import Emulator
from tests.kernels.cuda.problems import WAYS


def law_copies(device, units, dtype="uint8"):
    size = units * copy.UNIT // np.dtype(dtype).itemsize
    source = np.random.default_rng(units).integers(0, 255, size).astype(dtype)
    room = np.full(size + 64, 7, dtype)
    target = room[:size]
    device.launch(copy.plan(device, source, target))
    np.testing.assert_array_equal(target, source)
    np.testing.assert_array_equal(room[size:], 7)


# Inside of a block, and of one unit of a thread, and of the last block.
PROBLEMS = {"tail": lambda device: law_copies(device, 1024 + 256 + 3)}


@pytest.mark.parametrize("units", [0, 1, 255, 1024, 1025, 3000])
def test_copies(units):
    law_copies(Emulator(), units)


@pytest.mark.parametrize("way", WAYS)
def test_copies_in_any_order(way):
    law_copies(Emulator(way), 1300, "float32")


def test_refuses_what_is_no_whole_number_of_units():
    device = Emulator()
    for sizes in ((17, 17), (16, 32)):
        arrays = (np.zeros(n, "uint8") for n in sizes)
        with pytest.raises(ValueError, match="a multiple of 16, got"):
            copy.plan(device, *arrays)
