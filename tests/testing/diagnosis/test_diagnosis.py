"""Causes are named: of mutants, and of no correct kernel."""

import pytest

from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import FAULTY
from linkern.testing.problems.problem import Scope
from linkern.testing.spec.contract import Contract
from linkern.testing.spec.operators import OPERATORS
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig

DTYPES = ("float32", "float64", "bfloat16")
EXPECTED = {
    "key_lost_at_chunk_edge": "key_lost_at_chunk_edge",
    "key_lost_from_numerator": "key_lost_at_chunk_edge_numerator",
    "key_counted_twice_at_edge": "key_counted_twice_at_chunk_edge",
    "key_lost_at_edge_of_256": "key_lost_at_chunk_edge",
    "chunk_lost": "chunk_lost",
    "tokens_after_2048_lost": "keys_beyond_lost",
    "diagonal_excluded": "strict_mask",
    "reads_next_token": "leaking_mask",
    "tail_mask_off_by_one": "leaking_mask_in_tail",
    "tail_not_written": "tail_not_written",
    "tail_uninitialised": "tail_of_one_not_written",
    "noncausal_normalizer": "noncausal_normalizer",
    "normalizer_of_last_row": "normalizer_of_last_row",
    "padding_counted": "padding_counted",
    "not_normalised": "not_normalised",
    "channels_swapped": "channels_swapped",
    "channels_past_tile_lost": "features_lost",
    "heads_mixed": "heads_mixed",
    "crashes_on_one_token": "raises_on_one_token",
    "eps_1e-6": "eps",
    "eps_1e-10": "eps",
    "denominator_clamped": "clamp",
    "coarse_reciprocal": "coarse_reciprocal",
    "bfloat16_state": "state_rounded",
    "tfloat32_state": "state_rounded",
    "bfloat16_normalizer": "normalizer_rounded",
    "bfloat16_scores": "scores_rounded",
    "tfloat32_operands": "operands_rounded",
    "float16_values": "values_rounded",
    "output_truncated": "output_truncated",
    "all_in_float16": "computed_in_narrower_dtype",
    "decays_by_rounding": "decay",
    "values_clipped": "values_clipped",
    "overwrites_key": "overwrites_input",
    "returns_zeros": "returns_zeros",
    "returns_float64": "returns_other_dtype",
    "returns_list": "returns_other_type",
    "transposes_output": "output_transposed",
    "jitters": "not_deterministic",
    "replays_by_address": "replays_output",
    "keeps_features_by_address": "stale_input",
    "keeps_state_between_calls": "state_kept_between_calls",
    "returns_one_buffer": "overwrites_output",
    "seeds_generator": "leaves_traces",
    "assumes_contiguous": "assumes_contiguous",
    "reads_past_the_end": "reads_around_inputs",
    "writes_past_the_end": "overwrites_input",
    "swallows_nan": "swallows_nan",
    "key_gradient_without_normalizer": "gradient_without_normalizer",
    "query_gradient_without_normalizer": "gradient_without_normalizer",
    "value_gradient_without_diagonal": "gradient_without_diagonal",
    "query_lost_at_edge_backwards": "query_lost_backwards_at_chunk_edge",
    "gradient_of_state_in_bfloat16": "gradient_of_state_rounded",
    "output_saved_in_bfloat16": "output_saved_rounded",
    "gradient_ignores_feature_map": "gradient_ignores_feature_map",
    "gradient_of_final_state_ignored": "gradient_of_final_state_ignored",
    "gradient_mixes_heads": "gradient_mixes_heads",
    "gradients_swapped": "gradients_swapped",
    "gradient_of_first_token_lost": "gradient_first_token_lost",
    "state_ignored": "state_ignored",
    "normalizer_of_state_ignored": "normalizer_ignored",
    "state_lacks_tail": "state_lacks_tail",
    "state_read_transposed": "state_transposed",
    "state_updated_in_place": "overwrites_input",
    "state_returned_in_bfloat16": "state_returned_rounded",
    "state_returned_twice_as_large": "state_scaled",
    "state_of_first_head": "state_of_other_head",
}
# Defects that do not exist, or do not show, in one dtype.
INEXPRESSIBLE = {
    ("returns_float64", "float64"),
    ("all_in_float16", "bfloat16"),
    ("jitters", "bfloat16"),
    ("output_saved_in_bfloat16", "bfloat16"),
}


def named(kernel, dtype):
    target = InProcess(TargetConfig("test"), kernel)
    scope = Scope(
        OPERATORS["linear_attention"],
        Contract(),
        dtype,
        interface=target.interface,
        styles=tuple(STYLES),
    )
    return diagnose(target, scope)


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize("name", CORRECT)
def test_no_correct_kernel_is_diagnosed(name, dtype):
    assert named(CORRECT[name], dtype) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mutant", EXPECTED)
def test_mutants_are_named(mutant, dtype):
    if (mutant, dtype) in INEXPRESSIBLE:
        pytest.skip("it does not show in this dtype")
    found = named(FAULTY[mutant], dtype)
    assert found is not None
    assert found.name == EXPECTED[mutant]


def test_at_least_thirty_mutants_are_named():
    assert len(EXPECTED.keys() & FAULTY.keys()) >= 30
