"""The literal loops of the family agree where one operator is a case of another."""

import inspect
import math

import numpy as np
import pytest

from tests.operators.paper_loops import (
    CONSTANT,
    FIELDS,
    LOOPS,
    level_of,
    over_heads,
    random_inputs,
)

LENGTH, K, V, M = 13, 4, 3, 5


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def random_state(name, rng):
    """A state that tokens could have left."""
    _, state = LOOPS[name](random_inputs(name, rng, 6, K, V, slots=M), 0.7, None)
    return state


def assert_same(found, expected):
    for got, due in zip(
        (found[0], *found[1]), (expected[0], *expected[1]), strict=True
    ):
        assert got.shape == due.shape
        np.testing.assert_allclose(got, due, rtol=1e-11, atol=1e-12)


def wide(x, width):
    return np.repeat(x[:, None], width, axis=1)


def kda_to_gated(x):
    gates = x["log_decay"][:, 0]
    return {**x, "log_decay": wide(gates, K)}, {**x, "log_decay": gates}


def gated_to_delta(x):
    return {**x, "log_decay": np.zeros(LENGTH)}, {**x, "log_decay": None}


def delta_to_iplr(x):
    untied = {**x, "a": -x["key"], "b": x["beta"][:, None] * x["key"]}
    return x, {**untied, "value": x["beta"][:, None] * x["value"]}


def dplr_to_iplr(x):
    return {**x, "log_decay": np.zeros((LENGTH, K))}, x


def rwkv7_to_dplr(x):
    key, rate = x["removal_key"], x["removal_rate"]
    return x, {**x, "a": -key, "b": rate * key}


def gated_to_dplr(x):
    alpha = np.exp(x["log_decay"])[:, None]
    untied = {
        "a": -alpha * x["key"],
        "b": x["beta"][:, None] * x["key"],
        "log_decay": wide(x["log_decay"], K),
        "value": x["beta"][:, None] * x["value"],
    }
    return x, {**x, **untied}


def gdn2_to_kda(x):
    beta = x["erase_gate"][:, 0]
    gates = {"erase_gate": wide(beta, K), "write_gate": wide(beta, V)}
    return {**x, **gates}, {**x, "beta": beta}


def comba_to_gated(x):
    decayed = np.exp(x["log_decay"])[:, None] * x["key"]
    return {**x, "auxiliary_key": decayed}, x


def comba_to_dplr(x):
    untied = {
        "a": -x["auxiliary_key"],
        "b": x["beta"][:, None] * x["key"],
        "log_decay": wide(x["log_decay"], K),
        "value": x["beta"][:, None] * x["value"],
    }
    return x, {**x, **untied}


def gla_to_simple(x):
    gates = x["log_decay"][:, 0]
    return {**x, "log_decay": wide(gates, K)}, {**x, "log_decay": gates}


def mamba3_to_simple(x):
    whole = np.ones(LENGTH)
    turns = np.zeros_like(x["angle"])
    return {**x, "angle": turns, "dt": whole, "trapezoid": whole}, x


def momentum_to_gated(x):
    gone = np.full(LENGTH, -np.inf)
    return {**x, "momentum_log_decay": gone, "momentum_beta": np.ones(LENGTH)}, x


def simple_to_retention(x):
    return {**x, "log_decay": np.full(LENGTH, np.log(1 - 2.0**-7))}, x


def simple_to_lightning(x):
    return {**x, "log_decay": np.full(LENGTH, -8 / 4 * (1 - 1 / 3) * 2)}, x


def kda_to_gla(x):
    """Nothing is erased along a key of zeros, so write with another: gdn2's."""
    return {**x, "erase_gate": np.zeros((LENGTH, K)), "write_gate": None}, x


def rwkv7_to_gla(x):
    return {**x, "removal_rate": np.zeros((LENGTH, K))}, x


def abc_to_gsa(x):
    z = np.logaddexp.accumulate(x["slots"])
    before = np.concatenate((np.full((1, M), -np.inf), z[:-1]))
    return x, {**x, "log_decay": before - z, "slots": np.exp(x["slots"] - z)}


def product_to_gated(x):
    return x, x


def log_linear_to_simple(x):
    return {**x, "level_scales": np.ones((LENGTH, 5))}, x


