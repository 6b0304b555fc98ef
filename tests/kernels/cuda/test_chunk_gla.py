"""The chunkwise forward with a decay for each channel, in the emulator."""

import itertools
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linkern.kernels.cuda.plan import chunk_gla
from linkern.kernels.cuda.plan.tiles import TileShape
from tests.kernels.cuda import chunked, test_gates
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
    run,
)
from tests.kernels.cuda.emulator.device import Change, Emulator, Way
from tests.marks import every

LOG_DECAY, BETA = test_gates.LOG_DECAY, test_gates.BETA


def problem(*arguments, **options) -> Problem:
    """Return a problem with a decay for each channel."""
    return chunked.problem(*arguments, decay="channel", **options)


def problems() -> dict[str, Problem]:
    """Return calls that together use every path through the kernel."""
    half, single, alone = np.float16, np.float32, {"erase": False}
    early = {"erase": False, "early": True}
    return {
        "bfloat16": problem(BFLOAT16, 70, 64, 64),
        "bfloat16, no beta": problem(BFLOAT16, 40, 64, 64, beta=False),
        "bfloat16, no erases": problem(BFLOAT16, 70, 64, 64, **alone),
        "bfloat16, early": problem(BFLOAT16, 70, 64, 64, **early),
        "bfloat16, slices": problem(BFLOAT16, 40, 64, 128, heads=1),
        "bfloat16, padded": problem(BFLOAT16, 50, 40, 24),
        "bfloat16, few features": problem(BFLOAT16, 50, 16, 16, **alone),
        # More warps without columns.
        "bfloat16, many features": problem(BFLOAT16, 40, 128, 64),
        "bfloat16, many features, early": problem(BFLOAT16, 40, 104, 64, **early),
        # More blocks of 64 columns than the device runs at once.
        "bfloat16, wide": problem(BFLOAT16, 40, 64, 128, heads=5),
        "bfloat16, wide, many features": problem(BFLOAT16, 40, 128, 128, heads=3),
        "float16": problem(half, 50, 64, 64),
        "float16, no erases": problem(half, 50, 64, 72, **alone),
        "float16, wide, many features": problem(half, 40, 128, 128, heads=3),
        "float32": problem(single, 50, 64, 64),
        "float32, padded": problem(single, 70, 28, 20),
        "float32, many features": problem(single, 40, 128, 72, heads=1),
        "float32, no erases": problem(single, 40, 128, 64, **alone),
        "float32, early": problem(single, 40, 48, 80, **early),
        "float32, wide": problem(single, 40, 64, 128, heads=3),
        "one token": problem(half, 1, 16, 16),
    }


def problem_with(warps: int, case: Problem) -> Callable[[Emulator], None]:
    """Return a check of a call in slices of 32 columns, and so many other warps."""

    def law(device: Emulator) -> None:
        constants = {"_COLUMNS": 32, "_OTHERS": warps, "_MORE_OTHERS": warps}
        with mock.patch.multiple(chunk_gla, **constants):
            law_the_values(device, case)

    return law


# The last chunk is no whole one. Channels are padded in all but one.
PROBLEMS = {
    "16 bits": problem_with(4, problem(BFLOAT16, 37, 24, 40, heads=1)),
    # The first head does not forget all before its chunks end.
    "no erases": problem_with(
        4, problem(BFLOAT16, 36, 16, 8, heads=2, erase=False, early=True)
    ),
    "more warps": problem_with(8, problem(np.float16, 20, 64, 32, heads=1)),
    "split": problem_with(4, problem(np.float32, 37, 12, 36, heads=1, beta=False)),
    "no tokens": problem_with(4, problem(BFLOAT16, 0, 8, 8)),
    "from nothing": law_no_memory_is_zeros(chunk_gla, problem(np.float32, 20, 8, 8)),
}
PROBLEMS["at once"] = law_copies_that_finish_at_once(PROBLEMS["16 bits"])


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


@pytest.mark.parametrize(
    "name", every(2, ["bfloat16, few features", "float32, padded", "bfloat16, padded"])
)
def test_any_order(name):
    law_any_order(problems()[name])


@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(0, 70),
    features=st.sampled_from([8, 40, 64, 128]),
    values=st.sampled_from([8, 56, 72]),
    kind=st.sampled_from([(True, False), (False, False), (False, True)]),
    seed=st.integers(0, 99),
)
@example(length=0, features=40, values=40, kind=(True, False), seed=0)
def test_shapes(length, features, values, kind, seed):
    erase, early = kind
    case = problem(
        BFLOAT16, length, features, values, erase=erase, early=early, seed=seed
    )
    check(case, run(case))


