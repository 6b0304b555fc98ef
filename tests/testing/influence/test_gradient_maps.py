"""Maps of gradients: exact for correct kernels, sharp for faulty ones."""

from collections.abc import Sequence

import numpy as np
import pytest

from linkern.testing.checks.registry import no_gradients
from linkern.testing.diagnosis.diagnose import FRESH, SEED
from linkern.testing.diagnosis.factors.explain import explain
from linkern.testing.influence import gradient_maps
from linkern.testing.influence.gradient_maps import GRADIENT_STAGES
from linkern.testing.influence.maps import INITIAL_STATE, InfluenceMap
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig

pytestmark = pytest.mark.usefixtures("exact_answers")

STAGES = {stage.name: stage for stage in GRADIENT_STAGES}


def asked(name: str, dtype: str = "float32") -> tuple[InProcess, Scope]:
    kernel = MUTANTS.get(name) or CORRECT[name]
    contract = Contract(**kernel.contract)
    config = TargetConfig("test", op=kernel.op, scale=contract.scale)
    target = InProcess(config, kernel.kernel)
    operator = OPERATORS[kernel.op]
    interface, styles = target.interface, tuple(STYLES)
    return target, Scope(operator, contract, dtype, interface, styles=styles)


def measured(name: str, stage: str, dtype: str = "float32") -> list[InfluenceMap]:
    target, scope = asked(name, dtype)
    return STAGES[stage].measure(target, scope, np.random.default_rng(0))


def wrong(maps: Sequence[InfluenceMap]) -> set[str]:
    return {one.tensor for one in maps if one.wrong.any()}


def entries(maps: Sequence[InfluenceMap], tensor: str) -> dict[str, np.ndarray]:
    """Return the columns of all entries of a tensor."""
    chosen = [one for one in maps if one.tensor == tensor]
    names = set.intersection(*({*one.coordinates} for one in chosen))
    table = {k: np.concatenate([x.coordinates[k] for x in chosen]) for k in names}
    for name in ("measured", "exact", "wrong", "silent"):
        table[name] = np.concatenate([getattr(one, name) for one in chosen])
    return table


DIFFERENTIABLE = [n for n in CORRECT if no_gradients(asked(n)[1]) is None]


# CI measures the same maps with other inputs: no correct kernel has a diagnosis.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_no_entry_of_a_correct_kernel_is_wrong(name: str, dtype: str) -> None:
    target, scope = asked(name, dtype)
    for stage in GRADIENT_STAGES:
        if not stage.skipped(scope):
            assert not wrong(stage.measure(target, scope, np.random.default_rng(1)))


@pytest.mark.parametrize("name", ["simple_gla by chunks", "chunk_64_packed"])
def test_no_entry_of_some_correct_kernels_is_wrong(name: str) -> None:
    for stage in GRADIENT_STAGES:
        maps = measured(name, stage.name)
        assert maps
        assert not wrong(maps)


def test_a_kernel_without_gradients_has_a_reason() -> None:
    _, scope = asked("chunk_16")
    assert "vjp" in GRADIENT_STAGES[0].skipped(scope)


def test_the_gradient_of_values_is_the_map_of_weights() -> None:
    maps = measured("value_gradient_without_diagonal", "gradients")
    assert wrong(maps) == {"gradient of value"}
    table = entries(maps, "gradient of value")
    diagonal = table["row"] == table["source"]
    assert np.array_equal(table["wrong"], diagonal)
    assert (table["measured"][diagonal] == 0).all()


def test_a_lost_row_of_a_chunk_is_wrong_across_edges_alone() -> None:
    maps = measured("query_lost_at_edge_backwards", "gradients")
    table = entries(maps, "gradient of value")
    across = table["row"] // 16 > table["source"] // 16
    lost = across & (table["row"] % 16 == 15)
    assert np.array_equal(table["wrong"], lost & (table["exact"] != 0))


def test_what_comes_back_through_the_state_has_maps_of_its_own() -> None:
    name = "gradient_of_initial_state_missing"
    assert not wrong(measured(name, "gradients"))
    maps = measured(name, "gradients of spans")
    through = {one.tensor for one in maps if one.tensor.endswith(" across cuts")}
    assert wrong(maps) == through >= {"gradient of value across cuts"}
    for name in through:
        table = entries(maps, name)
        assert np.array_equal(table["wrong"], ~table["silent"])
        assert not table["measured"].any()