REDUCTIONS = {
    ("kda", "gated_delta_rule"): (kda_to_gated, {}),
    ("gated_delta_rule", "delta_rule"): (gated_to_delta, {}),
    ("delta_rule", "iplr"): (delta_to_iplr, {}),
    ("dplr", "iplr"): (dplr_to_iplr, {}),
    ("rwkv7", "dplr"): (rwkv7_to_dplr, {}),
    ("gated_delta_rule", "dplr"): (gated_to_dplr, {}),
    ("gdn2", "kda"): (gdn2_to_kda, {}),
    ("gdn2", "gla"): (kda_to_gla, {}),
    ("rwkv7", "gla"): (rwkv7_to_gla, {}),
    ("comba", "gated_delta_rule"): (comba_to_gated, {}),
    ("comba", "dplr"): (comba_to_dplr, {}),
    ("gla", "simple_gla"): (gla_to_simple, {}),
    ("mamba3", "simple_gla"): (mamba3_to_simple, {}),
    ("momentum_delta_rule", "gated_delta_rule"): (momentum_to_gated, {}),
    ("simple_gla", "retention"): (simple_to_retention, {"head": 2}),
    ("simple_gla", "lightning_attention"): (
        simple_to_lightning,
        {"head": 2, "heads": 4, "layer": 1, "layers": 3},
    ),
}


