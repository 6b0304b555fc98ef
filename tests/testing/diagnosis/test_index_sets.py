import re
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from linkern.testing.diagnosis.index_sets.atoms import interval, interval_atoms
from linkern.testing.diagnosis.index_sets.describe import (
    _instances,
    corner,
    describe,
    misfit,
)
from linkern.testing.diagnosis.index_sets.thresholds import threshold_atoms
from linkern.testing.influence.maps import INITIAL_STATE, InfluenceMap
from linkern.testing.influence.scenes import Sources
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.generators import real_problem
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS

SCOPE = Scope(OPERATORS["gla"], Contract(), "float32")


def blank(length, heads=2, batch=2, causal=True, step=1, key_dim=2, knobs=None, **more):
    """Return a map without a wrong entry: all pairs of some heads."""
    shape = Shape(batch, heads, length, length, key_dim, 2)
    problem = real_problem(SCOPE, shape, "mild", "normal", np.random.default_rng(0))
    tokens = np.arange(0, length, step)
    problem = problem.told(**(knobs or {}))
    sources = np.concatenate([[INITIAL_STATE], tokens]) if more else tokens
    axes = np.meshgrid(
        np.arange(batch), np.arange(heads), tokens, sources, indexing="ij"
    )
    b, h, i, j = (x.ravel() for x in axes)
    inside = i >= j
    exact = np.random.default_rng(length).uniform(0.5, 1, len(i))
    exact = np.where(inside | (not causal), exact, 0.0)
    bound = 1e-6 * np.where(exact == 0, 1.0, exact)
    places = {"batch": b, "head": h, "row": i, "source": j, "key channel": j % 5}
    return InfluenceMap("output", problem, exact, exact, bound, bound, places)


def planted(influence, chosen, factor=1.5):
    """Return a map with wrong entries at chosen places."""
    off = np.where(influence.exact == 0, 1.0, influence.exact * factor)
    measured = np.where(chosen, off, influence.exact)
    return InfluenceMap(
        influence.tensor,
        influence.problem,
        measured,
        influence.exact,
        influence.bound,
        influence.likely,
        influence.coordinates,
    )


def described(test, *maps, **options):
    wrong = [planted(x, test(x.coordinates, x.problem.length)) for x in maps]
    return describe(wrong, **options), wrong


