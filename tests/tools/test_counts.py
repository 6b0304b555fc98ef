"""The counts of `tools/counts.py`: they cover all work and notice more of it."""

import importlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import linkern
from linkern import array

TOOLS = Path(__file__).parents[2] / "tools"
ORIGINAL = linkern.linear_attention
X = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def tool(monkeypatch):
    """Return both scripts, imported as they import each other when run."""
    monkeypatch.syspath_prepend(str(TOOLS))
    result = {name: importlib.import_module(name) for name in ("counted", "counts")}
    return SimpleNamespace(**result)


# What is done with an array of 2 x 3 float64: its name, products, elements, new bytes.
WORK = {
    "an operator": (lambda np, x: x + 1, "add", 0, 6, 48),
    "two axes that broadcast": (lambda np, x: x[:, 0] * x[:, :1], "multiply", 0, 4, 32),
    "into what is there": (lambda np, x: np.exp(x, out=x), "exp", 0, 6, 0),
    "in place": (lambda np, x: x.__iadd__(1), "add", 0, 6, 0),
    "a product": (lambda np, x: x @ x.T, "matmul", 12, 0, 32),
    "a product of vectors": (lambda np, x: np.vecdot(x, x), "vecdot", 6, 0, 16),
    "a sum": (lambda np, x: np.sum(x), "sum", 0, 6, 0),
    "a sum by a method": (lambda np, x: x.sum(), "add.reduce", 0, 6, 0),
    "sums along an axis": (
        lambda np, x: np.add.reduce(x, 0),
        "add.reduce",
        0,
        6,
        24,
    ),
    "joining": (lambda np, x: np.concat([x, x]), "concatenate", 0, 12, 96),
    "writing into a part": (lambda np, x: x.__setitem__(0, 1), "setitem", 0, 3, 0),
    "copying over": (lambda np, x: np.copyto(x, 1), "copyto", 0, 6, 0),
    "a copy": (lambda np, x: x.copy(), "copy", 0, 6, 48),
    "a cast": (lambda np, x: x.astype("float32"), "astype", 0, 6, 24),
    "rows by number": (lambda np, x: x[[1, 1, 0]], "getitem", 0, 9, 72),
    "a shape that copies": (lambda np, x: x.T.reshape(6), "reshape", 0, 6, 48),
    "a buffer": (lambda np, x: np.empty((2, 5)), "empty", 0, 0, 80),
    "zeros": (lambda np, x: np.zeros((2, 5)), "zeros", 0, 10, 80),
    "zeros like it": (lambda np, x: np.zeros_like(x), "zeros_like", 0, 6, 48),
}
NO_WORK = {
    "a part": lambda np, x: x[0, 1:],
    "a part without entries": lambda np, x: x[:0],
    "turned": lambda np, x: np.matrix_transpose(x),
    "the same in another shape": lambda np, x: x.reshape(3, 2),
    "repeated without a copy": lambda np, x: np.broadcast_to(x, (4, 2, 3)),
    "already an array": lambda np, x: np.asarray(x),
    "already of that dtype": lambda np, x: x.astype("float64", copy=False),
    "its dtype": lambda np, x: np.result_type(x, np.float32),
    "its shape": lambda np, x: np.shape(x),
}


@pytest.mark.parametrize("name", WORK)
def test_work_is_counted(tool, name):
    do, called, products, elements, size = WORK[name]
    with tool.counted.counting() as tally:
        do(tool.counted.NUMPY, X.copy().view(tool.counted.Counted))
    assert tally.names == {called: 1}
    result = [tally.totals[n] for n in ("multiply_adds", "elements", "bytes")]
    assert result == [products, elements, size]
    assert tally.totals["arrays"] == (size > 0)


@pytest.mark.parametrize("name", NO_WORK)
def test_a_look_is_not_counted(tool, name):
    with tool.counted.counting() as tally:
        NO_WORK[name](tool.counted.NUMPY, X.view(tool.counted.Counted))
    assert not tally.names


