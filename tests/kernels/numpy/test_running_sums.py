"""Running sums equal those of one token after the other, and see no later token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern.core.recurrence import Terms, token
from linkern.kernels.numpy.running_sums import one_row, running_sums

LENGTHS = st.one_of(st.integers(0, 20), st.sampled_from([63, 64, 65, 520]))


def token_by_token(before, rows, log_decay=None):
    sums, result = before[..., 0, :], np.empty_like(rows)
    for i in range(rows.shape[-2]):
        if log_decay is not None:
            sums = np.exp(log_decay[..., i, :]) * sums
        sums = result[..., i, :] = sums + rows[..., i, :]
    return result


def law_of_sums(function, before, rows, log_decay=None):
    kept = rows.copy()
    result = function(before, rows, log_decay)
    np.testing.assert_array_equal(rows, kept)
    assert result.dtype == rows.dtype
    expected = token_by_token(before, rows, log_decay)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


def drawn(length, seed=0):
    rng = np.random.default_rng(seed)
    log_decay = -abs(rng.normal(size=(2, length, 1)))
    log_decay[:, 3::5] = -np.inf
    log_decay[:, 4::5] = 0
    return rng.normal(size=(2, 1, 3)), rng.normal(size=(2, length, 3)), log_decay


@given(LENGTHS, st.booleans())
def test_sums_are_those_of_one_token_after_the_other(length, decays):
    before, rows, log_decay = drawn(length)
    law_of_sums(running_sums, before, rows, log_decay if decays else None)


@given(LENGTHS, st.booleans())
def test_integers_are_exact(length, decays):
    rng = np.random.default_rng(length)
    before = rng.integers(-3, 4, size=(2, 1, 3)).astype("float32")
    rows = rng.integers(-3, 4, size=(2, length, 3)).astype("float32")
    log_decay = np.where(rng.uniform(size=(2, length, 1)) < 0.1, -np.inf, 0.0)
    gates = log_decay.astype("float32") if decays else None
    result = running_sums(before, rows, gates)
    np.testing.assert_array_equal(result, token_by_token(before, rows, gates))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 7, 8, 100])
def test_no_token_reaches_an_earlier_one(bad, place):
    before, rows, log_decay = drawn(130)
    for array in (rows, log_decay):
        expected = running_sums(before, rows, log_decay)
        kept, array[:, place] = array[:, place].copy(), bad
        with np.errstate(invalid="ignore", over="ignore"):
            result = running_sums(before, rows, log_decay)
        array[:, place] = kept
        np.testing.assert_array_equal(result[:, :place], expected[:, :place])


@given(LENGTHS)
def test_a_memory_of_one_row_is_the_recurrence(length):
    memory, value, log_decay = drawn(length)
    query, key = np.random.default_rng(1).normal(size=(2, 2, length, 1))
    terms = Terms(query, key, value, log_decay)
    output, last = one_row(memory, terms)
    for i in range(length):
        expected, memory = token(memory, terms.span(slice(i, i + 1)))
        np.testing.assert_allclose(output[:, i : i + 1], expected, atol=1e-12)
    np.testing.assert_allclose(last, memory, atol=1e-12)
    assert not length or not np.shares_memory(last, output)


def without_the_sum_before(before, rows, log_decay=None):
    return running_sums(0 * before, rows, log_decay)


def without_decays(before, rows, log_decay=None):
    return running_sums(before, rows)


def of_groups_alone(before, rows, log_decay=None):
    parts = [
        running_sums(before, rows[:, i : i + 8], log_decay[:, i : i + 8])
        for i in range(0, rows.shape[1], 8)
    ]
    return np.concatenate(parts, axis=1)


@pytest.mark.parametrize(
    "wrong", [without_the_sum_before, without_decays, of_groups_alone]
)
def test_other_sums_are_caught(wrong):
    with pytest.raises(AssertionError):
        law_of_sums(wrong, *drawn(20))
