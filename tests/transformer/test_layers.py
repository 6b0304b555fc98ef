"""What stands around attention: norms, maps, heads, positions, embeddings."""

from inspect import isfunction, signature

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linkern import transformer
from linkern.transformer import embeddings, layers
from linkern.transformer.parameters import Source

SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 2**32 - 1)
# A few dozen roundings of float64 in rows of a few numbers of size 1.
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def norm_of(lib, width, rng):
    scale, offset = rng.normal(size=(2, width))
    return layers.LayerNorm(lib.array(scale), lib.array(offset), 1e-5)


def law_a_norm_gives_mean_0_and_variance_1(lib, norm, axis, rng):
    x = rng.normal(size=(2, 5, 6)) * 3 + 7
    plain = layers.LayerNorm(lib.array(np.ones(6)), lib.array(np.zeros(6)), 0.0)
    got = lib.numpy(norm(plain, lib.array(x)))
    np.testing.assert_allclose(got.mean(axis), 0, atol=1e-12)
    np.testing.assert_allclose(got.var(axis), 1, atol=1e-12)


def test_norms_give_mean_0_and_variance_1(eager_lib):
    rng = np.random.default_rng(0)
    law_a_norm_gives_mean_0_and_variance_1(eager_lib, layers.layer_norm, -1, rng)
    law_a_norm_gives_mean_0_and_variance_1(eager_lib, layers.instance_norm, -2, rng)


@pytest.mark.parametrize(
    ("norm", "axis"), [(layers.layer_norm, -2), (layers.instance_norm, -1)]
)
def test_a_norm_over_the_other_axis_breaks_the_law(eager_lib, norm, axis):
    with pytest.raises(AssertionError):
        law_a_norm_gives_mean_0_and_variance_1(
            eager_lib, norm, axis, np.random.default_rng(0)
        )


def test_layer_norm_and_feed_forward_are_those_of_torch(torch):
    rng = np.random.default_rng(1)
    x, scale, offset = rng.normal(size=(3, 7, 7))
    norm = layers.LayerNorm(*(torch.asarray(a[0]) for a in (scale, offset)))
    due = torch.nn.functional.layer_norm(
        torch.asarray(x), (7,), norm.scale, norm.offset
    )
    torch.testing.assert_close(layers.layer_norm(norm, torch.asarray(x)), due)
    for name, approximate in (("relu", None), ("gelu_tanh", "tanh")):
        made = layers.FeedForward.create(
            7, 5, activation=name, rng=0, like=torch.zeros(1, dtype=torch.float64)
        )
        hidden = torch.asarray(x) @ made.inner.weight + made.inner.bias
        functional = torch.nn.functional
        hidden = (
            functional.gelu(hidden, approximate=approximate)
            if approximate
            else functional.relu(hidden)
        )
        due = hidden @ made.outer.weight + made.outer.bias
        torch.testing.assert_close(layers.feed_forward(made, torch.asarray(x)), due)


@given(SIZES, SIZES, SIZES, SEEDS)
def test_a_layer_per_head_sees_its_own_part_only(heads, dim, length, seed):
    rng = np.random.default_rng(seed)
    made = layers.FeedForward.create(
        heads * dim, heads * 2, heads=heads, rng=rng, like=np.zeros(1)
    )
    x = rng.normal(size=(2, length, heads * dim))
    whole = layers.feed_forward(made, x)
    for h in range(heads):
        own = slice(h * dim, (h + 1) * dim)
        one = layers.FeedForward(
            layers.Affine(made.inner.weight[h], made.inner.bias[h]),
            layers.Affine(made.outer.weight[h], made.outer.bias[h]),
        )
        np.testing.assert_allclose(
            whole[..., own], layers.feed_forward(one, x[..., own]), **CLOSE
        )


@given(SIZES, SIZES, SIZES)
def test_heads_apart_and_together_again(heads, dim, length):
    x = np.arange(2 * length * heads * dim).reshape(2, length, heads * dim)
    parts = layers.apart(x, heads)
    assert parts.shape == (2, heads, length, dim)
    np.testing.assert_array_equal(
        parts[:, heads - 1], x[..., (heads - 1) * dim : heads * dim]
    )
    np.testing.assert_array_equal(layers.together(parts), x)


def test_sinusoidal_positions_are_those_of_the_paper(eager_lib):
    like = eager_lib.array(np.zeros(1))
    got = eager_lib.numpy(transformer.sinusoidal_positions(50, 6, like=like))
    for p in range(50):
        for i in range(3):
            angle = p / 10000 ** (2 * i / 6)
            # The angle is rounded to 1 in 2^53 of up to 50.
            assert got[p, 2 * i] == pytest.approx(np.sin(angle), abs=1e-13)
            assert got[p, 2 * i + 1] == pytest.approx(np.cos(angle), abs=1e-13)


