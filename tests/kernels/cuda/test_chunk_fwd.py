"""The forward on tensor cores in the emulator: the results of NumPy."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import linkern
from linkern.kernels.cuda.plan import choice, chunk_fwd, tiles
from linkern.kernels.cuda.plan.call import Call
from tests.kernels.cuda.emulator.device import LANDINGS, SCHEDULES, Emulator, Way
from tests.marks import every

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MAPS = {
    "IDENTITY": linkern.feature_maps.identity,
    "ELU_PLUS_ONE": linkern.elu_plus_one,
    "RELU": linkern.feature_maps.relu,
    "EXP": linkern.feature_maps.exp,
}
# Of the output and of the memory, in the Euclidean norm: about 1.5 times the observed
# error; keys, queries, scores and the memory are rounded to 8, 11 or 24 bits.
BOUNDS = {"bfloat16": 3.5e-3, "float16": 5e-4, "float32": 1.5e-7}
H200 = 227 << 10
# One for which the planner has a model.
CARD = {"multiprocessors": 132, "shared": H200}


class Problem(NamedTuple):
    """A call, and the properties of the device for which it is planned."""

    call: Call
    device: dict[str, int]


def call(
    dtype: Any,
    length: int,
    features: int,
    values: int,
    *,
    feature_map: str = "ELU_PLUS_ONE",
    decay: bool = False,
    keep: float = 0.5,
    normalize: bool = True,
    state: bool = False,
    heads: int = 2,
    seed: int = 0,
) -> Call:
    rng = np.random.default_rng(seed)
    query, key, value = (
        # Tokens before heads, as in the output of a projection.
        rng.standard_normal((1, length, heads, d)).astype(dtype).swapaxes(1, 2)
        for d in (features, features, values)
    )
    log_decay = memory = normalizer = None
    if decay:
        log_decay = np.log(rng.uniform(keep, 1, (1, heads, length, 1)))
        log_decay[:, 0, ::37] = -np.inf
        log_decay = log_decay.astype(np.float32)
    if state:
        memory = rng.standard_normal((1, heads, features, values)).astype(np.float32)
        if normalize:
            normalizer = rng.uniform(1, 2, (1, heads, features)).astype(np.float32)
    return Call(
        *(query, key, value, log_decay, memory, normalizer),
        feature_map=feature_map,
        normalize=normalize,
        scale=0.5,
    )


def problems() -> dict[str, Problem]:
    """Return calls that together use every path through the kernels."""
    half, single = np.float16, np.float32
    return {
        "tail": Problem(call(BFLOAT16, 77, 64, 64, state=True), {}),
        "decay": Problem(call(half, 150, 64, 64, decay=True, state=True), {}),
        "one token": Problem(
            call(half, 1, 16, 16, feature_map="RELU", normalize=False), {}
        ),
        "padded": Problem(call(BFLOAT16, 100, 40, 24, feature_map="EXP"), {}),
        "slices": Problem(
            call(BFLOAT16, 70, 128, 128, feature_map="IDENTITY", normalize=False),
            {"shared": H200},
        ),
        "many features": Problem(call(BFLOAT16, 40, 256, 64, decay=True), {}),
        "float32": Problem(call(single, 40, 64, 64, decay=True, state=True), {}),
        "float32, padded": Problem(call(single, 70, 28, 20), {}),
        "float32, slices": Problem(
            call(single, 40, 128, 80, normalize=False, decay=True, heads=1),
            {"shared": H200},
        ),
        "more warps": Problem(
            call(BFLOAT16, 150, 64, 64, decay=True, state=True), CARD
        ),
        "all columns": Problem(call(half, 70, 128, 128, state=True), CARD),
        "float32, more warps": Problem(call(single, 70, 64, 64, decay=True), CARD),
        "float32, one short chunk": Problem(call(single, 30, 64, 64, decay=True), CARD),
        "segments": Problem(
            # The second head decays little over a segment.
            call(half, 700, 16, 16, decay=True, keep=0.995, state=True),
            {"multiprocessors": 5},
        ),
        "float32, segments": Problem(
            call(single, 530, 32, 16, normalize=False, heads=1), {"multiprocessors": 4}
        ),
    }


def run(problem: Problem, device: Emulator | None = None) -> tuple[Any, Any, Any]:
    """Launch a problem; return the output, the memory and the normalizer."""
    inputs, device = problem.call, device or Emulator()
    _, heads, length, features = inputs.query.shape
    values = inputs.value.shape[-1]
    output = device.empty((1, heads, length, values), inputs.query.dtype)
    memory = device.empty((1, heads, features, values), np.float32)
    normalizer = None
    if inputs.normalize:
        normalizer = device.empty((1, heads, features), np.float32)
    for launch in chunk_fwd.plan(
        device, inputs, output, memory, normalizer, **problem.device
    ):
        device.launch(launch)
        # ldmatrix has no bank conflicts, nor have loads and stores in 16-bit kernels.
        counts = device.counts
        assert counts["matrix_passes"] == 4 * counts["matrix_loads"]
        if inputs.query.dtype.itemsize == 2:
            assert counts["bank_passes"] == counts["least_bank_passes"]
    return output, memory, normalizer


def expected(inputs: Call) -> tuple[Any, Any, Any]:
    """Return the results in float64; the weights are one more column of ones."""
    query, key, value = (
        x.astype(float) for x in (inputs.query, inputs.key, inputs.value)
    )
    query, key = MAPS[inputs.feature_map](query), MAPS[inputs.feature_map](key)
    state = None
    if inputs.memory is not None:
        total = np.zeros(inputs.memory.shape[:-1])
        if inputs.normalizer is not None:
            total = inputs.normalizer
        state = linkern.State(
            np.concatenate([inputs.memory.astype(float), total[..., None]], axis=-1),
            None,
        )
    exact = linkern.simple_gla(
        *(query, key, np.concatenate([value, np.ones_like(value[..., :1])], axis=-1)),
        None if inputs.log_decay is None else inputs.log_decay[..., 0].astype(float),
        scale=1.0,
        initial_state=state,
    )
    output, memory = exact.output, exact.state.memory
    rows = output[..., :-1]
    return (
        rows / output[..., -1:] if inputs.normalize else inputs.scale * rows,
        memory[..., :-1],
        memory[..., -1],
    )


def distance(results: Any, exact: Any) -> float:
    size = np.linalg.norm(exact)
    return float(np.linalg.norm(results.astype(float) - exact) / size) if size else 0.0


def check(inputs: Call, results: tuple[Any, Any, Any], factor: float = 1.0) -> None:
    bound = factor * BOUNDS[inputs.query.dtype.name]
    for name, x, exact in zip(
        ("output", "memory", "normalizer"), results, expected(inputs), strict=True
    ):
        if x is not None:
            assert distance(x, exact) <= bound, name


def enlarged(inputs: Call) -> Call:
    """Return a call whose state and scores exceed 65504, but not its outputs."""
    assert inputs.memory is not None
    assert inputs.normalizer is not None
    factor = np.float16(300)
    return inputs._replace(
        query=inputs.query * factor,
        key=inputs.key * factor,
        memory=np.full_like(inputs.memory, 3e5),
        normalizer=np.full_like(inputs.normalizer, 3e5),
    )


def law_the_values(device: Emulator, problem: Problem) -> None:
    check(problem.call, run(problem, device))


def problem_of(shape: tuple[int, int, int], problem: Problem) -> Callable[..., None]:
    """Return a check of a call with up to 16 features and another tile shape."""
    shapes = {problem.call.query.dtype.itemsize: {16: [shape]}}

    def law(device: Emulator) -> None:
        with (
            mock.patch.object(tiles, "SAFE", shapes),
            mock.patch.object(choice, "_MIN_CHUNKS", 1),
        ):
            law_the_values(device, problem)

    return law


def further_shapes(device: Emulator) -> None:
    """Check the shapes that the planner prefers on cards that it knows."""
    warps = ("more warps", "float32, more warps", "float32, one short chunk")
    for name in (*warps, "all columns"):
        law_the_values(device, problems()[name])


# Tiles of 32 columns, of which two warps hold 16 each, and chunks of 64 tokens.
NARROW, STATE = (32, 64, 4), {"decay": True, "state": True, "heads": 1}
PROBLEMS = {
    "two chunks": problem_of(NARROW, Problem(call(np.float16, 70, 8, 40, **STATE), {})),
    "two segments": problem_of(
        NARROW,
        Problem(
            call(np.float16, 70, 8, 40, **STATE, keep=0.995), {"multiprocessors": 4}
        ),
    ),
    "from nothing": problem_of(
        NARROW,
        Problem(
            call(np.float16, 70, 8, 40, decay=True, heads=1), {"multiprocessors": 4}
        ),
    ),
    "large": problem_of(
        NARROW, Problem(enlarged(call(np.float16, 70, 8, 40, **STATE)), {})
    ),
    # Half a warp has log-decays.
    "one tile": problem_of(
        (32, 16, 4), Problem(call(np.float16, 18, 8, 40, **STATE), {})
    ),
    # A block has more threads than its staging buffers have units.
    "many warps": problem_of(
        (16, 64, 8), Problem(call(np.float16, 70, 8, 24, **STATE), {})
    ),
    "float32": problem_of(
        NARROW, Problem(call(np.float32, 70, 12, 20, heads=1, normalize=False), {})
    ),
    # The normalizer is multiplied in parts.
    "parts": problem_of(NARROW, Problem(call(np.float32, 70, 12, 40, **STATE), {})),
    "no tokens": problem_of(NARROW, Problem(call(np.float16, 0, 8, 40, **STATE), {})),
}


@pytest.mark.parametrize("name", every(3, problems()))
def test_values(name):
    law_the_values(Emulator(), problems()[name])


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.slow
def test_values_with_other_tile_shapes(name):
    PROBLEMS[name](Emulator())


@pytest.mark.parametrize("name", ["tail", "float32"])
def test_truncated_products(name):
    # Sums within a chunk lose some last bits; the state itself is rounded.
    problem = problems()[name]
    results = run(problem, Emulator(Way(truncates=True)))
    check(problem.call, results, factor=2.0)


@pytest.mark.parametrize("name", ["decay", "float32"])
def test_any_order(name):
    problem = problems()[name]
    first = run(problem)
    for schedule, landing in itertools.product(SCHEDULES, LANDINGS):
        way = Way(schedule, landing, seed=3, resident=2)
        results = run(problem, Emulator(way))
        for x, y in zip(results, first, strict=True):
            np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8))


@settings(max_examples=12, deadline=None)
@given(
    length=st.integers(0, 140),
    features=st.sampled_from([40, 48, 56, 64]),
    values=st.sampled_from([40, 56, 64, 72]),
    state=st.booleans(),
    seed=st.integers(0, 99),
)
@example(length=0, features=40, values=40, state=True, seed=0)
def test_shapes(length, features, values, state, seed):
    inputs = call(BFLOAT16, length, features, values, state=state, seed=seed)
    check(inputs, run(Problem(inputs, {})))


def test_agrees_with_linear_attention():
    inputs = problems()["float32, padded"].call
    exact = linkern.linear_attention(inputs.query, inputs.key, inputs.value)
    output, memory, normalizer = run(Problem(inputs, {}))
    assert distance(output, exact.output) < 3e-7
    assert distance(memory, exact.state.memory) < 3e-7
    assert distance(normalizer, exact.state.normalizer) < 3e-7


def test_float16_stays_in_range():
    inputs = enlarged(call(np.float16, 100, 64, 64, decay=True, state=True))
    check(inputs, run(Problem(inputs, {})))


def test_broadcast_heads():
    inputs = call(BFLOAT16, 70, 64, 64)
    inputs = inputs._replace(key=np.broadcast_to(inputs.key[:, :1], inputs.key.shape))
    check(inputs, run(Problem(inputs, {})))


def test_fits():
    inputs, device = call(BFLOAT16, 5, 64, 64), Emulator()
    assert chunk_fwd.fits(device, inputs)
    assert chunk_fwd.fits(device, call(np.float32, 5, 4, 4))
    assert not chunk_fwd.fits(device, call(BFLOAT16, 5, 4, 8))
    assert not chunk_fwd.fits(device, call(BFLOAT16, 5, 8, 4))
    assert not chunk_fwd.fits(device, call(BFLOAT16, 5, 264, 8))
    assert not chunk_fwd.fits(device, call(np.float64, 5, 8, 8))
    assert not chunk_fwd.fits(device, call(np.float16, 5, 8, 8, feature_map="EXP"))
    assert not chunk_fwd.fits(device, call(np.float32, 5, 256, 8))
    assert chunk_fwd.fits(device, call(np.float32, 5, 256, 8), shared=H200)
    # Rows that begin 2 bytes too late, and rows with a stride of 146 bytes.
    wide = np.zeros((1, 2, 5, 73), BFLOAT16)
    assert not chunk_fwd.fits(device, inputs._replace(query=wide[..., 1:65]))
    assert not chunk_fwd.fits(device, inputs._replace(query=wide[..., :64]))


def test_few_heads_are_split_into_segments():
    def blocks(heads, length, multiprocessors):
        inputs, device = call(BFLOAT16, length, 64, 64, heads=heads), Emulator()
        output, memory = (
            device.empty((1, heads, n, 64), np.float32) for n in (length, 64)
        )
        launches = chunk_fwd.plan(
            *(device, inputs, output, memory, memory[..., 0]),
            multiprocessors=multiprocessors,
        )
        return [launch.blocks for launch in launches]

    scan = 2 * -(-64 * 65 // (4 * 128))
    assert blocks(2, 4096, 132) == [32, scan, 32]
    assert blocks(2, 4096, 12) == [2 * 11, scan, 2 * 11]
    assert blocks(2, 4096, 3) == [2]
    assert blocks(2, 448, 132) == [2]
