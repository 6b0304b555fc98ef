"""Stages of few bits, told by the paths on which bits are lost."""

from dataclasses import replace
from functools import wraps
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import linkern
from linkern.testing.diagnosis.behaviours.roundings import rounded_result, rounding
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.influence.paths import survivals
from linkern.testing.kernels.assembly import Parts, assemble, rounded_to
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from tests.marks import in_turn
from tests.testing.diagnosis.of_oracle import dense, map_of
from tests.testing.diagnosis.test_observed import opened

pytestmark = pytest.mark.usefixtures("exact_answers", "no_clock")

STAGES = {
    "bfloat16_state": "the state and normalizer are rounded to 8 bits (bfloat16) every",
    "tfloat32_state": "the state and normalizer are rounded to 11 bits (tfloat32 or",
    "bfloat16_normalizer": "the normalizer is rounded to 8 bits (bfloat16)",
    "bfloat16_scores": "the scores are rounded to 8 bits (bfloat16)",
    "tfloat32_operands": "the operands are rounded to 11 bits (tfloat32 or float16)",
    "float16_values": "the values are rounded to 11 bits (tfloat32 or float16)",
    "all_in_float16": "the sums are rounded to 11 bits",
    "coarse_reciprocal": "the quotient is truncated to 12 bits",
    "memory_carried_in_bfloat16": "the state is rounded to 8 bits (bfloat16) every 16",
    "gates_of_eleven_bits": "the log_decay is rounded to 11 bits",
    "products_in_tfloat32": "the operands are rounded to 11 bits",
}
# Their errors are small, and none of rounding.
OTHERS = ("decays_by_rounding", "tail_not_written", "scale_twice", "returns_zeros")
DTYPES = ("float32", "float64", "bfloat16", "float16")


def of(kernel, dtype="float32"):
    return opened(kernel.kernel, kernel.op, dtype, **kernel.contract)


@pytest.mark.parametrize("name", STAGES)
def test_the_stage_that_rounds_is_told_with_its_bits(name):
    observed = rounding(*of(MUTANTS[name]))
    assert observed.sentence.startswith(STAGES[name])


def test_the_place_and_what_declares_it_are_measured():
    observed = rounding(*of(MUTANTS["bfloat16_state"]))
    assert observed.where == "pairs across edges of chunks of 16"
    assert observed.by_what == "rounded to 8 bits"
    assert observed.declaration == (
        "chunk_size=16",
        "state_dtype=bfloat16",
        "normalizer_dtype=bfloat16",
    )


@pytest.mark.parametrize(
    ("op", "bits"),
    [
        ("gated_delta_rule", "22 bits"),
        ("iplr", "24 bits (float32)"),
        ("rwkv7", "24 bits (float32)"),
    ],
)
def test_operands_that_are_rounded_several_times_are_of_a_wider_format(op, bits):
    right = CORRECT[f"{op} by chunks"]

    @wraps(right.kernel)
    def kernel(**inputs):
        narrow = {
            name: x.astype(np.float32) if isinstance(x, np.ndarray) else x
            for name, x in inputs.items()
        }
        rows, state = right.kernel(**narrow)
        return rows.astype(inputs["query"].dtype), state

    observed = rounding(*opened(kernel, op, dtype="float64"))
    assert observed.sentence == f"the operands are rounded to {bits}"
    assert observed.declaration == ("operand_dtype=float32",)


@pytest.mark.parametrize(
    ("erases", "said"), [(True, "the written values are"), (False, "the values are")]
)
def test_what_a_token_writes_is_told_from_its_value(erases, said):
    rounded = rounded_to(8)

    def kernel(query, key, value, beta):
        state = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]), np.float32)
        output, value = np.zeros_like(value), value if erases else rounded(value)
        for t in range(query.shape[2]):
            row = key[:, :, t, :, None]
            written = value[:, :, t, None] - row.mT @ state
            written = beta[:, :, t, None, None] * written
            state = state + row * (rounded(written) if erases else written)
            output[:, :, t] = (query[:, :, t, None] @ state)[..., 0, :]
        return output / np.float32(key.shape[-1] ** 0.5)

    observed = rounding(*opened(kernel, "delta_rule"))
    assert observed.sentence == f"{said} rounded to 8 bits (bfloat16)"


def test_an_inverse_of_few_bits_is_no_score():
    def kernel(query, key, value, beta):
        state = np.zeros((*key.shape[:2], key.shape[-1], value.shape[-1]), np.float32)
        output, rounded = np.zeros_like(value), rounded_to(8)
        for first in range(0, query.shape[2], 16):
            q, k, v = (x[:, :, first : first + 16] for x in (query, key, value))
            rate = beta[:, :, first : first + 16, None]
            system = np.eye(k.shape[2]) + np.tril(rate * (k @ k.mT), -1)
            inverse = rounded(np.linalg.inv(system).astype(np.float32))
            written = inverse @ (rate * (v - k @ state))
            output[:, :, first : first + 16] = q @ state + np.tril(q @ k.mT) @ written
            state = state + k.mT @ written
        return output / np.float32(key.shape[-1] ** 0.5)

    observed = rounding(*opened(kernel, "delta_rule"))
    assert observed.sentence == "the erase weights are rounded to 8 bits (bfloat16)"
    assert observed.where == "pairs inside chunks of 16"


