"""Behaviours that no map holds, observed in kernels that are known to have them."""

from itertools import count, pairwise

import numpy as np
import pytest

import linkern
from linkern.testing import OPERATORS, Contract
from linkern.testing.diagnosis.behaviours.observed import (
    adds_up,
    observed_after,
    observed_before,
    right_where_dense,
)
from linkern.testing.diagnosis.behaviours.slopes import slope_at_zero
from linkern.testing.diagnosis.diagnose import diagnose
from linkern.testing.influence.scenes import product_scene
from linkern.testing.kernels.assembly import Parts, assemble, rounded_to
from linkern.testing.kernels.correct import CORRECT
from linkern.testing.kernels.mutants import MUTANTS
from linkern.testing.problems.context import Scope
from linkern.testing.target.memory_layout import STYLES
from linkern.testing.target.process import InProcess
from linkern.testing.target.protocol import TargetConfig
from tests.testing.diagnosis.unlisted import dense, gla

pytestmark = pytest.mark.usefixtures("exact_answers")

BEFORE = {
    "crashes_on_one_token": ("raises_on_one_token", "raises on one token: IndexError"),
    "returns_list": ("returns_other_type", "returns list instead of an array"),
    "transposes_output": ("output_transposed", "with its last two axes swapped"),
    "jitters": ("not_deterministic", "returns other bits for the same inputs"),
    "replays_by_sample": ("replays_output", "had the same inputs but one number"),
    "replays_by_corners_and_sum": ("replays_output", "same numbers in another order"),
    "answers_from_memory_once_warm": ("replays_output", "had the same shape"),
    "keeps_state_by_shape": ("state_kept_between_calls", "had the same shape"),
    "narrow_at_every_third_call": ("state_kept_between_calls", "one of every 3 calls"),
    "narrow_once_a_shape_is_known": ("state_kept_between_calls", "first call of each"),
}
AFTER = {
    "seeds_generator": ("leaves_traces", "the random state of NumPy"),
    "assumes_contiguous": (
        "assumes_contiguous",
        "wrong if inputs are fortran in memory",
    ),
    "reads_past_the_end": ("reads_around_inputs", "wrong if inputs are offset"),
    "writes_past_the_end": ("writes_around_inputs", "wrote to the memory around key"),
    "state_updated_in_place": ("overwrites_input", "overwrote its initial_state"),
    "swallows_nan": ("swallows_nan", "a nan in the value of token 1 became finite"),
    "decays_divided_out": ("not_finite", "where log_decay reaches -17"),
    "tile_by_batch": ("not_batch_invariant", "row 3 of a batch of 5"),
    "split_by_tokens": ("not_batch_invariant", "row 3 of a batch of 5"),
    "another_tile_for_the_last_row": (
        "not_batch_invariant",
        "rows 0, 4, 3 have other bits in another batch",
    ),
    "packed_in_another_order": ("not_batch_invariant", "packed at 32, tokens 0 to 32"),
    "decodes_in_another_order": (
        "not_split_invariant",
        "cut at 32, the sequence has other bits",
    ),
    "zeros_where_inputs_are_normal": (
        "depends_on_values",
        "returns zeros for normal features, normal values, and the right output",
    ),
    "rwkv4_without_maximum": ("not_finite", "where key reaches 92.2"),
}


def opened(function, op="linear_attention", dtype="float32", **declared):
    contract = Contract(**declared)
    taken = contract.takes_state is not False
    config = TargetConfig("test", op=op, scale=contract.scale, takes_state=taken)
    target = InProcess(config, function)
    styles = tuple(STYLES)
    interface = target.interface
    return target, Scope(OPERATORS[op], contract, dtype, interface, styles=styles)


@pytest.mark.parametrize("name", BEFORE)
def test_what_depends_on_the_call_is_observed_before_the_maps(name):
    kernel, (behaviour, words) = MUTANTS[name], BEFORE[name]
    observed = observed_before(*opened(kernel.kernel, kernel.op, **kernel.contract))
    assert observed.name == behaviour
    assert words in observed.sentence


