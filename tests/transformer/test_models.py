"""Encoders, decoders and whole models: against PyTorch's own, and by their laws."""

import numpy as np
import pytest

from linkern import transformer
from linkern.transformer import forward, models

CLOSE = {"rtol": 0, "atol": 1e-11}


def stack_of(lib=None, **options):
    like = np.zeros(1) if lib is None else lib.array(np.zeros(1))
    return transformer.Stack.create(8, 2, 2, rng=0, like=like, **options)


def vectors(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


class Numpy:
    """NumPy, where a law is only to be seen to fail."""

    array = staticmethod(np.asarray)
    numpy = staticmethod(np.asarray)


def linear_of_torch(torch, theirs, ours):
    with torch.no_grad():
        theirs.weight.copy_(ours.weight.T)
        theirs.bias.copy_(ours.bias)


def attention_of_torch(torch, theirs, ours):
    names = ("query", "key", "value")
    with torch.no_grad():
        theirs.in_proj_weight.copy_(
            torch.cat([ours.inputs[name].weight.T for name in names])
        )
        theirs.in_proj_bias.copy_(torch.cat([ours.inputs[n].bias for n in names]))
    linear_of_torch(torch, theirs.out_proj, ours.output)


def norm_of_torch(torch, theirs, ours):
    with torch.no_grad():
        theirs.weight.copy_(ours.scale)
        theirs.bias.copy_(ours.offset)


def noisy(torch, made):
    """Biases begin at 0 and norms at 1: what is never another number is not tested."""
    generator = torch.Generator().manual_seed(0)

    def other(x):
        return x + 0.3 * torch.randn(x.shape, generator=generator, dtype=x.dtype)

    arrays = transformer.named_arrays(made)
    return transformer.with_arrays(made, {n: other(x) for n, x in arrays.items()})


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("cross", [False, True])
def test_layers_are_those_of_torch(torch, norm_first, cross):
    like = torch.zeros(1, dtype=torch.float64)
    ours = transformer.Stack.create(
        8,
        2,
        2,
        cross=cross,
        rng=0,
        like=like,
        operator="softmax_attention",
        cross_operator="softmax_attention",
        hidden=12,
        norm_first=norm_first,
    )
    ours = noisy(torch, ours)
    kind = (
        torch.nn.TransformerDecoderLayer if cross else torch.nn.TransformerEncoderLayer
    )
    x, memory = torch.asarray(vectors(3, 5, 8)), torch.asarray(vectors(3, 4, 8, seed=1))
    due = x
    for layer in ours.layers:
        theirs = kind(8, 2, 12, 0.0, batch_first=True, norm_first=norm_first)
        theirs = theirs.double().train()  # the fast path of eval knows no other shapes
        attention_of_torch(torch, theirs.self_attn, layer.attention)
        norms = [theirs.norm1, theirs.norm2]
        if cross:
            attention_of_torch(torch, theirs.multihead_attn, layer.cross)
            norms.append(theirs.norm3)
        linear_of_torch(torch, theirs.linear1, layer.feed_forward.inner)
        linear_of_torch(torch, theirs.linear2, layer.feed_forward.outer)
        for theirs_, norm in zip(norms, layer.norms, strict=True):
            norm_of_torch(torch, theirs_, norm)
        causal = torch.nn.Transformer.generate_square_subsequent_mask(
            5, dtype=torch.float64
        )
        with torch.no_grad():
            more = {"memory": memory, "tgt_mask": causal} if cross else {}
            due = theirs(due, **more)
    if norm_first:
        norm = ours.final_norm
        due = torch.nn.functional.layer_norm(due, (8,), norm.scale, norm.offset)
    if cross:
        got = transformer.decoder(ours, x, memory)
    else:
        got = transformer.encoder(ours, x)
    torch.testing.assert_close(got, due, rtol=0, atol=1e-11)


def law_an_encoder_knows_no_order(lib, encode, positions=0.0):
    x = vectors(2, 6, 8) + positions
    order = np.asarray([3, 0, 5, 1, 2, 4])
    straight = lib.numpy(encode(lib.array(x)))
    permuted = lib.numpy(encode(lib.array(x[:, order])))
    np.testing.assert_allclose(permuted, straight[:, order], **CLOSE)


@pytest.mark.parametrize("norm", ["layer", "instance"])
@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention"])
def test_an_encoder_knows_no_order(eager_lib, operator, norm):
    made = stack_of(eager_lib, operator=operator, norm=norm)
    law_an_encoder_knows_no_order(eager_lib, lambda x: transformer.encoder(made, x))


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention"])
def test_a_decoder_and_positions_do_know_an_order(operator):
    made = stack_of(operator=operator)
    places = transformer.sinusoidal_positions(6, 8, like=np.zeros(1))
    with pytest.raises(AssertionError):
        law_an_encoder_knows_no_order(Numpy(), lambda x: transformer.decoder(made, x))
    with pytest.raises(AssertionError):
        law_an_encoder_knows_no_order(
            Numpy(), lambda x: transformer.encoder(made, x + places)
        )


def language_model(operator="linear_attention", lib=None, **options):
    like = np.zeros(1) if lib is None else lib.array(np.zeros(1))
    return transformer.LanguageModel.create(
        9, 8, 2, 2, operator=operator, rng=0, like=like, **options
    )


def law_logits_depend_on_the_past_alone(lib, made):
    rng = np.random.default_rng(0)
    tokens, others = rng.integers(0, 9, size=(2, 3, 8))
    others[:, :5] = tokens[:, :5]
    first, second = (
        lib.numpy(transformer.language_model(made, lib.array(x)))
        for x in (tokens, others)
    )
    np.testing.assert_allclose(second[:, :5], first[:, :5], **CLOSE)
    assert abs(second[:, 5:] - first[:, 5:]).max() > 1e-3


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention", "gla"])
@pytest.mark.parametrize("norm_first", [True, False])
def test_logits_depend_on_the_past_alone(eager_lib, operator, norm_first):
    made = language_model(operator, eager_lib, norm_first=norm_first)
    law_logits_depend_on_the_past_alone(eager_lib, made)


def test_instance_norm_in_a_causal_model_breaks_the_law(monkeypatch):
    made = language_model()
    monkeypatch.setitem(forward._NORMS, "layer", forward.instance_norm)
    with pytest.raises(AssertionError):
        law_logits_depend_on_the_past_alone(Numpy(), made)


def test_instance_norm_is_refused_where_it_would_look_ahead():
    made = language_model(norm="instance")
    with pytest.raises(ValueError, match='`norm` must be "layer" in a causal model'):
        transformer.language_model(made, np.asarray([[1]]))
    visible = np.ones((1, 3), bool)
    with pytest.raises(ValueError, match="`visible` must be None with instance norm"):
        transformer.encoder(
            stack_of(norm="instance"), vectors(1, 3, 8), visible=visible
        )


def law_rows_of_a_batch_do_not_meet(lib, made, call):
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 9, size=(2, 3, 6))
    visible = rng.uniform(size=(3, 6)) < 0.7
    visible[:, 0] = True
    together = lib.numpy(
        call(made, lib.array(source), lib.array(target), visible=lib.array(visible))
    )
    for n in range(3):
        own = source[n : n + 1, : visible[n].sum()]
        kept = np.zeros((1, 6), int)
        # Positions count, so what is seen is put in front.
        kept[:, : own.shape[1]] = own
        there = np.arange(6)[None] < own.shape[1]
        alone, padded = (
            lib.numpy(call(made, lib.array(s), lib.array(target[n : n + 1]), visible=v))
            for s, v in ((own, None), (kept, lib.array(there)))
        )
        np.testing.assert_allclose(padded, alone, **CLOSE)
    one = lib.numpy(
        call(
            made,
            lib.array(source[1:2]),
            lib.array(target[1:2]),
            visible=lib.array(visible[1:2]),
        )
    )
    np.testing.assert_allclose(together[1:2], one, **CLOSE)


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention"])
def test_padding_does_not_matter(eager_lib, operator):
    made = transformer.EncoderDecoder.create(
        9,
        9,
        8,
        2,
        2,
        operator=operator,
        cross_operator=operator,
        rng=0,
        like=eager_lib.array(np.zeros(1)),
    )
    law_rows_of_a_batch_do_not_meet(eager_lib, made, transformer.encoder_decoder)