def test_tokens_of_packed_sequences_are_counted_from_their_first() -> None:
    maps = measured("packed_backward_on_one_grid", "gradients of packed sequences")
    broken = {"gradient of query", "gradient of key", "gradient of value"}
    assert broken <= wrong(maps)
    table = entries(maps, "gradient of value")
    assert (table["sequence"][table["wrong"]] > 0).all()
    assert table["source"].min() == 0
    queries = entries(maps, "gradient of query")
    assert INITIAL_STATE in queries["source"]


def test_a_gradient_that_crosses_an_offset_is_told_apart() -> None:
    maps = measured("packed_gradient_crosses_the_edge", "gradients of packed sequences")
    assert "gradient of value across sequences" in wrong(maps)
    across = [x for x in maps if x.tensor == "gradient of value across sequences"]
    for one in across:
        last = one.problem.knobs["sequences"] - 1
        assert not one.exact.any()
        assert np.array_equal(one.wrong, one.coordinates["sequence"] != last)
        leaks = one.part(one.wrong)
        joined = leaks.others["that of joined sequences"]
        np.testing.assert_allclose(leaks.measured, joined, rtol=1e-4, atol=1e-6)


def test_gates_have_the_gradient_of_one_pair() -> None:
    maps = measured("gla by tokens", "gradients")
    table = entries(maps, "gradient of log_decay")
    between = (table["source"] > table["written"]) & (table["source"] <= table["row"])
    reached = table["exact"] != 0
    assert reached.any()
    assert not (reached & ~between).any()


def test_a_gradient_ahead_of_the_one_row_is_wrong() -> None:
    maps = measured("gradient_of_gate_by_subtraction", "gradients of all sources")
    table = entries(maps, "gradient of log_decay")
    assert table["wrong"].any()
    assert (table["source"][table["wrong"]] > table["row"][table["wrong"]]).all()


@pytest.mark.parametrize("name", ["query", "key"])
def test_a_denominator_without_a_gradient_is_told_apart(name: str) -> None:
    maps = measured(f"{name}_gradient_without_normalizer", "gradients")
    tensor = f"gradient of {name} through the denominator"
    assert tensor in wrong(maps)
    table = entries(maps, tensor)
    # Of channels that a key does not have, features are not quite zero.
    assert abs(table["measured"]).max() < 1e-12 * np.median(abs(table["exact"]))
    assert not any(
        tensor in one.tensor for one in measured("gla by tokens", "gradients")
    )


def test_rows_after_the_last_packed_sequence_are_told_apart() -> None:
    stage = "gradients of packed sequences"
    maps = measured("packed_gradient_slack_not_written", stage)
    wrong_ones = wrong(maps)
    assert wrong_ones
    assert all(name.endswith("after the last sequence") for name in wrong_ones)


def test_gradients_without_the_slope_of_a_feature_map_are_divided_by_it() -> None:
    maps = measured("gradient_ignores_feature_map", "gradients")
    queries = [x for x in maps if x.tensor == "gradient of query" and x.wrong.any()]
    factor = explain(queries, [x.wrong for x in queries], None)
    assert factor is not None
    assert factor.text == "1 / slope of the feature map"


def test_the_longest_scene_of_fresh_inputs_leaves_another_tail() -> None:
    scope = Scope(OPERATORS["linear_attention"], Contract(), "float32")
    longest = []
    for seed in (SEED, FRESH):
        drawn = int(np.random.default_rng(seed).integers(2**31))
        scenes = gradient_maps._whole(scope, np.random.default_rng(drawn))
        longest.append(max(scene.length for scene in scenes))
    first, fresh = longest
    assert first // 32 * 32 == 128 < first
    assert fresh // 64 * 64 == 192 < fresh


@pytest.mark.parametrize("op", ["based", "simple_gla"])
def test_scenes_have_no_more_channels_than_exact_gradients_can_have(op):
    name = next(name for name, kernel in CORRECT.items() if kernel.op == op)
    _, scope = asked(name)
    scenes = [*gradient_maps._dense(scope, np.random.default_rng(0))]
    numbers = [x.length * x.shape.numbers_per_token(scope.operator)[1] for x in scenes]
    assert max(numbers) <= gradient_maps.MOST_NUMBERS
    assert max(x.shape.key_dim for x in scenes) == {"based": 33, "simple_gla": 136}[op]
    assert max(x.shape.value_dim for x in scenes) == 140