@pytest.mark.parametrize("dtype", ["complex64", "int64", "bool"])
def test_an_output_that_is_no_floating_number_has_no_maps(dtype):
    diagnosis = diagnose(*opened(lambda *inputs: CHUNKED(*inputs).astype(dtype)))
    assert diagnosis.name == "returns_other_dtype"
    assert diagnosis.sentence == f"returns {dtype} instead of float32"


def test_an_output_that_the_next_call_overwrites_is_no_fault_of_its_place():
    buffers = {}

    def kernel(*inputs):
        output = CHUNKED(*inputs)
        buffer = buffers.setdefault((output.shape, output.dtype), output)
        buffer[...] = output
        return buffer

    diagnosis = diagnose(*opened(kernel))
    assert diagnosis.name == "overwrites_output"


def test_two_inputs_of_an_earlier_call_are_named():
    kept = {}

    def kernel(query, key, value):
        copies = query.copy(), value.copy()
        stale = kept.setdefault((query.shape, query.dtype), copies)
        return CHUNKED(stale[0], key, stale[1])

    diagnosis = diagnose(*opened(kernel))
    assert diagnosis.name == "stale_input"
    assert "reads the query and the value of an earlier call" in diagnosis.sentence


def test_what_is_made_at_the_first_call_of_a_shape_is_told_by_another_length():
    kept = {}

    def kernel(query, key, value):
        scale = 1 + np.abs(key[..., :1])
        made = kept.setdefault((query.shape, query.dtype), scale.copy())
        return CHUNKED(query, key, value * (scale / made))

    diagnosis = diagnose(*opened(kernel))
    assert diagnosis.name == "state_kept_between_calls"
    assert "right at the first call of a shape" in diagnosis.sentence


def test_a_size_that_the_key_of_what_is_kept_lacks_is_named():
    masks = {}

    def kernel(query, key, value, scale):
        heads, length = query.shape[1:3]
        rates = 1 - 2.0 ** (-5.0 - np.arange(heads)[:, None, None])
        back = np.subtract.outer(np.arange(length), np.arange(length))
        made = np.where(back < 0, 0, rates ** np.maximum(back, 0))
        mask = masks.setdefault(length, made)
        mask = np.resize(mask, made.shape).astype(query.dtype)
        return scale * (query @ key.swapaxes(-1, -2) * mask) @ value

    diagnosis = diagnose(*opened(kernel, "retention"))
    assert diagnosis.name == "state_kept_between_calls"
    assert "after a call with another number of heads whose" in diagnosis.sentence


def test_an_axis_that_one_token_loses_is_named():
    def kernel(*inputs):
        output = CHUNKED(*inputs)
        return output.squeeze(2) if output.shape[2] == 1 else output

    diagnosis = diagnose(*opened(kernel))
    assert diagnosis.name == "returns_other_shape"
    assert diagnosis.sentence == (
        "returns another shape on one token: (1, 2, 5) in place of (1, 2, 1, 5)"
    )
    assert diagnosis.declaration == ("min_length=2",)


def test_a_narrow_output_is_named_before_its_roundings():
    def narrow(*inputs):
        return CHUNKED(*inputs).astype("float32")

    diagnosis = diagnose(*opened(narrow, dtype="float64"))
    assert diagnosis.sentence == "returns float32 instead of float64"
    assert diagnosis.declaration == ("output_dtype=float32",)


def test_a_kernel_that_is_narrow_from_some_call_on_keeps_a_state():
    calls = count(1)  # those of a mutant include the calls of other tests

    def kernel(*inputs):
        narrow = next(calls) >= 30
        return CHUNKED(*(rounded_to(8)(x) if narrow else x for x in inputs))

    observed = observed_before(*opened(kernel))
    assert observed.name == "state_kept_between_calls"
    assert "wrong from a later call on" in observed.sentence


@pytest.mark.parametrize("name", AFTER)
def test_what_is_besides_the_output_is_observed_after_the_maps(name):
    kernel, (behaviour, words) = MUTANTS[name], AFTER[name]
    target, scope = opened(kernel.kernel, kernel.op, **kernel.contract)
    assert observed_before(target, scope) is None
    observed = observed_after(target, scope)
    assert observed.name == behaviour
    assert words in observed.sentence


