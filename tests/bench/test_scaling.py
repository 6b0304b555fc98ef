"""Scaling with length: sums over tokens, exponents and crossovers."""

import math

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from linkern.bench import scaling

LENGTHS = st.integers(1, 3000)
# One failure is enough to catch a mutant, however large.
PLAIN = settings(
    max_examples=30,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],
)


@given(LENGTHS, st.integers(1, 40))
def test_checkpoints_are_all_tokens_in_order(length, first):
    spans = scaling.checkpoints(length, first)
    assert [i for span in spans for i in range(*span)] == list(range(length))


@given(LENGTHS, st.integers(2, 40))
def test_prefixes_are_single_tokens_from_first_to_last(length, count):
    spans = scaling.prefixes(length, count)
    assert len(spans) == min(length, count)
    assert spans[0][0] == 0
    assert spans[-1] == (length - 1, length)
    assert all(stop == start + 1 for start, stop in spans)
    starts = [start for start, _ in spans]
    assert starts == sorted(set(starts))
    # Evenly: no gap differs from another by more than rounding both ends can make.
    gaps = np.diff(starts)
    assert gaps.size == 0 or np.ptp(gaps) <= 2


def law_costs_on_a_line_are_summed_exactly(integral, length, count, offset, slope):
    """For costs that are a line of the position, samples are exact."""
    spans = scaling.prefixes(length, count)
    cost = offset + slope * np.arange(length)
    got = integral(spans, [cost[i] for i, _ in spans], length)
    # Interpolation rounds each of `length` terms a few times.
    assert math.isclose(got, math.fsum(cost), rel_tol=1e-12)


def law_growing_costs_are_summed_within_the_stated_error(integral, length, count):
    """For squares the sum is too large by no more than the documented error."""
    spans = scaling.prefixes(length, count)
    cost = np.arange(length, dtype=float) ** 2
    got, exact = integral(spans, [cost[i] for i, _ in spans], length), cost.sum()
    # Rounding the places of the samples to tokens widens the widest gap by one.
    stated = (1 / (count - 1) + 1 / length) ** 2 / 2
    assert exact * (1 - 1e-12) <= got <= exact * (1 + stated * 1.05)


def law_whole_runs_are_their_own_sum(integral, length):
    spans = scaling.checkpoints(length)
    seconds = np.random.default_rng(length).uniform(size=len(spans))
    assert integral(spans, list(seconds), length) == math.fsum(seconds)


def run_integral_laws(integral):
    @PLAIN
    @given(LENGTHS, st.integers(2, 30), st.floats(0.1, 10), st.floats(0, 10))
    def lines(length, count, offset, slope):
        law_costs_on_a_line_are_summed_exactly(integral, length, count, offset, slope)

    @PLAIN
    @given(st.integers(300, 3000), st.integers(4, 30))
    def squares(length, count):
        law_growing_costs_are_summed_within_the_stated_error(integral, length, count)

    @PLAIN
    @given(LENGTHS)
    def whole(length):
        law_whole_runs_are_their_own_sum(integral, length)

    for law in (lines, squares, whole):
        law()


def of_the_mean(spans, seconds, length):
    """The mean of the samples times the length: the ends count too much."""
    if scaling.is_whole(spans, length):
        return math.fsum(seconds)
    return length * float(np.mean(seconds))


def of_the_last(spans, seconds, length):
    """Every token as expensive as the last."""
    return seconds[-1] * length


def as_if_sampled(spans, seconds, length):
    """Reads whole spans as single tokens."""
    return math.fsum(np.interp(np.arange(length), [s for s, _ in spans], seconds))


def of_the_samples(spans, seconds, length):
    """The samples alone."""
    return math.fsum(seconds)


INTEGRAL_MUTANTS = (of_the_mean, of_the_last, as_if_sampled, of_the_samples)


def test_the_sum_over_all_tokens():
    run_integral_laws(scaling.integral)


@pytest.mark.parametrize("mutant", INTEGRAL_MUTANTS)
def test_wrong_sums_are_caught(mutant):
    with pytest.raises(AssertionError):
        run_integral_laws(mutant)


