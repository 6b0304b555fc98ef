"""Planned launches of calls that are too large to run."""

import numpy as np
import pytest
from cuda_instances import DryDevice, untouched

from linkern.kernels.cuda.forward import attend
from linkern.kernels.cuda.layouts import ROWS


def planned(lead, tokens, features, values, dtype=np.float16):
    """Return the launches of a call of this shape."""
    device = DryDevice()
    keys, rows = (*lead, tokens, features), (*lead, tokens, values)
    query, key, value = (untouched(shape, dtype) for shape in (keys, keys, rows))
    memory = untouched((*lead, features, values), np.float32)
    output, after, total = attend(
        device, query, key, value, None, memory, memory[..., 0].copy()
    )
    assert output.shape == (*lead, tokens, values)
    assert after.shape == (*lead, features, values)
    assert total.shape == (*lead, features)
    assert device.launches
    return device.launches


def test_strides_have_64_bits():
    """2^34 entries, with strides of 2^28 between heads and 2^32 between batches."""
    for launch in planned((4, 16), 2**20, 256, 256):
        fields = launch.parameters.dtype.fields.items()
        structs = [
            launch.parameters[name] for name, (dtype, _) in fields if dtype == ROWS
        ]
        assert structs
        for rows in structs:
            assert rows["batch_stride"] == 2**32
            assert rows["head_stride"] == 2**28
            assert rows["token_stride"] == 256


def test_many_heads_use_one_axis_of_the_grid():
    """Any other axis of a grid ends at 65,535."""
    for launch in planned((3, 50_000), 2, 16, 64):
        blocks, rest = divmod(launch.blocks, 150_000)
        assert blocks >= 1
        assert rest == 0


@pytest.mark.parametrize("shape", [(2**20, 256), (0, 5)])
def test_a_placeholder_has_an_address_and_no_memory(shape):
    array = untouched((64, *shape), np.float32)
    assert array.flags.c_contiguous
    assert array.shape == (64, *shape)
    assert not array.flags.writeable
    assert not array[:1, :1].any()
    assert array.copy().flags.owndata is False
    assert array.astype(np.float64).nbytes == 2 * array.nbytes