def test_sizes_that_no_map_has_are_observed_after_the_maps():
    def kernel(query, key, value, log_decay, beta):
        output = linkern.gated_delta_product(query, key, value, log_decay, beta).output
        odd = key.shape[-2] // query.shape[-2] in (3, 5)
        return output * np.where(odd, 0.5, 1.0).astype(output.dtype)

    target, scope = opened(kernel, "gated_delta_product")
    assert observed_before(target, scope) is None
    observed = observed_after(target, scope)
    assert observed.name == "depends_on_sizes"
    words = "returns a wrong output for numbers of keys for each token of 3, 5"
    assert observed.sentence.startswith(words)


def subtracting_sums(query, key, value, log_decay):
    """Return gated attention whose decays are differences of sums over all tokens."""
    sums = np.cumsum(log_decay, axis=-1)
    with np.errstate(invalid="ignore"):
        between = np.exp(np.tril(sums[..., :, None] - sums[..., None, :]))
    scores = np.tril(query @ np.swapaxes(key, -1, -2)) * query.shape[-1] ** -0.5
    return (scores * between.astype(query.dtype)) @ value


def test_a_reset_that_is_not_finite_is_declared_away():
    target, scope = opened(subtracting_sums, "simple_gla")
    diagnosis = diagnose(target, scope)
    assert diagnosis.name == "not_finite"
    assert "returns NaN where log_decay is -inf" in diagnosis.sentence
    assert diagnosis.declaration == ("decay_floor=-10000",)
    declared = opened(subtracting_sums, "simple_gla", decay_floor=-1e4)
    assert diagnose(*declared) is None


def test_a_floor_that_is_offered_holds_in_float32_too():
    for dtype in ("float64", "float32"):
        diagnosis = diagnose(*opened(sums_divided_out, "simple_gla", dtype))
        assert diagnosis.declaration == ("decay_floor=-1",)


def sums_divided_out(query, key, value, log_decay):
    """Return gated attention by chunks of 32, whose powers are divided out inside."""
    output, scale = np.empty_like(value), query.dtype.type(query.shape[-1] ** -0.5)
    memory = np.zeros((*query.shape[:2], query.shape[-1], value.shape[-1]), value.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, query.shape[2], 32):
            q, k, v, g = (
                x[:, :, start : start + 32] for x in (query, key, value, log_decay)
            )
            up = np.exp(np.cumsum(g, -1))[..., None]
            scores = np.tril((q * up) @ np.swapaxes(k / up, -1, -2))
            output[:, :, start : start + 32] = scale * (scores @ v + (q * up) @ memory)
            memory = up[:, :, -1:] * (memory + np.swapaxes(k / up, -1, -2) @ v)
    return output


def powers_divided_out(query, key, value, log_decay):
    """Return gated attention whose decays are quotients of powers of sums."""
    sums = np.cumsum(log_decay, axis=-1)[..., None]
    with np.errstate(over="ignore", invalid="ignore"):
        rows, columns = query * np.exp(sums), key * np.exp(-sums)
        scores = np.tril(rows @ np.swapaxes(columns, -1, -2))
        return (scores * query.dtype.type(query.shape[-1] ** -0.5)) @ value


def test_a_kernel_that_takes_no_strong_decay_at_all_is_offered_no_floor():
    observed = observed_after(*opened(powers_divided_out, "simple_gla"))
    assert observed.name == "not_finite"
    assert observed.declaration == ()


