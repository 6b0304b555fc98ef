"""Mamba-3: what it refuses, its circle, its ranks, the sum of chunked kernels."""

import numpy as np
import pytest

import linkern
from tests.operators.problems import close, problem

LENGTH, K, V, RANK = 40, 6, 3, 3
FORMS = ("recurrent", "chunkwise", "parallel", "auto")


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


@pytest.fixture
def of_ranks():
    rng = np.random.default_rng(1)
    return problem("mamba3_mimo", rng, LENGTH, key_dim=K, value_dim=V, steps=RANK)


@pytest.mark.parametrize("form", FORMS)
def test_one_rank_is_mamba3_bitwise(inputs, form):
    ones = {name: np.ones((1, V)) for name in ("value_mix", "output_mix")}
    expected = linkern.mamba3(**inputs, form=form)
    result = linkern.mamba3_mimo(**inputs, **ones, form=form)
    for got, one in zip(
        (result.output, *result.state), (expected.output, *expected.state), strict=True
    ):
        np.testing.assert_array_equal(got, one)


@pytest.mark.parametrize("form", FORMS)
def test_ranks_may_change_places(of_ranks, form):
    def turned(x, size):
        ranks = x.reshape(*x.shape[:-1], RANK, size)
        return np.roll(ranks, 1, axis=-2).reshape(x.shape)

    others = {name: turned(of_ranks[name], K) for name in ("query", "key")}
    mixes = {
        name: np.roll(of_ranks[name], 1, axis=-2)
        for name in ("value_mix", "output_mix")
    }
    result = linkern.mamba3_mimo(**of_ranks, form=form)
    other = linkern.mamba3_mimo(**{**of_ranks, **others, **mixes}, form=form)
    close(other.output, result.output)
    close(other.state.memory, result.state.memory)


def test_a_rank_alone_reads_what_one_query_reads(of_ranks):
    """Other rows of `output_mix` zero give the outputs of the ranks one by one."""
    whole = linkern.mamba3_mimo(**of_ranks).output
    alone = []
    for rank in range(RANK):
        mix = np.zeros_like(of_ranks["output_mix"])
        mix[:, rank] = of_ranks["output_mix"][:, rank]
        one = linkern.mamba3_mimo(**{**of_ranks, "output_mix": mix})
        alone.append(one.output)
    close(sum(alone), whole)
    assert all(abs(output).max() > 0.1 for output in alone)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        (
            "value_mix",
            lambda x: x[:, 1:],
            r"R = 2 is that of `value_mix`, got \(2, 3, 3",
        ),
        (
            "output_mix",
            lambda x: x[..., 1:],
            r"`output_mix` must have shape \(..., R, V",
        ),
        (
            "angle",
            lambda x: np.concatenate([x, x[..., :1]], axis=-1),
            "at most 3 for K = 18 and R = 3, got 4",
        ),
    ],
)
def test_what_ranks_refuse(of_ranks, name, wrong, message):
    changed = {**of_ranks, name: wrong(of_ranks[name])}
    with pytest.raises(ValueError, match=message):
        linkern.mamba3_mimo(**changed)


def test_keys_are_a_multiple_of_the_rank(of_ranks):
    shorter = {name: of_ranks[name][..., 1:] for name in ("query", "key")}
    with pytest.raises(ValueError, match="R = 3 as in `value_mix`, got K = 17"):
        linkern.mamba3_mimo(**{**of_ranks, **shorter})


def test_a_memory_of_all_keys_is_refused(of_ranks):
    state = linkern.mamba3_mimo(**of_ranks).state
    wide = linkern.State(np.repeat(state.memory, RANK, axis=-2), state.normalizer)
    with pytest.raises(ValueError, match=r"\(..., K / R, V\) = \(1, 2, 6, 3\)"):
        linkern.mamba3_mimo(**of_ranks, initial_state=wide)


def test_mixes_must_be_there(of_ranks):
    with pytest.raises(TypeError, match="`value_mix` must be an array"):
        linkern.mamba3_mimo(**{**of_ranks, "value_mix": None})
