"""Mamba-3: what it refuses, its circle, and the sum that chunked kernels form."""

import numpy as np
import pytest

import linkern
from tests.operators.problems import close, problem

LENGTH, K, V = 40, 6, 3


@pytest.fixture
def inputs():
    rng = np.random.default_rng(0)
    return problem("mamba3", rng, LENGTH, key_dim=K, value_dim=V)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("dt", lambda x: -x, "`dt` must be zero or positive"),
        ("trapezoid", lambda x: 1.5 + x, r"`trapezoid` must be in \[0, 1\]"),
        ("trapezoid", lambda x: -x, r"`trapezoid` must be in \[0, 1\]"),
        ("log_decay", lambda x: 1 - x, "`log_decay`"),
        (
            "angle",
            lambda x: np.concatenate([x, x[..., :1]], axis=-1),
            "at most 3 for K = 6, got 4",
        ),
    ],
)
def test_what_it_refuses(inputs, name, wrong, message):
    with pytest.raises(ValueError, match=message):
        linkern.mamba3(**{**inputs, name: wrong(inputs[name])})


def test_a_state_of_another_size_is_refused(inputs):
    state = linkern.mamba3(**inputs).state
    short = linkern.State(state.memory, state.normalizer[..., 1:])
    with pytest.raises(ValueError, match="P \\+ K \\+ V"):
        linkern.mamba3(**inputs, initial_state=short)


def test_angles_stay_on_the_circle(inputs):
    state = linkern.mamba3(**inputs).state
    angles = state.normalizer[..., : K // 2]
    assert ((angles >= 0) & (angles < 2 * np.pi)).all()
    sums = (np.pi * np.tanh(inputs["angle"]) * inputs["dt"][..., None]).sum(-2)
    assert (abs(sums) > 2 * np.pi).any()
    close(np.exp(1j * angles), np.exp(1j * sums))


def test_a_whole_turn_is_none(inputs):
    inputs["dt"] = np.full_like(inputs["dt"], 2.0)
    whole = {**inputs, "angle": np.full_like(inputs["angle"], 40.0)}
    close(
        linkern.mamba3(**whole).output,
        linkern.mamba3(**{**inputs, "angle": None}).output,
    )


def test_the_last_state_is_the_last_rotated_key_and_the_last_value(inputs):
    # The first token after a break meets them as if there had been none.
    state = linkern.mamba3(**inputs).state
    angles, key, value = np.split(state.normalizer, [K // 2, K // 2 + K], axis=-1)
    pairs = inputs["key"][..., -1, 0::2] + 1j * inputs["key"][..., -1, 1::2]
    turned = pairs * np.exp(1j * angles)
    close(key, np.stack([turned.real, turned.imag], axis=-1).reshape(key.shape))
    np.testing.assert_array_equal(value, inputs["value"][..., -1, :])


def test_both_writes_are_one_row_of_which_a_part_is_taken_back(inputs):
    """As chunked kernels do: a token also writes what the next one writes for it."""
    whole = linkern.mamba3(**inputs).output
    turn = np.cumsum(
        np.pi * np.tanh(inputs["angle"]) * inputs["dt"][..., None], axis=-2
    )
    rotated = {}
    for name in ("query", "key"):
        x = inputs[name][..., 0::2] + 1j * inputs[name][..., 1::2]
        x = x * np.exp(1j * turn)
        both = np.stack([x.real, x.imag], axis=-1)
        rotated[name] = both.reshape(inputs[name].shape)
    now = inputs["trapezoid"] * inputs["dt"]
    ahead = np.zeros_like(now)
    ahead[..., :-1] = ((1 - inputs["trapezoid"]) * inputs["dt"])[..., 1:]
    scaled = (now + ahead)[..., None] * rotated["key"]
    sums = linkern.simple_gla(
        rotated["query"], scaled, inputs["value"], inputs["log_decay"], scale=1.0
    ).output
    scores = (rotated["query"] * rotated["key"]).sum(-1, keepdims=True)
    close(whole, sums - ahead[..., None] * scores * inputs["value"])