TWO = (blank(59, batch=1), blank(37, heads=3, batch=1))
CAUSAL = lambda c: c["row"] >= c["source"]  # noqa: E731
SETS = {
    "everywhere": lambda c, _: CAUSAL(c),
    "the diagonal": lambda c, _: c["row"] == c["source"],
    "sources ahead of the row": lambda c, _: c["row"] < c["source"],
    "pairs across edges of chunks of 16": lambda c, _: (
        CAUSAL(c) & (c["row"] // 16 != c["source"] // 16)
    ),
    "pairs across edges of chunks of 10": lambda c, _: (
        CAUSAL(c) & (c["row"] // 10 != c["source"] // 10)
    ),
    "pairs inside chunks of 16": lambda c, _: (
        CAUSAL(c) & (c["row"] // 16 == c["source"] // 16)
    ),
    "pairs of neighbouring chunks of 8": lambda c, _: (
        c["row"] // 8 - c["source"] // 8 == 1
    ),
    "pairs two or more chunks of 8 apart": lambda c, _: (
        c["row"] // 8 - c["source"] // 8 >= 2
    ),
    "pairs three or more chunks of 8 apart": lambda c, _: (
        c["row"] // 8 - c["source"] // 8 >= 3
    ),
    "pairs across the last token of chunks of 16": lambda c, _: (
        CAUSAL(c) & ((c["row"] + 1) // 16 != (c["source"] + 1) // 16)
    ),
    "sources 1 back": lambda c, _: c["row"] - c["source"] == 1,
    "sources 24 back or more": lambda c, _: c["row"] - c["source"] >= 24,
    "sources less than 24 back": lambda c, _: CAUSAL(c) & (c["row"] - c["source"] < 24),
    "the first row of every chunk of 16": lambda c, _: CAUSAL(c) & (c["row"] % 16 == 0),
    "the last row of every chunk of 16": lambda c, _: CAUSAL(c) & (c["row"] % 16 == 15),
    "the first source of every chunk of 16": lambda c, _: (
        CAUSAL(c) & (c["source"] % 16 == 0)
    ),
    "the last source of every chunk of 8": lambda c, _: (
        CAUSAL(c) & (c["source"] % 8 == 7)
    ),
    "rows after the first of every chunk of 8": lambda c, _: (
        CAUSAL(c) & (c["row"] % 8 > 0)
    ),
    "sources before the last of every chunk of 8": lambda c, _: (
        CAUSAL(c) & (c["source"] % 8 < 7)
    ),
    "rows in the tail of chunks of 16": lambda c, length: (
        CAUSAL(c) & (c["row"] >= length // 16 * 16)
    ),
    "sources in whole chunks of 16": lambda c, length: (
        CAUSAL(c) & (c["source"] < length // 16 * 16)
    ),
    "rows in the last chunk of 16": lambda c, length: (
        CAUSAL(c) & (c["row"] // 16 == (length - 1) // 16)
    ),
    "sources before the last chunk of 16": lambda c, length: (
        CAUSAL(c) & (c["source"] // 16 < (length - 1) // 16)
    ),
    "rows in odd chunks of 8": lambda c, _: CAUSAL(c) & (c["row"] // 8 % 2 == 1),
    "rows in even chunks of 8": lambda c, _: CAUSAL(c) & (c["row"] // 8 % 2 == 0),
    "rows from 20 on": lambda c, _: CAUSAL(c) & (c["row"] >= 20),
    "sources before 20": lambda c, _: CAUSAL(c) & (c["source"] < 20),
    "row 0": lambda c, _: CAUSAL(c) & (c["row"] == 0),
    "source 3": lambda c, _: CAUSAL(c) & (c["source"] == 3),
    "the last row": lambda c, length: CAUSAL(c) & (c["row"] == length - 1),
    "the last 3 sources": lambda c, length: CAUSAL(c) & (c["source"] >= length - 3),
    "rows other than the last row": lambda c, length: (
        CAUSAL(c) & (c["row"] < length - 1)
    ),
    "head 1": lambda c, _: CAUSAL(c) & (c["head"] == 1),
    "heads from 1 on": lambda c, _: CAUSAL(c) & (c["head"] >= 1),
    "heads 0, 2": lambda c, _: CAUSAL(c) & (c["head"] % 2 == 0),
    "batch entry 0": lambda c, _: CAUSAL(c) & (c["batch"] == 0),
    "key channels from 2 on": lambda c, _: CAUSAL(c) & (c["key channel"] >= 2),
    "key channel 3": lambda c, _: CAUSAL(c) & (c["key channel"] == 3),
    "lengths above 47": lambda c, length: CAUSAL(c) & (length > 37),
}


@pytest.mark.parametrize("text", SETS)
def test_each_atom_is_recovered(text):
    maps = TWO
    if text.startswith("batch"):
        maps = (blank(37), blank(20, batch=3))
    if text.startswith("lengths"):
        maps = (*TWO, blank(60))
    if "the last chunk" in text:
        maps = (*TWO, blank(48))
    result, wrong = described(SETS[text], *maps)
    assert text in (result.text, *result.alternatives)
    assert result.missed == result.spared == 0
    for x in wrong:
        inside = CAUSAL(x.coordinates) | (text == "sources ahead of the row")
        np.testing.assert_array_equal(result.contains(x) & inside, x.wrong)
    assert (result.chunk is not None) == ("chunk" in text)


@pytest.mark.parametrize("inside", [True, False])
def test_pairs_that_a_doubling_scan_misses_are_a_set(inside):
    def test(c, length):
        first = c["row"] // 32 * 32
        tokens = np.minimum(32, length - first)
        apart = c["row"] - np.maximum(c["source"], first)
        return (apart >= 1 << np.log2(tokens).astype(int)) & (
            (c["source"] >= first) | (not inside)
        )

    result, _ = described(test, blank(59), blank(37, heads=3), blank(64), blank(24))
    text = "pairs P or more apart in a chunk of 32, P its largest power of two"
    every = {text + " and pairs inside chunks of 32"} if inside else {text}
    assert every <= {result.text, *result.alternatives}
    assert result.missed == result.spared == 0


def test_no_wrong_entry_is_not_described():
    assert describe(TWO) is None
    assert describe([]) is None
    assert corner(TWO) is None


def test_initial_state_is_a_source():
    maps = (blank(40, extra=True), blank(21, extra=True))
    result, _ = described(lambda c, _: c["source"] == INITIAL_STATE, *maps)
    assert result.text == "the initial state"
    result, _ = described(lambda c, _: CAUSAL(c) & (c["source"] >= 0), *maps)
    assert result.text == "sources after the initial state"


def test_conjunctions_of_three():
    def test(c, length):
        edge = c["row"] // 16 != c["source"] // 16
        tail = c["row"] >= length // 16 * 16
        return CAUSAL(c) & edge & tail & (c["head"] >= 1)

    result, _ = described(test, *TWO)
    assert result.text == (
        "pairs across edges of chunks of 16 and heads from 1 on and "
        "rows in the tail of chunks of 16"
    )
    assert result.chunk == 16


def test_an_end_that_a_chunk_implies_has_no_number_of_its_own():
    """Of the last tokens of chunks, only that at the very end is left out."""
    maps = [blank(n, heads=3, batch=8) for n in (96, 84)]

    def edge(c, length):
        last = (c["source"] % 16 == 15) & (c["source"] < length - 1)
        return CAUSAL(c) & last

    result, _ = described(edge, *maps)
    assert {*re.findall(r"\d+", result.text)} == {"16"}
    assert len(result.atoms) == 2
    assert result.missed == result.spared == 0


def test_as_short_sets_are_said():
    result, _ = described(SETS["rows in the tail of chunks of 16"], blank(52))
    assert result.text == "rows in the tail of chunks of 16"
    assert "the last 4 rows" in result.alternatives
    assert "rows before 48" not in result.alternatives


def test_number_between_samples_is_the_simplest():
    maps = [blank(n, heads=1, batch=1, step=n // 30) for n in (600, 750)]
    result, _ = described(lambda c, _: CAUSAL(c) & (c["row"] >= 512), *maps)
    assert result.text == "rows from 512 on"
    result, _ = described(lambda c, _: c["row"] - c["source"] >= 256, *maps)
    assert result.text == "sources 256 back or more"


def test_exceptions_are_counted():
    rng = np.random.default_rng(3)

    def test(c, _):
        edge = CAUSAL(c) & (c["row"] // 16 != c["source"] // 16)
        noise = rng.random(len(edge))
        return np.where(edge, noise > 0.02, (noise < 0.002) & CAUSAL(c))

    result, _ = described(test, *TWO)
    assert result.text == "pairs across edges of chunks of 16"
    assert 0 < result.missed < 0.01
    assert 0.01 < result.spared < 0.03


def test_noise_gets_no_set():
    result, _ = described(
        lambda c, _: CAUSAL(c) & (np.random.default_rng(0).random(len(c["row"])) < 0.4),
        *TWO,
    )
    assert result.text == "everywhere"
    assert 0.55 < result.spared < 0.65


def test_threshold_on_a_quantity():
    def measure(influence, only=None):
        c = influence.coordinates
        mixed = c["row"] * 7919 + c["source"] * 104729 + c["head"] * 1299709
        return {"other": np.sin(mixed), "denominator": np.exp(np.cos(mixed * 0.7) - 1)}

    maps = [
        planted(x, CAUSAL(x.coordinates) & (measure(x)["denominator"] < 0.5))
        for x in TWO
    ]
    result = describe(maps, measure)
    assert result.text == "where denominator is below 0.5"
    for x in maps:
        inside = CAUSAL(x.coordinates)
        np.testing.assert_array_equal(result.contains(x) & inside, x.wrong)
    assert describe(maps).text == "everywhere"


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (lambda x: x == -5, "where log_decay[row] is -5"),
        (lambda x: x < -7, "where log_decay[row] is below -7"),
        (lambda x: x >= 3, "where log_decay[row] is above 3"),
    ],
)
def test_number_that_a_quantity_has(test, text):
    def measure(influence, only=None):
        c = influence.coordinates
        return {"log_decay[row]": -5.0 + (c["row"] * 7919 + c["head"] * 31) % 23 - 11}

    maps = [
        planted(x, CAUSAL(x.coordinates) & test(measure(x)["log_decay[row]"]))
        for x in TWO
    ]
    assert describe(maps, measure).text == text


def test_thresholds_between_the_smallest_numbers():
    quantities = {"x": np.array([0.0, 5e-324, 5e-310])}
    atoms = threshold_atoms(
        lambda *_: quantities, quantities, np.array([1.0, 2.0, -3.0])
    )
    (_, above), (_, below) = atoms
    assert above.text == "where x is above 5e-310"
    assert below.text == "where x is below 4.94066e-324"


def test_a_sign_and_a_power_of_ten_of_a_threshold_are_no_digits():
    """A formula of an input is said only if its number has fewer digits."""
    x = np.array([-1e-4, -1.0, -5.0, -20.0, -88.0])
    wrong = np.array([1.0, 1.0, 1.0, -1.0, -1.0])

    def cost(name, values):
        quantities = {name: values, "other": np.zeros(5)}
        rated = threshold_atoms(lambda *_: quantities, quantities, wrong)
        return min(atom.cost for gain, atom in rated if gain == 3)

    made = cost("(1 - exp(2 * log_decay))[row]", -np.expm1(2 * x))
    assert cost("log_decay[row]", x) < made
    assert cost("log_decay[row]", 1e-5 * x) == cost("log_decay[row]", x)
    near = np.where(x == -5.0, -19.99, x)
    assert cost("log_decay[row]", near) > cost("log_decay[row]", x)


def test_numbers_are_those_of_the_chunk_where_they_may_be():
    def test(c, length):
        return CAUSAL(c) & (c["row"] >= length // 16 * 16) & (length > 16)

    maps = (blank(3), blank(59), blank(37))
    result, _ = described(test, *maps)
    assert result.text == "rows from 16 on and rows in the tail of chunks of 16"


@pytest.mark.parametrize("multiple", [True, False])
def test_lengths_that_are_multiples(multiple):
    maps = [blank(n, heads=1) for n in (16, 24, 48, 65, 71)]
    result, _ = described(
        lambda c, length: CAUSAL(c) & ((length % 16 == 0) == multiple), *maps
    )
    some = "multiples" if multiple else "no multiple"
    assert result.text == f"lengths that are {some} of 16"


def test_right_entries_of_products_give_way_to_dense_maps():
    sources = SimpleNamespace(channels=np.zeros(1))
    product = blank(59, knobs={"sources": sources})
    test = SETS["pairs across edges of chunks of 16"]
    some = np.random.default_rng(0).random(len(product.exact)) < 0.5
    maps = [
        planted(product, test(product.coordinates, 59) & some),
        planted(blank(37), test(blank(37).coordinates, 37)),
    ]
    result = describe(maps)
    assert result.text == "pairs across edges of chunks of 16"
    assert result.missed == result.spared == 0
    assert misfit(result, maps) == (0, 0)
    assert describe(maps[:1]).spared > 0.4


def test_calls_without_an_input_stand_alone():
    def given_scale(x, scale):
        return replace(x, problem=x.problem.told(scale=scale))

    right = given_scale(blank(59), "one")
    wrong = given_scale(blank(37), "default")
    wrong = planted(wrong, SETS["the diagonal"](wrong.coordinates, 37))
    result = describe([right, wrong])
    assert (result.text, result.spared) == ("the diagonal", 0)
    assert misfit(result, [right, wrong]) == (0, 0)


def test_misfit_on_fresh_maps():
    result, _ = described(SETS["rows from 20 on"], *TWO)
    other = [planted(x, SETS["rows from 20 on"](x.coordinates, 0)) for x in TWO]
    assert misfit(result, other) == (0, 0)
    other = [planted(x, SETS["row 0"](x.coordinates, 0)) for x in TWO]
    assert misfit(result, other) == (1, 1)
    assert misfit(result, TWO) == (0, 1)


def test_doubtful_and_faint_entries_decide_nothing():
    x = blank(60)
    test = SETS["pairs across edges of chunks of 16"]
    wrong = planted(x, test(x.coordinates, 60) & (x.coordinates["row"] % 7 > 0))
    hidden = x.coordinates["row"] % 7 == 0
    bound = np.where(hidden, x.exact, x.bound)
    faint = InfluenceMap(
        "output", x.problem, wrong.measured, x.exact, bound, bound, x.coordinates
    )
    assert describe([faint]).text == "pairs across edges of chunks of 16"
    shifted = np.where(hidden, wrong.measured + 1e-7, wrong.measured)
    doubtful = InfluenceMap(
        "output", x.problem, shifted, x.exact, x.bound, x.bound / 100, x.coordinates
    )
    assert describe([doubtful]).text == "pairs across edges of chunks of 16"


def test_first_length_that_shows():
    maps = [planted(x, SETS["rows from 20 on"](x.coordinates, 0)) for x in TWO]
    assert corner(maps) == 21
    alone = [x.part(x.coordinates["row"] >= 20) for x in maps]
    assert corner(alone) is None  # nobody looked at shorter lengths
    ahead = [
        planted(x, x.coordinates["row"] - x.coordinates["source"] == -2) for x in TWO
    ]
    assert corner(ahead) == 3


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(SETS)), min_size=2, max_size=3, unique=True))
def test_conjunction_is_recovered_or_an_equivalent(texts):
    flags = [[SETS[t](x.coordinates, x.problem.length) for t in texts] for x in TWO]
    maps = [planted(x, np.all(f, axis=0)) for x, f in zip(TWO, flags, strict=True)]
    assume(sum(x.wrong.sum() for x in maps) > 20)
    result = describe(maps)
    assert result.missed == result.spared == 0
    for x in maps:
        silent = x.exact == 0 if not (x.wrong & (x.exact == 0)).any() else x.silent
        inside = result.contains(x) & ~silent
        np.testing.assert_array_equal(inside, x.wrong)


@pytest.mark.parametrize(
    ("test", "text"),
    [
        (lambda s, w: s // 16 != w // 16, "values across edges of chunks of 16"),
        (lambda s, w: s // 10 == w // 10, "values inside chunks of 10"),
        (lambda s, w: s == w, "the token of the value"),
        (lambda s, w: s > w, "tokens after that of the value"),
    ],
)
def test_tokens_and_that_of_the_value(test, text):
    maps = []
    for one in (blank(60, heads=1, causal=False), blank(37, causal=False)):
        c = one.coordinates
        places = {"head": c["head"], "written": c["row"], "source": c["source"]}
        chosen = test(places["source"], places["written"])
        maps.append(planted(replace(one, coordinates=places), chosen))
    result = describe(maps)
    assert text in (result.text, *result.alternatives)
    assert result.missed == result.spared == 0


@pytest.mark.parametrize("wide", [True, False])
def test_maps_that_sum_over_channels_hold_a_wrong_one_if_they_are_wide(wide):
    product, dense = blank(59), blank(37, key_dim=5 if wide else 2)
    places = {k: x for k, x in dense.coordinates.items() if k != "key channel"}
    dense = replace(dense, coordinates=places)
    maps = [
        planted(product, SETS["key channels from 2 on"](product.coordinates, 59)),
        planted(dense, CAUSAL(places) & wide),
    ]
    result = describe(maps)
    assert (result.text, result.missed, result.spared) == (
        "key channels from 2 on",
        0,
        0,
    )
    assert (result.contains(maps[1]) == wide).all()


def test_entries_that_are_not_finite_have_a_place():
    maps = []
    for one in TWO:
        chosen = SETS["pairs inside chunks of 16"](one.coordinates, 0)
        measured = np.where(chosen, np.nan, one.exact)
        maps.append(replace(one, measured=measured))
    assert describe(maps).text == "pairs inside chunks of 16"


def test_one_wrong_pair_has_no_place():
    one = TWO[0]
    c = one.coordinates
    result = describe([planted(one, (c["row"] == 7) & (c["source"] == 5))])
    assert result is None


def test_numbers_of_lengths_are_those_of_the_chunk_too():
    maps = [blank(n) for n in (1, 59, 37)]
    test = SETS["rows in the tail of chunks of 16"]
    result, _ = described(lambda c, n: test(c, n) & (n > 1), *maps)
    assert result.text == "rows from 16 on and rows in the tail of chunks of 16"


@pytest.mark.parametrize(
    ("axis", "cut", "size"), [("source", "row", "length"), ("row", "source", "keys")]
)
def test_tokens_beyond_the_others(axis, cut, size):
    scope, maps = Scope(OPERATORS["linear_attention"], Contract(), "float32"), []
    for length, fewer in ((59, 30), (37, 20)):
        every = blank(length, heads=1, causal=False)
        one = every.part(every.coordinates[cut] < fewer)
        shape = replace(every.problem.shape, **{size: fewer})
        rng = np.random.default_rng(0)
        problem = real_problem(scope, shape, "mild", "normal", rng)
        assert {problem.length, problem.shape.keys} == {fewer, length}
        one = replace(one, problem=problem)
        maps.append(planted(one, one.coordinates[axis] >= fewer))
    result = describe(maps)
    assert result.text == f"{axis}s beyond the {cut}s"
    assert result.missed == result.spared == 0


def test_chunks_of_one_place_fit_into_each_other():
    # Every third row from some on: no chunks have such edges, two of them could.
    def ragged(c, _):
        rows = np.isin(c["row"], (9, 10, 11, 17, 18, 28, 29, 30, 31, 35))
        return CAUSAL(c) & rows & (c["source"] % 5 < 3)

    result, _ = described(ragged, *TWO)
    sizes = [int(n) for n in re.findall(r"chunks? of (\d+)", result.text)]
    assert all(max(pair) % min(pair) == 0 for pair in combinations(sizes, 2))


def test_sets_that_are_the_same_everywhere_are_said_once():
    edges = SETS["pairs across edges of chunks of 16"]
    maps = [blank(59), blank(90)]
    result, _ = described(lambda c, n: edges(c, n) & (c["source"] % 16 == 15), *maps)
    assert result.text == (
        "pairs across edges of chunks of 16 and the last source of every chunk of 16"
    )
    assert not any("last source" in text for text in result.alternatives)


def test_maps_of_zeros_say_nothing_beside_others():
    wrong, right = (
        replace(x, coordinates={**x.coordinates, "span": np.full(x.exact.size, k)})
        for k, x in enumerate((blank(59), blank(37)))
    )
    wrong = planted(wrong, CAUSAL(wrong.coordinates))
    zeros = replace(right, measured=0 * right.exact, exact=0 * right.exact)
    assert describe([wrong, zeros]).text == "everywhere"
    assert describe([wrong, right]).text == "span 0"
    leak = replace(zeros, measured=1.0 * (right.coordinates["row"] >= 20))
    assert describe([leak]).text == "rows from 20 on"


def test_right_entries_that_nothing_erases_decide_nothing():
    scope = Scope(OPERATORS["delta_rule"], Contract(), "float32")
    maps = []
    for length, channels in ((59, 4), (64, 64)):
        chosen = np.arange(length) % channels
        one = blank(length, heads=1, batch=1)
        knobs = {"sources": Sources(np.zeros((1, 1), int), chosen[None, None])}
        places = {**one.coordinates, "key channel": chosen[one.coordinates["source"]]}
        problem = replace(one.problem, scope=scope, knobs=knobs)
        one = replace(one, problem=problem, coordinates=places)
        rows, sources = places["row"], places["source"]
        maps.append(planted(one, rows - sources >= channels))
    result = describe(maps)
    assert result.text == "sources 1 back or more"
    assert misfit(result, maps) == (0, 0)


def test_where_there_is_no_such_quantity_no_statement_about_it_holds():
    numbers = np.random.default_rng(0).random(59)
    one = blank(59, heads=1, batch=1)
    wrong = planted(
        one, CAUSAL(one.coordinates) & (numbers[one.coordinates["row"]] < 0.5)
    )

    def measure(x, only=None):
        rows = x.coordinates["row"]
        return {"beta": numbers[rows]} if x.problem.length == 59 else {}

    result = describe([wrong], measure)
    assert result.text == "where beta is below 0.5"
    other = planted(blank(37), CAUSAL(blank(37).coordinates))
    assert not result.contains(other).any()
    assert misfit(result, [other]) == (1, 0)


def test_statements_are_told_to_programs_with_their_numbers():
    assert interval("row", ">=", 48).data == {"of": "row", "at_least": 48}
    last = {"of": "source", "below": 2, "counted": "from the end"}
    assert interval("left source", "<", 2).data == last
    wrong = np.array([-2.0] * 9 + [1.0] * 9)
    quantity = {"beta": np.arange(18.0)}
    rated = threshold_atoms(lambda *_: quantity, quantity, wrong)
    assert max(rated, key=lambda x: x[0])[1].data == {"of": "beta", "below": 9.0}
    known = {"head": np.array([0, 1, 2, 3] * 8)}
    weight = np.where(np.isin(known["head"], (1, 3)), -1.0, 1.0)
    data = [atom.data for _, atom in interval_atoms(known, weight)]
    assert {"of": "head", "values": [1, 3]} in data


def test_places_that_differ_in_their_last_coordinate_are_two():
    one = blank(24)
    wrong = (one.coordinates["row"] == 5) & (one.coordinates["source"] == 2)
    written = np.zeros(wrong.shape, np.int64)
    written[wrong] = [3, 19, 3, 19]  # in two batch entries, of two heads
    places = {**one.coordinates, "written": written}
    measured = np.where(wrong, 2.0, one.measured)
    assert _instances([replace(one, measured=measured, coordinates=places)]) == 2
