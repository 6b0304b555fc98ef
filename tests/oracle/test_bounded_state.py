"""The state and its bound: sums over all keys, carried as declared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import oracle
from linkern.testing.kernels.assembly import rounded_to

STATE_IN_BFLOAT16 = oracle.Precisions(
    "float32", state="bfloat16", normalizer="bfloat16"
)


def problem(rng, length):
    key, value = (rng.uniform(0.1, 1, (length, 3)), rng.normal(size=(length, 2)))
    return key.astype(np.float32), value.astype(np.float32)


def carried(key, value, chunk, keep=np.asarray):
    """Sum in float32, rounding what is handed from chunk to chunk."""
    memory, normalizer = np.zeros((3, 2), np.float32), np.zeros(3, np.float32)
    for first in range(0, len(key), chunk):
        span = slice(first, first + chunk)
        for b, v in zip(key[span], value[span], strict=True):
            memory, normalizer = memory + b[:, None] * v, normalizer + b
        memory, normalizer = keep(memory), keep(normalizer)
    return memory, normalizer


def expected(key, value, precisions, *, error=0.0, **options):
    wide = [x.astype(np.float64) for x in (key, key, value)]
    exact = oracle.evaluate(*wide, causal=True, key_error=error * abs(wide[1]))
    return oracle.bounded_state(exact, precisions, **options)


def is_within(found, bounded):
    return all(
        bool((abs(got - due.output) <= due.bound).all())
        for got, due in zip(found, bounded, strict=True)
    )


@given(seed=st.integers(0, 2**16), length=st.integers(1, 100))
def test_a_state_is_its_sums_within_their_bound(seed, length):
    key, value = problem(np.random.default_rng(seed), length)
    bounded = expected(key, value, oracle.Precisions("float32"))
    assert [x.output.shape for x in bounded] == [(3, 2), (3,)]
    assert is_within(carried(key, value, length), bounded)
    backwards = carried(key[::-1], value[::-1], length)
    assert is_within(backwards, bounded)


@pytest.mark.parametrize("chunk", [1, 8])
@given(seed=st.integers(0, 2**16), length=st.integers(20, 100))
def test_a_state_carried_in_bfloat16_needs_its_declaration(chunk, seed, length):
    key, value = problem(np.random.default_rng(seed), length)
    found = carried(key, value, chunk, rounded_to(8))
    declared = expected(key, value, STATE_IN_BFLOAT16)
    by_chunks = expected(key, value, STATE_IN_BFLOAT16, chunk_size=chunk)
    assert is_within(found, declared)
    assert is_within(found, by_chunks)
    assert not is_within(found, expected(key, value, oracle.Precisions("float32")))
    for whole, sharper in zip(declared, by_chunks, strict=True):
        assert (sharper.bound <= whole.bound).all()


def test_memory_and_normalizer_are_declared_apart():
    key, value = problem(np.random.default_rng(0), 40)
    plain = expected(key, value, oracle.Precisions("float32"))
    for stage, wider in (("state", 0), ("normalizer", 1)):
        precisions = oracle.Precisions("float32", **{stage: "bfloat16"})
        found = expected(key, value, precisions)
        for which in (0, 1):
            grown = found[which].bound > 2.0**10 * plain[which].bound
            assert grown.all() == (which == wider)


@pytest.mark.parametrize("stage", ["operand", "feature"])
def test_narrow_products_widen_both(stage):
    key, value = problem(np.random.default_rng(0), 40)
    precisions = oracle.Precisions("float32", **{stage: "bfloat16"})
    wider = expected(key, value, precisions)
    for found, plain in zip(
        wider, expected(key, value, oracle.Precisions("float32")), strict=True
    ):
        assert (found.bound > plain.bound).all()
    narrow = rounded_to(8)
    value = narrow(value) if stage == "operand" else value
    assert is_within(carried(narrow(key), value, 40), wider)


@given(seed=st.integers(0, 2**16))
def test_errors_of_features_are_admitted(seed):
    rng = np.random.default_rng(seed)
    key, value = problem(rng, 30)
    wide = oracle.Precisions("float64")
    moved = key.astype(np.float64) * (1 + 0.01 * rng.choice([-1, 1], key.shape))
    found = [x.output for x in expected(moved, value, wide)]
    assert is_within(found, expected(key, value, wide, error=0.01))


def test_where_carries_can_lose_all_nothing_is_proved():
    key, value = problem(np.random.default_rng(0), 200)
    for found in expected(key, value, STATE_IN_BFLOAT16):
        assert np.isinf(found.bound).all()
    for found in expected(key, value, STATE_IN_BFLOAT16, chunk_size=8):
        assert np.isfinite(found.bound).all()


def test_no_token_leaves_a_state_of_zeros():
    nothing = np.zeros((0, 3), np.float32), np.zeros((0, 2), np.float32)
    memory, normalizer = expected(*nothing, oracle.Precisions("float32"))
    assert not memory.output.any()
    assert not normalizer.output.any()
    assert np.isfinite(memory.bound).all()