@pytest.mark.parametrize("operator", ["linear_attention", "softmax_attention"])
def test_padding_that_is_looked_at_breaks_the_law(monkeypatch, operator):
    made = transformer.EncoderDecoder.create(
        9, 9, 8, 1, 2, operator=operator, rng=0, like=np.zeros(1)
    )
    true = models.encoder
    monkeypatch.setattr(
        models, "encoder", lambda p, x, *, visible, form: true(p, x, form=form)
    )
    with pytest.raises(AssertionError):
        law_rows_of_a_batch_do_not_meet(Numpy(), made, transformer.encoder_decoder)


def test_torch_differentiates_the_model_as_it_is(torch):
    made = language_model()
    tokens = np.asarray([[1, 4, 2, 8], [5, 7, 1, 0]])

    def loss(arrays, xp):
        logits = transformer.language_model(
            transformer.with_arrays(made, arrays), xp.asarray(tokens)
        )
        return (xp.cos(logits) * xp.asarray(vectors(2, 4, 9))).sum()

    arrays = {
        n: torch.asarray(x).requires_grad_()
        for n, x in transformer.named_arrays(made).items()
    }
    loss(arrays, torch).backward()
    for name, x in transformer.named_arrays(made).items():
        along = vectors(*x.shape, seed=5)
        up, down = (
            loss({**transformer.named_arrays(made), name: x + step * along}, np)
            for step in (1e-5, -1e-5)
        )
        due = float((arrays[name].grad.numpy() * along).sum())
        # A central difference is off by step^2 times a third derivative of size 10^2.
        assert (up - down) / 2e-5 == pytest.approx(due, rel=1e-5, abs=1e-6), name


