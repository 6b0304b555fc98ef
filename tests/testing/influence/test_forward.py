"""Maps of outputs, states, spans and packed sequences."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

import linkern
from linkern.testing.influence.forward import STAGES
from linkern.testing.influence.long_maps import LONG
from linkern.testing.influence.maps import INITIAL_STATE, ORIGIN
from linkern.testing.influence.parts import packings
from linkern.testing.influence.scenes import dense_scene
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.problems.expected import OracleCall
from linkern.testing.problems.packing import Packing, exact_outputs, packed_sequences
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.marks import every

pytestmark = pytest.mark.usefixtures("exact_answers")

ALL = {stage.name: stage for stage in (*STAGES, *LONG)}


def asked(kernel, op="linear_attention", dtype="float32", **declared):
    contract = Contract(**declared)
    config = TargetConfig(
        "test",
        op=op,
        scale=contract.scale,
        layout=contract.layout,
        interface=contract.interface,
        state_layout=contract.state_layout,
    )
    target = InProcess(config, kernel)
    interface, styles = target.interface, tuple(STYLES)
    return target, Scope(OPERATORS[op], contract, dtype, interface, styles=styles)


def known(name, dtype="float32"):
    entry = MUTANTS.get(name) or CORRECT[name]
    return asked(entry.kernel, entry.op, dtype, **entry.contract)


def measured(target, scope, stage, seed=0):
    return ALL[stage].measure(target, scope, np.random.default_rng(seed))


def wrong_places(maps):
    """Return the coordinates of the wrong entries of maps that have any."""
    for one in maps:
        if one.wrong.any():
            yield one, {k: x[one.wrong] for k, x in one.coordinates.items()}


# CI measures the same maps with other inputs: no correct kernel has a diagnosis.
@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", CORRECT)
def test_no_entry_of_a_correct_kernel_is_wrong(name, dtype):
    target, scope = known(name, dtype)
    for stage in ALL.values():
        if not stage.skipped(scope):
            maps = stage.measure(target, scope, np.random.default_rng(3))
            assert not any(one.wrong.any() for one in maps), stage.name


@pytest.mark.parametrize("name", ["chunk_64_packed", "gla by chunks"])
def test_no_entry_of_some_correct_kernels_is_wrong(name):
    target, scope = known(name)
    for stage in STAGES:
        if not stage.skipped(scope):
            maps = measured(target, scope, stage.name)
            assert not any(one.wrong.any() for one in maps)


# The stage in which a defect shows.
SEEN = {
    "diagonal_excluded": "outputs",
    "key_lost_from_numerator": "outputs",
    "missing_gate_is_half": "omitted",
    "scale_of_one_by_default_for_one_token": "omitted",
    "state_lacks_tail": "state",
    "initial_state_ignored": "spans",
    "initial_state_transposed": "spans",
    "packed_reset_on_chunk_grid": "packed",
    "packed_slack_not_written": "packed",
    "packed_token_of_one_not_stored": "packed",
}


@pytest.mark.parametrize("name", every(4, SEEN))
def test_a_defect_shows_in_its_stage_and_in_none_before(name):
    target, scope = known(name)
    for stage in STAGES:
        if not stage.skipped(scope):
            maps = measured(target, scope, stage.name)
            shown = any(one.wrong.any() for one in maps)
            assert shown == (stage.name == SEEN[name]), stage.name
            if shown:
                return


@pytest.mark.parametrize("stage", ["outputs", "state", "packed"])
def test_results_of_scenes_stay_known_and_recordings_do_not(stage, monkeypatch):
    kept = []

    def recorded(call, *args, **options):
        recording = plain(call, *args, **options)
        kept.append(weakref.ref(recording.tape))
        return recording

    plain = OracleCall.recorded
    monkeypatch.setattr(OracleCall, "recorded", recorded)
    target, scope = known("gla by chunks")
    measured(target, scope, stage, seed=5)
    gc.collect()
    assert kept
    assert not any(tape() for tape in kept)
    kept.clear()
    measured(target, scope, stage, seed=5)
    assert not kept


def test_places_do_not_depend_on_one_another():
    target, scope = known("diagonal_excluded")
    for _, places in wrong_places(measured(target, scope, "outputs")[:1]):
        assert (places["row"] >= places["source"]).all()
    one = measured(target, scope, "outputs")[0]
    source, channel = one.coordinates["source"], one.coordinates["value channel"]
    assert abs(np.corrcoef(source, channel)[0, 1]) < 0.3
    assert {"key channel", "batch", "head"} <= {*one.coordinates}


def test_rows_of_a_span_start_at_the_cut():
    target, scope = known("initial_state_ignored")
    maps = measured(target, scope, "spans")
    for one, places in wrong_places(maps[:2]):
        assert one.coordinates["row"].min() == 0
        assert one.coordinates["row"].max() == one.problem.length - 1
        through = one.coordinates["source"] == INITIAL_STATE
        assert through.any()
        assert places["source"].min() == INITIAL_STATE


def test_what_comes_from_another_sequence_is_a_map_of_its_own():
    target, scope = known("packed_initial_state_of_the_first")
    pairs = list(wrong_places(measured(target, scope, "packed")))
    across = "output across sequences through the initial state"
    assert {"output", across} <= {one.tensor for one, _ in pairs}
    for one, places in pairs:
        assert (places["sequence"] > 0).all()
        if one.tensor == "output":
            assert (places["source"] == INITIAL_STATE).all()


def test_a_sequence_that_is_not_reset_has_its_start():
    maps = measured(*known("packed_reset_on_chunk_grid"), "packed")
    across = [one for one in maps if one.tensor == "output across sequences"]
    wrong, start = (
        np.concatenate(x)
        for x in ([x.wrong for x in across], [x.coordinates["start"] for x in across])
    )
    assert np.array_equal(wrong, start % 16 > 0)
    assert maps[0] is across[0]


@pytest.mark.filterwarnings("error")
def test_a_packed_sequence_of_no_token_has_no_micro_steps():
    def kernel(query, key, value, log_decay, beta, initial_state=None, cu_seqlens=None):
        states = {"initial_state": initial_state, "cu_seqlens": cu_seqlens}
        inputs = query, key, value, log_decay, beta
        return linkern.gated_delta_product(*inputs, **states)

    maps = measured(*asked(kernel, "gated_delta_product"), "packed")
    assert maps
    assert not any(one.wrong.any() for one in maps)


@pytest.mark.parametrize(
    "name",
    [
        "packed_kept_past_an_empty_one",
        "packed_reset_on_chunk_grid",
        "packed_final_states_in_reverse",
        "packed_starts_from_the_one_before",
    ],
)
def test_what_leaks_is_what_joined_sequences_have(name):
    wrong = [one for one in measured(*known(name), "packed") if one.wrong.any()]
    assert wrong[0].tensor.startswith("output across sequences")
    for one in (x.part(x.wrong) for x in wrong if x.tensor == wrong[0].tensor):
        assert not one.exact.any()
        joined = one.others["that of joined sequences"]
        np.testing.assert_allclose(one.measured, joined, rtol=1e-4, atol=1e-6)


def test_what_leaks_is_kept_for_each_sequence_that_it_comes_from():
    maps = measured(*known("packed_starts_from_the_one_before"), "packed")
    across = [x for x in maps if x.tensor == "output across sequences"]
    for one in (x for x in across if x.wrong.any()):
        at = {n: x[one.wrong] for n, x in one.coordinates.items()}
        (row,) = np.unique(at["sequence"])
        span = int(at["span"][0]) if "span" in at else 0
        packing = one.problem.knobs["packing"]
        tokens = packing.lengths[span]
        assert {*at[ORIGIN]} == {n for n in range(row) if tokens[n]}


def test_rows_behind_the_last_sequence_belong_to_none():
    pairs = [*wrong_places(measured(*known("packed_slack_not_written"), "packed"))]
    assert pairs
    for one, places in pairs:
        count = one.problem.knobs["sequences"]
        assert (places["sequence"] == count).all()


def first_rows_only(query, key, value):
    """Return the first rows of linear attention, and zeros."""
    output = CORRECT["quadratic"].kernel(query, key, value)
    output[..., 64:, :] = 0
    return output


def by_step(query, key, value, state=None):
    """Return one row of causal linear attention, and its state."""
    phi = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)]
    if state is None:
        state = (0.0, 0.0)
    memory = state[0] + phi[1][..., :, None] * value[..., None, :]
    normalizer = state[1] + phi[1]
    read = (phi[0][..., None] * memory).sum(-2)
    output = read / (phi[0] * normalizer).sum(-1, keepdims=True)
    return output.astype(query.dtype), (memory, normalizer)


@pytest.mark.parametrize(
    "declared",
    [
        {"layout": "td"},
        {"layout": "htd"},
        {"layout": "bthd"},
        {"min_length": 64, "max_length": 64, "length_multiple_of": 64},
        {"key_dims": (64,), "value_dims": (64,)},
        {"equal_dims": True, "length_multiple_of": 16},
    ],
)
def test_targets_of_few_shapes_are_measured(declared):
    layout = declared.get("layout", "bhtd")

    def kernel(query, key, value):
        if layout == "bthd":
            moved = (np.swapaxes(x, 1, 2) for x in (query, key, value))
            return np.swapaxes(first_rows_only(*moved), 1, 2)
        return first_rows_only(query, key, value)

    target, scope = asked(kernel, **declared)
    maps = measured(target, scope, "outputs")
    shown = [places["row"].min() for _, places in wrong_places(maps)]
    least = 64 if declared.get("max_length") != 64 else None
    assert (min(shown) == least) if least else not shown


def test_targets_of_one_token_are_measured():
    target, scope = asked(by_step, interface="step")
    maps = measured(target, scope, "outputs")
    assert maps
    assert not any(one.wrong.any() for one in maps)
    assert ALL["spans"].skipped(scope)


def test_compiled_targets_see_few_shapes():
    target, scope = known("quadratic")
    few = Scope(scope.operator, scope.contract, "float32", few_shapes=True)
    shapes = {one.problem.shape for one in measured(target, few, "outputs")}
    assert 1 < len(shapes) <= 3


def test_compiled_targets_see_all_kinds_of_gates_in_the_first_shape():
    target, scope = known("gla by chunks")
    few = replace(scope, few_shapes=True)
    maps = measured(target, few, "outputs")
    shapes = {one.problem.shape for one in maps if "strong" in one.problem.kind}
    assert shapes == {maps[0].problem.shape}
    assert maps[0].problem.shape in {
        x.problem.shape for x in measured(target, few, "state")
    }


def test_compiled_targets_see_spans_of_one_length_and_of_one_token():
    target, scope = known("gla by chunks")
    maps = measured(target, replace(scope, few_shapes=True), "spans")
    lengths = {one.problem.length for one in maps if "span" in one.coordinates}
    assert lengths == {1, 20, 74}


def test_stages_say_why_they_are_left_out():
    _, scope = known("quadratic")
    assert "takes no state" in ALL["state"].skipped(scope)
    assert "cu_seqlens" in ALL["packed"].skipped(scope)
    assert not ALL["outputs"].skipped(scope)


def test_problems_are_drawn_once():
    first, second = (measured(*known("quadratic"), "outputs") for _ in range(2))
    assert all(x.problem is y.problem for x, y in zip(first, second, strict=True))
    other = measured(*known("quadratic"), "outputs", seed=1)
    assert other[0].problem.shape != first[0].problem.shape or other[0] is not first[0]


def test_packed_sequences_of_other_inputs_have_other_lengths():
    scope = Scope(OPERATORS["gla"], Contract(), "float32")
    drawn = [
        [x.lengths for x in packings(scope, 2, np.random.default_rng(seed))]
        for seed in range(4)
    ]
    assert len({str(x) for x in drawn}) == 4
    assert {x[1][0][:2] for x in drawn} == {(48, 16)}
    assert all(0 in rows and 1 in rows for x in drawn for rows in x[0])


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_said_of_packed_sequences_is_true_of_others_each(seed, calls):
    scope = Scope(OPERATORS["gla"], Contract(), "float32")
    said = {}
    for packing in packings(scope, calls, np.random.default_rng(seed)):
        for lengths, starts in zip(packing.lengths, packing.segments, strict=True):
            for n, (tokens, start) in enumerate(zip(lengths, starts, strict=False)):
                statements = {
                    "first": n == 0,
                    "last": n == len(lengths) - 1,
                    "of one token": tokens == 1,
                    "after an empty one": n > 0 and lengths[n - 1] == 0,
                    "after one of one token": n > 0 and lengths[n - 1] == 1,
                    "begins with a chunk": n > 0 and start % 16 == 0,
                    "of whole chunks": tokens % 16 == 0,
                    "of a length above 16": tokens > 16,
                    "after the first": n > 0,
                }
                if tokens:
                    for words, true in statements.items():
                        said.setdefault(words, []).append(true)
    assert all(any(x) and not all(x) for x in said.values())
    columns = [tuple(x != flip for x in y) for y in said.values() for flip in (0, 1)]
    assert len({*columns}) == len(columns) - 2  # the first, and all after it


def test_results_stay_known_without_the_tapes_that_made_them():
    _, scope = known("simple_gla by chunks")
    problem = dense_scene(scope, (1, 1, 9, 2, 9), np.random.default_rng(0))
    tape = problem.oracle_call.recorded(None).tape
    results = problem.solve(), problem.solve_state()
    assert tape._steps
    problem.forget_tapes()
    assert not tape._steps
    assert (problem.solve(), problem.solve_state()) == results
    again = problem.prefix(9).solve_state()
    assert np.array_equal(again[0].output, results[1][0].output)


def test_tapes_of_packed_sequences_are_forgotten_with_the_whole():
    _, scope = known("simple_gla by chunks")
    problem = dense_scene(scope, (1, 1, 9, 2, 9), np.random.default_rng(0))
    packed = problem.told(packing=Packing(((4, 5),)))
    exact_outputs(packed)
    sequences = packed_sequences(packed)
    tapes = [one.oracle_call.recorded(None).tape for one in sequences]
    assert all(tape._steps for tape in tapes)
    problem.forget_tapes()
    assert not any(tape._steps for tape in tapes)
    assert all(a is b for a, b in zip(packed_sequences(packed), sequences, strict=True))