@pytest.mark.parametrize("names", REDUCTIONS, ids="->".join)
def test_an_operator_is_a_case_of_another(names, rng):
    reduce, keywords = REDUCTIONS[names]
    x = random_inputs(names[0], rng, LENGTH, K, V, slots=M)
    first, second = reduce(x)
    state = (rng.normal(size=(K, V)),)
    beside = (np.zeros(K // 2 + K + V),) if names[0] == "mamba3" else ()
    first_state = state + beside
    if names[0] == "momentum_delta_rule":
        first_state = (np.concatenate([*state, rng.normal(size=(K, V))]),)
    output, (memory, *_) = LOOPS[names[0]](first, 0.7, first_state)
    memory = memory[: len(state[0])]
    results = LOOPS[names[1]](second, 0.7, state, **keywords)
    assert_same(results, (output, (memory,)))


def test_comba_can_read_what_has_decayed(rng):
    x = random_inputs("comba", rng, LENGTH, K, V)
    tied = {**x, "auxiliary_key": x["key"]}
    decayed, state = LOOPS["comba"](tied, 0.7, undecayed=False)
    assert_same((decayed, state), LOOPS["gated_delta_rule"](x, 0.7))
    assert abs(decayed - LOOPS["comba"](tied, 0.7)[0]).max() > 0.01


def test_one_micro_step_is_the_gated_delta_rule(rng):
    x = random_inputs("gated_delta_product", rng, LENGTH, K, V, steps=1)
    state = (rng.normal(size=(K, V)),)
    expected = LOOPS["gated_delta_rule"](x, 0.7, state)
    assert_same(LOOPS["gated_delta_product"](x, 0.7, state), expected)


def test_micro_steps_are_tokens_that_nobody_reads(rng):
    x = random_inputs("gated_delta_product", rng, LENGTH, K, V, steps=3)
    gates = np.zeros((LENGTH, 3))
    gates[:, 0] = x["log_decay"]
    spread = {
        **x,
        "query": np.repeat(x["query"], 3, axis=0),
        "log_decay": gates.ravel(),
    }
    output, state = LOOPS["gated_delta_rule"](spread, 0.7)
    assert_same(LOOPS["gated_delta_product"](x, 0.7), (output[2::3], state))


def test_hgrn_is_gated_linear_attention_of_one_key_channel_per_value(rng):
    x = random_inputs("hgrn", rng, LENGTH, K, V)
    ones = np.ones((LENGTH, 1))
    output, (memory,) = LOOPS["hgrn"](x)
    for j in range(V):
        gates, value = x["log_decay"][:, [j]], x["value"][:, [j]]
        lane = {"query": ones, "key": ones, "value": value, "log_decay": gates}
        assert_same((output[:, [j]], (memory[:, [j]],)), LOOPS["gla"](lane, 1.0))


def test_oja_is_a_gated_rule_on_the_transposed_state(rng):
    x = random_inputs("oja", rng, LENGTH, K, V)
    state = rng.normal(size=(K, V))
    for t in range(1, LENGTH + 1):
        swapped = {"query": x["value"], "key": x["value"], "value": x["key"]}
        swapped = {name: y[:t] for name, y in {**x, **swapped}.items()}
        _, (memory,) = LOOPS["kda"](swapped, 1.0, (state.T,))
        due = (0.7 * x["query"][t - 1] @ memory.T)[None], (memory.T,)
        part = {name: y[:t] for name, y in x.items()}
        output, found = LOOPS["oja"](part, 0.7, (state,))
        assert_same((output[-1:], found), due)


def test_rwkv4_is_a_weighted_mean(rng):
    x = random_inputs("rwkv4", rng, LENGTH, K, V)
    distance = np.arange(LENGTH)[:, None] - np.arange(LENGTH) - 1
    for j in range(V):
        log_weight = distance * x["log_decay"][j] + x["key"][:, j]
        log_weight = np.where(distance >= 0, log_weight, -np.inf)
        np.fill_diagonal(log_weight, x["bonus"][j] + x["key"][:, j])
        weight = np.exp(log_weight)
        expected = weight @ x["value"][:, j] / weight.sum(axis=1)
        found = LOOPS["rwkv4"](x)[0][:, j]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_rwkv6_reads_before_it_writes(rng):
    x = random_inputs("rwkv6", rng, LENGTH, K, V)
    later = {name: y[1:] for name, y in x.items() if name != "bonus"}
    output, state = LOOPS["rwkv6"](x, 0.7)
    # What a query finds: gated linear attention on the token before, undecayed.
    before = {**later, "key": x["key"][:-1], "value": x["value"][:-1]}
    before["log_decay"] = np.concatenate((np.zeros((1, K)), x["log_decay"][1:-1]))
    found, _ = LOOPS["gla"](before, 0.7)
    own = 0.7 * (x["query"] * x["bonus"] * x["key"]).sum(axis=1)
    np.testing.assert_allclose(
        output, own[:, None] * x["value"] + np.concatenate((np.zeros((1, V)), found))
    )
    assert state[0].shape == (K, V)


def test_abc_is_gated_slot_attention(rng):
    x = random_inputs("abc", rng, LENGTH, K, V, slots=M)
    output, (memory, normalizer) = LOOPS["abc"](x, 0.7)
    assert_same((output, (memory,)), LOOPS["gsa"](abc_to_gsa(x)[1], 0.7))
    np.testing.assert_allclose(np.exp(normalizer), np.exp(x["slots"]).sum(axis=0))


def test_slot_attention_of_one_slot_ignores_the_query(rng):
    x = random_inputs("gsa", rng, LENGTH, K, V, slots=1)
    lane = {"query": np.ones((LENGTH, 1)), "key": x["slots"], "value": x["value"]}
    expected = LOOPS["gla"]({**lane, "log_decay": x["log_decay"]}, 1.0)[0]
    np.testing.assert_allclose(LOOPS["gsa"](x, 0.7)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["based", "rebased"])
def test_a_feature_map_is_linear_attention_with_a_column_of_ones(name, rng):
    x = random_inputs(name, rng, LENGTH, K, V)
    state = random_state(name, rng)
    output, (memory, normalizer) = LOOPS[name](x, 0.7, state)

    def features(y):
        pairs = np.einsum("ti,tj->tij", y, y).reshape(len(y), -1)
        if name == "rebased":
            return pairs
        return np.concatenate((np.ones((len(y), 1)), y, pairs / np.sqrt(2)), axis=1)

    value = np.concatenate((x["value"], np.ones((LENGTH, 1))), axis=1)
    wide = {"query": features(0.7 * x["query"]), "key": features(x["key"])}
    wide["value"] = value
    carried = (np.concatenate((state[0], state[1][:, None]), axis=1),)
    found, (last,) = LOOPS["simple_gla"](wide, 1.0, carried)
    quotient = found[:, :-1] / found[:, -1:]
    assert_same((quotient, (last[:, :-1], last[:, -1])), (output, (memory, normalizer)))


@pytest.mark.parametrize("degree", [2, 4])
def test_power_retention_is_gated_linear_attention_of_powers(degree, rng):
    x = random_inputs("power_retention", rng, LENGTH, K, V)
    x |= {name: abs(x[name]) for name in ("query", "key")}  # no score near zero
    output, (memory, normalizer) = LOOPS["power_retention"](x, 0.7, degree=degree)
    if degree == 2:
        open_gates = {**x, "log_decay": None}
        expected = LOOPS["rebased"](open_gates, 0.7)[0]
        found = LOOPS["power_retention"](open_gates, 0.7)[0]
        np.testing.assert_allclose(found, expected, rtol=1e-11)

    def powers(y):
        features = y
        for _ in range(degree - 1):
            features = np.einsum("tf,ti->tfi", features, y).reshape(len(y), -1)
        return features

    wide = {"query": powers(0.7 * x["query"]), "key": powers(x["key"])}
    wide["value"] = np.concatenate((x["value"], np.ones((LENGTH, 1))), axis=1)
    wide["log_decay"] = x["log_decay"]
    found, _ = LOOPS["simple_gla"](wide, 1.0)
    np.testing.assert_allclose(found[:, :-1] / found[:, -1:], output, rtol=1e-10)
    assert len(memory) == len(normalizer) == math.comb(K + degree - 1, degree)


def test_selective_scan_is_gated_linear_attention_of_each_channel(rng):
    x = random_inputs("selective_scan", rng, LENGTH, K, V)
    state = (rng.normal(size=(K, V)),)
    output, (memory,) = LOOPS["selective_scan"](x, 0.7, state)
    for j in range(V):
        step = x["dt"][:, [j]]
        lane = {
            "query": x["query"],
            "key": x["key"],
            "value": step * x["value"][:, [j]],
        }
        lane["log_decay"] = step * x["log_decay_rate"][j]
        found, (last,) = LOOPS["gla"](lane, 0.7, (state[0][:, [j]],))
        direct = (x["skip"][j] * x["value"])[:, [j]]
        assert_same((found + direct, (last,)), (output[:, [j]], (memory[:, [j]],)))


def test_mesa_with_a_heavy_ridge_is_gated_linear_attention(rng):
    x = random_inputs("mesa", rng, LENGTH, K, V)
    heavy = {**x, "ridge": np.full(K, 1e9)}
    weighted = {**x, "value": x["beta"][:, None] * x["value"]}
    expected, (state,) = LOOPS["simple_gla"](weighted, 0.7)
    output, (memory,) = LOOPS["mesa"](heavy, 0.7)
    np.testing.assert_allclose(1e9 * output, expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(memory[:, K:], state, rtol=1e-12)


def test_mesa_is_a_weighted_ridge_regression(rng):
    x = random_inputs("mesa", rng, LENGTH, K, V)
    output, _ = LOOPS["mesa"](x, 0.7)
    for t in range(LENGTH):
        after = [x["log_decay"][j + 1 : t + 1].sum() for j in range(t + 1)]
        root = np.sqrt(np.exp(after) * x["beta"][: t + 1])[:, None]
        rows = np.concatenate((root * x["key"][: t + 1], np.diag(x["ridge"] ** 0.5)))
        due = np.concatenate((root * x["value"][: t + 1], np.zeros((K, V))))
        weights = np.linalg.lstsq(rows, due)[0]
        np.testing.assert_allclose(output[t], 0.7 * x["query"][t] @ weights, atol=1e-12)


@pytest.mark.parametrize("position", [0, 3, 8])
def test_log_linear_attention_with_equal_levels_is_simple(position, rng):
    x = random_inputs("log_linear_attention", rng, LENGTH, K, V, position=position)
    equal = {**x, "level_scales": np.ones_like(x["level_scales"])}
    output, (buckets,) = LOOPS["log_linear_attention"](equal, 0.7, position=position)
    assert_same((output, (buckets.sum(axis=0),)), LOOPS["simple_gla"](equal, 0.7))


def test_levels_are_those_of_a_fenwick_tree():
    found = [[level_of(t, j) for j in range(t + 1)] for t in range(8)]
    assert found[3] == [2, 2, 1, 0]
    assert found[5] == [3, 3, 3, 3, 1, 0]
    assert found[7] == [3, 3, 3, 3, 2, 2, 1, 0]


@pytest.mark.parametrize("cut", [0, 1, 5, 8, LENGTH])
@pytest.mark.parametrize("name", LOOPS)
def test_a_state_continues(name, cut, rng):
    x = random_inputs(name, rng, LENGTH, K, V, slots=M)
    whole = LOOPS[name](x, 0.7)
    rows = len(x.get("key", x["value"])) // LENGTH
    constant = CONSTANT | ({"log_decay"} if name == "rwkv4" else set())

    def part(first, last):
        tokens = {
            field: slice(first * rows, last * rows)
            if rows > 1 and field in ("key", "value", "beta")
            else slice(first, last)
            for field in x
        }
        return {f: y if f in constant else y[tokens[f]] for f, y in x.items()}

    where = {"position": cut} if name == "log_linear_attention" else {}
    early, state = LOOPS[name](part(0, cut), 0.7)
    copies = tuple(y.copy() for y in state)
    late, state = LOOPS[name](part(cut, LENGTH), 0.7, state, **where)
    assert_same((np.concatenate((early, late)), state), whole)
    for kept, now in zip(copies, LOOPS[name](part(0, cut), 0.7)[1], strict=True):
        np.testing.assert_array_equal(kept, now)


NEUTRAL = {
    "log_decay": 0.0, "beta": 1.0, "erase_gate": 1.0, "write_gate": 1.0, "ridge": 1.0,
    "level_scales": 1.0, "removal_rate": 1.0, "dt": 1.0, "log_decay_rate": 0.0,
    "skip": 0.0, "input_gate": 0.0, "trapezoid": 1.0, "preconditioner_log_decay": 0.0,
    "momentum_log_decay": 0.0, "momentum_beta": 1.0, "preconditioner_beta": 1.0,
    "center": -0.2, "log_range": math.log(1.5),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_an_input_that_is_absent_is_neutral(name, rng):
    x = random_inputs(name, rng, LENGTH, K, V, slots=M)
    neutral = NEUTRAL | {"bonus": 0.0 if name == "rwkv4" else 1.0}
    for field in set(x) & set(neutral):
        filled = {**x, field: np.full_like(x[field], neutral[field])}
        assert_same(LOOPS[name]({**x, field: None}, 0.7), LOOPS[name](filled, 0.7))


def test_one_rank_is_mamba3(rng):
    x = random_inputs("mamba3_mimo", rng, LENGTH, K, V, steps=1)
    ones = {name: np.ones((1, V)) for name in ("value_mix", "output_mix")}
    state = rng.normal(size=(K, V)), rng.uniform(0, 6, K // 2 + K + V)
    expected = LOOPS["mamba3"](x, 0.7, state)
    assert_same(LOOPS["mamba3_mimo"]({**x, **ones}, 0.7, state), expected)


def test_ranks_of_one_mix_are_a_sum_of_keys_and_of_queries(rng):
    x = random_inputs("mamba3_mimo", rng, LENGTH, K, V, steps=3)
    ones = {name: np.ones((3, V)) for name in ("value_mix", "output_mix")}
    sums = {n: x[n].reshape(LENGTH, 3, K).sum(axis=1) for n in ("query", "key")}
    output, (memory, _) = LOOPS["mamba3_mimo"]({**x, **ones}, 0.7)
    single, (other, _) = LOOPS["mamba3"]({**x, **sums}, 0.7)
    assert_same((output, (memory,)), (single, (other,)))


def test_without_angles_none_are_carried(rng):
    x = random_inputs("mamba3", rng, LENGTH, K, V)
    still = {**x, "angle": np.zeros_like(x["angle"])}
    output, (memory, carried) = LOOPS["mamba3"](still, 0.7)
    found, (last, rest) = LOOPS["mamba3"]({**x, "angle": None}, 0.7)
    assert_same((found, (last, rest)), (output, (memory, carried[K // 2 :])))


@pytest.mark.parametrize("name", LOOPS)
def test_heads_are_computed_one_by_one(name, rng):
    heads = [[random_inputs(name, rng, 5, K, V) for _ in range(4)] for _ in range(2)]
    stacked = {
        field: np.stack([np.stack([x[field] for x in row]) for row in heads])
        for field in FIELDS[name]
    }
    for field in {"query", "key"} & set(stacked) if name != "rwkv4" else ():
        stacked[field] = stacked[field][:, ::2]
    output, state = over_heads(name, stacked, 0.7)
    x = heads[1][3]
    if name != "rwkv4":
        x = x | {f: heads[1][2][f] for f in ("query", "key") if f in x}
    where = {"head": 3} if name in ("retention", "lightning_attention") else {}
    where |= {"heads": 4} if name == "lightning_attention" else {}
    assert_same((output[1, 3], [y[1, 3] for y in state]), LOOPS[name](x, 0.7, **where))


def test_every_loop_is_written_out():
    """No loop calls another, so a mistake in one stays alone."""
    for name, loop in LOOPS.items():
        names = set(loop.__code__.co_names)
        assert not names & (set(LOOPS) - {name}), inspect.getsource(loop)