def law_powers_are_found(exponent, power, factor):
    x = [64, 100, 1000, 3072]
    assert exponent(x, [factor * n**power for n in x]) == pytest.approx(power, abs=1e-9)


def law_noise_is_averaged(exponent):
    """Noise that balances about a flat line leaves it flat: all points count."""
    x = np.exp([0.0, 1.0, 2.0, 3.0, 4.0])
    assert exponent(x, np.exp([0.3, -0.6, 0.0, 0.6, -0.3])) == pytest.approx(
        0, abs=1e-9
    )


def run_exponent_laws(exponent):
    @PLAIN
    @given(st.floats(-1, 3), st.floats(1e-6, 10))
    def powers(power, factor):
        law_powers_are_found(exponent, power, factor)

    powers()
    law_noise_is_averaged(exponent)


def between_the_ends(x, y):
    """The slope from the first point to the last."""
    return math.log(y[-1] / y[0]) / math.log(x[-1] / x[0])


def through_the_origin(x, y):
    """No constant factor."""
    return float(np.log(x) @ np.log(y) / (np.log(x) @ np.log(x)))


def of_the_totals(x, y):
    """The exponent of all tokens and not of one."""
    return scaling.exponent(x, np.asarray(x) * y)


def test_the_exponent_of_a_power():
    run_exponent_laws(scaling.exponent)
    assert scaling.exponent([1, 2], [1, 2]) is None


@pytest.mark.parametrize(
    "mutant", [between_the_ends, through_the_origin, of_the_totals]
)
def test_wrong_exponents_are_caught(mutant):
    with pytest.raises(AssertionError):
        run_exponent_laws(mutant)


def law_the_crossing_is_where_the_sums_meet(crossover, ours, theirs):
    """For costs that are lines of the position, against the closed form.

    `ours` is constant; `theirs` starts lower and grows by `slope`: the sums meet where
    ``ours n = theirs n + slope n^2 / 2``.
    """
    start, slope = theirs
    spans = [(i, i + 1) for i in range(4000)]
    middle = np.arange(4000) + 0.5
    got = crossover(spans, np.full(4000, ours), start + slope * middle)
    expected = 2 * (ours - start) / slope
    if expected >= 4000:
        assert got is None
    else:
        assert abs(got - max(expected, 1)) <= 1


def law_the_last_crossing_counts(crossover):
    """A crossing counts only if no later one reverses it."""
    spans = [(0, 10), (10, 20), (20, 30), (30, 40)]
    assert crossover(spans, [1.0, 9.0, 1.0, 1.0], [2.0, 1.0, 7.0, 4.0]) == 34
    assert crossover(spans, [1.0, 1.0, 1.0, 9.0], [2.0, 2.0, 2.0, 2.0]) is None
    assert crossover(spans, [1.0] * 4, [2.0] * 4) == 10


def run_crossover_laws(crossover):
    @PLAIN
    @given(st.floats(1, 5), st.floats(0.1, 0.9), st.floats(1e-3, 1e-2))
    def lines(ours, start, slope):
        law_the_crossing_is_where_the_sums_meet(crossover, ours, (start, slope))

    lines()
    law_the_last_crossing_counts(crossover)


def first_crossing(spans, ours, theirs):
    ahead = np.cumsum(np.asarray(theirs) - np.asarray(ours)) > 0
    return int(spans[int(np.argmax(ahead))][1]) if ahead.any() else None


def of_single_tokens(spans, ours, theirs):
    """The crossing of single tokens instead of sums."""
    behind = np.flatnonzero(np.asarray(theirs) <= np.asarray(ours))
    last = int(behind[-1]) if behind.size else -1
    return None if last + 1 == len(spans) else spans[last + 1][1]


def of_the_other(spans, ours, theirs):
    return scaling.crossover(spans, theirs, ours)


def test_the_crossing():
    run_crossover_laws(scaling.crossover)


@pytest.mark.parametrize("mutant", [first_crossing, of_single_tokens, of_the_other])
def test_wrong_crossings_are_caught(mutant):
    with pytest.raises((AssertionError, TypeError)):
        run_crossover_laws(mutant)