def test_jax_differentiates_the_model_as_it_is(jax, torch):
    made = language_model("gated_delta_rule")
    tokens = np.asarray([[1, 4, 2]])

    def loss(arrays, xp):
        logits = transformer.language_model(
            transformer.with_arrays(made, arrays), xp.asarray(tokens)
        )
        return (logits**2).sum()

    arrays = transformer.named_arrays(made)
    got = jax.jit(jax.grad(lambda arrays: loss(arrays, jax.numpy)))(
        {n: jax.numpy.asarray(x) for n, x in arrays.items()}
    )
    leaves = {n: torch.asarray(x).requires_grad_() for n, x in arrays.items()}
    loss(leaves, torch).backward()
    for name, leaf in leaves.items():
        due = leaf.grad.numpy()
        np.testing.assert_allclose(
            got[name], due, rtol=1e-9, atol=1e-9 * abs(due).max()
        )


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"positions": "learned"}, ValueError, "`max_length` must be given exactly if"),
        ({"positions": "rotary"}, ValueError, '`positions` must be "sinusoidal"'),
        ({"norm": "batch"}, ValueError, '`norm` must be "layer" or "instance"'),
        ({"dropout": 0.1}, TypeError, "unknown option 'dropout'; options of a layer"),
        ({"norm_first": 1}, TypeError, "`norm_first` must be True or False"),
        ({"hidden": 0}, ValueError, "`hidden` must be a positive integer"),
    ],
)
def test_a_model_that_cannot_be(options, error, sentence):
    with pytest.raises(error, match=sentence):
        language_model(**options)


def test_a_width_that_has_no_pairs_is_named():
    with pytest.raises(ValueError, match="`width` must be even for sinusoidal"):
        transformer.LanguageModel.create(9, 7, 1, 1)


def test_calls_that_cannot_be():
    made = language_model(positions="learned", max_length=4)
    with pytest.raises(ValueError, match=r"at most 4 tokens, the number of learned.*5"):
        transformer.language_model(made, np.zeros((1, 5), int))
    with pytest.raises(ValueError, match=r"`tokens` must be an integer array \(N, T\)"):
        transformer.language_model(made, np.zeros(5, int))
    with pytest.raises(TypeError, match="`tokens` must be an integer array"):
        transformer.language_model(made, [[1]])
    with pytest.raises(ValueError, match="`memory` must be None for a stack made wi"):
        transformer.decoder(stack_of(), vectors(1, 3, 8), vectors(1, 3, 8))
    with pytest.raises(ValueError, match="`memory` must be the output of an encoder"):
        transformer.decoder(stack_of(cross=True), vectors(1, 3, 8))
