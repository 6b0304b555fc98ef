"""Bounds of every operator hold for float32 in any order; broken kernels break them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linkern.oracle import OPERATORS, Precisions
from linkern.oracle.balls import Ball, Rounding, contracted
from linkern.oracle.scan import scanned
from linkern.oracle.tape import Tape
from tests.operators.paper_loops import over_heads
from tests.oracle.operator_problems import (
    NAMES,
    chunked,
    delta_terms,
    earlier_state,
    heads_of,
    problem,
    sequential,
)

FLOAT32 = Precisions("float32")
CHUNKED = (
    "gla",
    "simple_gla",
    "delta_rule",
    "gated_delta_rule",
    "kda",
    "preconditioned_gated_delta_rule",
    "preconditioned_kda",
    "gdn2",
    "comba",
)
ADDITIVE = ("retention", "lightning_attention", "simple_gla", "gla", "hgrn", "rwkv6",
            "log_linear_attention")  # fmt: skip
ERASING = ("delta_rule", "gated_delta_rule", "kda", "gdn2", "comba", "oja", "rwkv7",
           "dplr", "iplr", "gated_delta_product", "preconditioned_gated_delta_rule",
           "preconditioned_kda")  # fmt: skip
DECAYS = st.sampled_from(["none", "mild", "typical", "strong", "extreme"])


def ratio(got, due):
    """Return the largest error as a part of its bound."""
    error = abs(np.asarray(got, dtype=np.float64) - due.output)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(error == 0, 0.0, error / due.bound)
    return part.max(initial=0.0)


def as_torch(torch, inputs, *, dtype="float32", gradients=False):
    dtype = getattr(torch, dtype)
    return {
        k: torch.tensor(x, dtype=dtype).requires_grad_(gradients)
        for k, x in inputs.items()
    }


def drawn(name, seed, decays, length):
    rng = np.random.default_rng(seed)
    key_dim, value_dim = (int(rng.choice([1, 4, 16])) for _ in range(2))
    largest = float(rng.choice([1.0, 2.0]))
    unit = bool(rng.random() < 0.7)
    return problem(
        name, rng, length, key_dim, value_dim,
        decays=decays, unit=unit, largest_beta=largest,
    )  # fmt: skip


def kernel(torch, which, terms):
    """Return what one of five orders of the same sums gives."""
    if which == 0:
        return sequential(torch, *terms)
    chunk = (4, 16, 64, 16)[which - 1]
    return chunked(torch, *terms, chunk=chunk, everywhere=which == 4)


@pytest.mark.parametrize("name", CHUNKED)
@given(
    seed=st.integers(0, 2**16),
    decays=DECAYS,
    length=st.integers(1, 80),
    which=st.integers(0, 4),
)
@settings(max_examples=40)
def test_every_order_of_float32_stays_within_the_bound(
    torch, name, seed, decays, length, which
):
    inputs = drawn(name, seed, decays, length)
    scale = OPERATORS[name].default_scale(inputs)
    output, (memory, *_) = OPERATORS[name].bounded(inputs, scale, FLOAT32)
    terms = delta_terms(name, as_torch(torch, inputs), scale)
    got, state = kernel(torch, which, terms)
    assert ratio(got.numpy(), output) <= 1
    assert ratio(state.numpy(), memory) <= 1


@pytest.mark.parametrize("name", CHUNKED)
@given(
    seed=st.integers(0, 2**16),
    decays=DECAYS,
    length=st.integers(1, 60),
    which=st.integers(0, 4),
)
@settings(max_examples=20)
def test_gradients_of_every_order_stay_within_their_bounds(
    torch, name, seed, decays, length, which
):
    inputs = drawn(name, seed, decays, length)
    if "log_decay" in inputs:  # Differentiating a clamp is another question.
        inputs["log_decay"] = np.maximum(inputs["log_decay"], -1e4)
    op, scale = OPERATORS[name], OPERATORS[name].default_scale(inputs)
    rng = np.random.default_rng(seed)
    cotangent = rng.normal(size=inputs["value"].shape).astype(np.float32)
    due = op.bounded_gradients(inputs, cotangent, scale, FLOAT32)
    leaves = as_torch(torch, inputs, gradients=True)
    (output, _) = kernel(torch, which, delta_terms(name, leaves, scale))
    (output * torch.tensor(cotangent)).sum().backward()
    for key, x in leaves.items():
        if x.grad is not None:
            assert ratio(x.grad.numpy(), due[key]) <= 1


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 2**10), length=st.integers(1, 16), begun=st.booleans())
@settings(max_examples=6)
def test_literal_loops_in_float32_stay_within_the_bound(name, seed, length, begun):
    rng = np.random.default_rng(seed)
    groups = heads_of(name)
    inputs = problem(name, rng, length, groups=groups, decays="typical")
    if name in {"retention", "lightning_attention"}:
        del inputs["log_decay"]
    op, state = OPERATORS[name], None
    where = {}
    if begun:
        state = tuple(
            x.astype(np.float32).astype(np.float64)
            for x in earlier_state(name, rng, groups=groups)
        )
        where = {"position": 8} if name == "log_linear_attention" else {}
    scale = op.default_scale(inputs)
    output, states = op.bounded(inputs, scale, FLOAT32, state=state, **where)
    narrow = {k: x.astype(np.float32) for k, x in inputs.items()}
    got, left = over_heads(name, narrow, np.float32(scale), state, **where)
    for found, due in zip((got, *left), (output, *states), strict=True):
        assert np.isfinite(due.bound).all()
        assert ratio(found.astype(np.float32), as_stored(due)) <= 1


def as_stored(due):
    """The same bound on what is stored as float32."""
    return type(due)(due.output, due.once_stored("float32"))


@pytest.mark.parametrize("name", ERASING)
@pytest.mark.parametrize("decays", ["none", "mild", "typical"])
def test_a_bound_of_erases_says_something(name, decays):
    inputs = problem(name, np.random.default_rng(0), 48, 16, 16, decays=decays)
    op = OPERATORS[name]
    output, states = op.bounded(inputs, None, FLOAT32)
    assert output.bound.max() < 0.05 * abs(output.output).max()
    cotangent = np.random.default_rng(1).normal(size=output.output.shape)
    for key, x in op.bounded_gradients(inputs, cotangent, None, FLOAT32).items():
        # One number of a head collects the errors of all its tokens.
        if not key.endswith("log_decay") and key not in ("center", "log_range"):
            assert x.bound.max() < abs(x.output).max()
    assert all(np.isfinite(x.bound).all() for x in states)


@pytest.mark.parametrize("name", ADDITIVE)
def test_a_bound_of_sums_is_a_few_roundings(name):
    inputs = problem(name, np.random.default_rng(0), 64, 16, 16, decays="none")
    output, _ = OPERATORS[name].bounded(inputs, None, FLOAT32)
    # Up to 128 rows, 16 channels and a few products; sums that cancel tenfold.
    assert output.bound.max() < 170 * 2.0**-24 * 10 * abs(output.output).max()


@pytest.mark.parametrize("seed", range(4))
def test_keys_that_are_off_stay_within_the_bound(seed):
    rng = np.random.default_rng(seed)
    key, query = (rng.normal(size=(1, 1, 12, 4)) for _ in range(2))
    key, value = key / np.linalg.norm(key, axis=-1)[..., None], rng.normal(size=(12, 3))
    written = key * rng.uniform(0.7, 1.4, key.shape)

    def run(written, rounding=None, off=0.0):
        tape = Tape(rounding)
        rows = [tape.constant(x) for x in (query, written, value[None, None], key)]
        state = tape.constant(np.ones((1, 1, 4, 3)))
        names = ("query", "key", "value", "erase")
        rows = dict(zip(names, rows, strict=True))
        reads, last = scanned(tape, **rows, state=state, off=off)
        ones = (reads, Ball(np.ones(reads.shape))), (last, Ball(np.ones(last.shape)))
        return [reads.ball, last.ball, *tape.gradients(ones, [*rows.values(), state])]

    expected = run(written, Rounding(FLOAT32), off=1e-4)
    got = run(written * (1 + 1e-4 * rng.choice((-1, 1), written.shape)))
    for one, other in zip(expected, got, strict=True):
        assert (abs(one.value - other.value) <= one.radius).all()
        assert one.radius.max() < 1


@pytest.mark.parametrize("length", [16, 64])
@pytest.mark.parametrize("decays", ["none", "mild", "typical"])
@pytest.mark.parametrize("name", ["delta_rule", "gated_delta_rule", "kda", "gdn2"])
def test_an_erase_that_is_left_out_shows(torch, name, decays, length):
    inputs = problem(name, np.random.default_rng(2), length, 16, 16, decays=decays)
    output, (_memory,) = OPERATORS[name].bounded(inputs, None, FLOAT32)
    terms = delta_terms(name, as_torch(torch, inputs, dtype="float64"), 0.25)
    got, _state = sequential(torch, *terms, skipped=length // 2)
    assert ratio(got.numpy(), output) > 3
    whole, _ = sequential(torch, *terms)
    assert ratio(whole.numpy(), output) < 1e-6


@pytest.mark.parametrize("decays", ["mild", "typical"])
@pytest.mark.parametrize("name", [x for x in CHUNKED if x != "delta_rule"])
def test_a_decay_that_is_missing_at_a_chunk_edge_shows(torch, name, decays):
    inputs = problem(name, np.random.default_rng(3), 64, 16, 16, decays=decays)
    output, _ = OPERATORS[name].bounded(inputs, None, FLOAT32)
    terms = delta_terms(name, as_torch(torch, inputs, dtype="float64"), 0.25)
    got, _ = chunked(torch, *terms, chunk=16, broken=True)
    assert ratio(got.numpy(), output) > 10
    whole, _ = chunked(torch, *terms, chunk=16)
    assert ratio(whole.numpy(), output) < 1e-6


@pytest.mark.parametrize("name", ["kda", "gated_delta_rule"])
def test_a_gradient_without_one_erase_shows(torch, name):
    inputs = problem(name, np.random.default_rng(4), 32, 16, 16, decays="mild")
    cotangent = np.random.default_rng(5).normal(size=inputs["value"].shape)
    due = OPERATORS[name].bounded_gradients(inputs, cotangent, None, FLOAT32)
    for skipped, above in ((None, False), (16, True)):
        leaves = as_torch(torch, inputs, dtype="float64", gradients=True)
        terms = delta_terms(name, leaves, 0.25)
        got, _ = sequential(torch, *terms, skipped=skipped)
        (got * torch.tensor(cotangent)).sum().backward()
        worst = max(ratio(x.grad.numpy(), due[key]) for key, x in leaves.items())
        assert bool(worst > 1) is above


@pytest.mark.parametrize("stage", ["operand", "score", "state", "feature"])
@pytest.mark.parametrize("name", ["gla", "delta_rule", "gsa", "mesa"])
def test_declared_stages_widen_the_bound(name, stage):
    inputs = problem(name, np.random.default_rng(0), 6, decays="mild")
    op = OPERATORS[name]
    plain, _ = op.bounded(inputs, None, FLOAT32)
    narrow = Precisions("float32", **{stage: "float16"})
    wider, _ = op.bounded(inputs, None, narrow)
    assert (wider.bound > 2 * plain.bound).all()


@pytest.mark.parametrize("name", ["gla", "kda", "delta_rule"])
def test_a_declared_chunk_or_confidence_sharpens_the_bound(torch, name):
    inputs = problem(name, np.random.default_rng(0), 200, 8, 8, decays="mild")
    op, scale = OPERATORS[name], 8**-0.5
    plain, _ = op.bounded(inputs, scale, FLOAT32)
    sharp, _ = op.bounded(inputs, scale, FLOAT32, chunk_size=16)
    likely, _ = op.bounded(inputs, scale, FLOAT32, confidence=3.0)
    terms = delta_terms(name, as_torch(torch, inputs), scale)
    got, _ = chunked(torch, *terms, chunk=16)
    for tighter in (sharp, likely):
        assert tighter.bound[..., -1, :].max() < 0.7 * plain.bound[..., -1, :].max()
        assert ratio(got.numpy(), tighter) <= 1


@given(seed=st.integers(0, 2**16), decays=DECAYS)
@settings(max_examples=20)
def test_declared_chunks_hold_for_extreme_decays(torch, seed, decays):
    inputs = drawn("kda", seed, decays, 50)
    scale = OPERATORS["kda"].default_scale(inputs)
    terms = delta_terms("kda", as_torch(torch, inputs), scale)
    for chunk in (1, 4, 16):
        due, (memory,) = OPERATORS["kda"].bounded(
            inputs, scale, FLOAT32, chunk_size=chunk
        )
        got, state = chunked(torch, *terms, chunk=chunk)
        assert ratio(got.numpy(), due) <= 1
        assert ratio(state.numpy(), memory) <= 1


def test_what_cannot_be_proved_is_infinite():
    inputs = problem("kda", np.random.default_rng(0), 300, 16, 16, decays="extreme")
    output, (memory,) = OPERATORS["kda"].bounded(inputs, None, Precisions("bfloat16"))
    assert np.isinf(output.bound).all()
    assert np.isinf(memory.bound).all()


def test_integers_and_float64_leave_next_to_nothing():
    inputs = problem("kda", np.random.default_rng(0), 30, 8, 8, decays="mild")
    output, _ = OPERATORS["kda"].bounded(inputs, None, Precisions("float64"))
    assert output.bound.max() < 1e-11


@pytest.mark.parametrize("name", ["simple_gla", "gla", "kda", "rwkv4"])
def test_float64_bounds_are_proved_where_everything_is_forgotten(name):
    rng = np.random.default_rng(3)
    inputs = problem(name, rng, 12, decays="extreme")
    precisions = Precisions("float64")
    output, _ = OPERATORS[name].bounded(inputs, None, precisions, chunk_size=1)
    assert np.isfinite(output.bound).all()


def test_a_range_of_zero_is_no_less_provable_than_the_plain_rule():
    """Though sums that are lost and begin again are known to no digit."""
    name, rng = "preconditioned_gated_delta_rule", np.random.default_rng(3)
    inputs = problem(name, rng, 200, 4, 4, decays="mild")
    inputs["key"] = np.eye(4)[rng.integers(0, 4, inputs["key"].shape[:-1])]
    lost = rng.uniform(size=inputs["preconditioner_log_decay"].shape) < 0.2
    inputs["preconditioner_log_decay"] = np.where(lost, -900.0, 0.0)
    inputs["log_range"] = np.zeros_like(inputs["log_range"])
    ones = np.ones(inputs["value"].shape)
    gradients = OPERATORS[name].bounded_gradients(inputs, ones, None, FLOAT32)
    assert all(np.isfinite(one.bound).all() for one in gradients.values())


def test_an_underflow_of_float64_counts_in_the_products_that_follow():
    rounding = Rounding(Precisions("float64"))
    lost = Ball(np.zeros((1, 1)), np.full((1, 1), rounding.tiny))
    share = Ball(np.full((1, 1), 0.125))
    error = contracted("ab,bc->ac", lost, share, rounding).radius.item()
    assert error > 3.1 * rounding.tiny
    assert rounding.tiny < 1e-300