def test_positions_from_a_start_are_those_of_a_longer_sequence(eager_lib):
    like = eager_lib.array(np.zeros(1))
    starts = eager_lib.array(np.asarray([0, 3]))
    whole = eager_lib.numpy(transformer.sinusoidal_positions(7, 4, like=like))
    got = transformer.sinusoidal_positions(4, 4, like=like, start=starts)
    got = eager_lib.numpy(got)
    np.testing.assert_array_equal(got[0], whole[:4])
    np.testing.assert_array_equal(got[1], whole[3:])


def test_rows_of_a_table(eager_lib):
    table = eager_lib.array(np.arange(6.0).reshape(3, 2))
    indices = eager_lib.array(np.asarray([[2, 0], [1, 1]]))
    got = eager_lib.numpy(embeddings.embed("tokens", table, indices))
    np.testing.assert_array_equal(got, [[[4, 5], [0, 1]], [[2, 3], [2, 3]]])


@pytest.mark.parametrize(
    ("indices", "error", "sentence"),
    [
        (np.asarray([0.5]), TypeError, "`tokens` must be an array of integers"),
        ([0], TypeError, "`tokens` must be an array of integers, got list"),
        (
            np.asarray([3]),
            ValueError,
            r"`tokens` must be in 0..2, got an entry outside",
        ),
        (np.asarray([-1]), ValueError, r"`tokens` must be in 0..2"),
    ],
)
def test_a_token_that_is_none_is_named(indices, error, sentence):
    with pytest.raises(error, match=sentence):
        embeddings.embed("tokens", np.zeros((3, 2)), indices)


def test_tokens_of_another_library_are_named(torch):
    with pytest.raises(TypeError, match="library of the parameters"):
        embeddings.embed("tokens", np.zeros((3, 2)), torch.asarray([1]))


def test_the_same_seed_gives_the_same_numbers_in_every_library(eager_lib):
    like = eager_lib.array(np.zeros(1, np.float32))
    ours = Source(7, like).normal((3, 2), 0.5)
    assert ours.dtype == like.dtype
    np.testing.assert_array_equal(eager_lib.numpy(ours), Source(7).normal((3, 2), 0.5))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"activation": "tanh"}, '`activation` must be one of "relu", "gelu_tanh"'),
        ({"heads": 3}, r"`width` must be a multiple of `heads` \(3\)"),
    ],
)
def test_a_feed_forward_layer_that_cannot_be(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        layers.FeedForward.create(4, 6, **options)


def test_sinusoidal_positions_need_pairs():
    with pytest.raises(ValueError, match="`width` must be even"):
        transformer.sinusoidal_positions(3, 5, like=np.zeros(1))


TAKE_PARAMETERS = [
    name
    for name in transformer.__all__
    if isfunction(getattr(transformer, name))
    and [*signature(getattr(transformer, name)).parameters][:1] == ["parameters"]
    # Two are for any tree, and `decode` looks at its state first.
    and name not in ("named_arrays", "with_arrays", "decode")
]


@pytest.mark.parametrize("name", TAKE_PARAMETERS)
@pytest.mark.parametrize("parameters", [None, np.ones((2, 8)), {}], ids=type)
def test_parameters_of_another_kind_are_named(name, parameters):
    function = getattr(transformer, name)
    needed = [
        1 if one.name == "steps" else np.ones((1, 2, 8))
        for one in [*signature(function).parameters.values()][1:]
        if one.default is one.empty
    ]
    with pytest.raises(TypeError, match="`parameters` must be "):
        function(parameters, *needed)


AFFINE = layers.Affine.create(4, 3, rng=0)
NORM = layers.LayerNorm.create(4)
PER_HEAD = layers.FeedForward.create(4, 6, heads=2, rng=0)
WIDTH = r"`x` must have shape \(..., 4\), got "
TOKENS = r"`x` must have shape \(..., T, 4\), got "


@pytest.mark.parametrize(
    ("function", "parameters", "x", "error", "sentence"),
    [
        (layers.affine, AFFINE, np.ones((2, 5)), ValueError, WIDTH + r"\(2, 5\)"),
        (layers.affine, AFFINE, [1.0] * 4, TypeError, "`x` must be an array .* list"),
        # A row of one number would be spread over all features.
        (layers.layer_norm, NORM, np.ones((2, 1)), ValueError, WIDTH + r"\(2, 1\)"),
        (
            layers.layer_norm,
            NORM,
            np.ones((2, 4), int),
            TypeError,
            "a real floating dtype",
        ),
        (layers.instance_norm, NORM, np.ones(4), ValueError, TOKENS + r"\(4,\)"),
        (layers.feed_forward, PER_HEAD, np.ones((3, 5)), ValueError, TOKENS),
        (layers.feed_forward, PER_HEAD, np.ones(4), ValueError, TOKENS),
    ],
)
def test_rows_that_do_not_fit_are_named(function, parameters, x, error, sentence):
    with pytest.raises(error, match=sentence):
        function(parameters, x)
    fitting = np.ones((2, 4), np.float32)
    assert function(parameters, fitting).shape[0] == 2