def test_what_is_made_of_a_counted_array_counts(tool):
    with tool.counted.counting():
        x = X.view(tool.counted.Counted)
        made = [x + 1, x[0], np.concat([x, x]), np.split(x, 2)[0], x.T, np.max(x, 0)]
        made += [np.exp(x, out=x), tool.counted.NUMPY.zeros(3), x[:, [1]], x.copy()]
    assert {type(y) for y in made} == {tool.counted.Counted}


def test_an_array_made_uncounted_is_refused(tool):
    with pytest.raises(TypeError, match=r"`multiply` met an array of shape \(2, 3\)"):
        X.view(tool.counted.Counted) * X
    with pytest.raises(TypeError, match="`setitem` met an array"):
        X.copy().view(tool.counted.Counted)[...] = X


def test_everything_is_as_before_afterwards(tool):
    known = dict(array._NAMESPACES)
    users = [vars(m) for n, m in sys.modules.items() if n.startswith("linkern")]
    users = [names for names in users if names.get("np") is np]
    with tool.counted.counting():
        assert {id(names["np"]) for names in users} == {id(tool.counted.NUMPY)}
    with pytest.raises(ZeroDivisionError):
        tool.counted.count(lambda kind: 1 / 0)
    assert {id(names["np"]) for names in users} == {id(np)}
    assert known == array._NAMESPACES


@pytest.mark.parametrize("name", ["linear_attention", "gla", "gated_delta_rule"])
def test_counted_results_are_the_results(tool, name):
    inputs = tool.counts.inputs_of(name, 70, np.ndarray)
    plain = getattr(linkern, name)(**inputs)
    with tool.counted.counting():
        counted = getattr(linkern, name)(
            **tool.counts.inputs_of(name, 70, tool.counted.Counted)
        )
    assert type(counted.output) is tool.counted.Counted
    np.testing.assert_array_equal(np.asarray(counted.output), plain.output)


def products(tokens, form):
    """Return the multiply-adds of one head, K = V = 64: scores, reading, writing."""
    size = tokens if form == "parallel" else 32
    whole, rest = divmod(tokens, size)
    scores = whole * size**2 + rest**2
    return scores * (64 + 65) + 2 * tokens * 64 * 65


@pytest.mark.parametrize("tokens", [1, 64, 150])
@pytest.mark.parametrize("form", ["parallel", "auto"])
def test_all_products_are_seen(tool, form, tokens):
    """No array slips through: the count is that of the formula."""
    result = tool.counted.count(
        lambda kind: tool.counts.forward("linear_attention", tokens, kind, form=form)
    )
    assert result["multiply_adds"] == tool.counts.HEADS * products(tokens, form)


def law_growth_is_linear(tool, operator, **options):
    """As many calls, products, elements and bytes come with each 2048 tokens more."""
    short, middle, long = (
        tool.counted.count(
            lambda kind, n=n: tool.counts.forward(operator, n, kind, **options)
        )
        for n in (2048, 4096, 6144)
    )
    for total in ("calls", "multiply_adds", "elements", "arrays", "bytes"):
        first, second = middle[total] - short[total], long[total] - middle[total]
        assert second <= first, total


def test_growth_is_linear(tool):
    law_growth_is_linear(tool, "linear_attention")


@pytest.mark.slow
def test_growth_of_a_quadratic_form_is_not(tool):
    with pytest.raises(AssertionError, match="multiply_adds"):
        law_growth_is_linear(tool, "linear_attention", form="parallel")


def with_a_copy(query, key, value, **rest):
    """One copy more than needed, which nobody keeps."""
    return ORIGINAL(query.copy(), key, value, **rest)


def quadratic(query, key, value, **rest):
    """Answer from all pairs."""
    return ORIGINAL(query, key, value, **rest | {"form": "parallel"})


def token_by_token(query, key, value, **rest):
    """Loop over the tokens."""
    return ORIGINAL(query, key, value, **rest | {"form": "recurrent"})


def one_call_more(query, key, value, **rest):
    """Look at one number."""
    np.isnan(query[0, 0, 0, None])
    return ORIGINAL(query, key, value, **rest)


def hoarding(query, key, value, **rest):
    """Hold a list that NumPy knows nothing of."""
    held = [object() for _ in range(20_000)]
    result = ORIGINAL(query, key, value, **rest)
    del held
    return result


