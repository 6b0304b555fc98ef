"""The chunkwise delta rule in the emulator: the recurrence in float64."""

import itertools
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linkern.kernels.cuda.plan import chunk_delta
from linkern.kernels.cuda.plan.tiles import TileShape
from tests.kernels.cuda import test_gates
from tests.kernels.cuda.chunked import (
    BFLOAT16,
    H200,
    Problem,
    check,
    law_a_gate_out_of_its_range_is_refused,
    law_an_infinite_value_stays_in_its_column,
    law_any_order,
    law_any_strides_of_aligned_rows,
    law_copies_that_finish_at_once,
    law_float16_stays_in_range,
    law_narrow_gates_are_widened,
    law_no_memory_is_zeros,
    law_the_values,
    law_what_is_not_finite_stays_behind_its_tile,
    problem,
    run,
)
from tests.kernels.cuda.emulator.device import Change, Emulator, Way
from tests.marks import every

LOG_DECAY, BETA = test_gates.LOG_DECAY, test_gates.BETA


def problems() -> dict[str, Problem]:
    """Return calls that together use every path through the kernel."""
    half, single = np.float16, np.float32
    return {
        "bfloat16": problem(BFLOAT16, 150, 64, 64),
        "bfloat16, no decay": problem(BFLOAT16, 77, 64, 64, decay=None),
        "bfloat16, slices": problem(BFLOAT16, 70, 64, 128, beta=False, heads=1),
        "bfloat16, short chunks": problem(BFLOAT16, 70, 128, 64, shared=99 << 10),
        "bfloat16, padded": problem(BFLOAT16, 100, 40, 24),
        "bfloat16, many features": problem(BFLOAT16, 70, 128, 64),
        # More blocks of 64 columns than the device has multiprocessors.
        "bfloat16, wide": problem(BFLOAT16, 70, 64, 128, heads=3),
        "bfloat16, wide, many features": problem(BFLOAT16, 40, 128, 128, heads=3),
        "float16, wide": problem(half, 40, 64, 128, heads=3),
        "float16, many features": problem(half, 40, 72, 64, decay=None),
        "float32, wide": problem(single, 40, 128, 128, heads=3),
        "float32, many features": problem(single, 40, 128, 72, heads=1),
        "float16": problem(half, 70, 64, 64),
        "float16, slices": problem(half, 40, 64, 80, decay=None),
        "float32": problem(single, 77, 64, 64),
        "float32, padded": problem(single, 70, 28, 20),
        "float32, slices": problem(single, 40, 48, 80, heads=1),
        "float32, short chunks": problem(single, 40, 64, 64, shared=99 << 10),
        "one token": problem(half, 1, 16, 16),
    }


def in_small_shapes(
    law: Callable[[Emulator, Problem], None],
) -> dict[str, Callable[[Emulator], None]]:
    """Return checks of a law in short chunks, with slices and panels of 32 columns."""

    def shaped(tokens: int, case: Problem) -> Callable[[Emulator], None]:
        def check_of_shape(device: Emulator) -> None:
            with mock.patch.object(chunk_delta, "_SHAPES", [(32, tokens)]):
                law(device, case)

        return check_of_shape

    # Three chunks, of which the last one ends inside of a tile.
    checks = {
        "16 bits": shaped(32, problem(BFLOAT16, 70, 24, 40, heads=1)),
        "no decay": shaped(32, problem(BFLOAT16, 35, 16, 8, decay=None, beta=False)),
        # One warp for both kinds of scores of a tile; in gradients, for several tiles.
        "long chunks": shaped(64, problem(BFLOAT16, 140, 16, 16, heads=1)),
        "split": shaped(32, problem(np.float32, 70, 12, 36, heads=1)),
        # Half a warp has gates.
        "one tile": shaped(16, problem(np.float16, 40, 8, 8, heads=1)),
        # A block has more threads than its staging buffers have units.
        "no tokens": shaped(32, problem(BFLOAT16, 0, 8, 8)),
        # In gradients a tile has more warps than there are tiles of keys.
        "slices": shaped(16, problem(BFLOAT16, 20, 64, 8, heads=1)),
    }
    checks["at once"] = law_copies_that_finish_at_once(checks["16 bits"])
    return checks


PROBLEMS = {
    **in_small_shapes(law_the_values),
    "from nothing": law_no_memory_is_zeros(chunk_delta, problem(np.float32, 20, 8, 8)),
}


@pytest.mark.parametrize("name", every(3, problems()))
def test_values(name):
    law_the_values(Emulator(), problems()[name])


@pytest.mark.parametrize("name", every(3, PROBLEMS))
def test_values_with_other_tile_shapes(name):
    PROBLEMS[name](Emulator())


@pytest.mark.parametrize("name", ["bfloat16, padded", "float32, padded"])
def test_truncated_products(name):
    # Sums within a chunk lose some last bits; the state itself is rounded.
    case = problems()[name]
    check(case, run(case, Emulator(Way(truncates=True))), factor=2.0)


@pytest.mark.parametrize("name", every(2, ["float32, padded", "bfloat16, padded"]))
def test_any_order(name):
    law_any_order(problems()[name])