def of_slope_at_zero(factor, elsewhere=1.0):
    """Linear attention whose map has so many times its slope where keys are zero."""

    def kernel(query, key, value):
        return linkern.linear_attention(query, key, value).output

    def vjp(query, key, value, output_cotangent):
        _, pull = linkern.vjp(linkern.linear_attention, query, key, value)
        gradients = pull(output_cotangent)
        slopes = np.where(key == 0, factor, elsewhere).astype(key.dtype)
        return gradients | {"key": slopes * gradients["key"]}

    kernel.vjp = vjp
    return kernel


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (2.0, "is twice as large as it should be where key is 0"),
        (0.5, "lacks the factor `2` where key is 0"),
        (0.75, "is wrong where key is 0"),
    ],
)
def test_slopes_of_branches_that_meet_at_zero_are_named(factor, words):
    diagnosis = diagnose(*opened(of_slope_at_zero(factor)))
    assert diagnosis.sentence == f"the gradient of key {words}"
    assert (diagnosis.stage, diagnosis.where) == ("gradient of key", "where key is 0")
    assert diagnosis.hint.startswith("the feature map: its two branches")


@pytest.mark.parametrize("factors", [(1.0, 1.0), (2.0, 2.0)])
def test_slopes_at_zero_are_not_to_blame_for_what_is_right_or_wrong_elsewhere(factors):
    assert slope_at_zero(*opened(of_slope_at_zero(*factors))) is None


def refusing_no_token(query, key, value):
    if not query.shape[2]:
        msg = "no tokens"
        raise ValueError(msg)
    return dense()(query, key, value)


def test_a_refusal_of_no_token_is_named_where_all_else_is_right():
    diagnosis = diagnose(*opened(refusing_no_token))
    assert diagnosis.name == "raises_if_asked"
    assert diagnosis.sentence.startswith("raises on no token: ValueError: no tokens")
    assert diagnosis.declaration == ("min_length=1",)
    assert diagnose(*opened(refusing_no_token, min_length=1)) is None


def refusing_states(query, key, value, initial_state=None, return_state=False):
    if initial_state is not None or return_state:
        msg = "return_state is not supported"
        raise NotImplementedError(msg)
    return refusing_no_token(query, key, value)


def test_a_refusal_of_states_is_named_where_all_else_is_right():
    diagnosis = diagnose(*opened(refusing_states))
    assert "; raises on a call for its final state: NotImpl" in diagnosis.sentence
    assert diagnosis.declaration == ("min_length=1", "takes_state=false")
    meant = {"min_length": 1, "takes_state": False}
    assert diagnose(*opened(refusing_states, **meant)) is None


def refusing_its_own(query, key, value, initial_state=None, return_state=False):
    if initial_state is not None and initial_state.ndim > 4:
        msg = "a state has four axes"
        raise ValueError(msg)
    state = np.ones((*query.shape, 1), query.dtype)
    output = dense()(query, key, value)
    return (output, state) if return_state else output


def test_a_state_that_cannot_be_passed_back_is_named():
    diagnosis = diagnose(*opened(refusing_its_own))
    said = "raises on a call with the state that it returned: ValueError: a state has"
    assert diagnosis.sentence.startswith(said)
    assert diagnosis.declaration == ("takes_state=false",)


def packed_in_slices(state_of_empty):
    """Return a kernel that joins the outputs of its sequences, and nothing else."""

    def run(inputs, memory):
        rows = []
        for q, k, v, g in zip(*(np.moveaxis(x, 2, 0) for x in inputs), strict=True):
            memory = np.exp(g)[..., None, None] * memory
            memory = memory + k[..., None] * v[..., None, :]
            rows.append((q[..., None, :] @ memory)[..., 0, :])
        empty = inputs[2][:, :, :0]
        return np.stack(rows, 2) if rows else empty, memory

    def kernel(
        query, key, value, log_decay, *, scale, initial_state=None, cu_seqlens=None
    ):
        inputs = query * query.dtype.type(scale), key, value, log_decay
        count = len(query) if cu_seqlens is None else len(cu_seqlens) - 1
        shape = (count, query.shape[1], query.shape[3], value.shape[3])
        if initial_state is None:
            initial_state = np.zeros(shape, query.dtype)
        if cu_seqlens is None:
            return run(inputs, initial_state)
        outputs, states = [], []
        for n, (start, end) in enumerate(pairwise(cu_seqlens.tolist())):
            memory = initial_state[n : n + 1]
            part = [x[:, :, start:end] for x in inputs]
            output, memory = run(
                part, memory if end > start else state_of_empty(memory)
            )
            outputs.append(output)
            states.append(memory)
        return np.concatenate(outputs, 2), np.concatenate(states)

    return kernel


