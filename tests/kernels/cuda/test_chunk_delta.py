"""The chunkwise delta rule in the emulator: the recurrence in float64."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from linkern.core.recurrence import Terms
from linkern.kernels.cuda.forward import recurrent
from linkern.kernels.cuda.plan import chunk_delta
from linkern.kernels.cuda.plan.tiles import TileShape
from tests.kernels.cuda import test_gates, test_recurrent
from tests.kernels.cuda.emulator.device import (
    LANDINGS,
    SCHEDULES,
    Change,
    Emulator,
    Way,
)
from tests.kernels.cuda.problems import strided
from tests.marks import every

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Of the output and of the memory, in the Euclidean norm: about 1.5 times the observed
# error. Outputs are rounded to 8, 11 or 24 bits; operands that were computed have 16
# bits if rows are narrow.
BOUNDS = {"bfloat16": 2.5e-3, "float16": 3.5e-4, "float32": 2.5e-7}
MEMORY_BOUNDS = {"bfloat16": 9e-6, "float16": 9e-6, "float32": 2.5e-7}
H200 = 227 << 10
LOG_DECAY, BETA = test_gates.LOG_DECAY, test_gates.BETA


class Problem(NamedTuple):
    """Terms of two heads, an initial memory, and shared memory of a block."""

    terms: Terms
    memory: Any
    shared: int = H200


def problem(
    dtype: Any,
    length: int,
    features: int,
    values: int,
    *,
    decay: bool = True,
    beta: bool = True,
    heads: int = 2,
    seed: int = 0,
    shared: int = H200,
) -> Problem:
    rng = np.random.default_rng(seed)
    query, key, value = (
        # Tokens before heads, as in the output of a projection.
        rng.standard_normal((1, length, heads, d)).swapaxes(1, 2)
        for d in (features, features, values)
    )
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    query, key, value = (x.astype(dtype) for x in (query, key, value))
    log_decay = np.log(rng.uniform(0.5, 1, (1, heads, length, 1)))
    # Some tokens erase everything before them: at edges of tiles and of chunks, too.
    log_decay[:, 0, ::37] = -np.inf
    log_decay[:, -1, 15::16] = -np.inf
    factors = rng.uniform(0, 2, (1, heads, length, 1)).astype(np.float32)
    terms = Terms(
        *(query, key, value, log_decay.astype(np.float32) if decay else None, key),
        beta=factors if beta else None,
    )
    memory = rng.standard_normal((1, heads, features, values)).astype(np.float32)
    return Problem(terms, memory, shared)


def problems() -> dict[str, Problem]:
    """Return calls that together use every path through the kernel."""
    half, single = np.float16, np.float32
    return {
        "bfloat16": problem(BFLOAT16, 150, 64, 64),
        "bfloat16, no decay": problem(BFLOAT16, 77, 64, 64, decay=False),
        "bfloat16, slices": problem(BFLOAT16, 70, 64, 128, beta=False, heads=1),
        "bfloat16, short chunks": problem(BFLOAT16, 70, 128, 64, shared=99 << 10),
        "bfloat16, padded": problem(BFLOAT16, 100, 40, 24),
        "bfloat16, many features": problem(BFLOAT16, 70, 128, 64),
        # More blocks of 64 columns than the device has multiprocessors.
        "bfloat16, wide": problem(BFLOAT16, 70, 64, 128, heads=3),
        "bfloat16, wide, many features": problem(BFLOAT16, 40, 128, 128, heads=3),
        "float16, wide": problem(half, 40, 64, 128, heads=3),
        "float16, many features": problem(half, 40, 72, 64, decay=False),
        "float32, wide": problem(single, 40, 128, 128, heads=3),
        "float32, many features": problem(single, 40, 128, 72, heads=1),
        "float16": problem(half, 70, 64, 64),
        "float16, slices": problem(half, 40, 64, 80, decay=False),
        "float32": problem(single, 77, 64, 64),
        "float32, padded": problem(single, 70, 28, 20),
        "float32, slices": problem(single, 40, 48, 80, heads=1),
        "float32, short chunks": problem(single, 40, 64, 64, shared=99 << 10),
        "one token": problem(half, 1, 16, 16),
    }


def run(case: Problem, device: Emulator | None = None, **options: Any) -> Any:
    """Return the output and the last memory; the kernel is launched once."""
    device = device or Emulator()
    device.shared = case.shared
    before = len(device.launches)
    results = recurrent(device, case.memory, case.terms, scale=0.5, **options)
    (launch,) = device.launches[before:]
    assert launch.file == "chunk_delta"
    # ldmatrix has no bank conflicts, nor have loads and stores in 16-bit kernels.
    counts = device.counts
    assert counts["matrix_passes"] == 4 * counts["matrix_loads"]
    if case.terms.query.dtype.itemsize == 2:
        assert counts["bank_passes"] == counts["least_bank_passes"]
    return results


def distance(results: Any, exact: Any) -> float:
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(results.astype(float) - exact) / size) if size else 0.0


def check(case: Problem, results: Any, factor: float = 1.0) -> None:
    terms = case.terms.folded()
    exact, memory = test_recurrent.expected(case.memory, terms)
    assert results[0].dtype == case.terms.query.dtype
    dtype = case.terms.query.dtype.name
    assert distance(results[0], 0.5 * exact) <= factor * BOUNDS[dtype]
    assert distance(results[1], memory) <= factor * MEMORY_BOUNDS[dtype]


def law_the_values(device: Emulator, case: Problem) -> None:
    check(case, run(case, device))


def problem_of(tokens: int, case: Problem) -> Callable[[Emulator], None]:
    """Return a check of a call in chunks of so many tokens and slices of 32 columns."""

    def law(device: Emulator) -> None:
        with mock.patch.object(chunk_delta, "_SHAPES", [(32, tokens)]):
            law_the_values(device, case)

    return law


def law_copies_that_finish_at_once(device: Emulator) -> None:
    """Check that a copy overwrites nothing that is still read."""
    way = device.way
    device.way = replace(way, landing="at once")
    PROBLEMS["16 bits"](device)
    device.way = way


def law_no_memory_is_zeros(device: Emulator) -> None:
    terms, memory, _ = problem(np.float32, 20, 8, 8)
    output = device.empty(terms.value.shape, np.float32)
    last = device.empty(memory.shape, np.float32)
    device.launch(chunk_delta.plan(device, terms, None, output, last, scale=0.5))
    check(Problem(terms, 0 * memory), (output, last))


# Three chunks, of which the last one ends inside of a tile.
PROBLEMS = {
    "16 bits": problem_of(32, problem(BFLOAT16, 70, 24, 40, heads=1)),
    "no decay": problem_of(32, problem(BFLOAT16, 35, 16, 8, decay=False, beta=False)),
    # One warp for both kinds of scores of a tile.
    "long chunks": problem_of(64, problem(BFLOAT16, 140, 16, 16, heads=1)),
    "split": problem_of(32, problem(np.float32, 70, 12, 36, heads=1)),
    # Half a warp has gates.
    "one tile": problem_of(16, problem(np.float16, 40, 8, 8, heads=1)),
    # A block has more threads than its staging buffers have units.
    "no tokens": problem_of(32, problem(BFLOAT16, 0, 8, 8)),
    "from nothing": law_no_memory_is_zeros,
    "at once": law_copies_that_finish_at_once,
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
    case = problems()[name]
    first = run(case)
    for schedule, landing in itertools.product(SCHEDULES, LANDINGS):
        results = run(case, Emulator(Way(schedule, landing, seed=3, resident=2)))
        for x, y in zip(results, first, strict=True):
            np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


@settings(max_examples=8, deadline=None)
@given(
    length=st.integers(0, 140),
    features=st.sampled_from([8, 40, 64]),
    values=st.sampled_from([8, 56, 72]),
    decay=st.booleans(),
    seed=st.integers(0, 99),
)
@example(length=0, features=40, values=40, decay=True, seed=0)
def test_shapes(length, features, values, decay, seed):
    case = problem(BFLOAT16, length, features, values, decay=decay, seed=seed)
    check(case, run(case))


@pytest.mark.parametrize("how", ["tokens first", "backwards"])
def test_any_strides_of_aligned_rows(how):
    case = problem(BFLOAT16, 40, 16, 16)
    terms = case.terms.mapped(lambda x: strided(x, how))
    for x, y in zip(run(case._replace(terms=terms)), run(case), strict=True):
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


def test_narrow_gates_are_widened():
    case = problem(BFLOAT16, 70, 16, 16)
    narrow = case.terms._replace(
        log_decay=case.terms.log_decay.astype(BFLOAT16),
        beta=case.terms.beta.astype(BFLOAT16),
    )
    wide = narrow._replace(
        log_decay=narrow.log_decay.astype(np.float32),
        beta=narrow.beta.astype(np.float32),
    )
    results = (run(case._replace(terms=terms)) for terms in (narrow, wide))
    for x, y in zip(*results, strict=True):
        np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


def test_what_is_computed_has_two_parts():
    """The memory has 16 bits, which an operand of one part has not."""
    case = problem(BFLOAT16, 40, 16, 16)
    change = Change("typedef f32_split Type;", "typedef bf16 Type;")
    with pytest.raises(AssertionError):
        law_the_values(Emulator(changed=[change]), case)
    law_the_values(Emulator(), case)


def test_float16_stays_in_range():
    # Keys of length 300: scores of keys and the memory are beyond 65504.
    case = problem(np.float16, 40, 16, 16)
    terms, factor = case.terms, np.float16(300)
    key = terms.key * factor
    terms = terms._replace(
        query=terms.query / factor,
        key=key,
        erase=key,
        beta=terms.beta / np.float32(factor) ** 2,
        value=terms.value * np.float16(100),
    )
    law_the_values(Emulator(), Problem(terms, case.memory * np.float32(3e5)))


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float32], ids=str)
@pytest.mark.parametrize("name", ["query", "key", "value", "log_decay", "beta"])
@pytest.mark.parametrize("token", [16, 37, 70])
def test_what_is_not_finite_stays_behind_its_tile(name, token, dtype):
    case = problem(dtype, 80, 16, 16, heads=1)
    first, _ = run(case)
    for number in (np.nan, np.inf):
        changed = getattr(case.terms, name).copy()
        # A gate breaks a rule there, and no one asks.
        changed[..., token, 0] = number
        terms = case.terms._replace(**{name: changed})
        if name == "key":
            terms = terms._replace(erase=changed)
        output, _ = run(case._replace(terms=terms))
        before = slice(0, token // 16 * 16)
        np.testing.assert_array_equal(
            output[..., before, :].view(np.uint8), first[..., before, :].view(np.uint8)
        )
        if name != "query":
            assert not np.isfinite(output[..., token:, :].astype(float)).all()


def test_an_infinite_value_stays_in_its_column():
    case = problem(np.float32, 40, 16, 32, heads=1)
    first, _ = run(case)
    case.terms.value[..., 20, 17] = np.inf
    output, memory = run(case)
    others = np.arange(32) != 17
    np.testing.assert_array_equal(output[..., others], first[..., others])
    assert np.isfinite(memory[..., others]).all()
    assert not np.isfinite(memory[..., 17]).any()


@pytest.mark.parametrize(
    ("name", "number", "rule"),
    [("log_decay", 1e-30, LOG_DECAY), ("beta", 2.01, BETA), ("beta", -1e-30, BETA)],
)
@pytest.mark.parametrize("token", [0, 31, 32, 69])
def test_a_gate_out_of_its_range_is_refused(name, number, rule, token):
    case = problem(np.float32, 70, 16, 16)
    run(case, check_gates=True)
    getattr(case.terms, name)[0, 1, token] = number
    with pytest.raises(ValueError, match=rule):
        run(case, check_gates=True)
    run(case)


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
