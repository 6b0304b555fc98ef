"""Each view shows a fault once, and leaves out what follows from it."""

from dataclasses import replace

import numpy as np

from linkern.testing.diagnosis.views import beside_rows, lost, row_sums, steps
from tests.testing.diagnosis.of_oracle import dense, map_of, product

TOKEN = 7


def wide(problem, name):
    return problem.inputs[name].astype(np.float64)


def without(x, token=TOKEN):
    """Return an input with zeros at one token."""
    x = x.copy()
    x[:, :, token] = 0
    return x


def places(one, name):
    """Return the places of the wrong entries of a map."""
    return {*one.coordinates[name][one.wrong].tolist()}


def test_a_map_without_a_fault_is_right_in_all_views():
    for op in ("linear_attention", "gla", "delta_rule"):
        one = map_of(product(op))
        for view in (beside_rows, row_sums, lost, steps):
            seen = view(one)
            assert seen is None or not seen.wrong.any()


def test_of_a_lost_token_its_weights_are_shown_and_not_the_missing_erase():
    problem = product("delta_rule")
    one = map_of(problem, beta=without(wide(problem, "beta")))
    assert len(places(one, "source")) > 1
    seen = lost(one)
    assert places(seen, "source") == {TOKEN}
    assert (seen.measured[seen.wrong] == 0).all()
    later = one.coordinates["row"] >= TOKEN
    clear = (one.coordinates["source"] == TOKEN) & later & (abs(one.exact) > one.bound)
    assert seen.wrong.sum() == clear.sum()
    # Those that are too large are right here: they tell which places are not lost.
    assert seen.exact.shape == one.exact.shape


def test_tokens_are_not_lost_where_others_are_wrong_in_another_way():
    problem = product("delta_rule")
    smaller = map_of(problem, beta=without(wide(problem, "beta")))
    row = (smaller.coordinates["row"] == TOKEN + 1) & (smaller.exact != 0)
    halved = replace(
        smaller, measured=np.where(row, smaller.exact / 2, smaller.measured)
    )
    assert lost(halved) is None
    leaking = (smaller.coordinates["row"] == 3) & (smaller.coordinates["source"] == 5)
    leaked = replace(smaller, measured=np.where(leaking, 1.0, smaller.measured))
    assert lost(leaked) is None
    doubled = replace(smaller, measured=np.where(row, 2 * smaller.exact, smaller.exact))
    assert lost(doubled) is None


def test_tokens_are_lost_in_products_alone():
    problem = product("delta_rule")
    one = map_of(problem, beta=without(wide(problem, "beta")))
    keys_in_all_channels = replace(problem.knobs["sources"], channels=None)
    assert lost(one) is not None
    other = replace(one, problem=problem.told(sources=keys_in_all_channels))
    assert lost(other) is None


def test_a_decay_that_is_lost_is_wrong_in_one_step():
    problem = product("gla")
    meant = problem.oracle_call.meant["log_decay"]
    one = map_of(problem, log_decay=without(meant))
    assert places(one, "row") == {*range(TOKEN, 40)}
    assert places(steps(one), "row") == {TOKEN}


def test_steps_do_not_show_what_is_wrong_in_the_row_of_the_source():
    problem = product("gla")
    assert steps(map_of(problem, lambda o: 2 * o)) is None
    assert steps(map_of(dense("gla"), lambda o: 2 * o)) is None


def halved_row(output):
    output[:, :, TOKEN] /= 2
    return output


def test_a_wrong_denominator_is_one_entry_of_its_row():
    one = map_of(dense("linear_attention"), halved_row)
    sums = row_sums(one)
    assert places(sums, "row") == {TOKEN}
    np.testing.assert_allclose(sums.measured[sums.wrong], 0.5, rtol=1e-6)
    assert not beside_rows(one).wrong.any()


def test_a_pair_is_wrong_beside_the_others_of_its_row():
    problem = dense("linear_attention")
    one = map_of(problem, halved_row)
    pair = (one.coordinates["row"] == TOKEN) & (one.coordinates["source"] == 2)
    one = replace(one, measured=np.where(pair, 0.0, one.measured))
    seen = beside_rows(one)
    assert (places(seen, "row"), places(seen, "source")) == ({TOKEN}, {2})
    assert places(row_sums(one), "row") == {TOKEN}


def test_rows_of_two_weights_have_no_sum_that_is_told_from_them():
    one = map_of(dense("linear_attention"), lambda o: o / 2)
    assert row_sums(one).coordinates["row"].min() == 2


def test_of_few_sources_of_a_row_nearly_all_share_its_factor():
    one = map_of(dense("linear_attention"), halved_row)
    row, source = (one.coordinates[name] for name in ("row", "source"))
    assert places(row_sums(one), "row") == {TOKEN}
    few = one.part((source < 4) & (row >= 4))
    assert places(row_sums(few), "row") == {TOKEN}
    # Of four, two at edges of chunks: what they share is not what the row shares.
    edges = np.isin(few.coordinates["source"], (1, 3))
    doubled = np.where(edges, 2 * few.measured, few.measured)
    assert row_sums(replace(few, measured=doubled)) is None


def test_the_factor_of_a_row_is_in_no_channel():
    sums = row_sums(map_of(dense("linear_attention"), halved_row))
    assert not any("channel" in name for name in sums.coordinates)