def test_rows_behind_the_last_sequence_hide_no_other_fault():
    right, wrong = packed_in_slices(lambda x: x), packed_in_slices(np.zeros_like)
    refused = "returns the shape (1, 2, 16, 5) in place of (1, 2, 17, 5) for packed"
    diagnosis = diagnose(*opened(right, "simple_gla"))
    assert diagnosis.sentence.startswith(refused)
    assert diagnosis.declaration == ("packing=full",)
    assert diagnose(*opened(right, "simple_gla", packing="full")) is None
    diagnosis = diagnose(*opened(wrong, "simple_gla"))
    assert diagnosis.stage == "final state"
    assert diagnosis.where == "sequences that are empty in the last call"
    assert (
        diagnosis.hint == "the state of an empty sequence: the one that it was handed"
    )
    assert f"; besides, it {refused}" in diagnosis.sentence


def test_a_floor_hides_no_other_fault():
    def kernel(query, key, value, log_decay, initial_state=None):
        inputs = query, key, value, log_decay
        right = linkern.simple_gla(*inputs, initial_state=initial_state)
        reset = np.isinf(log_decay).any()
        output = subtracting_sums(*inputs) if reset else right.output
        return output, 2 * right.state.memory

    diagnosis = diagnose(*opened(kernel, "simple_gla"))
    assert (diagnosis.stage, diagnosis.by_what) == ("final state", "2")
    said = "; besides, it returns NaN where log_decay is -inf"
    assert said in diagnosis.sentence
    assert diagnosis.declaration == ()


def test_a_refusal_of_no_token_hides_no_other_fault():
    diagnosis = diagnose(*opened(lambda *x: 2 * refusing_no_token(*x)))
    assert diagnosis.by_what == "2"


FEW = ("quadratic", "chunk_32_with_state", "gla by chunks", "delta_rule by chunks")
FEW += ("rwkv4 by tokens", "gsa", "hgrn by tokens")


# The whole diagnosis is made of every correct kernel in tests/testing/kernels.
@pytest.mark.parametrize("name", FEW)
def test_nothing_is_observed_of_a_correct_kernel(name):
    kernel = CORRECT[name]
    target, scope = opened(kernel.kernel, kernel.op, **kernel.contract)
    assert observed_before(target, scope) is None
    assert observed_after(target, scope) is None


CHUNKED = assemble(Parts())


def refuses(**limits):
    def kernel(query, key, value):
        sizes = {"t": query.shape[-2], "k": query.shape[-1], "h": query.shape[1]}
        for axis, fits in limits.items():
            assert fits(sizes[axis]), f"no {sizes[axis]}"
        return CHUNKED(query, key, value)

    return kernel


@pytest.mark.parametrize(
    ("kernel", "words", "declaration"),
    [
        (
            refuses(t=lambda n: n % 16 == 0),
            "raises on lengths that are no multiple of 16: AssertionError: no 1 ",
            ("length_multiple_of=16",),
        ),
        (refuses(t=lambda n: n > 2), "raises on lengths below 3", ("min_length=3",)),
        (refuses(t=lambda n: n < 99), "lengths above 96", ("max_length=96",)),
        (refuses(k=lambda n: n <= 64), "raises on key dimensions above 64", ()),
        (refuses(h=lambda n: n % 2), "numbers of heads that are multiples of 2", ()),
        (refuses(h=lambda n: n == 0), "raises on all lengths that were tried", ()),
    ],
)
def test_the_sizes_that_are_refused_are_said_in_few_words(kernel, words, declaration):
    observed = observed_before(*opened(kernel))
    assert observed.name == "raises"
    assert words in observed.sentence
    assert observed.declaration == declaration