# What each planted fault is more of.
FAULTS = {
    with_a_copy: {"calls", "elements", "arrays", "bytes", "peak"},
    quadratic: {"multiply_adds", "bytes", "peak"},
    token_by_token: {"calls", "elements"},
    one_call_more: {"calls", "elements", "arrays", "bytes"},
    hoarding: {"peak"},
}


def scenario_of(tool, monkeypatch, function):
    monkeypatch.setattr(linkern, "linear_attention", function)
    prepare = tool.counts.SCENARIOS["linear_attention, auto, 1000 tokens"]
    return {"scenario": json.loads(json.dumps(tool.counted.count(prepare)))}


def law_nothing_is_added(tool, monkeypatch, function):
    recorded = scenario_of(tool, monkeypatch, ORIGINAL)
    lines, good = tool.counts.check(recorded, scenario_of(tool, monkeypatch, function))
    assert good, "\n".join(lines)
    assert not lines


def test_a_second_count_is_the_first(tool, monkeypatch):
    law_nothing_is_added(tool, monkeypatch, ORIGINAL)


@pytest.mark.parametrize("function", FAULTS, ids=lambda f: f.__name__)
def test_a_planted_fault_is_reported(tool, monkeypatch, function):
    with pytest.raises(AssertionError) as failed:
        law_nothing_is_added(tool, monkeypatch, function)
    text = str(failed.value)
    for total in FAULTS[function]:
        assert f"scenario: more: {total} " in text
    assert tool.counts.ACCEPT in text


def test_names_of_added_calls_are_said(tool, monkeypatch):
    before = scenario_of(tool, monkeypatch, ORIGINAL)
    after = scenario_of(tool, monkeypatch, with_a_copy)
    lines, _ = tool.counts.check(before, after)
    said = next(line for line in lines if "calls by name" in line)
    before, after = re.search(r"copy (\d+) -> (\d+)", said).groups()
    assert int(after) == int(before) + 1


def test_less_is_good_and_to_be_recorded(tool, monkeypatch):
    before = scenario_of(tool, monkeypatch, with_a_copy)
    after = scenario_of(tool, monkeypatch, ORIGINAL)
    lines, good = tool.counts.check(before, after)
    assert good
    assert any(line.startswith("scenario: less: bytes") for line in lines)
    assert lines[-1].endswith(tool.counts.ACCEPT)


def test_scenarios_come_and_go_only_with_a_record(tool):
    counts = {**dict.fromkeys(tool.counts.TOTALS, 1), "by": {"add": 1}}
    assert tool.counts.check({"a": counts}, {"a": counts}) == ([], True)
    for recorded, result, said in (
        ({}, {"a": counts}, "a: not recorded"),
        ({"a": counts}, {}, "a: not counted any more"),
    ):
        lines, good = tool.counts.check(recorded, result)
        assert not good
        assert lines[0] == said


def test_a_peak_has_a_margin_and_nothing_else_has(tool):
    counts = {**dict.fromkeys(tool.counts.TOTALS, 10**6), "by": {}}
    for total in tool.counts.TOTALS:
        lines, good = tool.counts.check(
            {"a": counts}, {"a": {**counts, total: 10**6 + 1}}
        )
        assert good == (total == "peak")
        assert bool(lines) != good
    far = 10**6 + int(tool.counts.margin(10**6)) + 1
    assert not tool.counts.check({"a": counts}, {"a": {**counts, "peak": far}})[1]


def test_every_scenario_is_recorded_with_every_total(tool):
    recorded = json.loads(tool.counts.FILE.read_text())
    assert set(recorded) == set(tool.counts.SCENARIOS)
    for counts in recorded.values():
        assert set(counts) == {*tool.counts.TOTALS, "by"}
        assert sum(counts["by"].values()) == counts["calls"]


def test_the_table_has_a_row_for_each_scenario(tool):
    recorded = json.loads(tool.counts.FILE.read_text())
    head, *rows = tool.counts.table(recorded)
    assert len(rows) == len(recorded)
    assert {len(row) for row in rows} == {len(head)}
