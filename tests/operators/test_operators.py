"""The public operators: dtypes, options, aliasing, gradients."""

import numpy as np
import pytest

import linkern

FORMS = ("recurrent", "chunkwise", "parallel")


def arrays(dtype="float32", length=20, lead=(2,)):
    rng = np.random.default_rng(length)
    return [rng.normal(size=(*lead, length, d)).astype(dtype) for d in (3, 3, 5)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_accumulated_in_float32(dtype, form):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    half = np.dtype(getattr(ml_dtypes, dtype, dtype))
    inputs = [x.astype(half) for x in arrays()]
    result = linkern.linear_attention(*inputs, form=form)
    wide = linkern.linear_attention(*(x.astype("float32") for x in inputs), form=form)
    assert result.output.dtype == half
    assert result.state.memory.dtype == np.float32
    assert np.array_equal(result.output, wide.output.astype(half))


def test_torch_bfloat16_is_accumulated_in_float32(torch):
    inputs = [torch.asarray(x).to(torch.bfloat16) for x in arrays()]
    result = linkern.linear_attention(*inputs)
    assert result.output.dtype == torch.bfloat16
    assert result.state.normalizer.dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [0, 1, 20])
@pytest.mark.parametrize("feature_map", [linkern.identity, linkern.elu_plus_one])
@pytest.mark.parametrize("normalize", [True, False])
def test_inputs_are_kept_and_never_shared(form, length, feature_map, normalize):
    inputs = [abs(x) for x in arrays(length=length)]
    before = [x.copy() for x in inputs]
    for x in inputs:
        x.flags.writeable = False
    options = {"form": form, "feature_map": feature_map, "normalize": normalize}
    first = linkern.linear_attention(*inputs, **options)
    kept = [x.copy() for x in first.state if x is not None]
    second = linkern.linear_attention(*inputs, **options, initial_state=first.state)
    assert all(np.array_equal(x, y) for x, y in zip(inputs, before, strict=True))
    states = [x for x in first.state if x is not None]
    assert all(np.array_equal(x, y) for x, y in zip(states, kept, strict=True))
    results = [second.output, *(x for x in second.state if x is not None)]
    for given in (*inputs, *states):
        assert not any(np.shares_memory(x, given) for x in results)


def test_scale_cancels_when_normalised_and_multiplies_when_not():
    inputs = arrays()
    plain = linkern.linear_attention(*inputs, normalize=False).output
    half = linkern.linear_attention(*inputs, normalize=False, scale=0.5).output
    assert np.array_equal(half, plain * np.float32(0.5))
    normalised = linkern.linear_attention(*inputs, scale=0.3).output
    assert np.array_equal(normalised, linkern.linear_attention(*inputs).output)


def test_the_feature_map_may_change_the_dimension():
    def doubled(x):
        return np.concatenate([linkern.relu(x), linkern.relu(-x)], axis=-1)

    inputs = [abs(x) for x in arrays()]
    result = linkern.linear_attention(*inputs, feature_map=doubled)
    assert result.state.memory.shape == (2, 6, 5)


def test_queries_in_groups_share_the_state_of_their_keys():
    query, key, value = arrays(lead=(2, 4, 1))
    query = np.concatenate([query, query[..., ::-1, :]], axis=2)
    grouped = linkern.linear_attention(query, key, value)
    assert grouped.output.shape == (2, 4, 2, 20, 5)
    assert grouped.state.memory.shape == (2, 4, 1, 3, 5)
    single = linkern.linear_attention(query[:, :, 1:], key, value)
    assert np.allclose(grouped.output[:, :, 1:], single.output, rtol=1e-6)


def test_no_weight_at_all_is_the_exact_quotient_nan():
    ones = np.ones((1, 1))
    with np.errstate(invalid="ignore"):
        result = linkern.linear_attention(-ones, ones, ones, feature_map=linkern.relu)
    assert np.isnan(result.output).all()


@pytest.mark.parametrize("form", FORMS)
def test_torch_autograd_flows_through_every_form(torch, form):
    inputs = [torch.asarray(x).requires_grad_() for x in arrays("float64", length=9)]
    assert torch.autograd.gradcheck(
        lambda *x: (
            linkern.linear_attention(
                *x, form=form, chunk_size=4 if form == "chunkwise" else None
            ).output
        ),
        inputs,
    )


def test_the_gradient_of_elu_plus_one_is_right_near_zero(torch):
    x = torch.asarray([-1e-9, 0.0, 1e-9, 2.0], dtype=torch.float32, requires_grad=True)
    linkern.elu_plus_one(x).sum().backward()
    assert torch.equal(x.grad, torch.ones(4))


def test_jax_jit_and_grad(jax):
    inputs = [jax.numpy.asarray(x) for x in arrays()]
    jitted = jax.jit(linkern.linear_attention)(*inputs)
    assert isinstance(jitted.state, linkern.State)
    eager = linkern.linear_attention(*inputs)
    assert np.allclose(jitted.output, eager.output, rtol=1e-5)
    gradient = jax.grad(lambda q, k, v: linkern.linear_attention(q, k, v).output.sum())
    assert np.isfinite(gradient(*inputs)).all()
