"""Loop variables: integers, under arithmetic with integers too."""

from linkern.testing.target.interpreted.loops import LoopIndex, indices


def test_indices_stay_indices_under_arithmetic_with_integers():
    i = LoopIndex(7)
    results = [i + 1, 1 + i, 9 - i, i * 2, 2 * i, i // 2, 30 % i, i & 3, 8 | i]
    assert results == [8, 8, 2, 14, 14, 3, 2, 3, 15]
    assert all(type(x) is LoopIndex for x in results)


def test_what_a_loop_runs_over_is_left_as_it_is():
    values = [1, True, 2.0, "x"]
    assert [*indices(values)] == values
    assert [type(x) for x in indices(values)] == [LoopIndex, bool, float, str]
