"""Our forms and gradients, held to the oracle's bounds as any kernel would be."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import linkern
from linkern import State
from linkern.oracle import OPERATORS, Precisions
from tests.marks import slow_unless
from tests.operators.paper_loops import FIELDS
from tests.operators.problems import NAMES, operator, parts, problem
from tests.operators.test_paper_loops import LENGTH, REDUCTIONS, K, V

EXTREMES = (0.0, -1e-4, -1.0, -5.0, -20.0, -88.0, -1e4, -np.inf)
SOME = (0.0, -5.0, -np.inf)
DECAYING = tuple(name for name in NAMES if "log_decay" in FIELDS[name])
FORMS = ({"form": "recurrent"}, {"form": "parallel"}, {"chunk_size": 4}, {})
FLOAT32 = Precisions("float32")


def single(inputs):
    return {key: x.astype(np.float32) for key, x in inputs.items()}


def double(inputs):
    return {key: x.astype(np.float64) for key, x in inputs.items()}


def within(got, due, *, proved=True):
    """Within the bound, the result being stored in float32; and the bound is one."""
    got = np.asarray(got, dtype=np.float64)
    assert not np.isnan(got).any()
    with np.errstate(invalid="ignore"):
        far = abs(got - due.output) > due.once_stored("float32")
    assert not (far & (got != due.output)).any()
    if proved:
        assert np.isfinite(due.bound).all()


def chunks_of(form, length):
    """What a kernel with this form would declare."""
    return {"recurrent": 1, "parallel": length}.get(
        form.get("form"), form.get("chunk_size", 64)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_form_is_within_the_proved_bound(name):
    @settings(max_examples=12)
    @given(
        st.integers(0, 2**16).map(np.random.default_rng),
        st.integers(1, 20) | st.sampled_from([33, 65]),
        st.sampled_from(FORMS),
    )
    def law(rng, length, form):
        inputs = single(problem(name, rng, length))
        output, states = OPERATORS[name].bounded(
            double(inputs), None, FLOAT32, chunk_size=chunks_of(form, length)
        )
        result = operator(name)(**inputs, **form)
        within(result.output, output, proved=False)
        for got, due in zip(parts(result.state), states, strict=True):
            within(got, due, proved=False)

    law()


@pytest.mark.parametrize("strength", slow_unless(SOME.__contains__, EXTREMES))
@pytest.mark.parametrize("name", DECAYING)
def test_gradients_are_within_the_bound_at_every_decay(name, strength):
    """Constant decays, and the same here and there among weak ones."""
    rng = np.random.default_rng(11)
    inputs = single(problem(name, rng, 12))
    shape = inputs["log_decay"].shape
    mixed = np.where(
        rng.random(shape) < 0.3, strength, -abs(rng.normal(size=shape)) / 10
    )
    for decays in (np.full(shape, strength), mixed):
        inputs["log_decay"] = decays.astype(np.float32)
        for form in FORMS[:3]:
            result, pullback = linkern.vjp(operator(name), **inputs, **form)
            of_output = rng.normal(size=result.output.shape).astype(np.float32)
            found = pullback(of_output)
            due = OPERATORS[name].bounded_gradients(
                double(inputs),
                of_output.astype(np.float64),
                None,
                FLOAT32,
                chunk_size=chunks_of(form, 12),
            )
            for key, gradient in found.items():
                within(gradient, due[key], proved=False)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_the_sequential_adjoint(name):
    """In float64, of inputs and of the initial state, with both cotangents."""
    rng = np.random.default_rng(12)
    inputs = problem(name, rng, 9)
    result, pullback = linkern.vjp(operator(name), **inputs, chunk_size=4)
    of_output = rng.normal(size=result.output.shape)
    of_state = State(
        *(None if x is None else rng.normal(size=x.shape) for x in result.state)
    )
    due = OPERATORS[name].gradients(
        inputs, of_output, state_cotangent=tuple(parts(of_state))
    )
    for key, gradient in pullback(of_output, of_state).items():
        size = abs(due[key]).max(initial=0)
        assert (abs(gradient - due[key]) <= 2.0**-36 * (1 + size)).all(), key


def test_most_bounds_are_proved():
    """An infinite bound would let anything pass: there must be few."""
    rng = np.random.default_rng(13)
    for name in NAMES:
        inputs = double(single(problem(name, rng, 20)))
        output, states = OPERATORS[name].bounded(inputs, None, FLOAT32, chunk_size=4)
        for due in (output, *states):
            assert np.isfinite(due.bound).mean() > 0.95, name
        largest = abs(output.output).max()
        assert np.median(output.bound) < 0.02 * largest, name


def integers(name, rng, length=LENGTH):
    """Inputs of one head whose results are exact in any order.

    One-hot keys, gates of 0 and 1, decays that keep everything or forget everything.
    """
    inputs = {
        k: x[0, 0]
        for k, x in problem(name, rng, length, heads=1, key_dim=K, value_dim=V).items()
    }
    for key, x in inputs.items():
        if key in ("key", "a", "b", "removal_key", "auxiliary_key"):
            hot = np.eye(x.shape[-1])[rng.integers(0, x.shape[-1], len(x))]
            inputs[key] = -hot if key == "a" else hot
        elif key == "log_decay":
            inputs[key] = np.where(rng.random(x.shape) < 0.2, -np.inf, 0.0)
        elif key in ("beta", "removal_rate", "erase_gate", "write_gate"):
            inputs[key] = rng.integers(0, 2, x.shape).astype(float)
        else:
            inputs[key] = rng.integers(-4, 5, x.shape).astype(float)
    return inputs


# Decays of a fixed number are no integers; these are tested on reals.
_FIXED = ("retention", "lightning_attention")


@pytest.mark.parametrize("form", FORMS[:3], ids=str)
@pytest.mark.parametrize("names", REDUCTIONS, ids="->".join)
def test_an_operator_reduces_to_another(names, form):
    reduce, _ = REDUCTIONS[names]
    rng = np.random.default_rng(14)
    if names[1] not in _FIXED:
        wide, narrow = reduce(integers(names[0], rng))
        one, other = (
            operator(name)(**own(name, x), scale=1.0, **form)
            for name, x in zip(names, (wide, narrow), strict=True)
        )
        np.testing.assert_array_equal(one.output, other.output)
        # Of a pair of memories, the first.
        memory = one.state.memory[..., : other.state.memory.shape[-2], :]
        np.testing.assert_array_equal(memory, other.state.memory)

    drawn = {
        key: x[0, 0]
        for key, x in problem(
            names[0], rng, LENGTH, heads=1, key_dim=K, value_dim=V
        ).items()
    }
    wide, narrow = reduce(drawn)
    if names[1] in _FIXED:
        narrow = {**narrow, "log_decay": wide["log_decay"][:1][0]}
        if names[1] == "lightning_attention":
            return  # its slopes belong to a number of heads: see test_slopes
    wide, narrow = (
        single({k: x for k, x in y.items() if x is not None}) for y in (wide, narrow)
    )
    results = [
        operator(name)(**own(name, x), scale=0.5, **form)
        for name, x in zip(names, (wide, narrow), strict=True)
    ]
    batched = {
        k: x[None, None].astype(np.float64) for k, x in own(names[0], wide).items()
    }
    due, _ = OPERATORS[names[0]].bounded(
        batched, 0.5, FLOAT32, chunk_size=chunks_of(form, LENGTH)
    )
    apart = abs(results[0].output.astype(np.float64) - results[1].output)
    assert (apart <= 2 * due.once_stored("float32")[0, 0]).all()


def own(name, inputs):
    """The inputs that an operator has."""
    names = (*FIELDS[name], *(("log_decay",) if name == "retention" else ()))
    return {key: inputs[key] for key in names if inputs.get(key) is not None}


def test_slopes_of_retention_and_lightning():
    rng = np.random.default_rng(15)
    query, key, value = (rng.normal(size=(4, 9, 3)) for _ in range(3))
    heads = np.arange(4.0)
    slopes = {
        "retention": (np.log(1 - 2.0 ** (-5 - heads)), {}),
        "lightning_attention": (
            -8 * heads / 4 * (1 - 1 / 3),
            {"layer": 1, "layers": 3},
        ),
    }
    for name, (log_decay, options) in slopes.items():
        due = linkern.simple_gla(query, key, value, np.tile(log_decay[:, None], 9))
        got = operator(name)(query, key, value, **options)
        assert abs(got.output - due.output).max() < 1e-13