@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(0, 140),
    features=st.sampled_from([8, 40, 64]),
    values=st.sampled_from([8, 56, 72]),
    decay=st.sampled_from(["token", None]),
    seed=st.integers(0, 99),
)
@example(length=0, features=40, values=40, decay="token", seed=0)
def test_shapes(length, features, values, decay, seed):
    case = problem(BFLOAT16, length, features, values, decay=decay, seed=seed)
    check(case, run(case))


@pytest.mark.parametrize("how", ["tokens first", "backwards"])
def test_any_strides_of_aligned_rows(how):
    law_any_strides_of_aligned_rows(problem(BFLOAT16, 40, 16, 16), how)


def test_narrow_gates_are_widened():
    law_narrow_gates_are_widened(problem(BFLOAT16, 70, 16, 16))


def test_what_is_computed_has_two_parts():
    """The memory has 16 bits, which an operand of one part has not."""
    case = problem(BFLOAT16, 40, 16, 16)
    change = Change("typedef f32_split Type;", "typedef bf16 Type;")
    with pytest.raises(AssertionError):
        law_the_values(Emulator(changed=[change]), case)
    law_the_values(Emulator(), case)


def test_float16_stays_in_range():
    law_float16_stays_in_range(problem(np.float16, 40, 16, 16))


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=str)
@pytest.mark.parametrize("name", ["query", "key", "value", "log_decay", "beta"])
@pytest.mark.parametrize("token", [16, 37, 70])
def test_what_is_not_finite_stays_behind_its_tile(name, token, dtype):
    case = problem(dtype, 80, 16, 16, heads=1)
    law_what_is_not_finite_stays_behind_its_tile(case, name, token)


def test_an_infinite_value_stays_in_its_column():
    law_an_infinite_value_stays_in_its_column(problem(np.float32, 40, 16, 32, heads=1))


@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [("log_decay", 1e-30, LOG_DECAY), ("beta", 2.01, BETA), ("beta", -1e-30, BETA)],
)
@pytest.mark.parametrize("token", [0, 31, 32, 69])
def test_a_gate_out_of_its_range_is_refused(name, number, rule, token):
    case = problem(np.float32, 70, 16, 16)
    law_a_gate_out_of_its_range_is_refused(case, name, number, rule, token)


def test_fits():
    device = Emulator()

    def fits(terms, memory, device=device):
        return chunk_delta.fits(device, terms, memory)

    terms, memory, _ = problem(BFLOAT16, 20, 16, 16)
    assert fits(terms, memory)
    assert fits(terms._replace(log_decay=None), memory)
    assert fits(terms._replace(beta=None), memory)
    by_channel = np.repeat(terms.log_decay, 16, axis=-1)
    for name, x in {
        "log_decay": by_channel,
        "erase": terms.key.copy(),
        "early_erase": True,
        "early_read": True,
    }.items():
        assert not fits(terms._replace(**{name: x}), memory), name
    assert not fits(terms._replace(erase=None), memory)
    for dtype, sizes in {
        np.float64: (16, 16),
        np.float32: (132, 8),
        np.float16: (8, 4),
        np.dtype(BFLOAT16): (4, 8),
    }.items():
        assert not fits(*problem(dtype, 20, *sizes)[:2]), (dtype, sizes)
    for sizes in ((64, 8), (8, 200)):
        assert fits(*problem(np.float32, 20, *sizes)[:2]), sizes
    # Three buffers of split rows need more than every GPU has.
    many = problem(np.float32, 20, 128, 8)[:2]
    assert not fits(*many)
    assert fits(*many, Emulator(shared=H200))
    assert not fits(terms, memory, Emulator(shared=8 << 10))
    # Rows that begin 2 bytes too late, and rows with a stride of 34 bytes.
    wide = np.zeros((1, 2, 20, 17), BFLOAT16)
    assert not fits(terms._replace(query=wide[..., 1:]), memory)
    assert not fits(terms._replace(value=wide[..., :16]), memory)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("features", [16, 32, 64, 128])
@pytest.mark.parametrize("values", [16, 32, 64, 128])
def test_every_gpu_has_a_shape(dtype, features, values):
    for shared, heads in itertools.product((99 << 10, H200), (1, 2, 3)):
        shape = chunk_delta.tile_shape(
            dtype, features, values, shared, heads=heads, multiprocessors=4
        )
        if (dtype, features, shared) == ("float32", 128, 99 << 10):
            assert shape is None  # three buffers of split rows do not fit
            continue
        assert shape is not None
        assert chunk_delta.shared_bytes(dtype, shape) <= shared
        # Blocks of more columns where others do not all fit at once, and these fit.
        tokens, warps = (16, 10) if (dtype, features) == ("float32", 128) else (32, 12)
        wide = TileShape(features, 128, tokens, warps)
        many = values == 128 and heads > 2 and (dtype, features) != ("float16", 128)
        fits = chunk_delta.shared_bytes(dtype, wide) <= shared
        assert (shape == wide) == (many and fits)
