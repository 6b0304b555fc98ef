"""Of the cases that differ in their last value, one has its turn."""

from itertools import product

from tests.marks import every, in_turn

NAMES, DTYPES = [f"kernel {i}" for i in range(40)], ("float32", "float64", "bfloat16")


def cases(kept=lambda name, dtype: False, dtypes=DTYPES, step=1):
    """Return the values and the names of the marks of each case."""
    marked = in_turn(kept, product(NAMES, dtypes), step=step)
    return {one.values: {mark.name for mark in one.marks} for one in marked}


def test_one_case_of_each_name_is_not_exhaustive():
    marks = cases()
    assert {*marks} == {*product(NAMES, DTYPES)}
    turns = [values for values, names in marks.items() if names == {"slow"}]
    assert [name for name, _ in turns] == NAMES
    assert {dtype for _, dtype in turns} == {*DTYPES}
    assert all("slow" in names for names in marks.values())


def test_what_runs_by_default_has_no_turn():
    marks = cases(lambda name, dtype: dtype == "float32")
    assert all(not marks[name, "float32"] for name in NAMES)
    for name in NAMES:
        others = [marks[name, dtype] for dtype in DTYPES[1:]]
        assert sorted(others, key=len) == [{"slow"}, {"slow", "exhaustive"}]
    assert not any(cases(lambda *_: True).values())


def test_a_name_alone_has_its_turn_each_time():
    assert set.union(*cases(dtypes=["float64"]).values()) == {"slow"}


def test_of_others_than_every_third_case_a_share_is_slow():
    def kinds(share):
        return [
            "+".join(sorted(m.name for m in x.marks))
            for x in every(3, "abcdefg", slow=share)
        ]

    rest = "exhaustive+slow"
    assert kinds(1.0) == ["", "slow", "slow", "", "slow", "slow", ""]
    assert kinds(0.5) == ["", rest, "slow", "", rest, "slow", ""]
    assert kinds(0.0) == ["", rest, rest, "", rest, rest, ""]


def test_of_several_names_one_has_a_turn():
    whole, some = cases(), cases(step=4)
    turns = [values for values, names in some.items() if names == {"slow"}]
    assert len(NAMES) / 8 < len(turns) < len(NAMES) / 2
    assert all(whole[values] == {"slow"} for values in turns)
    assert {dtype for _, dtype in turns} == {*DTYPES}