def test_axes_of_the_output_in_another_order_are_told_from_another_shape():
    def swapped(*inputs):
        return np.swapaxes(CHUNKED(*inputs), 1, 2)

    def rewritten(*inputs):
        output = CHUNKED(*inputs)
        return np.swapaxes(output, 1, 2).reshape(output.shape)

    def longer(*inputs):
        return np.pad(CHUNKED(*inputs), ((0, 0),) * 2 + ((0, 1), (0, 0)))

    for kernel in (swapped, rewritten):
        assert observed_before(*opened(kernel)).name == "output_layout_swapped"
    observed = observed_before(*opened(longer))
    assert observed.name == "returns_other_shape"
    assert "(2, 3, 48, 5) instead of (2, 3, 47, 5)" in observed.sentence


def test_an_input_of_the_call_before_is_named():
    kept = {}

    def kernel(query, key, value):
        first = (key.shape, key[..., :1, :].tobytes())
        key = kept.setdefault(first, key.copy())
        return CHUNKED(query, key, value)

    observed = observed_before(*opened(kernel))
    assert observed.name == "stale_input"
    assert observed.sentence.startswith("reads the key of an earlier call that had")
    assert "first token" in observed.sentence


def test_side_effects_come_with_what_declares_them():
    def narrow(*inputs):
        return CHUNKED(*inputs).astype(np.float16)

    def overwrites(query, key, value):
        output = CHUNKED(query, key, value)
        value[...] = 0
        return output

    observed = observed_after(*opened(narrow))
    assert observed.declaration == ("output_dtype=float16",)
    observed = observed_after(*opened(overwrites))
    assert (observed.name, observed.declaration) == (
        "overwrites_input",
        ("mutates=value",),
    )
    assert observed_after(*opened(overwrites, mutates=("value",))) is None


def test_other_bits_are_no_behaviour_where_none_are_promised():
    kernel = MUTANTS["tile_by_batch"].kernel
    observed = observed_after(*opened(kernel, batch_invariant="rows"))
    assert observed.declaration == ("batch_invariant=false",)
    assert observed_after(*opened(kernel)) is None


def test_what_two_threads_share_is_observed():
    shared = {}

    def kernel(query, key, value):
        scratch = shared.setdefault(value.shape, np.empty_like(value))
        scratch[...] = value
        for _ in range(3):
            output = CHUNKED(query, key, scratch)
        return output

    observed = observed_after(*opened(kernel))
    assert observed is None or observed.name == "not_thread_safe"
    assert observed_after(*opened(kernel, thread_safe=False)) is None


@pytest.mark.parametrize("sniffs", [True, False])
def test_outputs_that_are_right_for_sums_of_impulses_alone_depend_on_values(sniffs):
    def kernel(query, key, value):
        output = dense()(query, key, value)
        sparse = (value == 0).mean() > 0.5
        return 0 * output if sparse or not sniffs else output

    target, scope = opened(kernel)
    problem = product_scene(scope, (1, 2, 9, 4, 9), np.random.default_rng(0))
    observed = right_where_dense(target, problem)
    if not sniffs:
        assert observed is None
    else:
        assert (observed.name, observed.by_what) == ("depends_on_values", "0")
        assert observed.sentence.startswith("returns zeros where most values are 0")
    right = right_where_dense(opened(dense())[0], problem)
    assert right is None


def test_outputs_of_halves_add_up_where_they_are_linear():
    wrong = gla(finish=lambda output: 3 * output)
    target, scope = opened(wrong, "simple_gla")
    assert adds_up(target, scope, scope.operator.names)
    twice = gla(arrange=lambda q, k, v, g: (q, k, np.maximum(v, np.roll(v, 1, 2)), g))
    target, scope = opened(twice, "simple_gla")
    assert not adds_up(target, scope, scope.operator.names)


def test_sizes_with_very_many_products_of_channels_are_not_tried():
    tried = []

    def kernel(query, key, value, log_decay):
        tried.append(query.shape[-1])
        return np.zeros_like(value)

    target, scope = opened(kernel, "power_retention_4")
    assert observed_before(target, scope) is None
    # Of 64 channels, each of 17 tokens would have 766,480 products.
    assert max(tried) == 24