def test_edges_that_begin_inside_of_a_chunk_have_their_own_tokens():
    def kernel(query, key, value, log_decay):
        state = np.zeros((*key.shape[:2], key.shape[3], value.shape[3]), key.dtype)
        output, scale = np.empty_like(value), key.dtype.type(key.shape[3] ** -0.5)
        for t in range(key.shape[2]):
            state = np.exp(log_decay[:, :, t, None, None]) * state
            state = state + key[:, :, t, :, None] * value[:, :, t, None, :]
            state = rounded_to(8)(state) if t % 32 == 31 else state
            output[:, :, t] = (scale * query[:, :, t, None] @ state)[:, :, 0]
        return output

    observed = rounding(*opened(kernel, "simple_gla"))
    assert (
        observed.sentence == "the state is rounded to 8 bits (bfloat16) every 32 tokens"
    )
    assert observed.where == "pairs across tokens 31, 63, ..."
    assert "chunk_size=32" in observed.declaration


def test_slot_weights_are_told_from_sums():
    def kernel(query, key, value, slots, log_decay):
        size = (*query.shape[:2], slots.shape[-1])
        keys, values = (np.zeros((*size, x.shape[-1]), x.dtype) for x in (key, value))
        output, scale = np.empty_like(value), query.dtype.type(key.shape[-1] ** -0.5)
        for t in range(query.shape[2]):
            decay, write = np.exp(log_decay[:, :, t, :, None]), slots[:, :, t, :, None]
            keys = decay * keys + write * key[:, :, t, None]
            values = decay * values + write * value[:, :, t, None]
            scores = scale * (keys @ query[:, :, t, :, None])
            weights = np.exp(scores - scores.max(axis=-2, keepdims=True))
            weights = rounded_to(8)(weights / weights.sum(axis=-2, keepdims=True))
            output[:, :, t] = (weights.mT @ values)[..., 0, :]
        return output

    observed = rounding(*opened(kernel, "gsa"))
    assert observed.sentence == "the slot weights are rounded to 8 bits (bfloat16)"
    assert observed.declaration == ("score_dtype=bfloat16",)


@pytest.mark.slow
def test_tokens_of_several_writes_are_counted_once():
    def kernel(query, key, value, log_decay, beta, initial_state=None):
        each, rounded = key.shape[2] // query.shape[2], rounded_to(11)
        rows, state = [], initial_state
        for first in range(0, query.shape[2], 16):
            q, decays = (x[:, :, first : first + 16] for x in (query, log_decay))
            writes = slice(each * first, each * (first + 16))
            k, v, rates = (x[:, :, writes] for x in (key, value, beta))
            state = rounded(state) if first else state
            part = linkern.gated_delta_product(
                q, k, v, decays, rates, initial_state=state
            )
            rows, state = [*rows, part.output], part.state.memory
        return np.concatenate(rows, axis=2)

    observed = rounding(*opened(kernel, "gated_delta_product"))
    assert observed.sentence == (
        "the state is rounded to 11 bits (tfloat32 or float16) every 16 tokens"
    )


PLACES = {
    "bfloat16_normalizer": "pairs across edges of chunks of 16",
    "bfloat16_scores": "pairs inside chunks of 16",
    "tfloat32_operands": "everywhere",
    "bfloat16_from_128_tokens": "lengths above 127",
}


@pytest.mark.parametrize("name", PLACES)
def test_the_place_is_said_in_the_words_of_maps(name):
    assert rounding(*of(MUTANTS[name])).where == PLACES[name]


def test_the_length_of_a_wrong_map_is_tried_where_others_lose_nothing():
    target, scope = of(MUTANTS["narrow_at_multiples_of_16"])
    assert rounding(target, scope) is None
    maps = (SimpleNamespace(problem=SimpleNamespace(length=128)),)
    observed = rounding(target, scope, maps)
    assert observed.where == "lengths that are multiples of 16"
    assert observed.declaration == ()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("state_returned_in_bfloat16", "final state"),
        ("gradient_of_rate_in_bfloat16", "gradient of beta"),
    ],
)
def test_results_that_are_stored_in_few_bits_say_so(name, tensor):
    observed = diagnose(*of(MUTANTS[name]))
    assert observed.sentence == f"the {tensor} is rounded to 8 bits"
    assert (observed.stage, observed.where) == (tensor, "everywhere")


def test_gradients_of_an_output_saved_in_few_bits_are_as_if_rounded():
    observed = diagnose(*of(MUTANTS["output_saved_in_bfloat16"]))
    assert observed.by_what == "rounded to 8 bits"
    assert "through the denominator is as if rounded" in observed.sentence


