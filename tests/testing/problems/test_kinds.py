"""Kinds of gates: each draws what its name says, and a bound is proved for all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from linkern.testing import OPERATORS
from linkern.testing.problems import draws, gates, kinds
from linkern.testing.problems.context import Scope, Shape
from linkern.testing.problems.gates import real_problem
from linkern.testing.problems.shapes import shapes
from linkern.testing.spec.contract import Contract

GATED = [op for op in OPERATORS.values() if not op.feature_map]
SHAPE = Shape(2, 2, 40, 40, 8, 6, slots=4, levels=7)


def drawn(op, kind, *, shape=SHAPE, dtype="float32", seed=0, values="normal", **fields):
    operator = OPERATORS[op]
    if operator.micro_steps:
        shape = replace(shape, keys=2 * shape.length)
    scope = Scope(operator, Contract(**fields), dtype)
    return real_problem(scope, shape, kind, values, np.random.default_rng(seed))


def norms(x):
    return np.sqrt((x.astype(float) ** 2).sum(-1))


@pytest.mark.parametrize("operator", GATED, ids=lambda op: op.name)
def test_a_bound_is_proved_for_every_kind(operator):
    for seed, kind in enumerate(kinds.RECORDS):
        if operator.largest_key_dim is None or operator.largest_key_dim >= 8:
            expected = drawn(operator.name, kind, seed=seed).solve()
            assert np.isfinite(expected.bound).all(), kind
            assert np.isfinite(expected.output).all(), kind


@pytest.mark.parametrize("kind", kinds.RECORDS)
@pytest.mark.parametrize("op", ["kda", "gsa", "rwkv4", "comba", "oja", "gdn2"])
def test_a_shorter_sequence_holds_the_first_tokens_of_a_longer_one(op, kind):
    whole = drawn(op, kind, seed=3)
    first = drawn(op, kind, seed=3, shape=replace(SHAPE, length=15, keys=15))
    for name, x in first.inputs.items():
        assert np.array_equal(whole.of_tokens(name, 0, 15), x), name


@pytest.mark.parametrize("kind", ["parallel", "aligned", "steady"])
def test_parallel_keys_share_a_direction(kind):
    cosines = set()
    for seed in range(12):
        key = drawn("kda", kind, seed=seed).inputs["key"].astype(float)
        key = key / norms(key)[..., None]
        pairs = key @ np.swapaxes(key, -1, -2)
        assert np.median(pairs) > 0.7
        cosines.add(round(float(np.median(pairs)), 3))
    assert max(cosines) > 0.99 > min(cosines)


def test_repeated_keys_are_equal_bit_by_bit():
    key = drawn("delta_rule", "repeated").inputs["key"]
    assert len(np.unique(key[0, 0], axis=0)) == 3
    assert (norms(key) == 0).any()
    # A norm without an epsilon cannot be taken of a row of zeros.
    key = drawn("delta_rule", "repeated", l2norm=0.0).inputs["key"]
    assert (norms(key) > 0).all()


def test_rates_reach_one_and_two_and_their_neighbours():
    seen = [drawn("kda", "aligned", seed=seed).inputs["beta"] for seed in range(20)]
    assert {*np.unique(seen)} == {np.float32(x) for x in draws.ENDS}
    for seed in range(20):  # where an erase comes early, a reflection would grow
        problem = drawn("comba", "floor", seed=seed)
        assert problem.inputs["beta"].max() <= 1


@pytest.mark.parametrize(("declared", "least"), [(-np.inf, -5.0), (-2.0, -2.0)])
def test_gates_lie_at_both_ends_of_what_is_declared(declared, least):
    decays = drawn("gla", "floor", decay_floor=declared).inputs["log_decay"]
    assert decays.min() == least
    assert decays.max() == 0
    assert ((decays > least) & (decays < 0.9 * least)).any()
    steady = drawn("gla", "steady", seed=1).inputs["log_decay"]
    assert (steady == steady[..., :1, :]).all()


@pytest.mark.parametrize(("op", "name"), [("rwkv4", "key"), ("abc", "slots")])
def test_logits_are_shifted_and_spread(op, name):
    shifted = drawn(op, "typical").inputs[name]
    assert abs(shifted).min() > 88
    spread = drawn(op, "strong").inputs[name]
    assert spread.min() < -700
    assert spread.max() > 700


def test_short_keys_are_made_up_for_by_their_rates():
    for op, rate, key in (
        ("kda", "beta", "key"),
        ("oja", "beta", "value"),
        ("rwkv7", "removal_rate", "removal_key"),
    ):
        inputs = drawn(op, "scaled", seed=1).inputs
        size = norms(inputs[key]) ** 2
        rates = inputs[rate] if op != "rwkv7" else inputs[rate].max(-1)
        assert size.min() < 2.0**-8
        assert rates.max() == gates.LARGEST_RATE
        assert (rates * size <= 1.001).all()


def test_values_have_outliers_gaps_an_order_and_equal_heads():
    made = {
        kind: drawn("gla", "mild", values=kind).value
        for kind in ("outlier", "gaps", "sorted", "alike")
    }
    largest = abs(made["outlier"]).max(axis=(0, 1, 2))
    assert (largest > 500).sum() == 1
    assert (made["gaps"] == 0).all(axis=-1).any()
    assert (np.diff(made["sorted"], axis=-2) >= 0).all()
    assert (made["alike"][:, 0] == made["alike"][:, :-1].swapaxes(0, 1)).all()
    assert (made["alike"][:, 0] != made["alike"][:, -1]).any()


def test_value_heads_in_groups_get_the_rates_of_their_keys():
    shape = replace(SHAPE, groups=2)
    problem = drawn("gated_delta_rule", "scaled", shape=shape, value_groups=True)
    size = np.repeat(norms(problem.inputs["key"]) ** 2, 2, axis=1)
    assert (problem.inputs["beta"] * size <= 1.001).all()


def key_dims(scope, length):
    sizes = []

    @settings(max_examples=60, database=None, derandomize=True)
    @given(shapes(scope, lengths=(length,)))
    def examine(shape):
        sizes.append(shape.key_dim)

    examine()
    return sizes


@pytest.mark.parametrize("op", ["based", "rebased", "mesa"])
def test_key_dimensions_are_as_large_as_those_of_layers(op):
    scope = Scope(OPERATORS[op], Contract(), "float32")
    assert max(key_dims(scope, 17)) >= 48
    assert max(key_dims(scope, 100)) >= 32