@pytest.mark.parametrize("how", ["tokens first", "backwards"])
def test_any_strides_of_aligned_rows(how):
    law_any_strides_of_aligned_rows(problem(BFLOAT16, 40, 16, 16), how)


@pytest.mark.parametrize("erase", [True, False])
def test_narrow_gates_are_widened(erase):
    law_narrow_gates_are_widened(problem(BFLOAT16, 40, 16, 16, erase=erase))


def test_what_is_computed_has_two_parts():
    """The memory has 16 bits, which an operand of one part has not."""
    case = problem(BFLOAT16, 40, 16, 16)
    change = Change("typedef f32_split Type;", "typedef bf16 Type;")
    with pytest.raises(AssertionError):
        law_the_values(Emulator(changed=[change]), case)
    law_the_values(Emulator(), case)


def test_decays_do_not_overflow_inside_of_a_chunk():
    """Log-decays of -100 at every token: no power of their differences is finite."""
    case = problem(np.float32, 40, 16, 16)
    log_decay = np.full_like(case.terms.log_decay, -100)
    case = case._replace(terms=case.terms._replace(log_decay=log_decay))
    law_the_values(Emulator(), case)


@pytest.mark.parametrize("erase", [True, False])
def test_float16_stays_in_range(erase):
    law_float16_stays_in_range(problem(np.float16, 40, 16, 16, erase=erase))


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=str)
@pytest.mark.parametrize("name", ["query", "key", "value", "log_decay", "beta"])
@pytest.mark.parametrize("token", [16, 37, 70])
def test_what_is_not_finite_stays_behind_its_tile(name, token, dtype):
    case = problem(dtype, 80, 16, 16, heads=1)
    law_what_is_not_finite_stays_behind_its_tile(case, name, token)


@pytest.mark.parametrize("erase", [True, False])
def test_an_infinite_value_stays_in_its_column(erase):
    law_an_infinite_value_stays_in_its_column(
        problem(np.float32, 40, 16, 32, heads=1, erase=erase)
    )


@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [("log_decay", 1e-30, LOG_DECAY), ("beta", 2.01, BETA), ("beta", -1e-30, BETA)],
)
@pytest.mark.parametrize("token", [0, 15, 16, 36])
def test_a_gate_out_of_its_range_is_refused(name, number, rule, token):
    case = problem(np.float32, 37, 16, 16)
    law_a_gate_out_of_its_range_is_refused(case, name, number, rule, token)


def test_fits():
    device = Emulator()

    def fits(terms, memory, device=device):
        return chunk_gla.fits(device, terms, memory)

    terms, memory, _ = problem(BFLOAT16, 20, 16, 16)
    assert fits(terms, memory)
    assert fits(terms._replace(beta=None), memory)
    alone = terms._replace(erase=None, beta=None)
    assert fits(alone, memory)
    assert fits(alone._replace(early_read=True), memory)
    for changed in (
        {"log_decay": None},
        {"log_decay": terms.log_decay[..., :1]},
        {"erase": terms.key.copy()},
        {"erase": None},
        {"early_erase": True},
        {"early_read": True},
    ):
        assert not fits(terms._replace(**changed), memory), changed
    for dtype, sizes in {
        np.float64: (16, 16),
        np.float32: (132, 8),
        np.float16: (8, 4),
        np.dtype(BFLOAT16): (4, 8),
    }.items():
        assert not fits(*problem(dtype, 20, *sizes)[:2]), (dtype, sizes)
    # Operands of three parts need more than every GPU has.
    many = problem(np.float32, 20, 128, 8)[:2]
    assert not fits(*many)
    assert fits(*many, Emulator(shared=H200))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("features", [16, 32, 64, 128])
@pytest.mark.parametrize("values", [16, 32, 64, 128])
def test_every_gpu_has_a_shape(dtype, features, values):
    for shared, heads in itertools.product((99 << 10, H200), (1, 2, 5)):
        shape = chunk_gla.tile_shape(
            dtype, features, values, shared, heads=heads, multiprocessors=4
        )
        if (dtype, features, shared) == ("float32", 128, 99 << 10):
            assert shape is None  # operands of three parts do not fit
            continue
        assert shape is not None
        for erases in (True, False):
            assert chunk_gla.shared_bytes(dtype, shape, erases=erases) <= shared
        # Blocks of more columns where others do not all run at once, and these fit.
        padded, two_blocks = max(32, features), dtype == "bfloat16" and features <= 64
        wide = TileShape(padded, 128, 16, 12)
        many = heads * -(-values // 64) > (8 if two_blocks else 4)
        many &= values == 128 and (dtype, features) != ("float32", 128)
        fits = chunk_gla.shared_bytes(dtype, wide, erases=True) <= shared
        assert (shape == wide) == (many and fits)