def a_map(measured, exact):
    wrong, bound = measured != exact, np.zeros(exact.shape)
    error = abs(measured - exact)
    return SimpleNamespace(
        tensor="final state",
        measured=measured,
        exact=exact,
        wrong=wrong,
        error=error,
        bound=bound,
    )


def test_errors_of_another_spread_than_that_of_rounding_are_none():
    rng = np.random.default_rng(0)
    scope = of(CORRECT["quadratic"])[1]
    exact = rng.uniform(1, 2, 500)
    few = [exact * (1 + rng.uniform(-1, 1, 500) * 2.0**-n) for n in (8, 3)]
    assert rounded_result([a_map(few[0], exact)], "", scope).by_what.endswith("8 bits")
    assert rounded_result([a_map(few[1], exact)], "", scope) is None
    constant = exact * (1 + 2.0**-8.1)
    assert rounded_result([a_map(constant, exact)], "", scope) is None
    # Bounds hide errors below 2^-9.
    seen = np.array([-1.0, 1.0]) * rng.uniform(1 / 2, 1, (250, 2))
    both, one = (exact + x.ravel() * 2.0**-8 for x in (seen, abs(seen)))
    assert rounded_result([a_map(both, exact)], "", scope).by_what.endswith("8 bits")
    assert rounded_result([a_map(one, exact)], "", scope) is None
    stored = np.rint(exact * 128) / 128
    observed = rounded_result([a_map(stored, exact)], "", scope)
    assert observed.sentence == "the final state is rounded to 8 bits"
    far = np.rint(exact * (1 + 2.0**-6.5) * 128) / 128
    assert rounded_result([a_map(far, exact)], "", scope) is None
    exact[3], stored[3] = 0.0, 1.0
    assert rounded_result([a_map(stored, exact)], "", scope) is None
    stored[3] = np.nan
    assert rounded_result([a_map(stored, exact)], "", scope) is None


def test_a_chopped_state_is_told_from_a_rounded_one():
    def chopped(x):
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.trunc(mantissa * 256), exponent - 8).astype(x.dtype)

    observed = rounding(*opened(assemble(Parts(chunk=16, carried=chopped))))
    assert "truncated to 8 bits (bfloat16) every 16" in observed.sentence


def test_errors_that_make_outputs_larger_are_no_chopping():
    kernel = of(MUTANTS["squared_lengths_with_epsilon"], "float64")
    assert any(one.lost for one in survivals(*kernel))
    assert rounding(*kernel) is None


@pytest.mark.parametrize("name", OTHERS)
def test_small_errors_of_other_faults_are_no_rounding(name):
    assert rounding(*of(MUTANTS[name])) is None


FEW = ("quadratic", "gla by chunks", "delta_rule by chunks", "rwkv4 by tokens", "gsa")


@pytest.mark.parametrize(
    ("name", "dtype"),
    in_turn(
        lambda name, dtype: name in FEW and dtype != "float64",
        product(CORRECT, DTYPES),
        step=2,
    ),
)
def test_no_correct_kernel_loses_more_than_it_declares(name, dtype):
    paths = survivals(*of(CORRECT[name], dtype))
    assert {one.path for one in paths} >= {"value", "state"}
    assert not any(one.lost for one in paths)


def test_a_state_of_few_bits_shows_behind_outputs_of_few_bits():
    observed = rounding(*of(MUTANTS["memory_carried_in_bfloat16"], "bfloat16"))
    assert observed.sentence.startswith("the state is rounded to 8 bits")


@pytest.mark.parametrize(
    ("tensor", "output_dtype", "told"),
    [
        ("final normalizer", None, True),
        ("gradient of key", "float32", False),
        ("output", "float32", True),
        ("output", None, False),
    ],
)
def test_results_of_narrow_inputs_have_bits_of_their_own(tensor, output_dtype, told):
    """States are kept in float32, outputs as declared, gradients as the inputs."""
    scope = of(CORRECT["quadratic"])[1]
    contract = replace(scope.contract, output_dtype=output_dtype)
    scope = replace(scope, dtype="bfloat16", contract=contract)
    exact = np.random.default_rng(0).uniform(1, 2, 500)
    stored = a_map(np.rint(exact * 128) / 128, exact)
    stored.tensor = tensor
    said = rounded_result([stored], "", scope)
    assert (said is not None) == told


@pytest.mark.parametrize(("larger", "told"), [(12, True), (20, False)])
def test_few_errors_of_one_sign_are_chance_and_all_are_not(larger, told):
    few = map_of(dense("simple_gla"))
    few = few.part(abs(few.exact) > 0.1)
    few = few.part(np.arange(few.exact.size) < 20)
    signs = np.where(np.arange(20) < larger, 1, -1)
    errors = signs * 2.0 ** -np.linspace(8.15, 10.5, 20)
    wrong = replace(few, measured=few.exact * (1 + errors))
    said = rounded_result([wrong], "rows from 16 on", wrong.problem.scope)
    sentence = "the output is as if rounded to 8 bits in rows from 16 on"
    assert (said.sentence if said else None) == (sentence if told else None)
